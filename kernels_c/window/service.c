#include "service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"

#define IDLE_MS 1000
#define NAP_NS 200000

static int ask_polls(tb_service *s, struct pollfd *asks) {
    int n = 0;
    asks[n++] = (struct pollfd){.fd = s->wake[0], .events = POLLIN};
    for (int r = 0; r < s->size; r++) {
        tb_watch w = tb_stream_watch(&s->stream[r]);
        if (w.fd >= 0)
            asks[n++] = (struct pollfd){.fd = w.fd, .events = w.events};
    }
    return n;
}

static void await_news(tb_service *s, int limit_ms) {
    struct pollfd asks[TB_MAX_RANKS + 1];
    char drained[64];
    int n = ask_polls(s, asks);
    if (poll(asks, (nfds_t)n, limit_ms) > 0 && asks[0].revents)
        while (read(s->wake[0], drained, sizeof drained) == sizeof drained)
            continue;
}

static void *run(void *context) {
    tb_service *s = context;
    bool more = true;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&s->stop)) {
        await_news(s, more ? 0 : IDLE_MS);
        more = false;
        for (int r = 0; r < s->size; r++)
            more = tb_stream_pump(&s->stream[r], &s->exposures) || more;
    }
    return NULL;
}

static int open_wake(tb_service *s) {
    if (pipe(s->wake) != 0) {
        s->wake[0] = s->wake[1] = -1;
        return errno;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(s->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(s->wake[i], F_SETFL, O_NONBLOCK);
    }
    return 0;
}

int tb_service_start(tb_service *s, int rank, int size, const int fd[TB_MAX_RANKS]) {
    s->size = size;
    tb_exposures_init(&s->exposures);
    int error = open_wake(s);
    for (int r = 0; r < size; r++) {
        int failed = tb_stream_init(&s->stream[r], fd[r], rank, r);
        error = error ? error : failed;
    }
    if (!error)
        error = pthread_create(&s->thread, NULL, run, s);
    s->running = !error;
    return error;
}

void tb_service_wake(tb_service *s) {
    ssize_t unused = write(s->wake[1], "", 1); /* a full pipe wakes it as well */
    (void)unused;
}

/* Whoever waits for an answer is told that none will come, and has left before anything is taken away. */
void tb_service_free(tb_service *s) {
    if (!s)
        return;
    for (int r = 0; r < s->size; r++)
        tb_stream_break(&s->stream[r], &s->exposures, TB_BROKEN);
    while (atomic_load(&s->callers))
        tb_sleep_ns(NAP_NS);
    atomic_store(&s->stop, 1);
    tb_service_wake(s);
    if (s->running)
        pthread_join(s->thread, NULL);
    for (int r = 0; r < s->size; r++)
        tb_stream_end(&s->stream[r]);
    for (int i = 0; i < 2; i++)
        if (s->wake[i] >= 0)
            close(s->wake[i]);
    tb_exposures_end(&s->exposures);
    free(s);
}
