/* smollm3: llama whose every fourth layer has no rotary embedding. */
#include "models/arch_list.h"

void arch_smollm3(struct arch_builder *b) {
    arch_common(b);
    arch_rope(b, 0, ROPE_ADJACENT, 0, true);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        arch_attention(b, l);
        arch_ffn(b, l);
        if (l % 4 == 3) b->plan->layers[l].rope = PLAN_NO_ROPE;
    }
}
