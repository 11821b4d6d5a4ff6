#include "copy.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>

#define STEP 64 /* one line a step */

static inline void copy_line(char *to, const char *from) {
    __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
    _mm_stream_si128((__m128i *)to, a);
    _mm_stream_si128((__m128i *)(to + 16), b);
    _mm_stream_si128((__m128i *)(to + 32), c);
    _mm_stream_si128((__m128i *)(to + 48), d);
}
#endif

void tb_copy_past(void *to, const void *from, size_t bytes) {
    size_t done = 0;
#if defined(__SSE2__)
    for (; done + STEP <= bytes; done += STEP)
        copy_line((char *)to + done, (const char *)from + done);
    _mm_sfence();
#endif
    memcpy((char *)to + done, (const char *)from + done, bytes - done);
}
