// The compiled face of tbkit's fabric: tbkit._kernels. The interface is described in tbkit/_kernels.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <cstring>
#include <string>

extern "C" {
#include "collective.h"
#include "heartbeat.h"
#include "pingpong.h"
#include "process.h"
}
#include "pybuffer.h"
#include "pyfault.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

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

[[noreturn]] void fail(const char *type, const std::string &subject, const char *rule, const std::string &got,
                       const char *remedy) {
    tb_raise(type, subject.c_str(), rule, got.c_str(), remedy);
    throw nb::python_error();
}

uint64_t nanoseconds(double seconds) {
    if (!(seconds >= 0))
        fail("UsageError", "deadline_s", "a deadline is a number of seconds >= 0", std::to_string(seconds), "");
    return static_cast<uint64_t>((seconds < TIMEOUT_MAX_S ? seconds : TIMEOUT_MAX_S) * 1e9);
}

// The place of a word in a short list; interned literals compare by their first bytes at once.
int choice(const char *word, std::initializer_list<const char *> words, const char *subject, const char *rule) {
    int index = 0;
    for (const char *known : words) {
        if (std::strcmp(word, known) == 0)
            return index;
        index++;
    }
    fail("UsageError", subject, rule, word, "");
}

nb::dict rank_facts(const tb_rank_facts &f) {
    static const char *const states[] = {"absent", "joining", "attached", "left"};
    nb::dict d;
    d["state"] = states[f.state & 3];
    d["pid"] = f.pid;
    d["operation"] = tb_kind_name(f.kind);
    d["peer"] = f.peer == TB_NO_PEER ? nb::none() : nb::cast(f.peer);
    d["done"] = f.done;
    d["sequence"] = f.sequence;
    d["collectives"] = f.collectives;
    d["start_ns"] = f.start_ns;
    d["heartbeat_ns"] = f.heartbeat_ns;
    return d;
}

class Group {
public:
    Group(const std::string &name, int rank, int size, double deadline_s, const char *policy)
        : name_(name), rank_(rank), size_(size), timeout_ns_(nanoseconds(deadline_s)) {
        if (size < 1 || size > 16 || rank < 0 || rank >= size)
            fail("UsageError", "group " + name, "a group has 1 to 16 ranks, counted from 0",
                 "rank " + std::to_string(rank) + " of " + std::to_string(size), "");
        int chosen = choice(policy, {"spin", "yield", "futex", "auto"}, "policy", "spin, yield, futex or auto");
        int status = TB_OK, error = 0;
        Gil::let_go(&gil_);
        group_ = tb_handle_join(name.c_str(), rank, size, timeout_ns_, {&gil_, Gil::let_go, Gil::tick}, &status, &error);
        gil_.take();
        if (!group_)
            throw std::bad_alloc();
        if (status == TB_OK) {
            tb_handle_policy(group_, static_cast<tb_policy>(chosen));
            return;
        }
        error ? tb_raise_join(name.c_str(), size, error) : tb_raise_fault(group_, status, name.c_str());
        tb_handle_free(group_);
        throw nb::python_error();
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
        if (!tb_handle_is_open(group_))
            refuse();
        return group_;
    }

    void close() {
        if (busy_)
            refuse();
        tb_handle_close(group_);
    }

    tb_group *handle() const { return group_; }
    const std::string &name() const { return name_; }
    int rank() const { return rank_; }
    int size() const { return size_; }
    double deadline_s() const { return static_cast<double>(timeout_ns_) * 1e-9; }

private:
    [[noreturn]] void refuse() const {
        if (busy_)
            fail("FabricError", "group " + name_, "one thread at a time calls a group", "a call while another waits",
                 "Give each thread a group of its own");
        fail("FabricError", "group " + name_, "a closed group takes no call", "a call after close()", "Form a new group");
    }

    tb_group *group_ = nullptr;
    Gil gil_;
    bool busy_ = false;
    std::string name_;
    int rank_, size_;
    uint64_t timeout_ns_;
};

// (the input as an array, a new array for the result of `times` inputs), of numpy or of mlx as the input is.
nb::tuple with_result(nb::handle x, const char *kind) {
    return nb::cast<nb::tuple>(nb::module_::import_("tbkit.fabric.arrays").attr(kind)(x));
}

