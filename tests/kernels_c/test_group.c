/* Collectives between threads, joins that fail, and the segment's name. */
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "collective.h"
#include "pingpong.h"

static const size_t counts[] = {0, 1, 3, 7, 13, 600, 5001, 40001};

static void check_sum(tb_group *g, size_t count, enum tb_algorithm algorithm) {
    int32_t *in = malloc(count * 4 + 4), *out = malloc(count * 4 + 4);
    for (size_t i = 0; i < count; i++)
        in[i] = (int32_t)i + g->rank;
    CHECK(tb_all_reduce(g, in, out, count, TB_I32, TB_SUM, algorithm, 20 * SECOND) == TB_OK);
    CHECK(tb_all_reduce(g, in, in, count, TB_I32, TB_SUM, algorithm, 20 * SECOND) == TB_OK);
    for (size_t i = 0; i < count; i++)
        CHECK(out[i] == in[i] && out[i] == g->size * (int32_t)i + g->size * (g->size - 1) / 2);
    free(in);
    free(out);
}

static void check_moves(tb_group *g, size_t count) {
    int32_t *all = malloc((count * 4 + 4) * (size_t)g->size), *own = malloc(count * 4 + 4);
    for (size_t i = 0; i < count; i++)
        own[i] = (int32_t)i ^ g->rank;
    CHECK(tb_all_gather(g, own, all, count * 4, 20 * SECOND) == TB_OK);
    for (int r = 0; r < g->size; r++)
        for (size_t i = 0; i < count; i++)
            CHECK(all[(size_t)r * count + i] == ((int32_t)i ^ r));
    int root = g->size - 1;
    CHECK(tb_broadcast(g, own, count * 4, root, 20 * SECOND) == TB_OK);
    for (size_t i = 0; i < count; i++)
        CHECK(own[i] == ((int32_t)i ^ root));
    free(all);
    free(own);
}

static void collectives(tb_group *g) {
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        check_sum(g, counts[k], TB_ALGORITHM_AUTO);
        check_sum(g, counts[k], TB_DIRECT);
        check_sum(g, counts[k], TB_SCATTER);
        check_moves(g, counts[k]);
        CHECK(tb_barrier(g, 20 * SECOND) == TB_OK);
    }
    CHECK(g->counts[TB_BARRIER].calls == sizeof counts / sizeof *counts);
}

static void loops(tb_group *g) {
    double us[50];
    CHECK(tb_pingpong(g, 1 - g->rank, 8, 50, us, 20 * SECOND) == TB_OK && us[49] > 0);
    CHECK(tb_bare_pingpong(g, 1 - g->rank, 50, us, 20 * SECOND) == TB_OK && us[49] > 0);
    CHECK(tb_window(g, 1 - g->rank, 5000, 20, 50, us, 20 * SECOND) == TB_OK && us[49] > 0);
}

static void absent(tb_group *g) {
    if (g->rank == 1)
        return;
    float x = 1;
    CHECK(tb_all_reduce(g, &x, &x, 1, TB_F32, TB_SUM, TB_DIRECT, SECOND / 10) != TB_OK);
    CHECK(g->fault.status == TB_PEER_DIED || (g->fault.status == TB_TIMEOUT && g->fault.absent == 2));
}

static bool name_is_there(const char *name) {
    int fd = shm_open(name, O_RDWR, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void joins(void) {
    char name[64];
    snprintf(name, sizeof name, "/tbc-join-%d", (int)getpid());
    tb_group alone = {.waiting = {.policy = TB_AUTO}};
    int error;
    CHECK(tb_group_join(&alone, name, 0, 1, tb_now_ns() + SECOND, &error) == TB_OK && !name_is_there(name));
    tb_group_close(&alone);
    tb_group late = {.waiting = {.policy = TB_AUTO}};
    CHECK(tb_group_join(&late, name, 1, 3, tb_now_ns() + SECOND / 20, &error) == TB_TIMEOUT);
    CHECK(late.fault.absent == 5 && late.fault.kind == TB_JOIN && !name_is_there(name));
    tb_segment first;
    CHECK(tb_segment_open(&first, name, 2, true, tb_now_ns() + SECOND) == 0 && name_is_there(name));
    tb_group other = {.waiting = {.policy = TB_AUTO}};
    CHECK(tb_group_join(&other, name, 0, 3, tb_now_ns() + SECOND, &error) == TB_INVALID && error == EINVAL);
    tb_segment_unlink(&first);
    tb_segment_close(&first);
    CHECK(!name_is_there(name));
}

int main(void) {
    joins();
    for (int size = 1; size <= 5; size++)
        tb_run_ranks(size, TB_AUTO, collectives);
    tb_run_ranks(3, TB_FUTEX, collectives);
    tb_run_ranks(2, TB_AUTO, loops);
    tb_run_ranks(3, TB_AUTO, absent);
    return 0;
}
