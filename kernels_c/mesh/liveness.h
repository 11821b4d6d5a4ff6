/* A thread that keeps this node's board of the group true: what ranks of other nodes say of themselves, that they
 * are still heard of, a fault that any of them met. It needs no lock of the interpreter. */
#ifndef TB_LIVENESS_H
#define TB_LIVENESS_H

#include <stdint.h>

#include "shm.h"

typedef struct tb_liveness tb_liveness;

/* fd[r] >= 0: a connection to rank r of another node, taken over. NULL with errno. */
tb_liveness *tb_liveness_start(tb_header *header, int rank, const int fd[TB_MAX_RANKS], uint64_t silence_ns);
/* Beat now: the board has something that the others do not know. */
void tb_liveness_tell(tb_liveness *liveness);
/* Says goodbye, waits a moment for it to be heard, ends the thread. */
void tb_liveness_stop(tb_liveness *liveness);

#endif