tb_op op_of(const char *word) {
    return static_cast<tb_op>(choice(word, {"sum", "max", "min"}, "op", "sum, max or min"));
}

tb_algorithm algorithm_of(const char *word) {
    return static_cast<tb_algorithm>(choice(word, {"auto", "direct", "scatter"}, "algorithm", "auto, direct or scatter"));
}

nb::object all_reduce(Group &self, nb::object x, nb::object out, const char *op, const char *algorithm, nb::handle dtype,
                      nb::handle deadline_s) {
    if (__builtin_expect(out.is_none(), 0)) {
        nb::tuple pair = with_result(x, "reduced");
        x = pair[0], out = pair[1];
    }
    Buffer a, b;
    bool in_place = x.is(out);
    a.take(x, in_place, "all_reduce", "x");
    if (!in_place) {
        b.take(out, true, "all_reduce", "out");
        if (tb_buffer_match(&a, &b, 1, 0, "all_reduce") != 0)
            throw nb::python_error();
    }
    int type = tb_buffer_dtype(&a, dtype.ptr(), "all_reduce");
    if (type < 0)
        throw nb::python_error();
    auto kind = static_cast<tb_dtype>(type);
    tb_op how = op_of(op);
    tb_algorithm way = algorithm_of(algorithm);
    uint64_t timeout = self.timeout(deadline_s);
    void *target = in_place ? a.view.buf : b.view.buf;
    self.run(a.view.len, [&](tb_group *g) {
        return tb_all_reduce(g, a.view.buf, target, a.bytes() / tb_dtype_bytes(kind), kind, how, way, timeout);
    });
    return out;
}

nb::object all_gather(Group &self, nb::object x, nb::object out, nb::handle deadline_s) {
    if (out.is_none()) {
        nb::tuple pair = nb::cast<nb::tuple>(
            nb::module_::import_("tbkit.fabric.arrays").attr("gathered")(x, self.size()));
        x = pair[0], out = pair[1];
    }
    Buffer a, b;
    a.take(x, false, "all_gather", "x");
    b.take(out, true, "all_gather", "out");
    if (tb_buffer_match(&a, &b, self.size(), self.rank(), "all_gather") != 0)
        throw nb::python_error();
    uint64_t timeout = self.timeout(deadline_s);
    self.run(b.view.len, [&](tb_group *g) { return tb_all_gather(g, a.view.buf, b.view.buf, a.bytes(), timeout); });
    return out;
}

nb::object broadcast(Group &self, nb::object x, int root, nb::handle deadline_s) {
    self.peer(root, "root", true);
    Buffer a;
    a.take(x, self.rank() != root, "broadcast", "x");
    uint64_t timeout = self.timeout(deadline_s);
    self.run(a.view.len, [&](tb_group *g) { return tb_broadcast(g, a.view.buf, a.bytes(), root, timeout); });
    return x;
}

void send(Group &self, nb::object x, int dst, nb::handle deadline_s) {
    self.peer(dst, "dst");
    Buffer a;
    a.take(x, false, "send", "x");
    uint64_t timeout = self.timeout(deadline_s);
    self.run(a.view.len, [&](tb_group *g) { return tb_send(g, a.view.buf, a.bytes(), dst, timeout); });
}

nb::object recv(Group &self, nb::object out, int src, nb::handle deadline_s) {
    self.peer(src, "src");
    Buffer a;
    a.take(out, true, "recv", "out");
    uint64_t timeout = self.timeout(deadline_s);
    self.run(a.view.len, [&](tb_group *g) { return tb_recv(g, a.view.buf, a.bytes(), src, timeout); });
    return out;
}

void barrier(Group &self, nb::handle deadline_s) {
    uint64_t timeout = self.timeout(deadline_s);
    self.run(0, [&](tb_group *g) { return tb_barrier(g, timeout); });
}

// The loops fill a float64 array of one value an iteration, made by the caller.
template <class Loop> void fill_samples(Group &self, int peer, nb::handle samples, const char *name, Loop loop) {
    self.peer(peer, "peer");
    Buffer us;
    us.take(samples, true, name, "samples");
    if (us.view.itemsize != sizeof(double))
        fail("BufferRejected", "samples", "float64", std::to_string(us.view.itemsize) + " bytes an item", "");
    auto *at = static_cast<double *>(us.view.buf);
    self.run(RELEASE_BYTES, [&](tb_group *g) { return loop(g, us.bytes() / sizeof(double), at); });
}

