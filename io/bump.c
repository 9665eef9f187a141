#include "io/bump.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bump_block {
    struct bump_block *next;
    size_t bytes; /* keeps what follows 16-aligned */
};

enum { BLOCK_BYTES = 4096 - sizeof(struct bump_block) };

static char *new_block(struct bump *a, size_t bytes) {
    struct bump_block *b = malloc(sizeof *b + bytes);
    if (b == NULL) return NULL;
    b->next = a->blocks;
    b->bytes = bytes;
    a->blocks = b;
    return (char *)(b + 1);
}

void *bump_take(struct bump *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > a->left) {
        if (bytes > BLOCK_BYTES / 4) return new_block(a, bytes);
        char *at = new_block(a, BLOCK_BYTES);
        if (at == NULL) return NULL;
        a->at = at;
        a->left = BLOCK_BYTES;
    }
    char *out = a->at;
    a->at += bytes;
    a->left -= bytes;
    return out;
}

void bump_free(struct bump *a) {
    while (a->blocks != NULL) {
        struct bump_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
    memset(a, 0, sizeof *a);
}
