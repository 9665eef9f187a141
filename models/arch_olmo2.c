/* olmo2: norms only after each half; queries and keys normalised over all heads at once. Files of
 * olmo3 come under this name: three layers of four have a sliding window and unscaled positions. */
#include "models/arch_list.h"

void arch_olmo2(struct arch_builder *b) {
    arch_common(b);
    const uint32_t window = arch_u32_or(b, "attention.sliding_window", 0, 1 << 26, 0);
    const double base = (double)arch_f32_or(b, "rope.freq_base", 1, 1e12, 1e4);
    arch_rope(b, 0, ROPE_HALVES, base, true);
    if (window != 0)
        arch_rope(b, 1, ROPE_HALVES, (double)arch_f32_or(b, "rope.freq_base_swa", 1, 1e12, base),
                  false);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        struct layer_plan *y = &b->plan->layers[l];
        const uint32_t d_model = b->plan->d_model;
        char name[64];
        arch_attention(b, l);
        y->q_norm = arch_vector(b, arch_name(name, l, "attn_q_norm.weight"),
                                y->n_heads * y->head_dim, true);
        y->k_norm = arch_vector(b, arch_name(name, l, "attn_k_norm.weight"),
                                y->n_kv_heads * y->head_dim, true);
        y->attn_post_norm =
            arch_vector(b, arch_name(name, l, "post_attention_norm.weight"), d_model, true);
        arch_ffn(b, l);
        y->ffn_post_norm =
            arch_vector(b, arch_name(name, l, "post_ffw_norm.weight"), d_model, true);
        if (window != 0 && arch_windowed(b, l, 4)) {
            y->window = window;
            y->rope = 1;
        }
    }
}
