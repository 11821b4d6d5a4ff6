/* One CRC instruction takes three cycles to give its result, but a new one can start in each. So long data is
 * read as three neighbouring blocks at once, and the three results are joined: the CRC of A followed by B is
 * crc(A) advanced over len(B) zero bytes, xor crc(B). Advancing is linear in the 32 bits, so it is done by four
 * look-ups in a table that is made once for each length of block. */
#include "crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define LONG_BLOCK 2048u       /* bytes of one of three streams; multiples of 8 */
#define SHORT_BLOCK 256u

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HARDWARE __attribute__((target("sse4.2")))
#define STEP8(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define STEP1(crc, byte) _mm_crc32_u8(crc, byte)
static bool hardware(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HARDWARE
#define STEP8(crc, word) __crc32cd(crc, word)
#define STEP1(crc, byte) __crc32cb(crc, byte)
static bool hardware(void) { return true; }
#endif

static uint32_t slices[8][256];
static uint32_t over_long[4][256], over_short[4][256];
static bool fast;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t by_tables(uint32_t crc, const uint8_t *at, size_t bytes) {
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= slices[7 - i][word >> 8 * i & 0xff];
    }
    for (; bytes; at++, bytes--)
        crc = crc >> 8 ^ slices[0][(crc ^ *at) & 0xff];
    return crc;
}

static uint32_t over_zeros(uint32_t crc, size_t bytes) {
    for (; bytes; bytes--)
        crc = crc >> 8 ^ slices[0][crc & 0xff];
    return crc;
}

static void make_slices(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        slices[0][i] = crc;
    }
    for (int s = 1; s < 8; s++)
        for (int i = 0; i < 256; i++)
            slices[s][i] = slices[s - 1][i] >> 8 ^ slices[0][slices[s - 1][i] & 0xff];
}

static void make_shift(uint32_t table[4][256], size_t bytes) {
    for (int place = 0; place < 4; place++)
        for (uint32_t i = 0; i < 256; i++)
            table[place][i] = over_zeros(i << 8 * place, bytes);
}

static void prepare(void) {
    make_slices();
    make_shift(over_long, LONG_BLOCK);
    make_shift(over_short, SHORT_BLOCK);
#if defined(HARDWARE)
    fast = hardware();
#endif
}

#if defined(HARDWARE)
static inline uint32_t shifted(const uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

HARDWARE static inline uint32_t three(uint32_t crc, const uint8_t *at, size_t block, const uint32_t table[4][256]) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < block; i += 8) {
        uint64_t a, b, c;
        memcpy(&a, at + i, 8);
        memcpy(&b, at + block + i, 8);
        memcpy(&c, at + 2 * block + i, 8);
        crc = STEP8(crc, a);
        second = STEP8(second, b);
        third = STEP8(third, c);
    }
    return shifted(table, shifted(table, crc) ^ second) ^ third;
}

HARDWARE static uint32_t by_hardware(uint32_t crc, const uint8_t *at, size_t bytes) {
    for (; bytes >= 3 * LONG_BLOCK; at += 3 * LONG_BLOCK, bytes -= 3 * LONG_BLOCK)
        crc = three(crc, at, LONG_BLOCK, over_long);
    for (; bytes >= 3 * SHORT_BLOCK; at += 3 * SHORT_BLOCK, bytes -= 3 * SHORT_BLOCK)
        crc = three(crc, at, SHORT_BLOCK, over_short);
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = STEP8(crc, word);
    }
    for (; bytes; at++, bytes--)
        crc = STEP1(crc, *at);
    return crc;
}
#endif

uint32_t tb_crc32c_tables(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
    return ~by_tables(~crc, data, bytes);
}

uint32_t tb_crc32c(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
#if defined(HARDWARE)
    if (fast)
        return ~by_hardware(~crc, data, bytes);
#endif
    return ~by_tables(~crc, data, bytes);
}
