/* A verbs user as librdma meets it: dlopen, dlsym of the plain names, the data path through context->ops. */
#ifndef TB_MOCK_USER_H
#define TB_MOCK_USER_H

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

#define PAGE 16384u

/* No member is called as a function of the header is: two of those are macros. */
static struct {
    struct ibv_device **(*device_list)(int *);
    void (*free_list)(struct ibv_device **);
    const char *(*device_name)(struct ibv_device *);
    struct ibv_context *(*open_device)(struct ibv_device *);
    int (*close_device)(struct ibv_context *);
    int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *);
    int (*dealloc_pd)(struct ibv_pd *);
    struct ibv_mr *(*register_region)(struct ibv_pd *, void *, size_t, int);
    int (*dereg_mr)(struct ibv_mr *);
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    int (*destroy_cq)(struct ibv_cq *);
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
    int (*destroy_qp)(struct ibv_qp *);
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
    int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
    int (*fault)(const char *);
    uint64_t (*calls)(const char *);
} v;

static inline void load_verbs(void) {
    static const char *const names[] = {
        "ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
        "ibv_query_device",    "ibv_query_port",       "ibv_query_gid",       "ibv_alloc_pd",    "ibv_dealloc_pd",
        "ibv_reg_mr",          "ibv_dereg_mr",         "ibv_create_cq",       "ibv_destroy_cq",  "ibv_create_qp",
        "ibv_destroy_qp",      "ibv_modify_qp",        "ibv_query_qp",        "tbmock_fault",    "tbmock_calls"};
    void *library = dlopen(getenv("TBKIT_LIBRDMA"), RTLD_NOW | RTLD_LOCAL), *at[20];
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    for (int i = 0; i < 20; i++)
        CHECK((at[i] = dlsym(library, names[i])));
    for (int i = 0; i < 3; i++) /* header inlines, on Macs and here */
        CHECK(!dlsym(library, (const char *[]){"ibv_post_send", "ibv_post_recv", "ibv_poll_cq"}[i]));
    _Static_assert(sizeof at == sizeof v, "one pointer a name");
    memcpy(&v, at, sizeof v);
}

static inline const char *errno_name(int error) {
    switch (error) {
    case 0: return "0";
    case ENOMEM: return "ENOMEM";
    case EBUSY: return "EBUSY";
    case EINVAL: return "EINVAL";
    case EIO: return "EIO";
    case ENXIO: return "ENXIO";
    case ETIMEDOUT: return "ETIMEDOUT";
    case ENODATA: return "ENODATA";
    case EOPNOTSUPP: return "EOPNOTSUPP";
    case ENOSYS: return "ENOSYS";
    default: return "other";
    }
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline struct ibv_context *open_named(const char *name) {
    int n;
    struct ibv_device **list = v.device_list(&n);
    struct ibv_context *context = NULL;
    for (int i = 0; list && i < n && !context; i++)
        if (strcmp(v.device_name(list[i]), name) == 0)
            context = v.open_device(list[i]);
    if (list)
        v.free_list(list);
    return context;
}

/* One end of a connection: everything that a queue pair needs, and one region of `bytes`. */
typedef struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
    int gid_index;
    struct wire_address {
        uint32_t qpn, psn, lid;
        union ibv_gid gid;
    } address;
} end;

static inline int to_init(struct ibv_qp *qp, unsigned access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    return v.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int to_rtr_with(end *e, const struct wire_address *peer, int sgid_index, enum ibv_mtu mtu) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer->qpn, .rq_psn = peer->psn};
    attr.ah_attr = (struct ibv_ah_attr){.dlid = (uint16_t)peer->lid, .is_global = 1, .port_num = 1};
    attr.ah_attr.grh = (struct ibv_global_route){.dgid = peer->gid, .hop_limit = 1, .sgid_index = (uint8_t)sgid_index};
    return v.modify_qp(e->qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
}

static inline int to_rtr(end *e, const struct wire_address *peer) {
    return to_rtr_with(e, peer, e->gid_index, IBV_MTU_4096);
}

static inline int to_rts(end *e) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = e->address.psn};
    return v.modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static inline struct ibv_qp *make_qp(end *e, enum ibv_qp_type type, uint32_t depth) {
    struct ibv_qp_init_attr init = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = type};
    init.cap = (struct ibv_qp_cap){.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1};
    return v.create_qp(e->pd, &init);
}

