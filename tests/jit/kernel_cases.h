/* kernel_cases.h: specs that the tests compile and run: the default model's, and others that reach
 * every format, epilogue and variant. */
#ifndef LAC_TESTS_JIT_KERNEL_CASES_H
#define LAC_TESTS_JIT_KERNEL_CASES_H

#include <string.h>

#include "core/tensor.h"
#include "jit/kernel.h"

struct kernel_case {
    struct kernel_spec spec;
    uint32_t n_rows;
    bool walk;
    bool main; /* of the default model: in the quick suite */
};

enum { KERNEL_CASES_MAX = 112 };

static inline struct kernel_case *add_case(struct kernel_case *cases, uint32_t *n,
                                           enum kernel_family family, uint32_t n_rows, bool main) {
    struct kernel_case *c = &cases[(*n)++];
    memset(c, 0, sizeof *c);
    c->spec.family = family;
    c->n_rows = n_rows;
    c->main = main;
    return c;
}

static inline struct matmul_spec *add_matmul(struct kernel_case *cases, uint32_t *n,
                                             enum tensor_type format, uint32_t outputs, uint32_t k,
                                             enum kernel_input input, enum kernel_epilogue epilogue,
                                             uint32_t n_rows, bool main) {
    struct kernel_case *c = add_case(cases, n, KERNEL_MATMUL, n_rows, main);
    struct matmul_spec *m = &c->spec.matmul;
    m->format = format;
    m->n = outputs;
    m->k = k;
    m->activation_bits = 16;
    m->input = input;
    m->epilogue = epilogue;
    m->epsilon = 1e-5f;
    m->scale = 1;
    return m;
}

static inline void add_qkv(struct matmul_spec *m, uint32_t heads, uint32_t kv_heads,
                           uint32_t head_dim) {
    m->n_heads = heads;
    m->n_kv_heads = kv_heads;
    m->head_dim = head_dim;
    m->rope = KERNEL_ROPE_HALVES;
    m->rope_dims = head_dim;
    m->attn_scale = 0.125f;
}

static inline void add_attention(struct kernel_case *cases, uint32_t *n, uint32_t heads,
                                 uint32_t kv_heads, uint32_t head_dim, uint32_t window, float cap,
                                 bool gated, bool walk, bool main) {
    struct kernel_case *c = add_case(cases, n, KERNEL_ATTENTION, walk ? 64 : 1, main);
    c->walk = walk;
    struct attention_spec *a = &c->spec.attention;
    a->n_heads = heads;
    a->n_kv_heads = kv_heads;
    a->head_dim = head_dim;
    a->window = window;
    a->gated = gated;
    a->softcap = cap;
    a->activation_bits = 16;
}

