/* Shaped links between threads: due times to the nanosecond, long lanes through many laps, streams, damage, leaving. */
#include "meshes.h"

#include <errno.h>

#include "collective.h"
#include "pingpong.h"

#define US 1000ull

typedef struct joiner {
    tb_shaping shaping;
    int rank;
    void (*body)(tb_group *);
    const char *name;
    int status, error;
    pthread_t thread;
} joiner;

static tb_shaping shaping_of(int rank, int size, uint64_t latency_ns, double ns_per_byte) {
    tb_shaping s = {0};
    for (int low = 0; low < size; low++)
        for (int high = low + 1; high < size; high++)
            tb_shaping_add(&s, rank, low, high, latency_ns, ns_per_byte);
    return s;
}

static void *join_and_run(void *context) {
    joiner *j = context;
    tb_group *g = tb_handle_join(j->name, j->rank, 2, &j->shaping, 20 * SECOND, (tb_hooks){0}, &j->status, &j->error);
    CHECK(g);
    if (j->status == TB_OK && j->body)
        j->body(g);
    tb_handle_free(g);
    return NULL;
}

/* Two ranks, each with its own mapping, and what came of their joins. */
static void join_two(joiner two[2], void (*body)(tb_group *)) {
    static int number;
    char name[64];
    snprintf(name, sizeof name, "tbs-%d-%d", (int)getpid(), number++);
    for (int r = 0; r < 2; r++) {
        two[r].rank = r, two[r].name = name, two[r].body = body;
        CHECK(pthread_create(&two[r].thread, NULL, join_and_run, &two[r]) == 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(two[r].thread, NULL);
}

static void shaped_two(uint64_t latency_ns, double ns_per_byte, void (*body)(tb_group *)) {
    joiner two[2] = {{.shaping = shaping_of(0, 2, latency_ns, ns_per_byte)},
                     {.shaping = shaping_of(1, 2, latency_ns, ns_per_byte)}};
    join_two(two, body);
    CHECK(two[0].status == TB_OK && two[1].status == TB_OK);
}

/* A busy link goes on where it was; an idle one begins when the frame does; parts of nanoseconds add up. */
static void due_times(void) {
    tb_shape s = {.latency_ns = 5000, .ns_per_byte = 2};
    CHECK(tb_shape_due(&s, 1000, 100) == 6200);
    CHECK(tb_shape_due(&s, 1001, 100) == 6400);
    CHECK(tb_shape_due(&s, 2000, 0) == 7000);
    tb_shape eighth = {.latency_ns = 10, .ns_per_byte = 0.125};
    uint64_t last = 0;
    for (int i = 0; i < 1000000; i++)
        last = tb_shape_due(&eighth, 500, 1);
    CHECK(last == 500 + 125000 + 10);
    CHECK(tb_shape_due(&eighth, 500, 1) == last + 1);
}

static void digests(void) {
    tb_shaping a = shaping_of(0, 3, 5, 1), b = shaping_of(2, 3, 5, 1), c = shaping_of(0, 3, 6, 1), none = {0};
    CHECK(a.digest == b.digest && a.digest != c.digest && a.digest != none.digest);
    CHECK(a.links == 6 && b.links == 3);
}

static void loops(tb_group *g) {
    double us[50];
    int64_t stamps[80];
    int peer = 1 - g->rank;
    CHECK(tb_pingpong(g, peer, 8, 50, us, 60 * SECOND) == TB_OK);
    for (int i = 0; i < 50 && g->rank == 0; i++)
        CHECK(us[i] >= 200);
    CHECK(tb_window(g, peer, 100000, 20, 3, us, 60 * SECOND) == TB_OK);
    CHECK(g->rank == 1 || us[2] >= 400 + 1000); /* two latencies, and 2 MB at half a nanosecond a byte */
    CHECK(tb_clock(g, peer, 20, 1000, stamps, 60 * SECOND) == TB_OK);
    for (int i = 0; i < 20; i++)
        CHECK(stamps[4 * i + 1] - stamps[4 * i] >= 200000 && stamps[4 * i + 3] - stamps[4 * i + 2] >= 200000);
}

static void numbers(tb_group *g) {
    static uint8_t out[2][300000], in[2][300000];
    for (int i = 0; i < 40; i++) {
        memset(out[g->rank], i + g->rank, sizeof out[0]);
        CHECK(tb_send(g, out[g->rank], sizeof out[0], 1 - g->rank, 60 * SECOND) == TB_OK);
        CHECK(tb_recv(g, in[g->rank], sizeof in[0], 1 - g->rank, 60 * SECOND) == TB_OK);
        CHECK(in[g->rank][0] == i + 1 - g->rank && in[g->rank][299999] == i + 1 - g->rank);
    }
    float x = 1;
    CHECK(tb_all_reduce(g, &x, &x, 1, TB_F32, TB_SUM, TB_DIRECT, 20 * SECOND) == TB_OK && x == 2);
}

static void damage(tb_group *g) {
    double value = 1;
    if (g->rank == 0)
        g->corrupt_next = 1;
    int status = g->rank == 0 ? tb_send(g, &value, 8, 1, 20 * SECOND) : tb_recv(g, &value, 8, 0, 20 * SECOND);
    CHECK(status == (g->rank == 0 ? TB_OK : TB_CORRUPT));
}

/* The last frame comes at its time though its sender is gone; then there is none. */
static void leaves(tb_group *g) {
    char byte = 7;
    if (g->rank == 1) {
        CHECK(tb_send(g, &byte, 1, 0, SECOND) == TB_OK);
        return;
    }
    tb_sleep_ns(SECOND / 50);
    CHECK(tb_recv(g, &byte, 1, 1, 20 * SECOND) == TB_OK && byte == 7);
    CHECK(tb_recv(g, &byte, 1, 1, 20 * SECOND) == TB_PEER_DIED);
}

static void other_shapes(void) {
    joiner two[2] = {{.shaping = shaping_of(0, 2, 5000, 1)}, {.shaping = {0}}};
    join_two(two, NULL);
    for (int r = 0; r < 2; r++)
        CHECK(two[r].status == TB_INVALID && two[r].error == EPROTO);
}

static void streams(void (*body)(tb_group *), uint64_t latency_ns) {
    tb_cabling two;
    tb_full_mesh(&two, 2, NULL);
    tb_shaping shaping[2] = {shaping_of(0, 2, latency_ns, 0.5), shaping_of(1, 2, latency_ns, 0.5)};
    tb_run_shaped_mesh(&two, shaping, body);
}

int main(void) {
    due_times();
    digests();
    shaped_two(200 * US, 0.5, loops);
    shaped_two(20 * US, 0.125, numbers);
    shaped_two(300 * US, 0.125, numbers);
    shaped_two(20 * US, 1, damage);
    shaped_two(100000 * US, 1, leaves);
    other_shapes();
    streams(loops, 200 * US);
    streams(numbers, 20 * US);
    streams(damage, 20 * US);
    streams(leaves, 100000 * US);
    return 0;
}
