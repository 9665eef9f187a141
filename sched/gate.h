/* gate.h: which pages a request's answer attends to (core/step.h, struct gate_policy): what was
 * asked, what the prompt's markers say, and the epoch's figures, made into one policy per request.
 *
 *   off        full attention; markers are plain text. The default under the exact policy.
 *   auto       budget safe, from the epoch's least_context tokens on: before it does not pay. The
 *              default under the adaptive policy. Where the backend keeps no bounds: off.
 *   a budget   from the end of the prompt on, however short it is. Without bounds: refused.
 *
 * Budgets (pages chosen besides sinks, anchors and the recent window): safe, what the side-car
 * shows to stay within its KL; fast, the published ten; a number. Trigger words in the prompt raise
 * safe and fast to GATE_TRIGGER_PAGES; a number stays as the client set it. <RECALL> is off.
 *
 * The prompt is computed with full attention, so it is shared through the prefix cache as ever;
 * positions from first_position on are not: another request that has them in its prompt attends to
 * everything there.
 *
 * Memory: gate_footprint bytes per request, 8-aligned, the caller's; nothing allocates or fails.
 * Threads: the loop thread.
 */
#ifndef LAC_SCHED_GATE_H
#define LAC_SCHED_GATE_H

#include "core/request.h"
#include "core/step.h"
#include "sched/gate_marks.h"

enum {
    GATE_SINK_PAGES = 1,
    GATE_RECENT_PAGES = 4,
    GATE_DENSE_LAYERS = 2,
    GATE_FAST_PAGES = 10,
    GATE_TRIGGER_PAGES = 50,
    GATE_LEAST_CONTEXT = 1024, /* tokens, and */
    GATE_SAFE_SHARE = 341,     /* of 1,024 pages: when nothing was calibrated */
};

/* Of the policy epoch. */
struct gate_config {
    bool bounds;  /* the backend keeps the bounds that choices need */
    bool unasked; /* requests that do not say get auto, else off */
    uint32_t least_context;
    uint32_t safe_pages, safe_share; /* as in struct gate_policy */
    struct gate_words words;
};

/* What the prompt came to; owned by struct prepared. */
struct gate_prompt {
    bool recall, trigger;
    uint32_t n_anchors;
    uint32_t *pages; /* [n_pages] that hold anchors, ascending; malloc */
    uint32_t n_pages;
};

/* What a request wants, its default filled in. */
enum request_gate gate_mode(const struct gate_config *cfg, const struct request *r);
static inline bool gate_reads_marks(const struct gate_config *cfg, const struct request *r) {
    return gate_mode(cfg, r) != REQUEST_GATE_OFF;
}

/* Of one running request. */
struct gate {
    bool on;
    struct gate_policy policy;
    uint32_t n_anchors; /* markers; policy.n_anchors are pages */
    uint32_t *pages;    /* [policy.n_anchors] */
    /* Rows that were gated: of them served by a choice that was kept; pages that they attended to
     * in a gated layer, and pages there were. */
    uint64_t n_rows, n_kept, n_attended, n_there;
};

size_t gate_footprint(uint32_t n_ctx);
void gate_init(struct gate *g, void *mem);
void gate_start(struct gate *g, const struct gate_config *cfg, const struct request *r,
                const struct gate_prompt *prompt, uint32_t n_prompt);

/* Adds the policy to the step and names it in a span of decoded positions. */
void gate_span(const struct gate *g, struct step *s, struct span *span);
/* Pages that a row attends to; all there are when it is not gated. */
uint32_t gate_attended(const struct gate *g, uint32_t position);
/* Such a row's output was committed. */
void gate_count(struct gate *g, uint32_t position);

#endif
