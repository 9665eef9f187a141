#include "models/learned_block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

#define MAGIC 0x4b434c42u /* "BLCK" */
enum { VERSION = 1, BLOCK = 32 };

struct header {
    uint32_t magic, version, n_inputs, after_layer, like_layer;
    uint32_t d, d_ff, n_heads, n_kv_heads, head_dim;
    float agreement;
    uint8_t zero[20];
};
struct entry {
    uint32_t type, rows, columns, zero;
    uint64_t offset, bytes;
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct entry) == 32, "sizes of the format");

static const char *const NAMES[TRAIN_TENSORS] = {"in",     "attn_norm", "attn_q",   "attn_k",
                                                 "attn_v", "attn_o",    "ffn_norm", "ffn_gate",
                                                 "ffn_up", "ffn_down",  "out_norm"};

enum status learned_block_shape(const struct plan *p, uint32_t like_layer, uint32_t n_inputs,
                                struct train_shape *out, struct error *e) {
    memset(out, 0, sizeof *out);
    CHECK(like_layer < p->n_layers);
    const struct layer_plan *l = &p->layers[like_layer];
    if (l->attn_norm == NULL || l->ffn_norm == NULL || l->attn_post_norm != NULL ||
        l->ffn_post_norm != NULL || l->q_norm != NULL || l->k_norm != NULL || l->q_bias != NULL ||
        l->k_bias != NULL || l->v_bias != NULL || l->o_bias != NULL || l->n_experts > 0 ||
        l->window != 0 || l->attn_softcap > 0 || p->logit_softcap > 0 || p->head_bias != NULL ||
        l->residual_scale != 1 || p->activation != PLAN_SILU || l->gate.t == NULL)
        return error_set(e, STATUS_UNSUPPORTED, "draft-block",
                         "draft and exit blocks are not made for layers like those of %s",
                         p->architecture);
    *out = (struct train_shape){.n_inputs = n_inputs,
                                .d = p->d_model,
                                .n_heads = l->n_heads,
                                .n_kv_heads = l->n_kv_heads,
                                .head_dim = l->head_dim,
                                .d_ff = l->d_ff,
                                .norm_epsilon = p->norm_epsilon,
                                .attn_scale = l->attn_scale};
    if (l->rope != PLAN_NO_ROPE) out->rope = p->ropes[l->rope];
    return STATUS_OK;
}

static enum tensor_type type_of(uint32_t rows, uint32_t columns) {
    return rows > 1 && columns % BLOCK == 0 ? TENSOR_Q8_0 : TENSOR_F32;
}

static size_t tensor_size(uint32_t rows, uint32_t columns) {
    return rows * tensor_row_bytes(tensor_format(type_of(rows, columns)), columns);
}

static size_t aligned(size_t at) {
    return (at + 63) & ~(size_t)63;
}

enum status learned_block_view(struct learned_block *b, const void *bytes, size_t n,
                               const struct plan *p, struct error *e) {
    memset(b, 0, sizeof *b);
    CHECK(((uintptr_t)bytes & 63) == 0);
    struct header h;
    struct entry entries[TRAIN_TENSORS];
    if (n < sizeof h + sizeof entries)
        return error_set(e, STATUS_CORRUPT, "block", "learned block: %zu bytes are too few", n);
    memcpy(&h, bytes, sizeof h);
    memcpy(entries, (const uint8_t *)bytes + sizeof h, sizeof entries);
    if (h.magic != MAGIC) return error_set(e, STATUS_CORRUPT, "block", "learned block: not one");
    if (h.version != VERSION)
        return error_set(e, STATUS_UNSUPPORTED, "block",
                         "learned block: version %u is not this build's", h.version);
    if ((h.n_inputs != 1 && h.n_inputs != 2) || !(h.agreement >= 0 && h.agreement <= 1))
        return error_set(e, STATUS_CORRUPT, "block", "learned block: a header out of range");
    struct train_shape shape = {0};
    enum status st = STATUS_OK;
    if (h.like_layer < p->n_layers && h.after_layer >= 1 && h.after_layer <= p->n_layers)
        st = learned_block_shape(p, h.like_layer, h.n_inputs, &shape, e);
    if (st != STATUS_OK) return st;
    if (shape.d == 0 || h.d != shape.d || h.d_ff != shape.d_ff || h.n_heads != shape.n_heads ||
        h.n_kv_heads != shape.n_kv_heads || h.head_dim != shape.head_dim)
        return error_set(e, STATUS_INVALID, "block", "learned block: made for another model");
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        const struct entry *x = &entries[t];
        uint32_t rows, columns;
        train_tensor_shape(&shape, (enum train_tensor)t, &rows, &columns);
        enum tensor_type type;
        if (!tensor_type_from_gguf(x->type, &type) || type != type_of(rows, columns) ||
            x->rows != rows || x->columns != columns || x->offset % 64 != 0 || x->offset > n ||
            x->bytes != tensor_size(rows, columns) || x->bytes > n - x->offset)
            return error_set(e, STATUS_CORRUPT, NAMES[t],
                             "learned block: %s is not what it must be", NAMES[t]);
        struct tensor *to = &b->tensors[t];
        *to = (struct tensor){.type = type,
                              .n_dims = 2,
                              .dim = {columns, rows, 1, 1},
                              .bytes = x->bytes,
                              .data = (const uint8_t *)bytes + x->offset};
        memcpy(to->name, NAMES[t], strlen(NAMES[t]));
    }
    b->n_inputs = h.n_inputs;
    b->after_layer = h.after_layer;
    b->like_layer = h.like_layer;
    b->agreement = h.agreement;
    b->shape = shape;
    return STATUS_OK;
}

