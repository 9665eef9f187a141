/* draw.h: how the next token of a choice is drawn: its sample spec, and the penalties, kept up to
 * date as tokens are committed.
 *
 * Penalties, with c = how often the id stands in the scope:
 *   repetition: a positive logit is divided, a negative one multiplied, when c > 0 (CTRL: Keskar et
 *   al., arXiv:1909.05858); presence: minus presence when c > 0; frequency: minus frequency * c
 *   (OpenAI API reference); logit_bias is added.
 * Scope `openai`: presence and frequency look at the generated tokens, as OpenAI defines them;
 * repetition at prompt and generated tokens, as vLLM and Hugging Face do. Scope `llamacpp`: all
 * three look at the last 64 tokens, prompt included (llama.cpp's default penalty_last_n).
 *
 * The ids with an effect are one list, ascending, which is what the step wants; a token changes one
 * entry (two in llama.cpp's window), found by bisection; only an id's first use moves entries.
 *
 * Memory: the caller's, draw_footprint() bytes, 8-aligned; nothing allocates. The list is read by
 * the backend while a step is in flight and changes only between steps.
 */
#ifndef LAC_SCHED_DRAW_H
#define LAC_SCHED_DRAW_H

#include <stddef.h>
#include <stdint.h>

#include "core/request.h"
#include "core/step.h"

enum { DRAW_WINDOW_TOKENS = 64 };

struct draw_use {
    uint32_t count;   /* in the scope of presence and frequency */
    bool in_prompt;   /* openai: counts for repetition only */
    float logit_bias; /* 0: none */
};

struct draw {
    struct sample_spec spec; /* everything but `biases`, ready to copy */
    float repetition, presence, frequency;
    enum penalty_scope scope;
    bool penalised; /* any penalty is on */
    uint32_t n, cap;
    struct sample_bias *biases; /* [n], ids ascending */
    struct draw_use *uses;      /* [n], beside them */
    uint32_t window[DRAW_WINDOW_TOKENS], n_window, window_at;
};

/* Most entries a choice can need. */
uint32_t draw_capacity(uint32_t n_ctx, uint32_t n_vocab);
size_t draw_footprint(uint32_t n_ctx, uint32_t n_vocab);
void draw_init(struct draw *d, void *mem, uint32_t n_ctx, uint32_t n_vocab);

/* Whether draw_start needs the prompt's distinct ids: a repetition penalty under scope openai. */
bool draw_wants_prompt_ids(const struct request *r);
/* The ids set in bitmap[ceil(n_vocab / 64)], ascending, into out; returns how many. */
uint32_t draw_distinct(const uint64_t *bitmap, uint32_t n_vocab, uint32_t *out);

/* Before the first token. `distinct` (used when draw_wants_prompt_ids) ascending; `prompt` is read
 * under scope llamacpp. logit_bias ids ascending, each once, < n_vocab. */
void draw_start(struct draw *d, const struct request *r, uint64_t seed, uint32_t choice,
                const uint32_t *prompt, uint32_t n_prompt, const uint32_t *distinct,
                uint32_t n_distinct);
/* The token was committed. */
void draw_accept(struct draw *d, uint32_t id);
/* Takes the last accepted token back. `before`: the token that it pushed out of the llama.cpp
 * window, which is the one DRAW_WINDOW_TOKENS before it in prompt and answer; TOKEN_NONE (all ones)
 * if there is none. */
void draw_withdraw(struct draw *d, uint32_t id, uint32_t before);
/* Makes `ahead` (draw_init'ed alike) what d is now, so that drafts can be counted in it. */
void draw_copy(struct draw *ahead, const struct draw *d);
/* What to put into a step's output. */
struct sample_spec draw_spec(const struct draw *d);

#endif
