/* text_span.h: who wrote which bytes of a prompt.
 *
 * A rendered prompt is one text and a list of spans that covers it without gaps, in order;
 * neighbours differ in `from_user`. Bytes of a span with from_user == true came from the request
 * (message text, tool descriptions, documents, keyword arguments): no special token may be
 * recognised where a match would touch even one of them. The spans do not cut the text: merges of a
 * tokenizer run across them.
 */
#ifndef LAC_MODELS_TEXT_SPAN_H
#define LAC_MODELS_TEXT_SPAN_H

#include <stdbool.h>
#include <stdint.h>

struct text_span {
    uint32_t start; /* first byte */
    uint32_t end;   /* one past the last byte */
    bool from_user;
};

#endif
