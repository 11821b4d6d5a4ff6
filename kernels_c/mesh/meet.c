/* First all lower ranks are dialled and greeted, without waiting for their answer; then all higher ones are let in
 * and answered at once; then the answers are read. So no two ranks wait for each other. */
#include "meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define GUESTS 64
#define LOOK_MS 50

/* A connection that has not yet said all of its hello. */
typedef struct guest {
    int fd;
    size_t bytes;
    tb_hello hello;
} guest;

int tb_end_of(const tb_cable *cable, int rank) {
    return cable->end[0].rank == rank ? 0 : cable->end[1].rank == rank ? 1 : -1;
}

int tb_direct(const tb_cabling *g, int a, int b) {
    for (int c = 0; c < g->cables; c++)
        if (g->cable[c].by != TB_BY_RELAY && tb_end_of(&g->cable[c], a) >= 0 && tb_end_of(&g->cable[c], b) >= 0)
            return c;
    return -1;
}

static bool is_first_of_pair(const tb_cabling *g, int cable) {
    for (int c = 0; c < cable; c++)
        if (g->cable[c].end[0].rank == g->cable[cable].end[0].rank &&
            g->cable[c].end[1].rank == g->cable[cable].end[1].rank)
            return false;
    return true;
}

bool tb_meet_wants(const tb_cabling *g, int cable, enum tb_purpose purpose) {
    if (purpose == TB_DATA)
        return g->cable[cable].by != TB_BY_VERBS;
    return is_first_of_pair(g, cable);
}

static int fail(tb_meeting *m, int peer, const char *step, int error, const char *rule, const char *got) {
    return tb_mesh_fail(m->error, peer, step, error, rule, got);
}

static int fail_errno(tb_meeting *m, int peer, const char *step, const char *rule) {
    return fail(m, peer, step, errno, rule, strerror(errno));
}

/* Towards an end of a cable, or for a relayed one towards the rank that passes it on. */
static int dial(tb_meeting *m, int from, int to) {
    const tb_cabling *g = m->cabling;
    int c = tb_direct(g, from, to), far = c < 0 ? -1 : tb_end_of(&g->cable[c], to);
    if (c < 0) {
        errno = EHOSTUNREACH;
        return -1;
    }
    return tb_dial(g->cable[c].end[far].address, m->cards[to].port[c], g->cable[c].end[!far].address, m->deadline_ns);
}

static int greet_lower(tb_meeting *m, int c, enum tb_purpose purpose) {
    const tb_cable *cable = &m->cabling->cable[c];
    int own = m->cabling->rank, peer = cable->end[0].rank, next = cable->by == TB_BY_RELAY ? cable->via : peer;
    tb_hello hello;
    int fd = dial(m, own, next);
    m->fd[c][purpose] = fd;
    tb_hello_fill(&hello, m->token, purpose, c, own, peer);
    if (fd >= 0 && tb_send_hello(fd, &hello, m->deadline_ns))
        return 0;
    return fail_errno(m, next, "dial", "the node answers at its address of the cable");
}

static int pass_on(tb_meeting *m, guest *g) {
    int fd = dial(m, m->cabling->rank, g->hello.to);
    if (fd >= 0 && tb_send_hello(fd, &g->hello, m->deadline_ns) && tb_relay_add(m->relay, g->fd, fd) == 0)
        return 0;
    if (fd >= 0)
        close(fd);
    return fail_errno(m, g->hello.to, "relay", "a relayed connection reaches the rank behind this one");
}

static int welcome(tb_meeting *m, guest *g) {
    const tb_hello *h = &g->hello;
    int own = m->cabling->rank;
    if (m->cabling->cable[h->cable].by == TB_BY_RELAY && m->cabling->cable[h->cable].via == own)
        return pass_on(m, g);
    bool ours = tb_end_of(&m->cabling->cable[h->cable], own) == 0 && h->to == own &&
                m->cabling->cable[h->cable].end[1].rank == h->from &&
                tb_meet_wants(m->cabling, h->cable, h->purpose) && m->fd[h->cable][h->purpose] < 0;
    if (!ours)
        return fail(m, h->from, "accept", 0, "each connection of the cabling comes once, from its own rank", "another");
    tb_hello answer;
    tb_hello_fill(&answer, m->token, h->purpose, h->cable, own, h->from);
    m->fd[h->cable][h->purpose] = g->fd;
    if (tb_send_hello(g->fd, &answer, m->deadline_ns))
        return 0;
    return fail_errno(m, h->from, "accept", "a rank that dialled takes the answer");
}

/* 1: said all; 0: not yet; -1: gone, or a stranger. */
static int hear(tb_meeting *m, guest *g) {
    ssize_t n = recv(g->fd, (uint8_t *)&g->hello + g->bytes, sizeof g->hello - g->bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    g->bytes += n > 0 ? (size_t)n : 0;
    bool stranger = g->bytes >= TB_TOKEN_BYTES && !tb_hello_knows(&g->hello, m->token);
    if (n > 0 && !stranger)
        return g->bytes == sizeof g->hello;
    m->refused += stranger;
    close(g->fd);
    return -1;
}

static void let_in(tb_meeting *m, guest *guests, int *count) {
    for (int c = 0; c < m->cabling->cables; c++) {
        int fd;
        while (m->listener[c] >= 0 && *count < GUESTS && (fd = accept(m->listener[c], NULL, NULL)) >= 0) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            fcntl(fd, F_SETFL, O_NONBLOCK);
            guests[(*count)++] = (guest){.fd = fd};
        }
    }
}

