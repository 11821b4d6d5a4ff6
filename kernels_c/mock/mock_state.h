/* What the files of the mock share: rules and calls, the cabling, the shared segment, and what stands behind the
 * verbs handles. */
#ifndef TBMOCK_STATE_H
#define TBMOCK_STATE_H

/* Headers differ in the type of its last argument: theirs is declared under a name that nobody defines. */
#define ibv_query_port ibv_query_port_of_the_header
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Newer headers lay macros over these two names; what is exported is the plain function. */
#undef ibv_query_port
#undef ibv_reg_mr

#define TBMOCK_OFF INT64_MAX /* a limit that is lifted */

enum { CREDITS_HOLD, CREDITS_DROP };
enum { FLAGS_ANY, FLAGS_LOCAL, FLAGS_ALL };
enum { ACCESS_ANY, ACCESS_ZERO, ACCESS_ALL };
enum { MTU_ANY, MTU_1024, MTU_4096 };
enum { GIDS_APPLE, GIDS_IPV4_AT_2, GIDS_FE80, GIDS_UUID, GIDS_SEVERAL };

typedef struct tbmock_rules {
    int64_t frames, credits, port_frames, queue_frames, depth, recv_depth;
    int64_t max_qp, max_qp_says, max_pd, max_cq, max_mr, max_mr_size, max_msg, page;
    int64_t early_recv, qp_types, opcodes, max_sge, max_inline;
    int64_t mr_flags, init_access, mtu, gids, rtr_gid, late_mr;
    int64_t alias, panic, wedge, leak, ring;
} tbmock_rules;

extern tbmock_rules tbmock_rule;

/* 0, or EINVAL after one line on standard error. NULL is Apple. */
int tbmock_read_rules(const char *text);
int tbmock_say(const char *what, const char *subject, const char *remedy); /* that line; returns EINVAL */
char *tbmock_trim(char *text);

enum tbmock_call {
    CALL_LIST, CALL_OPEN, CALL_QUERY_DEVICE, CALL_QUERY_PORT, CALL_QUERY_GID, CALL_ALLOC_PD, CALL_REG_MR,
    CALL_CREATE_CQ, CALL_CREATE_QP, CALL_INIT, CALL_RTR, CALL_RTS, CALL_MODIFY, CALL_QUERY_QP, CALL_SEND,
    CALL_RECV, CALL_POLL, CALL_DESTROY_QP, CALL_DEREG_MR, CALL_DESTROY_CQ, CALL_DEALLOC_PD, CALL_CLOSE, CALLS
};

enum { MARK_LOSE = 1, MARK_CORRUPT = 2 };

int tbmock_read_faults(const char *text);

/* Counts a call on a device of this process (index, or -1) and lets due faults fire: 0, or the errno that the call
 * must fail with. `mark` (may be NULL) gets what happens to the message of a post_send. */
int tbmock_enter(enum tbmock_call call, int device, unsigned *mark);

#define TBMOCK_FRAME 4096u
#define TBMOCK_LINE 64u
enum { MAX_DEVICES = 64, MAX_PROCESSES = 64, MAX_GIDS = 4, MAX_SGE = 4, MAX_INLINE = 64, MAX_WRS = 16384 };

typedef struct tbmock_end {
    char node[32], name[32];
    uint8_t ipv4[4];
    int peer; /* index of the device at the other end of the cable; -1: no cable */
} tbmock_end;

typedef struct tbmock_cabling {
    char name[32], node[32]; /* of the namespace; of this process */
    int devices;
    tbmock_end end[MAX_DEVICES];
} tbmock_cabling;

extern tbmock_cabling tbmock_cables;

int tbmock_read_cabling(const char *text);
uint64_t tbmock_cabling_hash(void);
int tbmock_gids(int device, union ibv_gid gids[MAX_GIDS]); /* number of entries */
int tbmock_lid(int device);
bool tbmock_gid_is_ipv4(const union ibv_gid *gid);

/* What one process holds of one device; the limits are sums over the processes. */
typedef struct tbmock_use {
    _Atomic int32_t qps, pds, cqs, mrs, send_frames, recv_frames;
} tbmock_use;

typedef struct tbmock_process {
    alignas(TBMOCK_LINE) _Atomic int32_t pid; /* 0: free */
    tbmock_use use[MAX_DEVICES];
} tbmock_process;

typedef struct tbmock_port {
    alignas(TBMOCK_LINE) _Atomic uint32_t next_qpn, failed_rtr, wedged, down, pulled;
} tbmock_port;

typedef struct tbmock_segment {
    uint64_t magic, cabling;
    _Atomic int32_t processes; /* slots ever used */
    tbmock_port port[MAX_DEVICES];
    tbmock_process process[MAX_PROCESSES];
} tbmock_segment;

