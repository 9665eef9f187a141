/* json_quote.h: one JSON string by itself, quoted and escaped as core/json_writer.h does it.
 */
#ifndef LAC_IO_JSON_QUOTE_H
#define LAC_IO_JSON_QUOTE_H

#include "core/buffer.h"

void json_quote(struct buffer *out, const char *s, size_t n);
/* Without the quotes. */
void json_quote_inner(struct buffer *out, const char *s, size_t n);

#endif
