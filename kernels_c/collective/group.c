#include "group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "heartbeat.h"
#include "mesh.h"
#include "process.h"
#include "window.h"

#define NAP_NS 200000
#define LEAST_SHM_BYTES 4096 /* a frame of a pipeline within one node */
#define LOOK_EVERY 50 /* naps between two looks at the others and at signals */

static uint32_t not_attached(const tb_header *h, uint32_t here) {
    uint32_t absent = 0;
    for (uint32_t r = 0; r < h->size; r++)
        if (here >> r & 1 && atomic_load(&h->control[r].state) < TB_ATTACHED)
            absent |= 1u << r;
    return absent;
}

static int lost_in_join(const tb_group *g) {
    for (int r = 0; r < g->size; r++) {
        const tb_control *c = &g->header->control[r];
        uint32_t state = g->here >> r & 1 ? atomic_load(&c->state) : TB_FREE;
        if (state == TB_LEFT || (state == TB_ATTACHED && tb_process_gone(atomic_load(&c->pid), -1)))
            return r;
    }
    return -1;
}

static int settle(tb_group *g, tb_fault fault) {
    uint64_t whole = 0;
    fault.kind = g->kind;
    fault.sequence = g->sequence;
    fault.elapsed_ns = tb_now_ns() - g->start_ns;
    g->fault = fault;
    /* Elsewhere a signal to this rank is an interrupt: they have no error of their own ready. */
    if (fault.status == TB_SIGNAL)
        fault.status = TB_INTERRUPTED;
    atomic_compare_exchange_strong(&g->header->broken, &whole, tb_fault_pack(&fault));
    if (g->mesh)
        tb_mesh_tell(g->mesh);
    return g->fault.status;
}

static int await_all(tb_group *g, uint64_t deadline_ns) {
    tb_header *h = g->header;
    uint32_t ranks = (uint32_t)__builtin_popcount(g->here);
    for (int nap = 0; atomic_load_explicit(&h->attached, memory_order_acquire) < ranks; nap++) {
        uint64_t broken = atomic_load(&h->broken);
        if (broken) {
            tb_fault_unpack(broken, &g->fault);
            return g->fault.status;
        }
        int lost = nap % LOOK_EVERY == 0 ? lost_in_join(g) : -1;
        if (lost >= 0)
            return settle(g, (tb_fault){.status = TB_PEER_DIED, .peer = lost, .by = g->rank});
        if (tb_now_ns() > deadline_ns)
            return settle(g, (tb_fault){.status = TB_TIMEOUT, .peer = TB_NO_PEER, .by = g->rank,
                                        .absent = not_attached(h, g->here)});
        if (nap % LOOK_EVERY == 0 && g->hooks.tick && g->hooks.tick(g->hooks.context))
            return settle(g, (tb_fault){.status = TB_SIGNAL, .peer = TB_NO_PEER, .by = g->rank});
        tb_sleep_ns(NAP_NS);
    }
    return TB_OK;
}

static void connect_peers(tb_group *g) {
    for (int r = 0; r < g->size; r++) {
        g->watch[r] = -1;
        if (r == g->rank || !(g->here >> r & 1))
            continue;
        g->pid[r] = atomic_load(&g->header->control[r].pid);
        if (g->pid[r] != (int32_t)getpid())
            g->watch[r] = tb_process_watch(g->pid[r]);
        tb_shm_sender(&g->to[r], g->header, g->rank, r);
        tb_shm_receiver(&g->from[r], g->header, g->rank, r);
    }
}

static int claim(tb_group *g) {
    uint32_t expected = TB_FREE;
    if (!atomic_compare_exchange_strong(&g->own->state, &expected, TB_JOINING))
        return EEXIST;
    atomic_store(&g->own->pid, (int32_t)getpid());
    atomic_store(&g->own->heartbeat_ns, tb_now_ns());
    atomic_store(&g->own->shaping, g->shaping);
    atomic_store(&g->own->state, TB_ATTACHED);
    atomic_fetch_add(&g->header->attached, 1);
    return 0;
}

static bool alike(const tb_group *g) {
    for (int r = 0; r < g->size; r++)
        if (g->here >> r & 1 && atomic_load(&g->header->control[r].shaping) != g->shaping)
            return false;
    return true;
}

static int attach(tb_group *g, tb_header *header, int rank, uint64_t deadline_ns, int *error) {
    g->header = header;
    g->own = &header->control[rank];
    g->rank = rank;
    g->size = (int)header->size;
    g->frame_bytes = header->slot_bytes;
    g->least_bytes = LEAST_SHM_BYTES;
    g->kind = TB_JOIN;
    g->peer = TB_NO_PEER;
    g->start_ns = tb_now_ns();
    for (int r = 0; r < TB_MAX_RANKS; r++)
        g->watch[r] = -1;
    *error = claim(g);
    if (*error)
        return TB_INVALID;
    int status = await_all(g, deadline_ns);
    if (status == TB_OK && !alike(g)) {
        *error = EPROTO;
        status = TB_INVALID;
    }
    if (status == TB_OK)
        connect_peers(g);
    else
        atomic_store(&g->own->state, TB_LEFT);
    return status;
}

static uint32_t everyone(int size) { return (uint32_t)((1ull << size) - 1); }

