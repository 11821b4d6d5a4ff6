#include "reduce.h"

#include <stdint.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(TB_SANITIZED)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif
#if defined(__clang__)
#define SAME_INDEX _Pragma("clang loop vectorize(assume_safety)")
#else
#define SAME_INDEX _Pragma("GCC ivdep")
#endif

#define BLOCK 512 /* elements whose accumulators stay in the first-level cache */

#if defined(__SSE__)
#define FP_STANDARD 0x1f80u
unsigned long tb_fp_standard(void) {
    unsigned before = _mm_getcsr();
    /* The sticky flags (low six bits) do not matter, and writing the register is slow. */
    if (__builtin_expect((before & ~0x3fu) != FP_STANDARD, 0))
        _mm_setcsr(FP_STANDARD);
    return before;
}
void tb_fp_restore(unsigned long before) {
    if (__builtin_expect((before & ~0x3fu) != FP_STANDARD, 0))
        _mm_setcsr((unsigned)before);
}
#elif defined(__aarch64__)
unsigned long tb_fp_standard(void) {
    unsigned long before;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    if (before)
        __asm__ __volatile__("msr fpcr, %0" ::"r"(0ul));
    return before;
}
void tb_fp_restore(unsigned long before) {
    if (before)
        __asm__ __volatile__("msr fpcr, %0" ::"r"(before));
}
#else
unsigned long tb_fp_standard(void) { return 0; }
void tb_fp_restore(unsigned long before) { (void)before; }
#endif

