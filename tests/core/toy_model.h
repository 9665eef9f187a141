/* toy_model.h: tiny random plans with everything that real ones have, in memory: grouped heads,
 * fused and sliced matrices, biases, windows, softcaps, experts. */
#ifndef LAC_TESTS_TOY_MODEL_H
#define LAC_TESTS_TOY_MODEL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/plan.h"
#include "core/rng.h"

static inline double uniform(uint32_t *counter) {
    return (double)(rng_draw(5, 0, (*counter)++, RNG_TEST, 0) >> 11) * 0x1p-53;
}

/* A random model: memory, tensors, plan. */
struct toy {
    struct plan plan;
    struct layer_plan layers[4];
    struct tensor tensors[128];
    uint32_t n_tensors, counter;
    double inv_freq[2][64];
    void *blocks[128];
};

static inline void put_f16(uint8_t *p, double v) {
    const uint16_t h = f32_to_f16((float)v);
    memcpy(p, &h, sizeof h);
}

/* Random weights of about `size`, around `centre` for F32 vectors. */
static inline const struct tensor *tensor_new(struct toy *t, enum tensor_type type, uint64_t k,
                                              uint64_t n, uint64_t experts, double centre,
                                              double size) {
    struct tensor *x = &t->tensors[t->n_tensors];
    const struct tensor_format *f = tensor_format(type);
    const uint64_t bytes = tensor_row_bytes(f, k) * n * experts;
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    *x = (struct tensor){
        .type = type, .n_dims = 2, .dim = {k, n, experts, 1}, .bytes = bytes, .data = data};
    snprintf(x->name, sizeof x->name, "t%u", t->n_tensors);
    t->blocks[t->n_tensors++] = data;
    for (uint64_t at = 0; at < bytes; at += f->block_bytes) {
        if (type == TENSOR_F32) {
            const float v = (float)(centre + size * (2 * uniform(&t->counter) - 1));
            memcpy(data + at, &v, sizeof v);
            continue;
        }
        for (uint32_t i = 0; i < f->block_bytes; i++)
            data[at + i] = (uint8_t)(uniform(&t->counter) * 256);
        if (type == TENSOR_F16) put_f16(data + at, size * (2 * uniform(&t->counter) - 1));
        if (type == TENSOR_Q8_0) put_f16(data + at, size * uniform(&t->counter) / 127);
        if (type == TENSOR_Q4_1) {
            const double d = size * (0.5 + uniform(&t->counter)) / 8;
            put_f16(data + at, d);
            put_f16(data + at + 2, -7.5 * d);
        }
    }
    return x;
}

static inline struct weight weight_new(struct toy *t, enum tensor_type type, uint32_t k, uint32_t n,
                                       uint32_t experts) {
    return (struct weight){tensor_new(t, type, k, n, experts, 0, 2 / sqrt(k)), 0, n};
}

static inline const struct tensor *vector_new(struct toy *t, uint32_t n, double centre,
                                              double size) {
    const struct tensor *v = tensor_new(t, TENSOR_F32, n, 1, 1, centre, size);
    return v;
}

enum toy_kind { TOY_LLAMA, TOY_GEMMA, TOY_MIXTURE };

