/* Queue pairs and their registered rings, from creation to RTS and back. */
#include "port.h"

#if TB_HAVE_VERBS

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

#define REGION_MAX 16384000u /* what a device of macOS 27 names as its largest region */
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
#define PAGE 16384u          /* of Apple silicon; a multiple of what others have */
#define HOPS 1
#define SMALL_LEAST (TB_CONTROL_SLOTS + 1)

static const char *const NAME[TB_CLASSES] = {"small", "large"};

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Drivers answer with an errno, with its negative, or with -1 and errno. */
static int error_of(int result) { return result > 0 ? result : result < -1 ? -result : errno ? errno : EIO; }

/* Numbers of packets begin anywhere, so that strays of an earlier connection do not fit. */
static uint32_t packet_number(const void *salt) {
    uint64_t mixed = (tb_now_ns() ^ (uint64_t)(uintptr_t)salt ^ (uint64_t)getpid() << 32) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(mixed >> 40);
}

static uint32_t slots_asked(const tb_verbs_port *p, int class) {
    uint32_t frames = p->queue[class].frames;
    uint32_t slots = class == TB_SMALL ? 4 * p->ask.slots + TB_CONTROL_SLOTS : p->ask.slots;
    return p->max_work > 0 ? smaller(slots, (uint32_t)p->max_work / frames) : slots;
}

static int create(tb_verbs_port *p, int class, uint32_t slots, tb_verbs_error *e) {
    tb_queue *q = &p->queue[class];
    struct ibv_qp_init_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.qp_type = IBV_QPT_UC;
    attr.send_cq = attr.recv_cq = p->cq;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = slots * q->frames; /* Apple counts in 4 KiB frames */
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    errno = 0;
    q->qp = p->lib->create_qp(p->pd, &attr);
    q->psn = packet_number(q);
    return q->qp ? 0 : tb_verbs_fail(e, &p->ask, TB_VERBS_QP, errno, NULL);
}

static int init(tb_verbs_port *p, int class, tb_verbs_error *e) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)p->ask.port};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int result = p->lib->modify_qp(p->queue[class].qp, &attr, mask);
    if (result && error_of(result) == EINVAL) {
        attr.qp_access_flags = ALL_ACCESS;
        result = p->lib->modify_qp(p->queue[class].qp, &attr, mask);
        tb_port_note(p, "%s INIT refused access 0%s", NAME[class], result ? "" : ", took all flags");
    }
    return result ? tb_verbs_fail(e, &p->ask, TB_VERBS_INIT, error_of(result), NULL) : 0;
}

static int make_inbox(tb_queue *q) {
    uint32_t room = 1;
    while (room < q->recv_slots)
        room *= 2;
    q->inbox.room = room;
    q->inbox.slot = calloc(room, sizeof *q->inbox.slot);
    return q->inbox.slot ? 0 : ENOMEM;
}

static int read_depth(tb_verbs_port *p, int class, uint32_t asked, tb_verbs_error *e) {
    tb_queue *q = &p->queue[class];
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr first;
    memset(&attr, 0, sizeof attr);
    memset(&first, 0, sizeof first);
    int result = p->lib->query_qp(q->qp, &attr, IBV_QP_CAP, &first);
    if (result)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_DEPTH, error_of(result), NULL);
    uint32_t send = smaller(asked, attr.cap.max_send_wr / q->frames);
    q->recv_slots = smaller(asked, attr.cap.max_recv_wr / q->frames);
    tb_port_note(p, "%s asked %u slots of %u frames, has %u to send and %u to receive", NAME[class], asked, q->frames,
                 send, q->recv_slots);
    if (class == TB_SMALL && smaller(send, q->recv_slots) < SMALL_LEAST)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_DEPTH, 0, "the queue pair has room for %u frames, at least %u",
                             smaller(send, q->recv_slots), SMALL_LEAST);
    q->send_depth = send;
    q->send_slots = class == TB_SMALL ? send - TB_CONTROL_SLOTS : send;
    return make_inbox(q) ? tb_verbs_fail(e, &p->ask, TB_VERBS_DEPTH, ENOMEM, "no memory") : 0;
}

