/* Nodes, devices, cables, and the addresses that a device shows. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock_state.h"

tbmock_cabling tbmock_cables;

static int copy_name(char *to, size_t room, const char *from) {
    if (*from == '\0' || strlen(from) >= room)
        return tbmock_say("TBKIT_MOCK: a name of 1 to 31 characters is wanted", from, "shorten it");
    strcpy(to, from);
    return 0;
}

static int find(const char *node, const char *name) {
    for (int i = 0; i < tbmock_cables.devices; i++)
        if (strcmp(tbmock_cables.end[i].node, node) == 0 && strcmp(tbmock_cables.end[i].name, name) == 0)
            return i;
    return -1;
}

/* NODE:DEVICE or NODE:DEVICE/IPV4, which is cut in place; `lot` and `host` make the address where none is given. */
static int add_end(char *text, int lot, int host) {
    tbmock_end *end = &tbmock_cables.end[tbmock_cables.devices];
    char *name = strchr(text, ':'), *address = strchr(text, '/');
    if (!name || tbmock_cables.devices == MAX_DEVICES)
        return tbmock_say("TBKIT_MOCK: not an end of a cable", text, "NODE:DEVICE or NODE:DEVICE/IPV4, at most 64");
    *name++ = '\0';
    if (address)
        *address++ = '\0';
    int error = copy_name(end->node, sizeof end->node, tbmock_trim(text));
    if (!error)
        error = copy_name(end->name, sizeof end->name, tbmock_trim(name));
    if (!error && find(end->node, end->name) >= 0)
        error = tbmock_say("TBKIT_MOCK: the device has a cable already", end->name, "one cable a device");
    memcpy(end->ipv4, (uint8_t[]){169, 254, (uint8_t)(lot + 1), (uint8_t)host}, 4);
    if (!error && address && inet_pton(AF_INET, tbmock_trim(address), end->ipv4) != 1)
        error = tbmock_say("TBKIT_MOCK: not an IPv4 address", address, "a.b.c.d");
    end->peer = -1;
    tbmock_cables.devices += !error;
    return error;
}

/* A node's name may hold '-', a device's may not: the cable parts at the first '-' after the first ':'. */
static int add_cable(char *text) {
    char *colon = strchr(text, ':'), *dash = colon ? strchr(colon, '-') : NULL;
    int first = tbmock_cables.devices;
    if (!dash)
        return tbmock_say("TBKIT_MOCK: not a cable", text, "NODE:DEVICE-NODE:DEVICE");
    *dash = '\0';
    int error = add_end(text, first / 2, 1);
    if (!error)
        error = add_end(dash + 1, first / 2, 2);
    if (error)
        return error;
    tbmock_cables.end[first].peer = first + 1;
    tbmock_cables.end[first + 1].peer = first;
    return 0;
}

static int add_device(char *text) { return add_end(text, 100 + tbmock_cables.devices, 1); }

static int each(char *list, int (*add)(char *)) {
    int error = 0;
    for (char *item; !error && (item = strsep(&list, ","));)
        if (*(item = tbmock_trim(item)))
            error = add(item);
    return error;
}

static int read_fields(char *text);

static int read_file(const char *path) {
    char text[16384];
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    if (n == 0 || n == sizeof text - 1)
        return tbmock_say("TBKIT_MOCK: not a readable file of less than 16 KiB", path, "see mock.h");
    text[n] = '\0';
    return strstr(text, "file=") ? tbmock_say("TBKIT_MOCK: a file names a file", path, "one level") : read_fields(text);
}

static int read_field(char *key, char *value) {
    if (strcmp(key, "namespace") == 0)
        return copy_name(tbmock_cables.name, sizeof tbmock_cables.name, value);
    if (strcmp(key, "node") == 0)
        return copy_name(tbmock_cables.node, sizeof tbmock_cables.node, value);
    if (strcmp(key, "cables") == 0)
        return each(value, add_cable);
    if (strcmp(key, "devices") == 0)
        return each(value, add_device);
    if (strcmp(key, "file") == 0)
        return read_file(value);
    return tbmock_say("TBKIT_MOCK: no such field", key, "namespace, node, cables, devices, file");
}

