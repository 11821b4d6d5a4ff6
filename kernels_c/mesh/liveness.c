#include "liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "crc32c.h"
#include "fault.h"

#define BEAT_NS 250000000
#define GOODBYE_NS 300000000 /* for the others to hear it */
#define MAGIC 0x736c7570u
#define VERSION 1u

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0
#endif

enum { BEAT = 1, LEAVE = 2 };

typedef struct pulse {
    uint32_t magic;
    uint16_t version;
    uint8_t kind, rank;
    uint64_t operation, collectives, broken;
    uint32_t interrupt, unused[5];
    uint32_t size, crc;
} pulse;

_Static_assert(sizeof(pulse) == 64, "a pulse travels as it stands in memory");

/* One connection. fd -1: it has ended, in order or not. */
typedef struct line {
    int fd, rank;
    uint64_t heard_ns, operation;
    size_t in_bytes, out_at;
    pulse in, out;
    bool sending;
} line;

struct tb_liveness {
    tb_header *header;
    int rank, lines;
    line line[TB_MAX_RANKS];
    uint64_t silence_ns;
    int wake[2];
    _Atomic uint32_t stop;
    pthread_t thread;
};

static tb_control *board(tb_liveness *l, int rank) { return &l->header->control[rank]; }

/* An answer to a goodbye is no loss: other ranks of this node read the board too, and may still wait for that rank. */
static void lose(tb_liveness *l, const line *n, int status) {
    uint32_t attached = TB_ATTACHED;
    if (atomic_load(&l->stop))
        return;
    atomic_store(&board(l, n->rank)->loss, (uint32_t)status);
    atomic_compare_exchange_strong(&board(l, n->rank)->state, &attached, TB_LOST);
}

