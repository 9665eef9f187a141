/* sample.h: the reference sampler: from a row of logits to a token and what is reported with it.
 * Every backend's sampler is compared with this one, bit for bit.
 *
 * 1. Raw logits z[n_vocab] (F32). bad when any is NaN or infinite; then only `bad` is set.
 * 2. Raw reports: lse = max + log(sum exp(z - max)), entropy = log(sum) - sum(e (z - max)) / sum,
 * the 20 best (ties to the lower id). Sums run in 16 virtual lanes (lane = id mod 16, e (z - max)
 * by fmaf), then one fixed tree; own exp and log.
 * 3. allowed bitmap (others are removed); biases: z > 0 ? z / divisor : z * divisor, then + delta.
 * 4. temperature 0: arg-max, ties to the lower id. Else the mass of an id is
 *    floor(exp((z - max) / temperature) * 2^40) as u64, so that sums are exact and order-free.
 * 5. top-k: the k largest by (z descending, id ascending); top-p: the shortest prefix of that order
 *    whose mass reaches floor(mass left by top-k * floor(top_p 2^32) / 2^32), at least one id;
 * min-p: ids whose mass is at least floor(min_p 2^40), the share of the largest.
 * 6. draw: r = rng_draw(seed, choice, position, purpose, attempt) * total mass / 2^64, in [0,
 * total); the first id, in id order, whose running mass exceeds r. If nothing is allowed, the
 * largest raw logit is taken.
 *
 * Selection is by radix over the few ids that can matter, never a sort of the vocabulary.
 */
#ifndef LAC_CORE_SAMPLE_H
#define LAC_CORE_SAMPLE_H

#include "core/step.h"

/* The loops over the vocabulary, which an instruction set may compute its way with the same bits.
 */
enum { SAMPLE_CHUNKS = 64 };
struct sample_kernels {
    /* Largest of each of SAMPLE_CHUNKS runs of `chunk` ids (the last ones may be short or empty:
     * -infinity). Returns whether all z are finite. */
    bool (*maxima)(const float *z, uint32_t n, uint32_t chunk, float *maxima);
    /* sum of exp(z - max) and of exp(z - max) (z - max), as in 2. */
    void (*sums)(const float *z, uint32_t n, float max, float *sum, float *weighted);
    /* Ids in [first, last) with z >= bound, ascending, into ids[]; returns how many. */
    uint32_t (*at_least)(const float *z, uint32_t first, uint32_t last, float bound, uint32_t *ids);
    /* mass[i] as in 4, and its sum per chunk. */
    void (*masses)(const float *z, uint32_t n, uint32_t chunk, float max, float temperature,
                   uint64_t *mass, uint64_t *chunk_mass);
};

/* Scratch of a sampler call, 64-byte aligned. */
size_t sample_scratch_bytes(uint32_t n_vocab);
/* `position` is the absolute position at which the token will stand. Fills the answered fields of
 * `o` except cosine and layer. `z` is left as it was. `kernels` NULL: plain C, the reference. */
void sample_row(const struct sample_kernels *kernels, const float *z, uint32_t n_vocab,
                uint32_t position, struct output *o, void *scratch);

#endif