static int read_fields(char *text) {
    int error = 0;
    for (char *field; !error && (field = strsep(&text, ";\n"));) {
        field = tbmock_trim(field);
        char *value = strchr(field, '=');
        if (*field == '\0' || *field == '#')
            continue;
        if (!value)
            return tbmock_say("TBKIT_MOCK: not a field", field, "key=value");
        *value++ = '\0';
        error = read_field(tbmock_trim(field), tbmock_trim(value));
    }
    return error;
}

int tbmock_read_cabling(const char *text) {
    char *copy = strdup(text ? text : "");
    memset(&tbmock_cables, 0, sizeof tbmock_cables);
    strcpy(tbmock_cables.name, "default");
    int error = copy ? read_fields(copy) : ENOMEM;
    free(copy);
    if (!error && tbmock_cables.node[0] == '\0')
        error = tbmock_say("TBKIT_MOCK: no node", text ? text : "", "say node=NAME; cables=NODE:DEVICE-NODE:DEVICE");
    return error;
}

/* All processes of a namespace must see the same cables: FNV-1a over what they read. */
uint64_t tbmock_cabling_hash(void) {
    uint64_t hash = 0xcbf29ce484222325u;
    const uint8_t *bytes = (const uint8_t *)tbmock_cables.end;
    for (size_t i = 0; i < (size_t)tbmock_cables.devices * sizeof *tbmock_cables.end; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

int tbmock_lid(int device) {
    int lid = 1;
    for (int i = 0; i < device; i++)
        lid += strcmp(tbmock_cables.end[i].node, tbmock_cables.end[device].node) == 0;
    return lid;
}

bool tbmock_gid_is_ipv4(const union ibv_gid *gid) {
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid->raw, prefix, 12) == 0;
}

static union ibv_gid ipv4(const uint8_t address[4]) {
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    memcpy(gid.raw + 12, address, 4);
    return gid;
}

static union ibv_gid link_local(int device, bool secured) {
    union ibv_gid gid = {.raw = {0xfe, 0x80, [8] = 0x00, 0xab, 0xcd, 0xff, 0xfe, 0, 0, (uint8_t)device}};
    if (secured)
        memcpy(gid.raw + 8, (uint8_t[]){0x08, 0xa1, 0x3c, 0x55, 0x90, 0xd2, 0x77, (uint8_t)device}, 8);
    return gid;
}

int tbmock_gids(int device, union ibv_gid gids[MAX_GIDS]) {
    const union ibv_gid plain = link_local(device, false), secured = link_local(device, true);
    const union ibv_gid own = ipv4(tbmock_cables.end[device].ipv4), none = {.raw = {0}};
    const union ibv_gid uuid = {.raw = {0xaa, 0xaa, 0, 1, 0x11, 0x11, 0x42, 0x22, 0x83, 0x33, [15] = (uint8_t)device}};
    const union ibv_gid other = ipv4((uint8_t[]){10, 99, (uint8_t)device, 1});
    const union ibv_gid layout[][MAX_GIDS] = {
        [GIDS_APPLE] = {plain, own, secured}, [GIDS_IPV4_AT_2] = {plain, secured, own},
        [GIDS_FE80] = {plain, secured},       [GIDS_UUID] = {uuid, plain, own},
        [GIDS_SEVERAL] = {plain, other, none, own},
    };
    static const int entries[] = {[GIDS_APPLE] = 3, [GIDS_IPV4_AT_2] = 3, [GIDS_FE80] = 2, [GIDS_UUID] = 3,
                                  [GIDS_SEVERAL] = 4};
    memcpy(gids, layout[tbmock_rule.gids], sizeof layout[0]);
    return entries[tbmock_rule.gids];
}
