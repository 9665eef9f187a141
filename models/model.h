/* model.h: an open model: the mapped GGUF and the plan made from it.
 *
 * Errors: a file that cannot run here is refused with one line that names the key or tensor.
 * Ownership: the model owns the plan and everything it points to; tensors point into the map.
 * Threads: read-only after open.
 */
#ifndef LAC_MODELS_MODEL_H
#define LAC_MODELS_MODEL_H

#include "core/plan.h"
#include "core/status.h"
#include "models/gguf.h"

struct model;

/* `n_ctx`: positions that will be used (0: the model's own); it decides between the short and the
 * long rotary factors of models that have both. */
enum status model_open(const char *path, uint32_t n_ctx, struct model **out, struct error *e);
void model_close(struct model *m);
const struct plan *model_plan(const struct model *m);
struct gguf *model_gguf(struct model *m);
const char *model_path(const struct model *m);

#endif
