/* The elementwise rule on edges that random data seldom meets, and every float16 there is. */
#include "check.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "reduce.h"

#define EACH(a) (sizeof(a) / sizeof((a)[0]))

static void zeros_and_nans(void) {
    const uint32_t a[] = {0x80000000u, 0x80000000u, 0, 0x7f800001u, 0xffc01234u, 0x7f800000u};
    const uint32_t b[] = {0x80000000u, 0, 0x80000000u, 0x3f800000u, 0, 0xff800000u};
    const uint32_t sum[] = {0x80000000u, 0, 0, 0x7fc00000u, 0x7fc00000u, 0x7fc00000u};
    const uint32_t max[] = {0x80000000u, 0, 0, 0x7fc00000u, 0x7fc00000u, 0x7f800000u};
    const uint32_t min[] = {0x80000000u, 0x80000000u, 0x80000000u, 0x7fc00000u, 0x7fc00000u, 0xff800000u};
    const uint32_t *expected[] = {sum, max, min};
    const void *in[] = {a, b};
    for (int op = 0; op < TB_OPS; op++) {
        uint32_t out[EACH(a)];
        tb_reduce(TB_F32, op, out, in, 2, EACH(a));
        CHECK(memcmp(out, expected[op], sizeof out) == 0);
    }
}

/* x + 0 in float32, rounded back, is x for all 65536 numbers but the NaNs and -0 + 0. */
static void every_float16(enum tb_dtype dtype, uint16_t infinity, uint16_t nan) {
    static uint16_t all[65536], zero[65536], out[65536];
    const void *in[] = {all, zero, zero};
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int ranks = 1; ranks <= 3; ranks++) {
        tb_reduce(dtype, TB_SUM, out, in, ranks, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t expected = (i & 0x7fff) > infinity ? nan : i == 0x8000 && ranks > 1 ? 0 : (uint16_t)i;
            CHECK(out[i] == expected);
        }
    }
}

/* Halfway cases go to the even neighbour, also between the smallest numbers and at the largest. */
static void rounding(void) {
    const uint16_t a[] = {0x3c00, 0x3c01, 0x7bff, 0x7bff, 0x0400, 0x0001};
    const uint16_t b[] = {0x1000, 0x1000, 0x4c00, 0x4bff, 0x0001, 0x0001};
    const uint16_t expected[] = {0x3c00, 0x3c02, 0x7c00, 0x7bff, 0x0401, 0x0002};
    const void *in[] = {a, b};
    uint16_t out[EACH(a)];
    tb_reduce(TB_F16, TB_SUM, out, in, 2, EACH(a));
    CHECK(memcmp(out, expected, sizeof out) == 0);
}

static void whole_numbers_wrap(void) {
    const int32_t a[] = {INT32_MAX, INT32_MIN, -1}, b[] = {1, -1, 1};
    const int32_t sum[] = {INT32_MIN, INT32_MAX, 0}, max[] = {INT32_MAX, -1, 1};
    const void *in[] = {a, b};
    int32_t out[3];
    tb_reduce(TB_I32, TB_SUM, out, in, 2, 3);
    CHECK(memcmp(out, sum, sizeof out) == 0);
    tb_reduce(TB_I32, TB_MAX, out, in, 2, 3);
    CHECK(memcmp(out, max, sizeof out) == 0);
}

/* Odd lengths at the end of an allocation, in place, many ranks: what a sanitizer would see. */
static void in_place_at_any_length(void) {
    for (int dtype = 0; dtype < TB_DTYPES; dtype++)
        for (size_t count = 0; count < 1100; count += count < 70 ? 1 : 97) {
            size_t bytes = count * tb_dtype_bytes(dtype);
            unsigned char *own = calloc(1, bytes ? bytes : 1), *other = calloc(1, bytes ? bytes : 1);
            const void *in[] = {other, own, other, other, other};
            for (int op = 0; op < TB_OPS; op++)
                for (int ranks = 2; ranks <= 5; ranks++)
                    tb_reduce(dtype, op, own, in, ranks, count);
            for (size_t i = 0; i < bytes; i++)
                CHECK(own[i] == 0);
            free(own);
            free(other);
        }
}

int main(void) {
    zeros_and_nans();
    every_float16(TB_F16, 0x7c00, 0x7e00);
    every_float16(TB_BF16, 0x7f80, 0x7fc0);
    rounding();
    whole_numbers_wrap();
    in_place_at_any_length();
    return 0;
}
