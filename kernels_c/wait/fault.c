#include "fault.h"

const char *tb_kind_name(int kind) {
    static const char *const names[TB_KINDS] = {"none",       "join",       "barrier", "broadcast", "all_gather",
                                                "all_reduce", "send",       "recv",    "pingpong",  "window",
                                                "clock",      "read"};
    return kind >= 0 && kind < TB_KINDS ? names[kind] : "unknown";
}

uint64_t tb_fault_pack(const tb_fault *fault) {
    return (uint64_t)fault->status | (uint64_t)fault->kind << 8 | (uint64_t)fault->peer << 16 |
           (uint64_t)fault->by << 24 | (uint64_t)(fault->absent & 0xffff) << 32 | (fault->sequence & 0xffff) << 48;
}

void tb_fault_unpack(uint64_t word, tb_fault *fault) {
    *fault = (tb_fault){.status = word & 0xff,
                        .kind = word >> 8 & 0xff,
                        .peer = word >> 16 & 0xff,
                        .by = word >> 24 & 0xff,
                        .absent = word >> 32 & 0xffff,
                        .sequence = word >> 48};
}
