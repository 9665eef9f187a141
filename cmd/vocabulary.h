/* vocabulary.h: whole rows of logits from states that were kept (a tap after the output norm), for
 * commands that look at distributions. In FP32 from the file's own weights, a tile of the
 * vocabulary at a time.
 *
 * Memory: vocabulary_open takes [max_rows, VOCABULARY_TILE] and a tile of weights; the engine
 * outlives it. Threads: the engine's; a tile's callback runs in the caller's thread.
 */
#ifndef LAC_CMD_VOCABULARY_H
#define LAC_CMD_VOCABULARY_H

#include "cmd/engine.h"
#include "models/train_gemm.h"

enum { VOCABULARY_TILE = 512 };

struct vocabulary {
    const struct engine *engine;
    struct gemm_context gemm;
    uint32_t max_rows;
    float *logits; /* [max_rows, VOCABULARY_TILE] */
    float *head;   /* [VOCABULARY_TILE, d_model] */
};

/* logits: [rows, VOCABULARY_TILE] of ids [first, first + n). */
typedef void vocabulary_tile(void *arg, const float *logits, uint32_t first, uint32_t n);

LAC_MUST_USE enum status vocabulary_open(struct vocabulary *v, const struct engine *engine,
                                         uint32_t max_rows, struct error *e);
void vocabulary_close(struct vocabulary *v); /* of zeros: nothing */
/* states [rows, d_model], rows <= max_rows; tiles in ascending order. */
void vocabulary_walk(struct vocabulary *v, const float *states, uint32_t rows,
                     vocabulary_tile *tile, void *arg);

#endif