void pingpong(Group &self, int peer, size_t bytes, nb::handle samples, nb::handle deadline_s) {
    uint64_t timeout = self.timeout(deadline_s);
    fill_samples(self, peer, samples, "pingpong",
                 [&](tb_group *g, size_t n, double *us) { return tb_pingpong(g, peer, bytes, n, us, timeout); });
}

void bare_pingpong(Group &self, int peer, nb::handle samples, nb::handle deadline_s) {
    uint64_t timeout = self.timeout(deadline_s);
    fill_samples(self, peer, samples, "bare_pingpong",
                 [&](tb_group *g, size_t n, double *us) { return tb_bare_pingpong(g, peer, n, us, timeout); });
}

void window(Group &self, int peer, size_t bytes, size_t count, nb::handle samples, nb::handle deadline_s) {
    uint64_t timeout = self.timeout(deadline_s);
    fill_samples(self, peer, samples, "window",
                 [&](tb_group *g, size_t n, double *us) { return tb_window(g, peer, bytes, count, n, us, timeout); });
}

nb::dict counts(const Group &self) {
    nb::dict all;
    for (int kind = TB_BARRIER; kind < TB_KINDS; kind++) {
        tb_count c = tb_handle_count(self.handle(), static_cast<tb_kind>(kind));
        if (c.calls) {
            nb::dict one;
            one["calls"] = c.calls, one["bytes"] = c.bytes;
            all[tb_kind_name(kind)] = one;
        }
    }
    return all;
}

class Observer {
public:
    Observer(const std::string &name, int size, double deadline_s) {
        int error = 0;
        observer_ = tb_observer_open(name.c_str(), size, nanoseconds(deadline_s), &error);
        check(name, size, error);
    }
    explicit Observer(int fd) {
        int error = 0;
        observer_ = tb_observer_open_fd(fd, &error);
        check("of descriptor " + std::to_string(fd), 0, error);
    }
    Observer(const Observer &) = delete;
    ~Observer() { close(); }
    void close() {
        if (observer_)
            tb_observer_free(observer_);
        observer_ = nullptr;
    }
    tb_observer *get() const {
        if (!observer_)
            fail("FabricError", "observer", "a closed observer reads nothing", "a call after close()", "Open a new one");
        return observer_;
    }

private:
    void check(const std::string &name, int size, int error) const {
        if (!observer_) {
            tb_raise_join(name.c_str(), size, error);
            throw nb::python_error();
        }
    }
    tb_observer *observer_ = nullptr;
};

nb::object broken(const Observer &self) {
    tb_fault f;
    if (!tb_observer_broken(self.get(), &f))
        return nb::none();
    nb::dict d;
    d["operation"] = tb_kind_name(f.kind), d["met_by"] = f.by, d["absent_bits"] = f.absent;
    d["peer"] = f.peer == TB_NO_PEER ? nb::none() : nb::cast(f.peer);
    return d;
}

void start_heartbeat(int fd, double interval_s, std::optional<int> watch_fd, double grace_s, nb::bytes message) {
    tb_heart heart{fd, watch_fd.value_or(fd), nanoseconds(interval_s), nanoseconds(grace_s), {}, message.size()};
    if (heart.length == 0 || heart.length > TB_BEAT_MAX || interval_s < 0.001)
        fail("UsageError", "start_heartbeat", "an interval >= 1 ms and a message of 1 to 64 bytes",
             std::to_string(interval_s) + " s, " + std::to_string(heart.length) + " bytes", "");
    std::memcpy(heart.message, message.c_str(), heart.length);
    if (int error = tb_heartbeat_start(&heart))
        fail("FabricError", "start_heartbeat", "one heartbeat thread a process", std::strerror(error),
             "Call stop_heartbeat() first");
}

void stop_heartbeat() {
    nb::gil_scoped_release released;
    tb_heartbeat_stop();
}

bool die_with_parent(int parent_pid, int signal) { return tb_die_with_parent(parent_pid, signal) == 0; }

void discard(const std::string &name) {
    if (int error = tb_discard(name.c_str()))
        tb_raise_join(name.c_str(), 0, error), throw nb::python_error();
}

