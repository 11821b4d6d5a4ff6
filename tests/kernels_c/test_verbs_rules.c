/* What the verbs provider decides without a device: classes and lengths, credits, GIDs, words of failures. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "check.h"
#include "port.h"

static uint64_t state = 88172645463325252u;

static uint32_t below(uint32_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % n);
}

static tb_verbs_ready ready(uint32_t small, uint32_t large) {
    return (tb_verbs_ready){.posted = {small, large}, .sendable = {small - TB_CONTROL_SLOTS, large}};
}

static uint32_t frames_of(uint32_t bytes) { return (bytes + 4095) / 4096; }

/* Both ends post the same number of 4 KiB frames for every length, and no payload is longer than its slots. */
static void frames_are_equal(uint32_t small, uint32_t large, uint32_t frames) {
    tb_verbs_ready r = ready(small, large);
    tb_lanes l = tb_lanes_between(&r, &r, frames);
    for (uint32_t length = 0; length <= tb_lanes_longest(&l); length++) {
        uint32_t bytes = tb_lanes_bytes(&l, length), slots = tb_lanes_slots(&l, length);
        int class = tb_lanes_class(&l, length);
        CHECK(bytes >= length + TB_WIRE_HEAD);
        CHECK(frames_of(bytes) == (class == TB_LARGE ? frames : slots));
        CHECK(class == TB_SMALL ? bytes == length + TB_WIRE_HEAD && slots <= l.run : slots == 1);
        CHECK(l.window[class] >= slots && (l.window[class] + 1) / 2 >= slots);
    }
    CHECK(tb_lanes_longest(&l) == (l.window[TB_LARGE] && frames > l.run ? frames : l.run) * 4096 - 32);
}

static void classes(void) {
    static const uint32_t frames[] = {1, 2, 9, 16, 32};
    for (size_t f = 0; f < sizeof frames / sizeof *frames; f++)
        for (uint32_t small = TB_CONTROL_SLOTS + 1; small < 100; small += 7)
            frames_are_equal(small, small % 3, frames[f]);
    tb_verbs_ready r = ready(68, 16), few = ready(68, 3);
    tb_lanes l = tb_lanes_between(&r, &r, 16);
    CHECK(l.window[TB_SMALL] == 64 && l.window[TB_LARGE] == 16 && l.run == 8);
    CHECK(tb_lanes_slots(&l, 4064) == 1 && tb_lanes_slots(&l, 4065) == 2 && tb_lanes_bytes(&l, 4096) == 4128);
    CHECK(tb_lanes_class(&l, 32736) == TB_SMALL && tb_lanes_class(&l, 32737) == TB_LARGE);
    CHECK(tb_lanes_bytes(&l, 32737) == 61441 && tb_lanes_bytes(&l, 65504) == 65536);
    CHECK(tb_lanes_between(&r, &few, 16).window[TB_LARGE] == 3 && tb_lanes_between(&few, &r, 16).window[TB_LARGE] == 3);
}

/* One end of a cable without the cable: what it has sent that is under way, and what lies unread. */
enum { QUEUE = 512 };
typedef struct frame {
    tb_wire_head head;
    uint32_t slots;
    int class;
} frame;
typedef struct fifo {
    frame at[QUEUE];
    uint32_t first, last;
} fifo;
typedef struct end {
    tb_credits credits;
    fifo way[TB_CLASSES], unread[TB_CLASSES]; /* to the peer; from it */
    uint32_t posted[TB_CLASSES];              /* receives that stand free */
    uint32_t next_out, next_in, to_send, longest_wait;
} end;

static void push(fifo *f, frame x) {
    CHECK(f->last - f->first < QUEUE);
    f->at[f->last++ % QUEUE] = x;
}

static void put(end *e, uint32_t sequence, uint32_t length, uint16_t flags) {
    bool control = flags == TB_WIRE_CREDIT;
    int class = control ? TB_SMALL : tb_lanes_class(&e->credits.out, length);
    frame f = {.class = class, .slots = control ? 1 : tb_lanes_slots(&e->credits.out, length)};
    f.head = (tb_wire_head){.head = {sequence, length}, .flags = flags};
    tb_credits_write(&e->credits, &f.head, class);
    push(&e->way[class], f);
    if (!control)
        e->credits.sent[class] += (uint16_t)f.slots;
}

