/* Messages between mailboxes: a ring of bytes in which each message is a head of one line and its data.
 *
 * The lock of the context is held by all that is here. A step copies at most STEP bytes, so nobody waits long. */
#include <string.h>

#include "mock_state.h"

#define STEP (64u << 10)
#define STEPS 4 /* a queue pair and call */

enum { KIND_DATA = 1, KIND_MISMATCH = 2 };

typedef struct record {
    uint32_t bytes, imm, kind, with_imm;
} record;

static uint64_t line(uint64_t bytes) { return (bytes + TBMOCK_LINE - 1) / TBMOCK_LINE * TBMOCK_LINE; }

static tbmock_wr *front(tbmock_queue *queue) { return &queue->wrs[queue->first]; }

static void pop(tbmock_qp *qp, bool send) {
    tbmock_queue *queue = send ? &qp->sends : &qp->receives;
    tbmock_wr *wr = front(queue);
    for (int i = 0; i < wr->pieces; i++)
        if (wr->mr[i])
            wr->mr[i]->outstanding--;
    queue->frames -= wr->frames;
    queue->first = (queue->first + 1) % queue->room;
    queue->count--;
    queue->started = false;
    queue->done = 0;
    if (send)
        GIVE(qp->device, send_frames, (int32_t)wr->frames);
    else
        GIVE(qp->device, recv_frames, (int32_t)wr->frames);
}

static enum ibv_wc_opcode opcode_of(bool send) { return send ? IBV_WC_SEND : IBV_WC_RECV; }

static void push(tbmock_cq *cq, const struct ibv_wc *wc) {
    if (cq->count == cq->room) {
        cq->overrun = 1;
        return;
    }
    cq->entries[(cq->first + cq->count) % cq->room] = *wc;
    cq->count++;
}

/* The first work request of a queue ends; a success that was not to be signalled says nothing. */
void tbmock_complete(tbmock_qp *qp, bool send, enum ibv_wc_status status) {
    tbmock_wr *wr = front(send ? &qp->sends : &qp->receives);
    struct ibv_wc wc = {.wr_id = wr->id, .status = status, .opcode = opcode_of(send), .qp_num = qp->ibv.qp_num};
    wc.byte_len = send ? wr->bytes : qp->arriving.bytes;
    if (!send && qp->arriving.with_imm && status == IBV_WC_SUCCESS) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = qp->arriving.imm;
    }
    if (!send || wr->signaled || status != IBV_WC_SUCCESS)
        push((tbmock_cq *)(send ? qp->ibv.send_cq : qp->ibv.recv_cq), &wc);
    pop(qp, send);
}

void tbmock_flush(tbmock_qp *qp) {
    qp->arriving.bytes = 0;
    while (qp->sends.count)
        tbmock_complete(qp, true, IBV_WC_WR_FLUSH_ERR);
    while (qp->receives.count)
        tbmock_complete(qp, false, IBV_WC_WR_FLUSH_ERR);
}

void tbmock_forget(tbmock_qp *qp) {
    while (qp->sends.count)
        pop(qp, true);
    while (qp->receives.count)
        pop(qp, false);
}

static void fail(tbmock_qp *qp, bool send, enum ibv_wc_status status) {
    tbmock_complete(qp, send, status);
    qp->ibv.state = IBV_QPS_ERR;
    atomic_store(&qp->inbox->state, IBV_QPS_ERR);
    tbmock_flush(qp);
}

/* The memory at an offset of a work request, and how far it goes on. */
static uint8_t *memory_at(const tbmock_wr *wr, uint32_t offset, uint32_t *run, const tbmock_mr **mr) {
    int i = 0;
    while (offset >= wr->piece[i].length)
        offset -= wr->piece[i++].length;
    *run = wr->piece[i].length - offset;
    *mr = wr->mr[i];
    return (uint8_t *)(uintptr_t)(wr->piece[i].addr + offset);
}

