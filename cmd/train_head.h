/* train_head.h: hidden states of a model for the second look of a task model.
 *
 * Each row is put into the model's chat template as the user's only message (a model without a
 * template reads it as it stands); the layers up to the wanted one are run over it, and the states
 * after that layer, each divided by its root mean square, are averaged over the tokens of the text
 * (the first TRAIN_HEAD_TOKENS of them), position 0 left out. Rows of TASK_SYNTHETIC are never held
 * out.
 */
#ifndef LAC_CMD_TRAIN_HEAD_H
#define LAC_CMD_TRAIN_HEAD_H

#include "core/config.h"
#include "models/task_train.h"

enum { TRAIN_HEAD_TOKENS = 512 };

/* Adds the head to the model. `first`: the report's held-out logits of unseen sources, for *both.
 * Runs on as many threads as there are CPUs. */
LAC_MUST_USE enum status train_head(const struct config *c, const struct task_set *set,
                                    const struct task_train_options *o, const float *first,
                                    struct task_model *m, struct task_scores *alone,
                                    struct task_scores *both, struct error *e);

#endif
