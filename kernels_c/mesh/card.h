/* The card of a rank: what its peers need to reach it. Little endian, with a version and a CRC; what comes from
 * another process is not trusted to be one. */
#ifndef TB_CARD_H
#define TB_CARD_H

#include <stddef.h>
#include <stdint.h>

#include "mesh.h"
#include "verbs.h"

#define TB_CARD_MAGIC 0x63626b74u /* "tbkc" */
#define TB_CARD_VERSION 1u

enum tb_card_parts { TB_CARD_VERBS = 1, TB_CARD_READY = 2 };

typedef struct tb_card {
    int rank, size;
    uint8_t salt[TB_TOKEN_BYTES];         /* this rank's part of the token */
    uint16_t port[TB_MESH_CABLES];        /* where this rank listens for the cable's other end; 0: it does not */
    uint8_t holds[TB_MESH_CABLES];        /* bits of enum tb_card_parts */
    tb_verbs_card verbs[TB_MESH_CABLES];  /* of cables with queue pairs that end here */
    tb_verbs_ready ready[TB_MESH_CABLES]; /* of those that are up, with receives posted */
} tb_card;

/* Bytes written, at most TB_CARD_MAX. */
size_t tb_card_write(const tb_card *card, int cables, uint8_t *out);
/* NULL, or what is wrong with it. */
const char *tb_card_read(tb_card *card, int cables, const uint8_t *data, size_t bytes);

#endif
