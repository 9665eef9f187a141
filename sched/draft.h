/* draft.h: which tokens are proposed for a choice's next positions, and how likely each is.
 *
 * Sources: `suffix`, what followed the longest earlier occurrence of the sequence's end in prompt
 * and answer (models/suffix_automaton.h); `ngram`, what followed the last tokens in answers to
 * this tenant before, or in the deployment's side-car (models/ngram_table.h); `draft-block` and
 * `exit-block`, what a learnt block of the plan guessed at the end of the last step (core/step.h),
 * if it was asked. Guesses are verified at full depth and accepted where the model draws the same
 * token, so nothing here can change an answer; it decides only how much is bet.
 *
 * Mixture: at every position each source has its say as long as it agrees with the tokens chosen
 * before (the table is asked again about what was chosen), and the surest is taken. A source's own
 * confidence is corrected by what came true: per source, per confidence class, and by whether
 * another source says the same, says something else, or is silent: right over told, both halved
 * every 256 trials, drawn towards the confidence itself by a prior of eight trials. What every
 * source said at a position counts once the token there is known, whether it was bet or not; so a
 * source that was switched off by a bad stretch comes back.
 *
 * A block's guess takes time before it is known. It is asked while what it brought lately (tokens
 * accepted that no other source would have, per time asked, of this choice, drawn to the average of
 * all) is worth more than its passes and the rows bet on it; else now and then, to see.
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
#include "core/step.h"
#include "models/draft_source.h"
#include "models/ngram_table.h"

enum { DRAFT_CLASSES = 16 };
enum draft_company { DRAFT_ALONE, DRAFT_AGREED, DRAFT_DISPUTED, DRAFT_COMPANY_COUNT };

#define DRAFT_BIT(source) (1u << METRIC_DRAFT_##source)

struct drafts_config {
    uint32_t sources;                     /* DRAFT_BITs of those that are on */
    const struct ngram_table *deployment; /* the side-car's, or NULL */
    uint32_t n_ctx, n_vocab, n_choices;
    struct metrics *metrics;
};

struct draft_class {
    double tried, right;
};

/* What asking a block brought: decayed sums over the times it was asked. */
struct draft_worth {
    double asked, passes, taken, gained; /* gained: tokens that nobody else foretold */
};

/* Of one choice. */
struct draft {
    struct suffix_automaton *suffix; /* NULL: off */
    struct ngram_source ngram;
    struct ngram_table *learn; /* the tenant's, or NULL */
    uint32_t n_followed;       /* tokens that the sources know */
    uint32_t n_prompt;
    struct draft_proposal chain; /* what a block guessed for position chain_at */
    enum metric_draft chain_source;
    uint32_t chain_at;
    struct draft_worth worth[BLOCK_KIND_COUNT];
    uint32_t n_quiet; /* steps since a block was asked */
    bool on;
};

struct drafts {
    struct drafts_config cfg;
    struct draft_class classes[METRIC_DRAFT_COUNT][DRAFT_COMPANY_COUNT][DRAFT_CLASSES];
    struct draft_worth worth[BLOCK_KIND_COUNT];
    double tokens_per_step; /* of one choice, lately */
    uint32_t n_probes;
    struct ngram_tenants *tenants;
    struct draft *choices; /* [n_choices] */
    void *memory;
};

/* What one source said about a position. */
struct draft_option {
    uint32_t id;
    float probability;
    uint8_t source, company, class_of;
};

/* Tokens for positions n, n + 1, ...; reach[i]: the probability that i + 1 of them are right. */
struct draft_guess {
    uint32_t n;
    uint32_t ids[DRAFT_MAX_TOKENS];
    float reach[DRAFT_MAX_TOKENS];
    uint8_t source[DRAFT_MAX_TOKENS];
    /* to learn from */
    uint32_t n_options[DRAFT_MAX_TOKENS];
    struct draft_option options[DRAFT_MAX_TOKENS][METRIC_DRAFT_COUNT];
    uint32_t n_passes; /* of the block whose guess was at hand; 0: none */
    enum block_kind block;
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
/* `taken` of the guess were verified, of which the first `accepted` were right; the first n_drawn
 * outputs hold the tokens that came instead or as foretold. */
void draft_settled(struct drafts *d, uint32_t choice, const struct draft_guess *g, uint32_t taken,
                   uint32_t accepted, const struct output *outputs, uint32_t n_drawn);

/* Nanoseconds: a token's share of a step at present, a row more, a guess more. */
struct draft_prices {
    double token_ns, row_ns, guess_ns;
};
/* Whether a block is to guess at the end of the step that is being built, and how far. */
bool draft_ask(struct drafts *d, uint32_t choice, const struct draft_prices *prices,
               enum block_kind *block, float *least_reach);
/* What it guessed for positions `at`, at + 1, .... */
void draft_answered(struct drafts *d, uint32_t choice, enum block_kind block, uint32_t at,
                    const struct guess *guesses, uint32_t n);

#endif
