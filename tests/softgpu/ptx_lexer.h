/* ptx_lexer.h: PTX text -> tokens. Comments and preprocessor-like lines (# ...) are skipped. Reads
 * only [at, end). A token points into the text. A character that starts no token gives
 * PTX_TOKEN_BAD, as do a string or comment without an end and a number that is none.
 */
#ifndef LAC_TESTS_SOFTGPU_PTX_LEXER_H
#define LAC_TESTS_SOFTGPU_PTX_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptx_token_kind {
    PTX_TOKEN_END,
    PTX_TOKEN_NAME,    /* add, %r1, $L__BB0_1, _ */
    PTX_TOKEN_DOT,     /* .reg, .shared::cta, .m16n8k32: text without the dot */
    PTX_TOKEN_INTEGER, /* bits */
    PTX_TOKEN_FLOAT32, /* 0f3F800000: bits */
    PTX_TOKEN_FLOAT64, /* 0d..., 1.5, 1e3: bits of a double */
    PTX_TOKEN_STRING,  /* text without the quotes */
    PTX_TOKEN_PUNCT,   /* one character: text[0] */
    PTX_TOKEN_BAD,
};

struct ptx_token {
    enum ptx_token_kind kind;
    const char *text;
    size_t len;
    uint64_t bits;
    uint32_t line;
};

struct ptx_lexer {
    const char *at, *end;
    uint32_t line; /* from 1 */
};

struct ptx_token ptx_lexer_next(struct ptx_lexer *l);
bool ptx_token_is(const struct ptx_token *t, const char *word); /* NAME or DOT of that text */
bool ptx_token_punct(const struct ptx_token *t, char c);

#endif
