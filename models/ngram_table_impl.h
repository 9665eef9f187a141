/* ngram_table_impl.h: the layout of an n-gram table, shared by its reader (ngram_table.c) and its
 * builder (ngram_build.c). */
#ifndef LAC_MODELS_NGRAM_TABLE_IMPL_H
#define LAC_MODELS_NGRAM_TABLE_IMPL_H

#include "models/ngram_table.h"

#define NGRAM_MAGIC      0x4d52474eu /* "NGRM" */
#define NGRAM_HASH_START 0x4c61636f6e6963u

struct ngram_header {
    uint32_t magic, version, n_lines, orders;
    uint64_t n_learned_tokens;
    float doubt[NGRAM_ORDERS];
    uint8_t zero[16];
};
_Static_assert(sizeof(struct ngram_header) == NGRAM_LINE_BYTES, "the header is one line");

struct ngram_line {
    uint32_t tag[NGRAM_WAYS], token[NGRAM_WAYS];
    uint16_t count[NGRAM_WAYS], total[NGRAM_WAYS];
    uint32_t zero;
};
_Static_assert(sizeof(struct ngram_line) == NGRAM_LINE_BYTES, "a line is a cache line");

/* The hash of a context of o tokens from that of its last o - 1, and the token before them. */
uint64_t ngram_hash(uint64_t shorter, uint32_t id);
uint32_t ngram_tag(uint64_t hash); /* never 0 */
uint32_t ngram_line_of(uint64_t hash, uint32_t n_lines);
/* doubt NULL: the default. */
void ngram_header_write(void *mem, uint32_t n_lines, uint64_t n_learned_tokens, const float *doubt);

#endif
