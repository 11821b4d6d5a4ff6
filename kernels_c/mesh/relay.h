/* Connections between two other ranks that have no cable of their own: bytes are passed on as they come, so that
 * heads, sequence and CRC are checked by the two ends alone. */
#ifndef TB_RELAY_H
#define TB_RELAY_H

typedef struct tb_relay tb_relay;

tb_relay *tb_relay_new(void); /* NULL with errno */
/* Passes on between two descriptors, taken over, until either end closes. 0 or an errno. */
int tb_relay_add(tb_relay *relay, int one, int other);
int tb_relay_count(const tb_relay *relay);
void tb_relay_free(tb_relay *relay);

#endif
