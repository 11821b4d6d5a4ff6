/* The heartbeat thread: beats, a full pipe, stopping, and ending an orphan. */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "heartbeat.h"
#include "process.h"

static tb_heart heart_on(int fd) {
    return (tb_heart){.fd = fd,
                      .watch_fd = fd,
                      .interval_ns = 2000000,
                      .grace_ns = 1000000,
                      .message = {'b'},
                      .length = 1};
}

static void beats(void) {
    int ends[2];
    static _Atomic uint64_t place;
    CHECK(pipe(ends) == 0);
    tb_heart heart = heart_on(ends[1]);
    tb_heartbeat_touch(&place, true);
    CHECK(tb_heartbeat_start(&heart) == 0 && tb_heartbeat_start(&heart) == EALREADY);
    char text[5];
    for (int got = 0; got < 5;)
        got += (int)read(ends[0], text, sizeof text);
    CHECK(tb_now_ns() - atomic_load(&place) < 5000000000u);
    tb_heartbeat_stop();
    tb_heartbeat_touch(&place, false);
    CHECK(tb_heartbeat_count() >= 5);
    close(ends[0]);
    close(ends[1]);
}

/* A supervisor that does not read makes beats fall out; it does not block or end the process. */
static void slow_supervisor(void) {
    int ends[2];
    char full[65536] = {0};
    CHECK(pipe(ends) == 0);
    CHECK(write(ends[1], full, sizeof full) == sizeof full);
    tb_heart heart = heart_on(ends[1]);
    CHECK(tb_heartbeat_start(&heart) == 0);
    tb_sleep_ns(20000000);
    tb_heartbeat_stop();
    close(ends[0]);
    close(ends[1]);
}

static void orphan(void) {
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        tb_heart heart = heart_on(ends[1]);
        CHECK(tb_heartbeat_start(&heart) == 0);
        tb_sleep_ns(10000000000u);
        _exit(1);
    }
    close(ends[1]);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == TB_ORPHAN_EXIT);
}

static void ended_processes(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int watch = tb_process_watch(child);
    while (!tb_process_gone(child, -1))
        tb_sleep_ns(1000000);
    CHECK(tb_process_gone(child, watch));
    CHECK(waitpid(child, NULL, 0) == child && tb_process_gone(child, -1));
    if (watch >= 0)
        close(watch);
    CHECK(!tb_process_gone(getppid(), -1) && tb_cores_free() >= 1);
}

int main(void) {
    beats();
    slow_supervisor();
    orphan();
    ended_processes();
    return 0;
}
