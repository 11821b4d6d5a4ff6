/* Windows: reads of every size between ranks of one node, of several, relayed; threads that read at once and beside
 * collectives; close under reads; peers that lie, fall silent or leave. */
#include <errno.h>
#include <sys/socket.h>

#include "meshes.h"
#include "threads.h"

#include "collective.h"
#include "service.h"

static const uint64_t lengths[] = {0, 1, 3, 47, 48, 49, 4095, 4096, 65535, 65536, 65537, 131072, 1000003, 3000000};
#define BYTES 3000017u

static uint8_t byte_of(int rank, uint64_t at) { return (uint8_t)(at * 131 + at / 65536 * 7 + (uint64_t)rank * 29); }

static uint8_t *memory_of(int rank, size_t bytes) {
    uint8_t *memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        memory[i] = byte_of(rank, i);
    return memory;
}

static tb_memory_window *expose(tb_group *g, const void *memory, uint64_t bytes) {
    tb_memory_window *w;
    tb_mesh_error error;
    int status = tb_window_expose(g, memory, bytes, 20 * SECOND, &w, &error);
    if (status == TB_INVALID)
        fprintf(stderr, "%s: %s (got %s)\n", error.step, error.rule, error.got);
    CHECK(status == TB_OK && w);
    return w;
}

static void meet(tb_group *g) {
    int status = tb_barrier(g, 20 * SECOND);
    if (status != TB_OK)
        fprintf(stderr, "rank %d: status %d, peer %d, met by %d, %s\n", g->rank, status, g->fault.peer, g->fault.by,
                g->fault.got);
    CHECK(status == TB_OK);
}

static int read_some(tb_memory_window *w, int rank, uint64_t offset, uint64_t length, void *target, tb_read_end *end) {
    tb_read r = {.rank = rank, .offset = offset, .length = length, .target = target, .timeout_ns = 20 * SECOND};
    CHECK(tb_window_enter(w));
    int status = tb_window_read(w, &r, end);
    tb_window_leave(w);
    return status;
}

static void check_block(tb_memory_window *w, int rank, uint64_t offset, uint64_t length) {
    uint8_t *target = malloc(length + 2);
    tb_read_end end;
    memset(target, 0xee, length + 2);
    CHECK(read_some(w, rank, offset, length, target + 1, &end) == TB_OK && end.got == length);
    CHECK(target[0] == 0xee && target[length + 1] == 0xee);
    for (uint64_t i = 0; i < length; i++)
        CHECK(target[1 + i] == byte_of(rank, offset + i));
    free(target);
}

static void all_sizes(tb_group *g) {
    uint8_t *memory = memory_of(g->rank, BYTES);
    tb_memory_window *w = expose(g, memory, BYTES);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int r = 0; r < g->size; r++) {
            check_block(w, r, 0, lengths[k]);
            check_block(w, r, BYTES - lengths[k], lengths[k]);
            check_block(w, r, 13 * k, lengths[k] < BYTES - 13 * k ? lengths[k] : BYTES - 13 * k);
        }
    meet(g);
    tb_window_close(w, SECOND);
    tb_window_free(w);
    free(memory);
}

static void bounds(tb_group *g) {
    uint8_t *memory = memory_of(g->rank, 100), byte[200];
    tb_memory_window *w = expose(g, memory, g->rank == 0 ? 100 : 0);
    tb_read_end end;
    CHECK(tb_window_bytes(w, 0) == 100 && tb_window_bytes(w, 1) == 0);
    check_block(w, 0, 100, 0);
    CHECK(read_some(w, 0, 1, 100, byte, &end) == TB_INVALID && end.refusal == TB_BEYOND && end.exposed == 100);
    CHECK(read_some(w, 0, ~0ull, 2, byte, &end) == TB_INVALID && end.refusal == TB_BEYOND);
    CHECK(read_some(w, 1, 0, 0, byte, &end) == TB_INVALID && end.exposed == 0);
    w->bytes[0] = 1000; /* the owner holds to it, whatever the reader believes */
    if (g->rank == 1)
        CHECK(read_some(w, 0, 50, 51, byte, &end) == TB_INVALID && end.refusal == TB_BEYOND && end.exposed == 100);
    meet(g);
    if (g->rank == 0)
        tb_window_close(w, SECOND);
    meet(g);
    CHECK(read_some(w, 0, 0, 10, byte, &end) == TB_INVALID && end.refusal == TB_WINDOW_CLOSED);
    meet(g);
    tb_window_free(w);
    free(memory);
}

