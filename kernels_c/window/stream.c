#include "stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "futex.h"

#define TURNS 16 /* frames each way before other peers have their turn */

enum { ASK = 0, PART, LAST, REFUSED, CODES };

typedef struct ask {
    uint64_t offset, length;
    uint32_t window, unused;
} ask;

typedef struct refused {
    uint64_t exposed;
    uint32_t refusal, unused;
} refused;

int tb_stream_init(tb_stream *s, int fd, int rank, int peer) {
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->fault = (tb_fault){.status = TB_OK, .kind = TB_FETCH, .peer = peer, .by = rank};
    s->tcp = fd >= 0 ? tb_tcp_new(fd) : NULL;
    if (!s->tcp)
        return fd >= 0 ? ENOMEM : 0;
    tb_tcp_sender(&s->to, s->tcp, rank, peer);
    tb_tcp_receiver(&s->from, s->tcp, rank, peer);
    return 0;
}

void tb_stream_end(tb_stream *s) {
    tb_tcp_free(s->tcp);
    pthread_mutex_destroy(&s->lock);
}

static void finish(tb_stream *s, tb_fetch *f) {
    tb_fetch **at = &s->fetches;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    atomic_store(&f->done, 1);
    tb_futex_wake(&f->done);
}

static void drop_owed(tb_stream *s, tb_exposures *exposures) {
    for (; s->owed_count; s->owed_count--, s->owed_at = (s->owed_at + 1) % TB_OWED_MAX)
        if (s->owed[s->owed_at].granted)
            tb_serve_end(exposures, s->owed[s->owed_at].window);
}

/* The peer learns of it by the end of the connection. */
static void fail(tb_stream *s, tb_exposures *exposures) {
    tb_tcp_free(s->tcp);
    s->tcp = NULL;
    drop_owed(s, exposures);
    while (s->fetches) {
        s->fetches->fault = s->fault;
        finish(s, s->fetches);
    }
}

void tb_stream_break(tb_stream *s, tb_exposures *exposures, int status) {
    pthread_mutex_lock(&s->lock);
    if (s->fault.status == TB_OK)
        s->fault.status = status;
    fail(s, exposures);
    pthread_mutex_unlock(&s->lock);
}

static void send_frame(tb_stream *s, int code, uint32_t number, uint32_t length) {
    s->to.provider->commit(&s->to, (tb_head){(uint64_t)s->to.sequence | (uint64_t)TB_FRAME_MAGIC << 32 |
                                                 (uint64_t)(TB_FETCH | code << 4) << 48,
                                             (uint64_t)length | (uint64_t)number << 32});
}

static void send_ask(tb_stream *s, tb_fetch *f) {
    ask words = {.offset = f->offset, .length = f->length, .window = f->window};
    memcpy(s->to.provider->payload(&s->to, sizeof words), &words, sizeof words);
    send_frame(s, ASK, f->number, sizeof words);
    f->asked = true;
    s->unanswered++;
}

static tb_fetch *next_ask(const tb_stream *s) {
    tb_fetch *f = s->unanswered < TB_OWED_MAX ? s->fetches : NULL;
    while (f && f->asked)
        f = f->next;
    return f;
}

static void send_asks(tb_stream *s) {
    for (tb_fetch *f = next_ask(s); f && s->to.provider->ready(&s->to); f = next_ask(s))
        send_ask(s, f);
}

/* The next frame of the oldest reply, which then stands behind the others. */
static void send_reply(tb_stream *s, tb_exposures *exposures) {
    tb_owed o = s->owed[s->owed_at];
    uint32_t length = o.length < s->to.slot_bytes ? (uint32_t)o.length : s->to.slot_bytes;
    uint8_t *payload = s->to.provider->payload(&s->to, length);
    refused no = {.exposed = 0};
    no.refusal = o.granted ? tb_serve(exposures, o.window, o.offset, o.length, payload, length, &no.exposed)
                           : TB_WINDOW_CLOSED;
    bool last = no.refusal || o.length == length;
    s->owed_at = (s->owed_at + 1) % TB_OWED_MAX;
    s->owed_count--;
    if (no.refusal)
        memcpy(payload, &no, sizeof no);
    send_frame(s, no.refusal ? REFUSED : last ? LAST : PART, o.number, no.refusal ? (uint32_t)sizeof no : length);
    o.offset += length;
    o.length -= length;
    if (!last)
        s->owed[(s->owed_at + s->owed_count++) % TB_OWED_MAX] = o;
    else if (o.granted)
        tb_serve_end(exposures, o.window);
}

/* Whether a frame went out. What the kernel did not take before goes first. */
static bool send_one(tb_stream *s, tb_exposures *exposures) {
    s->fault.status = s->to.provider->progress(&s->to, &s->fault);
    if (s->fault.status != TB_OK)
        return false;
    send_asks(s);
    if (s->owed_count == 0 || !s->to.provider->ready(&s->to))
        return false;
    send_reply(s, exposures);
    return true;
}

static bool take_ask(tb_stream *s, tb_exposures *exposures, uint32_t number, const uint8_t *payload, uint32_t length) {
    ask words;
    if (length != sizeof words || s->owed_count == TB_OWED_MAX)
        return false;
    memcpy(&words, payload, sizeof words);
    s->owed[(s->owed_at + s->owed_count++) % TB_OWED_MAX] =
        (tb_owed){.window = words.window,
                  .number = number,
                  .offset = words.offset,
                  .length = words.length,
                  .granted = tb_serve_begin(exposures, words.window) == TB_GRANTED};
    return true;
}

