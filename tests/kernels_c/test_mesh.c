/* Groups over several nodes: streams, mixed with shared memory, relayed; what strangers and broken ranks do to them. */
#include "meshes.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "collective.h"
#include "pingpong.h"

static const size_t counts[] = {0, 1, 7, 600, 5001, 40001, 300001};

static void check_sum(tb_group *g, size_t count, enum tb_algorithm algorithm) {
    int32_t *in = calloc(count + 1, 4), *out = malloc(count * 4 + 4);
    for (size_t i = 0; i < count; i++)
        in[i] = (int32_t)i + g->rank;
    CHECK(tb_all_reduce(g, in, out, count, TB_I32, TB_SUM, algorithm, 20 * SECOND) == TB_OK);
    for (size_t i = 0; i < count; i++)
        CHECK(out[i] == g->size * (int32_t)i + g->size * (g->size - 1) / 2);
    free(in);
    free(out);
}

static void collectives(tb_group *g) {
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        check_sum(g, counts[k], TB_DIRECT);
        check_sum(g, counts[k], TB_SCATTER);
        CHECK(tb_barrier(g, 20 * SECOND) == TB_OK);
    }
    int32_t own = g->rank, all[16];
    CHECK(tb_all_gather(g, &own, all, 4, 20 * SECOND) == TB_OK);
    for (int r = 0; r < g->size; r++)
        CHECK(all[r] == r);
}

static void loops(tb_group *g) {
    double us[20];
    CHECK(tb_pingpong(g, 1 - g->rank, 64, 20, us, 20 * SECOND) == TB_OK && us[19] > 0);
    CHECK(tb_window(g, 1 - g->rank, 200000, 10, 20, us, 20 * SECOND) == TB_OK && us[19] > 0);
    CHECK(tb_bare_pingpong(g, 1 - g->rank, 20, us, SECOND) == TB_INVALID);
}

/* Both push before either takes: what is on its way must not need the other's attention. */
static void eager(tb_group *g) {
    static uint8_t out[2][200000], in[2][200000];
    for (int i = 0; i < 20; i++) {
        memset(out[g->rank], i, sizeof out[0]);
        CHECK(tb_send(g, out[g->rank], sizeof out[0], 1 - g->rank, 20 * SECOND) == TB_OK);
        CHECK(tb_recv(g, in[g->rank], sizeof in[0], 1 - g->rank, 20 * SECOND) == TB_OK);
        CHECK(in[g->rank][0] == i && in[g->rank][199999] == i);
    }
}

static void one_is_absent(tb_group *g) {
    float x = 1;
    if (g->rank == 1) {
        tb_sleep_ns(SECOND / 2);
        return;
    }
    CHECK(tb_all_reduce(g, &x, &x, 1, TB_F32, TB_SUM, TB_DIRECT, SECOND / 5) != TB_OK);
    CHECK(g->fault.status == TB_TIMEOUT && g->fault.absent == 2);
}

static void one_leaves(tb_group *g) {
    float x = 1;
    CHECK(tb_barrier(g, 20 * SECOND) == TB_OK);
    if (g->rank == 1)
        return;
    int status = tb_all_reduce(g, &x, &x, 1, TB_F32, TB_SUM, TB_DIRECT, 20 * SECOND);
    CHECK(status != TB_OK && g->fault.status == TB_PEER_DIED && g->fault.peer == 1);
}

static void other_sizes(tb_group *g) {
    float x[2] = {1, 2};
    int status = tb_all_reduce(g, x, x, g->rank == 0 ? 1 : 2, TB_F32, TB_SUM, TB_DIRECT, 20 * SECOND);
    CHECK(status == TB_CORRUPT);
}

static void damaged(tb_group *g) {
    float x = 1;
    if (g->rank == 0)
        g->corrupt_next = 1;
    int status = tb_all_reduce(g, &x, &x, 1, TB_F32, TB_SUM, TB_DIRECT, 20 * SECOND);
    CHECK(g->rank == 0 || status == TB_CORRUPT);
}

static int by_the_last(int a, int b) { return a == 0 && b == 1 ? 2 : -1; }
static int by_a_middle(int a, int b) { return a == 0 && b == 3 ? 1 : a == 1 && b == 2 ? 0 : -1; }

static void mixed(void) {
    tb_cabling g;
    tb_full_mesh(&g, 3, NULL);
    snprintf(g.node[1], TB_NODE_MAX, "mac1"); /* ranks 0 and 1 share a node: their stream is left out */
    memmove(&g.cable[0], &g.cable[1], 2 * sizeof g.cable[0]);
    g.cables = 2;
    tb_run_mesh(&g, collectives);
}

/* Three cables between two ranks, and one to a third. */
static void several_cables(void) {
    tb_cabling g;
    tb_full_mesh(&g, 3, NULL);
    g.cable[3] = g.cable[4] = g.cable[0];
    g.cables = 5;
    tb_run_mesh(&g, collectives);
    tb_full_mesh(&g, 2, NULL);
    g.cable[1] = g.cable[0];
    g.cables = 2;
    tb_run_mesh(&g, eager);
}

static void no_way(void) {
    tb_cabling g;
    tb_mesh_error error;
    tb_full_mesh(&g, 3, NULL);
    g.cables = 1;
    CHECK(!tb_mesh_open(&g, &error) && error.peer == 2);
    tb_full_mesh(&g, 2, NULL);
    snprintf(g.cable[0].end[0].address, TB_ADDRESS_MAX, "192.0.2.7");
    CHECK(!tb_mesh_open(&g, &error) && strcmp(error.step, "listen") == 0);
}

int main(void) {
    tb_cabling two, three, four;
    tb_full_mesh(&two, 2, NULL);
    tb_full_mesh(&three, 3, by_the_last);
    tb_full_mesh(&four, 4, by_a_middle);
    tb_run_mesh(&two, collectives);
    tb_run_mesh(&two, loops);
    tb_run_mesh(&two, eager);
    tb_run_mesh(&three, collectives);
    tb_run_mesh(&four, collectives);
    tb_run_mesh(&two, one_is_absent);
    tb_run_mesh(&three, one_leaves);
    tb_run_mesh(&two, other_sizes);
    tb_run_mesh(&two, damaged);
    mixed();
    several_cables();
    no_way();
    return 0;
}
