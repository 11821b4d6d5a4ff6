/* Questions about messages and what goes wrong with them; see ask() in user.h. Both ends are in this process. */
#include <sys/mman.h>
#include <unistd.h>

#include "user.h"

#define LEFT "rdma_en2"
#define RIGHT "rdma_en3"
#define MEBI (1u << 20)

/* exchange SEND RECEIVE: a message of SEND bytes meets a receive of RECEIVE bytes; both completions, and intact or
 * not; then what the next send and receive give. */
static void ask_exchange(char **words) {
    end a, b;
    uint32_t bytes = (uint32_t)number(words[0]), room = (uint32_t)number(words[1]);
    make_pair(&a, &b, MEBI, 512);
    for (uint32_t i = 0; i < bytes; i++)
        a.memory[i] = (uint8_t)(i * 7 + 1);
    CHECK(post_recv(&b, 0, room, 21) == 0);
    CHECK(post_send(&a, 0, bytes, 11) == 0);
    tell("send", &a, 5 * SECOND);
    tell("recv", &b, 5 * SECOND);
    printf("data %s\n", memcmp(a.memory, b.memory, bytes) == 0 ? "intact" : "other");
    printf("post %s %s\n", errno_name(post_recv(&b, 0, room, 22)), errno_name(post_send(&a, 0, room, 12)));
    tell("send", &a, 5 * SECOND);
    tell("recv", &b, 5 * SECOND);
    end_pair(&a, &b);
}

/* unmatched: a send before its receive; what was seen before and after the receive came. */
static void ask_unmatched(char **words) {
    (void)words;
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    CHECK(post_send(&a, 0, 4096, 1) == 0);
    tell("before", &a, SECOND / 20);
    CHECK(post_recv(&b, 0, 4096, 2) == 0);
    tell("recv", &b, SECOND / 10);
    tell("after", &a, SECOND / 20);
    end_pair(&a, &b);
}

/* opcode NAME: what post_send says, and what the receiver sees. */
static void ask_opcode(char **words) {
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .imm_data = 77}, *bad;
    wr.opcode = !strcmp(words[0], "imm") ? IBV_WR_SEND_WITH_IMM : !strcmp(words[0], "write") ? IBV_WR_RDMA_WRITE
                                                                                              : IBV_WR_SEND;
    CHECK(post_recv(&b, 0, 4096, 2) == 0);
    printf("post %s\n", errno_name(ibv_post_send(a.qp, &wr, &bad)));
    struct ibv_wc wc;
    if (poll_for(&b, &wc, SECOND / 10))
        printf("recv %d imm %d\n", (int)wc.status, wc.wc_flags & IBV_WC_WITH_IMM ? (int)wc.imm_data : -1);
    end_pair(&a, &b);
}

