/* Facts about processes of this node: is a peer still there, how many cores may we use, dying with a parent. */
#ifndef TB_PROCESS_H
#define TB_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

int tb_process_watch(pid_t pid);         /* a descriptor that tells of its end, or -1 where there is none */
bool tb_process_gone(pid_t pid, int fd); /* true for a zombie too: it answers no frame */
int tb_cores_free(void);                 /* cores that this process may run on */
void tb_yield(void);

/* The signal that this process gets when the thread that started it ends; then exits if the parent has
 * already changed. 0, or an errno; ENOSYS where the system has no such thing (use the heartbeat thread). */
int tb_die_with_parent(pid_t parent, int signal);
int tb_set_timer_slack_ns(unsigned long ns); /* of the calling thread; 0 also where timers have no slack */

#endif
