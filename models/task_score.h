/* task_score.h: how good labels and probabilities are.
 *
 * accuracy; macro-F1 over the labels that occur among truth or answers; ECE: expected calibration
 * error over 15 equal bins of confidence (Guo et al., arXiv:1706.04599). Pure functions.
 */
#ifndef LAC_MODELS_TASK_SCORE_H
#define LAC_MODELS_TASK_SCORE_H

#include <stdint.h>

#include "models/task_model.h"

enum { TASK_ECE_BINS = 15 };

struct task_scores {
    uint32_t n, n_classes;
    uint32_t confusion[TASK_MAX_CLASSES][TASK_MAX_CLASSES]; /* [truth][answer] */
    uint32_t abstained, abstained_right; /* of them, how many would have been right */
    uint32_t bin_n[TASK_ECE_BINS], bin_right[TASK_ECE_BINS];
    double bin_confidence[TASK_ECE_BINS];
};

void task_scores_init(struct task_scores *s, uint32_t n_classes);
/* p [n_classes]: probabilities. */
void task_scores_add(struct task_scores *s, uint32_t truth, const float *p, float abstain_below);
void task_scores_merge(struct task_scores *s, const struct task_scores *more);
double task_scores_accuracy(const struct task_scores *s); /* 0 of no rows */
double task_scores_macro_f1(const struct task_scores *s);
double task_scores_recall(const struct task_scores *s, uint32_t label);
double task_scores_ece(const struct task_scores *s);

#endif
