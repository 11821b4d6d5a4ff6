#include "pingpong.h"

#include <stdlib.h>

#include "clock.h"
#include "group.h"

#define BARE_POLLS_MAX 4000000000u /* some ten seconds: a peer that died must not hang the loop */

static int ping(tb_group *g, int peer, void *data, size_t bytes) {
    int status = tb_send_bytes(g, peer, data, bytes);
    return status == TB_OK ? tb_recv_bytes(g, peer, data, bytes) : status;
}

static int pong(tb_group *g, int peer, void *data, size_t bytes) {
    int status = tb_recv_bytes(g, peer, data, bytes);
    return status == TB_OK ? tb_send_bytes(g, peer, data, bytes) : status;
}

static int rounds(tb_group *g, int peer, void *data, size_t bytes, size_t iterations, double *us) {
    int (*turn)(tb_group *, int, void *, size_t) = g->rank < peer ? ping : pong;
    int status = turn(g, peer, data, bytes); /* meet first: the first sample is no wait for a late caller */
    uint64_t before = tb_now_ns();
    for (size_t i = 0; i < iterations && status == TB_OK; i++) {
        status = turn(g, peer, data, bytes);
        uint64_t now = tb_now_ns();
        us[i] = (double)(now - before) / 2000.0;
        before = now;
    }
    return status;
}

static void *scratch(size_t bytes) { return calloc(1, bytes ? bytes : 1); }

int tb_pingpong(tb_group *g, int peer, size_t bytes, size_t iterations, double *us, uint64_t timeout_ns) {
    void *data = scratch(bytes);
    if (!data)
        return TB_INVALID;
    int status = tb_begin(g, TB_PINGPONG, peer, bytes * iterations, 0, timeout_ns);
    if (status == TB_OK)
        status = tb_end(g, rounds(g, peer, data, bytes, iterations, us));
    free(data);
    return status;
}

static bool await_bare(_Atomic uint64_t *line, uint64_t value) {
    for (uint64_t polls = 0; polls < BARE_POLLS_MAX; polls++)
        if (atomic_load_explicit(line, memory_order_acquire) == value)
            return true;
    return false;
}

static bool bare_rounds(_Atomic uint64_t *line, bool first, size_t iterations, double *us) {
    uint64_t before = tb_now_ns();
    for (uint64_t i = 0; i < iterations; i++) {
        if (first)
            atomic_store_explicit(line, 2 * i + 1, memory_order_release);
        if (!await_bare(line, first ? 2 * i + 2 : 2 * i + 1))
            return false;
        if (!first)
            atomic_store_explicit(line, 2 * i + 2, memory_order_release);
        uint64_t now = tb_now_ns();
        us[i] = (double)(now - before) / 2000.0;
        before = now;
    }
    return true;
}

int tb_bare_pingpong(tb_group *g, int peer, size_t iterations, double *us, uint64_t timeout_ns) {
    int low = g->rank < peer ? g->rank : peer;
    if (!(g->here >> peer & 1))
        return TB_INVALID;
    _Atomic uint64_t *line = &g->header->control[low].bare;
    int status = tb_begin(g, TB_PINGPONG, peer, 8 * iterations, 1, timeout_ns);
    if (status != TB_OK)
        return status;
    if (g->rank == low)
        atomic_store(line, 0);
    uint8_t word = 0;
    status = g->rank == low ? ping(g, peer, &word, 1) : pong(g, peer, &word, 1);
    if (status == TB_OK && !bare_rounds(line, g->rank == low, iterations, us)) {
        g->fault = (tb_fault){.status = TB_TIMEOUT, .peer = peer, .by = g->rank, .absent = 1u << peer};
        status = TB_TIMEOUT;
    }
    return tb_end(g, status);
}

static int send_window(tb_group *g, int peer, const void *data, size_t bytes, size_t window) {
    int status = TB_OK;
    uint8_t answer;
    for (size_t w = 0; w < window && status == TB_OK; w++)
        status = tb_send_bytes(g, peer, data, bytes);
    return status == TB_OK ? tb_recv_bytes(g, peer, &answer, 0) : status;
}

static int take_window(tb_group *g, int peer, void *data, size_t bytes, size_t window) {
    int status = TB_OK;
    for (size_t w = 0; w < window && status == TB_OK; w++)
        status = tb_recv_bytes(g, peer, data, bytes);
    return status == TB_OK ? tb_send_bytes(g, peer, data, 0) : status;
}

static int windows(tb_group *g, int peer, void *data, size_t bytes, size_t window, size_t iterations, double *us) {
    int status = TB_OK;
    for (size_t i = 0; i < iterations && status == TB_OK; i++) {
        uint64_t before = tb_now_ns();
        status = g->rank < peer ? send_window(g, peer, data, bytes, window) : take_window(g, peer, data, bytes, window);
        us[i] = (double)(tb_now_ns() - before) / 1000.0;
    }
    return status;
}

int tb_window(tb_group *g, int peer, size_t bytes, size_t window, size_t iterations, double *us, uint64_t timeout_ns) {
    void *data = scratch(bytes);
    if (!data)
        return TB_INVALID;
    int status = tb_begin(g, TB_WINDOW, peer, bytes * window * iterations, 0, timeout_ns);
    if (status == TB_OK)
        status = tb_end(g, windows(g, peer, data, bytes, window, iterations, us));
    free(data);
    return status;
}

static int64_t reading(const tb_group *g) {
    int64_t now = (int64_t)tb_now_ns();
    return now + g->skew.offset_ns + (int64_t)((double)(now - g->skew.origin_ns) * g->skew.drift);
}

static int ask(tb_group *g, int peer, int64_t *stamps) {
    stamps[0] = reading(g);
    int status = tb_send_bytes(g, peer, stamps, sizeof *stamps);
    if (status == TB_OK)
        status = tb_recv_bytes(g, peer, stamps + 1, 2 * sizeof *stamps);
    stamps[3] = reading(g);
    return status;
}

static int answer(tb_group *g, int peer) {
    int64_t asked, stamps[2];
    int status = tb_recv_bytes(g, peer, &asked, sizeof asked);
    stamps[0] = reading(g);
    if (status != TB_OK)
        return status;
    stamps[1] = reading(g);
    return tb_send_bytes(g, peer, stamps, sizeof stamps);
}

static int exchange_all(tb_group *g, int peer, size_t exchanges, uint64_t pause_ns, int64_t *stamps) {
    bool asks = g->rank < peer;
    size_t bytes = 4 * exchanges * sizeof *stamps;
    int status = TB_OK;
    for (size_t i = 0; i < exchanges && status == TB_OK; i++) {
        if (asks && i && pause_ns)
            tb_sleep_ns(pause_ns);
        status = asks ? ask(g, peer, stamps + 4 * i) : answer(g, peer);
    }
    if (status != TB_OK)
        return status;
    return asks ? tb_send_bytes(g, peer, stamps, bytes) : tb_recv_bytes(g, peer, stamps, bytes);
}

int tb_clock(tb_group *g, int peer, size_t exchanges, uint64_t pause_ns, int64_t *stamps, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_CLOCK, peer, 24 * exchanges, 0, timeout_ns);
    return status == TB_OK ? tb_end(g, exchange_all(g, peer, exchanges, pause_ns, stamps)) : status;
}

void tb_testing_skew(tb_group *g, int64_t offset_ns, int64_t origin_ns, double drift) {
    g->skew = (tb_skew){offset_ns, origin_ns, drift};
}
