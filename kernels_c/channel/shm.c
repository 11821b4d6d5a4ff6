#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

#define PAGE 4096u
#define BUDGET (32u << 20) /* bytes for all payload slots of a segment */
#define SLOT_MAX (32u << 10)
#define NAP_NS 200000

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t lanes_at(void) { return round_up(sizeof(tb_header), PAGE); }

static size_t slots_at(int size) { return round_up(lanes_at() + (size_t)size * size * sizeof(tb_lane), PAGE); }

uint32_t tb_segment_slot_bytes(int size) {
    uint32_t bytes = SLOT_MAX, channels = (uint32_t)(size > 1 ? size * (size - 1) : 1);
    while ((uint64_t)bytes * TB_SLOTS * channels > BUDGET)
        bytes /= 2;
    return bytes;
}

static size_t segment_bytes(int size, uint32_t slot_bytes) {
    return slots_at(size) + (size_t)size * (size - 1) * TB_SLOTS * slot_bytes;
}

size_t tb_segment_channel(int size, int from, int to) { return (size_t)from * (size - 1) + to - (to > from); }

tb_lane *tb_segment_lane(const tb_header *header, int from, int to) {
    return (tb_lane *)((uint8_t *)header + lanes_at()) + (size_t)from * header->size + to;
}

uint8_t *tb_segment_slots(const tb_header *header, int from, int to) {
    size_t index = tb_segment_channel((int)header->size, from, to);
    return (uint8_t *)header + slots_at((int)header->size) + index * TB_SLOTS * header->slot_bytes;
}

/* tmpfs kills with SIGBUS where it is full at first touch: the room is taken beforehand. */
static int reserve(int fd, size_t bytes, size_t long_bytes) {
    off_t whole = (off_t)(long_bytes ? tb_segment_long_at(bytes) + long_bytes : bytes);
    if (ftruncate(fd, whole) != 0)
        return errno;
#if defined(__linux__)
    return posix_fallocate(fd, 0, (off_t)bytes);
#else
    return 0;
#endif
}

static int map(tb_segment *segment, int fd, size_t bytes) {
    int flags = MAP_SHARED;
#if defined(MAP_POPULATE)
    flags |= MAP_POPULATE;
#endif
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED)
        return errno;
    segment->header = at;
    segment->bytes = bytes;
    segment->fd = fd;
    return 0;
}

static int initialise(tb_segment *segment, int fd, int size, bool lanes) {
    uint32_t slot_bytes = lanes ? tb_segment_slot_bytes(size) : 0;
    size_t bytes = segment_bytes(size, slot_bytes);
    int error = reserve(fd, bytes, lanes ? tb_segment_long_bytes(size, slot_bytes) : 0);
    if (!error)
        error = map(segment, fd, bytes);
    if (error)
        return error;
    tb_header *header = segment->header;
    header->version = TB_SEGMENT_VERSION;
    header->size = (uint32_t)size;
    header->bytes = bytes;
    header->slots = TB_SLOTS;
    header->slot_bytes = slot_bytes;
    atomic_store(&header->creator_pid, (int32_t)getpid());
    atomic_store_explicit(&header->magic, TB_SEGMENT_MAGIC, memory_order_release);
    segment->created = true;
    return 0;
}

/* The header says how much of it is to be mapped: behind that stand the long lanes. */
static int map_whole(tb_segment *segment, int fd, size_t there) {
    size_t bytes = segment->header->bytes;
    if (bytes < sizeof(tb_header) || bytes > there)
        return EINVAL;
    munmap(segment->header, segment->bytes);
    segment->header = NULL;
    return map(segment, fd, bytes);
}

static int await_initialised(tb_segment *segment, int fd, uint64_t deadline_ns) {
    struct stat facts;
    for (;;) {
        if (fstat(fd, &facts) != 0)
            return errno;
        if ((size_t)facts.st_size >= sizeof(tb_header))
            break;
        if (tb_now_ns() > deadline_ns)
            return ETIMEDOUT;
        tb_sleep_ns(NAP_NS);
    }
    int error = map(segment, fd, sizeof(tb_header));
    while (!error && atomic_load_explicit(&segment->header->magic, memory_order_acquire) != TB_SEGMENT_MAGIC) {
        if (tb_now_ns() > deadline_ns)
            error = ETIMEDOUT;
        tb_sleep_ns(NAP_NS);
    }
    return error ? error : map_whole(segment, fd, (size_t)facts.st_size);
}

static int check(const tb_segment *segment, int size) {
    const tb_header *header = segment->header;
    bool same = header->version == TB_SEGMENT_VERSION && header->bytes <= segment->bytes && header->slots == TB_SLOTS;
    return same && header->size <= TB_MAX_RANKS && (size == 0 || (int)header->size == size) ? 0 : EINVAL;
}

static int open_name(const char *name, bool may_create, bool *created, uint64_t deadline_ns) {
    for (;;) {
        int fd = may_create ? shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600) : -1;
        *created = fd >= 0;
        if (fd < 0 && (!may_create || errno == EEXIST))
            fd = shm_open(name, O_RDWR, 0600);
        /* Between the two calls the name may have been unlinked: begin again. */
        if (fd >= 0 || errno != ENOENT || tb_now_ns() > deadline_ns)
            return fd;
        tb_sleep_ns(NAP_NS);
    }
}

static int full_name(char full[TB_NAME_MAX], const char *name) {
    int n = snprintf(full, TB_NAME_MAX, "%s%s", name[0] == '/' ? "" : "/", name);
    return n < TB_NAME_MAX ? 0 : ENAMETOOLONG;
}

int tb_segment_open(tb_segment *segment, const char *name, int size, bool lanes, uint64_t deadline_ns) {
    bool created = false;
    memset(segment, 0, sizeof *segment);
    segment->fd = -1;
    if (full_name(segment->name, name) != 0)
        return ENAMETOOLONG;
    int fd = open_name(segment->name, size > 0, &created, deadline_ns);
    if (fd < 0)
        return errno;
    int error = created ? initialise(segment, fd, size, lanes) : await_initialised(segment, fd, deadline_ns);
    if (!error)
        error = check(segment, size);
    if (!error)
        return 0;
    if (created)
        shm_unlink(segment->name);
    segment->fd = fd;
    tb_segment_close(segment);
    return error;
}

int tb_segment_map_fd(tb_segment *segment, int fd) {
    memset(segment, 0, sizeof *segment);
    int error = await_initialised(segment, fd, tb_now_ns() + 1000000000u);
    if (!error)
        error = check(segment, 0);
    segment->fd = fd;
    if (error)
        tb_segment_close(segment);
    return error;
}

void tb_segment_unlink(tb_segment *segment) {
    uint32_t once = 0;
    if (segment->name[0] && atomic_compare_exchange_strong(&segment->header->unlinked, &once, 1))
        shm_unlink(segment->name);
}

void tb_segment_close(tb_segment *segment) {
    if (segment->lengthened)
        munmap(segment->lengthened, tb_segment_long_bytes((int)segment->header->size, segment->header->slot_bytes));
    if (segment->header)
        munmap(segment->header, segment->bytes);
    if (segment->fd >= 0)
        close(segment->fd);
    segment->header = NULL;
    segment->lengthened = NULL;
    segment->fd = -1;
}

int tb_segment_discard(const char *name) {
    char full[TB_NAME_MAX];
    if (full_name(full, name) != 0)
        return ENAMETOOLONG;
    return shm_unlink(full) == 0 || errno == ENOENT ? 0 : errno;
}