/* pieces: two pieces gathered into one message, another one inline and unsignalled. */
static void ask_pieces(char **words) {
    (void)words;
    end a, b;
    make_domain(&a, LEFT);
    make_end(&b, RIGHT, PAGE, 16);
    struct ibv_qp_init_attr init = {.send_cq = a.cq, .recv_cq = a.cq, .qp_type = IBV_QPT_UC};
    init.cap = (struct ibv_qp_cap){16, 16, 2, 2, 32};
    CHECK((a.qp = v.create_qp(a.pd, &init)) && to_init(a.qp, 0) == 0);
    a.address.qpn = a.qp->qp_num;
    CHECK(posix_memalign((void **)&a.memory, PAGE, PAGE) == 0);
    memcpy(a.memory, "first----second", 16);
    CHECK((a.mr = v.register_region(a.pd, a.memory, PAGE, IBV_ACCESS_LOCAL_WRITE)));
    connect_ends(&a, &b);
    CHECK(post_recv(&b, 0, 64, 1) == 0 && post_recv(&b, 64, 64, 2) == 0);
    uint64_t at = (uint64_t)(uintptr_t)a.memory;
    char word[] = "inline";
    struct ibv_sge two[] = {{at, 5, a.mr->lkey}, {at + 9, 7, a.mr->lkey}}, one = {(uint64_t)(uintptr_t)word, 7, 0};
    struct ibv_send_wr second = {.wr_id = 2, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    second.send_flags = IBV_SEND_INLINE;
    struct ibv_send_wr first = {.wr_id = 1, .next = &second, .sg_list = two, .num_sge = 2, .opcode = IBV_WR_SEND};
    CHECK(ibv_post_send(a.qp, &first, &bad) == 0);
    tell("recv", &b, SECOND / 10);
    tell("recv", &b, SECOND / 10);
    tell("send", &a, SECOND / 20);
    printf("data %s %s\n", (char *)b.memory, (char *)b.memory + 64);
    end_pair(&a, &b);
}

/* late: the receiver's region is registered after its RTR. */
static void ask_late(char **words) {
    (void)words;
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    CHECK(v.dereg_mr(b.mr) == 0);
    CHECK((b.mr = v.register_region(b.pd, b.memory, PAGE, IBV_ACCESS_LOCAL_WRITE)));
    CHECK(post_recv(&b, 0, 4096, 2) == 0 && post_send(&a, 0, 4096, 1) == 0);
    tell("send", &a, SECOND / 10);
    tell("recv", &b, SECOND / 10);
    end_pair(&a, &b);
}

/* keys: receives with a key of nobody, and beyond the end of the region. */
static void ask_keys(char **words) {
    (void)words;
    for (int beyond = 0; beyond < 2; beyond++) {
        end a, b;
        make_pair(&a, &b, PAGE, 16);
        if (!beyond)
            b.mr->lkey ^= 1;
        CHECK(post_recv(&b, beyond ? PAGE - 64 : 0, 128, 2) == 0);
        if (!beyond)
            b.mr->lkey ^= 1;
        CHECK(post_send(&a, 0, 128, 1) == 0);
        tell("recv", &b, SECOND / 10);
        end_pair(&a, &b);
    }
}

/* alias: a receive region that crosses a 4 GiB boundary; what arrived below and above it. */
static void ask_alias(char **words) {
    (void)words;
    uint8_t *boundary = NULL;
    end a, b;
    for (uint64_t i = 1; i < 30000 && !boundary; i++) {
        uint8_t *at = mmap((void *)((i << 32) - PAGE), 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        CHECK(at != MAP_FAILED);
        if ((uint64_t)(uintptr_t)at == (i << 32) - PAGE)
            boundary = at;
        else
            munmap(at, 2 * PAGE);
    }
    CHECK(boundary);
    make_end(&a, LEFT, 2 * PAGE, 16);
    make_end(&b, RIGHT, 0, 16);
    CHECK((b.mr = v.register_region(b.pd, boundary, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE)));
    b.memory = boundary;
    connect_ends(&a, &b);
    memset(a.memory, 0x77, 2 * PAGE);
    CHECK(post_recv(&b, 0, 2 * PAGE, 2) == 0 && post_send(&a, 0, 2 * PAGE, 1) == 0);
    tell("recv", &b, SECOND / 10);
    const uint8_t *below = boundary, *above = boundary + PAGE;
    printf("below %02x %02x above %02x %02x\n", below[0], below[PAGE - 1], above[0], above[PAGE - 1]);
    b.memory = NULL;
    end_pair(&a, &b);
}

/* psn: the two ends do not agree; what comes of a message. */
static void ask_psn(char **words) {
    (void)words;
    end a, b;
    make_end(&a, LEFT, PAGE, 16);
    make_end(&b, RIGHT, PAGE, 16);
    CHECK(to_rtr(&a, &b.address) == 0 && to_rtr(&b, &a.address) == 0);
    a.address.psn += 1;
    CHECK(to_rts(&a) == 0 && to_rts(&b) == 0);
    CHECK(post_recv(&b, 0, 4096, 2) == 0 && post_send(&a, 0, 4096, 1) == 0);
    tell("send", &a, SECOND / 10);
    tell("recv", &b, SECOND / 10);
    end_pair(&a, &b);
}

/* dereg ORDER: `early` while a receive is outstanding, `late` after the queue pair is gone. */
static void ask_dereg(char **words) {
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    CHECK(post_recv(&b, 0, 4096, 2) == 0);
    if (strcmp(words[0], "early") == 0)
        printf("dereg %s\n", errno_name(v.dereg_mr(b.mr)));
    end_pair(&a, &b);
    printf("ended\n");
}

/* messages N: N messages one after the other; how many came, how many of them intact. */
static void ask_messages(char **words) {
    end a, b;
    int came = 0, intact = 0;
    make_pair(&a, &b, PAGE, 16);
    for (int i = 0; i < number(words[0]); i++) {
        struct ibv_wc wc;
        memset(a.memory, i + 1, 4096);
        CHECK(post_recv(&b, 0, 4096, 2) == 0);
        CHECK(post_send(&a, 0, 4096, 1) == 0 && poll_for(&a, &wc, SECOND) && wc.status == IBV_WC_SUCCESS);
        came += poll_for(&b, &wc, SECOND / 50);
        intact += memcmp(a.memory, b.memory, 4096) == 0;
    }
    printf("came %d intact %d\n", came, intact);
    end_pair(&a, &b);
}

/* traffic CALLS [FAULT]: messages go to and fro for ever after "running"; FAULT is armed after CALLS of them. */
static void ask_traffic(char **words) {
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    for (long i = 0; i < 200000; i++) {
        struct ibv_wc wc;
        if (i == number(words[0]))
            CHECK(v.fault(words[1]) == 0);
        if (i % 1000 == 0) {
            printf("running %ld\n", i);
            fflush(stdout);
        }
        CHECK(post_recv(&b, 0, 4096, 2) == 0 && post_send(&a, 0, 4096, 1) == 0);
        CHECK(poll_for(&b, &wc, SECOND) && poll_for(&a, &wc, SECOND));
        usleep(20);
    }
}

/* down FAULT: the port before and after; alloc_pd on it; whether a message still moves. */
static void ask_down(char **words) {
    end a, b;
    struct ibv_port_attr port = {0};
    make_pair(&a, &b, PAGE, 16);
    CHECK(v.query_port(a.context, 1, &port) == 0);
    printf("state %s\n", port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN");
    CHECK(v.fault(words[0]) == 0);
    CHECK(v.query_port(a.context, 1, &port) == 0);
    struct ibv_pd *pd = v.alloc_pd(a.context);
    printf("state %s alloc_pd %s\n", port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN", errno_name(pd ? 0 : errno));
    CHECK(post_recv(&b, 0, 4096, 2) == 0 && post_send(&a, 0, 4096, 1) == 0);
    tell("recv", &b, SECOND / 20);
    end_pair(&a, &b);
}

/* idle: a send is held while nobody polls its end; the receive comes later, and only that end is polled. */
static void ask_idle(char **words) {
    (void)words;
    end a, b;
    make_pair(&a, &b, PAGE, 16);
    CHECK(post_send(&a, 0, 4096, 1) == 0);
    usleep(20000);
    CHECK(post_recv(&b, 0, 4096, 2) == 0);
    tell("recv", &b, 5 * SECOND);
    tell("send", &a, 5 * SECOND);
    end_pair(&a, &b);
}

/* overrun: three completions for a queue of two. */
static void ask_overrun(char **words) {
    (void)words;
    end a, b;
    make_domain(&a, LEFT);
    make_end(&b, RIGHT, PAGE, 16);
    CHECK(v.destroy_cq(a.cq) == 0 && (a.cq = v.create_cq(a.context, 2, NULL, NULL, 0)));
    CHECK((a.qp = make_qp(&a, IBV_QPT_UC, 16)) && to_init(a.qp, 0) == 0);
    a.address.qpn = a.qp->qp_num;
    connect_ends(&a, &b);
    a.memory = b.memory;
    for (int i = 0; i < 3; i++)
        CHECK(post_recv(&b, 0, 4096, 1) == 0 && post_send(&a, 0, 0, 1) == 0);
    struct ibv_wc wc[4];
    int first = ibv_poll_cq(a.cq, 4, wc), second = ibv_poll_cq(a.cq, 4, wc);
    printf("poll %d %d\n", first, second);
    a.memory = NULL;
    end_pair(&a, &b);
}

/* again: the queue pairs go through ERR and RESET and are connected anew. */
static void ask_again(char **words) {
    (void)words;
    end a, b;
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR}, reset = {.qp_state = IBV_QPS_RESET};
    make_pair(&a, &b, PAGE, 16);
    CHECK(post_recv(&b, 0, 4096, 5) == 0);
    CHECK(v.modify_qp(b.qp, &err, IBV_QP_STATE) == 0);
    tell("flushed", &b, SECOND / 10);
    CHECK(v.modify_qp(a.qp, &reset, IBV_QP_STATE) == 0 && v.modify_qp(b.qp, &reset, IBV_QP_STATE) == 0);
    CHECK(to_init(a.qp, 0) == 0 && to_init(b.qp, 0) == 0);
    connect_ends(&a, &b);
    memset(a.memory, 9, 64);
    CHECK(post_recv(&b, 0, 64, 6) == 0 && post_send(&a, 0, 64, 7) == 0);
    tell("recv", &b, SECOND / 10);
    printf("calls %llu\n", (unsigned long long)v.calls("rtr"));
    end_pair(&a, &b);
}

int main(int argc, char **argv) {
    static const question questions[] = {
        {"exchange", ask_exchange, 2},
        {"unmatched", ask_unmatched, 0},
        {"opcode", ask_opcode, 1},
        {"pieces", ask_pieces, 0},
        {"late", ask_late, 0},
        {"keys", ask_keys, 0},
        {"alias", ask_alias, 0},
        {"psn", ask_psn, 0},
        {"dereg", ask_dereg, 1},
        {"messages", ask_messages, 1},
        {"traffic", ask_traffic, 2},
        {"down", ask_down, 1},
        {"idle", ask_idle, 0},
        {"overrun", ask_overrun, 0},
        {"again", ask_again, 0},
    };
    return ask(questions, sizeof questions / sizeof questions[0], argc, argv);
}