/* The receive path of macOS encodes 32 bits of an address, so no region may cross a 4 GiB boundary. What crosses is
 * kept until another place is found, else the allocator would give the same again. */
static uint8_t *allocate(size_t bytes) {
    void *at[4] = {NULL};
    int tries = 0;
    for (; tries < 4; tries++) {
        if (posix_memalign(&at[tries], PAGE, bytes) != 0)
            break;
        uintptr_t first = (uintptr_t)at[tries], last = first + bytes - 1;
        if ((uint64_t)first >> 32 == (uint64_t)last >> 32)
            break;
    }
    void *found = tries < 4 ? at[tries] : NULL;
    while (tries-- > 0)
        free(at[tries]);
    return found;
}

static int register_region(tb_verbs_port *p, tb_region *r, size_t bytes, const char *name, tb_verbs_error *e) {
    uint64_t most = p->max_region && p->max_region < REGION_MAX ? p->max_region : REGION_MAX;
    if (bytes > most)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_REGISTER, EINVAL, "the %s ring takes %zu bytes, a region at most %llu: "
                             "ask fewer slots", name, bytes, (unsigned long long)most);
    r->bytes = bytes;
    r->at = allocate(bytes);
    if (!r->at)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_REGISTER, ENOMEM, "no memory for the %s ring", name);
    memset(r->at, 0, bytes);
    r->mr = p->lib->reg_mr(p->pd, r->at, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!r->mr) {
        int refused = errno;
        r->mr = p->lib->reg_mr(p->pd, r->at, bytes, ALL_ACCESS);
        tb_port_note(p, "%s ring not registered with LOCAL_WRITE alone (%s)%s", name, tb_errno_name(refused),
                     r->mr ? ", but with all flags" : "");
    }
    return r->mr ? 0 : tb_verbs_fail(e, &p->ask, TB_VERBS_REGISTER, errno, NULL);
}

/* A frame of several small slots may begin in the last one: the ring goes on behind its end. */
static int register_rings(tb_verbs_port *p, tb_verbs_error *e) {
    tb_queue *small = &p->queue[TB_SMALL], *large = &p->queue[TB_LARGE];
    size_t control = (size_t)(small->send_slots + TB_RUN_MAX - 1) * TB_FRAME_BYTES;
    size_t large_send = control + TB_CONTROL_SLOTS * TB_FRAME_BYTES;
    size_t large_recv = (size_t)small->recv_slots * TB_FRAME_BYTES;
    int step = register_region(p, &p->send, large_send + (size_t)large->send_slots * tb_slot_bytes(large), "send", e);
    if (!step)
        step = register_region(p, &p->receive, large_recv + (size_t)large->recv_slots * tb_slot_bytes(large), "receive",
                               e);
    if (step)
        return step;
    small->send_at = p->send.at;
    small->recv_at = p->receive.at;
    p->control = p->send.at + control;
    large->send_at = p->send.at + large_send;
    large->recv_at = p->receive.at + large_recv;
    return 0;
}

int tb_queues_create(tb_verbs_port *p, tb_verbs_error *e) {
    uint32_t slots[TB_CLASSES] = {0}, entries = 1;
    int step = 0;
    errno = 0;
    if (!(p->pd = p->lib->alloc_pd(p->context)))
        return tb_verbs_fail(e, &p->ask, TB_VERBS_PD, errno, NULL);
    p->queue[TB_SMALL].frames = 1;
    p->queue[TB_LARGE].frames = p->ask.large_frames;
    for (int class = 0; class < TB_CLASSES; class++) {
        slots[class] = p->queue[class].frames > (uint32_t)class ? slots_asked(p, class) : 0;
        entries += 2 * slots[class];
    }
    if (!(p->cq = p->lib->create_cq(p->context, (int)entries, NULL, NULL, 0)))
        return tb_verbs_fail(e, &p->ask, TB_VERBS_CQ, errno, NULL);
    for (int class = 0; class < TB_CLASSES && !step; class++) {
        if (slots[class] == 0)
            continue;
        step = create(p, class, slots[class], e);
        if (!step)
            step = init(p, class, e);
        if (!step)
            step = read_depth(p, class, slots[class], e);
    }
    return step ? step : register_rings(p, e);
}

