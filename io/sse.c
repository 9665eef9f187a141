#include "io/sse.h"

void sse_begin(struct buffer *out) {
    buffer_append(out, "data: ", 6);
}
void sse_end(struct buffer *out) {
    buffer_append(out, "\n\n", 2);
}

void sse_data(struct buffer *out, const char *bytes, size_t n) {
    sse_begin(out);
    for (size_t i = 0; i < n; i++) {
        const bool cr = bytes[i] == '\r';
        if (!cr && bytes[i] != '\n') {
            buffer_putc(out, bytes[i]);
            continue;
        }
        /* A reader takes CR, LF and CRLF as one line end each. */
        if (cr && i + 1 < n && bytes[i + 1] == '\n') i++;
        buffer_append(out, "\ndata: ", 7);
    }
    sse_end(out);
}
