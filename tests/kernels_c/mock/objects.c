/* Questions about devices, limits, creation and connection; see ask() in user.h. */
#include <unistd.h>

#include "user.h"

#define LEFT "rdma_en2"
#define RIGHT "rdma_en3"
#define MEBI (1u << 20)

static void ask_devices(char **words) {
    (void)words;
    int n = -1;
    struct ibv_device **list = v.device_list(&n);
    printf("devices %d %s\n", n, list ? "list" : errno_name(errno));
    for (int i = 0; i < n; i++) {
        struct ibv_context *context = v.open_device(list[i]);
        struct ibv_port_attr port;
        union ibv_gid gid;
        memset(&port, 0x5a, sizeof port);
        CHECK(context && v.query_port(context, 1, &port) == 0);
        printf("device %s %s lid %d gids", v.device_name(list[i]), port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN",
               port.lid);
        for (int g = 0; g < port.gid_tbl_len; g++) {
            CHECK(v.query_gid(context, 1, g, &gid) == 0);
            const char *kind = gid.raw[10] == 0xff && !gid.raw[0] ? "ipv4"
                               : gid.raw[0] == 0xfe               ? "fe80"
                               : gid.raw[0]                       ? "uuid"
                                                                  : "zero";
            printf(" %s", kind);
            if (kind[0] == 'i')
                printf("/%d.%d.%d.%d", gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15]);
        }
        printf("\n");
        CHECK(v.query_gid(context, 1, port.gid_tbl_len, &gid) != 0 && v.query_port(context, 2, &port) == EINVAL);
        CHECK(v.close_device(context) == 0);
    }
    if (list)
        v.free_list(list);
}

static void ask_limits(char **words) {
    (void)words;
    struct ibv_context *context = open_named(LEFT);
    struct ibv_device_attr attr;
    CHECK(context && v.query_device(context, &attr) == 0);
    printf("max_qp %d max_pd %d max_cq %d ", attr.max_qp, attr.max_pd, attr.max_cq);
    printf("max_mr %d max_sge %d max_mr_size %llu\n", attr.max_mr, attr.max_sge, (unsigned long long)attr.max_mr_size);
    CHECK(v.close_device(context) == 0);
}

/* make WHAT N CONTEXTS: how many of N were made, spread over CONTEXTS of one device; then all are taken down. */
static void ask_make(char **words) {
    const char *what = words[0];
    int most = (int)number(words[1]), contexts = (int)number(words[2]), made = 0, error = 0;
    void **things = calloc((size_t)most, sizeof *things);
    struct ibv_context *context[4];
    struct ibv_pd *pd[4];
    struct ibv_cq *cq[4];
    void *page;
    CHECK(posix_memalign(&page, PAGE, PAGE) == 0);
    for (int i = 0; i < contexts; i++) {
        CHECK((context[i] = open_named(LEFT)) && (pd[i] = v.alloc_pd(context[i])));
        CHECK((cq[i] = v.create_cq(context[i], 16, NULL, NULL, 0)));
    }
    for (; made < most; made++) {
        int i = made % contexts;
        end e = {.context = context[i], .pd = pd[i], .cq = cq[i]};
        errno = 0;
        things[made] = !strcmp(what, "pd")   ? (void *)v.alloc_pd(context[i])
                       : !strcmp(what, "cq") ? (void *)v.create_cq(context[i], 1, NULL, NULL, 0)
                       : !strcmp(what, "qp") ? (void *)make_qp(&e, IBV_QPT_UC, 16)
                                             : (void *)v.register_region(pd[i], page, PAGE, IBV_ACCESS_LOCAL_WRITE);
        if (!things[made])
            break;
    }
    error = made < most ? errno : 0;
    printf("made %d %s\n", made, errno_name(error));
    while (made--)
        CHECK(!strcmp(what, "pd")   ? v.dealloc_pd(things[made]) == 0
              : !strcmp(what, "cq") ? v.destroy_cq(things[made]) == 0
              : !strcmp(what, "qp") ? v.destroy_qp(things[made]) == 0
                                    : v.dereg_mr(things[made]) == 0);
    for (int i = 0; i < contexts; i++)
        CHECK(v.destroy_cq(cq[i]) == 0 && v.dealloc_pd(pd[i]) == 0 && v.close_device(context[i]) == 0);
    free(things);
    free(page);
}

/* region BYTES OFFSET FLAGS: 0 or the errno. */
static void ask_region(char **words) {
    end e;
    void *memory;
    make_domain(&e, LEFT);
    CHECK(posix_memalign(&memory, PAGE, (size_t)number(words[0]) + PAGE) == 0);
    errno = 0;
    uint8_t *at = (uint8_t *)memory + number(words[1]);
    struct ibv_mr *mr = v.register_region(e.pd, at, (size_t)number(words[0]), (int)number(words[2]));
    printf("region %s\n", errno_name(mr ? 0 : errno));
    if (mr)
        CHECK(v.dereg_mr(mr) == 0);
    end_end(&e);
    free(memory);
}