/* The wire into a queue pair: its owner reads, the queue pair that it is connected to writes. */
typedef struct tbmock_mailbox {
    alignas(TBMOCK_LINE) _Atomic uint32_t state, source_device, source_qpn, psn;
    uint64_t ring_bytes;
    alignas(TBMOCK_LINE) _Atomic uint64_t posted; /* receives ever posted */
    alignas(TBMOCK_LINE) _Atomic uint64_t head;   /* bytes ever written to the ring */
    alignas(TBMOCK_LINE) _Atomic uint64_t tail;   /* and read from it */
    uint32_t lengths[MAX_WRS];                    /* bytes of posted receive i at i % MAX_WRS */
    alignas(TBMOCK_LINE) uint8_t ring[];
} tbmock_mailbox;

extern tbmock_segment *tbmock_shared;
extern tbmock_process *tbmock_self;

int tbmock_attach(void);
tbmock_mailbox *tbmock_mailbox_create(int device, uint32_t qpn);
tbmock_mailbox *tbmock_mailbox_open(int device, uint32_t qpn);
void tbmock_mailbox_close(tbmock_mailbox *box);
void tbmock_mailbox_remove(int device, uint32_t qpn);

/* Adds to a count that this process holds of the device, unless the sum over all passes the limit. */
bool tbmock_take(int device, size_t field, int32_t amount, int64_t limit);
void tbmock_give(int device, size_t field, int32_t amount);
#define TAKE(device, field, amount, limit) tbmock_take(device, offsetof(tbmock_use, field), amount, limit)
#define GIVE(device, field, amount) tbmock_give(device, offsetof(tbmock_use, field), amount)

struct tbmock_qp;

typedef struct tbmock_mr {
    struct ibv_mr ibv;
    uint64_t serial; /* order of registration in its context */
    uint32_t key;    /* what the program was given; it may write into its handle */
    int outstanding; /* work requests that may still touch it */
} tbmock_mr;

typedef struct tbmock_context {
    struct ibv_context ibv; /* first: handles are these pointers */
    int device;
    pthread_mutex_t lock; /* of everything below and of the queues of its queue pairs */
    struct tbmock_qp *qps;
    tbmock_mr **mrs;
    int mr_slots, pds, cqs;
    uint64_t serial;
    struct tbmock_context *next;
} tbmock_context;

typedef struct tbmock_pd {
    struct ibv_pd ibv;
    int users;
} tbmock_pd;

typedef struct tbmock_cq {
    struct ibv_cq ibv;
    int users, overrun;
    uint32_t first, count, room;
    struct ibv_wc entries[];
} tbmock_cq;

typedef struct tbmock_wr {
    uint64_t id;
    uint32_t bytes, frames, imm;
    enum ibv_wc_status status; /* known when it was posted */
    enum ibv_wr_opcode opcode;
    unsigned mark;
    bool signaled;
    int pieces;
    struct ibv_sge piece[MAX_SGE];
    tbmock_mr *mr[MAX_SGE];
    uint8_t data[MAX_INLINE];
} tbmock_wr;

/* Work requests in order; frames is what they occupy. */
typedef struct tbmock_queue {
    tbmock_wr *wrs;
    uint32_t room, first, count, depth, frames;
    bool started; /* the first one is under way, `done` bytes of it */
    uint32_t done;
} tbmock_queue;

typedef struct tbmock_qp {
    struct ibv_qp ibv;
    struct ibv_qp_cap cap;
    struct ibv_qp_attr attr;
    bool signal_all;
    int device;
    uint64_t mapped; /* serial of the last region that RTR mapped */
    uint64_t taken;  /* receives of the peer that were used up */
    tbmock_queue sends, receives;
    tbmock_mailbox *inbox, *outbox;
    struct {
        uint32_t bytes, imm, kind;
        bool with_imm;
    } arriving;
    struct tbmock_qp *next;
} tbmock_qp;

static inline uint32_t tbmock_frames(uint32_t bytes) {
    return bytes == 0 ? 1 : (uint32_t)(((uint64_t)bytes + TBMOCK_FRAME - 1) / TBMOCK_FRAME);
}

static inline tbmock_context *context_of(struct ibv_context *handle) { return (tbmock_context *)handle; }

/* mock_wire.c: moves what can move now, without waiting; the lock is held. True if anything moved. */
bool tbmock_progress(tbmock_context *context);
bool tbmock_progress_qp(tbmock_qp *qp);
void tbmock_flush(tbmock_qp *qp); /* both queues complete with WR_FLUSH_ERR */
void tbmock_forget(tbmock_qp *qp); /* both queues end without a completion */
void tbmock_complete(tbmock_qp *qp, bool send, enum ibv_wc_status status);

/* mock_post.c */
int tbmock_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int tbmock_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int tbmock_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
void tbmock_pump_add(tbmock_context *context);
void tbmock_pump_remove(tbmock_context *context);

#endif
