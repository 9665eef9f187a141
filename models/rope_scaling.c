/* Every way of stretching rotary embeddings, folded into one frequency per pair and one factor. */
#include <math.h>
#include <stdio.h>

#include "core/math.h"
#include "models/arch.h"

static const double TWO_PI = 6.283185307179586476925;

static bool is(struct gguf_string s, const char *word) {
    size_t i = 0;
    while (i < s.len && word[i] != '\0' && s.data[i] == word[i]) i++;
    return i == s.len && word[i] == '\0';
}

/* The pair whose wavelength makes `turns` turns over the original context (YaRN, Peng et al. 2023,
 * section 3.2). */
static double correction_pair(uint32_t n_dims, double n_ctx_original, double turns, double base) {
    return n_dims * math_log(n_ctx_original / (turns * TWO_PI)) / (2 * math_log(base));
}

void arch_rope(struct arch_builder *b, uint32_t index, enum rope_style style, double base,
               bool scaled) {
    if (b->status != STATUS_OK) return;
    struct plan *p = b->plan;
    /* Layers may differ: no head may turn more elements than it has. */
    uint32_t head_dim = p->layers[0].head_dim;
    for (uint32_t l = 1; l < p->n_layers; l++)
        if (p->layers[l].head_dim < head_dim) head_dim = p->layers[l].head_dim;
    const uint32_t n_dims = arch_u32_or(b, "rope.dimension_count", 2, head_dim, head_dim);
    if (n_dims % 2 != 0) {
        arch_fail(b, STATUS_CORRUPT, "rope.dimension_count", "rope.dimension_count is odd");
        return;
    }
    const uint32_t n_pairs = n_dims / 2;
    if (base == 0) base = (double)arch_f32_or(b, "rope.freq_base", 1, 1e12, 10000);

    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", b->prefix);
    struct gguf_string type = {0};
    const bool has_type = gguf_str(b->g, key, &type);
    double factor = (double)arch_f32_or(b, "rope.scaling.factor", 1e-6, 1e6, 0);
    if (factor == 0) factor = (double)arch_f32_or(b, "rope.scale_linear", 1e-6, 1e6, 1);
    const uint32_t n_ctx_original =
        arch_u32_or(b, "rope.scaling.original_context_length", 1, 1 << 26, p->n_ctx_train);
    double mscale = scaled ? (double)arch_f32_or(b, "rope.scaling.attn_factor", 1e-6, 1e6, 1) : 1;
    const bool yarn = scaled && has_type && is(type, "yarn");
    const bool none = !scaled || (has_type && is(type, "none"));
    if (has_type && !none && !yarn && !is(type, "linear") && !is(type, "longrope")) {
        arch_fail(b, STATUS_UNSUPPORTED, key, "rope scaling \"%.*s\" is not supported",
                  (int)(type.len < 32 ? type.len : 32), type.data);
        return;
    }
    const double scale = none || (has_type && is(type, "longrope")) ? 1 : 1 / factor;

    const float *factors = NULL;
    if (scaled) {
        const struct tensor *t = arch_vector(b, "rope_freqs.weight", n_pairs, false);
        if (t == NULL)
            t = arch_vector(b,
                            b->n_ctx > n_ctx_original ? "rope_factors_long.weight"
                                                      : "rope_factors_short.weight",
                            n_pairs, false);
        if (t != NULL) factors = t->data;
    }

    double low = 0, high = 0;
    if (yarn) {
        const double fast = (double)arch_f32_or(b, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
        const double slow = (double)arch_f32_or(b, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
        low = floor(correction_pair(n_dims, n_ctx_original, fast, base));
        high = ceil(correction_pair(n_dims, n_ctx_original, slow, base));
        if (low < 0) low = 0;
        if (high > n_dims - 1) high = n_dims - 1;
        mscale *= 1 + 0.1 * math_log(1 / scale);
    }
    const double log_base = math_log(base);
    for (uint32_t i = 0; i < n_pairs; i++) {
        double f = math_exp(-(2.0 * i / n_dims) * log_base);
        if (factors != NULL) {
            if (!(factors[i] > 0)) {
                arch_fail(b, STATUS_CORRUPT, "rope_freqs.weight", "rope factor %u is %g", i,
                          (double)factors[i]);
                return;
            }
            f /= (double)factors[i];
        }
        if (yarn) {
            double ramp = (i - low) / (high - low > 0.001 ? high - low : 0.001);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f * scale * ramp + f * (1 - ramp);
        } else {
            f *= scale;
        }
        b->inv_freq[index][i] = f;
    }
    p->ropes[index] = (struct rope_plan){
        .style = style, .n_dims = n_dims, .inv_freq = b->inv_freq[index], .mscale = (float)mscale};
    if (index >= p->n_ropes) p->n_ropes = index + 1;
}
