/* Channels to other nodes need help: whoever waits for one moves the frames of all. */
#ifndef TB_PROGRESS_H
#define TB_PROGRESS_H

#include "channel.h"

/* Moves what can be moved; TB_OK, or the status of a channel that failed, with the group's fault filled in. That a
 * connection ended matters for the awaited rank alone: others may have left in order. */
int tb_progress(struct tb_group *group, int awaited);
/* Until the watched thing or any connection has something, at most `ns`; may return early. */
void tb_sleep_on_links(struct tb_group *group, tb_watch watch, uint64_t ns);

#endif
