/* What comes from another process, thrown at all that reads it: cards, hellos, frames on a stream.
 *
 * The first byte chooses the reader, the second whether checksums are made right, so that the fuzzer gets behind
 * them. With clang -fsanitize=fuzzer it is a fuzzer; compiled with -DTB_REPLAY it reads the files that it is given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "card.h"
#include "check.h"
#include "crc32c.h"
#include "hello.h"
#include "tcp.h"
#include "wire.h"

#define INPUT_MAX (1 << 16)

static void read_card(uint8_t *data, size_t bytes, int mend) {
    static tb_card card;
    uint32_t crc, stated = (uint32_t)bytes;
    if (mend && bytes >= 16) {
        memcpy(data + 12, &stated, 4); /* the length that the head states */
        crc = tb_crc32c(0, data, bytes - 4);
        memcpy(data + bytes - 4, &crc, 4);
    }
    const char *wrong = tb_card_read(&card, 3, data, bytes);
    if (wrong)
        return;
    static uint8_t again[TB_CARD_MAX];
    size_t written = tb_card_write(&card, 3, again);
    CHECK(written <= TB_CARD_MAX);
    CHECK(tb_card_read(&card, 3, again, written) == NULL);
}

static void read_hello(const uint8_t *data, size_t bytes) {
    tb_hello hello = {0};
    uint8_t token[TB_TOKEN_BYTES] = {0};
    memcpy(&hello, data, bytes < sizeof hello ? bytes : sizeof hello);
    if (tb_hello_knows(&hello, token) && !tb_hello_check(&hello, 3, 3))
        CHECK(hello.from < 3 && hello.to < 3 && hello.cable < 3 && hello.purpose < TB_PURPOSES);
}

/* Frames one behind the other, each sealed where checksums are to be right. */
static void mend_frames(uint8_t *data, size_t bytes) {
    while (bytes >= TB_WIRE_HEAD) {
        tb_wire_head h;
        memcpy(&h, data, sizeof h);
        size_t length = tb_wire_length(&h) % 2048;
        h.head.extent = (h.head.extent & ~0xffffffffull) | length;
        h.head.identity = (h.head.identity & ~0xffff00000000ull) | (uint64_t)TB_FRAME_MAGIC << 32;
        if (bytes < TB_WIRE_HEAD + length)
            return;
        memcpy(data, &h, sizeof h);
        tb_wire_seal(data);
        data += TB_WIRE_HEAD + length;
        bytes -= TB_WIRE_HEAD + length;
    }
}

static void read_stream(uint8_t *data, size_t bytes, int mend) {
    int ends[2];
    tb_channel c;
    tb_fault fault = {0};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    if (mend)
        mend_frames(data, bytes);
    CHECK(send(ends[1], data, bytes, 0) == (ssize_t)bytes || bytes == 0);
    close(ends[1]);
    tb_tcp *t = tb_tcp_new(ends[0]);
    CHECK(t);
    tb_tcp_receiver(&c, t, 0, 1);
    while (c.provider->ready(&c)) {
        tb_head h = c.provider->head(&c);
        uint32_t length = (uint32_t)h.extent;
        volatile uint8_t sum = 0;
        const uint8_t *payload = c.provider->payload(&c, length);
        for (uint32_t i = 0; i < length; i++)
            sum = (uint8_t)(sum + payload[i]);
        c.provider->release(&c);
    }
    CHECK(c.provider->progress(&c, &fault) != TB_OK); /* damaged, or at its end */
    tb_tcp_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    if (bytes < 2 || bytes > INPUT_MAX)
        return 0;
    uint8_t *data = malloc(bytes); /* of exactly this size: the sanitizer sees a step beyond */
    CHECK(data);
    memcpy(data, input + 2, bytes - 2);
    switch (input[0] % 3) {
    case 0: read_card(data, bytes - 2, input[1] & 1); break;
    case 1: read_hello(data, bytes - 2); break;
    default: read_stream(data, bytes - 2, input[1] & 1);
    }
    free(data);
    return 0;
}

#if defined(TB_REPLAY)
int main(int count, char **names) {
    static uint8_t input[INPUT_MAX];
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        CHECK(file);
        size_t bytes = fread(input, 1, sizeof input, file);
        fclose(file);
        LLVMFuzzerTestOneInput(input, bytes);
    }
    printf("%d inputs replayed\n", count - 1);
    return 0;
}
#endif