int tb_group_attach(tb_group *g, tb_header *header, int rank, uint64_t deadline_ns) {
    int error = 0;
    memset(g, 0, sizeof *g);
    g->segment.fd = -1;
    g->waiting.policy = TB_AUTO;
    g->waiting.oversubscribed = (int)header->size > tb_cores_free();
    g->here = everyone((int)header->size);
    return attach(g, header, rank, deadline_ns, &error);
}

int tb_group_join(tb_group *g, const char *name, int rank, int size, uint64_t deadline_ns, int *error) {
    return tb_group_join_node(g, name, rank, size, everyone(size), deadline_ns, error);
}

int tb_group_join_node(tb_group *g, const char *name, int rank, int size, uint32_t here, uint64_t deadline_ns,
                       int *error) {
    int ranks = __builtin_popcount(here);
    *error = tb_segment_open(&g->segment, name, size, ranks > 1 || size == 1, deadline_ns);
    if (*error)
        return TB_INVALID;
    g->here = here;
    g->waiting.oversubscribed = ranks > tb_cores_free();
    int status = attach(g, g->segment.header, rank, deadline_ns, error);
    if (*error != EEXIST)
        tb_segment_unlink(&g->segment);
    if (status == TB_OK) {
        tb_heartbeat_touch(&g->own->heartbeat_ns, true);
        return TB_OK;
    }
    tb_segment_close(&g->segment);
    g->header = NULL;
    return status;
}

void tb_group_close(tb_group *g) {
    if (!g->header)
        return;
    tb_service_free(g->service);
    g->service = NULL;
    tb_mesh_free(g->mesh);
    g->mesh = NULL;
    tb_heartbeat_touch(&g->own->heartbeat_ns, false);
    /* A forked child has the handle too, and leaves for nobody. */
    if (atomic_load(&g->own->pid) == (int32_t)getpid())
        atomic_store(&g->own->state, TB_LEFT);
    for (int r = 0; r < g->size; r++)
        if (g->watch[r] >= 0)
            close(g->watch[r]);
    if (g->segment.header)
        tb_segment_close(&g->segment);
    free(g->shapes);
    g->shapes = NULL;
    g->header = NULL;
}

static uint32_t late_ranks(const tb_group *g, int awaited) {
    uint32_t absent = 0;
    for (int r = 0; r < g->size && g->kind < TB_SEND; r++)
        if (atomic_load(&g->header->control[r].collectives) < g->collectives)
            absent |= 1u << r;
    return absent ? absent : 1u << awaited;
}

static uint64_t operation_word(const tb_group *g, unsigned done) {
    return g->sequence << 24 | (uint64_t)done << 16 | (uint64_t)g->peer << 8 | (uint64_t)g->kind;
}

static int refuse(tb_group *g) {
    uint64_t broken = atomic_load_explicit(&g->header->broken, memory_order_relaxed);
    if (!broken)
        return settle(g, (tb_fault){.status = TB_INTERRUPTED, .peer = TB_NO_PEER, .by = g->rank});
    tb_fault_unpack(broken, &g->fault);
    return TB_BROKEN;
}

int tb_begin(tb_group *g, enum tb_kind kind, int peer, uint64_t bytes, unsigned detail, uint64_t timeout_ns) {
    g->kind = kind;
    g->peer = peer;
    g->bytes = bytes;
    g->what = (uint64_t)((kind == TB_RECV ? TB_SEND : kind) | detail << 4);
    g->sequence++;
    g->collectives += kind < TB_SEND;
    g->blocked = false;
    g->start_ns = tb_now_ns();
    g->deadline_ns = g->start_ns + timeout_ns;
    atomic_store_explicit(&g->own->operation_start_ns, g->start_ns, memory_order_relaxed);
    atomic_store_explicit(&g->own->operation, operation_word(g, 0), memory_order_relaxed);
    atomic_store_explicit(&g->own->collectives, g->collectives, memory_order_relaxed);
    bool broken = atomic_load_explicit(&g->header->broken, memory_order_relaxed) != 0;
    bool interrupted = atomic_load_explicit(&g->own->interrupt, memory_order_relaxed) != 0;
    return __builtin_expect(broken || interrupted, 0) ? refuse(g) : TB_OK;
}

/* Frames that would move at the next call only: nobody waits for that call but their receiver. */
static int flush(tb_group *g) {
    int status = TB_OK;
    for (int r = 0; r < g->size && status == TB_OK; r++) {
        tb_channel *c = &g->to[r];
        if (c->provider && c->provider->flushed && !c->provider->flushed(c))
            status = tb_wait(g, c, c->provider->flushed);
    }
    return status;
}

int tb_end(tb_group *g, int status) {
    if (g->mesh && status == TB_OK)
        status = flush(g);
    if (__builtin_expect(status == TB_OK, 1)) {
        g->counts[g->kind].calls++;
        g->counts[g->kind].bytes += g->bytes;
        atomic_store_explicit(&g->own->operation, operation_word(g, 1), memory_order_relaxed);
        return TB_OK;
    }
    if (status == TB_TIMEOUT && !g->fault.absent)
        g->fault.absent = late_ranks(g, g->fault.peer);
    return settle(g, g->fault);
}
