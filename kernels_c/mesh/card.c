#include "card.h"

#include <stdbool.h>
#include <string.h>

#include "crc32c.h"

typedef struct head {
    uint32_t magic;
    uint16_t version, cables;
    uint8_t rank, size, unused[2];
    uint32_t bytes; /* of the whole card, the CRC at its end included */
    uint8_t salt[TB_TOKEN_BYTES];
} head;

typedef struct entry {
    uint16_t port;
    uint8_t holds, unused;
} entry;

static uint8_t *put(uint8_t *at, const void *part, size_t bytes) {
    memcpy(at, part, bytes);
    return at + bytes;
}

static bool get(const uint8_t **at, const uint8_t *end, void *part, size_t bytes) {
    if ((size_t)(end - *at) < bytes)
        return false;
    memcpy(part, *at, bytes);
    *at += bytes;
    return true;
}

size_t tb_card_write(const tb_card *card, int cables, uint8_t *out) {
    uint8_t *at = out + sizeof(head);
    for (int c = 0; c < cables; c++) {
        entry e = {.port = card->port[c], .holds = card->holds[c]};
        at = put(at, &e, sizeof e);
        if (e.holds & TB_CARD_VERBS)
            at = put(at, &card->verbs[c], sizeof card->verbs[c]);
        if (e.holds & TB_CARD_READY)
            at = put(at, &card->ready[c], sizeof card->ready[c]);
    }
    head h = {.magic = TB_CARD_MAGIC,
              .version = TB_CARD_VERSION,
              .cables = (uint16_t)cables,
              .rank = (uint8_t)card->rank,
              .size = (uint8_t)card->size,
              .bytes = (uint32_t)(at - out) + 4};
    memcpy(h.salt, card->salt, sizeof h.salt);
    memcpy(out, &h, sizeof h);
    uint32_t crc = tb_crc32c(0, out, (size_t)(at - out));
    memcpy(at, &crc, sizeof crc);
    return h.bytes;
}

static const char *read_head(head *h, int cables, const uint8_t *data, size_t bytes) {
    uint32_t crc;
    if (bytes < sizeof *h + 4)
        return "it is too short";
    memcpy(h, data, sizeof *h);
    if (h->magic != TB_CARD_MAGIC)
        return "it is no card of tbkit";
    if (h->version != TB_CARD_VERSION)
        return "it is of another version of tbkit: make the nodes' versions equal";
    if (h->bytes != bytes)
        return "its length is not the one that it states";
    memcpy(&crc, data + bytes - 4, 4);
    if (crc != tb_crc32c(0, data, bytes - 4))
        return "its CRC-32C is wrong";
    return h->cables == cables ? NULL : "it is of another cabling";
}

const char *tb_card_read(tb_card *card, int cables, const uint8_t *data, size_t bytes) {
    head h;
    const char *wrong = read_head(&h, cables, data, bytes);
    if (wrong)
        return wrong;
    memset(card, 0, sizeof *card);
    card->rank = h.rank;
    card->size = h.size;
    memcpy(card->salt, h.salt, sizeof card->salt);
    const uint8_t *at = data + sizeof h, *end = data + bytes - 4;
    for (int c = 0; c < cables; c++) {
        entry e;
        if (!get(&at, end, &e, sizeof e))
            return "it ends before its cables do";
        card->port[c] = e.port;
        card->holds[c] = e.holds;
        if (e.holds & TB_CARD_VERBS && !get(&at, end, &card->verbs[c], sizeof card->verbs[c]))
            return "it ends within a queue pair's entry";
        if (e.holds & TB_CARD_READY && !get(&at, end, &card->ready[c], sizeof card->ready[c]))
            return "it ends within a queue pair's readiness";
    }
    return at == end ? NULL : "something stands behind its last cable";
}