static inline struct toy *toy_new(enum toy_kind kind) {
    struct toy *t = calloc(1, sizeof *t);
    struct plan *p = &t->plan;
    const uint32_t d = 64, hd = kind == TOY_GEMMA ? 32 : 16, n_heads = kind == TOY_GEMMA ? 5 : 6;
    const uint32_t n_kv = kind == TOY_GEMMA ? 1 : 2, ff = 96;
    const enum tensor_type type = kind == TOY_MIXTURE ? TENSOR_Q8_0 : TENSOR_Q4_1;
    p->n_layers = 3;
    p->d_model = d;
    p->n_vocab = 333;
    p->n_ctx_train = 4096;
    p->d_ff_max = ff;
    p->d_attention_max = n_heads * hd;
    p->norm_epsilon = 1e-5f;
    p->activation = kind == TOY_GEMMA ? PLAN_GELU_TANH : PLAN_SILU;
    p->embed_scale = kind == TOY_GEMMA ? 8 : 1;
    p->logit_scale = kind == TOY_MIXTURE ? 0.5f : 1;
    p->logit_softcap = kind == TOY_GEMMA ? 30 : 0;
    p->embed = tensor_new(t, TENSOR_Q8_0, d, p->n_vocab, 1, 0, 1);
    p->head = kind == TOY_MIXTURE ? weight_new(t, TENSOR_F16, d, p->n_vocab, 1)
                                  : (struct weight){p->embed, 0, p->n_vocab};
    p->out_norm = vector_new(t, d, 1, 0.3);
    p->n_ropes = kind == TOY_GEMMA ? 2 : 1;
    for (uint32_t r = 0; r < p->n_ropes; r++) {
        const uint32_t n_dims = kind == TOY_LLAMA ? hd - 4 : hd;
        for (uint32_t i = 0; i < n_dims / 2; i++)
            t->inv_freq[r][i] = pow(r == 0 ? 10000 : 100, -2.0 * i / n_dims);
        p->ropes[r] = (struct rope_plan){kind == TOY_LLAMA ? ROPE_ADJACENT : ROPE_HALVES, n_dims,
                                         t->inv_freq[r], r == 0 ? 1 : 1.25f};
    }
    p->n_groups = kind == TOY_GEMMA ? 2 : 1;
    p->groups[0] = (struct kv_group){0, n_kv, hd, 0};
    p->groups[1] = (struct kv_group){0, n_kv, hd, 40};
    p->layers = t->layers;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        struct layer_plan *l = &t->layers[i];
        l->group = kind == TOY_GEMMA && i != 1;
        l->group_layer = (uint16_t)p->groups[l->group].n_layers++;
        l->rope = kind == TOY_MIXTURE && i == 1 ? PLAN_NO_ROPE : l->group;
        l->n_heads = n_heads;
        l->n_kv_heads = n_kv;
        l->head_dim = hd;
        l->window = p->groups[l->group].window;
        l->attn_scale = (float)(1 / sqrt(hd));
        l->attn_softcap = kind == TOY_GEMMA ? 20 : 0;
        l->attn_norm = vector_new(t, d, 1, 0.3);
        l->ffn_norm = vector_new(t, d, 1, 0.3);
        l->q = weight_new(t, type, d, n_heads * hd, 1);
        /* One fused tensor, sliced, as in phi3. */
        const struct weight kv = weight_new(t, type, d, 2 * n_kv * hd, 1);
        l->k = (struct weight){kv.t, 0, n_kv * hd};
        l->v = (struct weight){kv.t, n_kv * hd, n_kv * hd};
        l->o = weight_new(t, type, n_heads * hd, d, 1);
        l->d_ff = ff;
        l->residual_scale = kind == TOY_LLAMA ? 1 : 0.7f;
        const uint32_t experts = kind == TOY_MIXTURE ? 5 : 1;
        l->gate = weight_new(t, type, d, ff, experts);
        l->up = weight_new(t, type, d, ff, experts);
        l->down = weight_new(t, type, ff, d, experts);
        if (kind == TOY_MIXTURE) {
            l->n_experts = experts;
            l->n_experts_used = 2;
            l->renormalise_experts = i != 1;
            l->router = tensor_new(t, TENSOR_F32, d, experts, 1, 0, 0.3);
            l->q_norm = vector_new(t, n_heads * hd, 1, 0.3);
            l->k_norm = vector_new(t, n_kv * hd, 1, 0.3);
        }
        if (kind == TOY_GEMMA) {
            l->attn_post_norm = vector_new(t, d, 1, 0.3);
            l->ffn_post_norm = vector_new(t, d, 1, 0.3);
            l->q_norm = vector_new(t, hd, 1, 0.3);
            l->k_norm = vector_new(t, hd, 1, 0.3);
        } else {
            l->q_bias = vector_new(t, n_heads * hd, 0, 0.2);
            l->k_bias = l->v_bias = vector_new(t, 2 * n_kv * hd, 0, 0.2);
            l->v_bias0 = n_kv * hd;
            l->o_bias = vector_new(t, d, 0, 0.1);
        }
    }
    return t;
}

static inline void toy_free(struct toy *t) {
    for (uint32_t i = 0; i < t->n_tensors; i++) free(t->blocks[i]);
    free(t);
}

static inline void ids_new(const struct toy *t, uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(rng_draw(8, 0, i, RNG_TEST, 0) % t->plan.n_vocab);
}

#endif
