/* task_train.h: makes task models: training with validation, adaptation to new rows, the head of
 * the second look.
 *
 * Rows are weighted: each label counts the same in total, and inside a label each cell of (source,
 * language) of n rows weighs as n^(1 - source_power), so that a large source does not speak for
 * all. Validation trains further models: `folds` random ones (rows of sources that were seen) and
 * one for each source left out whole (unseen ones). Rows of the source TASK_SYNTHETIC are trained
 * on in every fold and never tested on. The figures are those of the int8 models. The temperature
 * is fitted to both kinds of held-out rows.
 *
 * Deterministic: the same rows in the same order, options and seed give the same file.
 * Memory: about 8 bytes a feature (300 a row) and 32 bytes a bucket.
 * Errors: STATUS_INVALID (fewer than two labels, a label without rows), STATUS_GONE (the progress
 * callback stopped it), STATUS_NO_MEMORY; outputs are NULL or zeroed.
 */
#ifndef LAC_MODELS_TASK_TRAIN_H
#define LAC_MODELS_TASK_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "models/task_model.h"
#include "models/task_score.h"
#include "models/task_set.h"

#define TASK_SYNTHETIC "seed"
/* The cost that task_adapt wants: with 200 fresh rows and the old ones replayed, the new domain is
 * learnt and the old one kept (measured from 0.1 to 20). */
#define TASK_ADAPT_COST 0.3f

enum { TASK_MAX_UNITS = TASK_MAX_DENSE + TASK_N_BLOCKS };

/* Called now and then with done <= total; false stops the work. */
typedef bool task_progress(void *context, const char *phase, uint32_t done, uint32_t total);

struct task_train_options {
    uint32_t epochs;
    float rate;
    float cost; /* C: the penalty is |W|^2 / (2 C n) */
    float source_power;
    float dense_gain;
    float abstain_below;
    uint64_t seed;
    uint32_t folds;          /* 0: no validation on seen sources */
    bool leave_sources_out;  /* validation on unseen sources */
    task_progress *progress; /* may be NULL */
    void *context;
};

struct task_ablation {
    const char *unit; /* a measure, a word list or a block of features */
    double macro_f1;  /* of the seen folds without it */
};

struct task_report {
    uint32_t n_rows, n_sources, n_langs;
    float temperature;
    struct task_scores seen, unseen;
    struct task_scores seen_lang[TASK_MAX_LANGS], unseen_lang[TASK_MAX_LANGS];
    struct task_scores seen_source[TASK_SET_MAX_SOURCES], unseen_source[TASK_SET_MAX_SOURCES];
    uint32_t n_units;
    struct task_ablation ablation[TASK_MAX_UNITS];
    /* [n_rows][n_classes], held-out logits over the temperature; not finite where a row was not
     * held out. To be freed with task_report_free. */
    float *seen_logit, *unseen_logit;
};

struct task_train_options task_train_defaults(void);

/* *words: copied. *report may be NULL. */
LAC_MUST_USE enum status task_train(const struct task_set *set, const struct task_words *words,
                                    const struct task_train_options *o, struct task_model **out,
                                    struct task_report *report, struct error *e);
void task_report_free(struct task_report *r);

/* The scores of a model on a set whose labels are the model's. lang [TASK_MAX_LANGS] may be NULL.
 */
LAC_MUST_USE enum status task_test(const struct task_model *m, const struct task_set *set,
                                   struct task_scores *all, struct task_scores *lang,
                                   struct error *e);

/* A candidate for traffic that has moved: what the old model says plus a correction learnt from
 * `fresh` (200 rows will do) and from `replay` (rows of before; may be NULL), whose labels are the
 * model's. The correction is penalised, so that what the fresh rows do not speak of stays. The head
 * is kept. Seconds, not minutes. */
LAC_MUST_USE enum status task_adapt(const struct task_model *old, const struct task_set *fresh,
                                    const struct task_set *replay,
                                    const struct task_train_options *o, struct task_model **out,
                                    struct error *e);

/* The source of rows that are trained on in every fold and never tested on. */
#define TASK_HEAD_ALWAYS (UINT32_MAX - 1)

struct task_head_input {
    const float *hidden;            /* [n][dim], see task_model_refine */
    const uint32_t *label, *source; /* [n] */
    const float *first; /* [n][n_classes]: held-out logits of the first look (a report's) */
    uint32_t n, dim, layer, n_sources;
    uint64_t model[2]; /* gguf_digest */
};

/* Fits the head of the second look and puts it into the model. *alone and *both: leave-sources-out
 * scores of the head and of the average of the two looks (rows with finite `first`). */
LAC_MUST_USE enum status task_train_head(struct task_model *m, const struct task_head_input *in,
                                         const struct task_train_options *o,
                                         struct task_scores *alone, struct task_scores *both,
                                         struct error *e);

#endif
