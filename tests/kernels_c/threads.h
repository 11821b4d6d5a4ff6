/* Ranks as threads over one mapping, so that a thread sanitizer sees both ends of every channel. */
#ifndef TB_THREADS_H
#define TB_THREADS_H

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "group.h"

#define SECOND 1000000000ull

typedef struct tb_thread_rank {
    tb_group group;
    tb_header *header;
    int rank;
    enum tb_policy policy;
    void (*body)(tb_group *);
    pthread_t thread;
} tb_thread_rank;

static void *tb_run_rank(void *context) {
    tb_thread_rank *r = context;
    CHECK(tb_group_attach(&r->group, r->header, r->rank, tb_now_ns() + 20 * SECOND) == TB_OK);
    r->group.waiting.policy = r->policy;
    r->body(&r->group);
    tb_group_close(&r->group);
    return NULL;
}

static void tb_run_ranks(int size, enum tb_policy policy, void (*body)(tb_group *)) {
    static int number;
    char name[64];
    tb_segment segment;
    tb_thread_rank *ranks = NULL;
    CHECK(posix_memalign((void **)&ranks, TB_LINE, (size_t)size * sizeof *ranks) == 0);
    snprintf(name, sizeof name, "tbc-%d-%d", (int)getpid(), number++);
    CHECK(tb_segment_open(&segment, name, size, true, tb_now_ns() + SECOND) == 0);
    tb_segment_unlink(&segment);
    for (int r = 0; r < size; r++) {
        memset(&ranks[r], 0, sizeof ranks[r]);
        ranks[r].header = segment.header;
        ranks[r].rank = r;
        ranks[r].policy = policy;
        ranks[r].body = body;
        CHECK(pthread_create(&ranks[r].thread, NULL, tb_run_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
    tb_segment_close(&segment);
    free(ranks);
}

#endif
