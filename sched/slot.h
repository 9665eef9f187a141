/* slot.h: the fixed memory of running requests. A slot is one admitted request; it has 1 .. n
 * choices, each with a sequence, a draw, and an emitter of its own, taken from one pool of
 * max_batch choices.
 *
 * Life of a slot: slot_admit (pages reserved, prefix adopted, client told) -> echo, if asked ->
 * prefill, by steps -> fork to n choices on the prompt's last row -> decode -> each choice finishes
 * -> done. slot_step_done() takes what a step computed for it. Any other end: slot_fail,
 * slot_abort, slot_deadline. An ended slot has no pages and no choices; SLOT_ENDED tells sched to
 * release the request.
 *
 * Memory: all of it is allocated by slots_open(). Between a request's first and last token nothing
 * here touches the general heap.
 * Threads: the loop thread, while no step is in flight (slot_step_done: once it is done).
 */
#ifndef LAC_SCHED_SLOT_H
#define LAC_SCHED_SLOT_H

#include "core/flight.h"
#include "core/metric.h"
#include "core/request.h"
#include "core/step.h"
#include "sched/answer.h"
#include "sched/draft.h"
#include "sched/draw.h"
#include "sched/emit.h"
#include "sched/encode.h"
#include "sched/gate.h"
#include "sched/label.h"
#include "sched/explain.h"
#include "sched/monitor.h"
#include "sched/prepare.h"
#include "sched/sequence.h"

/* SLOT_ECHO: the prompt's text is being given back, a bounded number of tokens a turn. SLOT_ENCODE:
 * an embedding's texts, one after the other. With labels: SLOT_LOOK, one span that label heads
 * read; or prefill of a question, then SLOT_SCORE, the labels behind it. */
enum slot_phase {
    SLOT_FREE,
    SLOT_ECHO,
    SLOT_PREFILL,
    SLOT_DECODE,
    SLOT_ENCODE,
    SLOT_LOOK,
    SLOT_SCORE,
    SLOT_ENDED
};
enum { SLOT_ECHO_TOKENS = 1024 };

struct choice {
    struct sequence sequence;
    struct draw draw;
    struct emit emit;
    struct monitor monitor;
    struct draft_guess guess; /* of the step in flight */
    uint32_t n_drafted;       /* of it, in the step's span */
    uint32_t n_generated;     /* committed */
    uint32_t label;           /* SLOT_SCORE: sorted, in flight */
    uint64_t last_token_ns;
    bool taken, finished;
};

/* What the regulation head said: sums, and the ranges. */
struct regulated {
    uint32_t n;
    double temperature, top_p;
    float least_temperature, most_temperature, least_top_p, most_top_p;
};

struct slot {
    uint32_t index;
    enum slot_phase phase;
    uint32_t name; /* the request's, sched's */
    const struct request *request;
    struct answer *answer;
    uint64_t seed, deadline_ns, admitted_ns, first_token_ns;
    uint64_t heap_mark; /* *cfg.heap_bytes at the first token */
    uint32_t n_prompt, max_tokens;
    uint32_t n_prefill;  /* positions of the prompt to compute; 0: none */
    uint32_t n_cached;   /* of them from the prefix cache */
    uint32_t n_echoed;   /* tokens of the prompt given back in SLOT_ECHO */
    uint32_t n_reserved; /* pages of each group still reserved */
    uint32_t n_choices, n_unfinished, n_generated;
    uint32_t n_proposed, n_accepted; /* drafts */
    uint32_t choices[REQUEST_MAX_CHOICES];
    uint64_t served; /* the step at which prefill last got rows, or admission: order of service */
    const struct policy_epoch *epoch; /* NULL: no policy */
    const struct policy_decision *decision;
    struct text lint;   /* for the report */
    uint64_t paused_ns; /* since when */
    bool paused;        /* the client does not take more now */
    bool score_prompt;  /* echo with logprobs: every row of the prompt has an output */
    bool deadline_missed;
    struct stop_set stops;
    struct encode encode;
    struct gate gate;
    struct label_job *label;   /* of a request with labels, else NULL */
    uint32_t label_last_token; /* SLOT_SCORE: the question's */
    uint32_t exit_layer;       /* layers that label heads looked at; 0: none did */
    struct token_range user;   /* of the prompt, where the request is monitored */
    uint32_t n_rollbacks, n_withdrawn, n_breakers;
    struct regulated regulated; /* over all choices' committed tokens */
    struct rollback_event rollbacks[REQUEST_REPORT_ROLLBACKS]; /* the first of them */
};

struct label_audits; /* sched/label_audit.h */

