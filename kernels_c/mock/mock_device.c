/* Devices, ports and addresses. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"
#include "mock_state.h"

#define TRANSPORT_THUNDERBOLT 100 /* what Apple's ibv_devinfo prints; no name in rdma-core's header */

static struct ibv_device devices[MAX_DEVICES]; /* those of other nodes stay empty */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int start_error;

static void fill(int i) {
    struct ibv_device *device = &devices[i];
    device->node_type = IBV_NODE_CA;
    device->transport_type = (enum ibv_transport_type)TRANSPORT_THUNDERBOLT;
    snprintf(device->name, sizeof device->name, "%s", tbmock_cables.end[i].name);
    snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", i);
}

static bool ours(int device) { return strcmp(tbmock_cables.end[device].node, tbmock_cables.node) == 0; }

static void start(void) {
    start_error = tbmock_read_rules(getenv("TBKIT_MOCK_RULES"));
    if (!start_error)
        start_error = tbmock_read_cabling(getenv("TBKIT_MOCK"));
    if (!start_error)
        start_error = tbmock_attach();
    if (!start_error)
        start_error = tbmock_read_faults(getenv("TBKIT_MOCK_FAULTS"));
    for (int i = 0; !start_error && i < tbmock_cables.devices; i++)
        fill(i);
}

/* From the last to the first: the order of Apple's list is not that of the names. */
static struct ibv_device **collect(int *count) {
    struct ibv_device **list = calloc(MAX_DEVICES + 1, sizeof *list);
    *count = 0;
    for (int i = tbmock_cables.devices - 1; list && i >= 0; i--)
        if (ours(i))
            list[(*count)++] = &devices[i];
    return list;
}

TBMOCK_API struct ibv_device **ibv_get_device_list(int *count) {
    int found = 0, error;
    pthread_once(&once, start);
    error = start_error ? start_error : tbmock_enter(CALL_LIST, -1, NULL);
    struct ibv_device **list = error ? NULL : collect(&found);
    if (error)
        errno = error;
    if (count)
        *count = found;
    return list;
}

TBMOCK_API void ibv_free_device_list(struct ibv_device **list) { free(list); }

TBMOCK_API const char *ibv_get_device_name(struct ibv_device *device) { return device ? device->name : NULL; }

TBMOCK_API struct ibv_context *ibv_open_device(struct ibv_device *device) {
    int index = (int)(device - devices);
    int error = tbmock_enter(CALL_OPEN, index, NULL);
    tbmock_context *context = error ? NULL : calloc(1, sizeof *context);
    if (!context) {
        errno = error ? error : ENOMEM;
        return NULL;
    }
    context->device = index;
    context->ibv.device = device;
    context->ibv.cmd_fd = context->ibv.async_fd = -1;
    context->ibv.num_comp_vectors = 1;
    context->ibv.ops.post_send = tbmock_post_send;
    context->ibv.ops.post_recv = tbmock_post_recv;
    context->ibv.ops.poll_cq = tbmock_poll_cq;
    pthread_mutex_init(&context->ibv.mutex, NULL);
    pthread_mutex_init(&context->lock, NULL);
    return &context->ibv;
}

TBMOCK_API int ibv_close_device(struct ibv_context *handle) {
    tbmock_context *context = context_of(handle);
    int error = tbmock_enter(CALL_CLOSE, context->device, NULL);
    if (!error && (context->pds || context->cqs))
        error = EBUSY;
    if (error) {
        errno = error;
        return -1;
    }
    tbmock_pump_remove(context);
    pthread_mutex_destroy(&context->lock);
    pthread_mutex_destroy(&context->ibv.mutex);
    free(context->mrs);
    free(context);
    return 0;
}

static int clamp(int64_t limit) { return limit > INT_MAX ? INT_MAX : (int)limit; }

/* "Read it, do not assume": what the device says of its queue pairs is not what it gives. */
static int said_qps(void) { return clamp(tbmock_rule.max_qp == 10 ? tbmock_rule.max_qp_says : tbmock_rule.max_qp); }

TBMOCK_API int ibv_query_device(struct ibv_context *handle, struct ibv_device_attr *attr) {
    int device = context_of(handle)->device, error = tbmock_enter(CALL_QUERY_DEVICE, device, NULL);
    if (error)
        return error;
    memset(attr, 0, sizeof *attr);
    snprintf(attr->fw_ver, sizeof attr->fw_ver, "mock");
    uint8_t guid[8] = {(uint8_t)tbmock_lid(device), 0xaa, 0, 0, 0, 0, 0xac, 0x05};
    memcpy(&attr->node_guid, guid, 8);
    attr->max_mr_size = (uint64_t)tbmock_rule.max_mr_size;
    attr->page_size_cap = tbmock_rule.page == TBMOCK_OFF ? TBMOCK_FRAME : (uint64_t)tbmock_rule.page;
    attr->max_qp = said_qps();
    attr->max_qp_wr = clamp(tbmock_rule.queue_frames);
    attr->max_sge = tbmock_rule.max_sge < MAX_SGE ? (int)tbmock_rule.max_sge : MAX_SGE;
    attr->max_cq = clamp(tbmock_rule.max_cq);
    attr->max_cqe = MAX_WRS;
    attr->max_mr = clamp(tbmock_rule.max_mr);
    attr->max_pd = clamp(tbmock_rule.max_pd);
    attr->atomic_cap = IBV_ATOMIC_NONE;
    attr->max_pkeys = 1;
    attr->phys_port_cnt = 1;
    return 0;
}

static bool port_up(int device) {
    const tbmock_port *port = &tbmock_shared->port[device];
    return tbmock_cables.end[device].peer >= 0 && !atomic_load(&port->down) && !atomic_load(&port->pulled);
}

/* As librdma's plain symbol, this fills the structure up to `flags` alone: what newer headers added is not touched. */
TBMOCK_API int ibv_query_port(struct ibv_context *handle, uint8_t number, struct ibv_port_attr *attr) {
    int device = context_of(handle)->device, error = tbmock_enter(CALL_QUERY_PORT, device, NULL);
    union ibv_gid gids[MAX_GIDS];
    if (error || number != 1)
        return error ? error : EINVAL;
    memset(attr, 0, offsetof(struct ibv_port_attr, link_layer) + sizeof attr->link_layer);
    attr->state = port_up(device) ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = tbmock_gids(device, gids);
    attr->max_msg_sz = tbmock_rule.max_msg == 16773120 ? 0x1000000u : (uint32_t)clamp(tbmock_rule.max_msg);
    attr->pkey_tbl_len = 1;
    attr->lid = (uint16_t)tbmock_lid(device);
    attr->phys_state = port_up(device) ? 5 : 3; /* LinkUp, Disabled */
    attr->link_layer = TRANSPORT_THUNDERBOLT;
    return 0;
}

TBMOCK_API int ibv_query_gid(struct ibv_context *handle, uint8_t number, int index, union ibv_gid *gid) {
    int device = context_of(handle)->device, error = tbmock_enter(CALL_QUERY_GID, device, NULL);
    union ibv_gid gids[MAX_GIDS];
    if (!error && (number != 1 || index < 0 || index >= tbmock_gids(device, gids)))
        error = EINVAL;
    if (error) {
        errno = error;
        return -1;
    }
    *gid = gids[index];
    return 0;
}
