/* Several cables between one pair of ranks: the frames of a channel take them in turn, so both ends know on which
 * cable the next one travels, and order is kept. */
#ifndef TB_BUNDLE_H
#define TB_BUNDLE_H

#include "channel.h"

#define TB_BUNDLE_MAX 8

typedef struct tb_bundle {
    int count;
    tb_channel part[TB_BUNDLE_MAX]; /* one end on each cable, in the order of the cabling */
} tb_bundle;

/* The channel end over the bundle's parts, which are all senders or all receivers. */
void tb_bundle_end(tb_channel *channel, tb_bundle *bundle, int rank, int peer);

#endif
