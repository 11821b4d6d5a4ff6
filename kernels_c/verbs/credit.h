/* Slots, lengths and credits of a cable, as pure functions of what both ends know.
 *
 * A cable has two queue pairs. Messages of the small one are single 4 KiB frames; a channel frame takes as many of
 * them in a row as its head and payload need, up to `run`. Messages of the large one are slots of `frames` 4 KiB
 * frames, filled up with at least one byte of the last, so that both ends post the same number of frames as Apple
 * demands. Which class a frame takes follows from its length alone.
 *
 * A credit is a slot that the peer is known to have read and posted again. Each small message carries how many slots
 * of each class its sender has read; a large one does not, because the two queue pairs may overtake each other. Where
 * nothing goes back, a control frame is due once half a window was read. It takes one of TB_CONTROL_SLOTS small slots
 * that data never use, and is consumed at once; every frame, of either class, tells how many control frames its
 * sender has consumed.
 *
 * Credit return cannot deadlock. Let A send to B, w be the window of a class, h = ceil(w / 2), n <= h the slots of a
 * frame (tb_lanes_between sees to that), and all counts be of that class.
 * (1) Where a control frame falls due, one of the control slots is free. B owes one after it read h more slots than
 *     it last told. Let C1, C2, C3 fall due for the same class, and C1 have told T. For C3, B read up to T + 2h >= T + w
 *     slots. A could send that many only after it knew of T, so after C1 (small messages keep their order), so the
 *     last of the frames that B read acknowledges C1. Hence at most two a class are unacknowledged, four in all.
 * (2) A sender in want gets its slots. If it lacks n, more than w - n >= w - h slots, so at least h, are sent and not
 *     known to be read. Once B has read them it owes a control frame, and by (1) it can send it.
 * (3) Control frames never make control frames fall due, so they end. */
#ifndef TB_CREDIT_H
#define TB_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "verbs.h"
#include "wire.h"

#define TB_FRAME_BYTES 4096u
#define TB_CONTROL_SLOTS 4u /* two a class */
#define TB_RUN_MAX 8u       /* small slots of a frame */
#define TB_AHEAD 8u         /* frames that a sender may be ahead, where the rings allow it */
#define TB_WINDOW_MAX 16384u

/* One direction, derived alike by both ends. */
typedef struct tb_lanes {
    uint32_t window[TB_CLASSES]; /* slots sent and not known to be read; 0: the class is not used */
    uint32_t run, frames;
} tb_lanes;

tb_lanes tb_lanes_between(const tb_verbs_ready *sender, const tb_verbs_ready *receiver, uint32_t frames);
uint32_t tb_lanes_longest(const tb_lanes *lanes); /* payload */
int tb_lanes_class(const tb_lanes *lanes, uint32_t length);
uint32_t tb_lanes_slots(const tb_lanes *lanes, uint32_t length);
uint32_t tb_lanes_bytes(const tb_lanes *lanes, uint32_t length); /* that travel: head, payload, filling */

/* Counts of one end, modulo 2^16. */
typedef struct tb_credits {
    tb_lanes out, in;
    uint16_t sent[TB_CLASSES], granted[TB_CLASSES]; /* slots of ours; how many of them the peer says it has read */
    uint16_t read[TB_CLASSES], told[TB_CLASSES];    /* slots of the peer's; how many of them it was told */
    uint16_t control_sent, control_acknowledged, control_taken;
    uint16_t frames_out[TB_CLASSES], frames_in[TB_CLASSES]; /* so that a lost frame shows */
} tb_credits;

bool tb_credits_room(const tb_credits *credits, uint32_t length);
bool tb_credits_owed(const tb_credits *credits); /* a control frame is due */
bool tb_credits_control_free(const tb_credits *credits);
/* Fills credit and control of a frame that leaves on queue pair `class`, and counts it. */
void tb_credits_write(tb_credits *credits, tb_wire_head *head, int class);
/* Takes them from one that came: TB_OK, or TB_CORRUPT with words where a frame before it is missing, or where the
 * peer claims to have read what was not sent. */
int tb_credits_take(tb_credits *credits, const tb_wire_head *head, int class, tb_fault *fault);

#endif
