/* Ranks of a mesh as threads, each a node of its own, all on the loopback address; the control plane is an array. */
#ifndef TB_MESHES_H
#define TB_MESHES_H

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "group.h"
#include "mesh.h"

#define SECOND 1000000000ull

typedef struct tb_mesh_rank {
    tb_cabling cabling;
    const tb_shaping *shaping;
    struct tb_plane *plane;
    void (*body)(tb_group *);
    pthread_t thread;
} tb_mesh_rank;

typedef struct tb_plane {
    pthread_barrier_t all;
    uint8_t card[2][16][TB_CARD_MAX]; /* of both swaps */
    size_t bytes[2][16];
} tb_plane;

/* A full mesh of one stream a pair, but the pairs that `relayed(a, b)` gives a rank (not -1) to be relayed by. */
static void tb_full_mesh(tb_cabling *g, int size, int (*relayed)(int, int)) {
    *g = (tb_cabling){.size = size, .silence_ns = 5 * SECOND};
    for (int r = 0; r < size; r++)
        snprintf(g->node[r], TB_NODE_MAX, "mac%d", r + 1);
    for (int a = 0; a < size; a++)
        for (int b = a + 1; b < size; b++) {
            tb_cable *c = &g->cable[g->cables++];
            int via = relayed ? relayed(a, b) : -1;
            *c = (tb_cable){.by = via < 0 ? TB_BY_TCP : TB_BY_RELAY, .via = via};
            c->end[0] = (tb_cable_end){.rank = a, .address = "127.0.0.1"};
            c->end[1] = (tb_cable_end){.rank = b, .address = "127.0.0.1"};
        }
}

/* All-gather of the mesh's card of the moment. */
static void tb_swap(tb_mesh_rank *r, const tb_mesh *m, int round, const uint8_t *cards[16]) {
    int own = r->cabling.rank;
    const uint8_t *card = tb_mesh_card(m, &r->plane->bytes[round][own]);
    memcpy(r->plane->card[round][own], card, r->plane->bytes[round][own]);
    for (int i = 0; i < r->cabling.size; i++)
        cards[i] = r->plane->card[round][i];
    pthread_barrier_wait(&r->plane->all);
}

static void *tb_run_mesh_rank(void *context) {
    tb_mesh_rank *r = context;
    const uint8_t *cards[16];
    tb_mesh_error error;
    int status, number;
    tb_mesh *m = tb_mesh_open(&r->cabling, &error);
    CHECK(m);
    tb_swap(r, m, 0, cards);
    if (tb_mesh_connect(m, cards, r->plane->bytes[0], tb_now_ns() + 20 * SECOND, &error) != 0) {
        fprintf(stderr, "rank %d: %s: %s (got %s)\n", r->cabling.rank, error.step, error.rule, error.got);
        exit(1);
    }
    tb_swap(r, m, 1, cards);
    CHECK(tb_mesh_start(m, cards, r->plane->bytes[1], &error) == 0);
    tb_group *g = tb_mesh_group(m, r->shaping, 20 * SECOND, (tb_hooks){0}, &status, &number);
    CHECK(g && status == TB_OK);
    r->body(g);
    tb_handle_free(g);
    return NULL;
}

/* `shaping`: one a rank, or NULL. */
static void tb_run_shaped_mesh(const tb_cabling *cabling, const tb_shaping *shaping, void (*body)(tb_group *)) {
    static tb_plane plane;
    tb_mesh_rank ranks[16];
    CHECK(pthread_barrier_init(&plane.all, NULL, (unsigned)cabling->size) == 0);
    for (int r = 0; r < cabling->size; r++) {
        ranks[r] = (tb_mesh_rank){
            .cabling = *cabling, .shaping = shaping ? &shaping[r] : NULL, .plane = &plane, .body = body};
        ranks[r].cabling.rank = r;
        CHECK(pthread_create(&ranks[r].thread, NULL, tb_run_mesh_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < cabling->size; r++)
        pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&plane.all);
}

__attribute__((unused)) static void tb_run_mesh(const tb_cabling *cabling, void (*body)(tb_group *)) {
    tb_run_shaped_mesh(cabling, NULL, body);
}

#endif
