/* Prints what tb_verbs_devices finds, a device a line, or its error with exit code 1. */
#include <stdio.h>

#include "port.h"

static void print(void *count, const tb_verbs_device *d) {
    ++*(int *)count;
    printf("%s %s error %d lid %d mtu %d max_qp %d gids %d:", d->name, d->state, d->error, d->lid, d->mtu, d->max_qp,
           d->gids);
    for (int i = 0; i < d->gids && i < TB_VERBS_GIDS; i++) {
        char text[46];
        tb_gid_text(text, d->gid[i].raw);
        printf(" [%d] %s", d->gid[i].index, text);
    }
    printf("\n");
}

int main(void) {
    tb_verbs_error error;
    int count = 0;
    if (tb_verbs_devices(0, print, &count, &error) == 0)
        return count == 0;
    printf("%s\n", error.words);
    return 1;
}
