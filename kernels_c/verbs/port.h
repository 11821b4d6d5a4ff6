/* What the files of this room share: the pure parts always, the port and its library where verbs are there. */
#ifndef TB_PORT_H
#define TB_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "credit.h"
#include "verbs.h"

#if __has_include(<infiniband/verbs.h>) && !defined(TB_WITHOUT_VERBS)
#define TB_HAVE_VERBS 1
#include <infiniband/verbs.h>
#else
#define TB_HAVE_VERBS 0
#endif

/* failures.c: an error in one line. `detail` (may be NULL) stands in place of the table's cause. Returns the step. */
int tb_verbs_fail(tb_verbs_error *error, const tb_verbs_ask *ask, int step, int number, const char *detail, ...)
    __attribute__((format(printf, 5, 6)));
const char *tb_errno_name(int number);      /* "EINVAL"; "errno" for one that verbs never give */
const char *tb_completion_name(int status); /* "IBV_WC_LOC_LEN_ERR" */

/* gid.c */
typedef uint8_t tb_gid[16];
void tb_gid_text(char text[46], const uint8_t *gid); /* ::ffff:1.2.3.4 or eight groups */
/* The index of the IPv4-mapped entry that is `address`, or where that is "" of the only one. -1: none; -2: several.
 * The words then list what there is. */
int tb_gid_choose(const tb_gid *table, int entries, const char *address, char *words, size_t room);

#if TB_HAVE_VERBS

/* library.c: the exported symbols. Posting and polling are not among them: they go through context->ops. */
typedef struct tb_library {
    char path[256];
    struct ibv_device **(*get_device_list)(int *);
    void (*free_device_list)(struct ibv_device **);
    const char *(*get_device_name)(struct ibv_device *);
    struct ibv_context *(*open_device)(struct ibv_device *);
    int (*close_device)(struct ibv_context *);
    int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *);
    int (*dealloc_pd)(struct ibv_pd *);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
    int (*dereg_mr)(struct ibv_mr *);
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    int (*destroy_cq)(struct ibv_cq *);
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
    int (*destroy_qp)(struct ibv_qp *);
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
    int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
} tb_library;

/* Loaded once a process. NULL with the reason in words. */
const tb_library *tb_library_get(char *words, size_t room);

/* Receives that came, in order; a frame is complete once all its messages are here and its CRC is right. */
typedef struct tb_inbox {
    uint16_t *slot;                    /* indices of receive slots, `room` of them, a power of two */
    uint32_t room, taken, complete, arrived;
    uint32_t missing, left;            /* of the frame that is coming in: messages, bytes */
    uint32_t last;                     /* sequence of the newest complete frame */
} tb_inbox;

/* A queue pair with its part of both rings. */
typedef struct tb_queue {
    struct ibv_qp *qp;
    uint32_t psn, frames;           /* 4 KiB frames of a slot */
    uint32_t send_slots, recv_slots, send_depth; /* depth: messages that may be under way */
    uint8_t *send_at, *recv_at;
    uint32_t next;                  /* slot of the next frame to be sent */
    uint32_t sending, receiving;    /* work requests without completion */
    uint32_t posted;                /* receives accepted at the start */
    tb_inbox inbox;
} tb_queue;

typedef struct tb_region {
    uint8_t *at;
    size_t bytes;
    struct ibv_mr *mr;
} tb_region;

struct tb_verbs_port {
    tb_verbs_ask ask;
    const tb_library *lib;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    tb_queue queue[TB_CLASSES];
    tb_region send, receive;
    uint8_t *control, *staging; /* send slots of control frames; a frame whose slots do not lie in a row */
    union ibv_gid gid;
    int gid_index, max_work;
    uint64_t max_region;
    enum ibv_mtu mtu;
    uint16_t lid;
    tb_credits credits;
    int front;        /* class of the frame that is at the receiver's front */
    bool gathered;    /* it stands in staging */
    bool closing;
    tb_fault fault;   /* the first; its status TB_OK while there is none */
    size_t log_length;
    char log[1500];
};

/* device.c: opens the device, asks port and GIDs. */
int tb_device_open(tb_verbs_port *port, tb_verbs_error *error);

/* queue_pair.c: each 0 or the step that failed. */
int tb_queues_create(tb_verbs_port *port, tb_verbs_error *error); /* PD, CQ, queue pairs in INIT, registered rings */
int tb_queues_connect(tb_verbs_port *port, const tb_verbs_card *peer, tb_verbs_error *error); /* RTR, RTS, receives */
int tb_queues_destroy(tb_verbs_port *port); /* 0, or the errno of a queue pair that stays, and all under it */
void tb_queues_halt(tb_verbs_port *port);   /* to ERR: what is outstanding completes */

/* provider_verbs.c: messages out and in. What goes wrong stands in port->fault. */
int tb_post_receive(tb_verbs_port *port, int class, uint32_t slot); /* 0 or errno */
void tb_poll(tb_verbs_port *port);

/* arrival.c */
void tb_arrive(tb_verbs_port *port, int class, uint32_t slot, uint32_t bytes);
uint8_t *tb_arrived_slot(const tb_queue *queue, uint32_t index); /* memory of the index-th arrival */

void tb_port_note(tb_verbs_port *port, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The first fault stays; its words get the cable before them. */
void tb_port_break(tb_verbs_port *port, const char *wanted, const char *got, ...) __attribute__((format(printf, 3, 4)));

static inline uint32_t tb_slot_bytes(const tb_queue *q) { return q->frames * TB_FRAME_BYTES; }

#endif
#endif
