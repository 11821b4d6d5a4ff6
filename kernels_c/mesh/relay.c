#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 32
#define BUFFER_BYTES (256u << 10)

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0
#endif

/* One direction. */
typedef struct flow {
    int from, to;
    bool ended; /* nothing more comes, and what came has gone on */
    size_t at, end;
    uint8_t *bytes;
} flow;

struct tb_relay {
    flow flow[2 * PAIRS];
    _Atomic int pairs; /* set up whole before it is counted */
    int wake[2];
    _Atomic int stop;
    pthread_t thread;
};

static bool again(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

static void pass(flow *f) {
    if (f->at == f->end) {
        ssize_t n = recv(f->from, f->bytes, BUFFER_BYTES, MSG_DONTWAIT);
        if (n < 0 && again())
            return;
        f->at = 0;
        f->end = n > 0 ? (size_t)n : 0;
        f->ended = n <= 0;
    }
    while (f->at < f->end) {
        ssize_t n = send(f->to, f->bytes + f->at, f->end - f->at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && again())
            return;
        if (n < 0)
            f->ended = true, f->at = f->end;
        else
            f->at += (size_t)n;
    }
    if (f->ended)
        shutdown(f->to, SHUT_WR), shutdown(f->from, SHUT_RD);
}

static int ask(const tb_relay *r, int pairs, struct pollfd *asks) {
    int n = 0;
    asks[n++] = (struct pollfd){.fd = r->wake[0], .events = POLLIN};
    for (int i = 0; i < 2 * pairs; i++) {
        const flow *f = &r->flow[i];
        if (!f->ended)
            asks[n++] = f->at < f->end ? (struct pollfd){.fd = f->to, .events = POLLOUT}
                                       : (struct pollfd){.fd = f->from, .events = POLLIN};
    }
    return n;
}

static void *run(void *context) {
    tb_relay *r = context;
    struct pollfd asks[2 * PAIRS + 1];
    char drained[64];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&r->stop)) {
        int pairs = atomic_load(&r->pairs), n = ask(r, pairs, asks);
        if (poll(asks, (nfds_t)n, 1000) > 0 && asks[0].revents)
            while (read(r->wake[0], drained, sizeof drained) == sizeof drained)
                continue;
        for (int i = 0; i < 2 * pairs; i++)
            if (!r->flow[i].ended)
                pass(&r->flow[i]);
    }
    return NULL;
}

tb_relay *tb_relay_new(void) {
    tb_relay *r = calloc(1, sizeof *r);
    if (!r || pipe(r->wake) != 0) {
        free(r);
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(r->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(r->wake[i], F_SETFL, O_NONBLOCK);
    }
    errno = pthread_create(&r->thread, NULL, run, r);
    if (errno == 0)
        return r;
    close(r->wake[0]), close(r->wake[1]);
    free(r);
    return NULL;
}

static void wake(tb_relay *r) {
    ssize_t unused = write(r->wake[1], "", 1);
    (void)unused;
}

static void make_quick(int fd) {
    int on = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int tb_relay_add(tb_relay *r, int one, int other) {
    int pairs = atomic_load(&r->pairs);
    uint8_t *bytes = pairs < PAIRS ? malloc(2 * BUFFER_BYTES) : NULL;
    if (!bytes)
        return pairs < PAIRS ? ENOMEM : EMFILE;
    make_quick(one);
    make_quick(other);
    r->flow[2 * pairs] = (flow){.from = one, .to = other, .bytes = bytes};
    r->flow[2 * pairs + 1] = (flow){.from = other, .to = one, .bytes = bytes + BUFFER_BYTES};
    atomic_store(&r->pairs, pairs + 1);
    wake(r);
    return 0;
}

int tb_relay_count(const tb_relay *r) { return atomic_load(&r->pairs); }

void tb_relay_free(tb_relay *r) {
    if (!r)
        return;
    atomic_store(&r->stop, 1);
    wake(r);
    pthread_join(r->thread, NULL);
    for (int i = 0; i < atomic_load(&r->pairs); i++) {
        close(r->flow[2 * i].from);
        close(r->flow[2 * i].to);
        free(r->flow[2 * i].bytes);
    }
    close(r->wake[0]), close(r->wake[1]);
    free(r);
}
