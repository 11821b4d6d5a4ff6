/* A thread that shows a supervisor that this process lives, and ends it when the supervisor does not.
 * It needs no lock of the interpreter, so a long hold of the GIL is not a death. */
#ifndef TB_HEARTBEAT_H
#define TB_HEARTBEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TB_BEAT_MAX 64
#define TB_ORPHAN_EXIT 113 /* exit code of a process whose supervisor is gone */

typedef struct tb_heart {
    int fd;       /* written each interval; -1: none */
    int watch_fd; /* its end-of-file is the supervisor's death; -1: none */
    uint64_t interval_ns, grace_ns;
    unsigned char message[TB_BEAT_MAX];
    size_t length;
} tb_heart;

/* 0, or an errno; EALREADY where one runs. */
int tb_heartbeat_start(const tb_heart *heart);
void tb_heartbeat_stop(void);
uint64_t tb_heartbeat_count(void);

#ifndef __cplusplus
/* Have the thread write the time there each interval (a control block's heartbeat_ns), or no longer. */
void tb_heartbeat_touch(_Atomic uint64_t *place, bool on);
#endif

#endif
