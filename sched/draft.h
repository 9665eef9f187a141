/* draft.h: which tokens are proposed for a choice's next positions, and how likely each is.
 *
 * Sources: `suffix`, what followed the longest earlier occurrence of the sequence's end in prompt
 * and answer (models/suffix_automaton.h), and `ngram`, what followed the last tokens in answers to
 * this tenant before, or in the deployment's side-car (models/ngram_table.h). Guesses are verified
 * at full depth and accepted where the model draws the same token, so nothing here can change an
 * answer; it decides only how much is bet.
 *
 * Each source's own confidence is corrected by what was accepted: per source and confidence class,
 * accepted over tried, both halved every 256 trials, drawn towards the confidence itself by a prior
 * of eight trials. A class that was left out 64 times is believed once, so that a source that was
 * switched off by a bad stretch can come back.
 *
 * Memory: drafts_open takes it all; per choice about 170 bytes a token of context, touched only as
 * far as sequences reach. Nothing allocates or fails later.
 * Threads: the loop thread.
 */
#ifndef LAC_SCHED_DRAFT_H
#define LAC_SCHED_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/metric.h"
#include "core/status.h"
#include "models/draft_source.h"
#include "models/ngram_table.h"

enum { DRAFT_CLASSES = 16 };

struct drafts_config {
    bool suffix, ngram;                   /* which sources are on */
    const struct ngram_table *deployment; /* the side-car's, or NULL */
    uint32_t n_ctx, n_vocab, n_choices;
    struct metrics *metrics;
};

struct draft_class {
    double tried, accepted;
    uint32_t left_out;
};

/* Of one choice. */
struct draft {
    struct suffix_automaton *suffix; /* NULL: off */
    struct ngram_source ngram;
    struct ngram_table *learn; /* the tenant's, or NULL */
    uint32_t n_followed;       /* tokens that the sources know */
    uint32_t n_prompt;
    bool on;
};

struct drafts {
    struct drafts_config cfg;
    struct draft_class classes[METRIC_DRAFT_COUNT][DRAFT_CLASSES];
    struct ngram_tenants *tenants;
    struct draft *choices; /* [n_choices] */
    void *memory;
};

/* Tokens for positions n, n + 1, ...; reach[i]: the probability that i + 1 of them are right. */
struct draft_guess {
    enum metric_draft source;
    uint32_t n;
    uint32_t ids[DRAFT_MAX_TOKENS];
    float reach[DRAFT_MAX_TOKENS];
    uint8_t class_of[DRAFT_MAX_TOKENS];
};

enum status drafts_open(struct drafts *d, const struct drafts_config *cfg, struct error *e);
void drafts_close(struct drafts *d);

/* A new sequence; its tokens come by draft_follow. */
void draft_start(struct drafts *d, uint32_t choice, uint64_t tenant, uint32_t n_prompt);
/* tokens[n] is committed; takes in at most `most` more of them, so that a long prompt is spread
 * over the steps that compute it. Nothing is guessed before all are in. */
void draft_follow(struct drafts *d, uint32_t choice, const uint32_t *tokens, uint32_t n,
                  uint32_t most);
/* At most `max` tokens behind tokens[n]. */
void draft_guess(struct drafts *d, uint32_t choice, const uint32_t *tokens, uint32_t n,
                 uint32_t max, struct draft_guess *out);
/* `taken` of the guess were verified, of which the first `accepted` were right. */
void draft_settled(struct drafts *d, const struct draft_guess *g, uint32_t taken,
                   uint32_t accepted);

#endif