typedef struct reader {
    tb_memory_window *window;
    int rank, peer, reads;
    pthread_t thread;
} reader;

static void *read_on(void *context) {
    reader *r = context;
    for (int i = 0; i < r->reads; i++)
        check_block(r->window, r->peer, (uint64_t)i * 977, (uint64_t)(i % 7) * 70001 + 1);
    return NULL;
}

/* Three threads a rank read all others, while their rank's own thread runs collectives. */
static void many_readers(tb_group *g) {
    uint8_t *memory = memory_of(g->rank, BYTES);
    tb_memory_window *w = expose(g, memory, BYTES);
    reader readers[3];
    int32_t x[1000] = {0};
    for (int i = 0; i < 3; i++) {
        readers[i] = (reader){.window = w, .rank = g->rank, .peer = (g->rank + 1 + i) % g->size, .reads = 30};
        CHECK(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]) == 0);
    }
    for (int i = 0; i < 50; i++)
        CHECK(tb_all_reduce(g, x, x, 1000, TB_I32, TB_SUM, TB_DIRECT, 20 * SECOND) == TB_OK);
    for (int i = 0; i < 3; i++)
        pthread_join(readers[i].thread, NULL);
    meet(g);
    tb_window_close(w, SECOND);
    tb_window_free(w);
    free(memory);
}

static void *read_till_closed(void *context) {
    reader *r = context;
    uint8_t *target = malloc(BYTES);
    tb_read_end end;
    int status = TB_OK;
    while (status == TB_OK)
        status = read_some(r->window, r->peer, 0, BYTES, target, &end);
    CHECK(status == TB_INVALID && end.refusal == TB_WINDOW_CLOSED);
    free(target);
    return NULL;
}

/* The memory is gone as soon as close returns: a sanitizer sees who still reads it. Another window goes on. */
static void close_under_readers(tb_group *g) {
    uint8_t *memory = memory_of(g->rank, BYTES), *other = memory_of(g->rank, 1000);
    tb_memory_window *w = expose(g, memory, BYTES), *kept = expose(g, other, 1000);
    reader r = {.window = w, .rank = g->rank, .peer = (g->rank + 1) % g->size};
    CHECK(pthread_create(&r.thread, NULL, read_till_closed, &r) == 0);
    tb_sleep_ns(SECOND / 20);
    tb_window_close(w, g->rank == 0 ? 0 : SECOND);
    free(memory);
    pthread_join(r.thread, NULL);
    check_block(kept, r.peer, 1, 999);
    meet(g);
    tb_window_free(w);
    tb_window_free(kept);
    tb_service_free(g->service); /* before the memory */
    g->service = NULL;
    free(other);
}

static void one_leaves(tb_group *g) {
    uint8_t *memory = memory_of(g->rank, 1000), byte[10];
    tb_memory_window *w = expose(g, memory, 1000);
    tb_read_end end;
    if (g->rank == 0) {
        while (read_some(w, 1, 0, 10, byte, &end) == TB_OK)
            tb_sleep_ns(1000000);
        CHECK(end.fault.status == TB_PEER_DIED && end.fault.peer == 1);
        CHECK(read_some(w, 1, 0, 10, byte, &end) == TB_PEER_DIED);
    } else {
        tb_sleep_ns(SECOND / 20);
        tb_service_free(g->service);
        g->service = NULL;
    }
    tb_window_free(w);
    if (g->service)
        tb_service_free(g->service);
    g->service = NULL;
    free(memory);
}

