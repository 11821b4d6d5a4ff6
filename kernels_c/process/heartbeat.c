#include "heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "process.h"

#define PLACES 32
#if defined(POLLRDHUP)
#define HANGUP POLLRDHUP
#else
#define HANGUP 0
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t thread;
static bool running;
static int stop_pipe[2] = {-1, -1};
static tb_heart heart;
static _Atomic uint64_t beats;
static _Atomic uint64_t *places[PLACES];

void tb_heartbeat_touch(_Atomic uint64_t *place, bool on) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PLACES; i++)
        if (places[i] == (on ? NULL : place)) {
            places[i] = on ? place : NULL;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static void touch_all(void) {
    uint64_t now = tb_now_ns();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PLACES; i++)
        if (places[i])
            atomic_store_explicit(places[i], now, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

/* False only where the other end is gone. A full pipe is a slow supervisor: the beat is left out. */
static bool beat(void) {
    struct pollfd room = {.fd = heart.fd, .events = POLLOUT};
    if (heart.fd < 0 || (poll(&room, 1, 0) == 1 && !(room.revents & (POLLOUT | POLLERR | POLLHUP))))
        return true;
    if (!room.revents)
        return true;
    ssize_t n = write(heart.fd, heart.message, heart.length);
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
        return false;
    atomic_fetch_add(&beats, 1);
    return true;
}

/* For systems whose poll does not tell of a half-closed socket; leaves data for its reader. */
static bool at_end(int fd) {
    char byte;
    return fd >= 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void orphaned(void) {
    tb_sleep_ns(heart.grace_ns);
    _exit(TB_ORPHAN_EXIT);
}

static void *run(void *unused) {
    (void)unused;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    tb_set_timer_slack_ns(1);
    struct pollfd asks[2] = {{.fd = stop_pipe[0], .events = POLLIN}, {.fd = heart.watch_fd, .events = HANGUP}};
    for (;;) {
        touch_all();
        if (!beat())
            orphaned();
        int n = poll(asks, 2, (int)(heart.interval_ns / 1000000u) > 0 ? (int)(heart.interval_ns / 1000000u) : 1);
        if (n > 0 && asks[0].revents)
            return NULL;
        if ((n > 0 && asks[1].revents & (POLLHUP | POLLERR | HANGUP)) || at_end(heart.watch_fd))
            orphaned();
    }
}

int tb_heartbeat_start(const tb_heart *wanted) {
    if (running)
        return EALREADY;
    if (pipe(stop_pipe) != 0)
        return errno;
    for (int i = 0; i < 2; i++)
        fcntl(stop_pipe[i], F_SETFD, FD_CLOEXEC);
    heart = *wanted;
    int error = pthread_create(&thread, NULL, run, NULL);
    running = error == 0;
    if (error)
        close(stop_pipe[0]), close(stop_pipe[1]);
    return error;
}

void tb_heartbeat_stop(void) {
    if (!running)
        return;
    close(stop_pipe[1]);
    pthread_join(thread, NULL);
    close(stop_pipe[0]);
    running = false;
}

uint64_t tb_heartbeat_count(void) { return atomic_load(&beats); }
