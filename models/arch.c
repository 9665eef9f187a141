#include "models/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/math.h"

void arch_fail(struct arch_builder *b, enum status s, const char *field, const char *fmt, ...) {
    if (b->status != STATUS_OK) return;
    char text[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->status = error_set(b->error, s, field, "%s", text);
}

static const char *full_key(const struct arch_builder *b, const char *key, char out[96]) {
    snprintf(out, 96, "%s.%s", b->prefix, key);
    return out;
}

uint32_t arch_u32_or(struct arch_builder *b, const char *key, uint32_t lo, uint32_t hi,
                     uint32_t fallback) {
    char name[96];
    uint64_t v;
    if (!gguf_u64(b->g, full_key(b, key, name), &v)) {
        if (gguf_has(b->g, name))
            arch_fail(b, STATUS_CORRUPT, name, "%s is not a whole number, 0 or more", name);
        return fallback;
    }
    if (v < lo || v > hi) {
        arch_fail(b, STATUS_CORRUPT, name, "%s is %llu, expected %u to %u", name,
                  (unsigned long long)v, lo, hi);
        return fallback;
    }
    return (uint32_t)v;
}

uint32_t arch_u32(struct arch_builder *b, const char *key, uint32_t lo, uint32_t hi) {
    char name[96];
    uint64_t v;
    if (!gguf_u64(b->g, full_key(b, key, name), &v)) {
        arch_fail(b, STATUS_CORRUPT, name, "key %s is missing or no integer", name);
        return lo;
    }
    return arch_u32_or(b, key, lo, hi, lo);
}

float arch_f32_or(struct arch_builder *b, const char *key, double lo, double hi, double fallback) {
    char name[96];
    double v;
    if (!gguf_f64(b->g, full_key(b, key, name), &v)) {
        if (gguf_has(b->g, name)) arch_fail(b, STATUS_CORRUPT, name, "%s is not a number", name);
        return (float)fallback;
    }
    if (!(v >= lo && v <= hi)) {
        arch_fail(b, STATUS_CORRUPT, name, "%s is %g, expected %g to %g", name, v, lo, hi);
        return (float)fallback;
    }
    return (float)v;
}

const struct tensor *arch_vector(struct arch_builder *b, const char *name, uint32_t n,
                                 bool required) {
    const struct tensor *t = gguf_find_tensor(b->g, name);
    if (t == NULL) {
        if (required) arch_fail(b, STATUS_CORRUPT, name, "tensor %s is missing", name);
        return NULL;
    }
    if (t->type != TENSOR_F32 || t->dim[0] != n || t->dim[1] != 1 || t->dim[2] != 1) {
        arch_fail(b, STATUS_CORRUPT, name, "tensor %s is %s [%llu, %llu], expected F32 [%u]", name,
                  tensor_format(t->type)->name, (unsigned long long)t->dim[0],
                  (unsigned long long)t->dim[1], n);
        return NULL;
    }
    return t;
}

/* A weight of shape [k, n_total] (times n_experts when that is not 0). */
static struct weight matrix(struct arch_builder *b, const char *name, uint32_t k, uint32_t n_total,
                            uint32_t row0, uint32_t n, uint32_t n_experts) {
    const struct tensor *t = gguf_find_tensor(b->g, name);
    if (t == NULL) {
        arch_fail(b, STATUS_CORRUPT, name, "tensor %s is missing", name);
        return (struct weight){0};
    }
    const uint64_t depth = n_experts != 0 ? n_experts : 1;
    if (t->dim[0] != k || t->dim[1] != n_total || t->dim[2] != depth || t->dim[3] != 1) {
        arch_fail(b, STATUS_CORRUPT, name,
                  "tensor %s has shape [%llu, %llu, %llu], expected [%u, %u, %llu]", name,
                  (unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
                  (unsigned long long)t->dim[2], k, n_total, (unsigned long long)depth);
        return (struct weight){0};
    }
    return (struct weight){.t = t, .row0 = row0, .n_rows = n};
}

struct weight arch_matrix(struct arch_builder *b, const char *name, uint32_t k, uint32_t n) {
    return matrix(b, name, k, n, 0, n, 0);
}

struct weight arch_slice(struct arch_builder *b, const char *name, uint32_t k, uint32_t n_total,
                         uint32_t row0, uint32_t n) {
    return matrix(b, name, k, n_total, row0, n, 0);
}

const char *arch_name(char out[64], uint32_t layer, const char *part) {
    snprintf(out, 64, "blk.%u.%s", layer, part);
    return out;
}

/* Head counts may be one number or one a layer. */
static uint32_t per_layer(struct arch_builder *b, const char *key, uint32_t layer, uint32_t hi,
                          uint32_t fallback) {
    char name[96];
    enum gguf_type type;
    size_t n;
    full_key(b, key, name);
    if (!gguf_array(b->g, name, &type, &n)) return arch_u32_or(b, key, 1, hi, fallback);
    if (type == GGUF_STRING || type == GGUF_ARRAY || layer >= n) {
        arch_fail(b, STATUS_CORRUPT, name, "%s has %zu entries for %u layers", name, n,
                  b->plan->n_layers);
        return 1;
    }
    const int64_t v = gguf_array_i64(b->g, name, layer);
    if (v < 1 || v > hi) {
        arch_fail(b, STATUS_CORRUPT, name, "%s[%u] is %lld", name, layer, (long long)v);
        return 1;
    }
    return (uint32_t)v;
}

void arch_common(struct arch_builder *b) {
    struct plan *p = b->plan;
    p->d_model = arch_u32(b, "embedding_length", 16, 1 << 16);
    p->n_ctx_train = arch_u32(b, "context_length", 1, 1 << 26);
    p->norm_epsilon = arch_f32_or(b, "attention.layer_norm_rms_epsilon", 0, 1, 1e-5);
    p->activation = PLAN_SILU;
    p->embed_scale = 1;
    p->logit_scale = 1;
    p->logit_softcap = 0;
    char causal_key[96];
    bool causal;
    if (gguf_bool(b->g, full_key(b, "attention.causal", causal_key), &causal) && !causal)
        arch_fail(b, STATUS_UNSUPPORTED, causal_key,
                  "attention to later positions (attention.causal is false) is not supported");
    const struct tensor *embed = gguf_find_tensor(b->g, "token_embd.weight");
    if (embed == NULL || embed->dim[0] != p->d_model || embed->dim[1] == 0 ||
        embed->dim[1] > 1 << 22 || embed->dim[2] != 1) {
        arch_fail(b, STATUS_CORRUPT, "token_embd.weight",
                  "tensor token_embd.weight is missing or not [%u, n_vocab]", p->d_model);
        return;
    }
    p->embed = embed;
    p->n_vocab = (uint32_t)embed->dim[1];
    p->out_norm = arch_vector(b, "output_norm.weight", p->d_model, true);
    const bool tied = gguf_find_tensor(b->g, "output.weight") == NULL;
    p->head = arch_matrix(b, tied ? "token_embd.weight" : "output.weight", p->d_model, p->n_vocab);
    p->head_bias = arch_vector(b, "output.bias", p->n_vocab, false);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        struct layer_plan *y = &p->layers[l];
        y->n_heads = per_layer(b, "attention.head_count", l, 1 << 12, 0);
        y->n_kv_heads = per_layer(b, "attention.head_count_kv", l, 1 << 12, y->n_heads);
        if (y->n_heads == 0 || y->n_kv_heads == 0 || y->n_heads % y->n_kv_heads != 0) {
            arch_fail(b, STATUS_CORRUPT, "attention.head_count",
                      "layer %u has %u heads for %u KV heads", l, y->n_heads, y->n_kv_heads);
            return;
        }
        y->head_dim = arch_u32_or(b, "attention.key_length", 8, 1024, p->d_model / y->n_heads);
        if (arch_u32_or(b, "attention.value_length", 8, 1024, y->head_dim) != y->head_dim)
            arch_fail(b, STATUS_UNSUPPORTED, "attention.value_length",
                      "keys and values of different size are not supported");
        if (y->head_dim < 8 || y->head_dim > 1024 || y->head_dim % 2 != 0)
            arch_fail(b, STATUS_UNSUPPORTED, "attention.key_length",
                      "head size %u is not supported", y->head_dim);
        y->attn_scale = 1.0f / sqrtf((float)y->head_dim);
        y->residual_scale = 1;
        y->d_ff = per_layer(b, "feed_forward_length", l, 1 << 18, 0);
        y->rope = 0;
    }
}

void arch_attention(struct arch_builder *b, uint32_t layer) {
    struct plan *p = b->plan;
    struct layer_plan *y = &p->layers[layer];
    char name[64];
    const uint32_t d = p->d_model, dq = y->n_heads * y->head_dim, dkv = y->n_kv_heads * y->head_dim;
    y->attn_norm = arch_vector(b, arch_name(name, layer, "attn_norm.weight"), d, false);
    if (gguf_find_tensor(b->g, arch_name(name, layer, "attn_qkv.weight")) != NULL) {
        const uint32_t total = dq + 2 * dkv;
        y->q = arch_slice(b, name, d, total, 0, dq);
        y->k = arch_slice(b, name, d, total, dq, dkv);
        y->v = arch_slice(b, name, d, total, dq + dkv, dkv);
        const struct tensor *bias =
            arch_vector(b, arch_name(name, layer, "attn_qkv.bias"), total, false);
        y->q_bias = y->k_bias = y->v_bias = bias;
        y->k_bias0 = dq;
        y->v_bias0 = dq + dkv;
    } else {
        y->q = arch_matrix(b, arch_name(name, layer, "attn_q.weight"), d, dq);
        y->k = arch_matrix(b, arch_name(name, layer, "attn_k.weight"), d, dkv);
        y->v = arch_matrix(b, arch_name(name, layer, "attn_v.weight"), d, dkv);
        y->q_bias = arch_vector(b, arch_name(name, layer, "attn_q.bias"), dq, false);
        y->k_bias = arch_vector(b, arch_name(name, layer, "attn_k.bias"), dkv, false);
        y->v_bias = arch_vector(b, arch_name(name, layer, "attn_v.bias"), dkv, false);
    }
    y->o = arch_matrix(b, arch_name(name, layer, "attn_output.weight"), dq, d);
    y->o_bias = arch_vector(b, arch_name(name, layer, "attn_output.bias"), d, false);
}

void arch_ffn(struct arch_builder *b, uint32_t layer) {
    struct plan *p = b->plan;
    struct layer_plan *y = &p->layers[layer];
    char name[64];
    const uint32_t d = p->d_model;
    y->ffn_norm = arch_vector(b, arch_name(name, layer, "ffn_norm.weight"), d, false);
    y->n_experts = arch_u32_or(b, "expert_count", 0, 1024, 0);
    if (y->n_experts != 0) {
        y->n_experts_used = arch_u32(b, "expert_used_count", 1, y->n_experts);
        y->d_ff = arch_u32_or(b, "expert_feed_forward_length", 1, 1 << 18, y->d_ff);
        y->renormalise_experts = true;
        const struct weight r =
            arch_matrix(b, arch_name(name, layer, "ffn_gate_inp.weight"), d, y->n_experts);
        y->router = r.t;
        if (r.t != NULL && r.t->type != TENSOR_F32)
            arch_fail(b, STATUS_UNSUPPORTED, name, "tensor %s is not F32", name);
        const uint32_t n = y->n_experts, f = y->d_ff;
        y->gate = matrix(b, arch_name(name, layer, "ffn_gate_exps.weight"), d, f, 0, f, n);
        y->up = matrix(b, arch_name(name, layer, "ffn_up_exps.weight"), d, f, 0, f, n);
        y->down = matrix(b, arch_name(name, layer, "ffn_down_exps.weight"), f, d, 0, d, n);
        return;
    }
    if (y->d_ff == 0) {
        arch_fail(b, STATUS_CORRUPT, "feed_forward_length", "feed_forward_length is missing");
        return;
    }
    if (gguf_find_tensor(b->g, arch_name(name, layer, "ffn_gate.weight")) == NULL) {
        /* Gate and up in one matrix, gate first. */
        arch_name(name, layer, "ffn_up.weight");
        y->gate = arch_slice(b, name, d, 2 * y->d_ff, 0, y->d_ff);
        y->up = arch_slice(b, name, d, 2 * y->d_ff, y->d_ff, y->d_ff);
    } else {
        y->gate = arch_matrix(b, name, d, y->d_ff);
        y->up = arch_matrix(b, arch_name(name, layer, "ffn_up.weight"), d, y->d_ff);
    }
    y->down = arch_matrix(b, arch_name(name, layer, "ffn_down.weight"), y->d_ff, d);
}

bool arch_windowed(struct arch_builder *b, uint32_t layer, uint32_t every) {
    static const char key[] = "attention.sliding_window_pattern";
    char name[96];
    enum gguf_type type;
    size_t n;
    full_key(b, key, name);
    if (gguf_array(b->g, name, &type, &n)) {
        if (type != GGUF_BOOL || n < b->plan->n_layers) {
            arch_fail(b, STATUS_CORRUPT, name, "%s is no list of %u booleans", name,
                      b->plan->n_layers);
            return false;
        }
        return gguf_array_i64(b->g, name, layer) != 0;
    }
    every = arch_u32_or(b, key, 0, PLAN_MAX_LAYERS, every);
    return every == 0 || layer % every != every - 1;
}

void arch_group(struct arch_builder *b) {
    struct plan *p = b->plan;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        struct layer_plan *y = &p->layers[l];
        uint32_t g = 0;
        while (g < p->n_groups &&
               (p->groups[g].n_kv_heads != y->n_kv_heads || p->groups[g].head_dim != y->head_dim ||
                p->groups[g].window != y->window))
            g++;
        if (g == PLAN_MAX_GROUPS) {
            arch_fail(b, STATUS_UNSUPPORTED, "attention.head_count_kv",
                      "the layers have more than %d kinds of KV heads and windows",
                      PLAN_MAX_GROUPS);
            return;
        }
        if (g == p->n_groups) {
            p->groups[g] = (struct kv_group){
                .n_kv_heads = y->n_kv_heads, .head_dim = y->head_dim, .window = y->window};
            p->n_groups++;
        }
        y->group = (uint8_t)g;
        y->group_layer = (uint16_t)p->groups[g].n_layers++;
        if (y->d_ff > p->d_ff_max) p->d_ff_max = y->d_ff;
        if (y->n_heads * y->head_dim > p->d_attention_max)
            p->d_attention_max = y->n_heads * y->head_dim;
    }
}
