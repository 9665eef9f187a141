#include "jit/plan_specs.h"

#include <string.h>

#include "core/check.h"

struct kernel_spec spec_new(enum kernel_family family) {
    struct kernel_spec s;
    memset(&s, 0, sizeof s);
    s.family = family;
    return s;
}

static uint32_t planes_of(enum tensor_type format, uint32_t bits) {
    if (format == TENSOR_F16) return KERNEL_PLANES_F16;
    return format == TENSOR_BF16 ? KERNEL_PLANES_BF16 : bits;
}

static struct kernel_spec product(const struct tensor *t, uint32_t n, uint32_t bits,
                                  enum kernel_epilogue epilogue) {
    struct kernel_spec s = spec_new(KERNEL_MATMUL);
    s.matmul.format = t->type;
    s.matmul.n = n;
    s.matmul.k = (uint32_t)t->dim[0];
    s.matmul.activation_bits = planes_of(t->type, bits);
    s.matmul.epilogue = epilogue;
    s.matmul.scale = 1;
    return s;
}

static uint32_t head_norm(const struct tensor *norm, const struct layer_plan *l) {
    if (norm == NULL) return KERNEL_NO_NORM;
    return norm->dim[0] == l->head_dim ? KERNEL_NORM_HEAD : KERNEL_NORM_WHOLE;
}

static uint32_t rope_of(const struct plan *p, const struct layer_plan *l, uint32_t *dims) {
    *dims = l->rope == PLAN_NO_ROPE ? 0 : p->ropes[l->rope].n_dims;
    if (l->rope == PLAN_NO_ROPE) return KERNEL_ROPE_NONE;
    return p->ropes[l->rope].style == ROPE_ADJACENT ? KERNEL_ROPE_ADJACENT : KERNEL_ROPE_HALVES;
}

static void make_attention_in(const struct plan *p, const struct layer_plan *l,
                              struct layer_specs *out) {
    const struct weight *const w[3] = {&l->q, &l->k, &l->v};
    const bool bias[3] = {l->q_bias != NULL, l->k_bias != NULL, l->v_bias != NULL};
    uint32_t dims;
    const uint32_t rope = rope_of(p, l, &dims);
    const bool equal = l->q.t->type == l->k.t->type && l->k.t->type == l->v.t->type &&
                       bias[0] == bias[1] && bias[1] == bias[2];
    const bool plain = l->q_norm == NULL && l->k_norm == NULL;
    out->qkv_at_once = equal && plain && l->head_dim % 16 == 0 && dims % 16 == 0;
    if (out->qkv_at_once) {
        struct kernel_spec *s = &out->part[0];
        *s = product(l->q.t, l->q.n_rows + l->k.n_rows + l->v.n_rows, 16, KERNEL_OUT_QKV);
        s->matmul.bias = bias[0];
        s->matmul.n_heads = l->n_heads;
        s->matmul.n_kv_heads = l->n_kv_heads;
        s->matmul.head_dim = l->head_dim;
        s->matmul.rope = rope;
        s->matmul.rope_dims = dims;
        s->matmul.attn_scale = l->attn_scale;
        out->n_parts = 1;
        return;
    }
    for (uint32_t i = 0, at = 0; i < 3;) {
        uint32_t n = w[i]->n_rows, next = i + 1;
        while (next < 3 && w[next]->t->type == w[i]->t->type && bias[next] == bias[i])
            n += w[next++]->n_rows;
        out->part[out->n_parts] = product(w[i]->t, n, 16, KERNEL_OUT_STORE);
        out->part[out->n_parts].matmul.bias = bias[i];
        out->part_at[out->n_parts++] = at;
        at += n;
        i = next;
    }
    struct kernel_spec *r = &out->rope_kv;
    *r = spec_new(KERNEL_ROPE_KV);
    r->rope_kv.n_heads = l->n_heads;
    r->rope_kv.n_kv_heads = l->n_kv_heads;
    r->rope_kv.head_dim = l->head_dim;
    r->rope_kv.rope = rope;
    r->rope_kv.rope_dims = dims;
    r->rope_kv.q_norm = head_norm(l->q_norm, l);
    r->rope_kv.k_norm = head_norm(l->k_norm, l);
    r->rope_kv.epsilon = plain ? 0 : p->norm_epsilon;
    r->rope_kv.attn_scale = l->attn_scale;
}

