#include "channel.h"

#include <stdio.h>
#include <string.h>

#include "copy.h"
#include "group.h"

static inline tb_head expected_head(const tb_group *g, const tb_channel *c, uint32_t length) {
    return (tb_head){(uint64_t)c->sequence | (uint64_t)TB_FRAME_MAGIC << 32 | g->what << 48,
                     (uint64_t)length | g->collectives << 32};
}

static void describe(char *text, size_t room, tb_head h) {
    unsigned what = (unsigned)(h.identity >> 48);
    snprintf(text, room, "sequence %u, magic 0x%04x, %s with type and reduction code %u, %u bytes, collective %u",
             (uint32_t)h.identity, (unsigned)(h.identity >> 32 & 0xffff), tb_kind_name(what & 15), what >> 4,
             (uint32_t)h.extent, (uint32_t)(h.extent >> 32));
}

static int corrupt(tb_group *g, const tb_channel *c, tb_head found, tb_head wanted) {
    g->fault = (tb_fault){.status = TB_CORRUPT, .peer = c->peer, .by = g->rank};
    describe(g->fault.got, sizeof g->fault.got, found);
    describe(g->fault.wanted, sizeof g->fault.wanted, wanted);
    return TB_CORRUPT;
}

int tb_send_start(tb_group *g, int to, uint32_t length, uint8_t **payload) {
    tb_channel *c = &g->to[to];
    c->length = length;
    if (!c->provider->ready(c)) {
        int status = tb_wait(g, c, c->provider->ready);
        if (status != TB_OK)
            return status;
    }
    *payload = c->provider->payload(c, length);
    return TB_OK;
}

void tb_send_commit(tb_group *g, int to, uint32_t length) {
    tb_channel *c = &g->to[to];
    tb_head h = expected_head(g, c, length);
    if (__builtin_expect(g->corrupt_next, 0)) {
        g->corrupt_next--;
        h.identity ^= (uint64_t)0xff << 32;
    }
    c->provider->commit(c, h);
}

int tb_recv_start(tb_group *g, int from, uint32_t length, const uint8_t **payload) {
    tb_channel *c = &g->from[from];
    c->length = length;
    if (!c->provider->ready(c)) {
        int status = tb_wait(g, c, c->provider->ready);
        if (status != TB_OK)
            return status;
    }
    tb_head found = c->provider->head(c), wanted = expected_head(g, c, length);
    if (__builtin_expect(found.identity != wanted.identity || found.extent != wanted.extent, 0))
        return corrupt(g, c, found, wanted);
    *payload = c->provider->payload(c, length);
    return TB_OK;
}

void tb_recv_release(tb_group *g, int from) {
    tb_channel *c = &g->from[from];
    c->provider->release(c);
}

static uint32_t frame_length(const tb_channel *c, size_t left) {
    return left < c->slot_bytes ? (uint32_t)left : c->slot_bytes;
}

/* A shaped link's lane is long and read later: the copy goes past the cache. */
static inline void put(const tb_channel *c, uint8_t *payload, const uint8_t *at, uint32_t length) {
    if (__builtin_expect(length >= TB_COPY_PAST_BYTES && c->due, 0))
        tb_copy_past(payload, at, length);
    else
        memcpy(payload, at, length);
}

int tb_send_bytes(tb_group *g, int to, const void *source, size_t bytes) {
    const uint8_t *at = source;
    uint8_t *payload;
    do {
        uint32_t length = frame_length(&g->to[to], bytes);
        int status = tb_send_start(g, to, length, &payload);
        if (status != TB_OK)
            return status;
        if (length)
            put(&g->to[to], payload, at, length);
        tb_send_commit(g, to, length);
        at += length;
        bytes -= length;
    } while (bytes);
    return TB_OK;
}

int tb_recv_bytes(tb_group *g, int from, void *target, size_t bytes) {
    uint8_t *at = target;
    const uint8_t *payload;
    do {
        uint32_t length = frame_length(&g->from[from], bytes);
        int status = tb_recv_start(g, from, length, &payload);
        if (status != TB_OK)
            return status;
        if (length)
            memcpy(at, payload, length);
        tb_recv_release(g, from);
        at += length;
        bytes -= length;
    } while (bytes);
    return TB_OK;
}