static tb_fetch *asked(const tb_stream *s, uint32_t number) {
    tb_fetch *f = s->fetches;
    while (f && (!f->asked || f->number != number))
        f = f->next;
    return f;
}

/* One that nobody waits for is dropped. */
static bool take_part(tb_stream *s, int code, uint32_t number, const uint8_t *payload, uint32_t length) {
    tb_fetch *f = asked(s, number);
    s->unanswered -= code == LAST;
    if (!f)
        return s->unanswered >= 0;
    if (length > f->length - f->got || (code == LAST) != (length == f->length - f->got))
        return false;
    if (length)
        memcpy(f->target + f->got, payload, length);
    f->got += length;
    if (code == LAST)
        finish(s, f);
    return s->unanswered >= 0;
}

static bool take_refusal(tb_stream *s, uint32_t number, const uint8_t *payload, uint32_t length) {
    tb_fetch *f = asked(s, number);
    refused no;
    s->unanswered--;
    if (length != sizeof no || s->unanswered < 0)
        return false;
    memcpy(&no, payload, sizeof no);
    if (no.refusal != TB_WINDOW_CLOSED && no.refusal != TB_BEYOND)
        return false;
    if (f) {
        f->refusal = no.refusal;
        f->exposed = no.exposed;
        finish(s, f);
    }
    return true;
}

static void set_corrupt(tb_stream *s, tb_head h) {
    unsigned what = (unsigned)(h.identity >> 48);
    s->fault.status = TB_CORRUPT;
    snprintf(s->fault.got, sizeof s->fault.got, "sequence %u, magic 0x%04x, %s with code %u, %u bytes, request %u",
             (uint32_t)h.identity, (unsigned)(h.identity >> 32 & 0xffff), tb_kind_name(what & 15), what >> 4,
             (uint32_t)h.extent, (uint32_t)(h.extent >> 32));
    snprintf(s->fault.wanted, sizeof s->fault.wanted, "sequence %u, magic 0x%04x, read, as it was asked for",
             s->from.sequence, TB_FRAME_MAGIC);
}

static void take_frame(tb_stream *s, tb_exposures *exposures) {
    tb_head h = s->from.provider->head(&s->from);
    uint32_t length = (uint32_t)h.extent, number = (uint32_t)(h.extent >> 32);
    uint64_t code = h.identity >> 52;
    uint64_t due = (uint64_t)s->from.sequence | (uint64_t)TB_FRAME_MAGIC << 32 | (uint64_t)TB_FETCH << 48 | code << 52;
    const uint8_t *payload = s->from.provider->payload(&s->from, length);
    bool right = h.identity == due && code < CODES;
    if (right && code == ASK)
        right = take_ask(s, exposures, number, payload, length);
    else if (right)
        right = code == REFUSED ? take_refusal(s, number, payload, length)
                                : take_part(s, (int)code, number, payload, length);
    if (right)
        s->from.provider->release(&s->from);
    else
        set_corrupt(s, h);
}

/* False only once the kernel had nothing more: what stands in the buffer would wake nobody. */
static bool take_one(tb_stream *s, tb_exposures *exposures) {
    s->fault.status = s->from.provider->progress(&s->from, &s->fault);
    if (s->fault.status != TB_OK || !s->from.provider->ready(&s->from))
        return false;
    take_frame(s, exposures);
    return s->fault.status == TB_OK;
}

bool tb_stream_pump(tb_stream *s, tb_exposures *exposures) {
    bool more = false;
    pthread_mutex_lock(&s->lock);
    for (int turn = 0; turn < TURNS && s->tcp && s->fault.status == TB_OK; turn++) {
        bool took = take_one(s, exposures), sent = s->fault.status == TB_OK && send_one(s, exposures);
        more = took || sent;
        if (!more)
            break;
    }
    if (s->tcp && s->fault.status != TB_OK) {
        fail(s, exposures);
        more = false;
    }
    pthread_mutex_unlock(&s->lock);
    return more;
}

tb_watch tb_stream_watch(tb_stream *s) {
    tb_watch watch = {.fd = -1};
    pthread_mutex_lock(&s->lock);
    if (s->tcp) {
        watch = s->from.provider->watch(&s->from);
        watch.events = (short)(watch.events | s->to.provider->watch(&s->to).events);
    }
    pthread_mutex_unlock(&s->lock);
    return watch;
}

bool tb_stream_ask(tb_stream *s, tb_fetch *f) {
    pthread_mutex_lock(&s->lock);
    tb_fetch **at = &s->fetches;
    f->number = ++s->number;
    f->fault = s->fault;
    atomic_store(&f->done, s->tcp == NULL);
    while (s->tcp && *at)
        at = &(*at)->next;
    if (s->tcp)
        *at = f;
    if (s->tcp)
        send_asks(s);
    bool sent = !s->tcp || (f->asked && s->to.provider->flushed(&s->to));
    pthread_mutex_unlock(&s->lock);
    return sent;
}

void tb_stream_forget(tb_stream *s, tb_fetch *f) {
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&f->done))
        finish(s, f);
    pthread_mutex_unlock(&s->lock);
}