/* A product that ends in the residual: in its epilogue, or (post-norm) behind a norm. */
static struct kernel_spec out_product(const struct plan *p, const struct layer_plan *l,
                                      const struct weight *w, uint32_t bits, bool bias,
                                      bool post_norm) {
    struct kernel_spec s =
        product(w->t, p->d_model, bits, post_norm ? KERNEL_OUT_STORE : KERNEL_OUT_RESIDUAL);
    s.matmul.bias = bias;
    if (!post_norm) s.matmul.scale = l->residual_scale;
    return s;
}

void layer_specs_make(const struct plan *p, uint32_t layer, uint32_t bits,
                      struct layer_specs *out) {
    CHECK(layer < p->n_layers);
    const struct layer_plan *l = &p->layers[layer];
    memset(out, 0, sizeof *out);
    make_attention_in(p, l, out);
    /* Blocks of 32 values must not straddle the heads of two CTAs. */
    out->attended_f32 = l->n_heads / l->n_kv_heads * l->head_dim % 32 != 0;
    out->attention = spec_new(KERNEL_ATTENTION);
    out->attention.attention.n_heads = l->n_heads;
    out->attention.attention.n_kv_heads = l->n_kv_heads;
    out->attention.attention.head_dim = l->head_dim;
    out->attention.attention.window = l->window;
    out->attention.attention.activation_bits =
        out->attended_f32 ? 0 : planes_of(l->o.t->type, bits);
    out->attention.attention.softcap = l->attn_softcap;
    out->o = out_product(p, l, &l->o, bits, l->o_bias != NULL, l->attn_post_norm != NULL);
    out->gate = product(l->gate.t, 2 * l->d_ff, bits, KERNEL_OUT_GATED);
    out->gate.matmul.gelu = p->activation == PLAN_GELU_TANH;
    out->down = out_product(p, l, &l->down, bits, false, l->ffn_post_norm != NULL);
}

struct kernel_spec spec_embed(const struct plan *p) {
    struct kernel_spec s = spec_new(KERNEL_EMBED);
    s.embed.format = p->embed->type;
    s.embed.n = p->n_vocab;
    s.embed.k = p->d_model;
    s.embed.scale = p->embed_scale;
    return s;
}

struct kernel_spec spec_head(const struct plan *p, uint32_t bits) {
    struct kernel_spec s = product(p->head.t, p->n_vocab, bits, KERNEL_OUT_STORE);
    s.matmul.bias = p->head_bias != NULL;
    s.matmul.scale = p->logit_scale;
    s.matmul.softcap = p->logit_softcap;
    return s;
}

struct kernel_spec spec_sampler(const struct plan *p) {
    struct kernel_spec s = spec_new(KERNEL_SAMPLER);
    s.sampler.n = p->n_vocab;
    return s;
}

struct kernel_spec spec_tap(const struct plan *p) {
    struct kernel_spec s = spec_new(KERNEL_TAP);
    s.tap.k = p->d_model;
    return s;
}

struct kernel_spec spec_copy(uint64_t bytes) {
    struct kernel_spec s = spec_new(KERNEL_PAGE_COPY);
    CHECK(bytes % 16 == 0 && bytes <= UINT32_MAX);
    s.page_copy.page_bytes = (uint32_t)bytes;
    return s;
}

struct kernel_spec spec_seal(const struct kv_group *group) {
    struct kernel_spec s = spec_new(KERNEL_PAGE_SEAL);
    s.page_seal.n_kv_heads = group->n_kv_heads;
    s.page_seal.head_dim = group->head_dim;
    return s;
}

struct kernel_spec spec_choose(const struct plan *p, uint32_t group) {
    uint32_t layer = 0;
    while (p->layers[layer].group != group) CHECK(++layer < p->n_layers);
    struct kernel_spec s = spec_new(KERNEL_PAGE_CHOOSE);
    s.page_choose.n_heads = p->layers[layer].n_heads;
    s.page_choose.n_kv_heads = p->groups[group].n_kv_heads;
    s.page_choose.head_dim = p->groups[group].head_dim;
    return s;
}

