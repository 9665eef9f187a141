/* learned_block.h: a trained transformer block as a side-car section: a draft block, or an exit
 * block (models/train_block.h says what a block computes).
 *
 * A draft block (after Li et al., "EAGLE", arXiv:2401.15077) has two inputs for position t: the
 * model's state at t after the output norm, and the embedding (scaled as the model scales it) of
 * token t + 1. Its output y stands for the state at t + 1: through the shortlist head it guesses
 * token t + 2, and in place of the state it leads to the guess after that.
 * An exit block has one: the state after layer `after_layer` at t (layers counted from 1); through
 * the shortlist head its y guesses token t + 1.
 * Heads, RoPE, norm epsilon and attention scale are those of the plan's layer `like_layer`; rows
 * stand at the position of their state. The head is the model's own output matrix at the rows of
 * the shortlist of the same key.
 *
 * Format: header of 64 bytes {magic u32 "BLCK", version u32, n_inputs, after_layer, like_layer,
 * d, d_ff, n_heads, n_kv_heads, head_dim u32, agreement f32: with the model's likeliest token on
 * topics it had not seen; zeros}, 11 entries of 32 bytes in the order of enum train_tensor {type
 * u32 (GGUF number), rows u32, columns u32, zero u32, offset u64, bytes u64}, then the tensors,
 * each 64-byte aligned: matrices Q8_0 (F32 where columns are no multiple of 32), norms F32.
 *
 * Hostile input: learned_block_view checks everything against the plan. Ownership: tensors point
 * into the section.
 */
#ifndef LAC_MODELS_LEARNED_BLOCK_H
#define LAC_MODELS_LEARNED_BLOCK_H

#include "core/plan.h"
#include "core/status.h"
#include "models/train_block.h"

struct learned_block {
    uint32_t n_inputs, after_layer, like_layer;
    float agreement;
    struct train_shape shape; /* n_shortlist 0 */
    /* dim[0] = columns, dim[1] = rows, as weights of the plan have it; TRAIN_IN is empty (dim[1] 0)
     * with one input. */
    struct tensor tensors[TRAIN_TENSORS];
};

/* The shape of a block like that layer. STATUS_UNSUPPORTED for layers with biases, experts, head
 * norms, soft caps, windows, other norms or activations than a block has. */
enum status learned_block_shape(const struct plan *p, uint32_t like_layer, uint32_t n_inputs,
                                struct train_shape *out, struct error *e);
/* STATUS_CORRUPT, STATUS_UNSUPPORTED, and STATUS_INVALID for another model's. bytes: 64-byte
 * aligned. */
enum status learned_block_view(struct learned_block *b, const void *bytes, size_t n,
                               const struct plan *p, struct error *e);
/* All weights as one array in F32, as train_block has them. */
void learned_block_weights(const struct learned_block *b, float *weights);
/* A section in malloc'ed, 64-byte aligned *out. */
enum status learned_block_write(const struct train_shape *s, const float *weights,
                                uint32_t after_layer, uint32_t like_layer, float agreement,
                                void **out, size_t *n_bytes, struct error *e);
/* Sets the header's figure in such a section. */
void learned_block_set_agreement(void *section, float agreement);

#endif
