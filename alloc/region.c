#include "alloc/region.h"

#include <stdint.h>

#include "alloc/arena.h"
#include "alloc/poison.h"
#include "core/check.h"

enum { LEAST_ALIGN = 64 };

enum status region_take(struct region *r, const char *name, size_t bytes, size_t align,
                        bool huge_pages, bool mlock, struct error *e) {
    *r = (struct region){0};
    CHECK(bytes > 0);
    if (align < LEAST_ALIGN) align = LEAST_ALIGN;
    if (bytes > SIZE_MAX / 4) {
        return error_set(e, STATUS_NO_MEMORY, NULL, "%s: %zu bytes are more than can be addressed",
                         name, bytes);
    }
    /* Granules of 8 bytes are poisoned whole, so the red zone starts at the next one. */
    const size_t rounded = (bytes + 7) / 8 * 8;
    const size_t whole = rounded + POISON_RED_ZONE_BYTES;
    const struct arena_config cfg = {.name = name,
                                     .bytes = whole,
                                     .max_takes = 1,
                                     .align = align,
                                     .huge_pages = huge_pages,
                                     .mlock = mlock};
    struct arena *a;
    enum status s = arena_open(&cfg, &a, e);
    if (s != STATUS_OK) return s;
    void *p;
    s = arena_take(a, whole, align, &p, e);
    if (s != STATUS_OK) {
        arena_close(a);
        return s;
    }
    poison((uint8_t *)p + rounded, whole - rounded);
    *r = (struct region){.data = p, .bytes = bytes, .arena = a};
    return STATUS_OK;
}

void region_free(struct region *r) {
    if (r->data != NULL) {
        /* The addresses may be mapped again by somebody else. */
        unpoison(r->data, (r->bytes + 7) / 8 * 8 + POISON_RED_ZONE_BYTES);
        arena_close(r->arena);
    }
    *r = (struct region){0};
}
