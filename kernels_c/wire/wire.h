/* A frame as it travels between nodes: a head of 32 bytes, then the payload. Memory of one node needs none of it.
 *
 * The CRC is over the head, with the CRC's own field zero, and the payload. Both byte orders in use are little
 * endian; the head travels as it stands. */
#ifndef TB_WIRE_H
#define TB_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "channel.h"
#include "fault.h"

#define TB_WIRE_HEAD 32u
#define TB_WIRE_VERSION 1u

enum tb_wire_flags { TB_WIRE_DATA = 0, TB_WIRE_CREDIT = 1 }; /* a credit frame has no payload and no sequence */

typedef struct tb_wire_head {
    tb_head head;
    /* tcp: with `control` the stamp of a shaped link. verbs: small and large slots of the other direction read, 16 bits
     * each, modulo 2^16. */
    uint32_t credit;
    uint16_t version, flags;
    uint32_t control; /* verbs: credit frames of the other direction read; this frame's number on its queue pair */
    uint32_t crc;
} tb_wire_head;

_Static_assert(sizeof(tb_wire_head) == TB_WIRE_HEAD, "the head travels as it stands in memory");

static inline uint32_t tb_wire_length(const tb_wire_head *h) { return (uint32_t)h->head.extent; }
static inline uint32_t tb_wire_sequence(const tb_wire_head *h) { return (uint32_t)h->head.identity; }

/* Fills version and CRC of the head that stands before its payload. */
void tb_wire_seal(uint8_t *frame);
/* What can be said of a head alone, before its payload is there: TB_OK, or TB_CORRUPT with words in the fault. */
int tb_wire_check_head(const uint8_t *frame, uint32_t longest, tb_fault *fault);
/* The whole frame's CRC. */
int tb_wire_check(const uint8_t *frame, tb_fault *fault);

#endif
