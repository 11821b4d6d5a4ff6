/* Messages that came become frames: messages of one frame in a row, whole, CRC and numbering right, or a fault. */
#include "port.h"

#if TB_HAVE_VERBS

#include <stdio.h>
#include <string.h>

#include "crc32c.h"

static uint8_t *slot_at(const tb_queue *q, uint32_t slot) { return q->recv_at + (size_t)slot * tb_slot_bytes(q); }

uint8_t *tb_arrived_slot(const tb_queue *q, uint32_t index) {
    return slot_at(q, q->inbox.slot[index & (q->inbox.room - 1)]);
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The first message has the head, which says how many follow; until the CRC is known it is taken for no more. */
static bool begin(tb_verbs_port *p, int class, const uint8_t *message, uint32_t bytes) {
    tb_inbox *in = &p->queue[class].inbox;
    tb_wire_head h;
    tb_fault f = {0};
    if (bytes < TB_WIRE_HEAD) {
        tb_port_break(p, "at least a head of 32", "a message of %u bytes after sequence %u", bytes, in->last);
        return false;
    }
    memcpy(&h, message, sizeof h);
    uint32_t length = tb_wire_length(&h);
    if (tb_wire_check_head(message, tb_lanes_longest(&p->credits.in), &f) != TB_OK) {
        tb_port_break(p, f.wanted, "%s, after sequence %u", f.got, in->last);
        return false;
    }
    if (tb_lanes_class(&p->credits.in, length) != class) {
        tb_port_break(p, "a length of the queue pair's class", "%u bytes on the %s queue pair", length,
                      class == TB_SMALL ? "small" : "large");
        return false;
    }
    in->missing = tb_lanes_slots(&p->credits.in, length);
    in->left = tb_lanes_bytes(&p->credits.in, length);
    return true;
}

/* A message that is not as long as its head, or the head of the frame that it should go on with, says. */
static void misfit(tb_verbs_port *p, const tb_queue *q, uint32_t slot, uint32_t bytes, uint32_t expected) {
    const tb_inbox *in = &q->inbox;
    char wanted[60];
    tb_wire_head h;
    memcpy(&h, in->arrived == in->complete ? slot_at(q, slot) : tb_arrived_slot(q, in->complete), sizeof h);
    snprintf(wanted, sizeof wanted, "%u bytes of sequence %u", expected, tb_wire_sequence(&h));
    tb_port_break(p, wanted, "a message of %u bytes after sequence %u", bytes, in->last);
}

static uint32_t crc_of(const tb_queue *q, uint32_t first, tb_wire_head h) {
    const uint8_t *message = tb_arrived_slot(q, first);
    uint32_t left = tb_wire_length(&h), n = smaller(left, tb_slot_bytes(q) - TB_WIRE_HEAD);
    h.crc = 0;
    uint32_t crc = tb_crc32c(tb_crc32c(0, &h, sizeof h), message + TB_WIRE_HEAD, n);
    for (left -= n; left; left -= n) {
        n = smaller(left, tb_slot_bytes(q));
        crc = tb_crc32c(crc, tb_arrived_slot(q, ++first), n);
    }
    return crc;
}

static bool check(tb_verbs_port *p, int class, const tb_wire_head *h) {
    const tb_queue *q = &p->queue[class];
    tb_fault f = {0};
    char wanted[40];
    uint32_t crc = crc_of(q, q->inbox.complete, *h);
    if (crc != h->crc) {
        snprintf(wanted, sizeof wanted, "CRC-32C 0x%08x", h->crc);
        tb_port_break(p, wanted, "sequence %u, %u bytes, whose CRC-32C is 0x%08x", tb_wire_sequence(h),
                      tb_wire_length(h), crc);
        return false;
    }
    if (tb_credits_take(&p->credits, h, class, &f) != TB_OK) {
        tb_port_break(p, f.wanted, "%s, sequence %u", f.got, tb_wire_sequence(h));
        return false;
    }
    return true;
}

/* A control frame gives its slot back at once, whatever stands unread before it. */
static void consume_control(tb_verbs_port *p, tb_queue *q) {
    uint16_t slot = q->inbox.slot[--q->inbox.arrived & (q->inbox.room - 1)];
    int error = tb_post_receive(p, TB_SMALL, slot);
    if (error)
        tb_port_break(p, "success [failure 21]", "post_recv gave %s (%d)", tb_errno_name(error), error);
    p->credits.control_taken++;
}

static void finish(tb_verbs_port *p, int class) {
    tb_queue *q = &p->queue[class];
    tb_wire_head h;
    char wanted[40];
    memcpy(&h, tb_arrived_slot(q, q->inbox.complete), sizeof h);
    if (!check(p, class, &h))
        return;
    if (h.flags == TB_WIRE_CREDIT) {
        consume_control(p, q);
        return;
    }
    if ((int32_t)(tb_wire_sequence(&h) - q->inbox.last) <= 0) {
        snprintf(wanted, sizeof wanted, "a sequence after %u", q->inbox.last);
        tb_port_break(p, wanted, "sequence %u", tb_wire_sequence(&h));
        return;
    }
    q->inbox.last = tb_wire_sequence(&h);
    q->inbox.complete = q->inbox.arrived;
}

void tb_arrive(tb_verbs_port *p, int class, uint32_t slot, uint32_t bytes) {
    tb_queue *q = &p->queue[class];
    tb_inbox *in = &q->inbox;
    if (in->missing == 0 && !begin(p, class, slot_at(q, slot), bytes))
        return;
    uint32_t expected = smaller(in->left, tb_slot_bytes(q));
    if (bytes != expected) {
        misfit(p, q, slot, bytes, expected);
        return;
    }
    in->slot[in->arrived++ & (in->room - 1)] = (uint16_t)slot;
    in->left -= bytes;
    if (--in->missing == 0)
        finish(p, class);
}

#endif
