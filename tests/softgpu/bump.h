/* bump.h: memory that is given back all at once. bump_take() returns zeroed bytes aligned to 16, or
 * NULL when the host has none. Sizes up to SIZE_MAX/2. Not thread-safe.
 */
#ifndef LAC_TESTS_SOFTGPU_BUMP_H
#define LAC_TESTS_SOFTGPU_BUMP_H

#include <stddef.h>

struct bump_chunk;
struct bump {
    struct bump_chunk *head;
    size_t used, cap; /* of head */
};

void *bump_take(struct bump *b, size_t bytes);
char *bump_string(struct bump *b, const char *s, size_t len); /* a copy with a NUL, or NULL */
/* `items` with room for one more behind n of size item_bytes: itself, or a copy twice as large;
 * NULL without memory. *cap is the room, 0 at first. */
void *bump_grow(struct bump *b, void *items, size_t n, size_t *cap, size_t item_bytes);
void bump_free(struct bump *b);

#endif
