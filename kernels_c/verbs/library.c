/* The verbs library, by dlopen: a program linked against librdma would not start on a macOS without it, and the
 * library stands in no file there. */
#include "port.h"

#if TB_HAVE_VERBS

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const PLACES[] = {
#if defined(__APPLE__)
    "/usr/lib/librdma.dylib", "librdma.dylib",
#else
    "libibverbs.so.1",
#endif
};

typedef struct symbol {
    const char *name;
    size_t at;
} symbol;

#define SYMBOL(field) {"ibv_" #field, offsetof(tb_library, field)}
static const symbol SYMBOLS[] = {
    SYMBOL(get_device_list), SYMBOL(free_device_list), SYMBOL(get_device_name), SYMBOL(open_device),
    SYMBOL(close_device),    SYMBOL(query_device),     SYMBOL(query_port),      SYMBOL(query_gid),
    SYMBOL(alloc_pd),        SYMBOL(dealloc_pd),       SYMBOL(reg_mr),          SYMBOL(dereg_mr),
    SYMBOL(create_cq),       SYMBOL(destroy_cq),       SYMBOL(create_qp),       SYMBOL(destroy_qp),
    SYMBOL(modify_qp),       SYMBOL(query_qp)};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tb_library library;

static void *open_one(const char *path, char *words, size_t room) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle)
        snprintf(library.path, sizeof library.path, "%s", path);
    else
        snprintf(words, room, "%s", dlerror());
    return handle;
}

static void *open_library(char *words, size_t room) {
    const char *asked = getenv("TBKIT_LIBRDMA");
    if (asked && *asked)
        return open_one(asked, words, room);
    void *handle = NULL;
    for (size_t i = 0; !handle && i < sizeof PLACES / sizeof *PLACES; i++)
        handle = open_one(PLACES[i], words, room);
    return handle;
}

static bool resolve(void *handle, char *words, size_t room) {
    for (size_t i = 0; i < sizeof SYMBOLS / sizeof *SYMBOLS; i++) {
        void *address = dlsym(handle, SYMBOLS[i].name);
        if (!address) {
            snprintf(words, room, "%s lacks %s", library.path, SYMBOLS[i].name);
            return false;
        }
        memcpy((char *)&library + SYMBOLS[i].at, &address, sizeof address);
    }
    return true;
}

const tb_library *tb_library_get(char *words, size_t room) {
    static bool loaded;
    pthread_mutex_lock(&lock);
    if (!loaded) {
        void *handle = open_library(words, room);
        loaded = handle && resolve(handle, words, room);
        if (handle && !loaded)
            dlclose(handle);
    }
    const tb_library *found = loaded ? &library : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

#endif
