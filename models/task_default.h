/* task_default.h: the task model in the binary, assets/task.lact (assets/README.md says how it was
 * made).
 *
 * Errors: STATUS_UNSUPPORTED when the features changed and the file was not made anew.
 */
#ifndef LAC_MODELS_TASK_DEFAULT_H
#define LAC_MODELS_TASK_DEFAULT_H

#include "models/task_model.h"

LAC_MUST_USE enum status task_model_default(struct task_model **out, struct error *e);
const void *task_model_default_bytes(size_t *n);

#endif
