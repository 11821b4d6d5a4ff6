#include "window.h"

#include <stdlib.h>

#include "clock.h"
#include "futex.h"
#include "group.h"
#include "service.h"

#define LOOK_NS 20000000   /* between two looks at the interrupt flag and at what is known of the peer */
#define TICK_NS 100000000
#define COPY_BYTES 1048576 /* of own memory in one piece: a close need not wait longer */

uint64_t tb_window_bytes(const tb_memory_window *w, int rank) { return w->bytes[rank]; }

void tb_window_free(tb_memory_window *w) { free(w); }

enum tb_carrier tb_window_carrier(const tb_memory_window *w, int rank) {
    const tb_group *g = w->group;
    if (rank == g->rank)
        return TB_CARRIER_SELF;
    if (g->here >> rank & 1)
        return TB_CARRIER_LOCAL;
    return tb_mesh_relays(g->mesh, rank) ? TB_CARRIER_RELAY : TB_CARRIER_STREAM;
}

bool tb_window_enter(tb_memory_window *w) {
    if (!w->group->service)
        return false;
    atomic_fetch_add(&w->group->service->callers, 1);
    return true;
}

void tb_window_leave(tb_memory_window *w) { atomic_fetch_sub(&w->group->service->callers, 1); }

void tb_window_close(tb_memory_window *w, uint64_t timeout_ns) {
    tb_withdraw(&w->group->service->exposures, w->number, tb_now_ns() + timeout_ns);
}

/* A status where it is no use to wait on. */
static int look(const tb_group *g, int peer, uint64_t now, uint64_t deadline_ns) {
    const tb_control *c = &g->header->control[peer];
    if (atomic_load(&g->own->interrupt))
        return TB_INTERRUPTED;
    if (now >= deadline_ns)
        return TB_TIMEOUT;
    return atomic_load(&c->state) == TB_LOST ? (int)atomic_load(&c->loss) : TB_OK;
}

static int await(const tb_group *g, const tb_read *r, tb_fetch *f, uint64_t began_ns) {
    uint64_t deadline = began_ns + r->timeout_ns, ticked = began_ns;
    while (!atomic_load(&f->done)) {
        uint64_t now = tb_now_ns();
        int status = look(g, r->rank, now, deadline);
        if (status != TB_OK)
            return status;
        if (now - ticked > TICK_NS && r->hooks.tick && r->hooks.tick(r->hooks.context))
            return TB_SIGNAL;
        ticked = now - ticked > TICK_NS ? now : ticked;
        tb_futex_wait(&f->done, 0, deadline - now < LOOK_NS ? deadline - now : LOOK_NS);
    }
    return TB_OK;
}

static int fetch(tb_memory_window *w, const tb_read *r, tb_read_end *end) {
    tb_group *g = w->group;
    tb_stream *s = &g->service->stream[r->rank];
    uint64_t began = tb_now_ns();
    tb_fetch f = {.window = w->number, .offset = r->offset, .length = r->length, .target = r->target};
    if (!tb_stream_ask(s, &f))
        tb_service_wake(g->service);
    int status = await(g, r, &f, began);
    tb_stream_forget(s, &f);
    if (atomic_load(&f.done) && (status == TB_OK || f.got == r->length))
        status = f.refusal ? TB_INVALID : f.fault.status;
    end->fault = f.fault;
    end->fault.status = status;
    end->fault.elapsed_ns = tb_now_ns() - began;
    end->got = f.got;
    end->refusal = f.refusal;
    end->exposed = f.refusal ? f.exposed : w->bytes[r->rank];
    return status;
}

static int copy_own(tb_memory_window *w, const tb_read *r, tb_read_end *end) {
    tb_exposures *own = &w->group->service->exposures;
    uint8_t *to = r->target;
    end->refusal = tb_serve_begin(own, w->number);
    if (end->refusal)
        return TB_INVALID;
    do {
        uint64_t left = r->length - end->got, piece = left < COPY_BYTES ? left : COPY_BYTES;
        end->refusal = tb_serve(own, w->number, r->offset + end->got, left, to + end->got, (uint32_t)piece, &end->exposed);
        end->got += end->refusal ? 0 : piece;
    } while (!end->refusal && end->got < r->length);
    tb_serve_end(own, w->number);
    return end->refusal ? TB_INVALID : TB_OK;
}

int tb_window_read(tb_memory_window *w, const tb_read *r, tb_read_end *end) {
    uint64_t bytes = w->bytes[r->rank];
    *end = (tb_read_end){.exposed = bytes};
    end->fault = (tb_fault){.kind = TB_FETCH, .peer = r->rank, .by = w->group->rank};
    if (bytes == 0 || r->offset > bytes || r->length > bytes - r->offset) {
        end->refusal = TB_BEYOND;
        return end->fault.status = TB_INVALID;
    }
    if (r->rank == w->group->rank)
        return end->fault.status = copy_own(w, r, end);
    return fetch(w, r, end);
}

int tb_window_times(tb_memory_window *w, const tb_read *r, size_t times, double *us, tb_read_end *end) {
    int status = TB_OK;
    for (size_t i = 0; i < times && status == TB_OK; i++) {
        uint64_t before = tb_now_ns();
        status = tb_window_read(w, r, end);
        us[i] = (double)(tb_now_ns() - before) / 1000.0;
    }
    return status;
}
