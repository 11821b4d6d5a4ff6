// Behind module.cpp: arguments, buffers, the GIL, and the group that Python holds.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <initializer_list>
#include <new>
#include <string>

extern "C" {
#include "handle.h"
#include "mesh.h"
#include "shaping.h"
}
#include "pybuffer.h"
#include "pyfault.h"

namespace nb = nanobind;

namespace tbkit {

constexpr Py_ssize_t RELEASE_BYTES = 16384;  // a copy of this size takes longer than giving the GIL up
constexpr double TIMEOUT_MAX_S = 1e9;

// Gives the GIL up at the first wait that takes long, and takes it back when the operation is over.
struct Gil {
    PyThreadState *state = nullptr;
    static void let_go(void *self) {
        auto *gil = static_cast<Gil *>(self);
        if (!gil->state)
            gil->state = PyEval_SaveThread();
    }
    static int tick(void *self) {
        auto *gil = static_cast<Gil *>(self);
        gil->take();
        int status = PyErr_CheckSignals();
        let_go(self);
        return status;
    }
    void take() {
        if (state)
            PyEval_RestoreThread(state);
        state = nullptr;
    }
};

struct Buffer : tb_buffer {
    Buffer() { view.obj = nullptr; }
    Buffer(const Buffer &) = delete;
    ~Buffer() {
        if (view.obj)
            tb_buffer_drop(this);
    }
    void take(nb::handle array, bool writable, const char *operation, const char *argument) {
        if (tb_buffer_take(this, array.ptr(), writable, operation, argument) != 0)
            throw nb::python_error();
    }
    size_t bytes() const { return static_cast<size_t>(view.len); }
};

[[noreturn]] inline void fail(const char *type, const std::string &subject, const char *rule, const std::string &got,
                       const char *remedy) {
    tb_raise(type, subject.c_str(), rule, got.c_str(), remedy);
    throw nb::python_error();
}

inline uint64_t nanoseconds(double seconds) {
    if (!(seconds >= 0))
        fail("UsageError", "deadline_s", "a deadline is a number of seconds >= 0", std::to_string(seconds), "");
    return static_cast<uint64_t>((seconds < TIMEOUT_MAX_S ? seconds : TIMEOUT_MAX_S) * 1e9);
}

// The place of a word in a short list; interned literals compare by their first bytes at once.
inline int choice(const char *word, std::initializer_list<const char *> words, const char *subject, const char *rule) {
    int index = 0;
    for (const char *known : words) {
        if (std::strcmp(word, known) == 0)
            return index;
        index++;
    }
    fail("UsageError", subject, rule, word, "");
}

class Group {
public:
    // links: (low, high, latency_ns, ns_per_byte) of each shaped pair, the same list on every rank.
    Group(const std::string &name, int rank, int size, double deadline_s, const char *policy, const nb::list &links)
        : name_(name), rank_(rank), size_(size), timeout_ns_(nanoseconds(deadline_s)) {
        if (size < 1 || size > 16 || rank < 0 || rank >= size)
            fail("UsageError", "group " + name, "a group has 1 to 16 ranks, counted from 0",
                 "rank " + std::to_string(rank) + " of " + std::to_string(size), "");
        tb_shaping shaping = shaping_of(links);
        form(policy, [&](tb_hooks hooks, int *status, int *error) {
            return tb_handle_join(name.c_str(), rank, size, &shaping, timeout_ns_, hooks, status, error);
        });
    }
    // Over a mesh that has been started, which then belongs to the group.
    template <class Mesh>
    Group(Mesh &mesh, const std::string &name, double deadline_s, const char *policy, const nb::list &links)
        : name_(name), rank_(mesh.rank()), size_(mesh.size()), timeout_ns_(nanoseconds(deadline_s)) {
        auto *whole = mesh.whole();
        tb_shaping shaping = shaping_of(links);
        form(policy, [&](tb_hooks hooks, int *status, int *error) {
            return tb_mesh_group(whole, &shaping, timeout_ns_, hooks, status, error);
        });
        mesh.given();
    }
    Group(const Group &) = delete;
    ~Group() { tb_handle_free(group_); }