/* A control frame that falls due finds its slot free: the first claim of the proof in credit.h. */
static void tell(end *e) {
    if (!tb_credits_owed(&e->credits))
        return;
    CHECK(tb_credits_control_free(&e->credits));
    e->credits.control_sent++;
    put(e, 0, 0, TB_WIRE_CREDIT);
}

static bool step_send(end *e) {
    uint32_t longest = tb_lanes_longest(&e->credits.out), length = below(2) ? below(longest + 1) : below(200) % longest;
    if (e->to_send == 0 || !tb_credits_room(&e->credits, length))
        return false;
    put(e, e->next_out++, length, TB_WIRE_DATA);
    e->to_send--;
    return true;
}

/* A message that meets no free receive would be lost on soft-RoCE. */
static bool step_deliver(end *from, end *to, int class) {
    fifo *way = &from->way[class];
    tb_fault fault = {0};
    if (way->first == way->last)
        return false;
    frame f = way->at[way->first++ % QUEUE];
    CHECK(to->posted[class] >= f.slots);
    to->posted[class] -= f.slots;
    CHECK(tb_credits_take(&to->credits, &f.head, class, &fault) == TB_OK);
    if (f.head.flags == TB_WIRE_CREDIT) {
        to->posted[class]++;
        to->credits.control_taken++;
    } else {
        push(&to->unread[class], f);
    }
    return true;
}

static bool step_read(end *e) {
    for (int class = 0; class < TB_CLASSES; class++) {
        fifo *u = &e->unread[class];
        const frame *f = &u->at[u->first % QUEUE];
        if (u->first == u->last || tb_wire_sequence(&f->head) != e->next_in)
            continue;
        u->first++;
        e->next_in++;
        e->posted[class] += f->slots;
        e->credits.read[class] += (uint16_t)f->slots;
        tell(e);
        return true;
    }
    return false;
}

/* The two queue pairs of a direction overtake each other as they please. */
static bool step_any(end *e, end *peer, uint32_t what) {
    switch (what % 4) {
    case 0: return step_send(e);
    case 1: return step_read(e);
    default: return step_deliver(peer, e, what % 4 - 2);
    }
}

static bool over(const end *e, const end *peer) { return e->to_send == 0 && e->next_in == peer->next_out; }

static void burst(end *a, end *b, uint32_t forth, uint32_t back) {
    a->to_send += forth;
    b->to_send += back;
    for (int idle = 0; !over(a, b) || !over(b, a);) {
        bool first = below(2), moved = step_any(first ? a : b, first ? b : a, below(4));
        idle = moved ? 0 : idle + 1;
        CHECK(idle < 2000); /* of 8 moves each was tried in vain, whatever the lengths: a deadlock */
    }
}

static end end_of(const tb_verbs_ready *own, const tb_verbs_ready *peer, uint32_t frames) {
    end e = {.next_out = 1, .next_in = 1};
    e.credits.out = tb_lanes_between(own, peer, frames);
    e.credits.in = tb_lanes_between(peer, own, frames);
    memcpy(e.posted, own->posted, sizeof e.posted);
    return e;
}

/* Bursts one way and both, over rings from the smallest on: nothing lost, no deadlock, counts past 2^16. */
static void credits(void) {
    static end a, b;
    for (int trial = 0; trial < 60; trial++) {
        uint32_t span = trial < 20 ? 1 : 1 + below(20);
        tb_verbs_ready own = ready(5 + below(4 * span), 1 + below(span)), peer = ready(5 + below(4 * span), 1 + below(span));
        a = end_of(&own, &peer, 16);
        b = end_of(&peer, &own, 16);
        for (int k = 0; k < 60; k++) {
            uint32_t size = below(2) ? 4 : 400, way = below(3);
            burst(&a, &b, way != 1 ? below(size) : 0, way != 0 ? below(size) : 0);
        }
    }
    tb_verbs_ready one = ready(5, 1);
    a = end_of(&one, &one, 16);
    b = end_of(&one, &one, 16);
    burst(&a, &b, 140000, 0);
    CHECK(a.next_out == 140001);
}

