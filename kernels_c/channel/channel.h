/* A framed, directed channel between two ranks, over a provider.
 *
 * A frame has a 16-byte head: sequence (32 bit), magic (16), what (16: operation, type, reduction), length (32),
 * tag (32: the number of the collective). The receiver knows all of it beforehand and compares, so frames that
 * are damaged, lost, or of another call are found at once. Credits are ours: a sender goes on while the receiver
 * has room for the frame. Each wait ends at the deadline of the group's current operation. */
#ifndef TB_CHANNEL_H
#define TB_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "shm.h"

struct tb_group;
typedef struct tb_channel tb_channel;

typedef struct tb_head {
    uint64_t identity; /* sequence | magic << 32 | what << 48 */
    uint64_t extent;   /* length | tag << 32 */
} tb_head;

#define TB_FRAME_MAGIC 0x7b1cu

typedef struct tb_watch {
    _Atomic uint32_t *word; /* changes when the channel becomes ready; NULL: look at fd */
    uint32_t old;
    int fd; /* to be polled for `events`; -1: the provider has neither, nap instead */
    short events;
} tb_watch;

/* One way of moving frames. An end is a sender or a receiver, never both; c->length is that of the frame which
 * is being put in or waited for, and both ends know it. What one call may not fail at is found by progress. */
typedef struct tb_provider {
    const char *name;
    bool (*ready)(tb_channel *);                       /* sender: there is a credit; receiver: there is a frame */
    uint8_t *(*payload)(tb_channel *, uint32_t length); /* of the frame to be sent, or of the one that is there */
    tb_head (*head)(tb_channel *);                     /* receiver, when ready */
    void (*commit)(tb_channel *, tb_head);             /* sender: hands the frame over */
    void (*release)(tb_channel *);                     /* receiver: gives the credit back */
    tb_watch (*watch)(tb_channel *);
    /* NULL where frames travel by themselves and cannot be lost (shm). */
    int (*progress)(tb_channel *, tb_fault *); /* moves what can be moved; TB_OK, or a status with the words filled in */
    bool (*flushed)(tb_channel *);             /* sender: nothing is left that only progress would move */
} tb_provider;

/* Of a provider whose frames can carry a moment of the monotonic clock beside their head. */
typedef struct tb_stamps {
    void (*put)(tb_channel *, uint64_t ns); /* sender, before the frame is committed */
    uint64_t (*get)(tb_channel *);          /* receiver, when ready; 0: none was put */
} tb_stamps;

struct tb_channel {
    const tb_provider *provider;
    const tb_stamps *stamps; /* NULL: frames carry none */
    struct tb_shape *shape;  /* of a shaped link (wire/shaped.h); NULL: frames are ready as soon as they are there */
    uint8_t *heads, *slots;
    _Atomic uint32_t *consumed;
    _Atomic uint32_t *peer_sleeping; /* the peer's word: 1 + the rank that it sleeps for */
    void *state;                     /* of a provider that needs more than the above */
    uint32_t sequence;               /* of the next frame; the first is 1 */
    uint32_t credit_from;            /* sender: the receiver's counter when last read */
    uint32_t slot_bytes;             /* the longest payload of a frame */
    uint32_t slot_mask;              /* shm: slots of the lane, a power of two, minus 1 */
    uint64_t *due;                   /* shm: stamps by slot, of a long lane */
    uint32_t length;                 /* payload of the frame in question */
    int rank, peer;
};

void tb_shm_sender(tb_channel *channel, const tb_header *header, int rank, int to);
void tb_shm_receiver(tb_channel *channel, const tb_header *header, int rank, int from);
/* The same over a long lane, of which `slots` are used: a power of two, the same at both ends. */
void tb_shm_long_sender(tb_channel *channel, const tb_segment *segment, int rank, int to, uint32_t slots);
void tb_shm_long_receiver(tb_channel *channel, const tb_segment *segment, int rank, int from, uint32_t slots);

/* Zero-copy halves: a place for `length` <= slot bytes, then commit; a frame of that length, then release. */
int tb_send_start(struct tb_group *group, int to, uint32_t length, uint8_t **payload);
void tb_send_commit(struct tb_group *group, int to, uint32_t length);
int tb_recv_start(struct tb_group *group, int from, uint32_t length, const uint8_t **payload);
void tb_recv_release(struct tb_group *group, int from);

/* Any number of bytes, cut into frames; 0 bytes are one empty frame. */
int tb_send_bytes(struct tb_group *group, int to, const void *source, size_t bytes);
int tb_recv_bytes(struct tb_group *group, int from, void *target, size_t bytes);

#endif
