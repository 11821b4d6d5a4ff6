#include "mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bundle.h"
#include "card.h"
#include "clock.h"
#include "credit.h"
#include "group.h"
#include "liveness.h"
#include "meet.h"
#include "tcp.h"

#define TEARDOWN_NS 2000000000u
#define LARGE_FRAMES 16 /* of a large slot where the cabling does not say */
#define LEAST_BYTES 4096 /* of a pipeline's frame, where a short one costs less */

struct tb_mesh {
    tb_cabling cabling;
    uint8_t token[TB_TOKEN_BYTES];
    int listener[TB_MESH_CABLES];
    tb_card card; /* own */
    uint8_t bytes[TB_CARD_MAX];
    size_t card_bytes;
    int fd[TB_MESH_CABLES][TB_PURPOSES];
    tb_tcp *tcp[TB_MESH_CABLES];
    tb_verbs_port *port[TB_MESH_CABLES];
    tb_bundle to[TB_MAX_RANKS], from[TB_MAX_RANKS];
    tb_relay *relay;
    tb_liveness *liveness;
};

int tb_mesh_fail(tb_mesh_error *e, int peer, const char *step, int error, const char *rule, const char *got) {
    *e = (tb_mesh_error){.peer = peer, .error = error};
    snprintf(e->step, sizeof e->step, "%s", step);
    snprintf(e->rule, sizeof e->rule, "%s", rule);
    snprintf(e->got, sizeof e->got, "%s", got);
    return -1;
}

static bool is_here(const tb_cabling *g, int rank) { return strcmp(g->node[rank], g->node[g->rank]) == 0; }

static bool is_linked(const tb_cabling *g, int rank) {
    for (int c = 0; c < g->cables; c++)
        if (tb_end_of(&g->cable[c], g->rank) >= 0 && tb_end_of(&g->cable[c], rank) >= 0)
            return true;
    return false;
}

static bool is_sound(const tb_cabling *g, const tb_cable *c) {
    int low = c->end[0].rank, high = c->end[1].rank;
    if (low < 0 || low >= high || high >= g->size)
        return false;
    return c->by != TB_BY_RELAY || (tb_direct(g, low, c->via) >= 0 && tb_direct(g, c->via, high) >= 0);
}

static int check(const tb_cabling *g, tb_mesh_error *e) {
    char got[100];
    for (int c = 0; c < g->cables; c++)
        if (!is_sound(g, &g->cable[c])) {
            snprintf(got, sizeof got, "cable %d of ranks %d and %d", c, g->cable[c].end[0].rank, g->cable[c].end[1].rank);
            return tb_mesh_fail(e, TB_NO_PEER, "cabling", 0,
                                "a cable joins two ranks, the lower first; a relay has a cable to both", got);
        }
    for (int r = 0; r < g->size; r++)
        if (r != g->rank && !is_here(g, r) && !is_linked(g, r))
            return tb_mesh_fail(e, r, "cabling", 0, "a cable or a relay leads to every rank of another node", "none");
    return 0;
}

static int open_end(tb_mesh *m, int c, tb_mesh_error *e) {
    const tb_cable *cable = &m->cabling.cable[c];
    int own = tb_end_of(cable, m->cabling.rank), peer = own < 0 ? 0 : cable->end[!own].rank;
    if (own < 0 || cable->by == TB_BY_RELAY)
        return 0;
    m->listener[c] = tb_listen(cable->end[own].address, &m->card.port[c]);
    if (m->listener[c] < 0)
        return tb_mesh_fail(e, peer, "listen", errno, "this node has the address that the cabling names for it",
                            strerror(errno));
    if (cable->by != TB_BY_VERBS)
        return 0;
    tb_verbs_ask ask = {.port = cable->end[own].port,
                        .large_frames = m->cabling.large_frames ? m->cabling.large_frames : LARGE_FRAMES,
                        .rank = m->cabling.rank,
                        .peer = peer};
    snprintf(ask.device, sizeof ask.device, "%s", cable->end[own].device);
    snprintf(ask.address, sizeof ask.address, "%s", cable->end[own].address);
    tb_verbs_error error;
    if (tb_verbs_open(&m->port[c], &ask, &error) != 0)
        return tb_mesh_fail(e, peer, "verbs", error.error, error.words, "");
    tb_verbs_card_of(m->port[c], &m->card.verbs[c]);
    m->card.holds[c] = TB_CARD_VERBS;
    return 0;
}

