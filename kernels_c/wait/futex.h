/* Sleeping on a word of shared memory, across processes. */
#ifndef TB_FUTEX_H
#define TB_FUTEX_H

#include <stdint.h>

/* Sleep while *word is `old`, at most `ns`, across processes; may return early. */
void tb_futex_wait(_Atomic uint32_t *word, uint32_t old, uint64_t ns);
void tb_futex_wake(_Atomic uint32_t *word);

#endif
