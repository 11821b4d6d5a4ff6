/* Provider tcp: frames over a connected stream socket, one socket for both directions of a cable. */
#ifndef TB_TCP_H
#define TB_TCP_H

#include "channel.h"

#define TB_TCP_SLOT_BYTES 65536u

typedef struct tb_tcp tb_tcp;

/* Takes the descriptor over and makes it non-blocking, TCP_NODELAY where it is TCP. NULL: no memory. */
tb_tcp *tb_tcp_new(int fd);
void tb_tcp_free(tb_tcp *tcp);
void tb_tcp_sender(tb_channel *channel, tb_tcp *tcp, int rank, int to);
void tb_tcp_receiver(tb_channel *channel, tb_tcp *tcp, int rank, int from);

#endif
