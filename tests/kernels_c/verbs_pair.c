/* Two processes, the two ends of one cable: `verbs_pair key=value ...`, the library from TBKIT_LIBRDMA (a mock).
 *
 * With rank=0 or 1 and host=IPV4 it is that rank alone, over a real device, and meets the other at rank 0's address.
 * Keys: mode (open, both, bursts, die, pingpong: half round trips of messages of `most`, stream: to rank 1), count and most (messages, their longest), slots, frames0 and frames1 (of a large
 * slot, by rank), address0 (of the cable), device0, faults0 and faults1 (TBKIT_MOCK_FAULTS of that rank), seed, cross
 * (so many first allocations lie across a 4 GiB boundary; Linux, linked with --wrap).
 * Each rank prints `RANK log ...`, perhaps `RANK us|bytes_per_s NUMBER`, and `RANK ok FRAMES`, `RANK error STEP ERRNO WORDS`, `RANK fault GOT | WANTED` or
 * `RANK silence`. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "port.h"

#define SECOND 1000000000ull
#define SILENCE_NS (3 * SECOND)

static const char *option(char **argv, const char *key, int rank, const char *otherwise) {
    char name[40];
    if (rank < 0)
        snprintf(name, sizeof name, "%s=", key);
    else
        snprintf(name, sizeof name, "%s%d=", key, rank);
    for (; *argv; argv++)
        if (strncmp(*argv, name, strlen(name)) == 0)
            return *argv + strlen(name);
    return otherwise;
}

static uint64_t number(char **argv, const char *key, int rank, const char *otherwise) {
    return strtoull(option(argv, key, rank, otherwise), NULL, 10);
}

#if defined(TB_WRAPPED)
#include <sys/mman.h>

#define BOUNDARY 0x500000000000ull

int __real_posix_memalign(void **at, size_t alignment, size_t bytes);
void __real_free(void *at);
int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes);
void __wrap_free(void *at);

static int crossings_left, crossings;
static void *crossing[8];
static size_t crossing_bytes[8];

int __wrap_posix_memalign(void **at, size_t alignment, size_t bytes) {
    if (crossings_left == 0)
        return __real_posix_memalign(at, alignment, bytes);
    uint64_t first = (BOUNDARY + ((uint64_t)crossings << 32) - bytes / 2) / alignment * alignment;
    *at = mmap((void *)first, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(*at == (void *)first);
    crossing_bytes[crossings] = bytes;
    crossing[crossings++] = *at;
    crossings_left--;
    return 0;
}

void __wrap_free(void *at) {
    for (int i = 0; at && i < crossings; i++)
        if (crossing[i] == at) {
            CHECK(munmap(at, crossing_bytes[i]) == 0);
            return;
        }
    __real_free(at);
}
#endif

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A stream of messages, cut into frames: what both ends know of it. */
typedef struct stream {
    uint64_t seed, message, count;
    uint32_t most, left, longest, sequence;
} stream;

static void next_message(stream *s) {
    double unit = (double)(mix(s->seed + s->message) >> 11) / 9007199254740992.0;
    uint32_t bytes = (uint32_t)exp(unit * log((double)s->most + 1));
    s->left = bytes < 1 ? 1 : bytes > s->most ? s->most : bytes;
}

static stream stream_of(uint64_t seed, uint64_t count, uint32_t most, uint32_t longest) {
    stream s = {.seed = seed * 0x9e3779b97f4a7c15u, .count = count, .most = most, .longest = longest, .sequence = 1};
    next_message(&s);
    return s;
}

static bool at_end(const stream *s) { return s->message == s->count; }

static uint32_t frame_length(const stream *s) { return s->left < s->longest ? s->left : s->longest; }

static void advance(stream *s) {
    s->left -= frame_length(s);
    s->sequence++;
    if (s->left == 0 && ++s->message < s->count)
        next_message(s);
}

static tb_head head_of(const stream *s) {
    return (tb_head){s->sequence | (uint64_t)TB_FRAME_MAGIC << 32 | 7ull << 48, frame_length(s) | 5ull << 32};
}

