/* How a rank waits for a channel: spinning, yielding, sleeping, by a policy that is a recorded factor. */
#ifndef TB_WAIT_H
#define TB_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct tb_group;
struct tb_channel;

enum tb_policy { TB_SPIN = 0, TB_YIELD, TB_FUTEX, TB_AUTO };

typedef struct tb_waiting {
    enum tb_policy policy;
    bool oversubscribed; /* more ranks on this node than cores they may use */
    uint64_t last_ns;    /* length of the last wait */
    uint32_t asleep;     /* waits for a stream, one after the other, that spinning did not end */
} tb_waiting;

/* Until `done` says so of the channel: TB_OK, or a status of fault.h with the group's fault filled in. Frames of
 * the group's other channels are moved meanwhile. */
int tb_wait(struct tb_group *group, struct tb_channel *channel, bool (*done)(struct tb_channel *));

#endif
