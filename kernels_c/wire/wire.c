#include "wire.h"

#include <stdio.h>
#include <string.h>

#include "crc32c.h"

static uint32_t crc_of(const uint8_t *frame) {
    tb_wire_head h;
    memcpy(&h, frame, sizeof h);
    h.crc = 0;
    return tb_crc32c(tb_crc32c(0, &h, sizeof h), frame + TB_WIRE_HEAD, tb_wire_length(&h));
}

void tb_wire_seal(uint8_t *frame) {
    tb_wire_head h;
    memcpy(&h, frame, sizeof h);
    h.version = TB_WIRE_VERSION;
    h.crc = 0;
    h.crc = tb_crc32c(tb_crc32c(0, &h, sizeof h), frame + TB_WIRE_HEAD, tb_wire_length(&h));
    memcpy(frame, &h, sizeof h);
}

int tb_wire_check_head(const uint8_t *frame, uint32_t longest, tb_fault *fault) {
    tb_wire_head h;
    memcpy(&h, frame, sizeof h);
    unsigned magic = (unsigned)(h.head.identity >> 32 & 0xffff);
    uint32_t length = tb_wire_length(&h);
    bool framed = (magic & ~1u) == TB_FRAME_MAGIC; /* the last bit: of a shaped link, which the channel compares */
    bool known = h.flags == TB_WIRE_DATA || (h.flags == TB_WIRE_CREDIT && length == 0);
    if (framed && h.version == TB_WIRE_VERSION && known && length <= longest)
        return TB_OK;
    fault->status = TB_CORRUPT;
    snprintf(fault->got, sizeof fault->got, "magic 0x%04x, version %u, flags %u, %u bytes", magic, h.version, h.flags,
             length);
    snprintf(fault->wanted, sizeof fault->wanted, "magic 0x%04x, version %u, at most %u bytes", TB_FRAME_MAGIC,
             TB_WIRE_VERSION, longest);
    return TB_CORRUPT;
}

int tb_wire_check(const uint8_t *frame, tb_fault *fault) {
    tb_wire_head h;
    memcpy(&h, frame, sizeof h);
    uint32_t crc = crc_of(frame);
    if (crc == h.crc)
        return TB_OK;
    fault->status = TB_CORRUPT;
    snprintf(fault->got, sizeof fault->got, "sequence %u, %u bytes, whose CRC-32C is 0x%08x", tb_wire_sequence(&h),
             tb_wire_length(&h), crc);
    snprintf(fault->wanted, sizeof fault->wanted, "CRC-32C 0x%08x", h.crc);
    return TB_CORRUPT;
}
