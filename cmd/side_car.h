/* side_car.h: which side-car belongs to a model, and what of it runs.
 *
 * --side-car F, else NAME.lacs beside NAME.gguf, else the one in the binary if it was made for this
 * model. Errors: those of sidecar_open; a
 * file made for another model is refused, not passed over.
 */
#ifndef LAC_CMD_SIDE_CAR_H
#define LAC_CMD_SIDE_CAR_H

#include "core/config.h"
#include "core/plan.h"
#include "models/gguf.h"
#include "models/sidecar.h"

/* *out NULL with STATUS_OK: there is none. */
enum status side_car_open(const struct config *c, struct gguf *g, struct sidecar **out,
                          struct error *e) LAC_MUST_USE;
/* The kinds of blocks (bit 1 << enum block_kind) of it (NULL: none) that --drafts wants. auto takes
 * at most one, and only if it was right often enough on topics that it had not seen: a draft block,
 * whose guess costs less, before an exit block. STATUS_NOT_FOUND: one that was named is not there;
 * what learned_block_view refuses. */
enum status side_car_block_kinds(const struct config *c, const struct sidecar *s,
                                 const struct plan *p, uint32_t *kinds,
                                 struct error *e) LAC_MUST_USE;

#endif
