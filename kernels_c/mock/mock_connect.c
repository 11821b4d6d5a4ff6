/* The queue pair's way from RESET to RTS, and to ERR. ibv_modify_qp returns the errno itself. */
#include <errno.h>
#include <string.h>

#include "mock.h"
#include "mock_state.h"

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RTS_MASK (IBV_QP_STATE | IBV_QP_SQ_PSN)
#define ALL_FLAGS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

static int enter_state(tbmock_qp *qp, enum ibv_qp_state state) {
    qp->ibv.state = state;
    atomic_store(&qp->inbox->state, state);
    return 0;
}

static int to_init(tbmock_qp *qp, const struct ibv_qp_attr *attr, int mask) {
    unsigned access = attr->qp_access_flags;
    if (qp->ibv.state != IBV_QPS_RESET || mask != INIT_MASK || attr->pkey_index != 0 || attr->port_num != 1)
        return EINVAL;
    if ((tbmock_rule.init_access == ACCESS_ZERO && access != 0) ||
        (tbmock_rule.init_access == ACCESS_ALL && (access & ALL_FLAGS) != ALL_FLAGS))
        return EINVAL;
    qp->attr = (struct ibv_qp_attr){.port_num = 1, .qp_access_flags = access};
    return enter_state(qp, IBV_QPS_INIT);
}

static bool mtu_accepted(enum ibv_mtu mtu) {
    if (tbmock_rule.mtu == MTU_1024)
        return mtu == IBV_MTU_1024;
    if (tbmock_rule.mtu == MTU_4096)
        return mtu == IBV_MTU_4096;
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096;
}

static bool same(const union ibv_gid *a, const union ibv_gid *b) { return memcmp(a->raw, b->raw, 16) == 0; }

static int device_with(const union ibv_gid *gid) {
    union ibv_gid gids[MAX_GIDS];
    for (int device = 0; device < tbmock_cables.devices; device++)
        for (int i = tbmock_gids(device, gids) - 1; i >= 0; i--)
            if (same(&gids[i], gid))
                return device;
    return -1;
}

/* The wrong kind of address: 22 as on Macs, but 60 for entry 0, which routes elsewhere. Of the right kind: 22 where
 * it is another cable's (a crossed matrix), 60 where nobody has it. */
static int check_route(const tbmock_qp *qp, const struct ibv_ah_attr *ah) {
    union ibv_gid gids[MAX_GIDS], none = {.raw = {0}};
    int entries = tbmock_gids(qp->device, gids), index = ah->grh.sgid_index;
    if (!ah->is_global || ah->port_num != 1 || ah->grh.hop_limit < 1 || index >= entries || same(&gids[index], &none))
        return EINVAL;
    if (!tbmock_rule.rtr_gid && !tbmock_gid_is_ipv4(&gids[index]))
        return index == 0 ? ETIMEDOUT : EINVAL;
    if (!tbmock_rule.rtr_gid && !tbmock_gid_is_ipv4(&ah->grh.dgid))
        return EINVAL;
    int device = device_with(&ah->grh.dgid);
    if (device < 0 || tbmock_cables.end[qp->device].peer < 0)
        return ETIMEDOUT;
    return device == tbmock_cables.end[qp->device].peer ? 0 : EINVAL;
}

static int check_rtr(const tbmock_qp *qp, const struct ibv_qp_attr *attr, int mask) {
    if (qp->ibv.state != IBV_QPS_INIT || mask != RTR_MASK || !mtu_accepted(attr->path_mtu))
        return EINVAL;
    return check_route(qp, &attr->ah_attr);
}