static void await_guests(const tb_meeting *m, const guest *guests, int count) {
    struct pollfd asks[TB_MESH_CABLES + GUESTS];
    nfds_t n = 0;
    for (int c = 0; c < m->cabling->cables; c++)
        if (m->listener[c] >= 0)
            asks[n++] = (struct pollfd){.fd = m->listener[c], .events = POLLIN};
    for (int i = 0; i < count; i++)
        asks[n++] = (struct pollfd){.fd = guests[i].fd, .events = POLLIN};
    poll(asks, n, LOOK_MS);
}

/* How many connections are still to come, those to be relayed included; *missing: a rank that owes one. */
static int to_come(const tb_meeting *m, int *missing) {
    const tb_cabling *g = m->cabling;
    int own = g->rank, open = 0, relayed = 0;
    for (int c = 0; c < g->cables; c++)
        for (int p = 0; p < TB_PURPOSES; p++) {
            if (!tb_meet_wants(g, c, p))
                continue;
            relayed += g->cable[c].by == TB_BY_RELAY && g->cable[c].via == own;
            if (tb_end_of(&g->cable[c], own) == 0 && m->fd[c][p] < 0) {
                open++;
                *missing = g->cable[c].end[1].rank;
            }
        }
    return open + relayed - tb_relay_count(m->relay);
}

static int absent(tb_meeting *m, int missing) {
    char got[160];
    int n = snprintf(got, sizeof got, "nothing from %s",
                     missing == TB_NO_PEER ? "a rank to be relayed" : m->cabling->node[missing]);
    if (m->refused)
        snprintf(got + n, sizeof got - (size_t)n, "; %d refused that did not know the token", m->refused);
    return fail(m, missing, "accept", ETIMEDOUT, "every rank dials the lower ones before the deadline", got);
}

static int take_turns(tb_meeting *m, guest *guests, int *count) {
    let_in(m, guests, count);
    for (int i = 0; i < *count; i++) {
        int said = hear(m, &guests[i]);
        if (said == 0)
            continue;
        guest g = guests[i];
        guests[i--] = guests[--*count];
        if (said < 0)
            continue;
        const char *wrong = tb_hello_check(&g.hello, m->cabling->cables, m->cabling->size);
        if (wrong) {
            close(g.fd);
            return fail(m, TB_NO_PEER, "accept", 0, "a rank that dials says who it is", wrong);
        }
        if (welcome(m, &g) != 0)
            return -1;
    }
    return 0;
}

static int accept_higher(tb_meeting *m) {
    guest guests[GUESTS];
    int count = 0, missing = TB_NO_PEER, status = 0;
    while (status == 0 && to_come(m, &missing) > 0) {
        if (tb_now_ns() > m->deadline_ns)
            status = absent(m, missing);
        else if ((status = take_turns(m, guests, &count)) == 0 && to_come(m, &missing) > 0)
            await_guests(m, guests, count);
    }
    for (int i = 0; i < count; i++)
        close(guests[i].fd);
    return status;
}

static int hear_lower(tb_meeting *m, int c, enum tb_purpose purpose) {
    tb_hello answer;
    int own = m->cabling->rank, peer = m->cabling->cable[c].end[0].rank;
    if (!tb_take_hello(m->fd[c][purpose], &answer, m->deadline_ns))
        return fail_errno(m, peer, "answer", "a rank that was dialled answers before the deadline");
    if (!tb_hello_knows(&answer, m->token))
        return fail(m, peer, "answer", 0, "the rank that answers knows the token", "a stranger");
    const char *wrong = tb_hello_check(&answer, m->cabling->cables, m->cabling->size);
    if (!wrong && (answer.from != peer || answer.to != own || answer.cable != c || answer.purpose != purpose))
        wrong = "another rank answered than was dialled: the cabling is crossed";
    return wrong ? fail(m, peer, "answer", 0, "the rank that was dialled answers", wrong) : 0;
}

static int for_dialled(tb_meeting *m, int (*act)(tb_meeting *, int, enum tb_purpose)) {
    for (int c = 0; c < m->cabling->cables; c++)
        for (int p = 0; p < TB_PURPOSES; p++)
            if (tb_meet_wants(m->cabling, c, p) && tb_end_of(&m->cabling->cable[c], m->cabling->rank) == 1)
                if (act(m, c, p) != 0)
                    return -1;
    return 0;
}

int tb_meet(tb_meeting *m) {
    if (for_dialled(m, greet_lower) != 0 || accept_higher(m) != 0)
        return -1;
    return for_dialled(m, hear_lower);
}