static void end(line *n) {
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

static pulse own_pulse(tb_liveness *l, const line *n, int kind) {
    const tb_control *own = board(l, l->rank);
    pulse p = {.magic = MAGIC,
               .version = VERSION,
               .kind = (uint8_t)kind,
               .rank = (uint8_t)l->rank,
               .operation = atomic_load(&own->operation),
               .collectives = atomic_load(&own->collectives),
               .broken = atomic_load(&l->header->broken),
               .interrupt = atomic_load(&board(l, n->rank)->interrupt),
               .size = l->header->size};
    p.crc = tb_crc32c(0, &p, offsetof(pulse, crc));
    return p;
}

/* What a full socket does not take is sent before the next pulse; a beat that finds no room is left out. */
static void send_pulse(tb_liveness *l, line *n, int kind) {
    if (n->fd < 0)
        return;
    if (!n->sending) {
        n->out = own_pulse(l, n, kind);
        n->out_at = 0;
    }
    ssize_t sent = send(n->fd, (uint8_t *)&n->out + n->out_at, sizeof n->out - n->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
    n->out_at += sent > 0 ? (size_t)sent : 0;
    n->sending = n->out_at < sizeof n->out && n->out_at > 0;
}

static bool is_right(const tb_liveness *l, const line *n) {
    const pulse *p = &n->in;
    return p->magic == MAGIC && p->version == VERSION && p->rank == n->rank && p->size == l->header->size &&
           p->crc == tb_crc32c(0, p, offsetof(pulse, crc));
}

/* A rank that was silent and speaks again is not lost: it may have been frozen while nobody waited for it. */
static void hear(tb_liveness *l, line *n) {
    tb_control *c = board(l, n->rank);
    uint64_t whole = 0;
    uint32_t lost = TB_LOST;
    n->heard_ns = tb_now_ns();
    atomic_store(&c->heartbeat_ns, n->heard_ns);
    atomic_store(&c->collectives, n->in.collectives);
    if (n->in.operation != n->operation)
        atomic_store(&c->operation_start_ns, n->heard_ns);
    n->operation = n->in.operation;
    atomic_store(&c->operation, n->in.operation);
    if (n->in.broken)
        atomic_compare_exchange_strong(&l->header->broken, &whole, n->in.broken);
    if (n->in.interrupt)
        atomic_store(&board(l, l->rank)->interrupt, 1);
    if (n->in.kind == LEAVE) {
        atomic_store(&c->state, TB_LEFT);
        end(n);
    } else {
        atomic_compare_exchange_strong(&c->state, &lost, TB_ATTACHED);
    }
}

static void listen_to(tb_liveness *l, line *n) {
    while (n->fd >= 0) {
        ssize_t got = recv(n->fd, (uint8_t *)&n->in + n->in_bytes, sizeof n->in - n->in_bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        n->in_bytes += got > 0 ? (size_t)got : 0;
        bool whole = got > 0 && n->in_bytes == sizeof n->in;
        if (got <= 0 || (whole && !is_right(l, n))) {
            lose(l, n, got <= 0 ? TB_PEER_DIED : TB_CORRUPT);
            end(n);
        } else if (whole) {
            n->in_bytes = 0;
            hear(l, n);
        }
    }
}

static void judge_silence(tb_liveness *l, const line *n) {
    if (n->fd >= 0 && tb_now_ns() - n->heard_ns > l->silence_ns)
        lose(l, n, TB_SILENT);
}

static void await_news(tb_liveness *l) {
    struct pollfd asks[TB_MAX_RANKS + 1] = {{.fd = l->wake[0], .events = POLLIN}};
    char drained[64];
    for (int i = 0; i < l->lines; i++)
        asks[i + 1] = (struct pollfd){.fd = l->line[i].fd, .events = POLLIN};
    if (poll(asks, (nfds_t)l->lines + 1, BEAT_NS / 1000000) > 0 && asks[0].revents)
        while (read(l->wake[0], drained, sizeof drained) == sizeof drained)
            continue;
}

static bool anyone(const tb_liveness *l) {
    for (int i = 0; i < l->lines; i++)
        if (l->line[i].fd >= 0)
            return true;
    return false;
}

/* They answer a goodbye by closing: then it was heard, and closing here takes nothing from them. */
static void say_goodbye(tb_liveness *l) {
    uint64_t until = tb_now_ns() + GOODBYE_NS;
    for (int i = 0; i < l->lines; i++) {
        line *n = &l->line[i];
        while (n->fd >= 0 && n->sending && tb_now_ns() < until)
            send_pulse(l, n, BEAT), tb_sleep_ns(1000000);
        send_pulse(l, n, LEAVE);
    }
    while (anyone(l) && tb_now_ns() < until) {
        await_news(l);
        for (int i = 0; i < l->lines; i++)
            listen_to(l, &l->line[i]);
    }
}

static void *run(void *context) {
    tb_liveness *l = context;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&l->stop)) {
        for (int i = 0; i < l->lines; i++)
            send_pulse(l, &l->line[i], BEAT);
        await_news(l);
        for (int i = 0; i < l->lines; i++) {
            listen_to(l, &l->line[i]);
            judge_silence(l, &l->line[i]);
        }
    }
    say_goodbye(l);
    return NULL;
}

static void set_lines(tb_liveness *l, const int fd[TB_MAX_RANKS]) {
    for (int r = 0; r < TB_MAX_RANKS; r++) {
        if (fd[r] < 0)
            continue;
        l->line[l->lines++] = (line){.fd = fd[r], .rank = r, .heard_ns = tb_now_ns()};
        fcntl(fd[r], F_SETFL, fcntl(fd[r], F_GETFL) | O_NONBLOCK);
        atomic_store(&board(l, r)->heartbeat_ns, tb_now_ns());
        atomic_store(&board(l, r)->state, TB_ATTACHED);
    }
}

tb_liveness *tb_liveness_start(tb_header *header, int rank, const int fd[TB_MAX_RANKS], uint64_t silence_ns) {
    tb_liveness *l = calloc(1, sizeof *l);
    if (!l || pipe(l->wake) != 0) {
        free(l);
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(l->wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(l->wake[i], F_SETFL, O_NONBLOCK);
    }
    l->header = header;
    l->rank = rank;
    l->silence_ns = silence_ns;
    set_lines(l, fd);
    errno = pthread_create(&l->thread, NULL, run, l);
    if (errno == 0)
        return l;
    for (int i = 0; i < 2; i++)
        close(l->wake[i]);
    free(l);
    return NULL;
}

void tb_liveness_tell(tb_liveness *l) {
    ssize_t unused = write(l->wake[1], "", 1); /* a full pipe wakes it as well */
    (void)unused;
}

void tb_liveness_stop(tb_liveness *l) {
    if (!l)
        return;
    atomic_store(&l->stop, 1);
    tb_liveness_tell(l);
    pthread_join(l->thread, NULL);
    for (int i = 0; i < l->lines; i++)
        end(&l->line[i]);
    for (int i = 0; i < 2; i++)
        close(l->wake[i]);
    free(l);
}
