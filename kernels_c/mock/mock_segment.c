/* The folder of a namespace: a lock, who is there, the shared segment, one mailbox a queue pair. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mock_state.h"

#define MAGIC 0x31306b636f6d6274u

tbmock_segment *tbmock_shared;
tbmock_process *tbmock_self;

static char place[128], folder[200]; /* of all namespaces; of this one */
static int lock_fd = -1, present_fd = -1;
static pthread_mutex_t within = PTHREAD_MUTEX_INITIALIZER; /* flock is held by the process, not by a thread */

static void set_folder(void) {
    const char *found = getenv("TMPDIR");
#if defined(__linux__)
    if (access("/dev/shm", W_OK) == 0)
        found = "/dev/shm";
#endif
    snprintf(place, sizeof place, "%s", found ? found : "/tmp");
    snprintf(folder, sizeof folder, "%s/tbmock-%u-%s", place, getuid(), tbmock_cables.name);
}

static int open_at(const char *at, const char *name, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", at, name);
    return open(path, flags | O_CLOEXEC, 0600);
}

static int open_in(const char *name, int flags) { return open_at(folder, name, flags); }

/* The last process takes the folder away: a lock file that has no name any more is not the lock. */
static int lock_folder(void) {
    for (int tries = 0; tries < 1000; tries++) {
        struct stat facts;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return errno;
        int fd = open_in("lock", O_CREAT | O_RDWR);
        if (fd < 0 && errno != ENOENT)
            return errno;
        if (fd >= 0 && flock(fd, LOCK_EX) == 0 && fstat(fd, &facts) == 0 && facts.st_nlink > 0) {
            lock_fd = fd;
            return 0;
        }
        if (fd >= 0)
            close(fd);
    }
    return EAGAIN;
}

static void clear_folder(const char *at, bool wholly) {
    DIR *entries = opendir(at);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        bool kept = strcmp(entry->d_name, "lock") == 0 || strcmp(entry->d_name, "present") == 0;
        if (entry->d_name[0] != '.' && (wholly || !kept))
            unlinkat(dirfd(entries), entry->d_name, 0);
    }
    if (entries)
        closedir(entries);
    if (wholly)
        rmdir(at);
}

/* Another namespace whose last process was killed: nobody holds its lock, nobody is present. */
static void clear_if_dead(const char *at) {
    int lock = open_at(at, "lock", O_RDWR), present = -1;
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0)
        present = open_at(at, "present", O_RDWR);
    if (present >= 0 && flock(present, LOCK_EX | LOCK_NB) == 0)
        clear_folder(at, true);
    if (present >= 0)
        close(present);
    if (lock >= 0)
        close(lock);
}

static void clear_dead_namespaces(void) {
    char prefix[32], at[400];
    DIR *entries = opendir(place);
    snprintf(prefix, sizeof prefix, "tbmock-%u-", getuid());
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        snprintf(at, sizeof at, "%s/%s", place, entry->d_name);
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(at, folder) != 0)
            clear_if_dead(at);
    }
    if (entries)
        closedir(entries);
}

