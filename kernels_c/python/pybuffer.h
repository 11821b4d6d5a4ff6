/* Arrays from Python by the buffer protocol. Strides are checked here: some exporters hand out broadcast and
 * transposed views whatever was asked for, and writing to such a view goes past its memory. */
#ifndef TB_PYBUFFER_H
#define TB_PYBUFFER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_buffer {
    Py_buffer view; /* view.obj NULL: holds nothing */
} tb_buffer;

/* 0, or -1 with tbkit.errors.BufferRejected set; `operation` and `argument` name the call in its message. */
int tb_buffer_take(tb_buffer *buffer, PyObject *array, bool writable, const char *operation, const char *argument);
static inline void tb_buffer_drop(tb_buffer *buffer) { PyBuffer_Release(&buffer->view); }

/* The element type as enum tb_dtype, from the array's format or, for bfloat16 kept as uint16, from `dtype`
 * (None, a name, or a dtype object); -1 with the error set. */
int tb_buffer_dtype(const tb_buffer *buffer, PyObject *dtype, const char *operation);
/* 0 where out has the size of `times` x and its format, and shares memory with x not at all or so that x is
 * exactly its part number `part`; else -1 with the error set. */
int tb_buffer_match(const tb_buffer *x, const tb_buffer *out, Py_ssize_t times, Py_ssize_t part,
                    const char *operation);

#ifdef __cplusplus
}
#endif
#endif
