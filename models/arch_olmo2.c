/* olmo2: norms only after each half; queries and keys normalised over all heads at once. */
#include "models/arch_list.h"

void arch_olmo2(struct arch_builder *b) {
    arch_common(b);
    arch_rope(b, 0, ROPE_HALVES, 0, true);
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
    }
}
