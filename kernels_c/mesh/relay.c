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

#include "clock.h"

#define PAIRS 32
#define BUFFER_BYTES (256u << 10)
/* A rank that leaves passes on what others send on their way out of the last collective: until nothing has come for
 * QUIET_NS, or their ends are closed, and for LINGER_NS at most. */
#define QUIET_NS 300000000u
#define LINGER_NS 2000000000u
#define LOOK_MS 30

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
    _Atomic uint64_t stop_ns; /* 0: it goes on */
    pthread_t thread;
};

static bool again(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/* Whether there was anything to pass on. */
static bool pass(flow *f) {
    if (f->at == f->end) {
        ssize_t n = recv(f->from, f->bytes, BUFFER_BYTES, MSG_DONTWAIT);
        if (n < 0 && again())
            return false;
        f->at = 0;
        f->end = n > 0 ? (size_t)n : 0;
        f->ended = n <= 0;
    }
    while (f->at < f->end) {
        ssize_t n = send(f->to, f->bytes + f->at, f->end - f->at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && again())
            return false;
        if (n < 0)
            f->ended = true, f->at = f->end;
        else
            f->at += (size_t)n;
    }
    if (f->ended)
        shutdown(f->to, SHUT_WR), shutdown(f->from, SHUT_RD);
    return true;
}

/* True: something moved. */
static bool pass_all(tb_relay *r, int pairs) {
    bool moved = false;
    for (int i = 0; i < 2 * pairs; i++)
        moved = (!r->flow[i].ended && pass(&r->flow[i])) || moved;
    return moved;
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

static bool may_go_on(const tb_relay *r, uint64_t moved_ns) {
    int pairs = atomic_load(&r->pairs), open = 0;
    for (int i = 0; i < 2 * pairs; i++)
        open += !r->flow[i].ended;
    uint64_t stop = atomic_load(&r->stop_ns), now = tb_now_ns(), quiet_from = moved_ns > stop ? moved_ns : stop;
    return stop == 0 || (open && now - quiet_from < QUIET_NS && now - stop < LINGER_NS);
}

static void *run(void *context) {
    tb_relay *r = context;
    struct pollfd asks[2 * PAIRS + 1];
    char drained[64];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    uint64_t moved_ns = tb_now_ns();
    while (may_go_on(r, moved_ns)) {
        int pairs = atomic_load(&r->pairs), n = ask(r, pairs, asks);
        if (poll(asks, (nfds_t)n, atomic_load(&r->stop_ns) ? LOOK_MS : 1000) > 0 && asks[0].revents)
            while (read(r->wake[0], drained, sizeof drained) == sizeof drained)
                continue;
        if (pass_all(r, pairs))
            moved_ns = tb_now_ns();
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
    atomic_store(&r->stop_ns, tb_now_ns());
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
