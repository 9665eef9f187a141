/* monitor.h: does an answer leave its topic? One monitor per choice; it holds drawn tokens back
 * while a rule may still withdraw them, and says when to.
 *
 * What it sees, per draw: the entropy and log-probability of the raw distribution, and the cosine
 * between what the answer is about now and what it should be about. The former is the mean of the
 * RMS-normalised states after the model's monitored layer, less the side-car's mean, over the last
 * MONITOR_WINDOW tokens of the answer (MONITOR_LEAST at least; before: no cosine). The latter is
 * the same over the user's tokens (models/user_tokens.h; position 0 left out), joined, both at
 * length one, by the same over the answer's own whole blocks of 16 tokens before the window:
 * measured on the default model (130 spliced answers), a draw behind a splice is told from a normal
 * one with an area under the curve of 0.83 by the prompt alone and 0.95 by both.
 *
 * Rule `auto`: a draw's score is linear in five features: how far the cosine is from the answer's
 * own up to MONITOR_SLOPE draws ago, in deviations; the cosine; its slope since then; over the last
 * 16 draws, the mean z-value of the entropies against the answer's own, and of the odds: by how
 * much a token was less likely than the request's own sampling leads to expect (monitor_odds), so
 * that a high temperature is no drift. A score over the threshold triggers; above temperature 0.8
 * the threshold rises, up to the one calibrated at 1. A draw is suspicious when its score is over
 * `hold`, or when its token was drawn against odds; it and what follows are held until
 * `clear_tokens` draws later no score is over `hold`, or `window` tokens stand behind it. An
 * unsuspicious token waits for nothing. Rule `fixed`, as published: three draws in a row with an
 * entropy above max(threshold, mean + 2 deviations of the answer's own) and a cosine below the
 * threshold; those are what is held.
 *
 * A trigger cuts back to the last confident token: to the first held token, which is not drawn
 * again there. One trigger more than `max` trips the breaker instead: the
 * rest is drawn at temperature <= 0.3 and top_p <= 0.85, and nothing more is withdrawn.
 *
 * All of it is a function of the choice's draws and of the monitor model: not of batching, drafts,
 * chunks or caches. The answer's first token is never withdrawn.
 *
 * Memory: the caller's, monitor_footprint() bytes, 8-aligned; nothing allocates.
 * Threads: the loop thread.
 */
#ifndef LAC_SCHED_MONITOR_H
#define LAC_SCHED_MONITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/request.h"
#include "core/step.h"
#include "models/monitor_model.h"

enum {
    MONITOR_WINDOW = 16,                                /* tokens of the running state */
    MONITOR_LEAST = 8,                                  /* of them before there is a cosine */
    MONITOR_SLOPE = 8,                                  /* draws */
    MONITOR_STATES = REQUEST_MAX_HELD + MONITOR_WINDOW, /* rows kept */
    MONITOR_POINTS = 64, /* draws kept; a power of two, more than may be withdrawn and the slope */
    MONITOR_FEATURES = MONITOR_WEIGHTS - 1,
    MONITOR_BLOCKS = 4, /* references kept; more than a rollback goes back */
};

/* Temperatures up to which one threshold holds, and from which the other. */
#define MONITOR_COOL 0.8f
#define MONITOR_HOT  1.0f

/* One draw, and the answer's statistics up to it. */
struct monitor_point {
    float cosine;
    float surprise; /* nats: minus the drawn token's log-probability */
    float entropy;
    float odds;  /* monitor_odds */
    float z;     /* of the entropy */
    float score; /* -infinity: none yet */
    float features[MONITOR_FEATURES];
    bool suspicious;
    uint32_t n_entropies, n_cosines;
    double entropies, entropies_squared, cosines, cosines_squared;
};

struct monitor {
    bool on, tripped;
    struct rollback how;
    const struct monitor_model *model;
    /* Tokens: of the prompt, with what is final behind it, and with what was drawn. */
    uint32_t n_prompt, n_committed, n_drawn;
    uint32_t n_rollbacks;
    uint32_t cut;        /* where the last rollback cut; its token's row is to be run again */
    uint32_t n_excluded; /* at position `cut` */
    uint32_t excluded[REQUEST_MAX_ROLLBACKS]; /* ids ascending */
    float prompt_norm;                        /* 0: nothing to compare with */
    float *prompt;                            /* [d_model], centred */
    float *states; /* [MONITOR_STATES, d_model] by position, of answer tokens */
    /* By number of whole blocks before the window, modulo MONITOR_BLOCKS: their states' sum, and
     * what the window is compared with. */
    float *blocks, *references;   /* [MONITOR_BLOCKS, d_model] */
    struct monitor_point *points; /* [MONITOR_POINTS] by position of the drawn token */
    struct output *held;          /* [MONITOR_STATES] by position: what was drawn last */
};

size_t monitor_footprint(uint32_t d_model);
void monitor_init(struct monitor *m, void *mem, uint32_t d_model);
/* `how->rule` OFF: the monitor is off and costs nothing. */
void monitor_start(struct monitor *m, const struct monitor_model *model, const struct rollback *how,
                   uint32_t n_prompt);
/* The sum of the states of the user's n tokens; n 0: there are none, and nothing ever triggers. */
void monitor_prompt(struct monitor *m, const float *sum, uint32_t n);
/* Of another choice of the same request. */
void monitor_copy_prompt(struct monitor *m, const struct monitor *from);

/* The state of the token at `position` of the answer; positions ascend, but for those that were cut
 * (a row that is run again has the same state). */
void monitor_state(struct monitor *m, uint32_t position, const float *state);

struct monitor_verdict {
    uint32_t commit; /* tokens [0, commit) of the sequence are final */
    uint32_t cut;    /* not 0: tokens from here on are withdrawn, instead */
    bool tripped;    /* the breaker: now */
};
/* `o` (its lists as they were) drew the token at `position` (n_prompt, then one more each); its
 * cosine is filled in. */
struct monitor_verdict monitor_draw(struct monitor *m, uint32_t position, struct output *o);
/* The drawn token's surprise (minus its log-probability) less what temperature and top_p lead to
 * expect of it, in deviations of that: from the 20 best logits, and one lump of the others, whose
 * mean surprise follows from the entropy. 0 where the request's own lists moved the token's logit.
 * At most MONITOR_ODDS_MOST either way. */
#define MONITOR_ODDS_MOST 8.0f
float monitor_odds(const struct output *o);
/* The output that drew the held token at `position`. */
const struct output *monitor_held(const struct monitor *m, uint32_t position);

/* What the next draw is made with: attempt, and under the breaker temperature and top_p. */
void monitor_spec(const struct monitor *m, struct sample_spec *spec);
/* Ids that the draw of the token at `position` may not give. */
static inline uint32_t monitor_excluded(const struct monitor *m, uint32_t position,
                                        const uint32_t **ids) {
    *ids = m->excluded;
    return m->on && position == m->cut ? m->n_excluded : 0;
}

#endif