/* The first IPv4-mapped entry; -1: none. */
static inline int ipv4_gid(struct ibv_context *context, union ibv_gid *gid) {
    struct ibv_port_attr port = {0};
    CHECK(v.query_port(context, 1, &port) == 0);
    for (int i = 0; i < port.gid_tbl_len; i++)
        if (v.query_gid(context, 1, i, gid) == 0 && gid->raw[10] == 0xff && gid->raw[11] == 0xff && gid->raw[0] == 0)
            return i;
    return -1;
}

static inline void make_domain(end *e, const char *device) {
    struct ibv_port_attr port = {0};
    memset(e, 0, sizeof *e);
    CHECK((e->context = open_named(device)));
    CHECK(v.query_port(e->context, 1, &port) == 0);
    e->address.lid = port.lid;
    e->address.psn = 7;
    e->gid_index = ipv4_gid(e->context, &e->address.gid);
    CHECK((e->pd = v.alloc_pd(e->context)));
    CHECK((e->cq = v.create_cq(e->context, 4096, NULL, NULL, 0)));
}

static inline void make_end(end *e, const char *device, size_t bytes, uint32_t depth) {
    make_domain(e, device);
    CHECK((e->qp = make_qp(e, IBV_QPT_UC, depth)));
    e->address.qpn = e->qp->qp_num;
    CHECK(to_init(e->qp, 0) == 0);
    if (bytes == 0)
        return;
    CHECK(posix_memalign((void **)&e->memory, PAGE, bytes) == 0);
    memset(e->memory, 0, bytes);
    CHECK((e->mr = v.register_region(e->pd, e->memory, bytes, IBV_ACCESS_LOCAL_WRITE)));
}

/* The safe order: queue pair, region, completion queue, domain, context. */
static inline void end_end(end *e) {
    if (e->qp)
        CHECK(v.destroy_qp(e->qp) == 0);
    if (e->mr)
        CHECK(v.dereg_mr(e->mr) == 0);
    CHECK(v.destroy_cq(e->cq) == 0);
    CHECK(v.dealloc_pd(e->pd) == 0);
    CHECK(v.close_device(e->context) == 0);
    free(e->memory);
}

static inline int post_send(end *e, size_t offset, uint32_t bytes, uint64_t id) {
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)e->memory + offset, .length = bytes,
                          .lkey = e->mr ? e->mr->lkey : 0};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;
    return ibv_post_send(e->qp, &wr, &bad);
}

static inline int post_recv(end *e, size_t offset, uint32_t bytes, uint64_t id) {
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)e->memory + offset, .length = bytes,
                          .lkey = e->mr ? e->mr->lkey : 0};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

/* The next completion within a time; false where none came. */
static inline bool poll_for(end *e, struct ibv_wc *wc, uint64_t ns) {
    for (uint64_t end_ns = now_ns() + ns;;) {
        int n = ibv_poll_cq(e->cq, 1, wc);
        CHECK(n >= 0);
        if (n == 1 || now_ns() > end_ns)
            return n == 1;
    }
}

#define SECOND 1000000000ull

/* "WHO STATUS BYTES" of the next completion, or "WHO nothing". */
static inline void tell(const char *who, end *e, uint64_t ns) {
    struct ibv_wc wc;
    if (poll_for(e, &wc, ns))
        printf("%s %d %u\n", who, (int)wc.status, wc.byte_len);
    else
        printf("%s nothing\n", who);
}

static inline void connect_ends(end *a, end *b) {
    CHECK(to_rtr(a, &b->address) == 0);
    CHECK(to_rtr(b, &a->address) == 0);
    CHECK(to_rts(a) == 0);
    CHECK(to_rts(b) == 0);
}

/* Both ends of the cable in this process, connected, each with a region of `bytes`. */
static inline void make_pair(end *a, end *b, size_t bytes, uint32_t depth) {
    make_end(a, "rdma_en2", bytes, depth);
    make_end(b, "rdma_en3", bytes, depth);
    connect_ends(a, b);
}

static inline void end_pair(end *a, end *b) {
    end_end(a);
    end_end(b);
}

/* A program that asks the mock one question: `PROGRAM QUESTION ARGUMENTS`. What it found comes as lines of words, and
 * the test that called knows what they must be. */
typedef struct question {
    const char *name;
    void (*ask)(char **arguments);
    int arguments;
} question;

static inline int ask(const question *questions, size_t count, int argc, char **argv) {
    load_verbs();
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], questions[i].name) == 0) {
            CHECK(argc == 2 + questions[i].arguments);
            questions[i].ask(argv + 2);
            return 0;
        }
    fprintf(stderr, "no such question\n");
    return 2;
}

static inline long number(const char *word) { return strtol(word, NULL, 0); }

#endif
