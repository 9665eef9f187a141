/* buffer.h: a byte buffer that is either growable (general heap) or fixed (caller's memory).
 *
 * Writers append; nobody checks each append: a buffer that could not grow remembers it in `full`,
 * drops further bytes, and the user looks once at the end. `cap_limit_bytes` bounds growth
 * (0 = 64 MiB). The bytes are not NUL-terminated unless buffer_cstr() is called.
 */
#ifndef LAC_CORE_BUFFER_H
#define LAC_CORE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct buffer {
    char *data;
    size_t len;
    size_t cap;
    size_t cap_limit_bytes;
    bool fixed; /* data belongs to somebody else and never moves */
    bool full;  /* at least one byte was dropped */
};

void buffer_init(struct buffer *b, size_t cap_limit_bytes);
void buffer_init_fixed(struct buffer *b, void *mem, size_t bytes);
void buffer_free(struct buffer *b);
void buffer_clear(struct buffer *b); /* len = 0, full = false; keeps the memory */
void buffer_append(struct buffer *b, const void *bytes, size_t n);
void buffer_puts(struct buffer *b, const char *s);
void buffer_putc(struct buffer *b, char c);
void buffer_printf(struct buffer *b, const char *fmt, ...) LAC_PRINTF(2, 3);
/* The contents with a NUL behind them, or NULL if there was no room for it. */
const char *buffer_cstr(struct buffer *b);

#endif
