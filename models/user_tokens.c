#include "models/user_tokens.h"

/* The token whose first byte is at or behind `byte`, at or before token `i`, whose own is `*at`. */
static uint32_t step_back(const struct tokenizer *t, const uint32_t *ids, uint32_t i, size_t *at,
                          size_t byte) {
    char none[1];
    while (i > 0) {
        const size_t bytes = tokenizer_piece(t, ids[i - 1], true, none, 0);
        if (*at < bytes || *at - bytes < byte) return i;
        *at -= bytes;
        i--;
    }
    return i;
}

struct token_range user_tokens(const struct tokenizer *t, const uint32_t *ids, size_t n,
                               size_t text_bytes, const struct text_span *spans, size_t n_spans) {
    struct token_range r = {(uint32_t)n, (uint32_t)n};
    size_t s = n_spans, at = text_bytes;
    /* A prompt that ends in the request's own text continues it. */
    if (s > 0 && spans[s - 1].from_user) s--;
    uint32_t i = (uint32_t)n;
    for (bool any = false; s > 0; s--) {
        const struct text_span *p = &spans[s - 1];
        if (!p->from_user) continue;
        i = step_back(t, ids, i, &at, p->end);
        if (!any) r.end = i;
        any = true;
        i = step_back(t, ids, i, &at, p->start);
        r.first = i;
        if (r.end - r.first >= USER_TOKENS_LEAST) break;
    }
    if (r.first > r.end || r.first == n) r.first = r.end;
    return r;
}