static int to_rtr(tbmock_qp *qp, const struct ibv_qp_attr *attr, int mask) {
    int error = check_rtr(qp, attr, mask), peer = tbmock_cables.end[qp->device].peer;
    if (error)
        return error;
    tbmock_mailbox *outbox = tbmock_mailbox_open(peer, attr->dest_qp_num);
    if (!outbox || atomic_load(&outbox->state) == IBV_QPS_RESET) {
        tbmock_mailbox_close(outbox);
        return ETIMEDOUT; /* nobody there answers, or not yet */
    }
    qp->outbox = outbox;
    qp->attr.ah_attr = attr->ah_attr;
    qp->attr.path_mtu = attr->path_mtu;
    qp->attr.dest_qp_num = attr->dest_qp_num;
    qp->attr.rq_psn = attr->rq_psn;
    qp->mapped = context_of(qp->ibv.context)->serial;
    atomic_store(&qp->inbox->source_device, (uint32_t)peer);
    atomic_store(&qp->inbox->source_qpn, attr->dest_qp_num);
    atomic_store(&qp->inbox->psn, attr->rq_psn);
    return enter_state(qp, IBV_QPS_RTR);
}

/* A failing RTR may be tried once more; whoever goes on wedges the device until its last process has ended. */
static int count_rtr(int device, int error) {
    tbmock_port *port = &tbmock_shared->port[device];
    if (!error)
        atomic_store(&port->failed_rtr, 0);
    else if ((int64_t)atomic_fetch_add(&port->failed_rtr, 1) + 1 > tbmock_rule.wedge)
        atomic_store(&port->wedged, 1);
    return error;
}

static int to_rts(tbmock_qp *qp, const struct ibv_qp_attr *attr, int mask) {
    if (qp->ibv.state != IBV_QPS_RTR || mask != RTS_MASK)
        return EINVAL;
    qp->attr.sq_psn = attr->sq_psn;
    return enter_state(qp, IBV_QPS_RTS);
}

static int to_error(tbmock_qp *qp) {
    enter_state(qp, IBV_QPS_ERR);
    tbmock_flush(qp);
    return 0;
}

/* What was under way goes on into a mailbox that nobody reads. */
static int to_reset(tbmock_qp *qp) {
    atomic_store(&qp->inbox->state, IBV_QPS_RESET);
    tbmock_forget(qp);
    tbmock_mailbox_remove(qp->device, qp->ibv.qp_num);
    tbmock_mailbox *fresh = tbmock_mailbox_create(qp->device, qp->ibv.qp_num);
    if (!fresh)
        return ENOMEM;
    tbmock_mailbox_close(qp->inbox);
    tbmock_mailbox_close(qp->outbox);
    qp->inbox = fresh;
    qp->outbox = NULL;
    qp->taken = 0;
    return enter_state(qp, IBV_QPS_RESET);
}

static enum tbmock_call call_of(const struct ibv_qp_attr *attr, int mask) {
    if (!(mask & IBV_QP_STATE))
        return CALL_MODIFY;
    switch (attr->qp_state) {
    case IBV_QPS_INIT:
        return CALL_INIT;
    case IBV_QPS_RTR:
        return CALL_RTR;
    case IBV_QPS_RTS:
        return CALL_RTS;
    default:
        return CALL_MODIFY;
    }
}

static int modify(tbmock_qp *qp, const struct ibv_qp_attr *attr, int mask, enum tbmock_call call) {
    switch (call) {
    case CALL_INIT:
        return to_init(qp, attr, mask);
    case CALL_RTR:
        return to_rtr(qp, attr, mask);
    case CALL_RTS:
        return to_rts(qp, attr, mask);
    default:
        if (mask == IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
            return to_error(qp);
        return mask == IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET ? to_reset(qp) : EINVAL;
    }
}

TBMOCK_API int ibv_modify_qp(struct ibv_qp *handle, struct ibv_qp_attr *attr, int mask) {
    tbmock_qp *qp = (tbmock_qp *)handle;
    tbmock_context *context = context_of(handle->context);
    enum tbmock_call call = call_of(attr, mask);
    int error = tbmock_enter(call, qp->device, NULL);
    if (!error) {
        pthread_mutex_lock(&context->lock);
        error = modify(qp, attr, mask, call);
        pthread_mutex_unlock(&context->lock);
    }
    if (call == CALL_RTR)
        count_rtr(qp->device, error);
    if (call == CALL_RTR && !error)
        tbmock_pump_add(context);
    return error;
}