static void *map_file(int fd, size_t bytes, bool create) {
    if (fd < 0)
        return NULL;
    void *at = create && ftruncate(fd, (off_t)bytes) != 0
                   ? MAP_FAILED
                   : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static int map_segment(bool fresh) {
    tbmock_shared = map_file(open_in("segment", O_RDWR | (fresh ? O_CREAT : 0)), sizeof *tbmock_shared, fresh);
    if (!tbmock_shared)
        return errno ? errno : ENOMEM;
    if (fresh) {
        tbmock_shared->magic = MAGIC;
        tbmock_shared->cabling = tbmock_cabling_hash();
    }
    if (tbmock_shared->magic == MAGIC && tbmock_shared->cabling == tbmock_cabling_hash())
        return 0;
    return tbmock_say("TBKIT_MOCK: other processes of the namespace have other cables", tbmock_cables.name,
                      "give all the same cables=, or another namespace=");
}

static bool gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

/* What a killed process held comes back, unless the rule says that it leaks. */
static void reap(void) {
    for (int i = 0; i < atomic_load(&tbmock_shared->processes); i++) {
        tbmock_process *process = &tbmock_shared->process[i];
        int32_t pid = atomic_load(&process->pid);
        if (pid == 0 || !gone(pid) || tbmock_rule.leak)
            continue;
        memset(process->use, 0, sizeof process->use);
        atomic_store(&process->pid, 0);
    }
}

static int enter_table(void) {
    int used = atomic_load(&tbmock_shared->processes), i = 0;
    while (i < used && atomic_load(&tbmock_shared->process[i].pid) != 0)
        i++;
    if (i == MAX_PROCESSES)
        return EAGAIN;
    tbmock_self = &tbmock_shared->process[i];
    atomic_store(&tbmock_self->pid, (int32_t)getpid());
    if (i == used)
        atomic_store(&tbmock_shared->processes, used + 1);
    return 0;
}

/* An exclusive hold on "present" can be had only where no other process lives: then the namespace begins anew. */
static int attach_locked(void) {
    present_fd = open_in("present", O_CREAT | O_RDWR);
    if (present_fd < 0)
        return errno;
    bool fresh = flock(present_fd, LOCK_EX | LOCK_NB) == 0;
    if (fresh)
        clear_folder(folder, false);
    if (flock(present_fd, LOCK_SH) != 0)
        return errno;
    int error = map_segment(fresh);
    if (error)
        return error;
    reap();
    return enter_table();
}

int tbmock_attach(void) {
    if (tbmock_shared)
        return 0;
    set_folder();
    int error = lock_folder();
    if (error)
        return error;
    clear_dead_namespaces();
    error = attach_locked();
    flock(lock_fd, LOCK_UN);
    if (error && tbmock_shared) {
        munmap(tbmock_shared, sizeof *tbmock_shared);
        tbmock_shared = NULL;
    }
    return error;
}

__attribute__((destructor)) static void leave(void) {
    if (!tbmock_self || atomic_load(&tbmock_self->pid) != (int32_t)getpid() || flock(lock_fd, LOCK_EX) != 0)
        return;
    memset(tbmock_self->use, 0, sizeof tbmock_self->use);
    atomic_store(&tbmock_self->pid, 0);
    if (flock(present_fd, LOCK_EX | LOCK_NB) == 0)
        clear_folder(folder, true);
    close(lock_fd);
    close(present_fd);
}

static int64_t total(int device, size_t field) {
    int64_t sum = 0;
    for (int i = 0; i < atomic_load_explicit(&tbmock_shared->processes, memory_order_acquire); i++)
        sum += atomic_load((_Atomic int32_t *)((char *)&tbmock_shared->process[i].use[device] + field));
    return sum;
}

/* First added, then summed: two processes that ask for the last one may both be refused, never both served. */
bool tbmock_take(int device, size_t field, int32_t amount, int64_t limit) {
    _Atomic int32_t *own = (_Atomic int32_t *)((char *)&tbmock_self->use[device] + field);
    atomic_fetch_add(own, amount);
    if (limit == TBMOCK_OFF || total(device, field) <= limit)
        return true;
    pthread_mutex_lock(&within);
    flock(lock_fd, LOCK_EX);
    reap();
    flock(lock_fd, LOCK_UN);
    pthread_mutex_unlock(&within);
    if (total(device, field) <= limit)
        return true;
    atomic_fetch_sub(own, amount);
    return false;
}

void tbmock_give(int device, size_t field, int32_t amount) {
    atomic_fetch_sub((_Atomic int32_t *)((char *)&tbmock_self->use[device] + field), amount);
}

static void mailbox_name(char name[32], int device, uint32_t qpn) { snprintf(name, 32, "q-%d-%u", device, qpn); }

tbmock_mailbox *tbmock_mailbox_create(int device, uint32_t qpn) {
    char name[32];
    mailbox_name(name, device, qpn);
    size_t bytes = sizeof(tbmock_mailbox) + (size_t)tbmock_rule.ring;
    tbmock_mailbox *box = map_file(open_in(name, O_CREAT | O_EXCL | O_RDWR), bytes, true);
    if (box)
        box->ring_bytes = (uint64_t)tbmock_rule.ring;
    return box;
}

tbmock_mailbox *tbmock_mailbox_open(int device, uint32_t qpn) {
    char name[32];
    struct stat facts;
    mailbox_name(name, device, qpn);
    int fd = open_in(name, O_RDWR);
    if (fd >= 0 && (fstat(fd, &facts) != 0 || (size_t)facts.st_size <= sizeof(tbmock_mailbox))) {
        close(fd);
        fd = -1;
    }
    return map_file(fd, fd < 0 ? 0 : (size_t)facts.st_size, false);
}

void tbmock_mailbox_close(tbmock_mailbox *box) {
    if (box)
        munmap(box, sizeof *box + box->ring_bytes);
}

void tbmock_mailbox_remove(int device, uint32_t qpn) {
    char name[32], path[256];
    mailbox_name(name, device, qpn);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}
