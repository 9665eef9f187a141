/* arch.h: from a GGUF's keys and tensors to a plan. One short file an architecture (arch_*.c): it
 * sets what is particular and calls the shared readers below.
 *
 * Failures are collected: the first one is kept in `b->status` and `*b->error`, later calls do
 * nothing, and the builder is asked once at the end. Hostile input: every tensor's shape is checked
 * against the plan; every number has a range.
 */
#ifndef LAC_MODELS_ARCH_H
#define LAC_MODELS_ARCH_H

#include "core/plan.h"
#include "core/status.h"
#include "models/gguf.h"

struct arch_builder {
    const struct gguf *g;
    char prefix[32]; /* general.architecture */
    struct plan *plan;
    uint32_t n_ctx;
    double *inv_freq[PLAN_MAX_ROPES]; /* [head_dim_max / 2] each, written by arch_rope */
    enum status status;
    struct error *error;
};

struct arch {
    const char *name; /* general.architecture */
    void (*build)(struct arch_builder *b);
};

/* NULL if this build has none of that name. */
const struct arch *arch_find(const char *name, size_t len);
/* "llama, qwen2, ..." for messages. */
const char *arch_names(void);

/* Keys under the architecture's prefix ("block_count" -> "llama.block_count"). */
uint32_t arch_u32(struct arch_builder *b, const char *key, uint32_t lo, uint32_t hi);
uint32_t arch_u32_or(struct arch_builder *b, const char *key, uint32_t lo, uint32_t hi,
                     uint32_t fallback);
float arch_f32_or(struct arch_builder *b, const char *key, double lo, double hi, double fallback);

/* Tensors. `shape` is checked; an absent optional tensor gives NULL. */
const struct tensor *arch_vector(struct arch_builder *b, const char *name, uint32_t n,
                                 bool required);
struct weight arch_matrix(struct arch_builder *b, const char *name, uint32_t k, uint32_t n);
/* Rows [row0, row0 + n) of a fused matrix with n_total rows. */
struct weight arch_slice(struct arch_builder *b, const char *name, uint32_t k, uint32_t n_total,
                         uint32_t row0, uint32_t n);
/* "blk.L.PART" */
const char *arch_name(char out[64], uint32_t layer, const char *part);
void arch_fail(struct arch_builder *b, enum status s, const char *field, const char *fmt, ...)
    LAC_PRINTF(4, 5);

/* The hyperparameters every decoder here has: sizes, norm epsilon, embeddings, output norm, head,
 * per-layer head counts (scalar or array), scale 1/sqrt(head_dim), SiLU, one KV group. */
void arch_common(struct arch_builder *b);
/* Rotary table `index` with the file's scaling keys applied: none, linear, YaRN, per-dimension
 * factors (rope_freqs.weight, or rope_factors_long/short by n_ctx). */
void arch_rope(struct arch_builder *b, uint32_t index, enum rope_style style, double base,
               bool scaled);
/* attn_norm, q, k, v (with biases where the file has them), output. */
void arch_attention(struct arch_builder *b, uint32_t layer);
/* ffn_norm, gate, up, down, or the experts when expert_count is set. */
void arch_ffn(struct arch_builder *b, uint32_t layer);
/* Whether a layer attends inside the sliding window only: the file's
 * attention.sliding_window_pattern (one boolean a layer, or n: every n-th layer sees everything, 0:
 * none does), else n = `every`. */
bool arch_windowed(struct arch_builder *b, uint32_t layer, uint32_t every);
/* Groups the layers by (KV heads, head size, window) once all are set; fails beyond the limit. */
void arch_group(struct arch_builder *b);
/* Fails if the file holds a tensor of the text model that the plan does not read (a bias, a norm or
 * an expert that this build's architecture does not have): leaving it out would change the answer.
 */
void arch_check_all_read(struct arch_builder *b);

#endif
