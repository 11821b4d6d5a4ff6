/* The segment that the ranks of a node share: header, one control block a rank of the group, the memory of the
 * channels between them. What it says of ranks on other nodes is written by the liveness thread (mesh/).
 *
 * Every rank opens the name with O_CREAT; the one that made it initialises it and publishes the magic.
 * Once all ranks are attached the name is unlinked, so that a crash leaves nothing behind. An observer
 * maps the same segment without being a rank. */
#ifndef TB_SHM_H
#define TB_SHM_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TB_MAX_RANKS 16
#define TB_LINE 64
#define TB_NAME_MAX 64
#define TB_SLOTS 8 /* frames in flight a directed channel; divides 2^32 */
#define TB_SEGMENT_MAGIC 0x74626b697431736eu
#define TB_SEGMENT_VERSION 3
#define TB_LONG_SLOTS 128 /* of a shaped link's lane: 4 MiB under way between two ranks */

/* LOST: of another node, and its connection is closed or silent. */
enum tb_state { TB_FREE = 0, TB_JOINING = 1, TB_ATTACHED = 2, TB_LEFT = 3, TB_LOST = 4 };

typedef struct tb_control {
    /* Written by its rank at each operation: sequence << 24 | done << 16 | peer << 8 | kind. */
    alignas(TB_LINE) _Atomic uint64_t operation;
    _Atomic uint64_t operation_start_ns;
    _Atomic uint64_t collectives; /* number of the collective that the rank has come to */
    _Atomic uint64_t heartbeat_ns;
    /* Read by its peers after each frame they send, so it stands apart from what changes often. */
    alignas(TB_LINE) _Atomic uint32_t sleeping; /* 1 + the rank it sleeps for; 0 awake */
    _Atomic uint32_t interrupt;
    _Atomic uint32_t state;
    _Atomic int32_t pid;
    _Atomic uint32_t loss; /* of a lost rank: TB_PEER_DIED or TB_SILENT */
    _Atomic uint64_t shaping; /* the digest of the shapes that it was given; all ranks must have the same */
    alignas(TB_LINE) _Atomic uint64_t bare; /* the line of the bare ping-pong loop */
} tb_control;

typedef struct tb_header {
    alignas(TB_LINE) _Atomic uint64_t magic;
    uint32_t version, size;
    uint64_t bytes;
    uint32_t slots, slot_bytes;
    _Atomic uint32_t attached, unlinked;
    _Atomic int32_t creator_pid;
    alignas(TB_LINE) _Atomic uint64_t broken; /* tb_break_pack() of the first fault; 0 whole */
    tb_control control[TB_MAX_RANKS];
} tb_header;

/* What one directed channel has in the segment: frame heads, the receiver's counter, payload slots. */
typedef struct tb_lane {
    alignas(TB_LINE) uint8_t heads[TB_SLOTS][TB_LINE];
    alignas(TB_LINE) _Atomic uint32_t consumed;
} tb_lane;

/* The same for a shaped link: a stamp a slot, and room for what is under way. These lanes stand behind the others
 * and have no memory until a shaped link asks for it. */
typedef struct tb_long_lane {
    alignas(TB_LINE) uint8_t heads[TB_LONG_SLOTS][TB_LINE];
    uint64_t due[TB_LONG_SLOTS];
    alignas(TB_LINE) _Atomic uint32_t consumed;
} tb_long_lane;

typedef struct tb_segment {
    tb_header *header;
    size_t bytes;
    uint8_t *lengthened; /* the long lanes, where they are mapped */
    int fd; /* stays open: another process reaches the unlinked segment through /proc/PID/fd/FD */
    bool created;
    char name[TB_NAME_MAX];
} tb_segment;

uint32_t tb_segment_slot_bytes(int size); /* of the lanes of a group of so many ranks */
tb_lane *tb_segment_lane(const tb_header *header, int from, int to);
uint8_t *tb_segment_slots(const tb_header *header, int from, int to);

/* Long lanes: map them all, then take the memory of single ones. 0 or an errno. */
int tb_segment_lengthen(tb_segment *segment);
int tb_segment_take_long(const tb_segment *segment, int from, int to);
tb_long_lane *tb_segment_long_lane(const tb_segment *segment, int from, int to);
uint8_t *tb_segment_long_slots(const tb_segment *segment, int from, int to);
size_t tb_segment_long_bytes(int size, uint32_t slot_bytes); /* of all long lanes */
size_t tb_segment_long_at(size_t bytes);                     /* where they begin, behind so many bytes */
size_t tb_segment_channel(int size, int from, int to);       /* the number of a directed channel */

/* 0, or an errno: EINVAL a segment of another size or version, ENOSPC no room in shared memory,
 * ETIMEDOUT the magic did not come, ENAMETOOLONG, or what shm_open or mmap gave. */
/* size 0: any, and the segment must be there already. Without lanes it has the control blocks alone. */
int tb_segment_open(tb_segment *segment, const char *name, int size, bool lanes, uint64_t deadline_ns);
int tb_segment_map_fd(tb_segment *segment, int fd);
void tb_segment_unlink(tb_segment *segment);
void tb_segment_close(tb_segment *segment);
int tb_segment_discard(const char *name);

#endif
