/* shortlist.h: the token ids that a kind of traffic uses, for heads that score only those.
 *
 * A side-car section: header of 64 bytes {magic u32 "SHRT", version u32, n_ids u32, n_vocab u32,
 * coverage f32: the share of full arg-maxes that it held on topics it had not seen, or 0 when
 * nothing was kept apart to measure it; zeros}, then ids u32[n_ids], ascending. The rows
 * of the output matrix that a shortlist head needs are those ids: no weights are copied into the
 * file. What a reader gains by packing them is its own matter.
 *
 * Hostile input: shortlist_view checks sizes, order and range. Ownership: a view points into the
 * section.
 */
#ifndef LAC_MODELS_SHORTLIST_H
#define LAC_MODELS_SHORTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define SHORTLIST_NONE UINT32_MAX

struct shortlist {
    const uint32_t *ids; /* [n_ids], ascending, each below n_vocab */
    uint32_t n_ids, n_vocab;
    float coverage;
};

/* STATUS_CORRUPT, STATUS_UNSUPPORTED; a list for another vocabulary is STATUS_INVALID. bytes:
 * 4-byte aligned. */
enum status shortlist_view(struct shortlist *s, const void *bytes, size_t n, uint32_t n_vocab,
                           struct error *e);
/* The rank of an id in the list, or SHORTLIST_NONE: a binary search. */
uint32_t shortlist_find(const struct shortlist *s, uint32_t id);

/* The n_ids ids of most mass (ties to the lower id; ids of no mass fill the rest, lowest first),
 * ascending into ids[]. mass [n_vocab] >= 0, n_ids <= n_vocab. *held: their share of the mass. */
enum status shortlist_choose(const double *mass, uint32_t n_vocab, uint32_t n_ids, uint32_t *ids,
                             double *held, struct error *e);
/* A section in malloc'ed *out. */
enum status shortlist_write(const uint32_t *ids, uint32_t n_ids, uint32_t n_vocab, float coverage,
                            void **out, size_t *n_bytes, struct error *e);

#endif
