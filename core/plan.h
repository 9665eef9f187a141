/* plan.h: a model as data. models/ writes it once at load; backends read it; nothing in it is code.
 *
 * A plan names the weights (tensors in the mapped file, not owned) and fixes the arithmetic of
 * every layer. A layer is, in this order, each part skipped when its field says so: a =
 * attn_norm(x);  q,k,v = Wq a + bq, ...;  q,k = q_norm(q), k_norm(k);  q,k = rope(q,k); o =
 * softmax(softcap(q k * attn_scale)) v, causal, inside `window`;  o = Wo o + bo; o =
 * attn_post_norm(o);  x = x + residual_scale * o; f = ffn_norm(x);  g = act(Wgate f) * (Wup f)  [or
 * the experts' weighted sum];  d = Wdown g; d = ffn_post_norm(d);  x = x + residual_scale * d. At
 * the start x = embed_scale * row(embed, id); at the end logits = softcap(logit_scale *
 * head(out_norm(x))). Vectors are F32, row-major [rows, d]. Q rows are head-major: head h occupies
 * [h*head_dim, ...).
 *
 * A plan may also carry blocks: learnt layers that guess which tokens the model will draw. They are
 * no part of the model: nothing they compute enters an output.
 */
#ifndef LAC_CORE_PLAN_H
#define LAC_CORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/tensor.h"

enum {
    PLAN_MAX_LAYERS = 256,
    PLAN_MAX_GROUPS = 4,
    PLAN_MAX_ROPES = 2,
    PLAN_NO_ROPE = 255,
    KV_PAGE_TOKENS = 16,   /* positions of a KV page */
    KV_BLOCK_TOKENS = 256, /* positions of a key block: attention is summed block by block */
};

enum plan_activation { PLAN_SILU, PLAN_GELU_TANH };
/* Which elements of a head turn together: (2i, 2i+1), or (i, i + n_dims/2). */
enum rope_style { ROPE_ADJACENT, ROPE_HALVES };

/* Rows [row0, row0 + n_rows) of a tensor of shape [n_rows_total, k]; fused matrices are sliced so.
 * With experts, tensor dim[2] is the expert and the slice applies to each. t == NULL: absent. */
struct weight {
    const struct tensor *t;
    uint32_t row0;
    uint32_t n_rows;
};

/* Angle of pair i at position p is p * inv_freq[i]; sine and cosine are multiplied by `mscale`.
 * Every scaling rule (linear, YaRN, llama-3, longrope) is folded into these by models/. */
struct rope_plan {
    enum rope_style style;
    uint32_t n_dims;        /* leading elements of each head that turn */
    const double *inv_freq; /* [n_dims / 2], owned by the model */
    float mscale;
};

struct layer_plan {
    uint8_t group; /* KV group of this layer, and its index among the group's layers */
    uint8_t rope;  /* index into plan.ropes, or PLAN_NO_ROPE */
    uint16_t group_layer;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;                /* attends to positions > p - window; 0 = all */
    float attn_scale, attn_softcap; /* softcap 0 = none */
    const struct tensor *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm; /* [d_model] */
    const struct tensor *q_norm, *k_norm; /* [head_dim] per head, or [n_heads * head_dim] at once */
    struct weight q, k, v, o, gate, up, down;
    const struct tensor *q_bias, *k_bias, *v_bias, *o_bias; /* F32, first row row0-aligned */
    uint32_t q_bias0, k_bias0, v_bias0;                     /* first element inside a fused bias */
    uint32_t d_ff;
    float residual_scale;
    /* Mixture of experts: router [n_experts, d_model]; 0 experts = dense. */
    const struct tensor *router;
    uint32_t n_experts, n_experts_used;
    bool renormalise_experts; /* weights of the chosen experts sum to one */
};

/* Layers that share KV heads, head size and window share pages. */
struct kv_group {
    uint32_t n_layers, n_kv_heads, head_dim, window;
};

/* A learnt block (models/learned_block.h has its arithmetic and format): one layer with an output
 * norm and a head over a few ids. DRAFT reads, at position t, the model's state at t after the
 * output norm and the embedding of token t + 1, joined by `in`; EXIT reads the state after
 * `after_layer` layers, in = absent. Where a position was not computed for the block
 * (span.block_from in core/step.h), older keys of its page are read, which makes guesses worse and
 * nothing else. Softmax over the head's rows, ids[row], guesses token t + 2, or t + 1. */
enum block_kind { BLOCK_DRAFT, BLOCK_EXIT, BLOCK_KIND_COUNT };
struct block_plan {
    uint32_t n_ids;          /* 0: the plan has no block of this kind */
    uint32_t after_layer;    /* EXIT: 1 .. n_layers - 1 */
    struct weight in;        /* [d_model, 2 d_model]: state, then embedding */
    struct layer_plan layer; /* with a KV group that no layer of the model is in */
    const struct tensor *out_norm;
    struct weight head; /* [n_ids, d_model] */
    const uint32_t *ids;
};

struct plan {
    char architecture[32], name[128];
    uint32_t n_layers, d_model, n_vocab, n_ctx_train;
    uint32_t d_ff_max;        /* largest d_ff */
    uint32_t d_attention_max; /* largest n_heads * head_dim */
    float norm_epsilon;
    enum plan_activation activation;
    float embed_scale, logit_scale, logit_softcap;
    const struct tensor *embed;    /* [n_vocab, d_model] */
    struct weight head;            /* the same tensor as embed when tied */
    const struct tensor *out_norm; /* [d_model] */
    const struct tensor *head_bias;
    uint32_t n_groups, n_ropes;
    struct kv_group groups[PLAN_MAX_GROUPS];
    struct rope_plan ropes[PLAN_MAX_ROPES];
    struct layer_plan *layers; /* [n_layers], owned by the model */
    struct block_plan blocks[BLOCK_KIND_COUNT];
    uint64_t digest[2]; /* XXH3-128 of the tensors */
};

#endif
