/* Elementwise reduction of the ranks' raw inputs, in ascending rank order. The rule, which all results follow:
 *
 *   sum   starts from rank 0's raw value; 16-bit types are summed in float32 and rounded once, to nearest even;
 *         int32 wraps.
 *   max   the larger, with +0 above -0. min the smaller, with -0 below +0.
 *   NaN   any NaN, found or made, gives the one quiet NaN without sign or payload (0x7fc00000 in float32). */
#ifndef TB_REDUCE_H
#define TB_REDUCE_H

#include <stddef.h>

enum tb_dtype { TB_F16 = 0, TB_BF16, TB_F32, TB_F64, TB_I32, TB_DTYPES };
enum tb_op { TB_SUM = 0, TB_MAX, TB_MIN, TB_OPS };

size_t tb_dtype_bytes(enum tb_dtype dtype);

/* out[i] = in[0][i] op in[1][i] op ... ; out may be the very same array as one of the inputs. */
void tb_reduce(enum tb_dtype dtype, enum tb_op op, void *out, const void *const *in, int ranks, size_t count);

/* Rounding to nearest without flushing of small numbers, which a library may have switched off for its
 * thread; then ranks would differ. Returns what was set before. */
unsigned long tb_fp_standard(void);
void tb_fp_restore(unsigned long before);

#endif
