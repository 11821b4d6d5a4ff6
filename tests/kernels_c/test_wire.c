/* CRC-32C by its published answers and by both ways of computing it; a sealed frame, whole and damaged anywhere. */
#include <string.h>

#include "check.h"
#include "crc32c.h"
#include "wire.h"

static uint8_t data[20000];

/* RFC 3720, B.4, and the check value of the catalogue of parametrised CRCs. */
static void known_answers(void) {
    uint8_t block[32];
    CHECK(tb_crc32c(0, "123456789", 9) == 0xe3069283u);
    memset(block, 0, sizeof block);
    CHECK(tb_crc32c(0, block, sizeof block) == 0x8a9136aau);
    memset(block, 0xff, sizeof block);
    CHECK(tb_crc32c(0, block, sizeof block) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        block[i] = (uint8_t)i;
    CHECK(tb_crc32c(0, block, sizeof block) == 0x46dd794eu);
    CHECK(tb_crc32c(7, block, 0) == 7);
}

static void both_ways_agree(void) {
    for (size_t n = 0; n <= sizeof data - 8; n += n < 1600 ? 1 : 331)
        for (size_t at = 0; at < 3; at++) {
            uint32_t whole = tb_crc32c(0, data, at + n);
            CHECK(tb_crc32c(3, data + at, n) == tb_crc32c_tables(3, data + at, n));
            CHECK(tb_crc32c(tb_crc32c(0, data, at), data + at, n) == whole);
        }
}

static void sealed_frames(void) {
    uint8_t frame[TB_WIRE_HEAD + 300];
    tb_wire_head head = {.head = {1 | (uint64_t)TB_FRAME_MAGIC << 32, 300}, .credit = 5};
    memcpy(frame, &head, sizeof head);
    memcpy(frame + TB_WIRE_HEAD, data, 300);
    tb_wire_seal(frame);
    tb_fault fault = {0};
    CHECK(tb_wire_check_head(frame, 300, &fault) == TB_OK && tb_wire_check(frame, &fault) == TB_OK);
    CHECK(tb_wire_check_head(frame, 299, &fault) == TB_CORRUPT && fault.got[0] && fault.wanted[0]);
    for (size_t at = 0; at < sizeof frame; at++) {
        frame[at] ^= 0x10;
        CHECK(tb_wire_check_head(frame, 300, &fault) != TB_OK || tb_wire_check(frame, &fault) != TB_OK);
        frame[at] ^= 0x10;
    }
    CHECK(tb_wire_check(frame, &fault) == TB_OK);
}

int main(void) {
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    known_answers();
    both_ways_agree();
    sealed_frames();
    return 0;
}
