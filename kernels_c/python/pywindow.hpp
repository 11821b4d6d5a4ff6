// A window as Python holds it: the export that keeps its memory, reads from any thread, their errors.
#pragma once

#include "pygroup.hpp"

#include <cstdlib>

extern "C" {
#include "window.h"
}

namespace tbkit {

// What a read that failed says; `g` is open.
class ReadFailure {
public:
    ReadFailure(tb_group *g, const Group &group, const tb_read &read, const tb_read_end &end)
        : group_(group), read_(read), end_(end) {
        char link[300];
        owner_ = "rank " + std::to_string(read.rank);
        tb_handle_words(g, read.rank, link, sizeof link);
        owner_ += link;
        subject_ = "read of " + std::to_string(read.length) + " bytes at " + std::to_string(read.offset) + " of " + owner_;
    }

    [[noreturn]] void raise(int status) const {
        if (status == TB_SIGNAL && PyErr_Occurred())
            throw nb::python_error();
        if (status == TB_INVALID)
            refused();
        switch (status) {
        case TB_TIMEOUT:
            raise(status, "its node answers before the deadline",
                  std::to_string(end_.got) + " bytes in " + seconds() + " s",
                  "Look whether that process is stopped or the cable is out, or raise deadline_s");
        case TB_SILENT:
            raise(status, "the owner is heard of", "nothing any more: it is frozen or ended, or the cable is pulled",
                  "Look at that node and its cable; then form a new group");
        case TB_PEER_DIED:
            raise(status, "the owner is alive and in the group",
                  "its process ended or left the group" + std::string(end_.fault.got[0] ? ": " : "") + end_.fault.got,
                  "Form a new group");
        case TB_CORRUPT:
            raise(status, end_.fault.wanted[0] ? end_.fault.wanted : "each frame is whole and the next",
                  end_.fault.got, "Form a new group; if it comes again, look at the cable");
        case TB_INTERRUPTED:
            raise(status, "stopped by an interrupt", "the flag of rank " + std::to_string(group_.rank()), "");
        default:
            raise(status, "a closed group takes no call", "close() while the read waited", "Form a new group");
        }
    }

private:
    std::string seconds() const {
        char text[32];
        snprintf(text, sizeof text, "%.3f", static_cast<double>(end_.fault.elapsed_ns) * 1e-9);
        return text;
    }

    [[noreturn]] void refused() const {
        if (end_.refusal == TB_WINDOW_CLOSED)
            fail("FabricError", subject_, "the owner's window is open", "one that it has closed",
                 "Read before the owner closes it: a barrier tells it that all have");
        std::string rule = end_.exposed ? "a block within the " + std::to_string(end_.exposed) + " bytes that it exposes"
                                        : "a rank that exposes something";
        fail("UsageError", subject_, rule.c_str(), end_.exposed ? "one that ends behind them" : "one that exposes nothing", "");
    }

    [[noreturn]] void raise(int status, const char *rule, const std::string &got, const char *remedy) const {
        nb::dict facts;
        facts["peer"] = read_.rank, facts["operation"] = "read", facts["rank"] = group_.rank();
        facts["offset"] = read_.offset, facts["length"] = read_.length, facts["received"] = end_.got;
        facts["elapsed_s"] = static_cast<double>(end_.fault.elapsed_ns) * 1e-9;
        nb::list absent;
        if (status == TB_TIMEOUT)
            absent.append(read_.rank);
        facts["absent"] = absent;
        tb_raise_with(tb_status_type(status), subject_.c_str(), rule, got.c_str(), remedy, facts.ptr());
        throw nb::python_error();
    }

    const Group &group_;
    const tb_read &read_;
    const tb_read_end &end_;
    std::string owner_, subject_;
};

class Window {
public:
    // All ranks make one together; memory None exposes nothing.
    Window(nb::object group, nb::handle memory, nb::handle deadline_s)
        : holder_(std::move(group)), group_(nb::cast<Group *>(holder_)) {
        if (!memory.is_none())
            exposed_.take(memory, false, "expose", "array");
        uint64_t timeout = group_->timeout(deadline_s);
        tb_mesh_error error{};
        group_->run(RELEASE_BYTES, [&](tb_group *g) {
            bool something = exposed_.view.obj != nullptr;
            int status = tb_window_expose(g, something ? exposed_.view.buf : nullptr, something ? exposed_.bytes() : 0,
                                          timeout, &window_, &error);
            return status == TB_INVALID && error.step[0] ? static_cast<int>(TB_OK) : status;
        });
        if (!window_)
            refused(error);
    }
    Window(const Window &) = delete;
    ~Window() {
        if (!window_)
            return;
        withdraw(0);
        tb_window_free(window_);
    }