/* A lost frame, and counts that cannot be, are found. */
static void lies(void) {
    tb_verbs_ready r = ready(20, 4);
    end a = end_of(&r, &r, 16), b = a;
    tb_fault f = {0};
    put(&a, 1, 10, TB_WIRE_DATA);
    put(&a, 2, 10, TB_WIRE_DATA);
    CHECK(tb_credits_take(&b.credits, &a.way[TB_SMALL].at[1].head, TB_SMALL, &f) == TB_CORRUPT);
    CHECK(f.status == TB_CORRUPT && strstr(f.got, "frame of the small queue pair 1") && strstr(f.wanted, "frame 0"));
    tb_wire_head h = a.way[TB_SMALL].at[0].head;
    h.credit = 1;
    CHECK(tb_credits_take(&b.credits, &h, TB_SMALL, &f) == TB_CORRUPT && strstr(f.got, "slots"));
    b = end_of(&r, &r, 16);
    h = a.way[TB_SMALL].at[0].head;
    h.control |= 1;
    CHECK(tb_credits_take(&b.credits, &h, TB_SMALL, &f) == TB_CORRUPT && strstr(f.got, "control frames"));
}

static void gid(tb_gid at, const char *text) { CHECK(inet_pton(AF_INET6, text, at) == 1); }

static void gids(void) {
    tb_gid t[6] = {{0}};
    char words[200];
    gid(t[0], "fe80::1");
    CHECK(tb_gid_choose(t, 6, "", words, sizeof words) == -1 && strcmp(words, "[0] fe80::1") == 0);
    CHECK(tb_gid_choose(t, 0, "", words, sizeof words) == -1 && strcmp(words, "no entry") == 0);
    gid(t[3], "::ffff:169.254.1.2");
    CHECK(tb_gid_choose(t, 6, "", words, sizeof words) == 3);
    CHECK(tb_gid_choose(t, 6, "10.0.0.1", words, sizeof words) == 3);
    gid(t[4], "::ffff:169.254.1.2");
    CHECK(tb_gid_choose(t, 6, "", words, sizeof words) == 3); /* one address, two types */
    gid(t[1], "::ffff:10.0.0.1");
    CHECK(tb_gid_choose(t, 6, "", words, sizeof words) == -2 && strstr(words, "[1] ::ffff:10.0.0.1, [3]"));
    CHECK(tb_gid_choose(t, 6, "169.254.1.2", words, sizeof words) == 3);
    CHECK(tb_gid_choose(t, 6, "10.0.0.1", words, sizeof words) == 1);
    CHECK(tb_gid_choose(t, 6, "10.0.0.2", words, sizeof words) == -2);
    CHECK(tb_gid_choose(t, 6, "", words, 24) == -2 && strcmp(words, "[0] fe80::1") == 0);
}

/* Every step has words for every errno, within their room, and the known ones their row. */
static void failures(void) {
    static const struct {
        int step, error;
        const char *row;
    } known[] = {{TB_VERBS_RTR, EINVAL, "[failure 11-15]"}, {TB_VERBS_RTR, ETIMEDOUT, "[failure 16]"},
                 {TB_VERBS_RTR, ENODATA, "[failure 17]"},   {TB_VERBS_RTR, EBUSY, "[failure 18]"},
                 {TB_VERBS_QP, EBUSY, "[failure 18]"},      {TB_VERBS_QP, EOPNOTSUPP, "[failure 19]"},
                 {TB_VERBS_PD, 0, "[failure 9, 10]"},       {TB_VERBS_POST, ENOMEM, "[failure 21]"},
                 {TB_VERBS_REGISTER, ENOMEM, "[failure 20]"}};
    tb_verbs_ask ask = {.device = "rdma_en4", .rank = 1, .peer = 3};
    tb_verbs_error e;
    for (int step = 1; step < TB_VERBS_STEPS; step++)
        for (int error = 0; error < 140; error++) {
            CHECK(tb_verbs_fail(&e, &ask, step, error, NULL) == step && e.step == step && e.error == error);
            CHECK(strstr(e.words, "rdma_en4 to rank 3: ") == e.words && !strchr(e.words, '\n'));
            CHECK(e.words[strlen(e.words) - 1] == ']');
        }
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        tb_verbs_fail(&e, &ask, known[k].step, known[k].error, NULL);
        CHECK(strstr(e.words, known[k].row));
        CHECK(known[k].error == 0 || strstr(e.words, tb_errno_name(known[k].error)));
    }
    tb_verbs_fail(&e, &ask, TB_VERBS_GID, 0, "%0200d", 1);
    CHECK(strlen(e.words) == sizeof e.words - 1 && strstr(e.words, "000; ") && strstr(e.words, "[failure 11, 32]"));
    CHECK(strcmp(tb_completion_name(1), "LOC_LEN_ERR") == 0 && strcmp(tb_completion_name(99), "unknown") == 0);
}

int main(void) {
    classes();
    credits();
    lies();
    gids();
    failures();
    return 0;
}
