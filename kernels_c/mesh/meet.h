/* The connections of a mesh come up: each rank dials the lower ones and is dialled by the higher. */
#ifndef TB_MEET_H
#define TB_MEET_H

#include "card.h"
#include "hello.h"
#include "relay.h"

typedef struct tb_meeting {
    const tb_cabling *cabling;
    const tb_card *cards;           /* by rank */
    const uint8_t *token;
    int listener[TB_MESH_CABLES];   /* of cables that end here; -1 elsewhere */
    int fd[TB_MESH_CABLES][TB_PURPOSES]; /* what came up; -1 */
    tb_relay *relay;
    int refused; /* connections that did not know the token */
    uint64_t deadline_ns;
    tb_mesh_error *error;
} tb_meeting;

/* Which connections a cable has between its two ends. */
bool tb_meet_wants(const tb_cabling *cabling, int cable, enum tb_purpose purpose);
/* The end of a cable at a rank: 0, 1, or -1. */
int tb_end_of(const tb_cable *cable, int rank);
/* The direct cable between two ranks, or -1. */
int tb_direct(const tb_cabling *cabling, int a, int b);
/* 0, or -1 with the error filled in; what came up until then stays in fd. */
int tb_meet(tb_meeting *meeting);

#endif