    nb::object read(int rank, uint64_t offset, uint64_t length, nb::object out, nb::handle deadline_s) {
        Buffer target;
        target.take(out, true, "read", "out");
        if (target.bytes() != length)
            fail("BufferRejected", "out", "as many bytes as are read",
                 std::to_string(target.bytes()) + " bytes for " + std::to_string(length), "");
        tb_read r = ask(rank, offset, length, target.view.buf, deadline_s);
        call(r, [&](tb_read_end *end) { return tb_window_read(window_, &r, end); });
        return out;
    }

    void fill_times(int rank, uint64_t offset, nb::handle out, nb::handle samples, nb::handle deadline_s) {
        Buffer target, us;
        target.take(out, true, "fill_times", "out");
        us.take(samples, true, "fill_times", "samples");
        if (us.view.itemsize != sizeof(double))
            fail("BufferRejected", "samples", "float64", std::to_string(us.view.itemsize) + " bytes an item", "");
        tb_read r = ask(rank, offset, target.bytes(), target.view.buf, deadline_s);
        call(r, [&](tb_read_end *end) {
            return tb_window_times(window_, &r, us.bytes() / sizeof(double), static_cast<double *>(us.view.buf), end);
        });
    }

    void close(nb::handle deadline_s) {
        uint64_t timeout = group_->timeout(deadline_s);
        if (closed_)
            return;
        closed_ = true;
        withdraw(timeout);
        if (exposed_.view.obj)
            tb_buffer_drop(&exposed_);
    }

    uint64_t bytes_of(int rank) const {
        group_->peer(rank, "rank", true);
        return tb_window_bytes(window_, rank);
    }

    const char *carrier(int rank) const {
        static const char *const names[] = {"self", "local", "tcp", "relay"};
        group_->peer(rank, "rank", true);
        group_->open();
        return names[tb_window_carrier(window_, rank)];
    }

    bool is_open() const { return !closed_ && tb_handle_is_open(group_->handle()); }

private:
    [[noreturn]] void refused(const tb_mesh_error &error) const {
        std::string subject = "window of group " + group_->name() + " on rank " + std::to_string(group_->rank());
        if (error.peer != TB_NO_PEER) {
            char link[300];
            tb_handle_words(group_->open(), error.peer, link, sizeof link);
            subject += ", rank " + std::to_string(error.peer) + link;
        }
        tb_raise_mesh(&error, subject.c_str());
        throw nb::python_error();
    }

    tb_read ask(int rank, uint64_t offset, uint64_t length, void *target, nb::handle deadline_s) const {
        group_->peer(rank, "rank", true);
        if (closed_)
            fail("FabricError", "window", "a closed window reads nothing", "a call after close()", "Open a new one");
        return tb_read{rank, offset, length, target, group_->timeout(deadline_s), {}};
    }

    // The group stays until the call is over; the memory of `r` is held by the caller.
    template <class Call> void call(tb_read &r, Call core) {
        tb_group *g = group_->open();
        tb_read_end end{};
        Gil gil;
        r.hooks = tb_hooks{&gil, nullptr, Gil::tick};
        if (!tb_window_enter(window_))
            fail("FabricError", "window", "the group of a window is open", "a closed one", "Form a new group");
        Gil::let_go(&gil);
        int status = core(&end);
        gil.take();
        // Leaves last: until then the group is there to be asked for names.
        struct Leave {
            tb_memory_window *window;
            ~Leave() { tb_window_leave(window); }
        } leave{window_};
        if (status != TB_OK)
            ReadFailure(g, *group_, r, end).raise(status);
    }

    // Replies under way go on for so long.
    void withdraw(uint64_t timeout_ns) {
        if (!tb_handle_is_open(group_->handle()) || group_->closing() || !tb_window_enter(window_))
            return;
        {
            nb::gil_scoped_release released;
            tb_window_close(window_, timeout_ns);
        }
        tb_window_leave(window_);
    }

    nb::object holder_; // the group outlives the window
    Group *group_;
    Buffer exposed_;
    tb_memory_window *window_ = nullptr;
    bool closed_ = false;
};

}  // namespace tbkit