static uint64_t word_at(const stream *s, uint32_t at) { return mix(s->seed ^ ((uint64_t)s->sequence << 32 | at)); }

static bool put(tb_channel *c, stream *s) {
    uint32_t length = frame_length(s);
    c->length = length;
    if (at_end(s) || !c->provider->ready(c))
        return false;
    uint8_t *to = c->provider->payload(c, length);
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = word_at(s, i);
        memcpy(to + i, &word, length - i < 8 ? length - i : 8);
    }
    c->provider->commit(c, head_of(s));
    advance(s);
    return true;
}

static bool take(tb_channel *c, stream *s) {
    uint32_t length = frame_length(s);
    c->length = length;
    if (at_end(s) || !c->provider->ready(c))
        return false;
    tb_head found = c->provider->head(c), wanted = head_of(s);
    CHECK(found.identity == wanted.identity && found.extent == wanted.extent);
    const uint8_t *from = c->provider->payload(c, length);
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = word_at(s, i);
        CHECK(memcmp(from + i, &word, length - i < 8 ? length - i : 8) == 0);
    }
    c->provider->release(c);
    advance(s);
    return true;
}

typedef struct end {
    int rank, wire;
    tb_verbs_port *port;
    tb_channel to, from;
} end;

static void swap(const end *e, const void *own, void *peers, size_t bytes) {
    CHECK(write(e->wire, own, bytes) == (ssize_t)bytes);
    CHECK(recv(e->wire, peers, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

/* False: this end or the other has failed; what is printed says which. */
static bool both_succeed(end *e, int step, const tb_verbs_error *error) {
    int theirs;
    if (step)
        printf("%d error %d %d %s\n", e->rank, step, error->error, error->words);
    swap(e, &step, &theirs, sizeof step);
    return step == 0 && theirs == 0;
}

static bool bring_up(end *e, const tb_verbs_ask *ask) {
    tb_verbs_error error;
    tb_verbs_card own = {0}, peer;
    tb_verbs_ready mine, theirs;
    if (!both_succeed(e, tb_verbs_open(&e->port, ask, &error), &error))
        return false;
    tb_verbs_card_of(e->port, &own);
    swap(e, &own, &peer, sizeof own);
    if (!both_succeed(e, tb_verbs_connect(e->port, &peer, &error), &error))
        return false;
    tb_verbs_ready_of(e->port, &mine);
    swap(e, &mine, &theirs, sizeof mine);
    if (!both_succeed(e, tb_verbs_start(e->port, &theirs, &error), &error))
        return false;
    tb_verbs_sender(&e->to, e->port);
    tb_verbs_receiver(&e->from, e->port);
    return true;
}

static bool broken(end *e) {
    tb_fault fault = {0};
    int status = e->to.provider->progress(&e->to, &fault);
    if (status != TB_OK) {
        CHECK(status == TB_CORRUPT && fault.peer == 1 - e->rank && fault.by == e->rank);
        printf("%d fault %s | %s\n", e->rank, fault.got, fault.wanted);
    }
    return status != TB_OK;
}

/* Sends `out` and takes `in` at once, until both end, the port breaks, or nothing moves for SILENCE_NS. */
static bool run(end *e, stream *out, stream *in) {
    uint64_t last = tb_now_ns();
    while (!at_end(out) || !at_end(in)) {
        bool moved = put(&e->to, out);
        moved = take(&e->from, in) || moved;
        if (moved)
            last = tb_now_ns();
        else if (broken(e))
            return false;
        else if (tb_now_ns() - last > SILENCE_NS) {
            printf("%d silence\n", e->rank);
            return false;
        }
    }
    return true;
}

static uint32_t both(end *e, char **argv, bool dies) {
    uint64_t count = number(argv, "count", -1, "1000"), seed = number(argv, "seed", -1, "1");
    uint32_t most = (uint32_t)number(argv, "most", -1, "65536");
    stream out = stream_of(seed + (uint64_t)e->rank, dies && e->rank == 1 ? count / 2 : count, most, e->to.slot_bytes);
    stream in = stream_of(seed + 1 - (uint64_t)e->rank, count, most, e->from.slot_bytes);
    if (dies && e->rank == 1)
        in.count = count / 2;
    if (!run(e, &out, &in))
        return 0;
    if (dies && e->rank == 1)
        _exit(0);
    return in.sequence - 1;
}

/* Bursts one way, the other, or both; a rank that has no part in one does not even poll. */
static uint32_t bursts(end *e, char **argv) {
    uint64_t count = number(argv, "count", -1, "100"), seed = number(argv, "seed", -1, "1");
    uint32_t most = (uint32_t)number(argv, "most", -1, "65536"), frames = 0;
    uint32_t sequence[2] = {1, 1};
    for (uint64_t k = 0; k < count; k++) {
        uint64_t dice = mix(seed * 1000003 + k);
        uint64_t messages[2] = {dice % 3 == 1 ? 0 : 1 + dice / 3 % 60, dice % 3 == 0 ? 0 : 1 + dice / 200 % 60};
        stream out = stream_of(dice, messages[e->rank], most, e->to.slot_bytes);
        stream in = stream_of(dice, messages[1 - e->rank], most, e->from.slot_bytes);
        out.sequence = sequence[e->rank];
        in.sequence = sequence[1 - e->rank];
        if (!run(e, &out, &in))
            return 0;
        sequence[e->rank] = out.sequence;
        sequence[1 - e->rank] = in.sequence;
        frames = in.sequence - 1;
    }
    return frames;
}

static const uint8_t plain[1 << 20];

/* As tb_send_bytes and tb_recv_bytes do it, but for the wait. */
static bool move(end *e, tb_channel *c, bool sending, uint32_t *sequence, uint32_t bytes) {
    static uint8_t target[1 << 20];
    for (uint32_t at = 0, n; at < bytes; at += n, ++*sequence) {
        n = bytes - at < c->slot_bytes ? bytes - at : c->slot_bytes;
        c->length = n;
        uint64_t began = 0, polls = 1;
        for (; !c->provider->ready(c); polls++) {
            if (polls % 1024 == 0 && broken(e))
                return false;
            if (polls % 1024 == 0 && (began = began ? began : tb_now_ns()) + SILENCE_NS < tb_now_ns()) {
                printf("%d silence\n", e->rank);
                return false;
            }
        }
        stream s = {.sequence = *sequence, .left = n, .longest = n};
        uint8_t *payload = c->provider->payload(c, n);
        if (sending)
            memcpy(payload, plain + at, n), c->provider->commit(c, head_of(&s));
        else
            memcpy(target + at, payload, n), c->provider->release(c);
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint32_t pingpong(end *e, char **argv) {
    uint32_t count = (uint32_t)number(argv, "count", -1, "1000"), most = (uint32_t)number(argv, "most", -1, "64");
    uint32_t out = 1, in = 1, done = 0;
    double *us = calloc(count, sizeof *us);
    CHECK(us && most <= sizeof plain);
    for (uint64_t before = tb_now_ns(), now; done < count; done++, before = now) {
        if (e->rank == 0 && !move(e, &e->to, true, &out, most))
            break;
        if (!move(e, &e->from, false, &in, most) || (e->rank == 1 && !move(e, &e->to, true, &out, most)))
            break;
        us[done] = (double)((now = tb_now_ns()) - before) / 2000.0;
    }
    qsort(us, done, sizeof *us, by_value);
    if (done == count)
        printf("%d us %.2f\n", e->rank, us[count / 2]);
    free(us);
    return in - 1;
}

static uint32_t streaming(end *e, char **argv) {
    uint32_t count = (uint32_t)number(argv, "count", -1, "1000"), most = (uint32_t)number(argv, "most", -1, "65536");
    uint32_t sequence = 1, done = 0;
    uint64_t first = 0;
    for (; done < count && move(e, e->rank == 0 ? &e->to : &e->from, e->rank == 0, &sequence, most); done++)
        first = first ? first : tb_now_ns();
    if (e->rank == 1 && done == count)
        printf("1 bytes_per_s %.0f\n", (double)(count - 1) * most * 1e9 / (double)(tb_now_ns() - first));
    return sequence - 1;
}

static uint32_t play(end *e, char **argv) {
    const char *mode = option(argv, "mode", -1, "both");
    if (strcmp(mode, "open") == 0)
        return 0;
    if (strcmp(mode, "bursts") == 0)
        return bursts(e, argv);
    if (strcmp(mode, "pingpong") == 0)
        return pingpong(e, argv);
    return strcmp(mode, "stream") == 0 ? streaming(e, argv) : both(e, argv, strcmp(mode, "die") == 0);
}

static int rank_main(int rank, int wire, char **argv) {
    char mock[200];
    end e = {.rank = rank, .wire = wire};
    tb_verbs_ask ask = {.rank = rank, .peer = 1 - rank, .slots = (uint32_t)number(argv, "slots", -1, "0"),
                        .large_frames = (uint32_t)number(argv, "frames", rank, "0")};
    snprintf(ask.device, sizeof ask.device, "%s", option(argv, "device", rank, rank ? "rdma_en3" : "rdma_en2"));
    snprintf(ask.address, sizeof ask.address, "%s", option(argv, "address", rank, ""));
    snprintf(mock, sizeof mock, "namespace=vp%d; node=mac%d; cables=mac0:rdma_en2/169.254.9.1-mac1:rdma_en3/169.254.9.2; "
             "devices=mac0:rdma_en5", (int)getppid(), rank);
    setenv("TBKIT_MOCK", mock, 1);
    setenv("TBKIT_MOCK_FAULTS", option(argv, "faults", rank, ""), 1);
#if defined(TB_WRAPPED)
    crossings_left = (int)number(argv, "cross", -1, "0");
#endif
    alarm(600);
    bool up = bring_up(&e, &ask);
    if (e.port)
        printf("%d log %s\n", rank, tb_verbs_log(e.port));
    uint32_t frames = up ? play(&e, argv) : 0;
    char byte = 0, theirs;
    CHECK(write(wire, &byte, 1) == 1 || errno == EPIPE);
    (void)!recv(wire, &theirs, 1, MSG_WAITALL);
    uint64_t before = tb_now_ns();
    int closed = tb_verbs_close(e.port, before + SECOND);
    CHECK(tb_now_ns() - before < 4 * SECOND);
    if (up)
        printf("%d ok %u, closed with %d\n", rank, frames, closed);
    return 0;
}

static int meet(int rank, const char *host) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(18600)};
    int s = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    CHECK(s >= 0 && inet_pton(AF_INET, host, &at.sin_addr) == 1);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (rank == 0) {
        CHECK(bind(s, (struct sockaddr *)&at, sizeof at) == 0 && listen(s, 1) == 0);
        return accept(s, NULL, NULL);
    }
    for (int i = 0; connect(s, (struct sockaddr *)&at, sizeof at) != 0; i++) {
        CHECK(i < 100);
        close(s);
        tb_sleep_ns(SECOND / 10);
        s = socket(AF_INET, SOCK_STREAM, 0);
    }
    return s;
}

int main(int argc, char **argv) {
    int pair[2], status = 0, failed = 0, only = (int)number(argv, "rank", -1, "2");
    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (only < 2)
        return rank_main(only, meet(only, option(argv, "host", -1, "127.0.0.1")), argv + 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int rank = 0; rank < 2; rank++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(pair[1 - rank]);
            exit(rank_main(rank, pair[rank], argv + 1));
        }
    }
    close(pair[0]);
    close(pair[1]);
    for (int rank = 0; rank < 2; rank++) {
        CHECK(wait(&status) > 0);
        failed |= status;
    }
    return failed ? 1 : 0;
}
