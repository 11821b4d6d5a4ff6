/* A group whose ranks stand on several nodes: what leads from one to another, and how it comes up.
 *
 *   tb_mesh_open     listeners on the addresses that the cabling names, verbs devices; then the card is there
 *   (all-gather)     the control plane gives every rank the cards of all: no port is open for it
 *   tb_mesh_connect  authenticated connections, queue pairs to RTS, receives posted, liveness, channels
 *   (all-gather)     the second card: how many receives each end has posted; nothing is sent before it
 *   tb_mesh_start    the credits; then the group is formed
 *
 * Each card holds random bytes; the token by which connections are told from strangers' is made of those of all
 * cards, so that it is fresh and known to nobody who was not in the exchange. All ranks hold the same cabling. A mesh that failed is closed; it is never tried again in place. */
#ifndef TB_MESH_H
#define TB_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "handle.h"

#define TB_TOKEN_BYTES 32
#define TB_MESH_CABLES 64 /* of the whole mesh: 4 nodes, 6 pairs, several cables a pair */
#define TB_NODE_MAX 48
#define TB_DEVICE_MAX 32
#define TB_ADDRESS_MAX 46
#define TB_CARD_MAX 16384

typedef struct tb_mesh tb_mesh;

enum tb_by { TB_BY_TCP = 0, TB_BY_VERBS, TB_BY_RELAY };

/* One end of a cable. The address is the one that this end's node has on it. */
typedef struct tb_cable_end {
    int rank, port;
    char device[TB_DEVICE_MAX], address[TB_ADDRESS_MAX];
} tb_cable_end;

typedef struct tb_cable {
    enum tb_by by;
    int via; /* relay: the rank that passes it on */
    tb_cable_end end[2]; /* the lower rank first */
} tb_cable;

typedef struct tb_cabling {
    int rank, size, cables;
    char node[16][TB_NODE_MAX]; /* ranks with the same node share memory */
    tb_cable cable[TB_MESH_CABLES];
    uint64_t silence_ns;           /* a rank not heard of for so long is lost */
    uint32_t large_frames;         /* verbs: 4 KiB frames of a large slot; 0 the default, 1 macOS 26.2 */
} tb_cabling;

/* What went wrong in coming up: the step, the peer (TB_NO_PEER none), an errno or 0, the rule and what was got. */
typedef struct tb_mesh_error {
    int peer, error;
    char step[24], rule[300], got[200];
} tb_mesh_error;

/* Fills the error in and returns -1. */
int tb_mesh_fail(tb_mesh_error *error, int peer, const char *step, int number, const char *rule, const char *got);

/* NULL with the error filled in. */
tb_mesh *tb_mesh_open(const tb_cabling *cabling, tb_mesh_error *error);
/* The first card; once connected, the second. */
const uint8_t *tb_mesh_card(const tb_mesh *mesh, size_t *bytes);
/* cards[r] of bytes[r]; own included. 0, or -1 with the error filled in. */
int tb_mesh_connect(tb_mesh *mesh, const uint8_t *const *cards, const size_t *bytes, uint64_t deadline_ns,
                    tb_mesh_error *error);
int tb_mesh_start(tb_mesh *mesh, const uint8_t *const *cards, const size_t *bytes, tb_mesh_error *error);
/* Leaves in order: the others learn that it was no death. */
void tb_mesh_free(tb_mesh *mesh);

/* Forms the group on a connected mesh, which then belongs to it. As tb_handle_join. */
tb_group *tb_mesh_group(tb_mesh *mesh, const struct tb_shaping *shaping, uint64_t timeout_ns, tb_hooks hooks,
                        int *status, int *error);

/* The connection for reads of a peer's windows, which is the caller's from now on; -1: none, or taken before. */
int tb_mesh_take_read(tb_mesh *mesh, int peer);
/* A rank between passes the frames of this peer on. */
bool tb_mesh_relays(const tb_mesh *mesh, int peer);

/* The other nodes are to learn of a fault or of an interrupt now. */
void tb_mesh_tell(tb_mesh *mesh);

/* " on mac2, over mac1:rdma_en2 to mac2:rdma_en1": what names a peer as rank `by` sees it. */
void tb_mesh_words(const tb_mesh *mesh, int by, int peer, char *text, size_t room);

#endif
