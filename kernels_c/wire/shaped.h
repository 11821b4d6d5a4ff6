/* Shaped links: latency and bandwidth of a link profile, enforced against the monotonic clock of one machine.
 *
 * A frame of n bytes that is committed at t leaves when the link is free, fills it for n / bandwidth, and is ready at
 * the receiver one latency later: max(t, free) + n / bandwidth + latency. The sender stamps that moment on the frame;
 * each direction of a link is one serial line. The receiver keeps the frame in its slot until then, so that credits
 * come back as late as they would. Two processes of one machine share the clock, so a stamp means the same to both. */
#ifndef TB_SHAPED_H
#define TB_SHAPED_H

#include "channel.h"
#include "shaping.h"

/* One direction of a link, as the channel's end has it. */
typedef struct tb_shape {
    tb_provider face;         /* the channel's provider: that of `inner`, but for what the shape changes */
    const tb_provider *inner;
    uint64_t latency_ns;
    double ns_per_byte;
    uint64_t free_ns;         /* sender: when the last frame will have left */
    double part_ns;           /* and the part of a nanosecond beyond */
    uint64_t due_ns;          /* receiver: of the frame that is there, until it is released; 0 none, or none yet */
} tb_shape;

/* Shapes the links of a group that has just formed. 0; ENOTSUP where a link's frames cannot carry the stamp; ENOMEM,
 * ENOSPC. */
int tb_shape_links(struct tb_group *group, const tb_shaping *shaping);
/* Of `bytes` committed at `now_ns`: when the frame is due. Moves the link's clock on. */
uint64_t tb_shape_due(tb_shape *shape, uint64_t now_ns, uint32_t bytes);

#endif
