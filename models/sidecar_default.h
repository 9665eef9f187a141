/* sidecar_default.h: the side-car in the binary, assets/default.lacs: what was learnt for the
 * default model (assets/README.md says how it was made, and what it brings).
 */
#ifndef LAC_MODELS_SIDECAR_DEFAULT_H
#define LAC_MODELS_SIDECAR_DEFAULT_H

#include "models/sidecar.h"

/* *out NULL with STATUS_OK: the model is another one. */
enum status sidecar_default(const uint64_t model[2], struct sidecar **out,
                            struct error *e) LAC_MUST_USE;

#endif
