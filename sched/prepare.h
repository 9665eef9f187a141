/* prepare.h: the chore that turns a request into token ids and checks what depends on the model.
 *
 * It renders the chat template, takes the gate's markers out (sched/gate_marks.h; not where the
 * request's gate is off), tokenises (what the user wrote never becomes a control token),
 * tells the prompt's task, lints it if asked to, and validates: ids in range, n and logit_bias in
 * range, room in the context and in the KV pages. A prompt of no tokens starts from the model's bos
 * token, or its eos token; a model with neither answers 400.
 *
 * Memory: `prepared` owns heap memory until prepared_free(); all of it is taken before the
 * request's first token. Hostile input: sizes are bounded by the request's own and by the
 * tokenizer's caps. Threads: runs in a chore on any worker; reads the request and the model only.
 */
#ifndef LAC_SCHED_PREPARE_H
#define LAC_SCHED_PREPARE_H

#include "core/buffer.h"
#include "core/chore.h"
#include "core/plan.h"
#include "core/request.h"
#include "models/tokenizer.h"
#include "models/user_tokens.h"
#include "sched/gate.h"
#include "sched/policy.h"

struct chat_template;
struct encoder;    /* models/encoder.h */
struct embed_job;  /* sched/embed.h */
struct label_job;  /* sched/label.h */
struct label_sets; /* models/label_heads.h */
/* What requests are checked against; unchanging. */
struct prepare_model {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: none */
    uint32_t n_vocab, n_ctx, max_choices, d_model;
    const struct gate_config *gate;
    uint32_t n_pages;                /* KV pages of the smallest group */
    const struct label_sets *labels; /* NULL: none */
    uint32_t max_label_tokens;       /* that every step has room for beside all decodes */
    struct policy *policy;           /* NULL: tasks are not told */
    const struct encoder *encoder;   /* for prompt lint; NULL: without it */
    bool regulates;                  /* the backend has a regulation head */
    bool calibrated;                 /* rollback rule `auto` can be asked for */
};

struct prepared {
    enum status status;
    struct error error;
    struct token_list tokens; /* the prompt; TOKENIZE: the answer; EMBEDDING: all texts */
    uint32_t *ends;           /* EMBEDDING by the model: where each text ends in tokens */
    struct buffer text;       /* DETOKENIZE: the answer */
    uint32_t *distinct;       /* the prompt's ids, ascending, when draw_wants_prompt_ids */
    uint32_t n_distinct;
    struct token_range user; /* tokens that say what the request is about; never position 0 */
    struct gate_prompt gate;
    uint32_t max_tokens;             /* cut to what the context leaves */
    struct label_job *label;         /* of a request with labels, else NULL */
    struct policy_decision decision; /* with a policy, for CHAT and COMPLETION */
    struct buffer lint;              /* the report on the user's text, if asked for */
};

struct prepare {
    const struct prepare_model *model;
    const struct request *request;
    const struct policy_epoch *epoch; /* the request's; NULL without a policy */
    struct embed_job *embed;          /* EMBEDDING by the encoder, else NULL */
    struct prepared out;
};

/* The chore's function; `arg` is a struct prepare with model and request set, the rest zero. */
void prepare_run(struct chore *c, void *arg);
void prepared_free(struct prepared *p);

/* Pages per group that a request needs: n sequences of n_prompt + max_tokens tokens that share the
 * whole pages of the prompt. */
uint64_t prepare_pages(uint32_t n_prompt, uint32_t max_tokens, uint32_t n);
/* Leading positions of the prompt that must be computed. */
uint32_t prepare_prefill(const struct request *r, uint32_t n_prompt, uint32_t max_tokens);

#endif
