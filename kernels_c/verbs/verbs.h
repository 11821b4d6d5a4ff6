/* One end of one cable over RDMA verbs: UC queue pairs, SEND and RECV alone, by Apple's rules (technote TN3205).
 *
 * The order is: open, card_of; both ends swap cards; connect, ready_of; both swap these; start; sender and receiver;
 * close. What is swapped goes over the caller's own connection. Nothing here waits but close, and nothing is tried
 * again but what the log names: open and connect may block in a driver that is wedged, and a pulled cable may kill
 * the process, so all of it belongs in a process of its own. A port and its two channels serve one thread.
 *
 * All functions exist where <infiniband/verbs.h> does not: open then says what to install. */
#ifndef TB_VERBS_H
#define TB_VERBS_H

#include <stdint.h>

#include "channel.h"

enum tb_verbs_step {
    TB_VERBS_LOAD = 1, /* the library */
    TB_VERBS_LIST,
    TB_VERBS_OPEN,
    TB_VERBS_PORT,
    TB_VERBS_GID,
    TB_VERBS_PD,
    TB_VERBS_CQ,
    TB_VERBS_QP,
    TB_VERBS_INIT,
    TB_VERBS_DEPTH, /* how many work requests the queue pair really takes */
    TB_VERBS_REGISTER,
    TB_VERBS_CARD, /* what the peer says of itself */
    TB_VERBS_RTR,
    TB_VERBS_RTS,
    TB_VERBS_POST, /* the first receives */
    TB_VERBS_READY,
    TB_VERBS_STEPS
};

enum { TB_SMALL = 0, TB_LARGE = 1, TB_CLASSES = 2 };

typedef struct tb_verbs_ask {
    char device[32];       /* rdma_en2, rxe0 */
    int port;              /* 0: 1 */
    char address[46];      /* our own IPv4 on this cable; "": unknown */
    uint32_t large_frames; /* 4 KiB frames of a large slot, at most 4095; 0: 16; 1: none but 4 KiB slots (macOS 26.2) */
    uint32_t slots;        /* large ones a direction; 0: 16. Of the small there are four times as many */
    int rank, peer;
} tb_verbs_ask;

/* What the peer must know to connect. Little endian, no padding. */
typedef struct tb_verbs_card {
    uint32_t magic;
    uint16_t version, lid;
    uint8_t gid[16];
    uint32_t mtu; /* bytes */
    int32_t rank, peer;
    struct {
        uint32_t qpn, psn, frames, depth; /* frames of a slot, 0: no such queue pair; depth in slots */
    } queue[TB_CLASSES];
} tb_verbs_card;

/* What the peer must know to send, and that it may: it has come with all receives posted. */
typedef struct tb_verbs_ready {
    uint32_t magic, mtu;             /* bytes, as RTR took them */
    uint32_t posted[TB_CLASSES];     /* receives that the queue pair accepted */
    uint32_t sendable[TB_CLASSES];   /* slots that our own sends may occupy */
} tb_verbs_ready;

_Static_assert(sizeof(tb_verbs_card) == 68 && sizeof(tb_verbs_ready) == 24, "both travel as they stand in memory");

typedef struct tb_verbs_error {
    int step;        /* enum tb_verbs_step */
    int error;       /* errno, 0 where the call gave none */
    char words[240]; /* one line: device, peer, step, errno, cause, remedy, row of the failure table */
} tb_verbs_error;

typedef struct tb_verbs_port tb_verbs_port;

/* Each returns 0, or the step that failed with the error filled in. After a failure of connect or start the port
 * serves for its log and for close. */
int tb_verbs_open(tb_verbs_port **port, const tb_verbs_ask *ask, tb_verbs_error *error);
void tb_verbs_card_of(const tb_verbs_port *port, tb_verbs_card *card);
int tb_verbs_connect(tb_verbs_port *port, const tb_verbs_card *peer, tb_verbs_error *error);
void tb_verbs_ready_of(const tb_verbs_port *port, tb_verbs_ready *ready);
int tb_verbs_start(tb_verbs_port *port, const tb_verbs_ready *peer, tb_verbs_error *error);

void tb_verbs_sender(tb_channel *channel, tb_verbs_port *port);
void tb_verbs_receiver(tb_channel *channel, tb_verbs_port *port);

/* Waits for sends under way, then takes down in the order that is safe. 0, ETIMEDOUT where work requests were still
 * out at the deadline, or the errno of a queue pair that would not go: its memory then stays as it is. */
int tb_verbs_close(tb_verbs_port *port, uint64_t deadline_ns);

/* Which library, address, MTU, depths and fall-backs were taken; one line. */
const char *tb_verbs_log(const tb_verbs_port *port);

#define TB_VERBS_GIDS 8

typedef struct tb_verbs_device {
    char name[32];
    int error;         /* errno of what could not be asked; the rest is then 0 */
    const char *state; /* of the port: "ACTIVE", "DOWN", ... */
    int lid, mtu, max_qp;
    int gids; /* entries that are not zero; the first TB_VERBS_GIDS of them follow */
    struct {
        int index;
        uint8_t raw[16];
    } gid[TB_VERBS_GIDS];
} tb_verbs_device;

/* Calls `each` for every device, in the library's order. Opens each for a moment. */
int tb_verbs_devices(int port, void (*each)(void *context, const tb_verbs_device *device), void *context,
                     tb_verbs_error *error);

#endif
