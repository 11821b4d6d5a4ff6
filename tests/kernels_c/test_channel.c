/* Channels between threads: order, credits, every length, damage, deadlines. */
#include "threads.h"

#include "collective.h"

static size_t lengths[] = {0, 1, 47, 48, 49, 64, 4096, 32767, 32768, 32769, 300000};

static void fill(uint8_t *data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 31 + seed);
}

static void every_length(tb_group *g) {
    uint8_t *data = malloc(300000), *wanted = malloc(300000);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        fill(wanted, lengths[k], (unsigned)k);
        if (g->rank == 0) {
            CHECK(tb_send(g, wanted, lengths[k], 1, 20 * SECOND) == TB_OK);
            continue;
        }
        memset(data, 0xee, lengths[k]);
        CHECK(tb_recv(g, data, lengths[k], 0, 20 * SECOND) == TB_OK);
        CHECK(memcmp(data, wanted, lengths[k]) == 0);
    }
    free(data);
    free(wanted);
}

/* A sender runs ahead by TB_SLOTS frames and no further; numbers arrive in order through many laps. */
static void order_and_credits(tb_group *g) {
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t value = i;
        if (g->rank == 0)
            CHECK(tb_send(g, &value, sizeof value, 1, 20 * SECOND) == TB_OK);
        else
            CHECK(tb_recv(g, &value, sizeof value, 0, 20 * SECOND) == TB_OK && value == i);
    }
    if (g->rank == 0) {
        for (int i = 0; i < TB_SLOTS; i++)
            CHECK(tb_send(g, &i, sizeof i, 1, SECOND) == TB_OK);
        CHECK(tb_send(g, &g->rank, sizeof g->rank, 1, SECOND / 20) == TB_TIMEOUT);
        CHECK(g->fault.peer == 1 && g->fault.absent == 2 && g->fault.kind == TB_SEND);
        CHECK(tb_send(g, &g->rank, sizeof g->rank, 1, SECOND) == TB_BROKEN);
    } else {
        while (!atomic_load(&g->header->broken))
            tb_sleep_ns(100000);
    }
}

static void damage(tb_group *g) {
    double value = 1;
    if (g->rank == 0)
        g->corrupt_next = 1;
    int status = g->rank == 0 ? tb_send(g, &value, 8, 1, SECOND) : tb_recv(g, &value, 8, 0, SECOND);
    CHECK(status == (g->rank == 0 ? TB_OK : TB_CORRUPT));
    if (g->rank == 1)
        CHECK(g->fault.peer == 0 && strstr(g->fault.got, "magic"));
}

static void wrong_length(tb_group *g) {
    char text[60] = {0};
    int status = g->rank == 0 ? tb_send(g, text, 40, 1, SECOND) : tb_recv(g, text, 41, 0, SECOND);
    CHECK(status == (g->rank == 0 ? TB_OK : TB_CORRUPT));
}

static void interrupted(tb_group *g) {
    char byte;
    if (g->rank == 0) {
        CHECK(tb_recv(g, &byte, 1, 1, 20 * SECOND) == TB_INTERRUPTED);
        return;
    }
    tb_sleep_ns(20000000);
    tb_handle_interrupt(g, 1);
}

static void peer_leaves(tb_group *g) {
    char byte = 7;
    if (g->rank == 1) {
        CHECK(tb_send(g, &byte, 1, 0, SECOND) == TB_OK);
        return;
    }
    tb_sleep_ns(30000000);
    CHECK(tb_recv(g, &byte, 1, 1, 5 * SECOND) == TB_OK && byte == 7);
    CHECK(tb_recv(g, &byte, 1, 1, 5 * SECOND) == TB_PEER_DIED && g->fault.peer == 1);
}

int main(void) {
    static void (*const bodies[])(tb_group *) = {every_length, order_and_credits, damage,
                                                 wrong_length, interrupted,       peer_leaves};
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++)
        for (int policy = TB_YIELD; policy <= TB_AUTO; policy++)
            tb_run_ranks(2, policy, bodies[b]);
    return 0;
}
