/* Protection domains and regions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock.h"
#include "mock_state.h"

#define ALL_FLAGS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

TBMOCK_API struct ibv_pd *ibv_alloc_pd(struct ibv_context *handle) {
    tbmock_context *context = context_of(handle);
    const tbmock_port *port = &tbmock_shared->port[context->device];
    int error = tbmock_enter(CALL_ALLOC_PD, context->device, NULL);
    if (!error && (tbmock_cables.end[context->device].peer < 0 || port->down || port->pulled))
        error = ENXIO;
    if (!error && !TAKE(context->device, pds, 1, tbmock_rule.max_pd))
        error = ENOMEM;
    tbmock_pd *pd = error ? NULL : calloc(1, sizeof *pd);
    if (!pd) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    pd->ibv.context = handle;
    pthread_mutex_lock(&context->lock);
    context->pds++;
    pthread_mutex_unlock(&context->lock);
    return &pd->ibv;
}

TBMOCK_API int ibv_dealloc_pd(struct ibv_pd *handle) {
    tbmock_context *context = context_of(handle->context);
    tbmock_pd *pd = (tbmock_pd *)handle;
    int error = tbmock_enter(CALL_DEALLOC_PD, context->device, NULL);
    if (error)
        return error;
    pthread_mutex_lock(&context->lock);
    bool busy = pd->users > 0;
    context->pds -= !busy;
    pthread_mutex_unlock(&context->lock);
    if (busy)
        return EBUSY;
    GIVE(context->device, pds, 1);
    free(pd);
    return 0;
}

static bool flags_accepted(int access) {
    if (tbmock_rule.mr_flags == FLAGS_LOCAL)
        return access == IBV_ACCESS_LOCAL_WRITE;
    if (tbmock_rule.mr_flags == FLAGS_ALL)
        return (access & ALL_FLAGS) == ALL_FLAGS;
    return true;
}

static int check_region(int device, const void *addr, size_t length, int access) {
    size_t page = tbmock_rule.page == TBMOCK_OFF ? 1 : (size_t)tbmock_rule.page;
    if (!addr || length == 0 || (uintptr_t)addr % page != 0 || !flags_accepted(access))
        return EINVAL;
    if ((uint64_t)length > (uint64_t)tbmock_rule.max_mr_size)
        return ENOMEM;
    return TAKE(device, mrs, 1, tbmock_rule.max_mr) ? 0 : ENOMEM;
}

/* A free place in the context's table; its index is the key. */
static int place(tbmock_context *context, tbmock_mr *mr) {
    int i = 0;
    while (i < context->mr_slots && context->mrs[i])
        i++;
    if (i == context->mr_slots) {
        tbmock_mr **grown = realloc(context->mrs, (size_t)(i + 64) * sizeof *grown);
        if (!grown)
            return ENOMEM;
        memset(grown + i, 0, 64 * sizeof *grown);
        context->mrs = grown;
        context->mr_slots = i + 64;
    }
    context->mrs[i] = mr;
    mr->serial = ++context->serial;
    mr->ibv.handle = (uint32_t)i;
    mr->key = mr->ibv.lkey = mr->ibv.rkey = (uint32_t)(i + 1) << 8 | (uint32_t)(mr->serial & 0xff);
    return 0;
}

TBMOCK_API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    tbmock_context *context = context_of(pd->context);
    int error = tbmock_enter(CALL_REG_MR, context->device, NULL);
    tbmock_mr *mr = error ? NULL : calloc(1, sizeof *mr);
    if (!error)
        error = mr ? check_region(context->device, addr, length, access) : ENOMEM;
    if (error) {
        free(mr);
        errno = error;
        return NULL;
    }
    mr->ibv = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length};
    pthread_mutex_lock(&context->lock);
    error = place(context, mr);
    ((tbmock_pd *)pd)->users += !error;
    pthread_mutex_unlock(&context->lock);
    if (!error)
        return &mr->ibv;
    GIVE(context->device, mrs, 1);
    free(mr);
    errno = error;
    return NULL;
}

/* The hardware would write through a map that is gone: on a Mac the machine stops, here the process does. */
static void panic(const tbmock_mr *mr) {
    fprintf(stderr, "tbmock: kernel panic: region %p deregistered with %d work requests outstanding\n", mr->ibv.addr,
            mr->outstanding);
    _exit(134);
}

TBMOCK_API int ibv_dereg_mr(struct ibv_mr *handle) {
    tbmock_context *context = context_of(handle->context);
    tbmock_mr *mr = (tbmock_mr *)handle;
    int error = tbmock_enter(CALL_DEREG_MR, context->device, NULL);
    if (error)
        return error;
    pthread_mutex_lock(&context->lock);
    if (mr->outstanding && tbmock_rule.panic)
        panic(mr);
    bool busy = mr->outstanding > 0;
    if (!busy) {
        context->mrs[(mr->key >> 8) - 1] = NULL;
        ((tbmock_pd *)handle->pd)->users--;
    }
    pthread_mutex_unlock(&context->lock);
    if (busy)
        return EBUSY;
    GIVE(context->device, mrs, 1);
    free(mr);
    return 0;
}
