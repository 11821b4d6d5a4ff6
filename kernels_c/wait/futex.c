#include "futex.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#elif defined(__APPLE__)
extern int __ulock_wait(uint32_t operation, void *addr, uint64_t value, uint32_t timeout_us);
extern int __ulock_wake(uint32_t operation, void *addr, uint64_t wake_value);
#define UL_COMPARE_AND_WAIT_SHARED 3
#define ULF_WAKE_ALL 0x100
#else
#include "clock.h"
#endif

void tb_futex_wait(_Atomic uint32_t *word, uint32_t old, uint64_t ns) {
#if defined(__linux__)
    struct timespec limit = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, old, &limit, NULL, 0);
#elif defined(__APPLE__)
    __ulock_wait(UL_COMPARE_AND_WAIT_SHARED, (void *)word, old, (uint32_t)(ns / 1000) + 1);
#else
    (void)word, (void)old;
    tb_sleep_ns(ns < 50000 ? ns : 50000);
#endif
}

void tb_futex_wake(_Atomic uint32_t *word) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
#elif defined(__APPLE__)
    __ulock_wake(UL_COMPARE_AND_WAIT_SHARED | ULF_WAKE_ALL, (void *)word, 0);
#else
    (void)word;
#endif
}
