/* CRC-32C (Castagnoli, RFC 3720 appendix B.4): the CPU's instruction on three streams, or tables where it has none. */
#ifndef TB_CRC32C_H
#define TB_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` more bytes after those whose CRC is `crc`; 0 for none. tb_crc32c(0, "123456789", 9) is 0xe3069283. */
uint32_t tb_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same by tables alone: what the other is tested against. */
uint32_t tb_crc32c_tables(uint32_t crc, const void *data, size_t bytes);

#endif
