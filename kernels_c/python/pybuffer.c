#include "pybuffer.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "pyfault.h"
#include "reduce.h"

static void list_sizes(char *text, size_t room, int n, const Py_ssize_t *sizes) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n && at + 24 < room; i++)
        at += (size_t)snprintf(text + at, room - at, i ? ", %zd" : "%zd", sizes[i]);
}

static int reject_strides(const Py_buffer *v, const char *operation, const char *argument) {
    char shape[120], strides[120], rule[120], got[300];
    list_sizes(shape, sizeof shape, v->ndim, v->shape);
    list_sizes(strides, sizeof strides, v->ndim, v->strides);
    snprintf(rule, sizeof rule, "%s takes dense row-major arrays", operation);
    snprintf(got, sizeof got, "shape (%s), strides (%s) bytes, items of %zd bytes", shape, strides, v->itemsize);
    tb_raise("BufferRejected", argument, rule, got,
             "Make a dense copy first: np.ascontiguousarray(x) or mx.contiguous(x)");
    return -1;
}

static bool is_dense(const Py_buffer *v) {
    Py_ssize_t step = v->itemsize;
    if (v->len == 0 || !v->strides)
        return true;
    for (int i = v->ndim - 1; i >= 0; i--) {
        if (v->shape[i] != 1 && v->strides[i] != step)
            return false;
        step *= v->shape[i];
    }
    return true;
}

static int reject_export(PyObject *array, bool writable, const char *operation, const char *argument) {
    char rule[160], got[200];
    Py_buffer probe;
    PyErr_Clear();
    bool readable = writable && PyObject_GetBuffer(array, &probe, PyBUF_STRIDES | PyBUF_FORMAT) == 0;
    if (readable)
        PyBuffer_Release(&probe);
    PyErr_Clear();
    snprintf(rule, sizeof rule, readable ? "%s writes to it" : "%s takes arrays with the buffer protocol", operation);
    snprintf(got, sizeof got, "%s%s", readable ? "a read-only " : "", Py_TYPE(array)->tp_name);
    tb_raise("BufferRejected", argument, rule, got,
             readable ? "Pass a writable array as out=" : "Pass a numpy or an mlx array");
    return -1;
}

static int reject_alignment(const Py_buffer *v, const char *operation, const char *argument) {
    char rule[120], got[120];
    snprintf(rule, sizeof rule, "%s takes arrays aligned to their items", operation);
    snprintf(got, sizeof got, "items of %zd bytes at address %p", v->itemsize, v->buf);
    tb_raise("BufferRejected", argument, rule, got, "Make an aligned copy first: np.array(x)");
    return -1;
}

int tb_buffer_take(tb_buffer *b, PyObject *array, bool writable, const char *operation, const char *argument) {
    Py_buffer *v = &b->view;
    v->obj = NULL;
    if (PyObject_GetBuffer(array, v, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0)
        return reject_export(array, writable, operation, argument);
    int status = 0;
    if (!is_dense(v))
        status = reject_strides(v, operation, argument);
    else if (v->len && v->itemsize > 1 && v->itemsize <= 8 && (uintptr_t)v->buf & (uintptr_t)(v->itemsize - 1) &&
             !(v->itemsize & (v->itemsize - 1)))
        status = reject_alignment(v, operation, argument);
    if (status)
        tb_buffer_drop(b);
    return status;
}

static const char *const names[TB_DTYPES] = {"float16", "bfloat16", "float32", "float64", "int32"};

static int by_format(const char *f) {
    if (!f)
        return -1;
    if (*f == '@' || *f == '=' || *f == '<')
        f++;
    if (f[0] && f[1] == 0)
        return *f == 'f' ? TB_F32 : *f == 'd' ? TB_F64 : *f == 'e' ? TB_F16 : *f == 'i' ? TB_I32 : -1;
    return strcmp(f, "bfloat16") == 0 ? TB_BF16 : -1;
}

/* "float32", dtype('float32'), <class 'numpy.float32'> and mlx.core.float32 all end in the name. */
static int by_name(PyObject *dtype) {
    PyObject *text = PyObject_Str(dtype);
    const char *all = text ? PyUnicode_AsUTF8(text) : NULL;
    const char *dot = all ? strrchr(all, '.') : NULL, *name = dot ? dot + 1 : all;
    int found = -1;
    for (int i = 0; name && i < TB_DTYPES; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(name, names[i], n) == 0 && (name[n] == 0 || name[n] == '\''))
            found = i;
    }
    Py_XDECREF(text);
    PyErr_Clear();
    return found;
}

static int reject_dtype(const tb_buffer *b, PyObject *dtype, const char *operation) {
    char rule[200], got[160];
    PyObject *text = dtype == Py_None ? NULL : PyObject_Repr(dtype);
    const char *words = text ? PyUnicode_AsUTF8(text) : NULL;
    snprintf(rule, sizeof rule, "%s takes float16, bfloat16, float32, float64 and int32", operation);
    snprintf(got, sizeof got, "format '%.40s', items of %zd bytes%s%.60s", b->view.format ? b->view.format : "none",
             b->view.itemsize, words ? ", dtype=" : "", words ? words : "");
    Py_XDECREF(text);
    PyErr_Clear();
    tb_raise("BufferRejected", "x", rule, got,
             "Convert it, or pass dtype=\"bfloat16\" for bfloat16 kept as uint16");
    return -1;
}

int tb_buffer_dtype(const tb_buffer *b, PyObject *dtype, const char *operation) {
    int format = by_format(b->view.format);
    if (dtype == Py_None)
        return format >= 0 ? format : reject_dtype(b, dtype, operation);
    int wanted = by_name(dtype);
    const char *f = b->view.format;
    bool raw16 = f && strcmp(f[0] == '<' || f[0] == '=' || f[0] == '@' ? f + 1 : f, "H") == 0;
    bool fits = wanted >= 0 && (wanted == format || (raw16 && tb_dtype_bytes(wanted) == 2));
    return fits ? wanted : reject_dtype(b, dtype, operation);
}

int tb_buffer_match(const tb_buffer *x, const tb_buffer *out, Py_ssize_t times, Py_ssize_t part,
                    const char *operation) {
    char rule[160], got[200];
    const Py_buffer *a = &x->view, *b = &out->view;
    const char *fa = a->format ? a->format : "B", *fb = b->format ? b->format : "B";
    if (b->len != a->len * times || a->itemsize != b->itemsize || strcmp(fa, fb) != 0) {
        snprintf(rule, sizeof rule, "%s needs %zd x %zd bytes of format '%.40s'", operation, times, a->len, fa);
        snprintf(got, sizeof got, "%zd bytes of format '%.40s'", b->len, fb);
        tb_raise("BufferRejected", "out", rule, got, "Make it with the shape and dtype of the result");
        return -1;
    }
    const char *from = a->buf, *to = b->buf, *own = to + part * a->len;
    if (a->len && from != own && from < to + b->len && to < from + a->len) {
        snprintf(rule, sizeof rule, "%s cannot write over a part of its input", operation);
        tb_raise("BufferRejected", "out", rule, "memory shared with x at another place",
                 "Pass x itself, or an array of its own");
        return -1;
    }
    return 0;
}