static void *close_service(void *context) {
    tb_group *g = context;
    tb_sleep_ns(SECOND / 20);
    tb_service_free(g->service);
    g->service = NULL;
    return NULL;
}

/* A rank whose thread waits for an answer that never comes closes the group in another: the wait ends first. */
static void closed_while_waiting(tb_group *g) {
    uint8_t byte[10], *memory = memory_of(g->rank, 1000);
    tb_memory_window *w = expose(g, memory, 1000);
    pthread_t closer;
    tb_read_end end;
    meet(g);
    if (g->rank == 1)
        pthread_mutex_lock(&g->service->stream[0].lock); /* it answers nothing, like one that is stopped */
    meet(g);
    if (g->rank == 0) {
        tb_read r = {.rank = 1, .length = 10, .target = byte, .timeout_ns = SECOND / 5};
        CHECK(tb_window_enter(w));
        CHECK(tb_window_read(w, &r, &end) == TB_TIMEOUT && end.got == 0 && end.fault.elapsed_ns >= SECOND / 5);
        CHECK(end.fault.elapsed_ns < SECOND * 2);
        r.timeout_ns = 20 * SECOND;
        CHECK(pthread_create(&closer, NULL, close_service, g) == 0);
        CHECK(tb_window_read(w, &r, &end) == TB_BROKEN);
        tb_window_leave(w);
        pthread_join(closer, NULL);
    }
    meet(g);
    if (g->rank == 1)
        pthread_mutex_unlock(&g->service->stream[0].lock);
    tb_window_free(w);
    tb_service_free(g->service);
    g->service = NULL;
    free(memory);
}

/* What the peer of a stream sends, frame by frame: (code, tag, length, kind, sequence to add). */
typedef struct lie {
    uint32_t code, tag, length, kind, skip;
} lie;

static const lie lies[] = {
    {2, 1, 0, TB_FETCH, 0},                /* the last frame of a reply that is shorter than was asked for */
    {1, 1, 200, TB_FETCH, 0},              /* more than was asked for */
    {1, 1, 100, TB_FETCH, 0},              /* all of it, and not said to be the last */
    {2, 7, 0, TB_FETCH, 0},                /* a second last frame: for one request two answers (sent twice) */
    {3, 1, 5, TB_FETCH, 0},                /* a refusal of another size */
    {3, 1, 16, TB_FETCH, 0},               /* a refusal without a reason */
    {0, 1, 23, TB_FETCH, 0},               /* a request of another size */
    {4, 1, 0, TB_FETCH, 0},                /* a code that is none */
    {1, 1, 10, TB_ALL_REDUCE, 0},          /* of another operation */
    {1, 1, 10, TB_FETCH, 1},               /* a gap */
};

static void tell(tb_channel *to, const lie *l) {
    CHECK(to->provider->ready(to));
    memset(to->provider->payload(to, l->length), 0, l->length);
    to->provider->commit(to, (tb_head){(uint64_t)(to->sequence + l->skip) | (uint64_t)TB_FRAME_MAGIC << 32 |
                                           (uint64_t)(l->kind | l->code << 4) << 48,
                                       (uint64_t)l->length | (uint64_t)l->tag << 32});
}

static void is_told(const lie *l) {
    static uint8_t target[100];
    tb_exposures exposures;
    tb_stream s;
    tb_channel to;
    int pair[2];
    tb_fetch f = {.window = 1, .length = sizeof target, .target = target};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    tb_exposures_init(&exposures);
    CHECK(tb_stream_init(&s, pair[0], 0, 1) == 0);
    tb_tcp *t = tb_tcp_new(pair[1]);
    tb_tcp_sender(&to, t, 1, 0);
    CHECK(tb_stream_ask(&s, &f));
    tell(&to, l);
    if (l->tag == 7)
        tell(&to, l);
    while (tb_stream_pump(&s, &exposures))
        continue;
    CHECK(atomic_load(&f.done) && f.fault.status == TB_CORRUPT && f.fault.got[0] && !s.tcp);
    CHECK(!tb_stream_pump(&s, &exposures) && tb_stream_watch(&s).fd < 0);
    tb_stream_end(&s);
    tb_tcp_free(t);
    tb_exposures_end(&exposures);
}

