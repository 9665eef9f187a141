/* explain_request.h: the explanation of what one id names: ended prompts from the ring, running
 * ones from their slots. */
#ifndef LAC_SCHED_EXPLAIN_REQUEST_H
#define LAC_SCHED_EXPLAIN_REQUEST_H

#include "sched/slot.h"

/* Appends {"id", "prompts": [...]}, oldest first. STATUS_NOT_FOUND (field id): it has not started,
 * or is not among the newest; nothing was appended. */
LAC_MUST_USE enum status explain_request(const struct explain *x, const struct slots *slots,
                                         struct text id, struct buffer *out, struct error *e);

#endif
