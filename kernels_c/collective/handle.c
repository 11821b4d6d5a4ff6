#include "handle.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "group.h"
#include "mesh.h"

struct tb_observer {
    tb_segment segment;
};

static tb_rank_facts facts(const tb_header *header, int rank) {
    const tb_control *c = &header->control[rank];
    uint64_t operation = atomic_load_explicit(&c->operation, memory_order_acquire);
    return (tb_rank_facts){.state = (int)atomic_load(&c->state),
                           .pid = atomic_load(&c->pid),
                           .kind = operation & 0xff,
                           .peer = operation >> 8 & 0xff,
                           .done = operation >> 16 & 1,
                           .sequence = operation >> 24,
                           .collectives = atomic_load(&c->collectives),
                           .start_ns = atomic_load(&c->operation_start_ns),
                           .heartbeat_ns = atomic_load(&c->heartbeat_ns)};
}

static void interrupt_ranks(tb_header *header, uint32_t ranks) {
    for (uint32_t r = 0; r < header->size; r++)
        if (ranks >> r & 1)
            atomic_store(&header->control[r].interrupt, 1);
}

tb_group *tb_handle_join(const char *name, int rank, int size, const tb_shaping *shaping, uint64_t timeout_ns,
                         tb_hooks hooks, int *status, int *error) {
    void *memory = NULL;
    if (posix_memalign(&memory, TB_LINE, sizeof(tb_group)) != 0)
        return NULL;
    tb_group *g = memory;
    *g = (tb_group){.hooks = hooks, .waiting = {.policy = TB_AUTO}, .shaping = shaping ? shaping->digest : 0};
    *status = tb_group_join(g, name, rank, size, tb_now_ns() + timeout_ns, error);
    if (*status == TB_OK && shaping)
        *error = tb_shape_links(g, shaping);
    if (*status == TB_OK && *error)
        *status = TB_INVALID;
    return g;
}

void tb_handle_close(tb_group *g) { tb_group_close(g); }

void tb_handle_free(tb_group *g) {
    tb_group_close(g);
    free(g);
}

bool tb_handle_is_open(const tb_group *g) { return g->header != NULL; }
void tb_handle_policy(tb_group *g, enum tb_policy policy) { g->waiting.policy = policy; }
bool tb_handle_oversubscribed(const tb_group *g) { return g->waiting.oversubscribed; }
int tb_handle_fd(const tb_group *g) { return g->segment.fd; }
tb_count tb_handle_count(const tb_group *g, enum tb_kind kind) { return g->counts[kind]; }
tb_rank_facts tb_handle_facts(const tb_group *g, int rank) { return facts(g->header, rank); }

void tb_handle_words(const tb_group *g, int rank, char *text, size_t room) {
    text[0] = 0;
    if (g->mesh)
        tb_mesh_words(g->mesh, g->rank, rank, text, room);
}

void tb_handle_interrupt(tb_group *g, uint32_t ranks) { interrupt_ranks(g->header, ranks); }
void tb_testing_corrupt(tb_group *g, uint32_t frames) { g->corrupt_next = frames; }

void tb_handle_block(tb_group *g) {
    if (g->hooks.before_block)
        g->hooks.before_block(g->hooks.context);
}

tb_observer *tb_observer_open(const char *name, int size, uint64_t timeout_ns, int *error) {
    tb_observer *o = calloc(1, sizeof *o);
    *error = o ? tb_segment_open(&o->segment, name, size, true, tb_now_ns() + timeout_ns) : ENOMEM;
    if (!*error)
        return o;
    free(o);
    return NULL;
}

tb_observer *tb_observer_open_fd(int fd, int *error) {
    tb_observer *o = calloc(1, sizeof *o);
    *error = o ? tb_segment_map_fd(&o->segment, fd) : ENOMEM;
    if (!*error)
        return o;
    free(o);
    return NULL;
}

void tb_observer_free(tb_observer *o) {
    if (o->segment.created)
        tb_segment_unlink(&o->segment);
    tb_segment_close(&o->segment);
    free(o);
}

int tb_observer_size(const tb_observer *o) { return (int)o->segment.header->size; }
int tb_observer_attached(const tb_observer *o) { return (int)atomic_load(&o->segment.header->attached); }
tb_rank_facts tb_observer_facts(const tb_observer *o, int rank) { return facts(o->segment.header, rank); }
void tb_observer_interrupt(tb_observer *o, uint32_t ranks) { interrupt_ranks(o->segment.header, ranks); }
int tb_discard(const char *name) { return tb_segment_discard(name); }

bool tb_observer_broken(const tb_observer *o, tb_fault *fault) {
    uint64_t broken = atomic_load(&o->segment.header->broken);
    if (broken)
        tb_fault_unpack(broken, fault);
    return broken != 0;
}
