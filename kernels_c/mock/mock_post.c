/* The three calls of the data path, and the thread that keeps the wire moving while the program does not poll. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mock.h"
#include "mock_state.h"

#define NAP_LEAST_NS 200000
#define NAP_MOST_NS 5000000

/* The region that a key names, if it covers the piece and this queue pair may use it. */
static tbmock_mr *region(const tbmock_qp *qp, const struct ibv_sge *sge) {
    const tbmock_context *context = context_of(qp->ibv.context);
    uint32_t index = (sge->lkey >> 8) - 1;
    tbmock_mr *mr = index < (uint32_t)context->mr_slots ? context->mrs[index] : NULL;
    if (!mr || mr->key != sge->lkey || mr->ibv.pd != qp->ibv.pd)
        return NULL;
    uint64_t start = (uint64_t)(uintptr_t)mr->ibv.addr;
    bool inside = sge->addr >= start && sge->addr - start <= mr->ibv.length &&
                  sge->length <= mr->ibv.length - (sge->addr - start);
    bool mapped = tbmock_rule.late_mr || mr->serial <= qp->mapped || qp->ibv.state == IBV_QPS_INIT;
    return inside && mapped ? mr : NULL;
}

static int gather(const tbmock_qp *qp, tbmock_wr *wr, const struct ibv_sge *list, int pieces, uint32_t most) {
    uint64_t bytes = 0;
    if (pieces < 0 || (uint32_t)pieces > most || pieces > MAX_SGE)
        return EINVAL;
    for (int i = 0; i < pieces; i++) {
        wr->piece[i] = list[i];
        bytes += list[i].length;
        if (list[i].length && !(wr->mr[i] = region(qp, &list[i])))
            wr->status = IBV_WC_LOC_PROT_ERR;
    }
    if (bytes > (uint64_t)tbmock_rule.max_msg)
        return EINVAL;
    wr->pieces = pieces;
    wr->bytes = (uint32_t)bytes;
    wr->frames = tbmock_frames(wr->bytes);
    return 0;
}

static int take_inline(const tbmock_qp *qp, tbmock_wr *wr, const struct ibv_send_wr *from) {
    uint32_t bytes = 0;
    for (int i = 0; i < from->num_sge; bytes += from->sg_list[i++].length) {
        if (i == MAX_SGE || bytes + from->sg_list[i].length > qp->cap.max_inline_data)
            return EINVAL;
        memcpy(wr->data + bytes, (const void *)(uintptr_t)from->sg_list[i].addr, from->sg_list[i].length);
    }
    wr->bytes = bytes;
    wr->frames = 1;
    wr->pieces = 1;
    wr->piece[0] = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)wr->data, .length = bytes};
    return 0;
}

static int prepare_send(const tbmock_qp *qp, tbmock_wr *wr, const struct ibv_send_wr *from) {
    bool with_imm = tbmock_rule.opcodes && from->opcode == IBV_WR_SEND_WITH_IMM;
    if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
        return EINVAL;
    if (from->opcode != IBV_WR_SEND && !with_imm)
        return EOPNOTSUPP;
    wr->id = from->wr_id;
    wr->opcode = from->opcode;
    wr->imm = with_imm ? from->imm_data : 0;
    wr->signaled = qp->signal_all || (from->send_flags & IBV_SEND_SIGNALED);
    if (from->send_flags & IBV_SEND_INLINE)
        return take_inline(qp, wr, from);
    return gather(qp, wr, from->sg_list, from->num_sge, qp->cap.max_send_sge);
}

static int prepare_receive(const tbmock_qp *qp, tbmock_wr *wr, const struct ibv_recv_wr *from) {
    bool early = qp->ibv.state == IBV_QPS_INIT || qp->ibv.state == IBV_QPS_RTR;
    if (qp->ibv.state == IBV_QPS_RESET || (early && !tbmock_rule.early_recv))
        return EINVAL;
    wr->id = from->wr_id;
    return gather(qp, wr, from->sg_list, from->num_sge, qp->cap.max_recv_sge);
}

/* The depth is counted in frames, and below it stands what the provider never tells. */
static bool has_room(const tbmock_queue *queue, const tbmock_wr *wr, int64_t hidden) {
    int64_t frames = (int64_t)queue->frames + wr->frames;
    return queue->count < queue->room && frames <= queue->depth && frames <= hidden;
}

static void append(tbmock_queue *queue, const tbmock_wr *wr) {
    tbmock_wr *place = &queue->wrs[(queue->first + queue->count) % queue->room];
    bool in_line = wr->pieces && wr->piece[0].addr == (uint64_t)(uintptr_t)wr->data;
    *place = *wr;
    if (in_line)
        place->piece[0].addr = (uint64_t)(uintptr_t)place->data;
    queue->count++;
    queue->frames += wr->frames;
    for (int i = 0; i < wr->pieces; i++)
        if (wr->mr[i])
            wr->mr[i]->outstanding++;
}

static int send_one(tbmock_qp *qp, const struct ibv_send_wr *from) {
    tbmock_wr wr = {0};
    int error = tbmock_enter(CALL_SEND, qp->device, &wr.mark);
    if (!error)
        error = prepare_send(qp, &wr, from);
    if (error)
        return error;
    if (!has_room(&qp->sends, &wr, TBMOCK_OFF) ||
        !TAKE(qp->device, send_frames, (int32_t)wr.frames, tbmock_rule.port_frames))
        return ENOMEM;
    append(&qp->sends, &wr);
    return 0;
}