    // Runs one operation of the core: alone in this group, the GIL given up where it pays.
    template <class Operation> void run(Py_ssize_t bytes, Operation operation) {
        if (__builtin_expect(busy_ || !tb_handle_is_open(group_), 0))
            refuse();
        busy_ = true;
        if (bytes >= RELEASE_BYTES)
            Gil::let_go(&gil_);
        int status = operation(group_);
        gil_.take();
        busy_ = false;
        if (__builtin_expect(status != TB_OK, 0)) {
            tb_raise_fault(group_, status, name_.c_str());
            throw nb::python_error();
        }
    }

    uint64_t timeout(nb::handle deadline_s) const {
        return deadline_s.is_none() ? timeout_ns_ : nanoseconds(nb::cast<double>(deadline_s));
    }

    void peer(int rank, const char *argument, bool self_too = false) const {
        if (rank < 0 || rank >= size_ || (rank == rank_ && !self_too))
            fail("UsageError", argument, self_too ? "a rank of the group" : "another rank of the group",
                 std::to_string(rank) + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_), "");
    }

    tb_group *open() const {
        if (!is_open())
            refuse();
        return group_;
    }

    // Without the GIL: a thread that reads a window of the group takes it once more as its wait ends.
    void close() {
        if (busy_)
            refuse();
        busy_ = closing_ = true;
        {
            nb::gil_scoped_release released;
            tb_handle_close(group_);
        }
        busy_ = closing_ = false;
    }

    bool is_open() const { return !closing_ && tb_handle_is_open(group_); }
    tb_group *handle() const { return group_; }
    const std::string &name() const { return name_; }
    int rank() const { return rank_; }
    int size() const { return size_; }
    double deadline_s() const { return static_cast<double>(timeout_ns_) * 1e-9; }

private:
    tb_shaping shaping_of(const nb::list &links) const {
        tb_shaping shaping{};
        for (nb::handle link : links) {
            auto row = nb::cast<nb::tuple>(link);
            int low = nb::cast<int>(row[0]), high = nb::cast<int>(row[1]);
            if (low < 0 || low >= high || high >= size_)
                fail("UsageError", "shape", "a pair of ranks of the group, the lower first",
                     std::to_string(low) + " and " + std::to_string(high), "");
            tb_shaping_add(&shaping, rank_, low, high, nb::cast<uint64_t>(row[2]), nb::cast<double>(row[3]));
        }
        return shaping;
    }

    template <class Join> void form(const char *policy, Join join) {
        int chosen = choice(policy, {"spin", "yield", "futex", "auto"}, "policy", "spin, yield, futex or auto");
        int status = TB_OK, error = 0;
        Gil::let_go(&gil_);
        group_ = join(tb_hooks{&gil_, Gil::let_go, Gil::tick}, &status, &error);
        gil_.take();
        if (!group_)
            throw std::bad_alloc();
        if (status == TB_OK) {
            tb_handle_policy(group_, static_cast<tb_policy>(chosen));
            return;
        }
        error ? tb_raise_join(name_.c_str(), size_, error) : tb_raise_fault(group_, status, name_.c_str());
        tb_handle_free(group_);
        throw nb::python_error();
    }

    [[noreturn]] void refuse() const {
        if (busy_ && !closing_)
            fail("FabricError", "group " + name_, "one thread at a time calls a group", "a call while another waits",
                 "Give each thread a group of its own");
        fail("FabricError", "group " + name_, "a closed group takes no call", "a call after close()",
             "Form a new group");
    }

    tb_group *group_ = nullptr;
    Gil gil_;
    bool busy_ = false, closing_ = false;
    std::string name_;
    int rank_, size_;
    uint64_t timeout_ns_;
};

}  // namespace tbkit
