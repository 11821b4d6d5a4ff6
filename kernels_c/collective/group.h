/* A rank's handle on its group: channels to all peers, the operation it is in, its waiting, its counts. */
#ifndef TB_GROUP_H
#define TB_GROUP_H

#include "channel.h"
#include "fault.h"
#include "handle.h"
#include "shaped.h"
#include "shm.h"
#include "wait.h"

struct tb_mesh;

typedef struct tb_skew {
    int64_t offset_ns, origin_ns;
    double drift;
} tb_skew;

struct tb_group {
    tb_header *header;
    tb_control *own;
    int rank, size;
    uint32_t here;           /* bit r: rank r is on this node, and the segment is shared with it */
    uint32_t frame_bytes;    /* the longest payload that every channel of every rank takes; a multiple of 64 */
    uint32_t least_bytes;    /* a shorter frame costs as much: chunks of a pipeline are not cut below it */
    struct tb_mesh *mesh;    /* what leads to ranks on other nodes; NULL: all are here */
    struct tb_service *service; /* of its windows; NULL: it has none */
    tb_channel to[TB_MAX_RANKS], from[TB_MAX_RANKS];
    tb_shape *shapes;        /* of the channels of shaped links; NULL: there are none */
    uint64_t shaping;        /* digest of all shapes, set before the group is joined: all ranks must have the same */
    tb_waiting waiting;
    tb_hooks hooks;
    /* The operation in progress. */
    uint64_t what; /* 16 bits, compared by the receiver: operation, type, reduction, algorithm */
    uint64_t collectives, sequence, start_ns, deadline_ns, bytes;
    int kind, peer;
    bool blocked;
    tb_skew skew;          /* tests only: of the clock that exchanges read */
    uint32_t corrupt_next; /* tests only: damages this many frames to be sent */
    tb_count counts[TB_KINDS];
    tb_fault fault;
    int32_t pid[TB_MAX_RANKS];
    int watch[TB_MAX_RANKS];
    tb_segment segment;
};

/* Join under a name. On a fault (TB_TIMEOUT with the absent ranks, TB_INVALID with an errno in *error) the
 * name is unlinked and the group is empty. */
int tb_group_join(tb_group *group, const char *name, int rank, int size, uint64_t deadline_ns, int *error);
/* The same on a segment that is mapped already (threads of one process in tests). */
int tb_group_attach(tb_group *group, tb_header *header, int rank, uint64_t deadline_ns);
/* The ranks of one node, of a group over several: shared memory to those that are `here`, no channel yet to others. */
int tb_group_join_node(tb_group *group, const char *name, int rank, int size, uint32_t here, uint64_t deadline_ns,
                       int *error);
void tb_group_close(tb_group *group);

/* Around each operation. begin: TB_OK, or TB_BROKEN/TB_INTERRUPTED with the fault filled in. end: records the
 * counts, or the fault, and returns the status given. */
int tb_begin(tb_group *group, enum tb_kind kind, int peer, uint64_t bytes, unsigned detail, uint64_t timeout_ns);
int tb_end(tb_group *group, int status);

#endif
