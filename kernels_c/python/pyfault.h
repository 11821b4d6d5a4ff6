/* Faults of the core as exceptions of tbkit.errors, in the words of the house: subject, rule, got, remedy. */
#ifndef TB_PYFAULT_H
#define TB_PYFAULT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tb_group;

void tb_raise(const char *type, const char *subject, const char *rule, const char *got, const char *remedy);
/* The same with `facts`, a dict or NULL. */
void tb_raise_with(const char *type, const char *subject, const char *rule, const char *got, const char *remedy,
                   PyObject *facts);
const char *tb_status_type(int status); /* the class of tbkit.errors for a status of the core */
/* The group's last fault; `name` is the group's. With TB_SIGNAL the error is set already. */
void tb_raise_fault(const struct tb_group *group, int status, const char *name);
struct tb_mesh_error;
/* A mesh did not come up; `subject` names the cable or the peer. */
void tb_raise_mesh(const struct tb_mesh_error *error, const char *subject);
void tb_raise_join(const char *name, int size, int error);

#ifdef __cplusplus
}
#endif
#endif
