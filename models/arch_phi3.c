/* phi3: fused qkv and gate-up matrices, rotary halves with long and short factors. */
#include "models/arch_list.h"

void arch_phi3(struct arch_builder *b) {
    arch_common(b);
    const uint32_t window = arch_u32_or(b, "attention.sliding_window", 0, 1 << 26, 0);
    arch_rope(b, 0, ROPE_HALVES, 0, true);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        arch_attention(b, l);
        arch_ffn(b, l);
        /* A window that covers the whole context is none. */
        if (window < b->plan->n_ctx_train) b->plan->layers[l].window = window;
    }
}
