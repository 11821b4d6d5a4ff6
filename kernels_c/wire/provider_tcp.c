/* A frame is written behind its head in the outgoing buffer and goes out with one call; what the kernel does not
 * take stays for progress. Incoming bytes are taken as many as there are; a frame counts once it is whole and its
 * CRC is right. The credits are the stream's own: what is not read here fills the peer's buffers. */
#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

#define FRAME_MAX (TB_WIRE_HEAD + TB_TCP_SLOT_BYTES)
#define OUT_BYTES (4 * FRAME_MAX)
#define IN_BYTES (8 * FRAME_MAX)
#define SOCKET_BYTES (1 << 20) /* asked of the kernel each way: an eager message of 8 frames fits */

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0 /* macOS: SO_NOSIGPIPE says it once */
#endif

struct tb_tcp {
    int fd, error; /* error: of a send or a receive, 0 none, -1 the peer closed */
    bool whole;    /* the frame at in_at is complete and checked: it stays where it is until released */
    tb_fault fault; /* of a damaged frame */
    uint64_t stamp; /* of the frame to be committed next */
    size_t out_at, out_end, in_at, in_end;
    uint8_t out[OUT_BYTES], in[IN_BYTES];
};

static tb_tcp *tcp_of(const tb_channel *c) { return c->state; }

tb_tcp *tb_tcp_new(int fd) {
    tb_tcp *t = malloc(sizeof *t);
    int on = 1, bytes = SOCKET_BYTES;
    if (!t)
        return NULL;
    memset(t, 0, offsetof(tb_tcp, out));
    t->fd = fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
#if defined(SO_NOSIGPIPE)
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return t;
}

void tb_tcp_free(tb_tcp *t) {
    if (!t)
        return;
    close(t->fd);
    free(t);
}

