/* draft_source.h: what every source of draft tokens looks like to the scheduler.
 *
 * A source guesses how a sequence goes on. A guess changes speed only: the tokens are verified at
 * full depth, and accepted where they equal what the full model draws. So a source may be wrong,
 * forget, or know nothing; it may never block, allocate or fail once it is initialised.
 *
 * Two kinds share the interface: a source of one sequence follows that sequence by append and cut
 * (suffix_automaton.h); a source of the deployment reads the context it is given, and follows
 * nothing (ngram_table.h). The scheduler calls append for every token that enters the sequence
 * (prompt, then accepted or drawn tokens) and cut when it takes tokens back; draft tokens under
 * verification are not appended.
 *
 * Confidence is the source's estimate of the probability that the token is the next one given that
 * all before it were right, in (0, 1]. The probability that draft i is reached and right is the
 * product of the first i + 1. Estimates come from counts and are uncalibrated: the scheduler
 * corrects each source by its measured acceptance.
 *
 * Threads: a source of one sequence belongs to the loop thread; deployment sources are read by it
 * and extended by it. Memory is the caller's, given at init.
 */
#ifndef LAC_MODELS_DRAFT_SOURCE_H
#define LAC_MODELS_DRAFT_SOURCE_H

#include <stdint.h>

enum { DRAFT_MAX_TOKENS = 16 };

struct draft_proposal {
    uint32_t n; /* 0: no guess */
    uint32_t ids[DRAFT_MAX_TOKENS];
    float confidence[DRAFT_MAX_TOKENS];
};

struct draft_source;
struct draft_source_ops {
    const char *name; /* in metrics and explanations: "suffix", "ngram", ... */
    /* Guesses for positions n_context, n_context + 1, ...: at most max (<= DRAFT_MAX_TOKENS).
     * context[0 .. n_context) is the whole sequence so far; for a source of one sequence it equals
     * what was appended. out is written in full, n = 0 when there is no guess. */
    void (*propose)(const struct draft_source *s, const uint32_t *context, uint32_t n_context,
                    uint32_t max, struct draft_proposal *out);
    /* Both NULL for a source of the deployment. */
    void (*append)(struct draft_source *s, const uint32_t *ids, uint32_t n);
    void (*cut)(struct draft_source *s, uint32_t n_tokens); /* keep the first n_tokens */
};
/* The first member of every source. */
struct draft_source {
    const struct draft_source_ops *ops;
};

static inline void draft_propose(const struct draft_source *s, const uint32_t *context,
                                 uint32_t n_context, uint32_t max, struct draft_proposal *out) {
    s->ops->propose(s, context, n_context, max, out);
}
static inline void draft_append(struct draft_source *s, const uint32_t *ids, uint32_t n) {
    if (s->ops->append != 0) s->ops->append(s, ids, n);
}
static inline void draft_cut(struct draft_source *s, uint32_t n_tokens) {
    if (s->ops->cut != 0) s->ops->cut(s, n_tokens);
}

#endif
