/* The first bytes on a connection, both ways. The token stands first: of a peer that does not know it nothing
 * else is looked at. */
#ifndef TB_HELLO_H
#define TB_HELLO_H

#include <stdbool.h>
#include <stdint.h>

#include "mesh.h"

enum tb_purpose { TB_LIVENESS = 0, TB_DATA = 1, TB_READ = 2, TB_PURPOSES };

typedef struct tb_hello {
    uint8_t token[TB_TOKEN_BYTES];
    uint32_t magic;
    uint16_t version;
    uint8_t purpose, cable, from, to, unused[6];
} tb_hello;

_Static_assert(sizeof(tb_hello) == 48, "a hello travels as it stands in memory");

void tb_hello_fill(tb_hello *hello, const uint8_t *token, enum tb_purpose purpose, int cable, int from, int to);
bool tb_hello_knows(const tb_hello *hello, const uint8_t *token);
/* NULL, or what is wrong with one that knows the token. */
const char *tb_hello_check(const tb_hello *hello, int cables, int size);

/* Sockets. Each ends at the deadline; -1 with errno. The address is IPv4 or IPv6, never a name. */
int tb_listen(const char *address, uint16_t *port);
int tb_dial(const char *address, uint16_t port, const char *from, uint64_t deadline_ns);
bool tb_send_hello(int fd, const tb_hello *hello, uint64_t deadline_ns);
bool tb_take_hello(int fd, tb_hello *hello, uint64_t deadline_ns);

#endif
