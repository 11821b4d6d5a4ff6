// The mesh as Python holds it, until a group takes it over.
#pragma once

#include "pygroup.hpp"

extern "C" {
#include "mesh.h"
}

namespace tbkit {

inline void copy_text(char *to, size_t room, const std::string &text, const char *subject) {
    if (text.size() >= room || text.find('\0') != std::string::npos)
        fail("UsageError", subject, ("a text of less than " + std::to_string(room) + " bytes").c_str(), text, "");
    std::memcpy(to, text.c_str(), text.size() + 1);
}

class Mesh {
public:
    // cables: (by, via, (rank, device, port, address), (rank, device, port, address)), the lower rank first.
    Mesh(int rank, const nb::list &nodes, const nb::list &cables, double silence_s, uint32_t large_frames)
        : rank_(rank), size_(static_cast<int>(nb::len(nodes))) {
        if (size_ < 1 || size_ > 16 || rank < 0 || rank >= size_)
            fail("UsageError", "mesh", "1 to 16 nodes, and a rank of them, counted from 0",
                 "rank " + std::to_string(rank) + " of " + std::to_string(size_), "");
        if (nb::len(cables) > TB_MESH_CABLES)
            fail("UsageError", "mesh", "at most 64 cables", std::to_string(nb::len(cables)), "");
        tb_cabling g{};
        g.rank = rank, g.size = size_, g.silence_ns = nanoseconds(silence_s), g.large_frames = large_frames;
        for (int r = 0; r < size_; r++)
            copy_text(g.node[r], TB_NODE_MAX, nb::cast<std::string>(nodes[static_cast<size_t>(r)]), "node");
        for (nb::handle cable : cables)
            add(g, nb::cast<nb::tuple>(cable));
        tb_mesh_error error;
        nb::gil_scoped_release released;
        mesh_ = tb_mesh_open(&g, &error);
        if (!mesh_) {
            nb::gil_scoped_acquire held;
            raise(error);
        }
    }
    Mesh(const Mesh &) = delete;
    ~Mesh() { close(); }

    nb::bytes card() const {
        size_t bytes;
        const uint8_t *data = tb_mesh_card(whole(), &bytes);
        return nb::bytes(reinterpret_cast<const char *>(data), bytes);
    }

    void connect(const nb::list &cards, double deadline_s) {
        uint64_t until = deadline(deadline_s);
        hand_over(cards, [&](tb_mesh *m, const uint8_t *const *data, const size_t *bytes, tb_mesh_error *error) {
            return tb_mesh_connect(m, data, bytes, until, error);
        });
    }

    void start(const nb::list &cards) { hand_over(cards, tb_mesh_start); }

    void close() {
        if (!mesh_)
            return;
        nb::gil_scoped_release released;
        tb_mesh_free(mesh_);
        mesh_ = nullptr;
    }

    tb_mesh *whole() const {
        if (!mesh_)
            fail("FabricError", "mesh", "a mesh that is closed or has formed its group takes no call", "one",
                 "Open a new one");
        return mesh_;
    }
    void given() { mesh_ = nullptr; }
    int rank() const { return rank_; }
    int size() const { return size_; }

private:
    template <class Step> void hand_over(const nb::list &cards, Step step) {
        const uint8_t *data[16];
        size_t bytes[16];
        if (static_cast<int>(nb::len(cards)) != size_)
            fail("UsageError", "mesh", "one card of each rank", std::to_string(nb::len(cards)), "");
        for (int r = 0; r < size_; r++) {
            auto card = nb::cast<nb::bytes>(cards[static_cast<size_t>(r)]);
            data[r] = reinterpret_cast<const uint8_t *>(card.c_str());
            bytes[r] = card.size();
        }
        tb_mesh *mesh = whole();
        tb_mesh_error error;
        int status;
        {
            nb::gil_scoped_release released;
            status = step(mesh, data, bytes, &error);
        }
        if (status != 0)
            raise(error);
    }

    static uint64_t deadline(double seconds) {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec) + nanoseconds(seconds);
    }

    [[noreturn]] void raise(const tb_mesh_error &error) const {
        std::string subject = "mesh on rank " + std::to_string(rank_);
        if (mesh_ && error.peer != TB_NO_PEER) {
            char words[300];
            tb_mesh_words(mesh_, rank_, error.peer, words, sizeof words);
            subject += ", " + std::string(error.step) + " to rank " + std::to_string(error.peer) + words;
        } else {
            subject += ", " + std::string(error.step);
        }
        tb_raise_mesh(&error, subject.c_str());
        throw nb::python_error();
    }

    static void add_end(tb_cable_end &to, const nb::tuple &end) {
        to.rank = nb::cast<int>(end[0]);
        copy_text(to.device, TB_DEVICE_MAX, nb::cast<std::string>(end[1]), "device");
        to.port = nb::cast<int>(end[2]);
        copy_text(to.address, TB_ADDRESS_MAX, nb::cast<std::string>(end[3]), "address");
    }

    static void add(tb_cabling &g, const nb::tuple &cable) {
        tb_cable &c = g.cable[g.cables++];
        c.by = static_cast<tb_by>(choice(nb::cast<std::string>(cable[0]).c_str(), {"tcp", "verbs", "relay"}, "provider",
                                         "tcp, verbs or relay"));
        c.via = nb::cast<int>(cable[1]);
        add_end(c.end[0], nb::cast<nb::tuple>(cable[2]));
        add_end(c.end[1], nb::cast<nb::tuple>(cable[3]));
    }

    tb_mesh *mesh_ = nullptr;
    int rank_, size_;
};

}  // namespace tbkit
