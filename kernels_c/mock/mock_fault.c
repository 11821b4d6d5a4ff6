/* Faults: what fires at a call, at a file, or at once. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "mock.h"
#include "mock_state.h"

#define LOOK_NS 1000000u /* how often a trigger file is looked for */

enum kind { ERROR, HANG, CRASH, KILL, PULL, DOWN, LOSE, CORRUPT, KINDS };

static const char *const KIND_NAMES[KINDS] = {"error", "hang", "crash", "kill", "pull", "down", "lose", "corrupt"};
static const char *const CALL_NAMES[CALLS] = {
    "get_device_list", "open_device", "query_device", "query_port", "query_gid", "alloc_pd",  "reg_mr",  "create_cq",
    "create_qp",       "init",        "rtr",          "rts",        "modify_qp", "query_qp",  "post_send", "post_recv",
    "poll_cq",         "destroy_qp",  "dereg_mr",     "destroy_cq", "dealloc_pd", "close_device"};

/* Apple's number and this machine's: on Linux several differ. */
static const struct {
    const char *name;
    int apple, here;
} ERRORS[] = {{"ENOMEM", 12, ENOMEM},     {"EBUSY", 16, EBUSY},     {"EINVAL", 22, EINVAL}, {"EIO", 5, EIO},
              {"ETIMEDOUT", 60, ETIMEDOUT}, {"ENODATA", 96, ENODATA}, {"EAGAIN", 35, EAGAIN}, {"ENXIO", 6, ENXIO},
              {"EOPNOTSUPP", 102, EOPNOTSUPP}};

typedef struct fault {
    enum kind kind;
    int error, device; /* device -1: the one of the call, or all of this node */
    int call;          /* -1: any */
    uint64_t from, until;
    char file[200];
    _Atomic bool fired; /* file: it is done */
} fault;

static fault faults[32];
static _Atomic int fault_count;
static _Atomic bool files_wanted;
static _Atomic uint64_t calls[CALLS], looked_ns;

static int name_index(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static int bad(const char *text) { return tbmock_say("TBKIT_MOCK_FAULTS: not a fault", text, "mock.h has the syntax"); }

static int read_error(const char *value) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof ERRORS[0]; i++)
        if (strcmp(value, ERRORS[i].name) == 0 || atoi(value) == ERRORS[i].apple)
            return ERRORS[i].here;
    return 0;
}

static int read_device(const char *name) {
    for (int i = 0; i < tbmock_cables.devices; i++)
        if (strcmp(tbmock_cables.end[i].node, tbmock_cables.node) == 0 && strcmp(tbmock_cables.end[i].name, name) == 0)
            return i;
    return -1;
}

static int read_value(fault *f, const char *value) {
    if (f->kind == ERROR)
        return value && (f->error = read_error(value)) ? 0 : EINVAL;
    if (f->kind == PULL || f->kind == DOWN)
        return !value || (f->device = read_device(value)) >= 0 ? 0 : EINVAL;
    return value ? EINVAL : 0;
}

/* CALL, CALL:N, CALL:N+ or file:PATH. */
static int read_when(fault *f, char *when) {
    if (strncmp(when, "file:", 5) == 0) {
        snprintf(f->file, sizeof f->file, "%s", when + 5);
        return f->kind == ERROR || strlen(when + 5) >= sizeof f->file || !when[5] ? EINVAL : 0;
    }
    char *number = strchr(when, ':'), *end = NULL;
    if (number)
        *number++ = '\0';
    f->call = name_index(CALL_NAMES, CALLS, when);
    f->from = number ? strtoull(number, &end, 10) : 1;
    bool plus = !number || *end == '+';
    f->until = plus ? UINT64_MAX : f->from;
    bool whole = !number || (end > number && end[plus] == '\0');
    return f->call < 0 || f->from == 0 || !whole ? EINVAL : 0;
}

static void pull_or_down(const fault *f, int device) {
    for (int i = 0; i < tbmock_cables.devices; i++) {
        int only = f->device >= 0 ? f->device : device;
        if ((only >= 0 && i != only) || strcmp(tbmock_cables.end[i].node, tbmock_cables.node) != 0)
            continue;
        int peer = tbmock_cables.end[i].peer;
        if (f->kind == DOWN)
            atomic_store(&tbmock_shared->port[i].down, 1);
        else
            atomic_store(&tbmock_shared->port[i].pulled, 1);
        if (f->kind == PULL && peer >= 0)
            atomic_store(&tbmock_shared->port[peer].pulled, 1);
    }
}