static int receive_one(tbmock_qp *qp, const struct ibv_recv_wr *from) {
    tbmock_wr wr = {0};
    int error = tbmock_enter(CALL_RECV, qp->device, NULL);
    if (!error)
        error = prepare_receive(qp, &wr, from);
    if (error)
        return error;
    if (!has_room(&qp->receives, &wr, tbmock_rule.recv_depth) ||
        !TAKE(qp->device, recv_frames, (int32_t)wr.frames, tbmock_rule.port_frames))
        return ENOMEM;
    append(&qp->receives, &wr);
    uint64_t posted = atomic_load_explicit(&qp->inbox->posted, memory_order_relaxed);
    qp->inbox->lengths[posted % MAX_WRS] = wr.bytes;
    atomic_store_explicit(&qp->inbox->posted, posted + 1, memory_order_release);
    return 0;
}

/* Posted to a queue pair in error: what was posted comes back at once. */
static void after_post(tbmock_qp *qp) {
    if (qp->ibv.state == IBV_QPS_ERR)
        tbmock_flush(qp);
    else
        tbmock_progress_qp(qp);
}

int tbmock_post_send(struct ibv_qp *handle, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    tbmock_qp *qp = (tbmock_qp *)handle;
    tbmock_context *context = context_of(handle->context);
    int error = 0;
    pthread_mutex_lock(&context->lock);
    for (; wr && !(error = send_one(qp, wr)); wr = wr->next)
        ;
    after_post(qp);
    pthread_mutex_unlock(&context->lock);
    if (error && bad)
        *bad = wr;
    return error;
}

int tbmock_post_recv(struct ibv_qp *handle, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    tbmock_qp *qp = (tbmock_qp *)handle;
    tbmock_context *context = context_of(handle->context);
    int error = 0;
    pthread_mutex_lock(&context->lock);
    for (; wr && !(error = receive_one(qp, wr)); wr = wr->next)
        ;
    after_post(qp);
    pthread_mutex_unlock(&context->lock);
    if (error && bad)
        *bad = wr;
    return error;
}

static int take_completions(tbmock_cq *cq, int entries, struct ibv_wc *wc) {
    int n = 0;
    for (; n < entries && cq->count; n++) {
        wc[n] = cq->entries[cq->first];
        cq->first = (cq->first + 1) % cq->room;
        cq->count--;
    }
    return n == 0 && cq->overrun ? -1 : n;
}

/* Never waits: where another thread is at work on the context, there is nothing to report yet. */
int tbmock_poll_cq(struct ibv_cq *handle, int entries, struct ibv_wc *wc) {
    tbmock_context *context = context_of(handle->context);
    tbmock_cq *cq = (tbmock_cq *)handle;
    int error = tbmock_enter(CALL_POLL, context->device, NULL);
    if (error)
        return -1;
    if (pthread_mutex_trylock(&context->lock) != 0)
        return 0;
    if (cq->count < (uint32_t)(entries > 0 ? entries : 0))
        tbmock_progress(context);
    int n = take_completions(cq, entries, wc);
    pthread_mutex_unlock(&context->lock);
    return n;
}

/* A send that was held goes out, and a message arrives, also while its program is busy elsewhere: the hardware does
 * not need to be polled. */
static struct {
    pthread_mutex_t life; /* held while the thread is started or awaited; never taken by it */
    pthread_mutex_t lock; /* of the list */
    tbmock_context *contexts;
    pthread_t thread;
    _Atomic bool running;
} pump = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

static bool pump_round(void) {
    bool moved = false;
    pthread_mutex_lock(&pump.lock);
    for (tbmock_context *context = pump.contexts; context; context = context->next)
        if (pthread_mutex_trylock(&context->lock) == 0) {
            moved |= tbmock_progress(context);
            pthread_mutex_unlock(&context->lock);
        }
    pthread_mutex_unlock(&pump.lock);
    return moved;
}

static void *pump_run(void *unused) {
    (void)unused;
    for (long nap_ns = NAP_LEAST_NS; atomic_load(&pump.running);) {
        nap_ns = pump_round() ? NAP_LEAST_NS : nap_ns * 2 < NAP_MOST_NS ? nap_ns * 2 : NAP_MOST_NS;
        nanosleep(&(struct timespec){0, nap_ns}, NULL);
    }
    return NULL;
}

static void pump_start(void) {
    if (atomic_load(&pump.running))
        return;
    atomic_store(&pump.running, true);
    atomic_store(&pump.running, pthread_create(&pump.thread, NULL, pump_run, NULL) == 0);
}

static tbmock_context **pump_place(const tbmock_context *context) {
    tbmock_context **at = &pump.contexts;
    while (*at && *at != context)
        at = &(*at)->next;
    return at;
}

void tbmock_pump_add(tbmock_context *context) {
    pthread_mutex_lock(&pump.life);
    pthread_mutex_lock(&pump.lock);
    tbmock_context **at = pump_place(context);
    if (!*at)
        *at = context;
    pthread_mutex_unlock(&pump.lock);
    pump_start();
    pthread_mutex_unlock(&pump.life);
}

void tbmock_pump_remove(tbmock_context *context) {
    pthread_mutex_lock(&pump.life);
    pthread_mutex_lock(&pump.lock);
    tbmock_context **at = pump_place(context);
    if (*at)
        *at = context->next;
    bool last = !pump.contexts && atomic_load(&pump.running);
    pthread_mutex_unlock(&pump.lock);
    if (last) {
        atomic_store(&pump.running, false);
        pthread_join(pump.thread, NULL);
    }
    pthread_mutex_unlock(&pump.life);
}
