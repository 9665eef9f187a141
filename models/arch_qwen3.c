/* qwen3 and qwen3moe: queries and keys normalised per head before they turn. */
#include "models/arch_list.h"

void arch_qwen3(struct arch_builder *b) {
    arch_common(b);
    arch_rope(b, 0, ROPE_HALVES, 0, true);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        struct layer_plan *y = &b->plan->layers[l];
        char name[64];
        arch_attention(b, l);
        y->q_norm = arch_vector(b, arch_name(name, l, "attn_q_norm.weight"), y->head_dim, true);
        y->k_norm = arch_vector(b, arch_name(name, l, "attn_k_norm.weight"), y->head_dim, true);
        arch_ffn(b, l);
    }
}
