/* llama, and what is filed under that name: mistral, mixtral (experts), smollm2. */
#include "models/arch_list.h"

void arch_llama(struct arch_builder *b) {
    arch_common(b);
    arch_rope(b, 0, ROPE_ADJACENT, 0, true);
    for (uint32_t l = 0; l < b->plan->n_layers && b->status == STATUS_OK; l++) {
        arch_attention(b, l);
        arch_ffn(b, l);
    }
}
