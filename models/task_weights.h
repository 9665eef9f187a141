/* task_weights.h: trained weights as a model, and the steps that trainers share. */
#ifndef LAC_MODELS_TASK_WEIGHTS_H
#define LAC_MODELS_TASK_WEIGHTS_H

#include "models/task_fit.h"
#include "models/task_model.h"
#include "models/task_set.h"

/* The linear part as int8: the largest weight of a class among the buckets that share a scale is
 * 127. */
void task_model_quantise(struct task_model *m, const struct task_weights *w);

/* The other way: the weights that the model computes with. */
LAC_MUST_USE enum status task_model_weights(const struct task_model *m, struct task_weights *out,
                                            struct error *e);

/* A row of the matrix as features; without terms. */
void task_matrix_row(const struct task_matrix *x, uint32_t row, struct task_features *f);

/* logit [n_classes] += what block b adds. */
void task_add_block(const struct task_model *m, const struct task_features *f, uint32_t b,
                    float *logit);

/* weight [n] of the rows, of mean 1 (models/task_train.h says how). */
void task_weigh(const struct task_set *s, const uint32_t *row, uint32_t n, float source_power,
                float *weight);

#endif