static tb_mesh *new_mesh(const tb_cabling *cabling) {
    tb_mesh *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->cabling = *cabling;
    m->card.rank = cabling->rank;
    m->card.size = cabling->size;
    memset(m->listener, -1, sizeof m->listener);
    memset(m->fd, -1, sizeof m->fd);
    m->relay = getentropy(m->card.salt, sizeof m->card.salt) == 0 ? tb_relay_new() : NULL;
    return m;
}

tb_mesh *tb_mesh_open(const tb_cabling *cabling, tb_mesh_error *e) {
    tb_mesh *m = check(cabling, e) == 0 ? new_mesh(cabling) : NULL;
    if (!m)
        return NULL;
    int status = m->relay ? 0 : tb_mesh_fail(e, TB_NO_PEER, "open", errno, "one more thread and random bytes can be had", strerror(errno));
    for (int c = 0; c < cabling->cables && status == 0; c++)
        status = open_end(m, c, e);
    if (status != 0) {
        tb_mesh_free(m);
        return NULL;
    }
    m->card_bytes = tb_card_write(&m->card, cabling->cables, m->bytes);
    return m;
}

const uint8_t *tb_mesh_card(const tb_mesh *m, size_t *bytes) {
    *bytes = m->card_bytes;
    return m->bytes;
}

static int peer_of(const tb_mesh *m, int cable) {
    return m->cabling.cable[cable].end[!tb_end_of(&m->cabling.cable[cable], m->cabling.rank)].rank;
}

static int read_cards(const tb_mesh *m, tb_card *cards, const uint8_t *const *data, const size_t *bytes,
                      tb_mesh_error *e) {
    for (int r = 0; r < m->cabling.size; r++) {
        const char *wrong = tb_card_read(&cards[r], m->cabling.cables, data[r], bytes[r]);
        if (!wrong && (cards[r].rank != r || cards[r].size != m->cabling.size))
            wrong = "it is of another rank or group";
        if (wrong)
            return tb_mesh_fail(e, r, "card", 0, "the card that came for this rank can be used", wrong);
    }
    return 0;
}

static void make_token(tb_mesh *m, const tb_card *cards) {
    for (int r = 0; r < m->cabling.size; r++)
        for (int i = 0; i < TB_TOKEN_BYTES; i++)
            m->token[i] ^= cards[r].salt[i];
}

static void close_listeners(tb_mesh *m) {
    for (int c = 0; c < TB_MESH_CABLES; c++) {
        if (m->listener[c] >= 0)
            close(m->listener[c]);
        m->listener[c] = -1;
    }
}

static int for_ports(tb_mesh *m, const tb_card *cards, uint8_t part, tb_mesh_error *e) {
    tb_verbs_error error;
    for (int c = 0; c < m->cabling.cables; c++) {
        if (!m->port[c])
            continue;
        int peer = peer_of(m, c);
        if (!(cards[peer].holds[c] & part))
            return tb_mesh_fail(e, peer, "card", 0, "a queue pair faces a queue pair", "none at the other end");
        int failed = part == TB_CARD_VERBS ? tb_verbs_connect(m->port[c], &cards[peer].verbs[c], &error)
                                           : tb_verbs_start(m->port[c], &cards[peer].ready[c], &error);
        if (failed)
            return tb_mesh_fail(e, peer, "verbs", error.error, error.words, "");
    }
    return 0;
}

/* The second card: what is ready to be sent to. */
static void write_ready(tb_mesh *m) {
    for (int c = 0; c < m->cabling.cables; c++) {
        m->card.holds[c] = m->port[c] ? TB_CARD_READY : 0;
        if (m->port[c])
            tb_verbs_ready_of(m->port[c], &m->card.ready[c]);
    }
    m->card_bytes = tb_card_write(&m->card, m->cabling.cables, m->bytes);
}

static int make_streams(tb_mesh *m, tb_mesh_error *e) {
    for (int c = 0; c < m->cabling.cables; c++) {
        if (m->fd[c][TB_DATA] < 0)
            continue;
        m->tcp[c] = tb_tcp_new(m->fd[c][TB_DATA]);
        if (!m->tcp[c])
            return tb_mesh_fail(e, TB_NO_PEER, "connect", ENOMEM, "a connection has its buffers", strerror(ENOMEM));
        m->fd[c][TB_DATA] = -1;
    }
    return 0;
}

