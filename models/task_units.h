/* task_units.h: what a task model would say without one of its features: ablation on rows at hand,
 * without training. A unit is a measure (task_dense_name) or a block of hashed features
 * (task_block_name); leaving it out takes its part off every class's score. */
#ifndef LAC_MODELS_TASK_UNITS_H
#define LAC_MODELS_TASK_UNITS_H

#include "models/task_model.h"

enum { TASK_UNITS_MAX = TASK_MAX_DENSE + TASK_N_BLOCKS };

uint32_t task_units(void);
const char *task_unit_name(uint32_t unit);
/* answer[task_units()]: the likeliest class without each unit. About as much work as one
 * classification. */
void task_units_without(const struct task_model *m, const struct task_features *f,
                        uint32_t *answer);

#endif
