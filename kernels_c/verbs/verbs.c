/* A port from open to close: the order of calls, what is asked, what both ends check of each other. */
#include "port.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#if TB_HAVE_VERBS

#define CARD_MAGIC 0x76627462u /* "btbv" in memory */
#define CARD_VERSION 1u
#define READY_MAGIC 0x72627462u
#define DEFAULT_FRAMES 16u
#define DEFAULT_SLOTS 16u
#define DRAIN_NS 1000000000u /* what flushed work requests get at least, whatever the deadline */
#define NAP_NS 20000

void tb_port_note(tb_verbs_port *p, const char *format, ...) {
    size_t room = sizeof p->log - p->log_length;
    va_list list;
    va_start(list, format);
    int lead = snprintf(p->log + p->log_length, room, "%s", p->log_length ? "; " : "");
    int n = (size_t)lead < room ? vsnprintf(p->log + p->log_length + lead, room - (size_t)lead, format, list) : 0;
    va_end(list);
    p->log_length += (size_t)(lead + n) < room ? (size_t)(lead + n) : room - 1;
}

void tb_port_break(tb_verbs_port *p, const char *wanted, const char *got, ...) {
    tb_fault *f = &p->fault;
    va_list list;
    if (f->status != TB_OK)
        return;
    *f = (tb_fault){.status = TB_CORRUPT, .peer = p->ask.peer, .by = p->ask.rank};
    int n = snprintf(f->got, sizeof f->got, "%s to rank %d: ", p->ask.device, p->ask.peer);
    va_start(list, got);
    vsnprintf(f->got + n, sizeof f->got - (size_t)n, got, list);
    va_end(list);
    snprintf(f->wanted, sizeof f->wanted, "%s", wanted);
}

static void with_defaults(tb_verbs_ask *ask) {
    ask->device[sizeof ask->device - 1] = ask->address[sizeof ask->address - 1] = '\0';
    if (ask->port == 0)
        ask->port = 1;
    if (ask->large_frames == 0)
        ask->large_frames = DEFAULT_FRAMES;
    if (ask->slots == 0)
        ask->slots = DEFAULT_SLOTS;
}

/* 4095 frames are the longest message there is, and all counts of credits fit into 16 bits. */
static int check_ask(const tb_verbs_ask *ask, tb_verbs_error *e) {
    if (ask->large_frames <= 4095 && ask->slots <= TB_WINDOW_MAX / 4 - TB_CONTROL_SLOTS && ask->port < 256)
        return 0;
    return tb_verbs_fail(e, ask, TB_VERBS_DEPTH, EINVAL, "%u slots of %u frames on port %d cannot be", ask->slots,
                         ask->large_frames, ask->port);
}

static int load(tb_verbs_port *p, tb_verbs_error *e) {
    char words[160] = "";
    p->lib = tb_library_get(words, sizeof words);
    if (!p->lib)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_LOAD, 0, "%s", words);
    tb_port_note(p, "%s", p->lib->path);
    p->staging = malloc(TB_RUN_MAX * TB_FRAME_BYTES);
    return p->staging ? 0 : tb_verbs_fail(e, &p->ask, TB_VERBS_LOAD, ENOMEM, "no memory");
}

int tb_verbs_open(tb_verbs_port **port, const tb_verbs_ask *ask, tb_verbs_error *e) {
    tb_verbs_port *p = calloc(1, sizeof *p);
    *port = p;
    if (!p)
        return tb_verbs_fail(e, ask, TB_VERBS_LOAD, ENOMEM, "no memory");
    p->ask = *ask;
    with_defaults(&p->ask);
    int step = check_ask(&p->ask, e);
    if (!step)
        step = load(p, e);
    if (!step)
        step = tb_device_open(p, e);
    if (!step)
        step = tb_queues_create(p, e);
    if (step) {
        tb_verbs_close(p, tb_now_ns());
        *port = NULL;
    }
    return step;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu) { return 128u << mtu; }

