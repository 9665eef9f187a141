/* gemma2 and gemma3: scaled embeddings, norms before and after each half, GELU, sliding windows.
 * The file's norm weights already include the +1 of the published form. */
#include <math.h>

#include "models/arch_list.h"

static void gemma_layer(struct arch_builder *b, uint32_t l) {
    struct layer_plan *y = &b->plan->layers[l];
    const uint32_t d = b->plan->d_model;
    char name[64];
    arch_attention(b, l);
    y->attn_post_norm = arch_vector(b, arch_name(name, l, "post_attention_norm.weight"), d, true);
    arch_ffn(b, l);
    y->ffn_post_norm = arch_vector(b, arch_name(name, l, "post_ffw_norm.weight"), d, true);
}

void arch_gemma2(struct arch_builder *b) {
    struct plan *p = b->plan;
    arch_common(b);
    p->activation = PLAN_GELU_TANH;
    p->embed_scale = sqrtf((float)p->d_model);
    p->logit_softcap = arch_f32_or(b, "final_logit_softcapping", 0, 1e6, 30);
    const float softcap = arch_f32_or(b, "attn_logit_softcapping", 0, 1e6, 50);
    const uint32_t window = arch_u32_or(b, "attention.sliding_window", 0, 1 << 26, 4096);
    const double base = (double)arch_f32_or(b, "rope.freq_base", 1, 1e12, 1e4);
    const double local_base = (double)arch_f32_or(b, "rope.freq_base_swa", 1, 1e12, base);
    arch_rope(b, 0, ROPE_HALVES, base, true);
    arch_rope(b, 1, ROPE_HALVES, local_base, true);
    for (uint32_t l = 0; l < p->n_layers && b->status == STATUS_OK; l++) {
        struct layer_plan *y = &p->layers[l];
        gemma_layer(b, l);
        y->attn_softcap = softcap;
        if (window != 0 && arch_windowed(b, l, 2)) {
            y->window = window;
            y->rope = 1;
        }
        /* The 27B model (46 layers) scales by the model width over the heads, not the head size. */
        if (p->n_layers == 46) y->attn_scale = 1.0f / sqrtf((float)p->d_model / (float)y->n_heads);
    }
}

void arch_gemma3(struct arch_builder *b) {
    struct plan *p = b->plan;
    arch_common(b);
    p->activation = PLAN_GELU_TANH;
    p->embed_scale = sqrtf((float)p->d_model);
    p->logit_softcap = arch_f32_or(b, "final_logit_softcapping", 0, 1e6, 0);
    const uint32_t window = arch_u32_or(b, "attention.sliding_window", 0, 1 << 26, 0);
    arch_rope(b, 0, ROPE_HALVES, arch_f32_or(b, "rope.freq_base", 1, 1e12, 1e6), true);
    arch_rope(b, 1, ROPE_HALVES, arch_f32_or(b, "rope.freq_base_swa", 1, 1e12, 1e4), false);
    for (uint32_t l = 0; l < p->n_layers && b->status == STATUS_OK; l++) {
        struct layer_plan *y = &p->layers[l];
        char name[64];
        gemma_layer(b, l);
        y->q_norm = arch_vector(b, arch_name(name, l, "attn_q_norm.weight"), y->head_dim, true);
        y->k_norm = arch_vector(b, arch_name(name, l, "attn_k_norm.weight"), y->head_dim, true);
        /* Five local layers, then a global one, unless the file says otherwise. */
        if (window != 0 && arch_windowed(b, l, 6)) {
            y->window = window;
            y->rope = 1;
        }
        if (p->n_layers == 62) y->attn_scale = 1.0f / sqrtf((float)p->d_model / (float)y->n_heads);
    }
}
