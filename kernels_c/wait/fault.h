/* What went wrong in an operation: the status each core function returns, and the facts of the last fault. */
#ifndef TB_FAULT_H
#define TB_FAULT_H

#include <stdint.h>

enum tb_status {
    TB_OK = 0,
    TB_TIMEOUT,     /* a peer did not come before the deadline */
    TB_PEER_DIED,   /* the process of a peer is gone, or it closed the group */
    TB_SILENT,      /* a peer on another node has not been heard of: frozen, ended, or its cable is pulled */
    TB_CORRUPT,     /* a frame with a wrong header, or of another operation */
    TB_INTERRUPTED, /* the interrupt flag of this rank was set */
    TB_SIGNAL,      /* the tick hook asked to stop: the caller has its own error ready */
    TB_BROKEN,      /* an earlier operation failed: nothing was done */
    TB_INVALID      /* arguments that cannot be */
};

enum tb_kind {
    TB_NONE = 0, TB_JOIN, TB_BARRIER, TB_BROADCAST, TB_ALL_GATHER, TB_ALL_REDUCE, TB_SEND, TB_RECV, TB_PINGPONG,
    TB_WINDOW, TB_CLOCK, TB_FETCH, TB_KINDS
};

#define TB_NO_PEER 255

typedef struct tb_fault {
    int status, kind, peer; /* peer TB_NO_PEER: none in particular */
    int by;                 /* the rank that met it first */
    uint64_t sequence, elapsed_ns;
    uint32_t absent; /* bit r: rank r had not come */
    char got[200], wanted[120];
} tb_fault;

const char *tb_kind_name(int kind);

/* A fault in one word, for the segment's header, so that all ranks learn of it at once. */
uint64_t tb_fault_pack(const tb_fault *fault);
void tb_fault_unpack(uint64_t word, tb_fault *fault);

#endif