/* create TYPE DEPTH SGE INLINE: the errno, else what ibv_query_qp says of the depth. */
static void ask_create(char **words) {
    end e;
    make_domain(&e, LEFT);
    struct ibv_qp_init_attr init = {.send_cq = e.cq, .recv_cq = e.cq};
    init.qp_type = strcmp(words[0], "rc") ? IBV_QPT_UC : IBV_QPT_RC;
    uint32_t depth = (uint32_t)number(words[1]), sge = (uint32_t)number(words[2]);
    init.cap = (struct ibv_qp_cap){depth, depth, sge, sge, (uint32_t)number(words[3])};
    e.qp = v.create_qp(e.pd, &init);
    struct ibv_qp_attr attr;
    if (e.qp && v.query_qp(e.qp, &attr, IBV_QP_CAP, &init) == 0)
        printf("depth %u %u\n", attr.cap.max_send_wr, attr.cap.max_recv_wr);
    else
        printf("create %s\n", errno_name(errno));
    end_end(&e);
}

/* connect SGID_INDEX MTU ACCESS TRIES WHERE: what INIT and each RTR gave, then whether the device still works.
 * SGID_INDEX -1 is the right one. WHERE: `peer`; the GID `wrong` is nobody's, `self` the own one, `fe80` the peer's
 * entry 0; with `reset` the peer is not in INIT. */
static void ask_connect(char **words) {
    end a, b;
    make_domain(&a, LEFT);
    make_domain(&b, RIGHT);
    CHECK((a.qp = make_qp(&a, IBV_QPT_UC, 16)) && (b.qp = make_qp(&b, IBV_QPT_UC, 16)));
    b.address.qpn = b.qp->qp_num;
    if (strcmp(words[4], "reset") != 0)
        CHECK(to_init(b.qp, IBV_ACCESS_LOCAL_WRITE) == 0 || to_init(b.qp, 0) == 0 || to_init(b.qp, 7) == 0);
    printf("init %s\n", errno_name(to_init(a.qp, (unsigned)number(words[2]))));
    enum ibv_mtu mtu = number(words[1]) == 1024 ? IBV_MTU_1024 : IBV_MTU_4096;
    int index = number(words[0]) < 0 ? a.gid_index : (int)number(words[0]);
    if (strcmp(words[4], "wrong") == 0)
        b.address.gid.raw[15] ^= 0x80;
    if (strcmp(words[4], "self") == 0)
        b.address.gid = a.address.gid;
    if (strcmp(words[4], "fe80") == 0)
        CHECK(v.query_gid(b.context, 1, 0, &b.address.gid) == 0);
    for (int i = 0; i < number(words[3]); i++)
        printf("rtr %s\n", errno_name(to_rtr_with(&a, &b.address, index, mtu)));
    struct ibv_port_attr port;
    struct ibv_wc wc;
    printf("query_port %s alloc_pd ", errno_name(v.query_port(a.context, 1, &port)));
    struct ibv_pd *pd = v.alloc_pd(a.context);
    printf("%s poll %d\n", errno_name(pd ? 0 : errno), ibv_poll_cq(a.cq, 1, &wc));
    if (pd)
        CHECK(v.dealloc_pd(pd) == 0);
    end_pair(&a, &b);
}

/* receives BYTES DEPTH STATE: how many receives are accepted in that state, and which errno ended it. */
static void ask_receives(char **words) {
    end a, b;
    int error = 0, n = 0;
    make_end(&a, LEFT, MEBI, (uint32_t)number(words[1]));
    make_end(&b, RIGHT, MEBI, (uint32_t)number(words[1]));
    if (strcmp(words[2], "init") != 0)
        CHECK(to_rtr(&a, &b.address) == 0);
    if (strcmp(words[2], "rts") == 0)
        CHECK(to_rts(&a) == 0);
    for (; n < 20000 && !(error = post_recv(&a, 0, (uint32_t)number(words[0]), 1)); n++)
        ;
    printf("receives %d %s\n", n, errno_name(error));
    end_pair(&a, &b);
}

/* budget BYTES QPS DEPTH: how many sends of BYTES are accepted with no receive posted, and which errno ended it. */
static void ask_budget(char **words) {
    end a[2], b[2];
    int error = 0, sent = 0;
    for (int i = 0; i < number(words[1]); i++)
        make_pair(&a[i], &b[i], MEBI, (uint32_t)number(words[2]));
    for (; sent < 20000 && !(error = post_send(&a[sent % number(words[1])], 0, (uint32_t)number(words[0]), 1)); sent++)
        ;
    printf("sends %d %s\n", sent, errno_name(error));
    for (int i = 0; i < number(words[1]); i++)
        end_pair(&a[i], &b[i]);
}

/* order: taking down in a wrong order is refused, and what it was refused for still works. */
static void ask_order(char **words) {
    (void)words;
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    printf("pd %s cq %s", errno_name(v.dealloc_pd(a.pd)), errno_name(v.destroy_cq(a.cq)));
    printf(" context %s\n", v.close_device(a.context) ? errno_name(errno) : "0");
    end_pair(&a, &b);
}

/* hold N: makes N queue pairs, says so, and waits to be killed. */
static void ask_hold(char **words) {
    end e;
    make_domain(&e, LEFT);
    for (int i = 0; i < number(words[0]); i++)
        CHECK(make_qp(&e, IBV_QPT_UC, 16));
    printf("holding\n");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv) {
    static const question questions[] = {
        {"devices", ask_devices, 0},
        {"limits", ask_limits, 0},
        {"make", ask_make, 3},
        {"region", ask_region, 3},
        {"create", ask_create, 4},
        {"connect", ask_connect, 5},
        {"receives", ask_receives, 3},
        {"budget", ask_budget, 3},
        {"order", ask_order, 0},
        {"hold", ask_hold, 1},
    };
    return ask(questions, sizeof questions / sizeof questions[0], argc, argv);
}
