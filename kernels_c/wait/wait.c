#include "wait.h"

#include "clock.h"
#include "futex.h"
#include "group.h"
#include "process.h"
#include "progress.h"

#define POLLS 64             /* between two readings of the clock */
#define PAUSE_AFTER_NS 2000  /* the first polls are bare: a pause costs more than a frame's way. Polls of another node
                                are long enough without one, and in an emulated node it takes the emulator's lock */
#define BLOCK_AFTER_NS 400   /* a shorter wait is not worth giving up the caller's lock */
#define ALIVE_EVERY_NS 1000000
#define TICK_EVERY_NS 100000000
#define SPIN_MIN_NS 1000000
#define SPIN_MAX_NS 10000000
#define COURTESY_NS 1000000 /* longer spins offer the core: the peer may be waiting for it. Sooner costs 18 % of a
                               decode step with two ranks on two cores: each offer lets an engine's thread move */
#define SPIN_STREAM_NS 50000
#define SPIN_AGAIN 32 /* of so many waits for a stream that ends asleep, one spins first */
#define SPIN_CROWDED_NS 5000
#define YIELD_NS 20000 /* then sleep: engines have sessions of their own, and a yield reaches no other session's threads */
#define SLEEP_FIRST_NS 500000
#define SLEEP_MAX_NS 8000000
#define SPIN_TO_DUE_NS 100000 /* how late a sleeper may wake: a frame with a due time is spun for this long */

typedef struct tb_spell {
    uint64_t began_ns, alive_ns, tick_ns, sleep_ns;
    enum { SPINNING, YIELDING, SLEEPING } phase;
    bool stream; /* it waits for what a descriptor tells of */
} tb_spell;

static int fail(tb_group *g, int status, int peer) {
    g->fault = (tb_fault){.status = status, .peer = peer, .by = g->rank};
    return status;
}

/* TB_OK, or how a rank was lost that has not left in order. */
static int loss_of(const tb_group *g, int rank, uint32_t state) {
    if (g->here >> rank & 1)
        return tb_process_gone(g->pid[rank], g->watch[rank]) ? TB_PEER_DIED : TB_OK;
    return state == TB_LOST ? (int)atomic_load(&g->header->control[rank].loss) : TB_OK;
}

/* A rank that left or died ends a collective; between two ranks only the one that is waited for matters. */
static int check_peers(tb_group *g, int awaited) {
    bool pairwise = g->kind >= TB_SEND;
    for (int k = 0; k < g->size; k++) {
        int r = (awaited + k) % g->size;
        if (r == g->rank || (pairwise && r != awaited))
            continue;
        uint32_t state = atomic_load(&g->header->control[r].state);
        if (state == TB_LEFT && r == awaited)
            return fail(g, TB_PEER_DIED, r);
        int loss = state == TB_LEFT ? TB_OK : loss_of(g, r, state);
        if (loss != TB_OK)
            return fail(g, loss, r);
    }
    return TB_OK;
}

static bool is_broken(tb_group *g) {
    uint64_t broken = atomic_load(&g->header->broken);
    if (broken)
        tb_fault_unpack(broken, &g->fault);
    return broken != 0;
}

/* `due`: the frame has come and only has its time to wait for; who sent it may be gone. */
static int look_around(tb_group *g, int awaited, bool due, tb_spell *s, uint64_t now) {
    if (atomic_load_explicit(&g->own->interrupt, memory_order_relaxed))
        return fail(g, TB_INTERRUPTED, TB_NO_PEER);
    if (!due && is_broken(g))
        return g->fault.status;
    if (now > g->deadline_ns)
        return fail(g, TB_TIMEOUT, awaited);
    if (now - s->alive_ns > ALIVE_EVERY_NS) {
        s->alive_ns = now;
        atomic_store_explicit(&g->own->heartbeat_ns, now, memory_order_relaxed);
        int status = due ? TB_OK : check_peers(g, awaited);
        if (status != TB_OK)
            return is_broken(g) ? g->fault.status : status; /* who met a fault tells of it, and leaves then */
    }
    if (now - s->tick_ns > TICK_EVERY_NS && g->hooks.tick) {
        s->tick_ns = now;
        if (g->hooks.tick(g->hooks.context))
            return fail(g, TB_SIGNAL, awaited);
    }
    return TB_OK;
}

/* Two ends of a stream may be put on one core, where a spin keeps the other from answering. Its descriptor wakes a
 * sleeper, so after a spin in vain the next waits sleep at once, and now and then one tries again. */
static bool wakes(const tb_waiting *w, tb_channel *c) {
    return w->policy == TB_AUTO && !w->oversubscribed && c->provider->watch(c).fd >= 0;
}

static bool spins_on_stream(const tb_waiting *w) { return w->asleep % SPIN_AGAIN == 0; }