void tb_verbs_card_of(const tb_verbs_port *p, tb_verbs_card *card) {
    *card = (tb_verbs_card){.magic = CARD_MAGIC, .version = CARD_VERSION, .lid = p->lid, .mtu = mtu_bytes(p->mtu),
                            .rank = p->ask.rank, .peer = p->ask.peer};
    memcpy(card->gid, p->gid.raw, sizeof card->gid);
    for (int class = 0; class < TB_CLASSES; class++) {
        const tb_queue *q = &p->queue[class];
        if (!q->qp)
            continue;
        card->queue[class].qpn = q->qp->qp_num;
        card->queue[class].psn = q->psn;
        card->queue[class].frames = q->frames;
        card->queue[class].depth = q->recv_slots;
    }
}

static bool mtu_is_valid(uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

static int check_card(const tb_verbs_port *p, const tb_verbs_card *c, tb_verbs_error *e) {
    if (c->magic != CARD_MAGIC || c->version != CARD_VERSION)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_READY, 0, "card 0x%08x of version %u, ours is 0x%08x of version %u",
                             c->magic, c->version, CARD_MAGIC, CARD_VERSION);
    if (c->rank != p->ask.peer || c->peer != p->ask.rank)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_CARD, 0, "the card is of rank %d for rank %d, we are rank %d", c->rank,
                             c->peer, p->ask.rank);
    if (!mtu_is_valid(c->mtu) || c->queue[TB_SMALL].frames != 1 || c->queue[TB_LARGE].frames > 4095)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_READY, 0, "card of MTU %u, slots of %u and %u frames cannot be", c->mtu,
                             c->queue[TB_SMALL].frames, c->queue[TB_LARGE].frames);
    return 0;
}

int tb_verbs_connect(tb_verbs_port *p, const tb_verbs_card *peer, tb_verbs_error *e) {
    int step = check_card(p, peer, e);
    if (step)
        return step;
    while (mtu_bytes(p->mtu) > peer->mtu)
        p->mtu--;
    tb_port_note(p, "MTU with the peer %u", mtu_bytes(p->mtu));
    return tb_queues_connect(p, peer, e);
}

void tb_verbs_ready_of(const tb_verbs_port *p, tb_verbs_ready *ready) {
    *ready = (tb_verbs_ready){.magic = READY_MAGIC, .mtu = mtu_bytes(p->mtu)};
    for (int class = 0; class < TB_CLASSES; class++) {
        ready->posted[class] = p->queue[class].posted;
        ready->sendable[class] = p->queue[class].send_slots;
    }
}

static int check_ready(const tb_verbs_port *p, const tb_verbs_ready *r, tb_verbs_error *e) {
    bool fits = r->magic == READY_MAGIC && r->posted[TB_SMALL] > TB_CONTROL_SLOTS && r->sendable[TB_SMALL] > 0;
    for (int class = 0; class < TB_CLASSES; class++)
        fits = fits && r->posted[class] <= TB_WINDOW_MAX && r->sendable[class] <= TB_WINDOW_MAX;
    if (!fits)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_READY, 0, "magic 0x%08x, receives %u and %u, sends %u and %u cannot be",
                             r->magic, r->posted[0], r->posted[1], r->sendable[0], r->sendable[1]);
    if (r->mtu != mtu_bytes(p->mtu))
        return tb_verbs_fail(e, &p->ask, TB_VERBS_READY, 0, "the peer's RTR took MTU %u, ours %u: same macOS on both",
                             r->mtu, mtu_bytes(p->mtu));
    return 0;
}

int tb_verbs_start(tb_verbs_port *p, const tb_verbs_ready *peer, tb_verbs_error *e) {
    tb_verbs_ready own;
    uint32_t frames = p->queue[TB_LARGE].frames;
    int step = check_ready(p, peer, e);
    if (step)
        return step;
    tb_verbs_ready_of(p, &own);
    p->credits.out = tb_lanes_between(&own, peer, frames);
    p->credits.in = tb_lanes_between(peer, &own, frames);
    tb_port_note(p, "ahead by %u small, %u large out; %u, %u in", p->credits.out.window[0], p->credits.out.window[1],
                 p->credits.in.window[0], p->credits.in.window[1]);
    return 0;
}

