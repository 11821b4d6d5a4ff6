/* The lanes of shaped links: at the end of the segment, sparse until both ends of a link take theirs. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm.h"

#define PAGE 16384u /* the largest page in use: a mapping may begin there on every system */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t lane_bytes(uint32_t slot_bytes) {
    return round_up(round_up(sizeof(tb_long_lane), TB_LINE) + (size_t)TB_LONG_SLOTS * slot_bytes, PAGE);
}

size_t tb_segment_long_at(size_t bytes) { return round_up(bytes, PAGE); }

size_t tb_segment_long_bytes(int size, uint32_t slot_bytes) {
    return (size_t)size * (size_t)(size - 1) * lane_bytes(slot_bytes);
}

static size_t lane_at(const tb_header *header, int from, int to) {
    return tb_segment_channel((int)header->size, from, to) * lane_bytes(header->slot_bytes);
}

int tb_segment_lengthen(tb_segment *segment) {
    const tb_header *header = segment->header;
    size_t bytes = tb_segment_long_bytes((int)header->size, header->slot_bytes);
    if (segment->lengthened || bytes == 0)
        return 0;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd,
                    (off_t)tb_segment_long_at(header->bytes));
    if (at == MAP_FAILED)
        return errno;
    segment->lengthened = at;
    return 0;
}

/* Taken beforehand: a full tmpfs would kill at first touch. */
int tb_segment_take_long(const tb_segment *segment, int from, int to) {
    const tb_header *header = segment->header;
#if defined(__linux__)
    off_t at = (off_t)(tb_segment_long_at(header->bytes) + lane_at(header, from, to));
    return posix_fallocate(segment->fd, at, (off_t)lane_bytes(header->slot_bytes));
#else
    return (void)header, (void)from, (void)to, 0;
#endif
}

tb_long_lane *tb_segment_long_lane(const tb_segment *segment, int from, int to) {
    return (tb_long_lane *)(segment->lengthened + lane_at(segment->header, from, to));
}

uint8_t *tb_segment_long_slots(const tb_segment *segment, int from, int to) {
    return (uint8_t *)tb_segment_long_lane(segment, from, to) + round_up(sizeof(tb_long_lane), TB_LINE);
}