static inline uint32_t kernel_cases(struct kernel_case *cases) {
    uint32_t n = 0;
    /* SmolLM2-135M. */
    static const uint32_t buckets[] = {1, 2, 8, 16, 32, 64};
    for (unsigned i = 0; i < sizeof buckets / sizeof *buckets; i++) {
        const uint32_t rows = buckets[i];
        const bool few = rows <= 16;
        const enum kernel_input in = few ? KERNEL_IN_NORM : KERNEL_IN_PLANES;
        add_qkv(add_matmul(cases, &n, TENSOR_Q4_1, 960, 576, in, KERNEL_OUT_QKV, rows, true), 9, 3,
                64);
        add_matmul(cases, &n, TENSOR_Q4_1, 576, 576, KERNEL_IN_PLANES, KERNEL_OUT_RESIDUAL, rows,
                   true);
        add_matmul(cases, &n, TENSOR_Q8_0, 49152, 576, KERNEL_IN_PLANES, KERNEL_OUT_STORE, rows,
                   true);
        struct ffn_spec *f = &add_case(cases, &n, KERNEL_FFN, rows, true)->spec.ffn;
        *f = (struct ffn_spec){.format = TENSOR_Q4_1,
                               .n = 1536,
                               .k = 576,
                               .down_format = TENSOR_Q4_1,
                               .activation_bits = 16,
                               .input = in,
                               .next_bits = few ? 0 : 16,
                               .epsilon = 1e-5f,
                               .scale = 1};
        if (!few) {
            add_matmul(cases, &n, TENSOR_Q4_1, 3072, 576, KERNEL_IN_PLANES, KERNEL_OUT_GATED, rows,
                       true);
            add_matmul(cases, &n, TENSOR_Q4_1, 576, 1536, KERNEL_IN_PLANES, KERNEL_OUT_RESIDUAL,
                       rows, true);
        }
    }
    add_attention(cases, &n, 9, 3, 64, 0, 0, false, false, true);
    add_attention(cases, &n, 9, 3, 64, 0, 0, false, true, true);
    add_attention(cases, &n, 9, 3, 64, 0, 0, true, false, false);
    add_attention(cases, &n, 9, 3, 64, 0, 0, true, true, false);
    add_attention(cases, &n, 8, 4, 256, 4096, 50, false, false, false);
    add_attention(cases, &n, 8, 4, 256, 4096, 50, false, true, false);
    add_attention(cases, &n, 32, 8, 128, 0, 0, false, false, false);
    add_attention(cases, &n, 32, 8, 128, 0, 0, false, true, false);
    add_attention(cases, &n, 32, 32, 96, 2048, 0, false, true, false);
    add_attention(cases, &n, 16, 1, 64, 0, 0, false, false, false);
    struct kernel_case *c = add_case(cases, &n, KERNEL_NORM, 16, true);
    c->spec.norm = (struct norm_spec){
        .k = 576, .norm = 1, .activation_bits = 16, .epsilon = 1e-5f, .scale = 1};
    c = add_case(cases, &n, KERNEL_NORM, 16, false);
    c->spec.norm = (struct norm_spec){.k = 1152,
                                      .add = 1,
                                      .post_norm = 1,
                                      .norm = 1,
                                      .activation_bits = 8,
                                      .epsilon = 1e-6f,
                                      .scale = 1};
    c = add_case(cases, &n, KERNEL_NORM, 16, true);
    c->spec.norm = (struct norm_spec){.k = 1536, .activation_bits = 16, .scale = 1};
    c = add_case(cases, &n, KERNEL_EMBED, 16, true);
    c->spec.embed = (struct embed_spec){.format = TENSOR_Q8_0, .n = 49152, .k = 576, .scale = 1};
    c = add_case(cases, &n, KERNEL_SAMPLER, 8, true);
    c->spec.sampler.n = 49152;
    c = add_case(cases, &n, KERNEL_ROPE_KV, 16, false);
    c->spec.rope_kv = (struct rope_kv_spec){.n_heads = 16,
                                            .n_kv_heads = 8,
                                            .head_dim = 128,
                                            .rope = KERNEL_ROPE_HALVES,
                                            .rope_dims = 128,
                                            .q_norm = KERNEL_NORM_HEAD,
                                            .k_norm = KERNEL_NORM_HEAD,
                                            .epsilon = 1e-6f,
                                            .attn_scale = 0.0883883f};
    c = add_case(cases, &n, KERNEL_HEADS, 8, false);
    c->spec.heads = (struct heads_spec){.n = 4, .k = 576, .norm = 1, .decide = 1, .epsilon = 1e-5f};
    c = add_case(cases, &n, KERNEL_PAGE_COPY, 8, true);
    c->spec.page_copy.page_bytes = 30 * 2 * 3 * 64 * 16 * 2;
    add_case(cases, &n, KERNEL_PAGE_COPY, 8, false); /* of any size */
    c = add_case(cases, &n, KERNEL_PAGE_SEAL, 8, false);
    c->spec.page_seal = (struct page_seal_spec){.n_kv_heads = 3, .head_dim = 64};
    c = add_case(cases, &n, KERNEL_PAGE_CHOOSE, 8, true);
    c->spec.page_choose = (struct page_choose_spec){.n_heads = 9, .n_kv_heads = 3, .head_dim = 64};
    c = add_case(cases, &n, KERNEL_TAP, 8, false);
    c->spec.tap = (struct tap_spec){.k = 576, .mean = 1};
    /* Every format and both classes at wider shapes. */
    static const enum tensor_type formats[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q4_K,
                                               TENSOR_Q6_K, TENSOR_F16,  TENSOR_BF16};
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++)
        for (unsigned i = 0; i < 4; i++) {
            static const uint32_t rows[] = {1, 8, 32, 64};
            struct matmul_spec *m = add_matmul(cases, &n, formats[f], 4096, 4096, KERNEL_IN_PLANES,
                                               KERNEL_OUT_RESIDUAL, rows[i], false);
            m->activation_bits = formats[f] == TENSOR_F16    ? KERNEL_PLANES_F16
                                 : formats[f] == TENSOR_BF16 ? KERNEL_PLANES_BF16
                                 : f % 2                     ? 8
                                                             : 16;
        }
    add_matmul(cases, &n, TENSOR_Q4_K, 28672, 4096, KERNEL_IN_NORM, KERNEL_OUT_GATED_PLANES, 1,
               false);
    for (unsigned f = 0; f < 4; f++)
        if (formats[f] != TENSOR_Q8_0)
            add_matmul(cases, &n, formats[f], 28672, 4096, KERNEL_IN_NORM, KERNEL_OUT_GATED, 1,
                       false)
                ->activation_bits = 8;
    add_qkv(
        add_matmul(cases, &n, TENSOR_Q4_0, 6144, 4096, KERNEL_IN_NORM, KERNEL_OUT_QKV, 1, false),
        32, 8, 128);
    return n;
}

#endif
