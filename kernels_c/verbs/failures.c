/* What a failing step means: rows of the failure table by step and errno. Numbers differ between systems, names do
 * not, so rows are found by this system's own constants, and both are printed. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "port.h"

typedef struct row {
    int step, error; /* error 0: any other */
    const char *number, *cause, *remedy;
} row;

static const row TABLE[] = {
    {TB_VERBS_LOAD, 0, "3, 30", "the verbs library did not load", "macOS 26.2 or later, or apt install libibverbs1"},
    {TB_VERBS_LIST, 0, "1, 2", "no RDMA device", "`rdma_ctl enable` in Recovery, reboot; on Linux `rdma link`"},
    {TB_VERBS_OPEN, ENODEV, "31", "no device of this name", "scan the cabling again: numbers change after a reboot"},
    {TB_VERBS_OPEN, 0, "31", "the device does not open", "see `ibv_devinfo -v`"},
    {TB_VERBS_PORT, 0, "6-8", "the port is not active", "see cable, peer's sleep and `rdma_ctl status` there"},
    {TB_VERBS_GID, 0, "11, 32", "no IPv4-mapped GID", "the interface needs an IPv4 of its own, not bridge0"},
    {TB_VERBS_PD, 0, "9, 10", "no protection domain: port down, or 11 in use", "end who holds them; else reboot"},
    {TB_VERBS_CQ, 0, "10", "no completion queue: limit of the device", "end who holds RDMA on it; else reboot"},
    {TB_VERBS_QP, EBUSY, "18", "all queue pairs of the device in use, or stale", "end who holds them; else reboot"},
    {TB_VERBS_QP, EOPNOTSUPP, "19", "the driver refuses UC queue pairs", "use a device that has them"},
    {TB_VERBS_QP, EINVAL, "21", "the queue pair's depth is refused", "ask fewer slots or smaller ones"},
    {TB_VERBS_QP, ENOMEM, "18, 21", "no room for the queue pair", "ask fewer slots; `ulimit -l` on Linux"},
    {TB_VERBS_QP, 0, "18", "no queue pair", "end who holds RDMA on the device; else reboot"},
    {TB_VERBS_INIT, 0, "18", "INIT is refused", "see `ibv_devinfo -v`; else reboot"},
    {TB_VERBS_DEPTH, 0, "21", "too shallow a queue", "end who holds RDMA on the port, or ask fewer slots"},
    {TB_VERBS_REGISTER, ENOMEM, "20", "no room to register", "100 regions a device; `ulimit -l` on Linux"},
    {TB_VERBS_REGISTER, 0, "20", "the rings are not registered", "100 regions a device, 16384000 B each"},
    {TB_VERBS_CARD, 0, "13, 44", "the cable's other end is another", "compare the matrix with the cabling"},
    {TB_VERBS_RTR, EINVAL, "11-15", "crossed cabling, or an address is lost", "compare cabling, `ifconfig`; else reboot"},
    {TB_VERBS_RTR, ETIMEDOUT, "16", "the peer's GID is not reached", "ping it from this interface; compare cabling"},
    {TB_VERBS_RTR, ENODATA, "17", "resources used up, or idle too long", "end who holds RDMA here; else reboot both"},
    {TB_VERBS_RTR, EBUSY, "18", "queue pairs used up, or stale ones", "end who holds RDMA here; else reboot"},
    {TB_VERBS_RTR, 0, "11-18", "the peer is not reached", "compare cabling and `ifconfig`; else reboot both"},
    {TB_VERBS_RTS, 0, "17, 18", "RTS is refused", "end who holds RDMA here; else reboot"},
    {TB_VERBS_POST, ENOMEM, "21", "too few receives are taken", "end who holds RDMA on the port"},
    {TB_VERBS_POST, 0, "21", "receives are refused", "see `ibv_devinfo -v`; else reboot"},
    {TB_VERBS_READY, 0, "54", "the peer is not as its card said", "the same tbkit on both nodes"},
};

