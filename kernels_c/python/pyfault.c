#include "pyfault.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "group.h"
#include "mesh.h"

void tb_raise_with(const char *type, const char *subject, const char *rule, const char *got, const char *remedy,
                   PyObject *facts) {
    PyObject *module = PyImport_ImportModule("tbkit.errors");
    PyObject *class = module ? PyObject_GetAttrString(module, type) : NULL;
    PyObject *words = class ? Py_BuildValue("(ssss)", subject, rule, got, remedy) : NULL;
    PyObject *error = words ? PyObject_Call(class, words, facts) : NULL;
    if (error)
        PyErr_SetObject(class, error);
    Py_XDECREF(error);
    Py_XDECREF(words);
    Py_XDECREF(class);
    Py_XDECREF(module);
}

void tb_raise(const char *type, const char *subject, const char *rule, const char *got, const char *remedy) {
    tb_raise_with(type, subject, rule, got, remedy, NULL);
}

static PyObject *rank_list(uint32_t ranks) {
    PyObject *list = PyList_New(0);
    for (int r = 0; list && r < TB_MAX_RANKS; r++)
        if (ranks >> r & 1) {
            PyObject *rank = PyLong_FromLong(r);
            PyList_Append(list, rank);
            Py_DECREF(rank);
        }
    return list;
}

static void rank_words(char *text, size_t room, uint32_t ranks) {
    size_t at = 0;
    text[0] = 0;
    for (int r = 0; r < TB_MAX_RANKS; r++)
        if (ranks >> r & 1)
            at += (size_t)snprintf(text + at, room - at, at ? ", %d" : "%d", r);
}

static PyObject *facts_of(const tb_group *g, const tb_fault *f) {
    PyObject *peer = f->peer == TB_NO_PEER ? Py_NewRef(Py_None) : PyLong_FromLong(f->peer);
    return Py_BuildValue("{s:N,s:s,s:K,s:d,s:N,s:i,s:i}", "peer", peer, "operation", tb_kind_name(f->kind), "sequence",
                         (unsigned long long)f->sequence, "elapsed_s", (double)f->elapsed_ns * 1e-9, "absent",
                         rank_list(f->absent), "rank", g->rank, "met_by", f->by);
}

const char *tb_status_type(int status) {
    switch (status) {
    case TB_TIMEOUT: return "FabricTimeout";
    case TB_PEER_DIED: return "PeerDied";
    case TB_SILENT: return "PeerSilent";
    case TB_CORRUPT: return "CorruptFrame";
    case TB_INTERRUPTED: return "Interrupted";
    default: return "FabricError";
    }
}

/* Of a group over several nodes: the node of the peer, and what leads to it. */
static void link_words(const tb_group *g, const tb_fault *f, char *text, size_t room) {
    text[0] = 0;
    if (g->mesh && f->peer != TB_NO_PEER && f->by < g->size)
        tb_mesh_words(g->mesh, f->by, f->peer, text, room);
}

static void describe(const tb_group *g, const tb_fault *f, char *rule, size_t rule_room, char *got, size_t got_room) {
    char ranks[80], link[300];
    rank_words(ranks, sizeof ranks, f->absent);
    link_words(g, f, link, sizeof link);
    switch (f->status) {
    case TB_TIMEOUT:
        snprintf(rule, rule_room, "every rank must come to %s before the deadline", tb_kind_name(f->kind));
        snprintf(got, got_room, "nothing from rank %s in %.3f s%s%s", ranks, (double)f->elapsed_ns * 1e-9,
                 link[0] ? "; waited for it" : "", link);
        break;
    case TB_SILENT:
        snprintf(rule, rule_room, "%s needs its peers to be heard of", tb_kind_name(f->kind));
        snprintf(got, got_room, "nothing any more from rank %d%s: it is frozen or ended, or the cable is pulled",
                 f->peer, link);
        break;
    case TB_PEER_DIED:
        snprintf(rule, rule_room, "%s needs its peers alive", tb_kind_name(f->kind));
        snprintf(got, got_room, "the process of rank %d ended or left the group%s", f->peer, link);
        break;
    case TB_CORRUPT:
        snprintf(rule, rule_room, "the next frame from rank %d%s must be: %s", f->peer, link,
                 f->wanted[0] ? f->wanted : "whole");
        snprintf(got, got_room, "%s", f->got[0] ? f->got : "another one");
        break;
    case TB_INTERRUPTED:
        snprintf(rule, rule_room, "stopped by an interrupt");
        snprintf(got, got_room, "the flag of rank %d after %.3f s", f->by, (double)f->elapsed_ns * 1e-9);
        break;
    default:
        snprintf(rule, rule_room, "out of memory or a wrong argument");
        got[0] = 0;
    }
}

