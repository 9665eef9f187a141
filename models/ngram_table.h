/* ngram_table.h: what followed the last 1 to 6 tokens in the deployment's own answers.
 *
 * A table maps a context of `order` tokens to the token that followed it most, with how often that
 * was (count) of how many times the context was seen (total). One layout serves a side-car section
 * (mapped, read only) and memory that is extended in service: cache lines of NGRAM_WAYS entries,
 * found by one 64-bit hash of the context; a full line forgets its least seen entry. A lookup reads
 * one line per order. Two contexts that share line and tag (one in 2^32) are taken for one
 * another; that costs a rejected draft, nothing else.
 *
 * Confidence is count / (total + doubt of the order): a context seen once is worth 1 / (1 + doubt).
 * The doubts are part of the table; `tune` fits them on answers that the table has not seen.
 *
 * Format (little endian, 64-byte aligned): header of one line {magic u32 "NGRM", version u32,
 * n_lines u32, orders u32, n_learned_tokens u64, doubt f32[6], zeros}, then n_lines lines {tag
 * u32[5], token u32[5], count u16[5], total u16[5], zero u32}; tag 0 = empty.
 *
 * Counting in service is a majority vote (Boyer and Moore 1981): another token than the stored one
 * lowers its count and takes its place at zero. Counts halve at 65,535.
 *
 * The draft source looks, from the longest context to the shortest, into the tenant's table and
 * then into the deployment's; the first hit wins.
 *
 * Hostile input: ngram_table_view checks magic, version and sizes; entries may hold anything.
 * Proposed ids are below n_vocab; larger ones end a proposal.
 */
#ifndef LAC_MODELS_NGRAM_TABLE_H
#define LAC_MODELS_NGRAM_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "models/draft_source.h"

enum {
    NGRAM_ORDERS = 6,
    NGRAM_WAYS = 5,
    NGRAM_LINE_BYTES = 64,
    NGRAM_VERSION = 1,
};

struct ngram_line;
struct ngram_table {
    const struct ngram_line *lines;
    struct ngram_line *writable; /* the same lines, or NULL: read only */
    uint32_t n_lines;
    uint64_t n_learned_tokens;
    float doubt[NGRAM_ORDERS]; /* by order - 1; > 0 */
};

struct ngram_hit {
    uint32_t token;
    uint32_t order; /* context tokens that matched, 1 to 6; 0: nothing found */
    uint32_t count, total;
    float confidence;
};

/* Bytes of a table of that many lines, header included: a multiple of 64. */
size_t ngram_table_bytes(uint32_t n_lines);
/* An empty writable table in mem (64-byte aligned, ngram_table_bytes); n_lines >= 1. */
void ngram_table_init(struct ngram_table *t, void *mem, uint32_t n_lines);
/* A read-only view of a section; the bytes outlive it, 64-byte aligned. STATUS_CORRUPT,
 * STATUS_UNSUPPORTED. */
enum status ngram_table_view(struct ngram_table *t, const void *bytes, size_t n, struct error *e);

/* Counts ids[i] after its contexts, for i in [first, n): contexts reach back before `first`. */
void ngram_table_learn(struct ngram_table *t, const uint32_t *ids, uint32_t first, uint32_t n);
/* The longest context ending at context[n_context) that is known; at most max_order tokens. */
struct ngram_hit ngram_table_find(const struct ngram_table *t, const uint32_t *context,
                                  uint32_t n_context, uint32_t max_order);

/* A sequence, of which the tokens from `first` on are learnt; those before are context. */
struct ngram_list {
    const uint32_t *ids;
    uint32_t first, n;
};
enum { NGRAM_BUILD_MAX_TOKENS = 1 << 23 };
/* A section from whole answers, exact: every context's most frequent follower (ties to the lower
 * id); the most frequent first until max_bytes (>= 128) is full. A context is left out where a
 * shorter one gives the same token about as surely. doubt NULL: the default. *out is malloc'ed,
 * 64-byte aligned; the same input gives the same bytes. STATUS_TOO_LARGE over
 * NGRAM_BUILD_MAX_TOKENS learnt tokens. */
enum status ngram_table_build(const struct ngram_list *lists, uint32_t n_lists, size_t max_bytes,
                              const float doubt[NGRAM_ORDERS], void **out, size_t *n_bytes,
                              struct error *e);

/* Doubts that make the mean confidence of each order what was right on `lists`, which the table has
 * not learnt; an order with too few hits (32) keeps its own. */
void ngram_table_fit_doubt(const struct ngram_table *t, const struct ngram_list *lists,
                           uint32_t n_lists, float doubt[NGRAM_ORDERS]);

/* Bounded tables that each tenant extends: the least recently learning tenant's is forgotten when
 * a new one comes. A tenant's words are never proposed to another. */
struct ngram_tenants;
size_t ngram_tenants_footprint(uint32_t n_tenants, uint32_t n_lines);
struct ngram_tenants *ngram_tenants_init(void *mem, uint32_t n_tenants, uint32_t n_lines);
/* The tenant's table; create: takes the oldest when it has none, else NULL. */
struct ngram_table *ngram_tenants_find(struct ngram_tenants *t, uint64_t tenant, bool create);

struct ngram_source {
    struct draft_source source;                    /* name "ngram" */
    const struct ngram_table *deployment, *tenant; /* either may be NULL */
    uint32_t n_vocab;
};
void ngram_source_init(struct ngram_source *s, const struct ngram_table *deployment,
                       const struct ngram_table *tenant, uint32_t n_vocab);

#endif