void learned_block_weights(const struct learned_block *b, float *weights) {
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        const struct tensor *x = &b->tensors[t];
        float *to = weights + train_tensor_offset(&b->shape, (enum train_tensor)t);
        tensor_dequantise(x->type, x->data, to, x->dim[0] * x->dim[1]);
    }
}

/* Blocks of 32: an F16 scale max / 127, then int8. */
static void quantise(const float *from, size_t n, uint8_t *to) {
    for (size_t at = 0; at < n; at += BLOCK, to += 2 + BLOCK) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++)
            if (fabsf(from[at + (size_t)i]) > most) most = fabsf(from[at + (size_t)i]);
        const uint16_t scale = f32_to_f16(most / 127.0f);
        const float s = f16_to_f32(scale);
        memcpy(to, &scale, sizeof scale);
        for (int i = 0; i < BLOCK; i++) {
            float q = s > 0 ? rintf(from[at + (size_t)i] / s) : 0;
            if (q > 127) q = 127;
            if (q < -127) q = -127;
            to[2 + i] = (uint8_t)(int8_t)q;
        }
    }
}

enum status learned_block_write(const struct train_shape *s, const float *weights,
                                uint32_t after_layer, uint32_t like_layer, float agreement,
                                void **out, size_t *n_bytes, struct error *e) {
    struct header h = {.magic = MAGIC,
                       .version = VERSION,
                       .n_inputs = s->n_inputs,
                       .after_layer = after_layer,
                       .like_layer = like_layer,
                       .d = s->d,
                       .d_ff = s->d_ff,
                       .n_heads = s->n_heads,
                       .n_kv_heads = s->n_kv_heads,
                       .head_dim = s->head_dim,
                       .agreement = agreement};
    struct entry entries[TRAIN_TENSORS];
    memset(entries, 0, sizeof entries);
    size_t at = aligned(sizeof h + sizeof entries);
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        struct entry *x = &entries[t];
        train_tensor_shape(s, (enum train_tensor)t, &x->rows, &x->columns);
        x->type = tensor_format(type_of(x->rows, x->columns))->gguf_number;
        x->offset = at;
        x->bytes = tensor_size(x->rows, x->columns);
        at = aligned(at + x->bytes);
    }
    *n_bytes = at;
    *out = aligned_alloc(64, at);
    if (*out == NULL) {
        *n_bytes = 0;
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a learned block");
    }
    memset(*out, 0, at);
    memcpy(*out, &h, sizeof h);
    memcpy((uint8_t *)*out + sizeof h, entries, sizeof entries);
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        const struct entry *x = &entries[t];
        const float *from = weights + train_tensor_offset(s, (enum train_tensor)t);
        uint8_t *to = (uint8_t *)*out + x->offset;
        const size_t n = (size_t)x->rows * x->columns;
        if (type_of(x->rows, x->columns) == TENSOR_Q8_0)
            quantise(from, n, to);
        else
            memcpy(to, from, n * sizeof *from);
    }
    return STATUS_OK;
}

void learned_block_set_agreement(void *section, float agreement) {
    memcpy((uint8_t *)section + offsetof(struct header, agreement), &agreement, sizeof agreement);
}