struct slots_config {
    const struct tokenizer *tokenizer;
    const struct kv_store *kv;
    struct metrics *metrics;
    const struct gate_config *gate;
    struct flight *flight;       /* [max_batch] slots */
    struct drafts *drafts;       /* [max_batch] choices, or NULL: off */
    struct explain *explain;     /* NULL: nothing is kept */
    struct label_audits *audits; /* of label heads */
    const struct monitor_model *monitor;
    const uint64_t *heap_bytes; /* general-heap bytes taken so far (alloc/heap.h), or NULL */
    uint32_t n_ctx, n_vocab, max_batch, d_model;
};

struct slots {
    struct slots_config cfg;
    struct emit_scratch scratch;
    float *total;           /* [d_model] scratch */
    struct slot *slots;     /* [max_batch] */
    struct choice *choices; /* [max_batch] */
    uint32_t n_running, n_choices_free;
    uint64_t n_gated, n_kept; /* rows of all answers, as in struct gate */
    void *memory;
};

enum status slots_open(struct slots *t, const struct slots_config *cfg, struct error *e);
/* No slot may be running. */
void slots_close(struct slots *t);

/* A prepared request that waits to start. */
struct slot_start {
    uint32_t name;
    const struct request *request;
    struct answer *answer;
    const struct prepared *prepared;  /* kept for the slot's life by an embedding or with labels,
                                         else not needed after slot_admit */
    const struct policy_epoch *epoch; /* NULL: no policy; it and what follows are kept for */
    const struct policy_decision *decision; /* the slot's life */
    struct text lint;
    uint64_t seed, deadline_ns, queued_ns, tokenised_ns;
    uint64_t step; /* now, in steps */
};

/* Takes a slot, choices and pages and starts the request. STATUS_AGAIN: there is no room now,
 * nothing was done. */
enum status slot_admit(struct slots *t, const struct slot_start *w, uint64_t now);

/* Asks every client whether it takes more now. */
void slots_pause_and_resume(struct slots *t, uint64_t now);
/* Gives back prompts that are to be echoed. Slots that want nothing else end. */
void slots_echo(struct slots *t, uint64_t now);
static inline bool slot_running(const struct slot *s) {
    return s->phase != SLOT_FREE && s->phase != SLOT_ENDED;
}
/* For the explanation of a running request with an epoch. */
static inline struct explain_what slot_explanation(const struct slot *s) {
    return (struct explain_what){
        .request = s->request, .decision = s->decision, .epoch = s->epoch, .seed = s->seed};
}

/* A span of `n_rows` for the slot's choice `c` (index among its choices) was computed; its outputs
 * are outputs[n_outputs], `first_row` the step's row of its first token; `sums` are its states:
 * SLOT_ENCODE: as encode_after wants them; a monitored prompt: as slot_prompt_rows says, summed by
 * page; a monitored decode: its rows, normalised. SLOT_LOOK: `look` is its
 * answer. */
void slot_step_done(struct slots *t, struct slot *s, uint32_t c, uint32_t first_row,
                    uint32_t n_rows, struct output *outputs, uint32_t n_outputs, const float *sums,
                    const struct label_look *look, uint64_t now);

/* Of the next `n` rows of a monitored prompt, those whose states are to be summed: [*first, + the
 * result), counted from the first of the rows; 0: none. */
uint32_t slot_prompt_rows(const struct slots *t, const struct slot *s, uint32_t n, uint32_t *first);
/* sums[pages that they touch, d_model] as their tap wants them. */
void slot_prompt_before(const struct slots *t, const struct slot *s, uint32_t first, uint32_t n,
                        float *sums);

/* SLOT_LOOK, when its span is made. Full depth: no head but the last may answer. */
bool slot_look_full_depth(const struct slots *t, const struct slot *s);
bool slot_look_audited(struct slots *t, const struct slot *s);

/* SLOT_SCORE: rows that the next label of choice `c` takes; 0: none is left. slot_score_begin puts
 * them behind the question; targets[i] is what row i is scored for. */
uint32_t slot_score_rows(const struct slot *s);
void slot_score_begin(struct slots *t, struct slot *s, uint32_t c, const uint32_t **targets);

void slot_fail(struct slots *t, struct slot *s, const struct error *e, uint64_t now);
void slot_abort(struct slots *t, struct slot *s, uint64_t now);
/* The deadline passed: ends as the request asked. */
void slot_deadline(struct slots *t, struct slot *s, uint64_t now);
/* SLOT_ENDED -> SLOT_FREE. */
void slot_free(struct slot *s);

#endif
