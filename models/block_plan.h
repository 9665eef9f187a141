/* block_plan.h: the learnt blocks of a side-car as blocks of a plan (core/plan.h), and the KV group
 * they keep their keys in.
 *
 * Which: the first traffic domain of the side-car that has a block of a kind asked for; its
 * shortlist says which rows of the model's output matrix the head is.
 *
 * Errors: STATUS_NOT_FOUND, a block without its shortlist; STATUS_UNSUPPORTED, blocks are not made
 * for such a model, or there is no KV group left; what learned_block_view and shortlist_view
 * refuse; a section of the wrong kind is STATUS_CORRUPT. The plan is then as it was. Ownership:
 * plan and blocks point into the memory (which stays where it is) and the side-car.
 */
#ifndef LAC_MODELS_BLOCK_PLAN_H
#define LAC_MODELS_BLOCK_PLAN_H

#include "core/plan.h"
#include "models/learned_block.h"
#include "models/sidecar.h"

/* A block looks back as far: more brings nothing (bank answers with 24 and 96 tokens of the prompt
 * in sight: the same agreement), and of a long prompt only the end needs its keys. */
enum { BLOCK_WINDOW = 128 };

struct block_plan_memory {
    struct learned_block blocks[BLOCK_KIND_COUNT];
    struct tensor head;
    void *head_rows;
    size_t head_bytes;
};

/* kinds: bit 1 << enum block_kind. Kinds that the side-car does not have are left out. */
enum status block_plan_add(struct plan *p, const struct sidecar *s, uint32_t kinds,
                           struct block_plan_memory *mem, struct error *e) LAC_MUST_USE;
void block_plan_free(struct block_plan_memory *mem);

#endif
