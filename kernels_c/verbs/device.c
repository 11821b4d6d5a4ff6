/* A device by its name, its port, its GID. */
#include "port.h"

#if TB_HAVE_VERBS

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *state_name(int state) {
    static const char *const names[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
    return state >= 0 && state < 6 ? names[state] : "unknown";
}

static struct ibv_device **list_devices(const tb_library *lib, int *count, const tb_verbs_ask *ask, tb_verbs_error *e) {
    *count = 0;
    errno = 0;
    struct ibv_device **list = lib->get_device_list(count);
    if (list && *count > 0)
        return list;
    int error = list ? 0 : errno;
    if (list)
        lib->free_device_list(list);
    tb_verbs_fail(e, ask, TB_VERBS_LIST, error, NULL);
    return NULL;
}

static struct ibv_device *find(const tb_library *lib, struct ibv_device **list, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(lib->get_device_name(list[i]), name) == 0)
            return list[i];
    return NULL;
}

static int unknown(const tb_verbs_port *p, struct ibv_device **list, int count, tb_verbs_error *e) {
    char names[120] = "";
    for (int i = 0; i < count; i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", p->lib->get_device_name(list[i]));
    }
    return tb_verbs_fail(e, &p->ask, TB_VERBS_OPEN, ENODEV, "there is %s", names);
}

static int open_named(tb_verbs_port *p, tb_verbs_error *e) {
    int count, step = 0;
    struct ibv_device **list = list_devices(p->lib, &count, &p->ask, e);
    if (!list)
        return TB_VERBS_LIST;
    struct ibv_device *device = find(p->lib, list, count, p->ask.device);
    errno = 0;
    if (!device)
        step = unknown(p, list, count, e);
    else if (!(p->context = p->lib->open_device(device)))
        step = tb_verbs_fail(e, &p->ask, TB_VERBS_OPEN, errno, NULL);
    p->lib->free_device_list(list);
    return step;
}

/* The plain symbol fills only what older headers had of the structure. */
static int ask_port(const tb_library *lib, struct ibv_context *context, int port, struct ibv_port_attr *attr) {
    memset(attr, 0, sizeof *attr);
    errno = 0;
    int error = lib->query_port(context, (uint8_t)port, attr);
    return error > 0 ? error : error < 0 ? errno : 0;
}

static int read_port(tb_verbs_port *p, int *entries, tb_verbs_error *e) {
    struct ibv_port_attr port;
    struct ibv_device_attr device;
    int error = ask_port(p->lib, p->context, p->ask.port, &port);
    if (error)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_PORT, error, NULL);
    if (port.state != IBV_PORT_ACTIVE)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_PORT, 0, "port %d is %s, not ACTIVE", p->ask.port,
                             state_name(port.state));
    memset(&device, 0, sizeof device);
    error = p->lib->query_device(p->context, &device);
    if (error)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_PORT, error > 0 ? error : errno, "the device does not tell its limits");
    p->lid = port.lid;
    p->mtu = port.active_mtu;
    p->max_work = device.max_qp_wr;
    p->max_region = device.max_mr_size;
    *entries = port.gid_tbl_len;
    tb_port_note(p, "port %d LID %u MTU %d max_qp %d max_qp_wr %d", p->ask.port, port.lid, 128 << port.active_mtu,
                 device.max_qp, device.max_qp_wr);
    return 0;
}

/* An entry that cannot be asked counts as empty: some tables have holes. */
static tb_gid *read_gids(const tb_library *lib, struct ibv_context *context, int port, int entries) {
    tb_gid *table = calloc((size_t)entries + 1, sizeof *table);
    for (int i = 0; table && i < entries; i++) {
        union ibv_gid gid;
        if (lib->query_gid(context, (uint8_t)port, i, &gid) == 0)
            memcpy(table[i], gid.raw, sizeof(tb_gid));
    }
    return table;
}

static int gid_error(const tb_verbs_port *p, int found, const char *words, tb_verbs_error *e) {
    const char *interface = strncmp(p->ask.device, "rdma_", 5) == 0 ? p->ask.device + 5 : p->ask.device;
    if (found == -2)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_GID, 0, "several IPv4-mapped GIDs (%.100s), and our address %s", words,
                             p->ask.address[0] ? p->ask.address : "is not known");
    return tb_verbs_fail(e, &p->ask, TB_VERBS_GID, 0, "no IPv4-mapped GID (%.80s): see `ifconfig %s`", words, interface);
}

static int choose_gid(tb_verbs_port *p, int entries, tb_verbs_error *e) {
    char words[200], text[46];
    tb_gid *table = read_gids(p->lib, p->context, p->ask.port, entries);
    if (!table)
        return tb_verbs_fail(e, &p->ask, TB_VERBS_GID, ENOMEM, "no memory for %d GIDs", entries);
    int found = tb_gid_choose(table, entries, p->ask.address, words, sizeof words);
    if (found >= 0) {
        p->gid_index = found;
        memcpy(p->gid.raw, table[found], sizeof(tb_gid));
        tb_gid_text(text, table[found]);
        tb_port_note(p, "GID %d %s", found, text);
    }
    free(table);
    return found >= 0 ? 0 : gid_error(p, found, words, e);
}

int tb_device_open(tb_verbs_port *p, tb_verbs_error *e) {
    int entries = 0, step = open_named(p, e);
    if (!step)
        step = read_port(p, &entries, e);
    return step ? step : choose_gid(p, entries, e);
}

static void describe_gids(const tb_library *lib, struct ibv_context *context, int port, int entries,
                          tb_verbs_device *d) {
    static const tb_gid zero;
    tb_gid *table = read_gids(lib, context, port, entries);
    for (int i = 0; table && i < entries; i++) {
        if (memcmp(table[i], zero, sizeof zero) == 0)
            continue;
        if (d->gids < TB_VERBS_GIDS) {
            d->gid[d->gids].index = i;
            memcpy(d->gid[d->gids].raw, table[i], sizeof zero);
        }
        d->gids++;
    }
    free(table);
}

static void describe(const tb_library *lib, struct ibv_device *device, int port, tb_verbs_device *d) {
    struct ibv_port_attr attr;
    struct ibv_device_attr limits = {0};
    snprintf(d->name, sizeof d->name, "%s", lib->get_device_name(device));
    d->state = "unknown";
    errno = 0;
    struct ibv_context *context = lib->open_device(device);
    if (!context) {
        d->error = errno ? errno : ENODEV;
        return;
    }
    d->error = ask_port(lib, context, port, &attr);
    if (!d->error) {
        d->state = state_name(attr.state);
        d->lid = attr.lid;
        d->mtu = 128 << attr.active_mtu;
        d->max_qp = lib->query_device(context, &limits) == 0 ? limits.max_qp : 0;
        describe_gids(lib, context, port, attr.gid_tbl_len, d);
    }
    lib->close_device(context);
}

int tb_verbs_devices(int port, void (*each)(void *, const tb_verbs_device *), void *context, tb_verbs_error *e) {
    char words[160];
    int count;
    const tb_library *lib = tb_library_get(words, sizeof words);
    if (!lib)
        return tb_verbs_fail(e, NULL, TB_VERBS_LOAD, 0, "%s", words);
    struct ibv_device **list = list_devices(lib, &count, NULL, e);
    for (int i = 0; list && i < count; i++) {
        tb_verbs_device d = {0};
        describe(lib, list[i], port ? port : 1, &d);
        each(context, &d);
    }
    if (list)
        lib->free_device_list(list);
    return list ? 0 : TB_VERBS_LIST;
}

#endif
