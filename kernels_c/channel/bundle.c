#include "bundle.h"

static tb_channel *turn(tb_channel *c) {
    tb_bundle *b = c->state;
    tb_channel *part = &b->part[(c->sequence - 1) % (uint32_t)b->count];
    part->sequence = c->sequence;
    part->length = c->length;
    return part;
}

static bool ready(tb_channel *c) {
    tb_channel *part = turn(c);
    return part->provider->ready(part);
}

static uint8_t *payload(tb_channel *c, uint32_t length) {
    tb_channel *part = turn(c);
    return part->provider->payload(part, length);
}

static tb_head head(tb_channel *c) {
    tb_channel *part = turn(c);
    return part->provider->head(part);
}

static void commit(tb_channel *c, tb_head h) {
    tb_channel *part = turn(c);
    part->provider->commit(part, h);
    c->sequence++;
}

static void release(tb_channel *c) {
    tb_channel *part = turn(c);
    part->provider->release(part);
    c->sequence++;
}

/* What has something to wait for: the cable whose turn it is, or one that still holds frames back. */
static tb_watch watch(tb_channel *c) {
    tb_bundle *b = c->state;
    tb_channel *part = turn(c);
    for (int i = 0; i < b->count; i++)
        if (b->part[i].provider->flushed && !b->part[i].provider->flushed(&b->part[i]))
            part = &b->part[i];
    return part->provider->watch(part);
}

static int progress(tb_channel *c, tb_fault *fault) {
    tb_bundle *b = c->state;
    int status = TB_OK;
    for (int i = 0; i < b->count && status == TB_OK; i++)
        status = b->part[i].provider->progress(&b->part[i], fault);
    return status;
}

static bool flushed(tb_channel *c) {
    tb_bundle *b = c->state;
    bool all = true;
    for (int i = 0; i < b->count; i++)
        all = (!b->part[i].provider->flushed || b->part[i].provider->flushed(&b->part[i])) && all;
    return all;
}

static const tb_provider provider = {"bundle", ready, payload, head, commit, release, watch, progress, flushed};

void tb_bundle_end(tb_channel *c, tb_bundle *b, int rank, int peer) {
    uint32_t slot = b->part[0].slot_bytes;
    for (int i = 1; i < b->count; i++)
        slot = b->part[i].slot_bytes < slot ? b->part[i].slot_bytes : slot;
    *c = (tb_channel){
        .provider = &provider, .state = b, .sequence = 1, .slot_bytes = slot, .rank = rank, .peer = peer};
}