static const char *const STEPS[TB_VERBS_STEPS] = {
    "",     "load library", "list devices", "open device",      "query port", "choose GID", "allocate PD", "create CQ",
    "create QP", "INIT",    "queue depth",  "register memory", "card",       "RTR",        "RTS",         "post receives",
    "ready"};

static const row *row_of(int step, int error) {
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (TABLE[i].step == step && (TABLE[i].error == error || TABLE[i].error == 0))
            return &TABLE[i];
    return NULL;
}

const char *tb_errno_name(int number) {
    static const struct {
        int number;
        const char *name;
    } names[] = {{EPERM, "EPERM"},         {ENOENT, "ENOENT"},           {EIO, "EIO"},
                 {ENXIO, "ENXIO"},         {EAGAIN, "EAGAIN"},           {ENOMEM, "ENOMEM"},
                 {EACCES, "EACCES"},       {EFAULT, "EFAULT"},           {EBUSY, "EBUSY"},
                 {EEXIST, "EEXIST"},       {ENODEV, "ENODEV"},           {EINVAL, "EINVAL"},
                 {EMFILE, "EMFILE"},       {ENOSPC, "ENOSPC"},           {ENOSYS, "ENOSYS"},
                 {ENODATA, "ENODATA"},     {EPROTO, "EPROTO"},           {EOPNOTSUPP, "EOPNOTSUPP"},
                 {ENETDOWN, "ENETDOWN"},   {ENETUNREACH, "ENETUNREACH"}, {ECONNRESET, "ECONNRESET"},
                 {ENOTCONN, "ENOTCONN"},   {ETIMEDOUT, "ETIMEDOUT"},     {ECONNREFUSED, "ECONNREFUSED"},
                 {EHOSTDOWN, "EHOSTDOWN"}, {EHOSTUNREACH, "EHOSTUNREACH"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number)
            return names[i].name;
    return "errno";
}

const char *tb_completion_name(int status) {
    static const char *const names[] = {
        "SUCCESS",       "LOC_LEN_ERR",     "LOC_QP_OP_ERR",    "LOC_EEC_OP_ERR",    "LOC_PROT_ERR",
        "WR_FLUSH_ERR",  "MW_BIND_ERR",     "BAD_RESP_ERR",     "LOC_ACCESS_ERR",    "REM_INV_REQ_ERR",
        "REM_ACCESS_ERR", "REM_OP_ERR",     "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",
        "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",  "INV_EEC_STATE_ERR", "FATAL_ERR",
        "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
    return status >= 0 && (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

static int within(int length, int room) { return length < 0 ? 0 : length < room ? length : room - 1; }

/* Where the line is too long, the detail in its middle is cut. */
static void compose(tb_verbs_error *e, const tb_verbs_ask *ask, const char *said) {
    const row *r = row_of(e->step, e->error);
    char subject[80] = "", number[32] = "", tail[100];
    if (ask)
        snprintf(subject, sizeof subject, "%s to rank %d: ", ask->device, ask->peer);
    if (e->error)
        snprintf(number, sizeof number, "%s (%d): ", tb_errno_name(e->error), e->error);
    int room = (int)sizeof e->words, end = within(snprintf(tail, sizeof tail, "; %s [failure %s]", r->remedy, r->number),
                                                  (int)sizeof tail);
    int at = within(snprintf(e->words, sizeof e->words, "%s%s: %s", subject, STEPS[e->step], number), room - end);
    snprintf(e->words + at, (size_t)(room - at), "%.*s%s", room - 1 - at - end, said[0] ? said : r->cause, tail);
}

int tb_verbs_fail(tb_verbs_error *e, const tb_verbs_ask *ask, int step, int number, const char *detail, ...) {
    char said[200] = "";
    va_list list;
    if (detail) {
        va_start(list, detail);
        vsnprintf(said, sizeof said, detail, list);
        va_end(list);
    }
    e->step = step;
    e->error = number;
    compose(e, ask, said);
    return step;
}
