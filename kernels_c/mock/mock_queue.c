/* Completion queues; queue pairs from creation to destruction. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"
#include "mock_state.h"

TBMOCK_API struct ibv_cq *ibv_create_cq(struct ibv_context *handle, int cqe, void *cq_context,
                                        struct ibv_comp_channel *channel, int vector) {
    tbmock_context *context = context_of(handle);
    int error = tbmock_enter(CALL_CREATE_CQ, context->device, NULL);
    if (!error && (cqe < 1 || cqe > MAX_WRS || channel || vector != 0))
        error = EINVAL;
    if (!error && !TAKE(context->device, cqs, 1, tbmock_rule.max_cq))
        error = ENOMEM;
    tbmock_cq *cq = error ? NULL : calloc(1, sizeof *cq + (size_t)cqe * sizeof *cq->entries);
    if (!cq) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    cq->room = (uint32_t)cqe;
    cq->ibv = (struct ibv_cq){.context = handle, .cq_context = cq_context, .cqe = cqe};
    pthread_mutex_lock(&context->lock);
    context->cqs++;
    pthread_mutex_unlock(&context->lock);
    return &cq->ibv;
}

TBMOCK_API int ibv_destroy_cq(struct ibv_cq *handle) {
    tbmock_context *context = context_of(handle->context);
    tbmock_cq *cq = (tbmock_cq *)handle;
    int error = tbmock_enter(CALL_DESTROY_CQ, context->device, NULL);
    if (error)
        return error;
    pthread_mutex_lock(&context->lock);
    bool busy = cq->users > 0;
    context->cqs -= !busy;
    pthread_mutex_unlock(&context->lock);
    if (busy)
        return EBUSY;
    GIVE(context->device, cqs, 1);
    free(cq);
    return 0;
}

static int check_caps(const struct ibv_qp_cap *cap) {
    int64_t most = tbmock_rule.queue_frames < MAX_WRS ? tbmock_rule.queue_frames : MAX_WRS - 1;
    int64_t sge = tbmock_rule.max_sge < MAX_SGE ? tbmock_rule.max_sge : MAX_SGE;
    int64_t in_line = tbmock_rule.max_inline < MAX_INLINE ? tbmock_rule.max_inline : MAX_INLINE;
    bool fits = cap->max_send_wr <= most && cap->max_recv_wr <= most && cap->max_send_sge <= sge &&
                cap->max_recv_sge <= sge && cap->max_inline_data <= in_line;
    return fits ? 0 : EINVAL;
}

static int check_init(const struct ibv_pd *pd, const struct ibv_qp_init_attr *init) {
    if (init->qp_type != IBV_QPT_UC && !(tbmock_rule.qp_types && init->qp_type == IBV_QPT_RC))
        return EOPNOTSUPP;
    if (init->srq || !init->send_cq || !init->recv_cq || init->send_cq->context != pd->context ||
        init->recv_cq->context != pd->context)
        return EINVAL;
    return check_caps(&init->cap);
}

static int queue_init(tbmock_queue *queue, uint32_t asked) {
    queue->depth = asked > tbmock_rule.depth ? (uint32_t)tbmock_rule.depth : asked;
    queue->room = queue->depth ? queue->depth : 1;
    queue->wrs = calloc(queue->room, sizeof *queue->wrs);
    return queue->wrs ? 0 : ENOMEM;
}

static void qp_free(tbmock_qp *qp) {
    tbmock_mailbox_close(qp->inbox);
    tbmock_mailbox_close(qp->outbox);
    free(qp->sends.wrs);
    free(qp->receives.wrs);
    free(qp);
}

static tbmock_qp *qp_new(int device, const struct ibv_qp_init_attr *init) {
    tbmock_qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return NULL;
    qp->device = device;
    qp->cap = init->cap;
    qp->signal_all = init->sq_sig_all;
    qp->ibv.qp_num = 1 + atomic_fetch_add(&tbmock_shared->port[device].next_qpn, 1);
    qp->ibv.state = IBV_QPS_RESET;
    qp->ibv.qp_type = init->qp_type;
    int error = queue_init(&qp->sends, init->cap.max_send_wr) || queue_init(&qp->receives, init->cap.max_recv_wr);
    qp->inbox = error ? NULL : tbmock_mailbox_create(device, qp->ibv.qp_num);
    if (!qp->inbox) {
        qp_free(qp);
        return NULL;
    }
    qp->cap.max_send_wr = qp->sends.depth;
    qp->cap.max_recv_wr = qp->receives.depth;
    return qp;
}

static void qp_link(tbmock_context *context, tbmock_qp *qp, int users) {
    tbmock_qp **at = &context->qps;
    if (users > 0) {
        qp->next = context->qps;
        context->qps = qp;
    } else {
        while (*at != qp)
            at = &(*at)->next;
        *at = qp->next;
    }
    ((tbmock_pd *)qp->ibv.pd)->users += users;
    ((tbmock_cq *)qp->ibv.send_cq)->users += users;
    ((tbmock_cq *)qp->ibv.recv_cq)->users += users;
}

TBMOCK_API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    tbmock_context *context = context_of(pd->context);
    int error = tbmock_enter(CALL_CREATE_QP, context->device, NULL);
    if (!error)
        error = check_init(pd, init);
    if (!error && !TAKE(context->device, qps, 1, tbmock_rule.max_qp))
        error = EBUSY;
    if (error) {
        errno = error;
        return NULL;
    }
    tbmock_qp *qp = qp_new(context->device, init);
    if (!qp) {
        GIVE(context->device, qps, 1);
        errno = ENOMEM;
        return NULL;
    }
    qp->ibv.context = pd->context;
    qp->ibv.qp_context = init->qp_context;
    qp->ibv.pd = pd;
    qp->ibv.send_cq = init->send_cq;
    qp->ibv.recv_cq = init->recv_cq;
    pthread_mutex_lock(&context->lock);
    qp_link(context, qp, 1);
    pthread_mutex_unlock(&context->lock);
    return &qp->ibv;
}

TBMOCK_API int ibv_destroy_qp(struct ibv_qp *handle) {
    tbmock_context *context = context_of(handle->context);
    tbmock_qp *qp = (tbmock_qp *)handle;
    int error = tbmock_enter(CALL_DESTROY_QP, context->device, NULL);
    if (error)
        return error;
    pthread_mutex_lock(&context->lock);
    atomic_store(&qp->inbox->state, IBV_QPS_RESET);
    tbmock_forget(qp);
    qp_link(context, qp, -1);
    pthread_mutex_unlock(&context->lock);
    tbmock_mailbox_remove(qp->device, handle->qp_num);
    GIVE(qp->device, qps, 1);
    qp_free(qp);
    return 0;
}

TBMOCK_API int ibv_query_qp(struct ibv_qp *handle, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    tbmock_qp *qp = (tbmock_qp *)handle;
    int error = tbmock_enter(CALL_QUERY_QP, qp->device, NULL);
    (void)mask; /* all is given, as libibverbs may do */
    if (error)
        return error;
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = handle->state;
    attr->cap = qp->cap;
    memset(init, 0, sizeof *init);
    init->qp_context = handle->qp_context;
    init->send_cq = handle->send_cq;
    init->recv_cq = handle->recv_cq;
    init->cap = qp->cap;
    init->qp_type = handle->qp_type;
    init->sq_sig_all = qp->signal_all;
    return 0;
}
