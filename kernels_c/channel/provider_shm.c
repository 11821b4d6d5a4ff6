/* Frames in shared memory. A frame of up to 48 bytes travels in the cache line of its head; a longer one has
 * its payload in the slot of the same number. The head's first word is stored last, with release. */
#include <string.h>

#include "channel.h"
#include "futex.h"

#define HEAD_BYTES 16u
#define INLINE_BYTES (TB_LINE - HEAD_BYTES)

static inline uint8_t *head_line(const tb_channel *c) {
    return c->heads + (size_t)((c->sequence - 1) & c->slot_mask) * TB_LINE;
}

static bool sender_ready(tb_channel *c) {
    if (c->sequence - 1 - c->credit_from <= c->slot_mask)
        return true;
    c->credit_from = atomic_load_explicit(c->consumed, memory_order_acquire);
    return c->sequence - 1 - c->credit_from <= c->slot_mask;
}

/* Anything but what stood there one lap ago is a frame; whether it is the right one is the caller's question. */
static bool receiver_ready(tb_channel *c) {
    uint64_t identity = atomic_load_explicit((_Atomic uint64_t *)head_line(c), memory_order_acquire);
    return (uint32_t)identity != c->sequence - 1 - c->slot_mask && identity != 0;
}

static uint8_t *payload(tb_channel *c, uint32_t length) {
    if (length <= INLINE_BYTES)
        return head_line(c) + HEAD_BYTES;
    return c->slots + (size_t)((c->sequence - 1) & c->slot_mask) * c->slot_bytes;
}

static tb_head head(tb_channel *c) {
    const uint8_t *line = head_line(c);
    tb_head found = {atomic_load_explicit((_Atomic uint64_t *)line, memory_order_acquire), 0};
    memcpy(&found.extent, line + 8, sizeof found.extent);
    return found;
}

/* The load of the sleeping word may pass the store before it, so a peer that falls asleep in these few
 * nanoseconds can be missed. A full fence would cost each frame more than the frame itself; instead the
 * kernel compares the word again as it puts the peer to sleep, and the first sleep is short. */
static inline void wake(tb_channel *c, _Atomic uint32_t *word) {
    if (__builtin_expect(atomic_load_explicit(c->peer_sleeping, memory_order_relaxed) == (uint32_t)c->rank + 1, 0))
        tb_futex_wake(word);
}

static void commit(tb_channel *c, tb_head h) {
    uint8_t *line = head_line(c);
    memcpy(line + 8, &h.extent, sizeof h.extent);
    atomic_store_explicit((_Atomic uint64_t *)line, h.identity, memory_order_release);
    c->sequence++;
    wake(c, (_Atomic uint32_t *)line);
}

static void release(tb_channel *c) {
    atomic_store_explicit(c->consumed, c->sequence, memory_order_release);
    c->sequence++;
    wake(c, c->consumed);
}

/* Both byte orders in use (x86-64, arm64) are little endian: the sequence is the first half of the word. */
static tb_watch receiver_watch(tb_channel *c) {
    _Atomic uint32_t *word = (_Atomic uint32_t *)head_line(c);
    uint32_t now = atomic_load_explicit(word, memory_order_acquire);
    return (tb_watch){word, now == c->sequence - 1 - c->slot_mask ? now : 0, -1, 0};
}

static tb_watch sender_watch(tb_channel *c) { return (tb_watch){c->consumed, c->credit_from, -1, 0}; }

static const tb_provider sender = {"shm", sender_ready, payload, head, commit, release, sender_watch, NULL, NULL};
static const tb_provider receiver = {"shm", receiver_ready, payload, head, commit, release, receiver_watch, NULL, NULL};

static void init(tb_channel *c, const tb_header *header, int rank, int peer, int from, int to) {
    tb_lane *lane = tb_segment_lane(header, from, to);
    *c = (tb_channel){.provider = rank == from ? &sender : &receiver,
                      .heads = lane->heads[0],
                      .slots = tb_segment_slots(header, from, to),
                      .consumed = &lane->consumed,
                      .peer_sleeping = (_Atomic uint32_t *)&header->control[peer].sleeping,
                      .sequence = 1,
                      .slot_bytes = header->slot_bytes,
                      .slot_mask = TB_SLOTS - 1,
                      .rank = rank,
                      .peer = peer};
}

void tb_shm_sender(tb_channel *c, const tb_header *header, int rank, int to) { init(c, header, rank, to, rank, to); }

void tb_shm_receiver(tb_channel *c, const tb_header *header, int rank, int from) {
    init(c, header, rank, from, from, rank);
}

static void put_stamp(tb_channel *c, uint64_t ns) { c->due[(c->sequence - 1) & c->slot_mask] = ns; }

static uint64_t get_stamp(tb_channel *c) { return c->due[(c->sequence - 1) & c->slot_mask]; }

static const tb_stamps stamps = {put_stamp, get_stamp};

static void lengthen(tb_channel *c, const tb_segment *segment, int from, int to, uint32_t slots) {
    tb_long_lane *lane = tb_segment_long_lane(segment, from, to);
    c->stamps = &stamps;
    c->heads = lane->heads[0];
    c->due = lane->due;
    c->consumed = &lane->consumed;
    c->slots = tb_segment_long_slots(segment, from, to);
    c->slot_mask = slots - 1;
}

void tb_shm_long_sender(tb_channel *c, const tb_segment *segment, int rank, int to, uint32_t slots) {
    tb_shm_sender(c, segment->header, rank, to);
    lengthen(c, segment, rank, to, slots);
}

void tb_shm_long_receiver(tb_channel *c, const tb_segment *segment, int rank, int from, uint32_t slots) {
    tb_shm_receiver(c, segment->header, rank, from);
    lengthen(c, segment, from, rank, slots);
}
