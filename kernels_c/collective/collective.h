/* Collectives over the channels of a group, between tb_begin and tb_end. All return a status of fault.h. */
#ifndef TB_COLLECTIVE_H
#define TB_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "handle.h"
#include "reduce.h"

enum tb_algorithm { TB_ALGORITHM_AUTO = 0, TB_DIRECT, TB_SCATTER };

int tb_barrier(tb_group *group, uint64_t timeout_ns);
int tb_broadcast(tb_group *group, void *data, size_t bytes, int root, uint64_t timeout_ns);
/* out holds size * bytes; in may be this rank's own part of it. */
int tb_all_gather(tb_group *group, const void *in, void *out, size_t bytes, uint64_t timeout_ns);
/* out may be in. */
int tb_all_reduce(tb_group *group, const void *in, void *out, size_t count, enum tb_dtype dtype, enum tb_op op,
                  enum tb_algorithm algorithm, uint64_t timeout_ns);
int tb_send(tb_group *group, const void *data, size_t bytes, int to, uint64_t timeout_ns);
int tb_recv(tb_group *group, void *data, size_t bytes, int from, uint64_t timeout_ns);

/* What "auto" takes. It depends on nothing that could differ between ranks. */
enum tb_algorithm tb_algorithm_for(int size, size_t bytes);

#endif
