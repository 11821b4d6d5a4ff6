#include "exposure.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "clock.h"
#include "futex.h"

#define LOOK_NS 10000000 /* one of several sleepers is woken: the others look again */

void tb_exposures_init(tb_exposures *all) {
    memset(all, 0, sizeof *all);
    pthread_mutex_init(&all->lock, NULL);
}

void tb_exposures_end(tb_exposures *all) { pthread_mutex_destroy(&all->lock); }

/* By number; 0: a free place. */
static tb_exposure *find(tb_exposures *all, uint32_t number) {
    for (int i = 0; i < TB_WINDOWS_MAX; i++)
        if (all->place[i].number == number)
            return &all->place[i];
    return NULL;
}

int tb_expose(tb_exposures *all, uint32_t number, const void *memory, uint64_t bytes) {
    pthread_mutex_lock(&all->lock);
    tb_exposure *x = find(all, 0);
    if (x)
        *x = (tb_exposure){.number = number, .state = TB_PLACE_OPEN, .memory = memory, .bytes = bytes};
    pthread_mutex_unlock(&all->lock);
    return x ? 0 : EMFILE;
}

static void free_if_done(tb_exposure *x) {
    if (x->state == TB_PLACE_GONE && x->serving == 0)
        *x = (tb_exposure){0};
}

/* Unlocked while it sleeps. */
static void await_replies(tb_exposures *all, const tb_exposure *x, uint64_t deadline_ns) {
    for (uint64_t now = tb_now_ns(); x->serving && now < deadline_ns; now = tb_now_ns()) {
        uint32_t finished = atomic_load(&all->finished);
        pthread_mutex_unlock(&all->lock);
        tb_futex_wait(&all->finished, finished, deadline_ns - now < LOOK_NS ? deadline_ns - now : LOOK_NS);
        pthread_mutex_lock(&all->lock);
    }
}

void tb_withdraw(tb_exposures *all, uint32_t number, uint64_t deadline_ns) {
    pthread_mutex_lock(&all->lock);
    tb_exposure *x = find(all, number);
    if (x) {
        x->state = TB_PLACE_LEAVING;
        await_replies(all, x, deadline_ns);
        x->state = TB_PLACE_GONE;
        free_if_done(x);
    }
    pthread_mutex_unlock(&all->lock);
}

enum tb_refusal tb_serve_begin(tb_exposures *all, uint32_t number) {
    pthread_mutex_lock(&all->lock);
    tb_exposure *x = number ? find(all, number) : NULL;
    bool open = x && x->state == TB_PLACE_OPEN;
    if (open)
        x->serving++;
    pthread_mutex_unlock(&all->lock);
    return open ? TB_GRANTED : TB_WINDOW_CLOSED;
}

void tb_serve_end(tb_exposures *all, uint32_t number) {
    pthread_mutex_lock(&all->lock);
    tb_exposure *x = find(all, number);
    x->serving--;
    free_if_done(x);
    atomic_fetch_add(&all->finished, 1);
    pthread_mutex_unlock(&all->lock);
    tb_futex_wake(&all->finished);
}

enum tb_refusal tb_serve(tb_exposures *all, uint32_t number, uint64_t offset, uint64_t length, uint8_t *to,
                         uint32_t bytes, uint64_t *exposed) {
    pthread_mutex_lock(&all->lock);
    const tb_exposure *x = find(all, number);
    enum tb_refusal refusal = x->state != TB_PLACE_GONE ? TB_GRANTED : TB_WINDOW_CLOSED;
    *exposed = x->bytes;
    if (refusal == TB_GRANTED && (offset > x->bytes || length > x->bytes - offset))
        refusal = TB_BEYOND;
    if (refusal == TB_GRANTED && bytes)
        memcpy(to, x->memory + offset, bytes);
    pthread_mutex_unlock(&all->lock);
    return refusal;
}
