/* region.h: one big block for a structure that is made at start-up and lives to the end (backend
 * memory, step, slots). Zero-filled, 64-byte aligned at least, in an arena of its own
 * (alloc/arena.h).
 *
 * Errors: STATUS_NO_MEMORY, naming the region; *r is zeroed.
 * Under ASan the bytes behind the region are poisoned.
 * Ownership: whoever took it frees it; region_free of a zeroed region does nothing.
 */
#ifndef LAC_ALLOC_REGION_H
#define LAC_ALLOC_REGION_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

struct arena;

struct region {
    void *data;
    size_t bytes;
    struct arena *arena;
};

/* name: for messages, outlives the region. align: a power of two, 0 = 64. */
enum status region_take(struct region *r, const char *name, size_t bytes, size_t align,
                        bool huge_pages, bool mlock, struct error *e);
void region_free(struct region *r);

#endif
