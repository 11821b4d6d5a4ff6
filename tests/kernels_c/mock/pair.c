/* Two processes over a cable: `pair DEVICE SOCKET MODE COUNT MOST`, both the same but for the device.
 *
 * The first to come binds the UNIX socket, the other connects; addresses and readiness go over it. Modes: `check` each
 * sends COUNT messages of log-uniform 1 byte to MOST and compares every byte that comes; `stream` the binder receives
 * COUNT messages of MOST bytes and prints the rate; `quiet` posts one receive, says so, and polls for ever; `post`
 * posts one more in every round. */
#include <math.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "user.h"

#define SLOTS 3u

static int bootstrap(const char *path, bool *binder) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(s >= 0);
    *binder = bind(s, (struct sockaddr *)&at, sizeof at) == 0;
    if (*binder) {
        CHECK(listen(s, 1) == 0);
        return accept(s, NULL, NULL);
    }
    for (int i = 0; connect(s, (struct sockaddr *)&at, sizeof at) != 0; i++) {
        CHECK(i < 500);
        usleep(10000);
    }
    return s;
}

static void swap(int s, const void *own, void *peers, size_t bytes) {
    CHECK(write(s, own, bytes) == (ssize_t)bytes);
    CHECK(recv(s, peers, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void ready(int s) {
    char byte = 1, theirs = 0;
    swap(s, &byte, &theirs, 1);
    CHECK(theirs == 1);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint32_t length_of(uint64_t index, uint32_t most) {
    double unit = (double)(mix(index + 1) >> 11) / 9007199254740992.0;
    uint32_t bytes = (uint32_t)exp(unit * log((double)most));
    return bytes < 1 ? 1 : bytes;
}

static void paint(uint8_t *to, uint32_t bytes, uint64_t seed) {
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(seed * 0x10001u + i);
        memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void compare(const uint8_t *got, uint32_t bytes, uint64_t seed) {
    static uint8_t want[1 << 20];
    paint(want, bytes, seed);
    CHECK(memcmp(got, want, bytes) == 0);
}

/* A message has its own length; its receive has the same number of frames, as the rule wants. */
static void await_message(end *e, uint64_t index, uint32_t most) {
    uint32_t frames = (length_of(index, most) + 4095) / 4096;
    CHECK(post_recv(e, (SLOTS + index % SLOTS) * most, frames * 4096, index) == 0);
}

static void check(end *e, int s, uint64_t count, uint32_t most) {
    uint64_t sent = 0, done = 0, came = 0, posted = 0;
    for (; posted < SLOTS && posted < count; posted++)
        await_message(e, posted, most);
    ready(s);
    for (uint64_t end_ns = now_ns() + 60 * SECOND; done < count || came < count;) {
        struct ibv_wc wc;
        CHECK(now_ns() < end_ns);
        for (; sent < count && sent - done < SLOTS; sent++) {
            uint32_t bytes = length_of(sent, most);
            paint(e->memory + sent % SLOTS * most, bytes, sent);
            CHECK(post_send(e, sent % SLOTS * most, bytes, sent) == 0);
        }
        if (!poll_for(e, &wc, 0))
            continue;
        CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == e->qp->qp_num);
        if (wc.opcode == IBV_WC_SEND) {
            CHECK(wc.wr_id == done++);
            continue;
        }
        CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == came && wc.byte_len == length_of(came, most));
        compare(e->memory + (SLOTS + came % SLOTS) * most, wc.byte_len, came);
        came++;
        if (posted < count)
            await_message(e, posted++, most);
    }
    printf("intact %llu\n", (unsigned long long)came);
}

static void stream(end *e, int s, bool receiver, uint64_t count, uint32_t bytes) {
    uint64_t posted = 0, done = 0, start = 0;
    for (; receiver && posted < SLOTS; posted++)
        CHECK(post_recv(e, posted % SLOTS * bytes, bytes, posted) == 0);
    ready(s);
    while (done < count) {
        struct ibv_wc wc;
        for (; posted < count && posted - done < SLOTS; posted++)
            CHECK((receiver ? post_recv : post_send)(e, posted % SLOTS * bytes, bytes, posted) == 0);
        CHECK(poll_for(e, &wc, 10 * SECOND) && wc.status == IBV_WC_SUCCESS);
        start = done++ ? start : now_ns();
    }
    double ns = (double)(now_ns() - start), messages = (double)(count - 1);
    if (receiver)
        printf("gigabytes_per_s %.3f\nns_per_message %.0f\n", messages * bytes / ns, ns / messages);
}

static void quiet(end *e, int s, bool again) {
    CHECK(post_recv(e, 0, 4096, 1) == 0);
    ready(s);
    printf("polling\n");
    fflush(stdout);
    for (;;) {
        struct ibv_wc wc;
        bool came = poll_for(e, &wc, SECOND / 10);
        CHECK(!again || post_recv(e, 0, 4096, 1) == 0);
        printf("%s\n", came ? "completion" : "nothing");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 6);
    const char *mode = argv[3];
    uint64_t count = strtoull(argv[4], NULL, 10);
    uint32_t most = (uint32_t)strtoul(argv[5], NULL, 10);
    struct wire_address peer;
    bool binder;
    end e;
    load_verbs();
    int s = bootstrap(argv[2], &binder);
    CHECK(s >= 0);
    make_end(&e, argv[1], (size_t)2 * SLOTS * most, 4095);
    swap(s, &e.address, &peer, sizeof peer);
    CHECK(to_rtr(&e, &peer) == 0);
    CHECK(to_rts(&e) == 0);
    if (strcmp(mode, "check") == 0)
        check(&e, s, count, most);
    else if (strcmp(mode, "stream") == 0)
        stream(&e, s, binder, count, most);
    else
        quiet(&e, s, strcmp(mode, "post") == 0);
    ready(s);
    end_end(&e);
    return 0;
}
