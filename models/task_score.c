#include "models/task_score.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/check.h"

void task_scores_init(struct task_scores *s, uint32_t n_classes) {
    memset(s, 0, sizeof *s);
    s->n_classes = n_classes;
}

void task_scores_add(struct task_scores *s, uint32_t truth, const float *p, float abstain_below) {
    CHECK(truth < s->n_classes);
    uint32_t best = 0;
    for (uint32_t c = 1; c < s->n_classes; c++)
        if (p[c] > p[best]) best = c;
    const bool right = best == truth;
    s->n++;
    s->confusion[truth][best]++;
    if (p[best] < abstain_below) {
        s->abstained++;
        s->abstained_right += right;
    }
    int bin = (int)(p[best] * TASK_ECE_BINS);
    if (bin >= TASK_ECE_BINS) bin = TASK_ECE_BINS - 1;
    if (bin < 0) bin = 0;
    s->bin_n[bin]++;
    s->bin_right[bin] += right;
    s->bin_confidence[bin] += (double)p[best];
}

void task_scores_merge(struct task_scores *s, const struct task_scores *more) {
    CHECK(s->n_classes == more->n_classes);
    s->n += more->n;
    s->abstained += more->abstained;
    s->abstained_right += more->abstained_right;
    for (uint32_t t = 0; t < s->n_classes; t++)
        for (uint32_t a = 0; a < s->n_classes; a++) s->confusion[t][a] += more->confusion[t][a];
    for (int b = 0; b < TASK_ECE_BINS; b++) {
        s->bin_n[b] += more->bin_n[b];
        s->bin_right[b] += more->bin_right[b];
        s->bin_confidence[b] += more->bin_confidence[b];
    }
}

double task_scores_accuracy(const struct task_scores *s) {
    uint32_t right = 0;
    for (uint32_t c = 0; c < s->n_classes; c++) right += s->confusion[c][c];
    return s->n ? (double)right / s->n : 0;
}

static void margins(const struct task_scores *s, uint32_t c, double *truth, double *answers) {
    *truth = *answers = 0;
    for (uint32_t k = 0; k < s->n_classes; k++) {
        *truth += s->confusion[c][k];
        *answers += s->confusion[k][c];
    }
}

double task_scores_macro_f1(const struct task_scores *s) {
    double sum = 0;
    uint32_t present = 0;
    for (uint32_t c = 0; c < s->n_classes; c++) {
        double truth, answers;
        margins(s, c, &truth, &answers);
        if (truth + answers == 0) continue;
        sum += 2 * s->confusion[c][c] / (truth + answers);
        present++;
    }
    return present ? sum / present : 0;
}

double task_scores_recall(const struct task_scores *s, uint32_t label) {
    double truth, answers;
    margins(s, label, &truth, &answers);
    return truth > 0 ? s->confusion[label][label] / truth : 0;
}

double task_scores_ece(const struct task_scores *s) {
    double sum = 0;
    for (int b = 0; b < TASK_ECE_BINS; b++) sum += fabs(s->bin_confidence[b] - s->bin_right[b]);
    return s->n ? sum / s->n : 0;
}