/* The door-bell page of a cable that is out is no longer mapped. */
static void touch_missing_page(void) {
    volatile char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    *page = 1;
}

static int strike(const fault *f, int device, unsigned *mark) {
    switch (f->kind) {
    case ERROR:
        return f->error;
    case HANG:
        for (;;)
            pause();
    case CRASH:
        touch_missing_page();
        return 0;
    case KILL:
        raise(SIGKILL);
        return 0;
    case PULL:
    case DOWN:
        pull_or_down(f, device);
        return 0;
    default:
        if (mark)
            *mark |= f->kind == LOSE ? MARK_LOSE : MARK_CORRUPT;
        return 0;
    }
}

static int read_one(char *text) {
    fault *f = &faults[atomic_load(&fault_count)];
    memset(f, 0, sizeof *f);
    f->device = f->call = -1;
    char *when = strchr(text, '@');
    if (when)
        *when++ = '\0';
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    int kind = name_index(KIND_NAMES, KINDS, tbmock_trim(text));
    if (kind < 0 || f == &faults[sizeof faults / sizeof faults[0] - 1])
        return bad(text);
    f->kind = (enum kind)kind;
    if (read_value(f, value ? tbmock_trim(value) : NULL) || (when && read_when(f, tbmock_trim(when))))
        return bad(text);
    if (!when && (f->kind == ERROR || f->kind == LOSE || f->kind == CORRUPT))
        return bad(text);
    if (!when)
        return strike(f, -1, NULL);
    if (f->file[0])
        atomic_store(&files_wanted, true);
    atomic_fetch_add(&fault_count, 1);
    return 0;
}

int tbmock_read_faults(const char *text) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char *copy = strdup(text ? text : ""), *rest = copy, *item;
    int error = copy ? 0 : ENOMEM;
    pthread_mutex_lock(&lock);
    while (!error && (item = strsep(&rest, ",;\n")))
        if (*(item = tbmock_trim(item)))
            error = read_one(item);
    pthread_mutex_unlock(&lock);
    free(copy);
    return error;
}

TBMOCK_API int tbmock_fault(const char *text) { return tbmock_shared ? tbmock_read_faults(text) : EINVAL; }

TBMOCK_API uint64_t tbmock_calls(const char *call) {
    int index = name_index(CALL_NAMES, CALLS, call);
    return index < 0 ? UINT64_MAX : atomic_load(&calls[index]);
}

/* True where it is time to look for the trigger files again. */
static bool time_to_look(void) {
    struct timespec t;
    if (!atomic_load_explicit(&files_wanted, memory_order_relaxed))
        return false;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, before = atomic_load(&looked_ns);
    return now - before >= LOOK_NS && atomic_compare_exchange_strong(&looked_ns, &before, now);
}

static bool due(fault *f, enum tbmock_call call, uint64_t nth, bool look) {
    if (f->file[0])
        return look && !atomic_load(&f->fired) && access(f->file, F_OK) == 0 && !atomic_exchange(&f->fired, true);
    return f->call == (int)call && nth >= f->from && nth <= f->until;
}

/* Taking down must still work on a wedged device, or nobody could show an ordered end. */
static bool takes_down(enum tbmock_call call) { return call >= CALL_DESTROY_QP; }

int tbmock_enter(enum tbmock_call call, int device, unsigned *mark) {
    uint64_t nth = 1 + atomic_fetch_add_explicit(&calls[call], 1, memory_order_relaxed);
    int error = 0, count = atomic_load_explicit(&fault_count, memory_order_acquire);
    bool look = count > 0 && time_to_look();
    for (int i = 0; i < count && !error; i++)
        if (due(&faults[i], call, nth, look))
            error = strike(&faults[i], device, mark);
    if (error || device < 0)
        return error;
    const tbmock_port *port = &tbmock_shared->port[device];
    if ((call == CALL_SEND || call == CALL_RECV) && atomic_load_explicit(&port->pulled, memory_order_relaxed))
        touch_missing_page();
    return atomic_load_explicit(&port->wedged, memory_order_relaxed) && !takes_down(call) ? EIO : 0;
}
