/* Timing loops that keep every raw sample. Both ranks call; the lower one begins. */
#ifndef TB_PINGPONG_H
#define TB_PINGPONG_H

#include <stddef.h>
#include <stdint.h>

#include "handle.h"

/* one_way_us[i]: half of the i-th round trip as this rank saw it, in microseconds. */
int tb_pingpong(tb_group *group, int peer, size_t bytes, size_t iterations, double *one_way_us, uint64_t timeout_ns);
/* The same over one shared cache line without frames, credits or deadline: the bar for the one above. */
int tb_bare_pingpong(tb_group *group, int peer, size_t iterations, double *one_way_us, uint64_t timeout_ns);
/* The lower rank sends `window` messages of `bytes`, the other answers with an empty frame: us a window. */
int tb_window(tb_group *group, int peer, size_t bytes, size_t window, size_t iterations, double *window_us,
              uint64_t timeout_ns);

/* Exchanges of clock readings, `pause_ns` apart, raw: stamps[4 * i] and on, in ns, say when the lower rank sent, the
 * other received, the other answered, the lower received, each by its own clock. Both ranks get all of them. */
int tb_clock(tb_group *group, int peer, size_t exchanges, uint64_t pause_ns, int64_t *stamps, uint64_t timeout_ns);
/* Tests only: in exchanges the clock of this rank shows t + offset + drift * (t - origin) where it is t. */
void tb_testing_skew(tb_group *group, int64_t offset_ns, int64_t origin_ns, double drift);

#endif
