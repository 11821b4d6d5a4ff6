/* The peer of provider tcp: a blocking ping-pong over the loopback with TCP_NODELAY and nothing else.
 * socket_loop BYTES ITERATIONS prints the median of half a round trip, in microseconds. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void check(int ok, const char *what) {
    if (ok)
        return;
    perror(what);
    exit(1);
}

static void send_all(int fd, const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = send(fd, data + at, bytes - at, 0);
        check(n > 0, "send");
        at += (size_t)n;
    }
}

static void recv_all(int fd, char *data, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n = recv(fd, data + at, bytes - at, 0);
        check(n > 0, "recv");
        at += (size_t)n;
    }
}

static void without_delay(int fd) {
    int on = 1;
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void answer(const struct sockaddr_in *to, char *data, size_t bytes, int iterations) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (const struct sockaddr *)to, sizeof *to) == 0, "connect");
    without_delay(fd);
    for (int i = 0; i < iterations; i++) {
        recv_all(fd, data, bytes);
        send_all(fd, data, bytes);
    }
    exit(0);
}

int main(int count, char **words) {
    check(count == 3, "usage: socket_loop BYTES ITERATIONS");
    size_t bytes = (size_t)atol(words[1]);
    int iterations = atoi(words[2]), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof own;
    char *data = calloc(1, bytes + 1);
    double *us = calloc((size_t)iterations, sizeof *us);
    check(data && us, "memory");
    check(bind(listener, (struct sockaddr *)&own, sizeof own) == 0 && listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&own, &size) == 0, "getsockname");
    if (fork() == 0)
        answer(&own, data, bytes, iterations);
    int fd = accept(listener, NULL, NULL);
    without_delay(fd);
    for (int i = 0; i < iterations; i++) {
        double began = now_us();
        send_all(fd, data, bytes);
        recv_all(fd, data, bytes);
        us[i] = (now_us() - began) / 2;
    }
    wait(NULL);
    qsort(us, (size_t)iterations, sizeof *us, compare);
    printf("%.3f\n", us[iterations / 2]);
    return 0;
}