static int phase_for(const tb_waiting *w, const tb_spell *s, uint64_t waited_ns) {
    if (w->policy != TB_AUTO)
        return w->policy == TB_SPIN ? SPINNING : w->policy == TB_YIELD ? YIELDING : SLEEPING;
    if (s->stream)
        return spins_on_stream(w) && waited_ns < SPIN_STREAM_NS ? SPINNING : SLEEPING;
    uint64_t spin = 2 * w->last_ns > SPIN_MIN_NS ? 2 * w->last_ns : SPIN_MIN_NS;
    if (spin > SPIN_MAX_NS)
        spin = SPIN_MAX_NS;
    if (w->oversubscribed)
        spin = SPIN_CROWDED_NS;
    return waited_ns < spin ? SPINNING : waited_ns < spin + YIELD_NS ? YIELDING : SLEEPING;
}

static void sleep_for(tb_group *g, tb_channel *c, tb_spell *s) {
    tb_watch watch = c->provider->watch(c);
    s->sleep_ns = s->sleep_ns == 0 ? SLEEP_FIRST_NS : s->sleep_ns * 2 < SLEEP_MAX_NS ? s->sleep_ns * 2 : SLEEP_MAX_NS;
    if (g->mesh) {
        tb_sleep_on_links(g, watch, s->sleep_ns);
        return;
    }
    atomic_store(&g->own->sleeping, (uint32_t)c->peer + 1);
    if (!c->provider->ready(c))
        tb_futex_wait(watch.word, watch.old, s->sleep_ns);
}

static bool poll(tb_channel *c, bool (*done)(tb_channel *), const tb_spell *s, uint64_t waited_ns) {
    int polls = s->phase == SPINNING ? POLLS : 1;
    for (int i = 0; i < polls; i++) {
        if (done(c))
            return true;
        if (waited_ns > PAUSE_AFTER_NS && !c->provider->progress)
            tb_pause();
    }
    return false;
}

static bool offers_core(const tb_waiting *w, uint64_t waited_ns) {
    return w->policy == TB_AUTO && waited_ns > COURTESY_NS;
}

/* Sleeps until shortly before the frame is due; what is left is spun, whatever the policy. */
static void sleep_towards(tb_group *g, uint64_t due_ns, tb_spell *s, uint64_t now) {
    static _Thread_local bool sharp;
    s->phase = SPINNING;
    if (due_ns < now + SPIN_TO_DUE_NS)
        return;
    if (!sharp)
        sharp = tb_set_timer_slack_ns(1) == 0;
    uint64_t until = due_ns < g->deadline_ns ? due_ns : g->deadline_ns, ns = until - now;
    ns = ns < SPIN_TO_DUE_NS ? ns : ns - SPIN_TO_DUE_NS;
    ns = ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS;
    if (g->mesh)
        tb_sleep_on_links(g, (tb_watch){NULL, 0, -1, 0}, ns);
    else
        tb_sleep_ns(ns);
}

static int one_round(tb_group *g, tb_channel *c, tb_spell *s, uint64_t now) {
    uint64_t waited = now - s->began_ns, due_ns = c->shape ? c->shape->due_ns : 0;
    if (waited > BLOCK_AFTER_NS && !g->blocked) {
        g->blocked = true;
        if (g->hooks.before_block)
            g->hooks.before_block(g->hooks.context);
    }
    int status = g->mesh ? tb_progress(g, c->peer) : TB_OK;
    if (status == TB_OK)
        status = look_around(g, c->peer, due_ns != 0, s, now);
    if (status != TB_OK)
        return status;
    if (due_ns) {
        sleep_towards(g, due_ns, s, now);
        return TB_OK;
    }
    s->phase = phase_for(&g->waiting, s, waited);
    if (s->phase == YIELDING || (s->phase == SPINNING && offers_core(&g->waiting, waited)))
        tb_yield();
    else if (s->phase == SLEEPING)
        sleep_for(g, c, s);
    return TB_OK;
}

static bool is_loss(int status) { return status == TB_PEER_DIED || status == TB_SILENT; }

/* The last frame of a peer that is gone may be on its way still. */
static bool is_under_way(tb_channel *c) {
    if (!c->shape)
        return false;
    c->provider->ready(c);
    return c->shape->due_ns != 0;
}

int tb_wait(tb_group *g, tb_channel *c, bool (*done)(tb_channel *)) {
    tb_spell s = {.stream = g->mesh && wakes(&g->waiting, c)};
    int status = TB_OK;
    uint64_t now = 0;
    if (s.stream && !spins_on_stream(&g->waiting))
        s.phase = SLEEPING;
    while (status == TB_OK && !poll(c, done, &s, now - s.began_ns)) {
        now = tb_now_ns();
        if (s.began_ns == 0)
            s.began_ns = s.alive_ns = s.tick_ns = now;
        status = one_round(g, c, &s, now);
        if (is_loss(status) && is_under_way(c))
            status = TB_OK;
    }
    if (s.sleep_ns)
        atomic_store_explicit(&g->own->sleeping, 0, memory_order_relaxed);
    if (s.stream && s.sleep_ns)
        g->waiting.asleep++;
    else if (s.stream && spins_on_stream(&g->waiting))
        g->waiting.asleep = 0;
    g->waiting.last_ns = now - s.began_ns;
    /* What the dead left behind still counts: a rank may send its last frame and end. */
    return (is_loss(status) || status == TB_TIMEOUT) && done(c) ? TB_OK : status;
}
