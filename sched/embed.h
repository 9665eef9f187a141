/* embed.h: the texts of one embeddings request for the encoder, encoded by several chores at once
 * (sched/encode.h has the language model's).
 *
 * A job is made when the request is submitted and holds room for all its vectors. Each of its
 * chores takes the next text that nobody has taken, until none is left; which chore encodes a text
 * changes nothing in the vector. The first failure ends the others.
 *
 * Memory: inputs x dimensions x 4 bytes from the general heap, freed with the job. Threads: make,
 * answer and free on the loop thread while no chore of the job runs; embed_run on any worker.
 */
#ifndef LAC_SCHED_EMBED_H
#define LAC_SCHED_EMBED_H

#include "core/chore.h"
#include "core/request.h"
#include "sched/answer.h"

struct encoder; /* models/encoder.h */
struct embed_job;

/* The request stays unchanged until embed_free. STATUS_UNSUPPORTED: no encoder (NULL);
 * STATUS_INVALID: another number of dimensions than the encoder's. *out is NULL then. */
LAC_MUST_USE enum status embed_make(const struct encoder *enc, const struct request *r,
                                    struct embed_job **out, struct error *e);
void embed_free(struct embed_job *j); /* NULL is fine */

LAC_MUST_USE enum status embed_run(struct chore *c, struct embed_job *j, struct error *e);

/* All vectors in order, then done with the tokens that were computed. */
void embed_answer(const struct embed_job *j, struct answer *a);

#endif
