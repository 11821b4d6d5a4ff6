#include "collective.h"
#include "group.h"

#include <string.h>

/* Dissemination: after round k each rank has heard, directly or not, from 2^(k+1) ranks. */
static int barrier_rounds(tb_group *g) {
    uint8_t *payload;
    const uint8_t *unused;
    for (int step = 1; step < g->size; step *= 2) {
        int to = (g->rank + step) % g->size, from = (g->rank + g->size - step) % g->size;
        int status = tb_send_start(g, to, 0, &payload);
        if (status != TB_OK)
            return status;
        tb_send_commit(g, to, 0);
        status = tb_recv_start(g, from, 0, &unused);
        if (status != TB_OK)
            return status;
        tb_recv_release(g, from);
    }
    return TB_OK;
}

int tb_barrier(tb_group *g, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_BARRIER, TB_NO_PEER, 0, 0, timeout_ns);
    return status == TB_OK ? tb_end(g, barrier_rounds(g)) : status;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static int to_all(tb_group *g, const uint8_t *data, size_t bytes) {
    int status = TB_OK;
    for (int k = 1; k < g->size && status == TB_OK; k++)
        status = tb_send_bytes(g, (g->rank + k) % g->size, data, bytes);
    return status;
}

static int broadcast_frames(tb_group *g, uint8_t *data, size_t bytes, int root) {
    size_t at = 0, frame = g->frame_bytes;
    int status;
    do {
        size_t n = smaller(bytes - at, frame);
        status = g->rank == root ? to_all(g, data + at, n) : tb_recv_bytes(g, root, data + at, n);
        at += n;
    } while (status == TB_OK && at < bytes);
    return status;
}

int tb_broadcast(tb_group *g, void *data, size_t bytes, int root, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_BROADCAST, root, bytes, (unsigned)root, timeout_ns);
    return status == TB_OK ? tb_end(g, broadcast_frames(g, data, bytes, root)) : status;
}

/* One frame ahead of what is read, so that ranks copy out while others copy in. */
static int gather_frames(tb_group *g, const uint8_t *in, uint8_t *out, size_t bytes) {
    size_t frame = g->frame_bytes, frames = bytes ? (bytes + frame - 1) / frame : 1;
    int status = TB_OK;
    for (size_t f = 0; f <= frames; f++) {
        if (f < frames)
            status = to_all(g, in + f * frame, smaller(bytes - f * frame, frame));
        size_t at = (f - 1) * frame;
        for (int k = 1; f > 0 && k < g->size && status == TB_OK; k++) {
            int from = (g->rank + k) % g->size;
            status = tb_recv_bytes(g, from, out + (size_t)from * bytes + at, smaller(bytes - at, frame));
        }
        if (status != TB_OK)
            return status;
    }
    if (bytes && out + (size_t)g->rank * bytes != in)
        memcpy(out + (size_t)g->rank * bytes, in, bytes);
    return TB_OK;
}

int tb_all_gather(tb_group *g, const void *in, void *out, size_t bytes, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_ALL_GATHER, TB_NO_PEER, bytes, 0, timeout_ns);
    return status == TB_OK ? tb_end(g, gather_frames(g, in, out, bytes)) : status;
}

int tb_send(tb_group *g, const void *data, size_t bytes, int to, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_SEND, to, bytes, 0, timeout_ns);
    return status == TB_OK ? tb_end(g, tb_send_bytes(g, to, data, bytes)) : status;
}

int tb_recv(tb_group *g, void *data, size_t bytes, int from, uint64_t timeout_ns) {
    int status = tb_begin(g, TB_RECV, from, bytes, 0, timeout_ns);
    return status == TB_OK ? tb_end(g, tb_recv_bytes(g, from, data, bytes)) : status;
}