struct kernel_spec spec_norm(const struct plan *p, const struct norm_shape *shape) {
    struct kernel_spec s = spec_new(KERNEL_NORM);
    s.norm.k = shape->k;
    s.norm.add = shape->add;
    s.norm.post_norm = shape->post_norm;
    s.norm.norm = shape->norm;
    s.norm.activation_bits = shape->planes;
    s.norm.epsilon = shape->norm || shape->post_norm ? p->norm_epsilon : 0;
    s.norm.scale = shape->add ? shape->scale : 1;
    return s;
}

struct kernel_spec spec_first_norm(const struct plan *p, uint32_t bits) {
    struct layer_specs specs;
    layer_specs_make(p, 0, bits, &specs);
    return spec_norm(p, &(struct norm_shape){.k = p->d_model,
                                             .planes = specs.part[0].matmul.activation_bits,
                                             .norm = true});
}

static bool fits(const struct kernel_spec *s, const struct kernel_device *device, uint32_t rows) {
    struct kernel_config config;
    return kernel_config_choose(s, device, rows, false, NULL, &config, NULL) == STATUS_OK;
}

bool spec_take_norm(const struct plan *p, const struct kernel_device *device, uint32_t rows,
                    bool has_norm, struct kernel_spec *s, struct kernel_spec *before) {
    struct matmul_spec *m = &s->matmul;
    m->input = KERNEL_IN_NORM;
    m->epsilon = p->norm_epsilon;
    if (has_norm && fits(s, device, rows)) return true;
    m->input = KERNEL_IN_PLANES;
    m->epsilon = 0;
    *before = spec_norm(
        p, &(struct norm_shape){.k = m->k, .planes = m->activation_bits, .norm = has_norm});
    return false;
}

/* Bits of the planes that all products of q, k and v of a layer read, behind a norm that none of
 * them takes into its prologue; else 0. */
static uint32_t shared_rows(const struct plan *p, const struct kernel_device *device,
                            uint32_t layer, uint32_t bits, uint32_t rows) {
    struct layer_specs specs;
    layer_specs_make(p, layer, bits, &specs);
    for (uint32_t i = 0; i < specs.n_parts; i++) {
        struct kernel_spec s = specs.part[i], before;
        if (p->layers[layer].attn_norm == NULL ||
            s.matmul.activation_bits != specs.part[0].matmul.activation_bits ||
            spec_take_norm(p, device, rows, true, &s, &before))
            return 0;
    }
    return specs.part[0].matmul.activation_bits;
}

bool spec_feed_forward(const struct plan *p, const struct kernel_device *device, uint32_t layer,
                       uint32_t bits, uint32_t rows, struct kernel_spec *out) {
    const struct layer_plan *l = &p->layers[layer];
    *out = spec_new(KERNEL_FFN);
    if (l->ffn_norm == NULL || l->ffn_post_norm != NULL ||
        planes_of(l->gate.t->type, bits) != bits || planes_of(l->down.t->type, bits) != bits)
        return false;
    out->ffn.format = l->gate.t->type;
    out->ffn.n = l->d_ff;
    out->ffn.k = p->d_model;
    out->ffn.down_format = l->down.t->type;
    out->ffn.activation_bits = bits;
    out->ffn.gelu = p->activation == PLAN_GELU_TANH;
    out->ffn.input = KERNEL_IN_NORM;
    out->ffn.epsilon = p->norm_epsilon;
    out->ffn.scale = l->residual_scale;
    if (rows <= 16) return fits(out, device, rows);
    out->ffn.input = KERNEL_IN_PLANES;
    if (layer + 1 < p->n_layers) out->ffn.next_bits = shared_rows(p, device, layer + 1, bits, rows);
    return fits(out, device, rows);
}

bool spec_rows_ready(const struct plan *p, const struct kernel_device *device, uint32_t layer,
                     uint32_t bits, uint32_t rows) {
    struct kernel_spec s;
    /* Of the first layer: the norm behind the embedding. */
    if (layer == 0) return shared_rows(p, device, 0, bits, rows) != 0;
    return spec_feed_forward(p, device, layer - 1, bits, rows, &s) && s.ffn.next_bits != 0;
}
