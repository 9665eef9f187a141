#include "io/json_quote.h"

#include <string.h>

#include "core/json_writer.h"

void json_quote(struct buffer *out, const char *s, size_t n) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_string_n(&j, s, n);
}

void json_quote_inner(struct buffer *out, const char *s, size_t n) {
    const size_t start = out->len;
    json_quote(out, s, n);
    if (out->full) return;
    /* The writer's quotes are taken off again. */
    out->len -= 1;
    memmove(out->data + start, out->data + start + 1, out->len - start - 1);
    out->len -= 1;
}