static uint32_t least(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

static void ring_write(tbmock_mailbox *box, uint64_t at, const uint8_t *from, uint32_t bytes) {
    uint64_t place = at % box->ring_bytes;
    uint32_t first = least(bytes, box->ring_bytes - place);
    memcpy(box->ring + place, from, first);
    memcpy(box->ring, from + first, bytes - first);
}

static void ring_read(const tbmock_mailbox *box, uint64_t at, uint8_t *to, uint32_t bytes) {
    uint64_t place = at % box->ring_bytes;
    uint32_t first = least(bytes, box->ring_bytes - place);
    memcpy(to, box->ring + place, first);
    memcpy(to + first, box->ring, bytes - first);
}

static uint64_t room_in(const tbmock_mailbox *box) {
    uint64_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    uint64_t used = head - atomic_load_explicit(&box->tail, memory_order_acquire);
    return used < box->ring_bytes ? box->ring_bytes - used : 0; /* the padding of a message may reach beyond */
}

enum verdict { HOLD, LOSE, DELIVER, MISMATCH };

static bool connected(const tbmock_qp *qp) {
    const tbmock_mailbox *box = qp->outbox;
    return atomic_load(&box->source_device) == (uint32_t)qp->device &&
           atomic_load(&box->source_qpn) == qp->ibv.qp_num && atomic_load(&box->psn) == qp->attr.sq_psn;
}

static enum verdict admit(const tbmock_qp *qp, const tbmock_wr *wr) {
    const tbmock_mailbox *box = qp->outbox;
    uint32_t state = atomic_load_explicit(&box->state, memory_order_acquire);
    bool ready = state == IBV_QPS_RTR || state == IBV_QPS_RTS;
    if (ready && !connected(qp))
        return LOSE; /* of another conversation: the receiver throws it away */
    if (!ready || atomic_load_explicit(&box->posted, memory_order_acquire) == qp->taken)
        return tbmock_rule.credits == CREDITS_DROP ? LOSE : HOLD;
    uint32_t length = box->lengths[qp->taken % MAX_WRS];
    bool fits = tbmock_rule.frames ? tbmock_frames(length) == wr->frames : wr->bytes <= length;
    if (fits && wr->bytes > length)
        return MISMATCH; /* the same frames, yet the last one does not fit into the receive */
    return fits ? wr->mark & MARK_LOSE ? LOSE : DELIVER : MISMATCH;
}

static void put_record(tbmock_qp *qp, const tbmock_wr *wr, uint32_t kind) {
    tbmock_mailbox *box = qp->outbox;
    bool data = kind == KIND_DATA;
    record head = {data ? wr->bytes : 0, wr->imm, kind, wr->opcode == IBV_WR_SEND_WITH_IMM};
    uint64_t at = atomic_load_explicit(&box->head, memory_order_relaxed);
    memcpy(box->ring + at % box->ring_bytes, &head, sizeof head);
    atomic_store_explicit(&box->head, at + TBMOCK_LINE, memory_order_release);
    qp->taken++;
}

/* True if the first send has gone under way or has ended. */
static bool start_send(tbmock_qp *qp, tbmock_wr *wr) {
    if (wr->status != IBV_WC_SUCCESS) {
        fail(qp, true, wr->status);
        return true;
    }
    enum verdict verdict = admit(qp, wr);
    if (verdict == HOLD || (verdict != LOSE && room_in(qp->outbox) < TBMOCK_LINE))
        return false;
    if (verdict != LOSE)
        put_record(qp, wr, verdict == DELIVER ? KIND_DATA : KIND_MISMATCH);
    if (verdict == MISMATCH)
        fail(qp, true, IBV_WC_REM_INV_REQ_ERR);
    else if (verdict == LOSE || wr->bytes == 0)
        tbmock_complete(qp, true, IBV_WC_SUCCESS);
    else
        qp->sends.started = true;
    return true;
}

static void corrupt(tbmock_mailbox *box, uint64_t at) { box->ring[at % box->ring_bytes] ^= 0x10; }

static bool send_step(tbmock_qp *qp) {
    tbmock_queue *queue = &qp->sends;
    if (queue->count == 0 || qp->ibv.state != IBV_QPS_RTS)
        return false;
    tbmock_wr *wr = front(queue);
    if (!queue->started)
        return start_send(qp, wr);
    uint32_t run, bytes = least(room_in(qp->outbox), least(STEP, wr->bytes - queue->done));
    const tbmock_mr *mr;
    if (bytes == 0)
        return false;
    const uint8_t *from = memory_at(wr, queue->done, &run, &mr);
    bytes = least(bytes, run);
    uint64_t at = atomic_load_explicit(&qp->outbox->head, memory_order_relaxed);
    ring_write(qp->outbox, at, from, bytes);
    if (wr->mark & MARK_CORRUPT && queue->done == 0)
        corrupt(qp->outbox, at + bytes / 2);
    queue->done += bytes;
    bool last = queue->done == wr->bytes;
    atomic_store_explicit(&qp->outbox->head, last ? line(at + bytes) : at + bytes, memory_order_release);
    if (last)
        tbmock_complete(qp, true, IBV_WC_SUCCESS);
    return true;
}

/* The receive path keeps the low 32 bits of an address: what lies beyond the region's first 4 GiB boundary is
 * written 4 GiB too low. Here it is left out. */
static uint32_t before_alias(const uint8_t *to, uint32_t bytes, const tbmock_mr *mr) {
    uint64_t boundary = (((uint64_t)(uintptr_t)mr->ibv.addr >> 32) + 1) << 32, at = (uint64_t)(uintptr_t)to;
    if (!tbmock_rule.alias || at + bytes <= boundary)
        return bytes;
    return at >= boundary ? 0 : (uint32_t)(boundary - at);
}

static bool start_receive(tbmock_qp *qp, uint64_t tail) {
    record head;
    memcpy(&head, qp->inbox->ring + tail % qp->inbox->ring_bytes, sizeof head);
    atomic_store_explicit(&qp->inbox->tail, tail + TBMOCK_LINE, memory_order_release);
    qp->arriving.bytes = head.bytes;
    qp->arriving.imm = head.imm;
    qp->arriving.with_imm = head.with_imm;
    enum ibv_wc_status status = front(&qp->receives)->status;
    if (head.kind == KIND_MISMATCH)
        fail(qp, false, IBV_WC_LOC_LEN_ERR);
    else if (status != IBV_WC_SUCCESS)
        fail(qp, false, status);
    else if (head.bytes == 0)
        tbmock_complete(qp, false, IBV_WC_SUCCESS);
    else
        qp->receives.started = true;
    return true;
}

static bool receive_step(tbmock_qp *qp) {
    tbmock_queue *queue = &qp->receives;
    if (queue->count == 0 || (qp->ibv.state != IBV_QPS_RTR && qp->ibv.state != IBV_QPS_RTS))
        return false;
    uint64_t tail = atomic_load_explicit(&qp->inbox->tail, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&qp->inbox->head, memory_order_acquire) - tail;
    if (there == 0)
        return false;
    if (!queue->started)
        return start_receive(qp, tail);
    uint32_t run, bytes = least(there, least(STEP, qp->arriving.bytes - queue->done));
    const tbmock_mr *mr;
    uint8_t *to = memory_at(front(queue), queue->done, &run, &mr);
    bytes = least(bytes, run);
    ring_read(qp->inbox, tail, to, before_alias(to, bytes, mr));
    queue->done += bytes;
    bool last = queue->done == qp->arriving.bytes;
    atomic_store_explicit(&qp->inbox->tail, last ? line(tail + bytes) : tail + bytes, memory_order_release);
    if (last)
        tbmock_complete(qp, false, IBV_WC_SUCCESS);
    return true;
}

bool tbmock_progress_qp(tbmock_qp *qp) {
    const tbmock_port *port = &tbmock_shared->port[qp->device];
    bool moved = false;
    if (qp->ibv.state == IBV_QPS_RESET || qp->ibv.state == IBV_QPS_INIT || atomic_load(&port->pulled) ||
        atomic_load(&port->down) || atomic_load(&port->wedged))
        return false;
    for (int i = 0; i < STEPS; i++) {
        bool sent = send_step(qp), received = receive_step(qp);
        moved |= sent || received;
        if (!sent && !received)
            break;
    }
    return moved;
}

bool tbmock_progress(tbmock_context *context) {
    bool moved = false;
    for (tbmock_qp *qp = context->qps; qp; qp = qp->next)
        moved |= tbmock_progress_qp(qp);
    return moved;
}