int tb_mesh_connect(tb_mesh *m, const uint8_t *const *data, const size_t *bytes, uint64_t deadline_ns,
                    tb_mesh_error *e) {
    tb_card *cards = calloc((size_t)m->cabling.size, sizeof *cards);
    tb_meeting meeting = {
        .cabling = &m->cabling, .cards = cards, .token = m->token, .relay = m->relay, .deadline_ns = deadline_ns, .error = e};
    if (!cards)
        return tb_mesh_fail(e, TB_NO_PEER, "connect", ENOMEM, "the cards have memory", strerror(ENOMEM));
    memcpy(meeting.listener, m->listener, sizeof m->listener);
    memset(meeting.fd, -1, sizeof meeting.fd);
    int status = read_cards(m, cards, data, bytes, e);
    if (status == 0) {
        make_token(m, cards);
        status = tb_meet(&meeting);
        memcpy(m->fd, meeting.fd, sizeof m->fd);
    }
    close_listeners(m);
    if (status == 0)
        status = for_ports(m, cards, TB_CARD_VERBS, e);
    if (status == 0)
        status = make_streams(m, e);
    if (status == 0)
        write_ready(m);
    free(cards);
    return status;
}

int tb_mesh_start(tb_mesh *m, const uint8_t *const *data, const size_t *bytes, tb_mesh_error *e) {
    tb_card *cards = calloc((size_t)m->cabling.size, sizeof *cards);
    if (!cards)
        return tb_mesh_fail(e, TB_NO_PEER, "start", ENOMEM, "the cards have memory", strerror(ENOMEM));
    int status = read_cards(m, cards, data, bytes, e);
    if (status == 0)
        status = for_ports(m, cards, TB_CARD_READY, e);
    free(cards);
    return status;
}

void tb_mesh_free(tb_mesh *m) {
    if (!m)
        return;
    tb_liveness_stop(m->liveness);
    close_listeners(m);
    for (int c = 0; c < TB_MESH_CABLES; c++) {
        for (int p = 0; p < TB_PURPOSES; p++)
            if (m->fd[c][p] >= 0)
                close(m->fd[c][p]);
        tb_tcp_free(m->tcp[c]);
        if (m->port[c])
            tb_verbs_close(m->port[c], tb_now_ns() + TEARDOWN_NS);
    }
    tb_relay_free(m->relay);
    free(m);
}

void tb_mesh_tell(tb_mesh *m) {
    if (m->liveness)
        tb_liveness_tell(m->liveness);
}

static uint32_t ranks_here(const tb_cabling *g) {
    uint32_t here = 0;
    for (int r = 0; r < g->size; r++)
        if (r == g->rank || (is_here(g, r) && !is_linked(g, r)))
            here |= 1u << r;
    return here;
}

static void attach(tb_mesh *m, int cable, int peer, tb_channel *to, tb_channel *from) {
    if (m->port[cable]) {
        tb_verbs_sender(to, m->port[cable]);
        tb_verbs_receiver(from, m->port[cable]);
    } else {
        tb_tcp_sender(to, m->tcp[cable], m->cabling.rank, peer);
        tb_tcp_receiver(from, m->tcp[cable], m->cabling.rank, peer);
    }
}

/* One cable is the channel itself; several are its parts. */
static int attach_channels(tb_mesh *m, tb_group *g) {
    for (int c = 0; c < m->cabling.cables; c++) {
        if (tb_end_of(&m->cabling.cable[c], g->rank) < 0)
            continue;
        tb_bundle *to = &m->to[peer_of(m, c)], *from = &m->from[peer_of(m, c)];
        if (to->count == TB_BUNDLE_MAX)
            return E2BIG;
        attach(m, c, peer_of(m, c), &to->part[to->count++], &from->part[from->count++]);
    }
    for (int r = 0; r < g->size; r++) {
        if (m->to[r].count == 1) {
            g->to[r] = m->to[r].part[0];
            g->from[r] = m->from[r].part[0];
        } else if (m->to[r].count > 1) {
            tb_bundle_end(&g->to[r], &m->to[r], g->rank, r);
            tb_bundle_end(&g->from[r], &m->from[r], g->rank, r);
        }
    }
    return 0;
}

static int start_liveness(tb_mesh *m, tb_group *g) {
    int fd[TB_MAX_RANKS];
    memset(fd, -1, sizeof fd);
    for (int c = 0; c < m->cabling.cables; c++)
        if (m->fd[c][TB_LIVENESS] >= 0) {
            fd[peer_of(m, c)] = m->fd[c][TB_LIVENESS];
            m->fd[c][TB_LIVENESS] = -1;
        }
    m->liveness = tb_liveness_start(g->header, g->rank, fd, m->cabling.silence_ns);
    return m->liveness ? 0 : errno;
}

