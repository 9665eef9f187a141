/* bump.h: many small allocations that are freed together, from the general heap.
 * An empty one is all zeros.
 */
#ifndef LAC_IO_BUMP_H
#define LAC_IO_BUMP_H

#include <stddef.h>

struct bump_block;
struct bump {
    struct bump_block *blocks;
    size_t left; /* in the newest block */
    char *at;
};

/* 16-aligned, not zeroed; NULL when there is no memory. */
void *bump_take(struct bump *a, size_t bytes);
void bump_free(struct bump *a);

#endif
