/* qwen2: llama with biases on q, k, v and rotary halves. */
#include "models/arch_list.h"

void arch_qwen2(struct arch_builder *b) {
    arch_common(b);
    arch_rope(b, 0, ROPE_HALVES, 0, true);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        arch_attention(b, l);
        arch_ffn(b, l);
    }
}