/* Ranks of one node share a segment under the token, which only they know. */
static void segment_name(const tb_mesh *m, uint32_t here, char name[TB_NAME_MAX]) {
    char text[17];
    for (int i = 0; i < 8; i++)
        snprintf(text + 2 * i, 3, "%02x", m->token[i]);
    snprintf(name, TB_NAME_MAX, "tbkit-%s-%d", text, __builtin_ctz(here));
}

static bool shares_a_node(const tb_cabling *g) {
    for (int a = 0; a < g->size; a++)
        for (int b = a + 1; b < g->size; b++)
            if (strcmp(g->node[a], g->node[b]) == 0 && tb_direct(g, a, b) < 0)
                return true;
    return false;
}

static uint32_t verbs_slot_bytes(const tb_cabling *g) {
    uint32_t frames = g->large_frames ? g->large_frames : LARGE_FRAMES;
    return (frames * TB_FRAME_BYTES - TB_WIRE_HEAD) & ~63u;
}

/* From the cabling, which all ranks hold, so that all cut alike: a frame fits the smallest kind of channel; where
 * there are queue pairs, a shorter frame costs as much as a whole one. */
static void fit_frames(const tb_cabling *g, tb_group *group) {
    uint32_t frame = shares_a_node(g) ? tb_segment_slot_bytes(g->size) : TB_TCP_SLOT_BYTES, least = LEAST_BYTES;
    for (int c = 0; c < g->cables; c++) {
        uint32_t slot = g->cable[c].by == TB_BY_VERBS ? verbs_slot_bytes(g) : frame;
        frame = slot < frame ? slot : frame;
        least = g->cable[c].by == TB_BY_VERBS ? frame : least;
    }
    group->frame_bytes = frame;
    group->least_bytes = least < frame ? least : frame;
}

tb_group *tb_mesh_group(tb_mesh *m, const tb_shaping *shaping, uint64_t timeout_ns, tb_hooks hooks, int *status,
                        int *error) {
    char name[TB_NAME_MAX];
    void *memory = NULL;
    uint32_t here = ranks_here(&m->cabling);
    if (posix_memalign(&memory, TB_LINE, sizeof(tb_group)) != 0)
        return NULL;
    tb_group *g = memory;
    *g = (tb_group){.hooks = hooks, .waiting = {.policy = TB_AUTO}, .shaping = shaping ? shaping->digest : 0};
    segment_name(m, here, name);
    *status = tb_group_join_node(g, name, m->cabling.rank, m->cabling.size, here, tb_now_ns() + timeout_ns, error);
    if (*status != TB_OK)
        return g;
    fit_frames(&m->cabling, g);
    *error = attach_channels(m, g);
    if (!*error && shaping)
        *error = tb_shape_links(g, shaping);
    if (!*error)
        *error = start_liveness(m, g);
    if (*error)
        *status = TB_INVALID;
    else
        g->mesh = m;
    return g;
}

int tb_mesh_take_read(tb_mesh *m, int peer) {
    for (int c = 0; c < m->cabling.cables; c++)
        if (m->fd[c][TB_READ] >= 0 && peer_of(m, c) == peer) {
            int fd = m->fd[c][TB_READ];
            m->fd[c][TB_READ] = -1;
            return fd;
        }
    return -1;
}

bool tb_mesh_relays(const tb_mesh *m, int peer) { return tb_direct(&m->cabling, m->cabling.rank, peer) < 0; }

static const char *device(const tb_cable_end *end) { return end->device[0] ? end->device : end->address; }

void tb_mesh_words(const tb_mesh *m, int by, int peer, char *text, size_t room) {
    const tb_cabling *g = &m->cabling;
    size_t n = (size_t)snprintf(text, room, " on %s", g->node[peer]);
    for (int c = 0; c < g->cables && n < room; c++) {
        const tb_cable *k = &g->cable[c];
        if (tb_end_of(k, by) < 0 || tb_end_of(k, peer) < 0)
            continue;
        if (k->by == TB_BY_RELAY)
            n += (size_t)snprintf(text + n, room - n, ", relayed by %s", g->node[k->via]);
        else
            n += (size_t)snprintf(text + n, room - n, ", cable %s:%s to %s:%s", g->node[k->end[0].rank],
                                  device(&k->end[0]), g->node[k->end[1].rank], device(&k->end[1]));
    }
}
