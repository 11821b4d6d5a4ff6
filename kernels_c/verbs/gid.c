/* Which GID is this cable's: the IPv4-mapped entry of its own interface, at whatever index it stands. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "port.h"

static bool is_ipv4(const uint8_t *gid) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid, prefix, sizeof prefix) == 0;
}

static bool is_zero(const uint8_t *gid) {
    static const tb_gid zero;
    return memcmp(gid, zero, sizeof zero) == 0;
}

void tb_gid_text(char text[46], const uint8_t *g) {
    if (is_ipv4(g))
        snprintf(text, 46, "::ffff:%u.%u.%u.%u", g[12], g[13], g[14], g[15]);
    else
        inet_ntop(AF_INET6, g, text, 46);
}

static void list(const tb_gid *table, int entries, char *words, size_t room) {
    size_t at = 0;
    words[0] = '\0';
    for (int i = 0; i < entries; i++) {
        char text[46];
        if (is_zero(table[i]))
            continue;
        tb_gid_text(text, table[i]);
        int n = snprintf(words + at, room - at, "%s[%d] %s", at ? ", " : "", i, text);
        if (n < 0 || (size_t)n >= room - at) {
            words[at] = '\0';
            return;
        }
        at += (size_t)n;
    }
    if (at == 0)
        snprintf(words, room, "no entry");
}

static int ipv4_entry(const tb_gid *table, int entries, const uint8_t *address) {
    for (int i = 0; i < entries; i++)
        if (is_ipv4(table[i]) && memcmp(table[i] + 12, address, 4) == 0)
            return i;
    return -1;
}

/* The same address may stand twice (RoCE v1 and v2): that is not several. */
static int only_ipv4(const tb_gid *table, int entries) {
    int found = -1;
    for (int i = 0; i < entries; i++) {
        if (!is_ipv4(table[i]))
            continue;
        if (found >= 0 && memcmp(table[i], table[found], sizeof(tb_gid)) != 0)
            return -2;
        found = found < 0 ? i : found;
    }
    return found;
}

int tb_gid_choose(const tb_gid *table, int entries, const char *address, char *words, size_t room) {
    uint8_t own[4];
    bool known = inet_pton(AF_INET, address, own) == 1;
    int index = known ? ipv4_entry(table, entries, own) : only_ipv4(table, entries);
    /* The bootstrap may have come another way (a management network): then the only one still is this cable's. */
    if (index == -1 && known)
        index = only_ipv4(table, entries);
    list(table, entries, words, room);
    return index;
}
