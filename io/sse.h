/* sse.h: Server-Sent Events (WHATWG HTML, 9.2) in a buffer: events of one `data` field each.
 * The payload of sse_begin/sse_end must hold no line break (JSON without layout has none);
 * sse_data takes any bytes and splits them into lines.
 */
#ifndef LAC_IO_SSE_H
#define LAC_IO_SSE_H

#include "core/buffer.h"

#define SSE_HEADERS                                                                                \
    "Cache-Control: no-cache\r\n"                                                                  \
    "X-Accel-Buffering: no\r\n"
#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

void sse_begin(struct buffer *out);
void sse_end(struct buffer *out);
void sse_data(struct buffer *out, const char *bytes, size_t n);

#endif
