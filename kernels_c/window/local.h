/* Connections between the ranks of one node: sockets in a private folder, which is gone once they are up. */
#ifndef TB_LOCAL_H
#define TB_LOCAL_H

#include <stdint.h>

#include "hello.h"
#include "shm.h"

#define TB_FOLDER_MAX 40

/* What the others of the node need. */
typedef struct tb_local_card {
    uint8_t salt[TB_TOKEN_BYTES];
    char folder[TB_FOLDER_MAX]; /* "": this rank listens for nobody */
} tb_local_card;

typedef struct tb_local {
    int listener; /* -1: none */
    tb_local_card card;
} tb_local;

/* 0 or an errno. `listens`: a higher rank of the node is to come. */
int tb_local_open(tb_local *local, int listens);
/* fd[r] of the other ranks in `here`, -1 elsewhere. 0, or an errno with the rank that is to blame. */
int tb_local_meet(const tb_local *local, const tb_local_card *cards, int rank, int size, uint32_t here,
                  uint64_t deadline_ns, int fd[TB_MAX_RANKS], int *to_blame);
void tb_local_close(tb_local *local);

#endif
