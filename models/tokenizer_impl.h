/* tokenizer_impl.h: what the files of the tokenizer share. Private to tokenizer*.c, bpe.c, spm.c,
 * wordpiece.c and detokenizer.c.
 */
#ifndef LAC_MODELS_TOKENIZER_IMPL_H
#define LAC_MODELS_TOKENIZER_IMPL_H

#include "models/pretokenize.h"
#include "models/tokenizer.h"

enum { CHECKPOINT_BYTES = 4096 };

/* From a pair of ids to what they merge into; open addressing, a power of two of slots. */
struct merge_slot {
    uint32_t left, right; /* left == TOKEN_NONE: empty */
    uint32_t rank, result;
};
struct merge_table {
    struct merge_slot *slot;
    size_t mask;
};

/* From a text to the id of the token that reads so; TOKEN_NONE marks an empty slot. */
struct text_table {
    uint32_t *slot;
    size_t mask;
};

/* A trie of the tokens that are matched in the text before anything else; an edge is one slot. */
struct trie_edge {
    uint32_t node; /* of the parent; TOKEN_NONE: empty */
    uint32_t child;
    uint8_t byte;
};
struct special_trie {
    struct trie_edge *edge;
    size_t mask;
    uint32_t *token; /* [n_nodes], TOKEN_NONE: no token ends here */
    uint32_t n_nodes;
    bool first[256]; /* some token starts with this byte */
};

struct tokenizer {
    enum tokenizer_kind kind;
    const struct pretokenizer *pre; /* BPE */
    uint32_t n_tokens;
    char *piece;           /* the bytes of every token, one behind the other */
    uint32_t *piece_start; /* [n_tokens + 1] */
    uint8_t *type;         /* [n_tokens] enum token_type */
    uint8_t *strip;        /* [n_tokens] enum token_strip */
    uint8_t *eog;          /* [n_tokens] */
    float *score;          /* [n_tokens], SPM */
    struct text_table text;
    struct merge_table merge;
    struct special_trie special;
    uint32_t byte_id[256]; /* the token of a single byte */
    uint32_t bos, eos, eot, unk, pad, sep;
    bool add_bos, add_eos, add_space_prefix;
    bool lowercase, strip_accents;
    bool words_apart;       /* SPM: no token has U+2581 behind another character */
    size_t max_token_bytes; /* of those in `text` */
    size_t memory_bytes;
};

struct symbol {
    uint32_t id, prev, next;
};
struct spm_symbol {
    uint32_t start, len, prev, next;
};
struct heap_item {
    uint64_t key; /* the least comes first */
    uint64_t pair;
};

/* Working memory of one encode; grows, never shrinks. */
struct tokenizer_scratch {
    struct symbol *symbol;
    size_t symbol_cap;
    struct spm_symbol *spm;
    size_t spm_cap;
    struct heap_item *heap;
    size_t heap_n, heap_cap;
    char *text;
    size_t text_n, text_cap;
};

/* One encode under way. */
struct encoding {
    const struct tokenizer *t;
    struct chore *chore;
    struct tokenizer_scratch *s;
    struct token_list *out;
    size_t since_checkpoint; /* bytes of work */
};

LAC_MUST_USE enum status encoding_pause(struct encoding *en);
/* STATUS_GONE when the chore was cancelled; counts `bytes` of work and offers a pause when due. */
LAC_MUST_USE static inline enum status encoding_progress(struct encoding *en, size_t bytes) {
    en->since_checkpoint += bytes;
    return en->since_checkpoint < CHECKPOINT_BYTES ? STATUS_OK : encoding_pause(en);
}
LAC_MUST_USE enum status encoding_push(struct encoding *en, uint32_t id);
/* The bytes of a text that has no token: byte tokens, or the unknown token where they are missing.
 */
LAC_MUST_USE enum status encoding_push_bytes(struct encoding *en, const char *text, size_t len);

/* *mem holds at least n items of `size` bytes afterwards; *cap is what it holds. */
LAC_MUST_USE enum status scratch_reserve(void **mem, size_t *cap, size_t n, size_t size);
LAC_MUST_USE enum status scratch_heap_push(struct tokenizer_scratch *s, uint64_t key,
                                           uint64_t pair);
struct heap_item scratch_heap_pop(struct tokenizer_scratch *s); /* heap_n > 0 */

/* Where the search for a key begins in a table of ids. */
static inline uint64_t slot_hash(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}
/* TOKEN_NONE if no normal token reads so. */
uint32_t text_lookup(const struct tokenizer *t, const char *text, size_t len);
const struct merge_slot *merge_lookup(const struct merge_table *m, uint32_t left, uint32_t right);
/* The longest special token at text[0..len), TOKEN_NONE if none; `control`: control tokens too. */
uint32_t special_match(const struct tokenizer *t, const char *text, size_t len, bool control);

/* The text between special tokens; `first`: at the start, or right behind a special token. */
LAC_MUST_USE enum status bpe_encode(struct encoding *en, const char *text, size_t len);
LAC_MUST_USE enum status spm_encode(struct encoding *en, const char *text, size_t len, bool first);
LAC_MUST_USE enum status wordpiece_encode(struct encoding *en, const char *text, size_t len);

/* GPT-2's printable alphabet of bytes: bytes 33..126, 161..172, 174..255 stand for themselves, the
 * others are U+0100 on in byte order. The byte of a code point, or -1. */
int byte_of_alphabet(uint32_t cp);

#endif