static bool again(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

static void flush(tb_tcp *t) {
    while (t->out_at < t->out_end && !t->error) {
        ssize_t n = send(t->fd, t->out + t->out_at, t->out_end - t->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && again())
            return;
        if (n < 0)
            t->error = errno;
        else
            t->out_at += (size_t)n;
    }
    if (t->out_at == t->out_end)
        t->out_at = t->out_end = 0;
}

static bool sender_ready(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    if (t->out_end > 0)
        flush(t);
    if (t->out_at > 0 && OUT_BYTES - t->out_end < FRAME_MAX) {
        memmove(t->out, t->out + t->out_at, t->out_end - t->out_at);
        t->out_end -= t->out_at;
        t->out_at = 0;
    }
    return !t->error && OUT_BYTES - t->out_end >= FRAME_MAX;
}

static uint8_t *sender_payload(tb_channel *c, uint32_t length) {
    (void)length;
    return tcp_of(c)->out + tcp_of(c)->out_end + TB_WIRE_HEAD;
}

static void commit(tb_channel *c, tb_head h) {
    tb_tcp *t = tcp_of(c);
    tb_wire_head head = {.head = h,
                         .flags = TB_WIRE_DATA,
                         .credit = (uint32_t)t->stamp,
                         .control = (uint32_t)(t->stamp >> 32)};
    memcpy(t->out + t->out_end, &head, sizeof head);
    tb_wire_seal(t->out + t->out_end);
    t->out_end += TB_WIRE_HEAD + tb_wire_length(&head);
    c->sequence++;
    flush(t);
}

static bool flushed(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    flush(t);
    return t->out_end == 0;
}

static tb_wire_head front(const tb_tcp *t) {
    tb_wire_head h;
    memcpy(&h, t->in + t->in_at, sizeof h);
    return h;
}

/* The frame at the front, if it is whole: then it is right, or the channel has failed. */
static bool take_up(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    size_t there = t->in_end - t->in_at;
    if (t->whole || there < TB_WIRE_HEAD)
        return t->whole;
    if (tb_wire_check_head(t->in + t->in_at, c->slot_bytes, &t->fault) != TB_OK)
        return false;
    tb_wire_head h = front(t);
    if (there < TB_WIRE_HEAD + tb_wire_length(&h))
        return false;
    t->whole = tb_wire_check(t->in + t->in_at, &t->fault) == TB_OK;
    return t->whole;
}

static void make_room(tb_tcp *t) {
    if (t->in_at == t->in_end)
        t->in_at = t->in_end = 0;
    if (t->whole || IN_BYTES - t->in_at >= FRAME_MAX)
        return;
    memmove(t->in, t->in + t->in_at, t->in_end - t->in_at);
    t->in_end -= t->in_at;
    t->in_at = 0;
}

static void fill(tb_tcp *t) {
    if (!t->whole)
        make_room(t);
    if (t->in_end == IN_BYTES || t->error)
        return;
    ssize_t n = recv(t->fd, t->in + t->in_end, IN_BYTES - t->in_end, MSG_DONTWAIT);
    if (n > 0)
        t->in_end += (size_t)n;
    else if (n == 0 || !again())
        t->error = n == 0 ? -1 : errno;
}

static bool receiver_ready(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    if (t->fault.status != TB_OK)
        return false;
    if (take_up(c))
        return true;
    fill(t);
    return take_up(c);
}

static uint8_t *receiver_payload(tb_channel *c, uint32_t length) {
    (void)length;
    return tcp_of(c)->in + tcp_of(c)->in_at + TB_WIRE_HEAD;
}

static tb_head head(tb_channel *c) { return front(tcp_of(c)).head; }

static void release(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    tb_wire_head h = front(t);
    t->in_at += TB_WIRE_HEAD + tb_wire_length(&h);
    t->whole = false;
    c->sequence++;
}

static int failure(const tb_tcp *t, tb_fault *fault) {
    if (t->fault.status == TB_CORRUPT) {
        memcpy(fault->got, t->fault.got, sizeof fault->got);
        memcpy(fault->wanted, t->fault.wanted, sizeof fault->wanted);
        return TB_CORRUPT;
    }
    if (!t->error)
        return TB_OK;
    snprintf(fault->got, sizeof fault->got, "%s",
             t->error < 0 ? "it closed its connection" : strerror(t->error));
    return TB_PEER_DIED;
}

static int sender_progress(tb_channel *c, tb_fault *fault) {
    flush(tcp_of(c));
    return failure(tcp_of(c), fault);
}

static int receiver_progress(tb_channel *c, tb_fault *fault) {
    tb_tcp *t = tcp_of(c);
    if (!receiver_ready(c))
        return failure(t, fault);
    fill(t); /* what stands behind the frame may come in too, so that the peer's buffers drain */
    return TB_OK;
}

static tb_watch sender_watch(tb_channel *c) {
    return (tb_watch){NULL, 0, tcp_of(c)->fd, tcp_of(c)->out_end ? POLLOUT : 0};
}

/* A frame that is there, or a full buffer, is no reason to wake: it waits for its reader. */
static tb_watch receiver_watch(tb_channel *c) {
    tb_tcp *t = tcp_of(c);
    return (tb_watch){NULL, 0, t->fd, t->in_end < IN_BYTES && !t->error ? POLLIN : 0};
}

static const tb_provider sender = {"tcp",  sender_ready, sender_payload,  head,   commit,
                                   release, sender_watch, sender_progress, flushed};
static const tb_provider receiver = {"tcp",  receiver_ready, receiver_payload,  head, commit,
                                     release, receiver_watch, receiver_progress, NULL};

static void put_stamp(tb_channel *c, uint64_t ns) { tcp_of(c)->stamp = ns; }

static uint64_t get_stamp(tb_channel *c) {
    tb_wire_head h = front(tcp_of(c));
    return (uint64_t)h.credit | (uint64_t)h.control << 32;
}

static const tb_stamps stamps = {put_stamp, get_stamp};

static void init(tb_channel *c, const tb_provider *provider, tb_tcp *t, int rank, int peer) {
    *c = (tb_channel){.provider = provider,
                      .stamps = &stamps,
                      .state = t,
                      .sequence = 1,
                      .slot_bytes = TB_TCP_SLOT_BYTES,
                      .rank = rank,
                      .peer = peer};
}

void tb_tcp_sender(tb_channel *c, tb_tcp *t, int rank, int to) { init(c, &sender, t, rank, to); }

void tb_tcp_receiver(tb_channel *c, tb_tcp *t, int rank, int from) { init(c, &receiver, t, rank, from); }
