/* The table of rules, and how their text is read. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock_state.h"

#define WORDS 5

typedef struct row {
    const char *name;
    size_t at;
    int64_t apple, soft_roce;
    const char *words[WORDS]; /* value i is words[i]; none: a number or off */
} row;

#define ROW(field) #field, offsetof(tbmock_rules, field)
#define SWITCH {"off", "on"}

static const row TABLE[] = {
    {ROW(frames), 1, 0, SWITCH},
    {ROW(credits), CREDITS_HOLD, CREDITS_DROP, {"hold", "drop"}},
    {ROW(port_frames), 4095, TBMOCK_OFF, {0}},
    {ROW(queue_frames), 4095, TBMOCK_OFF, {0}},
    {ROW(depth), TBMOCK_OFF, TBMOCK_OFF, {0}},
    {ROW(recv_depth), 1023, TBMOCK_OFF, {0}},
    {ROW(max_qp), 10, TBMOCK_OFF, {0}},
    {ROW(max_qp_says), 11, TBMOCK_OFF, {0}},
    {ROW(max_pd), 11, TBMOCK_OFF, {0}},
    {ROW(max_cq), 11, TBMOCK_OFF, {0}},
    {ROW(max_mr), 100, TBMOCK_OFF, {0}},
    {ROW(max_mr_size), 16384000, TBMOCK_OFF, {0}},
    {ROW(max_msg), 16773120, 8388608, {0}},
    {ROW(page), 16384, TBMOCK_OFF, {0}},
    {ROW(early_recv), 0, 1, {"refuse", "accept"}},
    {ROW(qp_types), 0, 0, {"uc", "any"}},
    {ROW(opcodes), 0, 1, {"send", "any"}},
    {ROW(max_sge), 1, TBMOCK_OFF, {0}},
    {"inline", offsetof(tbmock_rules, max_inline), 0, TBMOCK_OFF, {0}},
    {ROW(mr_flags), FLAGS_ANY, FLAGS_ANY, {"any", "local", "all"}},
    {ROW(init_access), ACCESS_ANY, ACCESS_ANY, {"any", "zero", "all"}},
    {ROW(mtu), MTU_ANY, MTU_ANY, {"any", "1024", "4096"}},
    {ROW(gids), GIDS_APPLE, GIDS_APPLE, {"apple", "ipv4_at_2", "fe80", "uuid", "several"}},
    {ROW(rtr_gid), 0, 1, {"ipv4", "any"}},
    {ROW(late_mr), 0, 1, {"unmapped", "mapped"}},
    {ROW(alias), 1, 0, SWITCH},
    {ROW(panic), 1, 0, SWITCH},
    {ROW(wedge), 2, TBMOCK_OFF, {0}},
    {ROW(leak), 0, 0, SWITCH},
    {ROW(ring), 1 << 20, 1 << 20, {0}},
};
enum { ROWS = sizeof TABLE / sizeof TABLE[0] };

tbmock_rules tbmock_rule;

int tbmock_say(const char *what, const char *subject, const char *remedy) {
    fprintf(stderr, "tbmock: %s: \"%s\": %s\n", what, subject, remedy);
    return EINVAL;
}

char *tbmock_trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);)
        *--end = '\0';
    return text;
}

static int64_t *place(const row *r) { return (int64_t *)((char *)&tbmock_rule + r->at); }

static void preset(bool apple) {
    for (int i = 0; i < ROWS; i++)
        *place(&TABLE[i]) = apple ? TABLE[i].apple : TABLE[i].soft_roce;
}

static int set_word(const row *r, const char *value) {
    for (int i = 0; i < WORDS && r->words[i]; i++)
        if (strcmp(value, r->words[i]) == 0) {
            *place(r) = i;
            return 0;
        }
    return tbmock_say("TBKIT_MOCK_RULES: no such value", value, r->name);
}

static int set_number(const row *r, const char *value) {
    char *end;
    if (strcmp(value, "off") == 0) {
        *place(r) = TBMOCK_OFF;
        return 0;
    }
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno || end == value || *end || number < 0)
        return tbmock_say("TBKIT_MOCK_RULES: a number or off is wanted", value, r->name);
    *place(r) = number;
    return 0;
}

static int set(const char *name, const char *value) {
    if (strcmp(name, "preset") == 0) {
        bool apple = strcmp(value, "apple") == 0;
        if (!apple && strcmp(value, "soft_roce") != 0)
            return tbmock_say("TBKIT_MOCK_RULES: no such preset", value, "apple or soft_roce");
        preset(apple);
        return 0;
    }
    for (int i = 0; i < ROWS; i++)
        if (strcmp(name, TABLE[i].name) == 0)
            return TABLE[i].words[0] ? set_word(&TABLE[i], value) : set_number(&TABLE[i], value);
    return tbmock_say("TBKIT_MOCK_RULES: no such rule", name, "mock.h has the list");
}

/* The ring holds at least one record head and one line of data, in whole lines. */
static int check(void) {
    int64_t ring = tbmock_rule.ring;
    if (ring < 4096 || ring > (int64_t)1 << 30 || ring % 64 != 0)
        return tbmock_say("TBKIT_MOCK_RULES: out of range", "ring", "4096 to 2^30 bytes, a multiple of 64");
    if (tbmock_rule.page == 0)
        return tbmock_say("TBKIT_MOCK_RULES: out of range", "page", "at least 1, or off");
    return 0;
}

int tbmock_read_rules(const char *text) {
    char *copy = strdup(text ? text : ""), *rest = copy, *item;
    int error = copy ? 0 : ENOMEM;
    preset(true);
    while (!error && (item = strsep(&rest, ",;\n"))) {
        item = tbmock_trim(item);
        char *value = strchr(item, '=');
        if (value)
            *value++ = '\0';
        if (*item)
            error = set(tbmock_trim(item), value ? tbmock_trim(value) : "on");
    }
    free(copy);
    return error ? error : check();
}
