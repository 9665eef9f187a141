/* label.h: a request that is to be classified (request.labels): what prepares it, scores it, and
 * answers it.
 *
 * Two ways, chosen by the labels alone: with a head for them (models/label_heads.h) the text is one
 * span that ends at the first layer that is sure; else the model is asked, and every label's tokens
 * are scored behind the question: z = sum of the logprobs of its tokens (models/label_text.h says
 * which), p = softmax(z). All but the question's last token is prefilled once; each label is then a
 * run of that token and its own, verified in one span, several at once in forked choices.
 *
 * The answer is the likeliest label (ties to the one that sorts first), probabilities are told in
 * the request's order. A function of labels and text: their order changes nothing else.
 *
 * Memory: a job is made by the chore, from the general heap, before anything is computed; nothing
 * is taken later. Threads: label_prepare on any worker, the rest on the loop thread.
 */
#ifndef LAC_SCHED_LABEL_H
#define LAC_SCHED_LABEL_H

#include "core/chore.h"
#include "core/request.h"
#include "models/label_heads.h"
#include "models/tokenizer.h"
#include "sched/answer.h"

struct prepare_model; /* sched/prepare.h */

enum { LABEL_LANES = 8 }; /* labels scored at once */

struct label_job {
    const struct label_set *set; /* NULL: label tokens are scored */
    uint32_t n;
    uint32_t *order;                   /* [n]: the request's index of the label that sorts i-th */
    float *prior, *probability, *told; /* [n]: sorted, sorted, in the request's order */
    uint32_t first_token;              /* of the text among the span's */
    /* scoring; tokens of sorted label i are answers.ids[end[i - 1] .. end[i]) */
    struct token_list answers;
    uint32_t *end;
    double *score;    /* [n] */
    uint32_t longest; /* tokens of the longest label */
    uint32_t next, n_scored;
};

/* Fills tokens (the whole sequence) and a job. STATUS_INVALID: equal labels; STATUS_CONTEXT_LENGTH,
 * STATUS_TOO_LARGE: text or labels do not fit; *out is NULL then. */
LAC_MUST_USE enum status label_prepare(struct chore *c, const struct prepare_model *m,
                                       const struct request *r, struct token_list *tokens,
                                       struct label_job **out, struct error *e);
void label_free(struct label_job *j); /* NULL: nothing */

/* The tokens that score sorted label i. */
static inline const uint32_t *label_answer(const struct label_job *j, uint32_t i, uint32_t *n) {
    const uint32_t first = i > 0 ? j->end[i - 1] : 0;
    *n = j->end[i] - first;
    return j->answers.ids + first;
}

/* Sorted label i has this score. Returns whether it was the last. */
bool label_scored(struct label_job *j, uint32_t i, double score);
/* Probabilities are there (of a head), or all scores: the winner's index in the request; fills
 * `told`. */
uint32_t label_winner(struct label_job *j);

#endif
