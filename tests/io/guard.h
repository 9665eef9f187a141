/* guard.h: memory whose end lies flush against a page that cannot be touched. */
#ifndef LAC_TESTS_IO_GUARD_H
#define LAC_TESTS_IO_GUARD_H

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD_BYTES = 256 * 1024, GUARD_PAGE = 4096 };

struct guard {
    char *end; /* first byte that must not be read */
};

static inline struct guard guard_open(void) {
    char *p = mmap(NULL, GUARD_BYTES + GUARD_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(p != MAP_FAILED);
    const int rc = mprotect(p + GUARD_BYTES, GUARD_PAGE, PROT_NONE);
    assert(rc == 0);
    (void)rc;
    return (struct guard){p + GUARD_BYTES};
}

static inline void guard_close(struct guard *g) {
    munmap(g->end - GUARD_BYTES, GUARD_BYTES + GUARD_PAGE);
}

/* A copy that ends at the guard. */
static inline const char *guard_copy(const struct guard *g, const void *bytes, size_t n) {
    assert(n <= GUARD_BYTES);
    char *at = g->end - n;
    if (n > 0) memcpy(at, bytes, n);
    return at;
}

#endif
