/* Each rank dials the lower ones, which need not answer, and lets the higher ones in. The folder is open to its owner
 * alone; the token, made of random bytes of all ranks, says that it is this group and this attempt. */
#include "local.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

#define TEMPLATE "/tmp/tbkit-XXXXXX"
#define SOCKET_NAME "/reads"

static struct sockaddr_un address_in(const char *folder) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.*s" SOCKET_NAME, TB_FOLDER_MAX, folder);
    return a;
}

static int new_socket(void) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    return fd;
}

int tb_local_open(tb_local *l, int listens) {
    *l = (tb_local){.listener = -1};
    if (getentropy(l->card.salt, sizeof l->card.salt) != 0)
        return errno;
    if (!listens)
        return 0;
    char folder[] = TEMPLATE;
    if (!mkdtemp(folder))
        return errno;
    memcpy(l->card.folder, folder, sizeof folder);
    struct sockaddr_un a = address_in(folder);
    l->listener = new_socket();
    if (l->listener >= 0 && bind(l->listener, (struct sockaddr *)&a, sizeof a) == 0 &&
        listen(l->listener, TB_MAX_RANKS) == 0)
        return 0;
    int error = errno;
    tb_local_close(l);
    return error;
}

void tb_local_close(tb_local *l) {
    struct sockaddr_un a = address_in(l->card.folder);
    if (l->listener >= 0)
        close(l->listener);
    if (l->card.folder[0]) {
        unlink(a.sun_path);
        rmdir(l->card.folder);
    }
    l->listener = -1;
    l->card.folder[0] = 0;
}

static int dial(const tb_local_card *card, const tb_hello *hello, uint64_t deadline_ns, int *fd) {
    struct sockaddr_un a = address_in(card->folder);
    *fd = new_socket();
    bool there = *fd >= 0 && connect(*fd, (struct sockaddr *)&a, sizeof a) == 0;
    return there && tb_send_hello(*fd, hello, deadline_ns) ? 0 : errno;
}

static int await_guest(int listener, uint64_t deadline_ns) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED))
            return fd;
        if (tb_now_ns() > deadline_ns) {
            errno = ETIMEDOUT;
            return -1;
        }
        poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 20);
    }
}

/* Who does not know the token is sent away and counts for nothing. */
static int let_in(const tb_local *l, const tb_hello *own, int size, uint32_t *expected, uint64_t deadline_ns, int *fd) {
    tb_hello h;
    int guest = await_guest(l->listener, deadline_ns);
    if (guest < 0)
        return errno;
    fcntl(guest, F_SETFD, FD_CLOEXEC);
    fcntl(guest, F_SETFL, O_NONBLOCK);
    bool said = tb_take_hello(guest, &h, deadline_ns) && tb_hello_knows(&h, own->token);
    if (said && !tb_hello_check(&h, 1, size) && h.to == own->from && *expected >> h.from & 1) {
        fd[h.from] = guest;
        *expected &= ~(1u << h.from);
        return 0;
    }
    close(guest);
    return said ? EPROTO : 0;
}

static void make_token(const tb_local_card *cards, int size, uint8_t token[TB_TOKEN_BYTES]) {
    memset(token, 0, TB_TOKEN_BYTES);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < TB_TOKEN_BYTES; i++)
            token[i] ^= cards[r].salt[i];
}

int tb_local_meet(const tb_local *l, const tb_local_card *cards, int rank, int size, uint32_t here,
                  uint64_t deadline_ns, int fd[TB_MAX_RANKS], int *to_blame) {
    uint8_t token[TB_TOKEN_BYTES];
    tb_hello hello;
    int error = 0;
    make_token(cards, size, token);
    memset(fd, -1, TB_MAX_RANKS * sizeof *fd);
    tb_hello_fill(&hello, token, TB_READ, 0, rank, rank);
    for (int r = 0; r < rank && !error; r++) {
        hello.to = (uint8_t)r;
        *to_blame = r;
        error = here >> r & 1 ? dial(&cards[r], &hello, deadline_ns, &fd[r]) : 0;
    }
    uint32_t higher = here & ~((2u << rank) - 1);
    while (higher && !error) {
        *to_blame = __builtin_ctz(higher);
        error = let_in(l, &hello, size, &higher, deadline_ns, fd);
    }
    return error;
}
