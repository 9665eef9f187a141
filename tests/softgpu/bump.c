#include "tests/softgpu/bump.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bump_chunk {
    struct bump_chunk *next;
    size_t pad; /* keeps what follows aligned to 16 */
};

enum { CHUNK_BYTES = 64 << 10 };

void *bump_take(struct bump *b, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!b->head || b->cap - b->used < bytes) {
        const size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        struct bump_chunk *c = calloc(1, sizeof *c + room);
        if (!c) return NULL;
        c->next = b->head;
        b->head = c;
        b->used = 0;
        b->cap = room;
    }
    void *p = (char *)(b->head + 1) + b->used;
    b->used += bytes;
    return p;
}

char *bump_string(struct bump *b, const char *s, size_t len) {
    char *p = bump_take(b, len + 1);
    if (p) memcpy(p, s, len);
    return p;
}

void *bump_grow(struct bump *b, void *items, size_t n, size_t *cap, size_t item_bytes) {
    if (n < *cap) return items;
    const size_t more = *cap ? *cap * 2 : 8;
    void *p = bump_take(b, more * item_bytes);
    if (!p) return NULL;
    if (n) memcpy(p, items, n * item_bytes);
    *cap = more;
    return p;
}

void bump_free(struct bump *b) {
    for (struct bump_chunk *c = b->head; c;) {
        struct bump_chunk *next = c->next;
        free(c);
        c = next;
    }
    memset(b, 0, sizeof *b);
}
