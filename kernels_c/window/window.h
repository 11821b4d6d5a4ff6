/* Windows: memory of each rank that all ranks of the group may read, by request and reply (no RDMA READ is to be
 * had here). One service thread a rank, for all windows of its group, answers from memory and takes the answers;
 * it sleeps in poll() while nothing comes and needs nothing of the caller's language.
 *
 * Between nodes the carrier is a stream over the first cable of the pair, brought up with the mesh; beside queue
 * pairs too, of which a port may have three in all. Ranks of one node have a local socket each.
 * A read that fails is its caller's matter alone; the group stays whole. */
#ifndef TB_WINDOWS_H
#define TB_WINDOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "handle.h"
#include "mesh.h"

typedef struct tb_memory_window tb_memory_window;

enum tb_refusal { TB_GRANTED = 0, TB_WINDOW_CLOSED, TB_BEYOND };
enum tb_carrier { TB_CARRIER_SELF = 0, TB_CARRIER_LOCAL, TB_CARRIER_STREAM, TB_CARRIER_RELAY };

typedef struct tb_read {
    int rank;
    uint64_t offset, length;
    void *target;
    uint64_t timeout_ns;
    tb_hooks hooks; /* tick: each 100 ms of waiting */
} tb_read;

/* How a read ended: TB_OK; TB_INVALID with the refusal; or a fault. */
typedef struct tb_read_end {
    tb_fault fault;
    enum tb_refusal refusal;
    uint64_t got, exposed;
} tb_read_end;

/* All ranks call it. TB_OK; TB_INVALID with the error filled in; or a status with the group's fault. bytes 0: this
 * rank exposes nothing. The memory stays until the window or the group is closed. */
int tb_window_expose(tb_group *group, const void *memory, uint64_t bytes, uint64_t timeout_ns, tb_memory_window **window,
                     tb_mesh_error *error);
/* Exposes no more; replies under way are finished, for at most so long. Others' memory can still be read. */
void tb_window_close(tb_memory_window *window, uint64_t timeout_ns);
void tb_window_free(tb_memory_window *window); /* after the close of window or group */

/* Around calls from threads that do not own the group: between them the group's close waits. False: it is closed.
 * Enter is to be ordered with the group's close by the caller's own lock. */
bool tb_window_enter(tb_memory_window *window);
void tb_window_leave(tb_memory_window *window);

/* Any thread, several at once. */
int tb_window_read(tb_memory_window *window, const tb_read *read, tb_read_end *end);
/* The same read so many times; us[i]: how long it took. */
int tb_window_times(tb_memory_window *window, const tb_read *read, size_t times, double *us, tb_read_end *end);

uint64_t tb_window_bytes(const tb_memory_window *window, int rank); /* as exposed at the beginning */
enum tb_carrier tb_window_carrier(const tb_memory_window *window, int rank);

struct tb_service;
void tb_service_free(struct tb_service *service); /* of the group, at its close */

#endif