/* More requests than were agreed on: the one too many ends the stream, and nothing is owed any more. */
static void asks_too_much(void) {
    tb_exposures exposures;
    tb_stream s;
    tb_channel to;
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    tb_exposures_init(&exposures);
    static uint8_t memory[1];
    CHECK(tb_expose(&exposures, 0x01010101, memory, 1) == 0);
    CHECK(tb_stream_init(&s, pair[0], 0, 1) == 0);
    tb_tcp *t = tb_tcp_new(pair[1]);
    tb_tcp_sender(&to, t, 1, 0);
    pthread_mutex_lock(&s.lock);
    s.owed_count = TB_OWED_MAX; /* as if they could not be sent */
    pthread_mutex_unlock(&s.lock);
    tell(&to, &(lie){0, 1, 24, TB_FETCH, 0});
    while (tb_stream_pump(&s, &exposures))
        continue;
    CHECK(s.fault.status == TB_CORRUPT && s.owed_count == 0);
    tb_stream_end(&s);
    tb_tcp_free(t);
    tb_exposures_end(&exposures);
}

static void places(void) {
    tb_exposures all;
    static uint8_t memory[1], to[1];
    uint64_t exposed;
    tb_exposures_init(&all);
    for (uint32_t n = 1; n <= TB_WINDOWS_MAX; n++)
        CHECK(tb_expose(&all, n, memory, 1) == 0);
    CHECK(tb_expose(&all, 100, memory, 1) == EMFILE);
    CHECK(tb_serve_begin(&all, 5) == TB_GRANTED);
    tb_withdraw(&all, 5, tb_now_ns() + SECOND / 100);
    CHECK(tb_serve(&all, 5, 0, 1, to, 1, &exposed) == TB_WINDOW_CLOSED && tb_serve_begin(&all, 5) == TB_WINDOW_CLOSED);
    CHECK(tb_expose(&all, 100, memory, 1) == EMFILE);
    tb_serve_end(&all, 5);
    CHECK(tb_expose(&all, 100, memory, 1) == 0 && tb_serve_begin(&all, 100) == TB_GRANTED);
    tb_exposures_end(&all);
}

static int by_the_last(int a, int b) { return a == 0 && b == 1 ? 2 : -1; }

static void mixed(void (*body)(tb_group *)) {
    tb_cabling g;
    tb_full_mesh(&g, 3, NULL);
    snprintf(g.node[1], TB_NODE_MAX, "mac1"); /* ranks 0 and 1 share a node: their stream is left out */
    memmove(&g.cable[0], &g.cable[1], 2 * sizeof g.cable[0]);
    g.cables = 2;
    tb_run_mesh(&g, body);
}

int main(void) {
    tb_cabling two, three;
    tb_full_mesh(&two, 2, NULL);
    tb_full_mesh(&three, 3, by_the_last);
    places();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        is_told(&lies[i]);
    asks_too_much();
    tb_run_ranks(1, TB_AUTO, all_sizes);
    tb_run_ranks(3, TB_AUTO, all_sizes);
    tb_run_mesh(&two, all_sizes);
    tb_run_mesh(&three, all_sizes);
    mixed(all_sizes);
    tb_run_ranks(2, TB_AUTO, bounds);
    tb_run_mesh(&two, bounds);
    tb_run_ranks(4, TB_AUTO, many_readers);
    tb_run_mesh(&three, many_readers);
    tb_run_ranks(3, TB_AUTO, close_under_readers);
    tb_run_mesh(&two, close_under_readers);
    tb_run_ranks(2, TB_AUTO, one_leaves);
    tb_run_mesh(&two, one_leaves);
    tb_run_ranks(2, TB_AUTO, closed_while_waiting);
    return 0;
}
