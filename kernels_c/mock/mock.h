/* A false librdma with Apple's rules: the 18 verbs symbols, data moved between processes of one machine.
 *
 * A verbs user loads libtbmock in place of librdma or libibverbs (TBKIT_LIBRDMA=/path/libtbmock.so). Three variables,
 * read at the first ibv_get_device_list, say what it plays. A word that it does not know is one line on standard
 * error, and no device is listed.
 *
 * TBKIT_MOCK: which machine this process is, and the cables. Fields part at ';' or at the end of a line.
 *
 *     namespace=NAME     processes of one namespace meet; other namespaces never do. Default "default"
 *     node=NAME          the machine that this process plays. All its processes share the devices' limits
 *     cables=END-END,…   END is NODE:DEVICE or NODE:DEVICE/IPV4; without one, cable k has 169.254.k.1 and .2
 *     devices=END,…      devices without a cable: their port is down
 *     file=PATH          reads the fields of a file first (a line that begins with # is a comment)
 *
 *     TBKIT_MOCK="namespace=try1; node=mac1; cables=mac1:rdma_en2-mac2:rdma_en3"
 *
 * TBKIT_MOCK_RULES: what differs from Apple's rules, `name=value` with commas between. `off` lifts a rule. The table
 * stands in mock_rules.c; preset=soft_roce, placed first, gives what rdma_rxe does.
 *
 *     frames=on            message and receive must have the same number of 4 KiB frames
 *     credits=hold         hold | drop: a send that meets no receive is held, or lost as soft-RoCE loses it
 *     port_frames=4095     frames outstanding on a port, each direction by itself, over all queue pairs
 *     queue_frames=4095    the most max_send_wr and max_recv_wr may ask, in 4 KiB frames
 *     depth=off            the depth really given, read back with ibv_query_qp
 *     recv_depth=1023      frames of receives a queue pair really takes, never told
 *     max_qp=10  max_qp_says=11  max_pd=11  max_cq=11  max_mr=100  (per device, over all its processes)
 *     max_mr_size=16384000 max_msg=16773120  page=16384 (alignment of a region)
 *     early_recv=refuse    refuse | accept: receives before RTS
 *     qp_types=uc          uc | any        opcodes=send   send | any (SEND_WITH_IMM too)
 *     max_sge=1  inline=0  (at most 4 and 64)
 *     mr_flags=any         any | local (LOCAL_WRITE alone) | all (it alone is refused)
 *     init_access=any      any | zero | all: qp_access_flags that INIT accepts
 *     mtu=any              any | 1024 | 4096: path MTU that RTR accepts
 *     gids=apple           apple | ipv4_at_2 | fe80 | uuid | several
 *     rtr_gid=ipv4         ipv4 | any: kind of address that RTR accepts
 *     late_mr=unmapped     unmapped | mapped: regions registered after RTR
 *     alias=on             what lies beyond a 4 GiB boundary inside a region is not received
 *     panic=on             deregistering a region in use ends the process as a kernel panic would end the Mac
 *     wedge=2              failing RTRs in a row that a device bears; one more and all its calls fail
 *     leak=off             on: what a killed process held stays counted
 *     ring=1048576         bytes in flight a direction, before a sender waits for its receiver to poll
 *
 * TBKIT_MOCK_FAULTS: what goes wrong, and when: FAULT[=VALUE][@CALL[:N[+]]] or FAULT[=VALUE]@file:PATH, commas between.
 * N is the N-th such call of this process, N+ that one and all after it, no N all of them; a file fires once it is
 * there, at the next call. Without @ it fires at once. post_send and post_recv count work requests.
 *
 *     error=E       the call fails; E is a name (EINVAL) or Apple's number (22, 60, 16, 96, 12, 102)
 *     hang          the call never returns
 *     crash         SIGSEGV in the call          kill          SIGKILL in the call
 *     pull[=DEV]    the cable is out: the next post at either end is a SIGSEGV, polls find nothing
 *     down[=DEV]    the port is down: alloc_pd gives NULL, nothing moves
 *     lose          the message of that post_send is lost        corrupt       one bit of it is turned
 *
 *     TBKIT_MOCK_FAULTS="error=60@rtr:1, pull@post_recv:100"
 *
 * A completion queue that overflows gives what it holds, then -1 for ever. A namespace holds 64 devices and 64
 * processes; it begins anew, as a Mac after a reboot, when its last process has ended.
 *
 * Calls: get_device_list open_device query_device query_port query_gid alloc_pd reg_mr create_cq create_qp init rtr
 * rts modify_qp query_qp post_send post_recv poll_cq destroy_qp dereg_mr destroy_cq dealloc_pd close_device. */
#ifndef TBMOCK_H
#define TBMOCK_H

#include <stdint.h>

#define TBMOCK_API __attribute__((visibility("default")))

/* Arms faults in this process, in the syntax above; 0 or EINVAL. Only after devices were listed. */
TBMOCK_API int tbmock_fault(const char *faults);

/* How often a call was made by this process; UINT64_MAX for a name that is no call. */
TBMOCK_API uint64_t tbmock_calls(const char *call);

#endif
