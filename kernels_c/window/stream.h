/* The connection over which two ranks read each other's windows: requests and replies, both ways, in frames.
 *
 * A frame's `what` is TB_FETCH with a code, its tag the request's number. A reply is cut into frames that the
 * requester counts; replies to several requests take turns. What is asked here is asked by threads that wait;
 * what the peer asks is answered by the service thread, which alone takes frames. */
#ifndef TB_STREAM_H
#define TB_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "exposure.h"
#include "fault.h"
#include "tcp.h"

#define TB_OWED_MAX 64 /* requests on their way that a peer must bear */

/* One read by a thread of this rank. Whoever sets done has filled in the rest. */
typedef struct tb_fetch {
    struct tb_fetch *next;
    uint32_t window, number;
    uint64_t offset, length, got;
    uint8_t *target;
    bool asked;
    enum tb_refusal refusal;
    uint64_t exposed; /* where refused: how many bytes there are */
    tb_fault fault;   /* status TB_OK, or how the stream ended */
    _Atomic uint32_t done;
} tb_fetch;

/* What is still to be sent of a reply. */
typedef struct tb_owed {
    uint32_t window, number;
    uint64_t offset, length;
    bool granted;
} tb_owed;

typedef struct tb_stream {
    pthread_mutex_t lock;
    tb_tcp *tcp; /* NULL: none, or it has ended */
    tb_channel to, from;
    tb_fetch *fetches; /* the oldest first */
    uint32_t number;
    int unanswered; /* requests that were sent and whose last frame has not come */
    int owed_at, owed_count;
    tb_owed owed[TB_OWED_MAX];
    tb_fault fault; /* how it ended */
} tb_stream;

/* Takes the descriptor over; -1 for a rank to which no stream leads. 0 or ENOMEM. */
int tb_stream_init(tb_stream *stream, int fd, int rank, int peer);
void tb_stream_end(tb_stream *stream);

/* Sends the request if it can be sent now. False: the service is to be woken, for it has something to send. */
bool tb_stream_ask(tb_stream *stream, tb_fetch *fetch);
/* Nobody waits for it any more: what still comes of it is dropped. */
void tb_stream_forget(tb_stream *stream, tb_fetch *fetch);

/* Takes what is there and sends what can be sent; true: there may be more at once. */
bool tb_stream_pump(tb_stream *stream, tb_exposures *exposures);
/* What to poll for; fd -1: nothing. */
tb_watch tb_stream_watch(tb_stream *stream);
/* Ends it for all that wait; nothing is served any more. */
void tb_stream_break(tb_stream *stream, tb_exposures *exposures, int status);

#endif
