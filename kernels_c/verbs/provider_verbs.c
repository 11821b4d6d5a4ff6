/* Frames over the two queue pairs of a cable. Posting and polling make no system call of ours, so `ready` polls. */
#include "port.h"

#if TB_HAVE_VERBS

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BATCH 16 /* completions a poll */

/* A work request's number: slot, class, and whether it is a receive (in a failed completion all else is undefined). */
#define ID_LARGE (1ull << 32)
#define ID_RECEIVE (1ull << 33)

static int error_of(int result) { return result > 0 ? result : result < -1 ? -result : errno ? errno : EIO; }

static void refused(tb_verbs_port *p, const char *call, int error) {
    tb_port_break(p, "success [failure 21, 38, 39]", "%s gave %s (%d)", call, tb_errno_name(error), error);
}

int tb_post_receive(tb_verbs_port *p, int class, uint32_t slot) {
    tb_queue *q = &p->queue[class];
    struct ibv_sge sge = {(uint64_t)(uintptr_t)(q->recv_at + (size_t)slot * tb_slot_bytes(q)), tb_slot_bytes(q),
                          p->receive.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot | ID_RECEIVE | (class == TB_LARGE ? ID_LARGE : 0), .sg_list = &sge,
                             .num_sge = 1}, *bad;
    errno = 0;
    int result = ibv_post_recv(q->qp, &wr, &bad);
    if (result)
        return error_of(result);
    q->receiving++;
    return 0;
}

/* Small messages are one frame each, chained so that the driver is called once. */
static void post(tb_verbs_port *p, int class, uint8_t *at, uint32_t bytes) {
    tb_queue *q = &p->queue[class];
    struct ibv_send_wr wr[TB_RUN_MAX], *bad;
    struct ibv_sge sge[TB_RUN_MAX];
    uint32_t slot = tb_slot_bytes(q), count = (bytes + slot - 1) / slot;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = i + 1 < count ? slot : bytes - i * slot;
        sge[i] = (struct ibv_sge){(uint64_t)(uintptr_t)(at + (size_t)i * slot), n, p->send.mr->lkey};
        memset(&wr[i], 0, sizeof wr[i]);
        wr[i].wr_id = class == TB_LARGE ? ID_LARGE : 0;
        wr[i].next = i + 1 < count ? &wr[i + 1] : NULL;
        wr[i].sg_list = &sge[i];
        wr[i].num_sge = 1;
        wr[i].opcode = IBV_WR_SEND;
        wr[i].send_flags = IBV_SEND_SIGNALED;
    }
    errno = 0;
    int result = ibv_post_send(q->qp, wr, &bad);
    if (result)
        refused(p, "post_send", error_of(result));
    else
        q->sending += count;
}

static void write_frame(tb_verbs_port *p, int class, uint8_t *at, tb_head head, uint16_t flags, uint32_t bytes) {
    tb_wire_head h = {.head = head, .flags = flags};
    tb_credits_write(&p->credits, &h, class);
    memcpy(at, &h, sizeof h);
    tb_wire_seal(at);
    post(p, class, at, bytes);
}

static void return_credits(tb_verbs_port *p) {
    tb_credits *c = &p->credits;
    const tb_queue *small = &p->queue[TB_SMALL];
    if (!tb_credits_owed(c) || !tb_credits_control_free(c) || small->sending >= small->send_depth || p->fault.status)
        return;
    uint8_t *at = p->control + (size_t)(c->control_sent++ % TB_CONTROL_SLOTS) * TB_FRAME_BYTES;
    write_frame(p, TB_SMALL, at, (tb_head){(uint64_t)TB_FRAME_MAGIC << 32, 0}, TB_WIRE_CREDIT, TB_WIRE_HEAD);
}

static void complete(tb_verbs_port *p, const struct ibv_wc *wc) {
    int class = wc->wr_id & ID_LARGE ? TB_LARGE : TB_SMALL;
    bool receive = wc->wr_id & ID_RECEIVE;
    tb_queue *q = &p->queue[class];
    if (receive)
        q->receiving--;
    else
        q->sending--;
    if (p->closing || p->fault.status)
        return;
    if (wc->status != IBV_WC_SUCCESS)
        tb_port_break(p, "IBV_WC_SUCCESS", "a %s ended with IBV_WC_%s (%d), vendor 0x%x [failure %s]",
                      receive ? "receive" : "send", tb_completion_name(wc->status), (int)wc->status, wc->vendor_err,
                      receive ? "22" : "38, 39");
    else if (receive)
        tb_arrive(p, class, (uint32_t)wc->wr_id, wc->byte_len);
}

void tb_poll(tb_verbs_port *p) {
    struct ibv_wc wc[BATCH];
    errno = 0;
    int n = ibv_poll_cq(p->cq, BATCH, wc);
    if (n < 0)
        refused(p, "poll_cq", error_of(n));
    for (int i = 0; i < n; i++)
        complete(p, &wc[i]);
    if (n > 0 && !p->closing)
        return_credits(p);
}

/* Two queue pairs, one order: the frame with the next number, on whichever it came. */
static bool find_front(tb_verbs_port *p, uint32_t next) {
    uint32_t front[TB_CLASSES];
    int there = 0;
    for (int class = 0; class < TB_CLASSES; class++) {
        const tb_queue *q = &p->queue[class];
        tb_wire_head h;
        if (q->inbox.taken == q->inbox.complete)
            continue;
        memcpy(&h, tb_arrived_slot(q, q->inbox.taken), sizeof h.head);
        front[there++] = tb_wire_sequence(&h);
        p->front = class;
        if (front[there - 1] == next)
            return true;
    }
    if (there == TB_CLASSES || (there && (int32_t)(front[0] - next) < 0)) {
        char wanted[40];
        snprintf(wanted, sizeof wanted, "sequence %u", next);
        tb_port_break(p, wanted, "sequences %u and %u", front[0], front[there - 1]);
    }
    return false;
}

