/* tokenizer.h: text to token ids and back, as the model's file says.
 *
 * Three kinds: byte-level BPE ("gpt2"; Sennrich et al., arXiv:1508.07909, over bytes),
 * SentencePiece BPE ("llama": merges by score with byte fallback; Kudo and Richardson,
 * arXiv:1808.06226) and WordPiece ("bert"). A file of another kind, or naming a pre-tokenizer that
 * is not in the table of models/pretokenize_table.c, is refused with one line.
 *
 * Special tokens written in a text are plain text unless TOKENIZE_SPECIAL is given; user-defined
 * tokens are always matched (both leftmost, then longest). No other way leads from text to a
 * control token.
 *
 * Text is any bytes up to TOKENIZER_MAX_TEXT_BYTES. Bytes that are not UTF-8 are encoded as
 * themselves by BPE and SentencePiece (so they survive the way back) and are dropped by WordPiece.
 * Time is linear in the text but for merges inside one piece, which are n log n; memory is about
 * 40 bytes per byte of the longest piece.
 *
 * Threads: a loaded tokenizer is read-only; any number of threads may use it.
 */
#ifndef LAC_MODELS_TOKENIZER_H
#define LAC_MODELS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/status.h"
#include "models/gguf.h"
#include "models/text_span.h"

struct tokenizer;

#define TOKEN_NONE UINT32_MAX

enum {
    TOKENIZER_MAX_TEXT_BYTES = 1 << 30,
    TOKENIZER_MAX_TOKENS = 1 << 22,
    TOKENIZER_MAX_TOKEN_BYTES = 1 << 16,
};

enum tokenizer_kind {
    TOKENIZER_BPE,
    TOKENIZER_SPM,
    TOKENIZER_WORDPIECE,
};

/* tokenizer.ggml.token_type */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* White space beside an added token that belongs to it when it is matched in a text. */
enum token_strip {
    TOKEN_STRIP_LEFT = 1,
    TOKEN_STRIP_RIGHT = 2,
};

/* Everything a tokenizer is made of; tokenizer_load fills it from a file, tests and other readers
 * from what they have. All pointers are the caller's and are not kept. */
struct tokenizer_spec {
    enum tokenizer_kind kind;
    struct gguf_string pre; /* BPE only; empty: "default" */
    size_t n_tokens;
    const struct gguf_string *tokens; /* [n_tokens] as the file writes them */
    const float *scores;              /* [n_tokens], SPM only; NULL: all 0 */
    const uint8_t *types;             /* [n_tokens] enum token_type; NULL: all normal */
    const uint8_t *strips;            /* [n_tokens] enum token_strip; NULL: none */
    size_t n_merges;
    const struct gguf_string *merges;       /* [n_merges] "left right", BPE only */
    uint32_t bos, eos, eot, unk, pad, sep;  /* TOKEN_NONE: none */
    int add_bos, add_eos, add_space_prefix; /* 0, 1, -1: the kind's default */
    int lowercase, strip_accents;           /* WordPiece, the same */
};
/* No tokens, no ids, every choice the kind's default. */
struct tokenizer_spec tokenizer_spec_default(enum tokenizer_kind kind);

/* On failure *out is NULL and `e` names the key at fault. */
LAC_MUST_USE enum status tokenizer_load(const struct gguf *g, struct tokenizer **out,
                                        struct error *e);
LAC_MUST_USE enum status tokenizer_build(const struct tokenizer_spec *spec, struct tokenizer **out,
                                         struct error *e);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t);
/* The pre-tokenizer's name; "" for the other kinds. */
const char *tokenizer_pre(const struct tokenizer *t);
uint32_t tokenizer_n_vocab(const struct tokenizer *t);
size_t tokenizer_memory_bytes(const struct tokenizer *t);

/* TOKEN_NONE where the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t);
uint32_t tokenizer_eot(const struct tokenizer *t);
uint32_t tokenizer_pad(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_adds_eos(const struct tokenizer *t);
bool tokenizer_adds_space_prefix(const struct tokenizer *t);

/* Whether the id ends a generation: eos and eot of the file, and the names that turn-taking models
 * use for it. False for ids out of range, like the next one. */
bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id);
/* Control tokens and the unknown token: not shown unless asked. */
bool tokenizer_is_control(const struct tokenizer *t, uint32_t id);
/* The id of the token that the file writes exactly so, special ones first; TOKEN_NONE if none.
 * Slow: looks at every token. */
uint32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);

enum tokenize_flags {
    TOKENIZE_SPECIAL = 1, /* special tokens in the text are recognised */
    TOKENIZE_BOS = 2,     /* bos first, if the model adds one ([CLS] for WordPiece) */
    TOKENIZE_EOS = 4,     /* eos last, if the model adds one ([SEP] for WordPiece) */
};

struct tokenizer_scratch;

/* A growable list, and the working memory that encoding leaves in it for the next time. Zero to
 * start with; keep it for many texts, and no call allocates once it has seen its largest. */
struct token_list {
    uint32_t *ids;
    size_t n, cap;
    struct tokenizer_scratch *scratch;
};
void token_list_free(struct token_list *l);

/* Appends the ids of text[0..len). `c` (may be NULL) is offered a pause every few KiB; cancelled
 * there, STATUS_GONE. On failure out->n is what it was. */
LAC_MUST_USE enum status tokenizer_encode(const struct tokenizer *t, struct chore *c,
                                          const char *text, size_t len, unsigned flags,
                                          struct token_list *out, struct error *e);

/* The same for a text that spans[n_spans] cover (text_span.h): with TOKENIZE_SPECIAL, a control
 * token is recognised only where no byte of it is a user's. spans == NULL: no byte is. */
LAC_MUST_USE enum status tokenizer_encode_spans(const struct tokenizer *t, struct chore *c,
                                                const char *text, size_t len,
                                                const struct text_span *spans, size_t n_spans,
                                                unsigned flags, struct token_list *out,
                                                struct error *e);

/* The bytes of one token: its length, of which at most `cap` are written to `buf`. `special`:
 * control tokens and the unknown token have their text; else they are empty. Ids out of range are
 * empty. A leading space is there; a token may be part of a UTF-8 sequence (detokenizer.h puts it
 * together). */
size_t tokenizer_piece(const struct tokenizer *t, uint32_t id, bool special, char *buf, size_t cap);

#endif
