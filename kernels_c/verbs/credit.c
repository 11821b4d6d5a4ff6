#include "credit.h"

#include <stdio.h>

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t frames_of(uint32_t bytes) { return (bytes + TB_FRAME_BYTES - 1) / TB_FRAME_BYTES; }

tb_lanes tb_lanes_between(const tb_verbs_ready *sender, const tb_verbs_ready *receiver, uint32_t frames) {
    uint32_t posted = receiver->posted[TB_SMALL];
    tb_lanes l = {.frames = frames};
    l.window[TB_SMALL] = smaller(sender->sendable[TB_SMALL], posted > TB_CONTROL_SLOTS ? posted - TB_CONTROL_SLOTS : 0);
    if (frames > 1)
        l.window[TB_LARGE] = smaller(sender->sendable[TB_LARGE], receiver->posted[TB_LARGE]);
    l.run = smaller(l.window[TB_SMALL] / TB_AHEAD, TB_RUN_MAX);
    if (l.run == 0)
        l.run = 1;
    return l;
}

uint32_t tb_lanes_longest(const tb_lanes *l) {
    uint32_t slots = l->window[TB_LARGE] && l->frames > l->run ? l->frames : l->run;
    return slots * TB_FRAME_BYTES - TB_WIRE_HEAD;
}

int tb_lanes_class(const tb_lanes *l, uint32_t length) {
    return length <= l->run * TB_FRAME_BYTES - TB_WIRE_HEAD ? TB_SMALL : TB_LARGE;
}

uint32_t tb_lanes_slots(const tb_lanes *l, uint32_t length) {
    return tb_lanes_class(l, length) == TB_LARGE ? 1 : frames_of(length + TB_WIRE_HEAD);
}

uint32_t tb_lanes_bytes(const tb_lanes *l, uint32_t length) {
    uint32_t bytes = length + TB_WIRE_HEAD, least = (l->frames - 1) * TB_FRAME_BYTES + 1;
    return tb_lanes_class(l, length) == TB_LARGE && bytes < least ? least : bytes;
}

bool tb_credits_room(const tb_credits *c, uint32_t length) {
    int class = tb_lanes_class(&c->out, length);
    uint32_t unread = (uint16_t)(c->sent[class] - c->granted[class]);
    return unread + tb_lanes_slots(&c->out, length) <= c->out.window[class];
}

bool tb_credits_owed(const tb_credits *c) {
    for (int class = 0; class < TB_CLASSES; class++) {
        uint32_t half = (c->in.window[class] + 1) / 2;
        if (half && (uint16_t)(c->read[class] - c->told[class]) >= half)
            return true;
    }
    return false;
}

bool tb_credits_control_free(const tb_credits *c) {
    return (uint16_t)(c->control_sent - c->control_acknowledged) < TB_CONTROL_SLOTS;
}

void tb_credits_write(tb_credits *c, tb_wire_head *head, int class) {
    head->control = c->control_taken | (uint32_t)c->frames_out[class]++ << 16;
    head->credit = 0;
    if (class != TB_SMALL)
        return;
    head->credit = c->read[TB_SMALL] | (uint32_t)c->read[TB_LARGE] << 16;
    c->told[TB_SMALL] = c->read[TB_SMALL];
    c->told[TB_LARGE] = c->read[TB_LARGE];
}

static int corrupt(tb_fault *fault, const char *what, unsigned found, const char *rule, unsigned wanted) {
    fault->status = TB_CORRUPT;
    snprintf(fault->got, sizeof fault->got, "%s %u", what, found);
    snprintf(fault->wanted, sizeof fault->wanted, "%s %u", rule, wanted);
    return TB_CORRUPT;
}

/* A count of the peer's goes forward, and not past what we did. */
static bool advance(uint16_t *known, uint16_t said, uint16_t done) {
    if ((uint16_t)(said - *known) > (uint16_t)(done - *known))
        return false;
    *known = said;
    return true;
}

/* Acknowledgements come by both queue pairs, so an older count may follow a newer one. */
static bool acknowledge(tb_credits *c, uint16_t said) {
    if ((uint16_t)(c->control_acknowledged - said) < 0x8000)
        return true;
    return advance(&c->control_acknowledged, said, c->control_sent);
}

int tb_credits_take(tb_credits *c, const tb_wire_head *head, int class, tb_fault *fault) {
    uint16_t number = (uint16_t)(head->control >> 16), said;
    if (number != c->frames_in[class])
        return corrupt(fault, class == TB_SMALL ? "frame of the small queue pair" : "frame of the large queue pair",
                       number, "frame", c->frames_in[class]);
    c->frames_in[class]++;
    if (!acknowledge(c, said = (uint16_t)head->control))
        return corrupt(fault, "control frames that the peer says it has read:", said, "at most", c->control_sent);
    for (int k = 0; class == TB_SMALL && k < TB_CLASSES; k++)
        if (!advance(&c->granted[k], said = (uint16_t)(head->credit >> 16 * k), c->sent[k]))
            return corrupt(fault, "slots that the peer says it has read:", said, "at most", c->sent[k]);
    return TB_OK;
}
