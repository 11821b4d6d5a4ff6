#include "process.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/event.h>
#endif

int tb_process_watch(pid_t pid) {
#if defined(__linux__) && defined(SYS_pidfd_open)
    return (int)syscall(SYS_pidfd_open, pid, 0);
#elif defined(__APPLE__)
    int queue = kqueue();
    struct kevent ask;
    EV_SET(&ask, pid, EVFILT_PROC, EV_ADD, NOTE_EXIT, 0, NULL);
    if (queue >= 0 && kevent(queue, &ask, 1, NULL, 0, NULL) == 0)
        return queue;
    if (queue >= 0)
        close(queue);
    return -1;
#else
    (void)pid;
    return -1;
#endif
}

#if defined(__linux__)
static bool is_zombie(pid_t pid) {
    char path[32], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return errno == ENOENT;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *end = strrchr(text, ')');
    return end && (end[2] == 'Z' || end[2] == 'X');
}
#else
static bool is_zombie(pid_t pid) {
    (void)pid;
    return false;
}
#endif

bool tb_process_gone(pid_t pid, int fd) {
    if (pid == getpid())
        return false;
    if (fd < 0)
        return (kill(pid, 0) != 0 && errno == ESRCH) || is_zombie(pid);
#if defined(__APPLE__)
    struct kevent told;
    struct timespec now = {0, 0};
    return kevent(fd, NULL, 0, &told, 1, &now) == 1 || (kill(pid, 0) != 0 && errno == ESRCH);
#else
    struct pollfd ask = {.fd = fd, .events = POLLIN};
    return poll(&ask, 1, 0) == 1;
#endif
}

int tb_cores_free(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

void tb_yield(void) { sched_yield(); }

int tb_die_with_parent(pid_t parent, int signal) {
#if defined(__linux__)
    if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0)
        return errno;
    /* The parent may have ended before the call above: then no signal will ever come. */
    if (getppid() != parent)
        _exit(128 + signal);
    return 0;
#else
    if (getppid() != parent)
        _exit(128 + signal);
    return ENOSYS;
#endif
}

int tb_set_timer_slack_ns(unsigned long ns) {
#if defined(__linux__)
    return prctl(PR_SET_TIMERSLACK, ns, 0, 0, 0) == 0 ? 0 : errno;
#else
    (void)ns;
    return 0;
#endif
}
