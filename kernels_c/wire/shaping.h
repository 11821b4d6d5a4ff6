/* What a rank is told of the shapes of its group's links. */
#ifndef TB_SHAPING_H
#define TB_SHAPING_H

#include <stdint.h>

#define TB_SHAPING_RANKS 16

typedef struct tb_shaping {
    uint64_t digest; /* over all shaped links of the group, the same on every rank; 0: no link is shaped */
    uint32_t links;  /* bit r: the link to rank r is */
    uint64_t latency_ns[TB_SHAPING_RANKS];
    double ns_per_byte[TB_SHAPING_RANKS];
} tb_shaping;

/* Tells `rank` of one link of the group, own or not. All ranks are told of the same links in the same order. */
void tb_shaping_add(tb_shaping *shaping, int rank, int low, int high, uint64_t latency_ns, double ns_per_byte);

#endif