static int to_rtr(tb_verbs_port *p, int class, const tb_verbs_card *peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = p->mtu};
    attr.dest_qp_num = peer->queue[class].qpn;
    attr.rq_psn = peer->queue[class].psn;
    attr.ah_attr.dlid = peer->lid;
    attr.ah_attr.port_num = (uint8_t)p->ask.port;
    attr.ah_attr.is_global = 1;
    memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    attr.ah_attr.grh.sgid_index = (uint8_t)p->gid_index;
    attr.ah_attr.grh.hop_limit = HOPS;
    int result = p->lib->modify_qp(p->queue[class].qp, &attr,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    return result ? error_of(result) : 0;
}

/* RTR is called once, because a few that fail can wedge the driver; an MTU refused as invalid is the one exception,
 * and the readiness tells the peer which one it became. */
static int reach(tb_verbs_port *p, int class, const tb_verbs_card *peer, tb_verbs_error *e) {
    int error = to_rtr(p, class, peer);
    if (error == EINVAL && class == TB_SMALL && p->mtu > IBV_MTU_1024) {
        p->mtu = IBV_MTU_1024;
        error = to_rtr(p, class, peer);
        tb_port_note(p, "RTR refused the port's MTU%s", error ? ", and 1024" : ", took 1024");
    }
    if (error)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_RTR, error, NULL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = p->queue[class].psn};
    int result = p->lib->modify_qp(p->queue[class].qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return result ? tb_verbs_fail(e, &p->ask, TB_VERBS_RTS, error_of(result), NULL) : 0;
}

/* The depth that a driver tells is not always what it gives: receives are posted until it refuses one. */
static int post_receives(tb_verbs_port *p, int class, tb_verbs_error *e) {
    tb_queue *q = &p->queue[class];
    int refused = 0;
    while (q->posted < q->recv_slots && !(refused = tb_post_receive(p, class, q->posted)))
        q->posted++;
    if (refused)
        tb_port_note(p, "%s took %u receives, then %s (%d)", NAME[class], q->posted, tb_errno_name(refused), refused);
    if (class == TB_SMALL && q->posted < SMALL_LEAST)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_POST, refused, "%u receives taken, at least %u", q->posted, SMALL_LEAST);
    return 0;
}

int tb_queues_connect(tb_verbs_port *p, const tb_verbs_card *peer, tb_verbs_error *e) {
    tb_queue *large = &p->queue[TB_LARGE];
    large->frames = smaller(large->frames, peer->queue[TB_LARGE].frames);
    int step = 0, classes = large->frames > 1 && large->qp ? TB_CLASSES : 1;
    for (int class = 0; class < classes && !step; class++)
        step = reach(p, class, peer, e);
    for (int class = 0; class < classes && !step; class++)
        step = post_receives(p, class, e);
    return step;
}

void tb_queues_halt(tb_verbs_port *p) {
    for (int class = 0; class < TB_CLASSES; class++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        const tb_queue *q = &p->queue[class];
        if (q->qp && (q->sending || q->receiving))
            p->lib->modify_qp(q->qp, &attr, IBV_QP_STATE);
    }
}

static void free_region(tb_verbs_port *p, tb_region *r) {
    if (r->mr)
        p->lib->dereg_mr(r->mr);
    free(r->at);
}

/* Regions go after the queue pairs: a driver that still had work in one would fault the IOMMU. */
int tb_queues_destroy(tb_verbs_port *p) {
    for (int class = TB_CLASSES - 1; class >= 0; class--) {
        tb_queue *q = &p->queue[class];
        int result = q->qp ? p->lib->destroy_qp(q->qp) : 0;
        if (result)
            return error_of(result);
        free(q->inbox.slot);
        *q = (tb_queue){0};
    }
    int failed = p->cq && p->lib->destroy_cq(p->cq) ? error_of(-1) : 0;
    free_region(p, &p->send);
    free_region(p, &p->receive);
    if (p->pd && p->lib->dealloc_pd(p->pd) && !failed)
        failed = error_of(-1);
    if (p->context && p->lib->close_device(p->context) && !failed)
        failed = error_of(-1);
    return failed;
}

#endif