static inline uint32_t bits_of(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static inline float float_of(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

static inline float one_nan(float f) { return f == f ? f : float_of(0x7fc00000u); }

static inline double one_nan64(double d) {
    double nan;
    uint64_t bits = 0x7ff8000000000000u;
    memcpy(&nan, &bits, sizeof nan);
    return d == d ? d : nan;
}

static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static inline uint16_t to_bf16(float f) {
    uint32_t b = bits_of(f);
    uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
    return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    uint32_t small = bits_of((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t b = magnitude < 0x400u ? small : magnitude >= 0x7c00u ? special : normal;
    return float_of(b | sign);
}

static inline uint16_t to_f16(float f) {
    uint32_t b = bits_of(f), sign = b >> 16 & 0x8000u, magnitude = b & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    /* Half a unit of float16's smallest is 2^-25: adding 0.5 makes float32 round there. */
    uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t h = magnitude < 0x38800000u ? small : magnitude >= 0x47800000u ? 0x7c00u : normal;
    h |= sign;
    return (uint16_t)(magnitude > 0x7f800000u ? 0x7e00u : h);
}

static inline float same32(float f) { return f; }
static inline double same64(double d) { return d; }
static inline uint32_t same_i32(uint32_t i) { return i; }

/* Sums: LOAD to the accumulator's type, add in rank order, STORE. Two ranks need no accumulators in memory. */
#define SUM(name, type, acc_type, LOAD, STORE)                                                                 \
    WIDE static void name(type *out, const type *const *in, int ranks, size_t count) {                         \
        if (ranks == 2) {                                                                                      \
            const type *a = in[0], *b = in[1];                                                                 \
            SAME_INDEX for (size_t i = 0; i < count; i++) out[i] = STORE(LOAD(a[i]) + LOAD(b[i]));             \
            return;                                                                                            \
        }                                                                                                      \
        acc_type acc[BLOCK];                                                                                   \
        for (size_t at = 0; at < count; at += BLOCK) {                                                         \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                                \
            for (size_t i = 0; i < n; i++)                                                                     \
                acc[i] = LOAD(in[0][at + i]);                                                                  \
            for (int r = 1; r < ranks; r++)                                                                    \
                for (size_t i = 0; i < n; i++)                                                                 \
                    acc[i] += LOAD(in[r][at + i]);                                                             \
            for (size_t i = 0; i < n; i++)                                                                     \
                out[at + i] = STORE(acc[i]);                                                                   \
        }                                                                                                      \
    }

SUM(sum_f16, uint16_t, float, from_f16, to_f16)
SUM(sum_bf16, uint16_t, float, from_bf16, to_bf16)
SUM(sum_f32, float, float, same32, one_nan)
SUM(sum_f64, double, double, same64, one_nan64)
SUM(sum_i32, uint32_t, uint32_t, same_i32, same_i32)

/* Extremes on integer keys that order like the numbers, signed zeros included: negative numbers have all bits
 * but the sign turned. A NaN takes the key that wins, and comes out as the one NaN. */
#define EXTREME(name, type, key_type, inf, nan, last, BETTER)                                                  \
    static inline key_type name##_key(type bits) {                                                             \
        key_type k = (key_type)bits;                                                                           \
        key_type turned = (key_type)(k ^ ((k >> (sizeof(type) * 8 - 1)) & (last)));                            \
        return (type)(bits & (type)(last)) > (type)(inf) ? (key_type)(BETTER(1, 0) ? (last) : ~(last)) : turned; \
    }                                                                                                          \
    static inline type name##_number(key_type k) {                                                             \
        key_type bits = (key_type)(k ^ ((k >> (sizeof(type) * 8 - 1)) & (last)));                              \
        return k == (key_type)(BETTER(1, 0) ? (last) : ~(last)) ? (type)(nan) : (type)bits;                    \
    }                                                                                                          \
    WIDE static void name(type *out, const type *const *in, int ranks, size_t count) {                         \
        key_type acc[BLOCK];                                                                                   \
        for (size_t at = 0; at < count; at += BLOCK) {                                                         \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                                \
            for (size_t i = 0; i < n; i++)                                                                     \
                acc[i] = name##_key(in[0][at + i]);                                                            \
            for (int r = 1; r < ranks; r++)                                                                    \
                for (size_t i = 0; i < n; i++) {                                                               \
                    key_type k = name##_key(in[r][at + i]);                                                    \
                    acc[i] = BETTER(k, acc[i]) ? k : acc[i];                                                   \
                }                                                                                              \
            for (size_t i = 0; i < n; i++)                                                                     \
                out[at + i] = name##_number(acc[i]);                                                           \
        }                                                                                                      \
    }

#define ABOVE(a, b) ((a) > (b))
#define BELOW(a, b) ((a) < (b))
EXTREME(max_f16, uint16_t, int16_t, 0x7c00, 0x7e00, 0x7fff, ABOVE)
EXTREME(min_f16, uint16_t, int16_t, 0x7c00, 0x7e00, 0x7fff, BELOW)
EXTREME(max_bf16, uint16_t, int16_t, 0x7f80, 0x7fc0, 0x7fff, ABOVE)
EXTREME(min_bf16, uint16_t, int16_t, 0x7f80, 0x7fc0, 0x7fff, BELOW)
EXTREME(max_f32, uint32_t, int32_t, 0x7f800000, 0x7fc00000, 0x7fffffff, ABOVE)
EXTREME(min_f32, uint32_t, int32_t, 0x7f800000, 0x7fc00000, 0x7fffffff, BELOW)
EXTREME(max_f64, uint64_t, int64_t, 0x7ff0000000000000, 0x7ff8000000000000, 0x7fffffffffffffff, ABOVE)
EXTREME(min_f64, uint64_t, int64_t, 0x7ff0000000000000, 0x7ff8000000000000, 0x7fffffffffffffff, BELOW)

#define EXTREME_INT(name, BETTER)                                                                              \
    WIDE static void name(int32_t *out, const int32_t *const *in, int ranks, size_t count) {                   \
        int32_t acc[BLOCK];                                                                                    \
        for (size_t at = 0; at < count; at += BLOCK) {                                                         \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                                \
            memcpy(acc, in[0] + at, n * sizeof *acc);                                                          \
            for (int r = 1; r < ranks; r++)                                                                    \
                for (size_t i = 0; i < n; i++)                                                                 \
                    acc[i] = BETTER(in[r][at + i], acc[i]) ? in[r][at + i] : acc[i];                           \
            memcpy(out + at, acc, n * sizeof *acc);                                                            \
        }                                                                                                      \
    }
EXTREME_INT(max_i32, ABOVE)
EXTREME_INT(min_i32, BELOW)

size_t tb_dtype_bytes(enum tb_dtype dtype) {
    static const unsigned char bytes[TB_DTYPES] = {2, 2, 4, 8, 4};
    return bytes[dtype];
}

#define CALL(name, type) name((type *)out, (const type *const *)in, ranks, count)
#define CASES(dtype, name, sum_type, type)                                                                     \
    case dtype:                                                                                                \
        if (op == TB_SUM)                                                                                      \
            CALL(sum_##name, sum_type);                                                                        \
        else if (op == TB_MAX)                                                                                 \
            CALL(max_##name, type);                                                                            \
        else                                                                                                   \
            CALL(min_##name, type);                                                                            \
        break;

void tb_reduce(enum tb_dtype dtype, enum tb_op op, void *out, const void *const *in, int ranks, size_t count) {
    switch (dtype) {
        CASES(TB_F16, f16, uint16_t, uint16_t)
        CASES(TB_BF16, bf16, uint16_t, uint16_t)
        CASES(TB_F32, f32, float, uint32_t)
        CASES(TB_F64, f64, double, uint64_t)
        CASES(TB_I32, i32, uint32_t, int32_t)
    default:
        break;
    }
}