static bool receiver_ready(tb_channel *c) {
    tb_verbs_port *p = c->state;
    if (find_front(p, c->sequence))
        return true;
    tb_poll(p);
    return find_front(p, c->sequence);
}

static bool room(const tb_verbs_port *p, uint32_t length) {
    const tb_queue *q = &p->queue[tb_lanes_class(&p->credits.out, length)];
    uint32_t slots = tb_lanes_slots(&p->credits.out, length);
    return p->fault.status == TB_OK && q->sending + slots <= q->send_depth && tb_credits_room(&p->credits, length);
}

static bool sender_ready(tb_channel *c) {
    tb_verbs_port *p = c->state;
    if (room(p, c->length))
        return true;
    tb_poll(p);
    return room(p, c->length);
}

static uint8_t *send_slot(const tb_verbs_port *p, int class) {
    const tb_queue *q = &p->queue[class];
    return q->send_at + (size_t)q->next * tb_slot_bytes(q);
}

static uint8_t *sender_payload(tb_channel *c, uint32_t length) {
    tb_verbs_port *p = c->state;
    return send_slot(p, tb_lanes_class(&p->credits.out, length)) + TB_WIRE_HEAD;
}

static void commit(tb_channel *c, tb_head head) {
    tb_verbs_port *p = c->state;
    uint32_t length = (uint32_t)head.extent, slots = tb_lanes_slots(&p->credits.out, length);
    int class = tb_lanes_class(&p->credits.out, length);
    tb_queue *q = &p->queue[class];
    write_frame(p, class, send_slot(p, class), head, TB_WIRE_DATA, tb_lanes_bytes(&p->credits.out, length));
    q->next = (q->next + slots) % q->send_slots;
    p->credits.sent[class] += (uint16_t)slots;
    c->sequence++;
}

static tb_wire_head front_head(const tb_verbs_port *p) {
    const tb_queue *q = &p->queue[p->front];
    tb_wire_head h;
    memcpy(&h, tb_arrived_slot(q, q->inbox.taken), sizeof h);
    return h;
}

static tb_head head(tb_channel *c) { return front_head(c->state).head; }

/* Slots lie in a row but where control frames came between, or the ring ended. */
static uint8_t *receiver_payload(tb_channel *c, uint32_t length) {
    tb_verbs_port *p = c->state;
    const tb_queue *q = &p->queue[p->front];
    uint32_t slots = tb_lanes_slots(&p->credits.in, length), first = q->inbox.taken;
    uint8_t *at = tb_arrived_slot(q, first);
    bool row = true;
    for (uint32_t i = 1; i < slots; i++)
        row = row && tb_arrived_slot(q, first + i) == at + (size_t)i * TB_FRAME_BYTES;
    if (row)
        return at + TB_WIRE_HEAD;
    for (uint32_t i = 0; i < slots && !p->gathered; i++)
        memcpy(p->staging + (size_t)i * TB_FRAME_BYTES, tb_arrived_slot(q, first + i), TB_FRAME_BYTES);
    p->gathered = true;
    return p->staging + TB_WIRE_HEAD;
}

static void release(tb_channel *c) {
    tb_verbs_port *p = c->state;
    tb_queue *q = &p->queue[p->front];
    tb_wire_head h = front_head(p);
    uint32_t slots = tb_lanes_slots(&p->credits.in, tb_wire_length(&h));
    int error = 0;
    for (uint32_t i = 0; i < slots && !error; i++)
        error = tb_post_receive(p, p->front, q->inbox.slot[q->inbox.taken++ & (q->inbox.room - 1)]);
    if (error)
        refused(p, "post_recv", error);
    p->credits.read[p->front] += (uint16_t)slots;
    p->gathered = false;
    c->sequence++;
    return_credits(p);
}

static int progress(tb_channel *c, tb_fault *fault) {
    tb_verbs_port *p = c->state;
    tb_poll(p);
    if (p->fault.status == TB_OK)
        return_credits(p);
    else
        *fault = p->fault;
    return p->fault.status;
}

/* Completions raise no event (Apple has none), so there is nothing to sleep on. */
static tb_watch watch(tb_channel *c) { return (void)c, (tb_watch){NULL, 0, -1, 0}; }

static bool flushed(tb_channel *c) { return (void)c, true; /* a posted send needs us no more */ }

static const tb_provider sender = {"verbs", sender_ready, sender_payload, head, commit, release, watch, progress, flushed};
static const tb_provider receiver = {"verbs", receiver_ready, receiver_payload, head, commit, release, watch, progress,
                                     flushed};

static void init(tb_channel *c, const tb_provider *provider, tb_verbs_port *p, const tb_lanes *lanes) {
    *c = (tb_channel){.provider = provider, .state = p, .sequence = 1, .slot_bytes = tb_lanes_longest(lanes),
                      .rank = p->ask.rank, .peer = p->ask.peer};
}

void tb_verbs_sender(tb_channel *c, tb_verbs_port *p) { init(c, &sender, p, &p->credits.out); }

void tb_verbs_receiver(tb_channel *c, tb_verbs_port *p) { init(c, &receiver, p, &p->credits.in); }

#endif
