#include "shaped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "group.h"

#define SHAPED (1ull << 32) /* the last bit of the magic: an end without shape takes such a frame for damaged */

_Static_assert(TB_SHAPING_RANKS == TB_MAX_RANKS, "one entry a rank");

static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u; /* the golden ratio's: spreads every bit upwards */
    return digest ^ digest >> 29;
}

void tb_shaping_add(tb_shaping *s, int rank, int low, int high, uint64_t latency_ns, double ns_per_byte) {
    uint64_t slope;
    int peer = rank == low ? high : low;
    memcpy(&slope, &ns_per_byte, sizeof slope);
    s->digest = mix(mix(mix(s->digest + 1, (uint64_t)low << 8 | (uint64_t)high), latency_ns), slope);
    if (rank != low && rank != high)
        return;
    s->links |= 1u << peer;
    s->latency_ns[peer] = latency_ns;
    s->ns_per_byte[peer] = ns_per_byte;
}

uint64_t tb_shape_due(tb_shape *s, uint64_t now, uint32_t bytes) {
    if (now > s->free_ns) {
        s->free_ns = now;
        s->part_ns = 0;
    }
    double taken = s->part_ns + bytes * s->ns_per_byte;
    uint64_t whole = (uint64_t)taken;
    s->free_ns += whole;
    s->part_ns = taken - (double)whole;
    return s->free_ns + (s->part_ns > 0) + s->latency_ns;
}

static void commit(tb_channel *c, tb_head h) {
    tb_shape *s = c->shape;
    c->stamps->put(c, tb_shape_due(s, tb_now_ns(), (uint32_t)h.extent));
    h.identity ^= SHAPED;
    s->inner->commit(c, h);
}

/* A frame without a stamp is none of this link: it is ready at once, and its head says so. */
static bool receiver_ready(tb_channel *c) {
    tb_shape *s = c->shape;
    if (s->due_ns == 0) {
        if (!s->inner->ready(c))
            return false;
        s->due_ns = c->stamps->get(c);
    }
    return tb_now_ns() >= s->due_ns;
}

static tb_head head(tb_channel *c) {
    tb_head h = c->shape->inner->head(c);
    h.identity ^= SHAPED;
    return h;
}

static void release(tb_channel *c) {
    c->shape->due_ns = 0;
    c->shape->inner->release(c);
}

static void put_on(tb_channel *c, tb_shape *s, const tb_shaping *shaping, bool sends) {
    *s = (tb_shape){.face = *c->provider,
                    .inner = c->provider,
                    .latency_ns = shaping->latency_ns[c->peer],
                    .ns_per_byte = shaping->ns_per_byte[c->peer]};
    s->face.head = head;
    if (sends)
        s->face.commit = commit;
    else
        s->face.ready = receiver_ready, s->face.release = release;
    c->shape = s;
    c->provider = &s->face;
}

/* As many as are under way when the link is full, and the plain lane's for the two ends to work with. */
static uint32_t slots_for(const tb_shaping *shaping, int peer, uint32_t slot_bytes) {
    double slot_ns = shaping->ns_per_byte[peer] * slot_bytes, latency_ns = (double)shaping->latency_ns[peer];
    uint32_t slots = TB_SLOTS;
    while (slots < TB_LONG_SLOTS && (slots - TB_SLOTS) * slot_ns < latency_ns)
        slots *= 2;
    return slots;
}

static int lengthen(tb_group *g, int peer, const tb_shaping *shaping) {
    int error = tb_segment_lengthen(&g->segment);
    if (!error)
        error = tb_segment_take_long(&g->segment, g->rank, peer);
    if (!error)
        error = tb_segment_take_long(&g->segment, peer, g->rank);
    if (error)
        return error;
    uint32_t slots = slots_for(shaping, peer, g->header->slot_bytes);
    tb_shm_long_sender(&g->to[peer], &g->segment, g->rank, peer, slots);
    tb_shm_long_receiver(&g->from[peer], &g->segment, g->rank, peer, slots);
    return 0;
}

static int shape_link(tb_group *g, int peer, const tb_shaping *shaping) {
    int error = g->here >> peer & 1 ? lengthen(g, peer, shaping) : 0;
    if (!error && !(g->to[peer].stamps && g->from[peer].stamps))
        error = ENOTSUP;
    if (error)
        return error;
    put_on(&g->to[peer], &g->shapes[2 * peer], shaping, true);
    put_on(&g->from[peer], &g->shapes[2 * peer + 1], shaping, false);
    return 0;
}

int tb_shape_links(tb_group *g, const tb_shaping *shaping) {
    int error = 0;
    if (shaping->links == 0)
        return 0;
    g->shapes = calloc(2 * TB_MAX_RANKS, sizeof *g->shapes);
    if (!g->shapes)
        return ENOMEM;
    for (int r = 0; r < g->size && !error; r++)
        if (r != g->rank && shaping->links >> r & 1)
            error = shape_link(g, r, shaping);
    return error;
}
