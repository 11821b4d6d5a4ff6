#include "hello.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define MAGIC 0x6f6c6c68u
#define VERSION 1u
#define BACKLOG 64

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0
#endif

typedef union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} address;

void tb_hello_fill(tb_hello *h, const uint8_t *token, enum tb_purpose purpose, int cable, int from, int to) {
    *h = (tb_hello){.magic = MAGIC,
                    .version = VERSION,
                    .purpose = (uint8_t)purpose,
                    .cable = (uint8_t)cable,
                    .from = (uint8_t)from,
                    .to = (uint8_t)to};
    memcpy(h->token, token, TB_TOKEN_BYTES);
}

/* Takes the same time wherever the difference is. */
bool tb_hello_knows(const tb_hello *h, const uint8_t *token) {
    uint8_t other = 0;
    for (int i = 0; i < TB_TOKEN_BYTES; i++)
        other |= (uint8_t)(h->token[i] ^ token[i]);
    return other == 0;
}

const char *tb_hello_check(const tb_hello *h, int cables, int size) {
    if (h->magic != MAGIC)
        return "its first word is no hello of tbkit";
    if (h->version != VERSION)
        return "it is of another version of tbkit: make the nodes' versions equal";
    if (h->purpose >= TB_PURPOSES || h->cable >= cables || h->from >= size || h->to >= size || h->from == h->to)
        return "it is of another cabling, or for another rank";
    return NULL;
}

static socklen_t parse(const char *text, uint16_t port, address *a) {
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, text, &a->four.sin_addr) == 1) {
        a->four.sin_family = AF_INET;
        a->four.sin_port = htons(port);
        return sizeof a->four;
    }
    if (inet_pton(AF_INET6, text, &a->six.sin6_addr) == 1) {
        a->six.sin6_family = AF_INET6;
        a->six.sin6_port = htons(port);
        return sizeof a->six;
    }
    errno = EINVAL;
    return 0;
}

static int new_socket(const address *a) {
    int fd = socket(a->any.sa_family, SOCK_STREAM, 0);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    return fd;
}

static int give_up(int fd) {
    int kept = errno;
    if (fd >= 0)
        close(fd);
    errno = kept;
    return -1;
}

int tb_listen(const char *text, uint16_t *port) {
    address a;
    socklen_t bytes = parse(text, 0, &a);
    int fd = bytes ? new_socket(&a) : -1;
    if (fd < 0 || bind(fd, &a.any, bytes) != 0 || listen(fd, BACKLOG) != 0 || getsockname(fd, &a.any, &bytes) != 0)
        return give_up(fd);
    *port = ntohs(a.any.sa_family == AF_INET ? a.four.sin_port : a.six.sin6_port);
    return fd;
}

/* Until the descriptor has what is asked for; false at the deadline. */
static bool await(int fd, short events, uint64_t deadline_ns) {
    struct pollfd ask = {.fd = fd, .events = events};
    for (;;) {
        uint64_t now = tb_now_ns();
        if (now >= deadline_ns) {
            errno = ETIMEDOUT;
            return false;
        }
        uint64_t ms = (deadline_ns - now) / 1000000 + 1;
        int n = poll(&ask, 1, ms > 1000 ? 1000 : (int)ms);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static bool connected(int fd, uint64_t deadline_ns) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (!await(fd, POLLOUT, deadline_ns) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        return false;
    errno = error;
    return error == 0;
}

/* From the cable's own address, so that the connection takes the cable and no other way. */
int tb_dial(const char *text, uint16_t port, const char *from, uint64_t deadline_ns) {
    address a, own;
    socklen_t bytes = parse(text, port, &a), own_bytes = parse(from, 0, &own);
    int fd = bytes && own_bytes ? new_socket(&a) : -1;
    if (fd < 0 || bind(fd, &own.any, own_bytes) != 0)
        return give_up(fd);
    if (connect(fd, &a.any, bytes) != 0 && (errno != EINPROGRESS || !connected(fd, deadline_ns)))
        return give_up(fd);
    return fd;
}

bool tb_send_hello(int fd, const tb_hello *h, uint64_t deadline_ns) {
    size_t at = 0;
    while (at < sizeof *h) {
        ssize_t n = send(fd, (const uint8_t *)h + at, sizeof *h - at, MSG_NOSIGNAL);
        if (n > 0)
            at += (size_t)n;
        else if ((errno != EAGAIN && errno != EINTR) || !await(fd, POLLOUT, deadline_ns))
            return false;
    }
    return true;
}

bool tb_take_hello(int fd, tb_hello *h, uint64_t deadline_ns) {
    size_t at = 0;
    while (at < sizeof *h) {
        ssize_t n = recv(fd, (uint8_t *)h + at, sizeof *h - at, 0);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 && (errno = ECONNRESET))
            return false;
        else if ((errno != EAGAIN && errno != EINTR) || !await(fd, POLLIN, deadline_ns))
            return false;
    }
    return true;
}