static const char *remedy_of(int status) {
    switch (status) {
    case TB_TIMEOUT: return "Call it on all ranks, or raise deadline_s; then form a new group";
    case TB_SILENT: return "Look at that node and its cable; then form a new group among those that are left";
    case TB_CORRUPT:
        return "Call the same operations with the same sizes in the same order on all ranks, in a new group";
    default: return "Form a new group";
    }
}

void tb_raise_fault(const tb_group *g, int status, const char *name) {
    const tb_fault *f = &g->fault;
    char subject[160], rule[500], got[600];
    if (status == TB_SIGNAL && PyErr_Occurred())
        return;
    if (status == TB_BROKEN) {
        snprintf(subject, sizeof subject, "group %s", name);
        snprintf(rule, sizeof rule, "a group takes no call after a fault");
        snprintf(got, sizeof got, "%s in %s met by rank %d before", tb_status_type(f->status), tb_kind_name(f->kind), f->by);
    } else {
        snprintf(subject, sizeof subject, "%s number %llu on rank %d", tb_kind_name(f->kind),
                 (unsigned long long)f->sequence, g->rank);
        describe(g, f, rule, sizeof rule, got, sizeof got);
        if (f->by != g->rank)
            snprintf(got + strlen(got), sizeof got - strlen(got), ", as rank %d found", f->by);
    }
    PyObject *facts = facts_of(g, f);
    if (facts)
        tb_raise_with(tb_status_type(status), subject, rule, got, remedy_of(status), facts);
    Py_XDECREF(facts);
}

static const char *mesh_remedy(const char *step) {
    if (strcmp(step, "listen") == 0)
        return "Write the addresses that each node has on its cables (ifconfig, ip addr) into the cabling";
    if (strcmp(step, "dial") == 0 || strcmp(step, "accept") == 0 || strcmp(step, "answer") == 0)
        return "Start all ranks of the group, and look whether the cable is up and the addresses face each other";
    return strcmp(step, "card") == 0 ? "Make tbkit and the cabling the same on all nodes" : "";
}

void tb_raise_mesh(const tb_mesh_error *e, const char *subject) {
    PyObject *peer = e->peer == TB_NO_PEER ? Py_NewRef(Py_None) : PyLong_FromLong(e->peer);
    PyObject *facts = Py_BuildValue("{s:N,s:s,s:i}", "peer", peer, "step", e->step, "errno", e->error);
    if (facts)
        tb_raise_with("LinkFailed", subject, e->rule, e->got, mesh_remedy(e->step), facts);
    Py_XDECREF(facts);
}

static const char *join_remedy(int error) {
    switch (error) {
    case EEXIST: return "Give each process its own rank, and each group its own name";
    case ENOSPC: return "Free room in shared memory (df -h /dev/shm), or use fewer ranks";
    case EINVAL: return "Give all ranks the same size, and the group a name that no other uses";
    case ETIMEDOUT: return "Its maker died: use a new name, or discard(name)";
    default: return "Check the name and the permissions of shared memory";
    }
}

void tb_raise_join(const char *name, int size, int error) {
    char subject[160], got[200];
    snprintf(subject, sizeof subject, "group %s", name);
    if (error == EPROTO || error == ENOTSUP) {
        bool other = error == EPROTO;
        tb_raise("FabricError", subject, other ? "all ranks give their links the same shapes" : "a shaped link is of shm or tcp",
                 other ? "other ones on another rank" : "a link whose frames carry no stamp",
                 other ? "Call it with the same shape on every rank" : "Shape the other links, or use carrier tcp");
        return;
    }
    snprintf(got, sizeof got, "%s for %d ranks", error == EEXIST ? "the rank is taken" : strerror(error), size);
    tb_raise("FabricError", subject, "its shared segment cannot be used", got, join_remedy(error));
}
