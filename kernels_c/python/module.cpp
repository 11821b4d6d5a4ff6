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
#include "pygroup.hpp"
#include "pymesh.hpp"
#include "pywindow.hpp"

using namespace nb::literals;
using namespace tbkit;

namespace {

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

// (the input as an array, a new array for the result of `times` inputs), of numpy or of mlx as the input is.
nb::tuple with_result(nb::handle x, const char *kind) {
    return nb::cast<nb::tuple>(nb::module_::import_("tbkit.fabric.arrays").attr(kind)(x));
}

tb_op op_of(const char *word) {
    return static_cast<tb_op>(choice(word, {"sum", "max", "min"}, "op", "sum, max or min"));
}

tb_algorithm algorithm_of(const char *word) {
    constexpr const char *rule = "auto, direct or scatter";
    return static_cast<tb_algorithm>(choice(word, {"auto", "direct", "scatter"}, "algorithm", rule));
}

nb::object all_reduce(Group &self, nb::object x, nb::object out, const char *op, const char *algorithm,
                      nb::handle dtype, nb::handle deadline_s) {
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

// Fills an int64 array of four values an exchange, made by the caller.
void exchange_clocks(Group &self, int peer, double pause_s, nb::handle stamps, nb::handle deadline_s) {
    self.peer(peer, "peer");
    uint64_t timeout = self.timeout(deadline_s), pause = nanoseconds(pause_s);
    Buffer ns;
    ns.take(stamps, true, "clock", "stamps");
    if (ns.view.itemsize != sizeof(int64_t) || ns.bytes() % (4 * sizeof(int64_t)))
        fail("BufferRejected", "stamps", "int64, four an exchange", std::to_string(ns.view.len) + " bytes", "");
    auto *at = static_cast<int64_t *>(ns.view.buf);
    size_t exchanges = ns.bytes() / (4 * sizeof(int64_t));
    self.run(RELEASE_BYTES, [&](tb_group *g) { return tb_clock(g, peer, exchanges, pause, at, timeout); });
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
            fail("FabricError", "observer", "a closed observer reads nothing", "a call after close()",
                 "Open a new one");
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

nb::dict group_facts(const Group &self, int rank) {
    self.peer(rank, "rank", true);
    return rank_facts(tb_handle_facts(self.open(), rank));
}

void bind_group(nb::module_ &m) {
    const auto none = nb::none();
    nb::class_<Group>(m, "Group")
        .def(nb::init<const std::string &, int, int, double, const char *, const nb::list &>(), "name"_a, "rank"_a,
             "size"_a, "deadline_s"_a = 30.0, "policy"_a = "auto", "links"_a = nb::list())
        .def(nb::init<Mesh &, const std::string &, double, const char *, const nb::list &>(), "mesh"_a, "name"_a,
             "deadline_s"_a, "policy"_a, "links"_a = nb::list())
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
        .def("fill_clock", exchange_clocks, "peer"_a, "pause_s"_a, "stamps"_a, "deadline_s"_a = none)
        .def("close", &Group::close)
        .def("rank_facts", group_facts)
        .def("interrupt_bits", [](const Group &g, uint32_t ranks) { tb_handle_interrupt(g.open(), ranks); })
        .def_prop_ro("is_open", &Group::is_open)
        .def_prop_ro("oversubscribed", [](const Group &g) { return tb_handle_oversubscribed(g.handle()); })
        .def_prop_ro("fd", [](const Group &g) { return tb_handle_fd(g.open()); })
        .def_prop_ro("raw_counts", counts)
        .def_prop_ro("name", &Group::name)
        .def_prop_ro("rank", &Group::rank)
        .def_prop_ro("size", &Group::size)
        .def_prop_ro("deadline_s", &Group::deadline_s);
}

void bind_mesh(nb::module_ &m) {
    nb::class_<Mesh>(m, "Mesh")
        .def(nb::init<int, const nb::list &, const nb::list &, double, uint32_t>(), "rank"_a, "nodes"_a, "cables"_a,
             "silence_s"_a, "large_frames"_a)
        .def_prop_ro("card", &Mesh::card)
        .def("connect", &Mesh::connect, "cards"_a, "deadline_s"_a)
        .def("start", &Mesh::start, "cards"_a)
        .def("close", &Mesh::close);
}

void bind_window(nb::module_ &m) {
    const auto none = nb::none();
    nb::class_<Window>(m, "Window")
        .def(nb::init<nb::object, nb::handle, nb::handle>(), "group"_a, "memory"_a.none(), "deadline_s"_a.none())
        .def("read_into", &Window::read, "rank"_a, "offset"_a, "length"_a, "out"_a, "deadline_s"_a = none)
        .def("fill_times", &Window::fill_times, "rank"_a, "offset"_a, "out"_a, "samples"_a, "deadline_s"_a = none)
        .def("bytes_of", &Window::bytes_of, "rank"_a)
        .def("carrier", &Window::carrier, "rank"_a)
        .def("close_by", &Window::close, "deadline_s"_a.none())
        .def_prop_ro("is_open", &Window::is_open);
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
    bind_mesh(m);
    bind_group(m);
    bind_window(m);
    bind_observer(m);
    m.def("start_heartbeat", start_heartbeat, "fd"_a, "interval_s"_a, "watch_fd"_a = nb::none(), "grace_s"_a = 2.0,
          "message"_a = nb::bytes("\0", 1));
    m.def("stop_heartbeat", stop_heartbeat);
    m.def("heartbeat_count", tb_heartbeat_count);
    m.def("die_with_parent", die_with_parent, "parent_pid"_a, "signal"_a = 9);
    m.def("set_timer_slack_ns", [](unsigned long ns) { return tb_set_timer_slack_ns(ns) == 0; }, "ns"_a);
    m.def("cores_free", tb_cores_free);
    m.def("discard", discard, "name"_a);
    m.def("testing_skew", [](Group &g, int64_t offset_ns, int64_t origin_ns, double drift) {
        tb_testing_skew(g.open(), offset_ns, origin_ns, drift);
    }, "group"_a, "offset_ns"_a, "origin_ns"_a, "drift"_a);
    m.def("testing_corrupt_next_frame", [](Group &g) { tb_testing_corrupt(g.open(), 1); }, "group"_a);
}
