#include "io/body.h"

#include <stdlib.h>
#include <string.h>

bool body_append(struct body *b, const char *bytes, size_t n) {
    if (n > BODY_MAX_BYTES - b->bytes) return false;
    const size_t end = b->bytes + n;
    for (size_t i = (b->bytes + BODY_BLOCK_BYTES - 1) / BODY_BLOCK_BYTES;
         i * BODY_BLOCK_BYTES < end; i++) {
        if (b->blocks[i] != NULL) continue;
        b->blocks[i] = malloc(BODY_BLOCK_BYTES);
        if (b->blocks[i] == NULL) return false;
    }
    while (n > 0) {
        const size_t in = b->bytes % BODY_BLOCK_BYTES;
        size_t take = BODY_BLOCK_BYTES - in;
        if (take > n) take = n;
        memcpy(b->blocks[b->bytes / BODY_BLOCK_BYTES] + in, bytes, take);
        b->bytes += take;
        bytes += take;
        n -= take;
    }
    return true;
}

size_t body_at(const struct body *b, size_t at, const char **out) {
    if (at >= b->bytes) return 0;
    const size_t in = at % BODY_BLOCK_BYTES;
    const size_t left = b->bytes - at;
    *out = b->blocks[at / BODY_BLOCK_BYTES] + in;
    return left < BODY_BLOCK_BYTES - in ? left : BODY_BLOCK_BYTES - in;
}

void body_clear(struct body *b) {
    for (size_t i = 0; i < BODY_MAX_BLOCKS && b->blocks[i] != NULL; i++) free(b->blocks[i]);
    memset(b, 0, sizeof *b);
}
