/* Groups and observers as opaque handles: what the Python module (or another language) sees of them. */
#ifndef TB_HANDLE_H
#define TB_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "wait.h"

typedef struct tb_group tb_group;
typedef struct tb_observer tb_observer;
struct tb_shaping;

typedef struct tb_count {
    uint64_t calls, bytes; /* finished operations and this rank's payload in them */
} tb_count;

typedef struct tb_hooks {
    void *context;
    void (*before_block)(void *); /* once an operation, before its first wait that takes long */
    int (*tick)(void *);          /* each 100 ms of waiting; not 0 ends the wait with TB_SIGNAL */
} tb_hooks;

typedef struct tb_rank_facts {
    int state, pid, kind, peer; /* state 0 not there, 1 joining, 2 in the group, 3 left; peer 255: none */
    bool done;                  /* the last operation is over */
    uint64_t sequence, collectives, start_ns, heartbeat_ns;
} tb_rank_facts;

/* `shaping`: of the links, NULL for none (wire/shaped.h). NULL only where memory ran out. *status and *error as tb_group_join gives them; unless TB_OK the handle
 * serves for its fault alone. */
tb_group *tb_handle_join(const char *name, int rank, int size, const struct tb_shaping *shaping, uint64_t timeout_ns,
                         tb_hooks hooks, int *status, int *error);
void tb_handle_free(tb_group *group);
void tb_handle_close(tb_group *group);
bool tb_handle_is_open(const tb_group *group);
void tb_handle_policy(tb_group *group, enum tb_policy policy);
bool tb_handle_oversubscribed(const tb_group *group);
int tb_handle_fd(const tb_group *group);
tb_count tb_handle_count(const tb_group *group, enum tb_kind kind);
tb_rank_facts tb_handle_facts(const tb_group *group, int rank);
/* " on mac2, cable …": where a rank is; "" in a group of one node. */
void tb_handle_words(const tb_group *group, int rank, char *text, size_t room);
void tb_handle_interrupt(tb_group *group, uint32_t ranks);
/* Calls the before_block hook now: for payloads whose copying alone takes long. */
void tb_handle_block(tb_group *group);
/* Tests only: the heads of the next `frames` frames to be sent are damaged. */
void tb_testing_corrupt(tb_group *group, uint32_t frames);

/* An observer maps the segment and is no rank. By name it makes the segment if it is not there yet (size > 0). */
tb_observer *tb_observer_open(const char *name, int size, uint64_t timeout_ns, int *error);
tb_observer *tb_observer_open_fd(int fd, int *error); /* takes the descriptor over */
void tb_observer_free(tb_observer *observer);         /* unlinks a name whose ranks never all came */
int tb_observer_size(const tb_observer *observer);
int tb_observer_attached(const tb_observer *observer);
bool tb_observer_broken(const tb_observer *observer, tb_fault *fault);
tb_rank_facts tb_observer_facts(const tb_observer *observer, int rank);
void tb_observer_interrupt(tb_observer *observer, uint32_t ranks); /* bit r: rank r's next or present wait ends */
int tb_discard(const char *name);

#endif
