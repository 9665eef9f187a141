/* granite: llama with four multipliers, and in some files no positions at all. */
#include "models/arch_list.h"

void arch_granite(struct arch_builder *b) {
    struct plan *p = b->plan;
    arch_common(b);
    p->embed_scale = arch_f32_or(b, "embedding_scale", 1e-6, 1e6, 1);
    p->logit_scale = 1.0f / arch_f32_or(b, "logit_scale", 1e-6, 1e6, 1);
    const float residual = arch_f32_or(b, "residual_scale", 1e-6, 1e6, 1);
    const float attention = arch_f32_or(b, "attention.scale", 0, 1e6, 0);
    /* The converters write "finetuned" false for the models without rotary embeddings. */
    bool rotary;
    if (!gguf_bool(b->g, "granite.rope.scaling.finetuned", &rotary)) rotary = true;
    arch_rope(b, 0, ROPE_ADJACENT, 0, true);
    for (uint32_t l = 0; l < p->n_layers && b->status == STATUS_OK; l++) {
        arch_attention(b, l);
        arch_ffn(b, l);
        p->layers[l].residual_scale = residual;
        if (attention > 0) p->layers[l].attn_scale = attention;
        if (!rotary) p->layers[l].rope = PLAN_NO_ROPE;
    }
}