static void poll_until(tb_verbs_port *p, bool receives_too, uint64_t deadline_ns) {
    for (;;) {
        uint32_t left = 0;
        tb_poll(p);
        for (int class = 0; class < TB_CLASSES; class++)
            left += p->queue[class].sending + (receives_too ? p->queue[class].receiving : 0);
        if (left == 0 || tb_now_ns() > deadline_ns)
            return;
        tb_sleep_ns(NAP_NS);
    }
}

static bool work_is_out(const tb_verbs_port *p) {
    uint32_t left = 0;
    for (int class = 0; class < TB_CLASSES; class++)
        left += p->queue[class].sending + p->queue[class].receiving;
    return left > 0;
}

/* A broken port's sends may never complete: they are not waited for. */
static int drain(tb_verbs_port *p, uint64_t deadline_ns) {
    uint64_t least = tb_now_ns() + DRAIN_NS;
    p->closing = true;
    if (p->fault.status == TB_OK)
        poll_until(p, false, deadline_ns);
    tb_queues_halt(p);
    poll_until(p, true, least > deadline_ns ? least : deadline_ns);
    return work_is_out(p) ? ETIMEDOUT : 0;
}

int tb_verbs_close(tb_verbs_port *p, uint64_t deadline_ns) {
    if (!p)
        return 0;
    int drained = work_is_out(p) ? drain(p, deadline_ns) : 0;
    int error = p->lib ? tb_queues_destroy(p) : 0;
    if (error)
        return error;
    free(p->staging);
    free(p);
    return drained;
}

const char *tb_verbs_log(const tb_verbs_port *p) { return p->log; }

#else

#if defined(__APPLE__)
#define REMEDY "an SDK of macOS 26.2 or later"
#else
#define REMEDY "libibverbs-dev"
#endif

static int absent(const tb_verbs_ask *ask, tb_verbs_error *e) {
    return tb_verbs_fail(e, ask, TB_VERBS_LOAD, ENOSYS,
                         "built without <infiniband/verbs.h>: install " REMEDY ", build again");
}

int tb_verbs_open(tb_verbs_port **port, const tb_verbs_ask *ask, tb_verbs_error *e) {
    *port = NULL;
    return absent(ask, e);
}

int tb_verbs_connect(tb_verbs_port *port, const tb_verbs_card *peer, tb_verbs_error *e) {
    (void)port, (void)peer;
    return absent(NULL, e);
}

int tb_verbs_start(tb_verbs_port *port, const tb_verbs_ready *peer, tb_verbs_error *e) {
    (void)port, (void)peer;
    return absent(NULL, e);
}

int tb_verbs_devices(int port, void (*each)(void *, const tb_verbs_device *), void *context, tb_verbs_error *e) {
    (void)port, (void)each, (void)context;
    return absent(NULL, e);
}

/* There never is a port, so these are never called: they exist for the linker. */
void tb_verbs_card_of(const tb_verbs_port *port, tb_verbs_card *card) { (void)port, memset(card, 0, sizeof *card); }
void tb_verbs_ready_of(const tb_verbs_port *port, tb_verbs_ready *ready) { (void)port, memset(ready, 0, sizeof *ready); }
void tb_verbs_sender(tb_channel *channel, tb_verbs_port *port) { (void)channel, (void)port; }
void tb_verbs_receiver(tb_channel *channel, tb_verbs_port *port) { (void)channel, (void)port; }
int tb_verbs_close(tb_verbs_port *port, uint64_t deadline_ns) { return (void)port, (void)deadline_ns, 0; }
const char *tb_verbs_log(const tb_verbs_port *port) { return (void)port, ""; }

#endif
