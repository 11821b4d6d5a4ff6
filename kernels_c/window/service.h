/* The thread that serves a rank's windows, and the streams to all other ranks. */
#ifndef TB_SERVICE_H
#define TB_SERVICE_H

#include "exposure.h"
#include "stream.h"
#include "window.h"

typedef struct tb_service {
    tb_exposures exposures;
    tb_stream stream[TB_MAX_RANKS]; /* own: none */
    uint32_t windows;               /* made so far, on all ranks alike */
    int size, wake[2];
    _Atomic uint32_t stop, callers;
    bool running;
    pthread_t thread;
} tb_service;

struct tb_memory_window {
    tb_group *group; /* outlives it */
    uint32_t number;
    uint64_t bytes[TB_MAX_RANKS];
};

/* Takes the descriptors over; -1: none. 0 or an errno; then it is to be freed all the same. */
int tb_service_start(tb_service *service, int rank, int size, const int fd[TB_MAX_RANKS]);
void tb_service_wake(tb_service *service);

#endif
