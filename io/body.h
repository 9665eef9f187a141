/* body.h: a request's body as it arrives: blocks of 64 KiB from the general heap, so that nothing
 * is copied as it grows; freed when the request has been read. Limit: BODY_MAX_BYTES; the caller
 * enforces its own smaller one before it appends.
 */
#ifndef LAC_IO_BODY_H
#define LAC_IO_BODY_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BODY_BLOCK_BYTES = 64 * 1024,
    BODY_MAX_BYTES = 16 * 1024 * 1024,
    BODY_MAX_BLOCKS = BODY_MAX_BYTES / BODY_BLOCK_BYTES,
};

struct body {
    size_t bytes;
    char *blocks[BODY_MAX_BLOCKS];
};

/* false: over the limit or out of memory; the body is then as it was. */
bool body_append(struct body *b, const char *bytes, size_t n);
/* The contiguous run that starts at `at`; 0 at the end. */
size_t body_at(const struct body *b, size_t at, const char **out);
void body_clear(struct body *b);

#endif
