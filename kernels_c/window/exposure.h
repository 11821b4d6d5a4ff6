/* What a rank exposes: the memory of its open windows, by number, and how many replies still take from each. */
#ifndef TB_EXPOSURE_H
#define TB_EXPOSURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "window.h"

#define TB_WINDOWS_MAX 64 /* open at once on one rank */

typedef struct tb_exposure {
    uint32_t number, serving; /* serving: replies that are not finished */
    enum { TB_PLACE_FREE = 0, TB_PLACE_OPEN, TB_PLACE_LEAVING, TB_PLACE_GONE } state; /* only OPEN takes requests */
    const uint8_t *memory;
    uint64_t bytes;
} tb_exposure;

typedef struct tb_exposures {
    pthread_mutex_t lock;
    _Atomic uint32_t finished; /* changes with each reply that is over */
    tb_exposure place[TB_WINDOWS_MAX];
} tb_exposures;

void tb_exposures_init(tb_exposures *all);
void tb_exposures_end(tb_exposures *all);

/* 0, or EMFILE where as many are open as can be. */
int tb_expose(tb_exposures *all, uint32_t number, const void *memory, uint64_t bytes);
/* No new request is granted; replies under way may go on until the deadline, then the memory is touched no more. */
void tb_withdraw(tb_exposures *all, uint32_t number, uint64_t deadline_ns);

/* A request comes: granted, it is to be ended by tb_serve_end. */
enum tb_refusal tb_serve_begin(tb_exposures *all, uint32_t number);
void tb_serve_end(tb_exposures *all, uint32_t number);
/* Copies `bytes` of the `length` from offset on, if all of them are exposed; *exposed: how many bytes there are. */
enum tb_refusal tb_serve(tb_exposures *all, uint32_t number, uint64_t offset, uint64_t length, uint8_t *to,
                         uint32_t bytes, uint64_t *exposed);

#endif