void bind_group(nb::module_ &m) {
    const auto none = nb::none();
    nb::class_<Group>(m, "Group")
        .def(nb::init<const std::string &, int, int, double, const char *>(), "name"_a, "rank"_a, "size"_a,
             "deadline_s"_a = 30.0, "policy"_a = "auto")
        .def("all_reduce", all_reduce, "x"_a, "out"_a = none, "op"_a = "sum", nb::kw_only(), "algorithm"_a = "auto",
             "dtype"_a = none, "deadline_s"_a = none)
        .def("all_gather", all_gather, "x"_a, "out"_a = none, nb::kw_only(), "deadline_s"_a = none)
        .def("broadcast", broadcast, "x"_a, "root"_a = 0, nb::kw_only(), "deadline_s"_a = none)
        .def("send", send, "x"_a, "dst"_a, nb::kw_only(), "deadline_s"_a = none)
        .def("recv", recv, "out"_a, "src"_a, nb::kw_only(), "deadline_s"_a = none)
        .def("barrier", barrier, nb::kw_only(), "deadline_s"_a = none)
        .def("fill_pingpong", pingpong, "peer"_a, "bytes"_a, "samples"_a, "deadline_s"_a = none)
        .def("fill_bare_pingpong", bare_pingpong, "peer"_a, "samples"_a, "deadline_s"_a = none)
        .def("fill_window", window, "peer"_a, "bytes"_a, "count"_a, "samples"_a, "deadline_s"_a = none)
        .def("close", &Group::close)
        .def("rank_facts", [](const Group &g, int r) { g.peer(r, "rank", true); return rank_facts(tb_handle_facts(g.open(), r)); })
        .def("interrupt_bits", [](const Group &g, uint32_t ranks) { tb_handle_interrupt(g.open(), ranks); })
        .def_prop_ro("is_open", [](const Group &g) { return tb_handle_is_open(g.handle()); })
        .def_prop_ro("oversubscribed", [](const Group &g) { return tb_handle_oversubscribed(g.handle()); })
        .def_prop_ro("fd", [](const Group &g) { return tb_handle_fd(g.open()); })
        .def_prop_ro("raw_counts", counts)
        .def_prop_ro("name", &Group::name)
        .def_prop_ro("rank", &Group::rank)
        .def_prop_ro("size", &Group::size)
        .def_prop_ro("deadline_s", &Group::deadline_s);
}

void bind_observer(nb::module_ &m) {
    nb::class_<Observer>(m, "Observer")
        .def(nb::init<const std::string &, int, double>(), "name"_a, "size"_a, "deadline_s"_a)
        .def(nb::init<int>(), "fd"_a)
        .def("rank_facts", [](const Observer &o, int r) { return rank_facts(tb_observer_facts(o.get(), r & 15)); })
        .def("interrupt_bits", [](const Observer &o, uint32_t ranks) { tb_observer_interrupt(o.get(), ranks); })
        .def("close", &Observer::close)
        .def_prop_ro("broken", broken)
        .def_prop_ro("size", [](const Observer &o) { return tb_observer_size(o.get()); })
        .def_prop_ro("attached", [](const Observer &o) { return tb_observer_attached(o.get()); });
}

}  // namespace

NB_MODULE(_kernels, m) {
    nb::set_leak_warnings(false);  // a group alive at exit is closed by the system with its process
    bind_group(m);
    bind_observer(m);
    m.def("start_heartbeat", start_heartbeat, "fd"_a, "interval_s"_a, "watch_fd"_a = nb::none(), "grace_s"_a = 2.0,
          "message"_a = nb::bytes("\0", 1));
    m.def("stop_heartbeat", stop_heartbeat);
    m.def("heartbeat_count", tb_heartbeat_count);
    m.def("die_with_parent", die_with_parent, "parent_pid"_a, "signal"_a = 9);
    m.def("set_timer_slack_ns", [](unsigned long ns) { return tb_set_timer_slack_ns(ns) == 0; }, "ns"_a);
    m.def("cores_free", tb_cores_free);
    m.def("discard", discard, "name"_a);
    m.def("testing_corrupt_next_frame", [](Group &g) { tb_testing_corrupt(g.open(), 1); }, "group"_a);
}
