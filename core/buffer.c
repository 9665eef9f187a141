#include "core/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024 };

void buffer_init(struct buffer *b, size_t cap_limit_bytes) {
    memset(b, 0, sizeof *b);
    b->cap_limit_bytes = cap_limit_bytes != 0 ? cap_limit_bytes : DEFAULT_LIMIT_BYTES;
}

void buffer_init_fixed(struct buffer *b, void *mem, size_t bytes) {
    memset(b, 0, sizeof *b);
    b->data = mem;
    b->cap = bytes;
    b->cap_limit_bytes = bytes;
    b->fixed = true;
}

void buffer_free(struct buffer *b) {
    if (!b->fixed) free(b->data);
    memset(b, 0, sizeof *b);
}

void buffer_clear(struct buffer *b) {
    b->len = 0;
    b->full = false;
}

/* True when n more bytes fit. */
static bool reserve(struct buffer *b, size_t n) {
    if (n <= b->cap - b->len) return true;
    if (b->fixed || b->full || n > b->cap_limit_bytes - b->len) {
        b->full = true;
        return false;
    }
    size_t cap = b->cap != 0 ? b->cap : 256;
    while (cap - b->len < n) cap *= 2;
    if (cap > b->cap_limit_bytes) cap = b->cap_limit_bytes;
    char *data = realloc(b->data, cap);
    if (data == NULL) {
        b->full = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buffer_append(struct buffer *b, const void *bytes, size_t n) {
    if (n == 0 || b->full || !reserve(b, n)) return;
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
}

void buffer_puts(struct buffer *b, const char *s) {
    buffer_append(b, s, strlen(s));
}

void buffer_putc(struct buffer *b, char c) {
    buffer_append(b, &c, 1);
}

void buffer_printf(struct buffer *b, const char *fmt, ...) {
    char small[512];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n < 0) {
        b->full = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        buffer_append(b, small, (size_t)n);
        return;
    }
    if (b->full || !reserve(b, (size_t)n + 1)) return;
    va_start(args, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
}

const char *buffer_cstr(struct buffer *b) {
    if (b->len == b->cap) {
        const bool was_full = b->full;
        if (!reserve(b, 1)) {
            b->full = was_full;
            return NULL;
        }
    }
    b->data[b->len] = '\0';
    return b->data;
}
