/* task_tokens.h: text cut into the tokens of the task features and of the word lists.
 *
 * Tokens: a word (a run of letters, with digits, underscores and inner apostrophes behind the first
 * letter), a number (digits with inner points and commas), one Han character, one sign, or a line
 * break (a run of space that holds one). Other space separates. Signs of Chinese typography count
 * as their ASCII counterparts. Bytes that are not UTF-8 are signs of their own (U+FFFD).
 *
 * The hash of a token depends on its letters without case; of a number only on how many digits it
 * has and whether it has a fraction. Pure functions; any thread.
 */
#ifndef LAC_MODELS_TASK_TOKENS_H
#define LAC_MODELS_TASK_TOKENS_H

#include <stddef.h>
#include <stdint.h>

enum task_token_kind {
    TASK_TOKEN_WORD,
    TASK_TOKEN_NUMBER,
    TASK_TOKEN_HAN,
    TASK_TOKEN_SIGN,
    TASK_TOKEN_BREAK,
};

enum {
    TASK_TOKEN_UPPER = 1,      /* begins with an upper-case letter */
    TASK_TOKEN_IDENTIFIER = 2, /* snake_case, camelCase or letters with digits */
    TASK_TOKEN_SPACED = 4,     /* space or the beginning of the text before it */
};

struct task_token {
    uint64_t hash;
    uint32_t start, end;     /* bytes of the text */
    uint32_t first_cp, n_cp; /* its code points in `cps` */
    uint8_t kind;
    uint8_t flags;
};

/* Cuts the first max_cps code points of the text. `cps` [max_cps] receives the lower-case code
 * points read, `tokens` [max_cps] the tokens; *n_cps (may not be NULL) how many code points were
 * read. Returns the number of tokens. */
size_t task_tokenize(const char *text, size_t len, size_t max_cps, uint32_t *cps, size_t *n_cps,
                     struct task_token *tokens);

/* The hash of a sequence: start with 0 and add token by token. */
uint64_t task_hash_add(uint64_t sequence, uint64_t token_hash);

#endif
