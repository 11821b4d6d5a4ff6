#include "progress.h"

#include <poll.h>

#include "clock.h"
#include "futex.h"
#include "group.h"

#define NAP_NS 50000 /* where a channel has nothing to sleep on, or memory and connections are watched at once */

static int help(tb_group *g, tb_channel *c, int awaited) {
    tb_fault fault = {.status = TB_OK, .peer = c->peer, .by = g->rank};
    int status = c->provider && c->provider->progress ? c->provider->progress(c, &fault) : TB_OK;
    if (status == TB_OK || (status == TB_PEER_DIED && c->peer != awaited))
        return TB_OK;
    g->fault = fault;
    g->fault.status = status;
    return status;
}

int tb_progress(tb_group *g, int awaited) {
    int status = TB_OK;
    for (int r = 0; r < g->size && status == TB_OK; r++) {
        status = help(g, &g->to[r], awaited);
        if (status == TB_OK)
            status = help(g, &g->from[r], awaited);
    }
    return status;
}

/* Adds the channel to the descriptors; false where it can only be looked at again. */
static bool add(tb_channel *c, struct pollfd *asks, int *count) {
    if (!c->provider || !c->provider->progress)
        return true;
    tb_watch w = c->provider->watch(c);
    if (w.fd < 0)
        return false;
    if (w.events)
        asks[(*count)++] = (struct pollfd){.fd = w.fd, .events = w.events};
    return true;
}

static void poll_ns(struct pollfd *asks, int count, uint64_t ns) {
#if defined(__linux__)
    struct timespec limit = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    ppoll(asks, (nfds_t)count, &limit, NULL);
#else
    poll(asks, (nfds_t)count, ns < 1000000 ? 1 : (int)(ns / 1000000));
#endif
}

void tb_sleep_on_links(tb_group *g, tb_watch watch, uint64_t ns) {
    struct pollfd asks[2 * TB_MAX_RANKS];
    int count = 0;
    bool all = true;
    if (watch.word) {
        tb_futex_wait(watch.word, watch.old, ns < NAP_NS ? ns : NAP_NS);
        return;
    }
    for (int r = 0; r < g->size && all; r++)
        all = add(&g->to[r], asks, &count) && add(&g->from[r], asks, &count);
    if (all && count)
        poll_ns(asks, count, ns);
    else
        tb_sleep_ns(ns < NAP_NS ? ns : NAP_NS);
}
