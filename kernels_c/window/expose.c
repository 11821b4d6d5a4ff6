/* How a window comes to be. All ranks tell each other two things by an all-gather: at the first window of a group how
 * they are reached, and at every one how much they expose, or why they cannot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "collective.h"
#include "group.h"
#include "local.h"
#include "service.h"

typedef struct meeting_note {
    int32_t error, unused;
    tb_local_card card;
} meeting_note;

typedef struct window_note {
    int32_t error, to_blame; /* to_blame: TB_NO_PEER, or the rank that did not answer */
    uint64_t bytes;
} window_note;

static uint64_t left(uint64_t deadline_ns) {
    uint64_t now = tb_now_ns();
    return now < deadline_ns ? deadline_ns - now : 0;
}

static uint32_t others_here(const tb_group *g) { return g->here & ~(1u << g->rank); }

static int blame(const tb_group *g, int rank, int32_t error, tb_mesh_error *e) {
    const char *rule = error == EMFILE ? "at most 64 windows and some descriptors are open on a rank"
                                       : "every rank can serve reads, and reaches the others for it";
    tb_mesh_fail(e, rank == g->rank ? TB_NO_PEER : rank, "window", error, rule, strerror(error));
    return TB_INVALID;
}

static int begin_service(tb_group *g, const tb_local *l, const meeting_note *notes, uint64_t deadline_ns,
                         int *to_blame) {
    tb_local_card cards[TB_MAX_RANKS];
    int fd[TB_MAX_RANKS];
    for (int r = 0; r < g->size; r++)
        cards[r] = notes[r].card;
    int error = tb_local_meet(l, cards, g->rank, g->size, others_here(g), deadline_ns, fd, to_blame);
    for (int r = 0; g->mesh && r < g->size; r++)
        if (!(g->here >> r & 1))
            fd[r] = tb_mesh_take_read(g->mesh, r);
    int failed = tb_service_start(g->service, g->rank, g->size, fd);
    *to_blame = error ? *to_blame : TB_NO_PEER;
    return error ? error : failed;
}

/* The service, with streams to all. *error: what kept it from running, for all to be told. */
static int open_service(tb_group *g, uint64_t deadline_ns, int *to_blame, int *error, tb_mesh_error *e) {
    meeting_note own = {0}, notes[TB_MAX_RANKS];
    tb_local l;
    own.error = tb_local_open(&l, others_here(g) >> g->rank != 0);
    own.card = l.card;
    g->service = calloc(1, sizeof *g->service);
    own.error = own.error || g->service ? own.error : ENOMEM;
    int status = tb_all_gather(g, &own, notes, sizeof own, left(deadline_ns));
    for (int r = 0; r < g->size && status == TB_OK; r++)
        if (notes[r].error)
            status = blame(g, r, notes[r].error, e);
    if (status == TB_OK) {
        *error = begin_service(g, &l, notes, deadline_ns, to_blame);
    } else {
        free(g->service);
        g->service = NULL;
    }
    tb_local_close(&l);
    return status;
}

static int tell_all(tb_group *g, const window_note *own, uint64_t *bytes, uint64_t deadline_ns, tb_mesh_error *e) {
    window_note notes[TB_MAX_RANKS];
    int status = tb_all_gather(g, own, notes, sizeof *own, left(deadline_ns));
    for (int r = 0; r < g->size && status == TB_OK; r++) {
        bytes[r] = notes[r].bytes;
        if (notes[r].error)
            status = blame(g, notes[r].to_blame == TB_NO_PEER ? r : notes[r].to_blame, notes[r].error, e);
    }
    return status;
}

/* A window of its own number, exposed unless there is an error. */
static int enter_window(tb_group *g, const void *memory, uint64_t bytes, int error, int to_blame, uint64_t deadline_ns,
                        tb_memory_window **window, tb_mesh_error *e) {
    tb_memory_window *w = calloc(1, sizeof *w);
    uint32_t number = ++g->service->windows;
    if (!error)
        error = w ? tb_expose(&g->service->exposures, number, memory, bytes) : ENOMEM;
    window_note own = {.error = error, .to_blame = to_blame, .bytes = bytes};
    uint64_t of[TB_MAX_RANKS] = {0};
    int status = tell_all(g, &own, of, deadline_ns, e);
    if (status != TB_OK) {
        tb_withdraw(&g->service->exposures, number, 0);
        free(w);
        return status;
    }
    *w = (tb_memory_window){.group = g, .number = number};
    memcpy(w->bytes, of, sizeof of);
    *window = w;
    return TB_OK;
}

int tb_window_expose(tb_group *g, const void *memory, uint64_t bytes, uint64_t timeout_ns, tb_memory_window **window,
                     tb_mesh_error *e) {
    uint64_t deadline = tb_now_ns() + timeout_ns;
    int to_blame = TB_NO_PEER, error = 0;
    bool first = !g->service;
    *window = NULL;
    int status = first ? open_service(g, deadline, &to_blame, &error, e) : TB_OK;
    if (status == TB_OK)
        status = enter_window(g, memory, bytes, error, to_blame, deadline, window, e);
    if (status != TB_OK && first) {
        tb_service_free(g->service);
        g->service = NULL;
    }
    return status;
}
