#include "jit/kernel_set.h"

#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/check.h"
#include "jit/repack.h"

/* What is being built, passed down; the first failure ends it. */
struct builder {
    const struct plan *plan;
    const struct kernel_set_options *options;
    struct kernel_set *set;
    uint32_t rows; /* the bucket */
    struct error *e;
};

static enum status add(struct builder *b, const struct kernel_spec *spec, bool walk) {
    struct kernel_set *set = b->set;
    struct kernel_use use = {.spec = *spec, .n_rows = b->rows};
    const enum status s =
        kernel_config_choose(spec, &set->device, b->rows, walk, NULL, &use.config, b->e);
    if (s != STATUS_OK) return s;
    const uint64_t hash = kernel_hash(&use.spec, &use.config, &set->device);
    for (uint32_t i = 0; i < set->n_uses; i++) {
        const struct kernel_use *known = &set->uses[i];
        if (kernel_hash(&known->spec, &known->config, &set->device) == hash) return STATUS_OK;
    }
    if (set->n_uses == set->room) {
        const uint32_t room = set->room == 0 ? 64 : 2 * set->room;
        struct kernel_use *more = realloc(set->uses, room * sizeof *more);
        if (more == NULL) {
            return error_set(b->e, STATUS_NO_MEMORY, NULL, "no memory for a list of kernels");
        }
        set->uses = more;
        set->room = room;
    }
    set->uses[set->n_uses++] = use;
    return STATUS_OK;
}

static struct kernel_spec new_spec(enum kernel_family family) {
    struct kernel_spec s;
    memset(&s, 0, sizeof s); /* unused bytes count in the hash */
    s.family = family;
    return s;
}

static uint32_t planes_of(enum tensor_type format, uint32_t bits) {
    if (format == TENSOR_F16) return KERNEL_PLANES_F16;
    return format == TENSOR_BF16 ? KERNEL_PLANES_BF16 : bits;
}

struct norm_use {
    uint32_t k, planes; /* planes 0: F32 out */
    bool add, post_norm, norm;
    float scale;
};

static enum status add_norm(struct builder *b, const struct norm_use *u) {
    struct kernel_spec s = new_spec(KERNEL_NORM);
    s.norm.k = u->k;
    s.norm.add = u->add;
    s.norm.post_norm = u->post_norm;
    s.norm.norm = u->norm;
    s.norm.activation_bits = u->planes;
    s.norm.epsilon = u->norm || u->post_norm ? b->plan->norm_epsilon : 0;
    s.norm.scale = u->add ? u->scale : 1;
    return add(b, &s, false);
}

/* The product with its norm in the prologue where that fits, else the norm and then the product. */
static enum status add_product(struct builder *b, struct kernel_spec *s, bool has_norm) {
    struct matmul_spec *m = &s->matmul;
    if (has_norm) {
        m->input = KERNEL_IN_NORM;
        m->epsilon = b->plan->norm_epsilon;
        const enum status fits = add(b, s, false);
        if (fits != STATUS_UNSUPPORTED) return fits;
    }
    m->input = KERNEL_IN_PLANES;
    m->epsilon = 0;
    const enum status fits = add(b, s, false);
    if (fits != STATUS_OK) return fits;
    return add_norm(b,
                    &(struct norm_use){.k = m->k, .planes = m->activation_bits, .norm = has_norm});
}

static struct kernel_spec product(const struct weight *w, uint32_t n, uint32_t bits,
                                  enum kernel_epilogue epilogue) {
    struct kernel_spec s = new_spec(KERNEL_MATMUL);
    s.matmul.format = w->t->type;
    s.matmul.n = n;
    s.matmul.k = (uint32_t)w->t->dim[0];
    s.matmul.activation_bits = planes_of(w->t->type, bits);
    s.matmul.epilogue = epilogue;
    s.matmul.scale = 1;
    return s;
}

static uint32_t rope_of(const struct plan *p, const struct layer_plan *l, uint32_t *dims) {
    *dims = l->rope == PLAN_NO_ROPE ? 0 : p->ropes[l->rope].n_dims;
    if (l->rope == PLAN_NO_ROPE) return KERNEL_ROPE_NONE;
    return p->ropes[l->rope].style == ROPE_ADJACENT ? KERNEL_ROPE_ADJACENT : KERNEL_ROPE_HALVES;
}

static uint32_t head_norm(const struct tensor *norm, const struct layer_plan *l) {
    if (norm == NULL) return KERNEL_NO_NORM;
    return norm->dim[0] == l->head_dim ? KERNEL_NORM_HEAD : KERNEL_NORM_WHOLE;
}

static enum status add_attention_in(struct builder *b, const struct layer_plan *l) {
    const struct weight *const w[3] = {&l->q, &l->k, &l->v};
    const bool bias[3] = {l->q_bias != NULL, l->k_bias != NULL, l->v_bias != NULL};
    uint32_t dims;
    const uint32_t rope = rope_of(b->plan, l, &dims);
    const bool equal = l->q.t->type == l->k.t->type && l->k.t->type == l->v.t->type &&
                       bias[0] == bias[1] && bias[1] == bias[2];
    const bool plain = l->q_norm == NULL && l->k_norm == NULL;
    if (equal && plain && l->head_dim % 16 == 0 && dims % 16 == 0) {
        struct kernel_spec s =
            product(&l->q, l->q.n_rows + l->k.n_rows + l->v.n_rows, 16, KERNEL_OUT_QKV);
        s.matmul.bias = bias[0];
        s.matmul.n_heads = l->n_heads;
        s.matmul.n_kv_heads = l->n_kv_heads;
        s.matmul.head_dim = l->head_dim;
        s.matmul.rope = rope;
        s.matmul.rope_dims = dims;
        s.matmul.attn_scale = l->attn_scale;
        return add_product(b, &s, l->attn_norm != NULL);
    }
    for (int i = 0; i < 3;) {
        uint32_t n = w[i]->n_rows;
        int next = i + 1;
        while (next < 3 && w[next]->t->type == w[i]->t->type && bias[next] == bias[i]) {
            n += w[next++]->n_rows;
        }
        struct kernel_spec s = product(w[i], n, 16, KERNEL_OUT_STORE);
        s.matmul.bias = bias[i];
        const enum status done = add_product(b, &s, l->attn_norm != NULL);
        if (done != STATUS_OK) return done;
        i = next;
    }
    struct kernel_spec r = new_spec(KERNEL_ROPE_KV);
    r.rope_kv.n_heads = l->n_heads;
    r.rope_kv.n_kv_heads = l->n_kv_heads;
    r.rope_kv.head_dim = l->head_dim;
    r.rope_kv.rope = rope;
    r.rope_kv.rope_dims = dims;
    r.rope_kv.q_norm = head_norm(l->q_norm, l);
    r.rope_kv.k_norm = head_norm(l->k_norm, l);
    r.rope_kv.epsilon = plain ? 0 : b->plan->norm_epsilon;
    r.rope_kv.attn_scale = l->attn_scale;
    return add(b, &r, false);
}

static enum status add_attention(struct builder *b, const struct layer_plan *l) {
    /* Blocks of 32 values must not straddle the heads of two CTAs: else a norm kernel quantises. */
    const bool quantises = l->n_heads / l->n_kv_heads * l->head_dim % 32 == 0;
    const uint32_t planes = planes_of(l->o.t->type, b->options->activation_bits);
    for (uint32_t which = 0; which < 4; which++) {
        struct kernel_spec s = new_spec(KERNEL_ATTENTION);
        s.attention.n_heads = l->n_heads;
        s.attention.n_kv_heads = l->n_kv_heads;
        s.attention.head_dim = l->head_dim;
        s.attention.window = l->window;
        s.attention.gated = which % 2;
        s.attention.activation_bits = quantises ? planes : 0;
        s.attention.softcap = l->attn_softcap;
        const enum status done = add(b, &s, which / 2 == 1);
        if (done != STATUS_OK) return done;
    }
    if (quantises) return STATUS_OK;
    return add_norm(b, &(struct norm_use){.k = l->n_heads * l->head_dim, .planes = planes});
}

/* A product that reads planes and ends in the residual: in its epilogue, or behind a post-norm. */
static enum status add_out(struct builder *b, const struct layer_plan *l, const struct weight *w,
                           bool bias, bool post_norm) {
    struct kernel_spec s = product(w, b->plan->d_model, b->options->activation_bits,
                                   post_norm ? KERNEL_OUT_STORE : KERNEL_OUT_RESIDUAL);
    s.matmul.bias = bias;
    if (!post_norm) s.matmul.scale = l->residual_scale;
    const enum status done = add(b, &s, false);
    if (done != STATUS_OK || !post_norm) return done;
    /* x += norm(y), and what the next product reads. */
    const uint32_t bits[] = {0, 16, b->options->activation_bits};
    for (int i = 0; i < 3; i++) {
        const enum status norm = add_norm(b, &(struct norm_use){.k = b->plan->d_model,
                                                                .planes = bits[i],
                                                                .add = true,
                                                                .post_norm = true,
                                                                .norm = i > 0,
                                                                .scale = l->residual_scale});
        if (norm != STATUS_OK) return norm;
    }
    return STATUS_OK;
}

static enum status add_feed_forward(struct builder *b, const struct layer_plan *l) {
    const bool gelu = b->plan->activation == PLAN_GELU_TANH;
    const uint32_t bits = b->options->activation_bits;
    const uint32_t planes = planes_of(l->gate.t->type, bits);
    const bool quantised = planes == bits && planes_of(l->down.t->type, bits) == bits;
    if (l->ffn_norm != NULL && l->ffn_post_norm == NULL && b->rows <= 16 && quantised) {
        struct kernel_spec s = new_spec(KERNEL_FFN);
        s.ffn.format = l->gate.t->type;
        s.ffn.n = l->d_ff;
        s.ffn.k = b->plan->d_model;
        s.ffn.down_format = l->down.t->type;
        s.ffn.activation_bits = bits;
        s.ffn.gelu = gelu;
        s.ffn.epsilon = b->plan->norm_epsilon;
        s.ffn.scale = l->residual_scale;
        const enum status done = add(b, &s, false);
        if (done != STATUS_UNSUPPORTED) return done;
    }
    struct kernel_spec s = product(&l->gate, 2 * l->d_ff, bits, KERNEL_OUT_GATED);
    s.matmul.gelu = gelu;
    enum status done = add_product(b, &s, l->ffn_norm != NULL);
    if (done != STATUS_OK) return done;
    done =
        add_norm(b, &(struct norm_use){.k = l->d_ff, .planes = planes_of(l->down.t->type, bits)});
    if (done != STATUS_OK) return done;
    return add_out(b, l, &l->down, false, l->ffn_post_norm != NULL);
}

static bool takes(enum tensor_type type, uint32_t k) {
    return type == TENSOR_F16 || type == TENSOR_BF16 || repack_supported(type, k);
}

static enum status check_layer(const struct plan *p, uint32_t i, struct error *e) {
    const struct layer_plan *l = &p->layers[i];
    if (l->n_experts != 0) {
        return error_set(e, STATUS_UNSUPPORTED, NULL, "layer %u has experts: no GPU kernels for it",
                         i);
    }
    const struct weight *const w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    for (size_t k = 0; k < sizeof w / sizeof w[0]; k++) {
        if (w[k]->t == NULL || takes(w[k]->t->type, (uint32_t)w[k]->t->dim[0])) continue;
        return error_set(e, STATUS_UNSUPPORTED, NULL, "%s is %s [%u]: no GPU kernels for it",
                         w[k]->t->name, tensor_format(w[k]->t->type)->name,
                         (uint32_t)w[k]->t->dim[0]);
    }
    if (l->gate.t == NULL || l->up.t == NULL || l->gate.t->type != l->up.t->type) {
        return error_set(e, STATUS_UNSUPPORTED, NULL,
                         "layer %u: gate and up are of two formats: no GPU kernels for it", i);
    }
    return STATUS_OK;
}

static enum status add_layers(struct builder *b) {
    for (uint32_t i = 0; i < b->plan->n_layers; i++) {
        const struct layer_plan *l = &b->plan->layers[i];
        enum status s = check_layer(b->plan, i, b->e);
        if (s == STATUS_OK) s = add_attention_in(b, l);
        if (s == STATUS_OK) s = add_attention(b, l);
        if (s == STATUS_OK) {
            s = add_out(b, l, &l->o, l->o_bias != NULL, l->attn_post_norm != NULL);
        }
        if (s == STATUS_OK) s = add_feed_forward(b, l);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

/* Around the layers: embedding, head, sampler, taps. */
static enum status add_ends(struct builder *b) {
    const struct plan *p = b->plan;
    const uint32_t bits = b->options->activation_bits;
    if (!takes(p->head.t->type, p->d_model) || !takes(p->embed->type, p->d_model)) {
        return error_set(b->e, STATUS_UNSUPPORTED, NULL, "%s is %s: no GPU kernels for it",
                         p->head.t->name, tensor_format(p->head.t->type)->name);
    }
    struct kernel_spec s = new_spec(KERNEL_EMBED);
    s.embed.format = p->embed->type;
    s.embed.n = p->n_vocab;
    s.embed.k = p->d_model;
    s.embed.scale = p->embed_scale;
    enum status done = add(b, &s, false);
    if (done != STATUS_OK) return done;
    s = product(&p->head, p->n_vocab, bits, KERNEL_OUT_STORE);
    s.matmul.bias = p->head_bias != NULL;
    s.matmul.scale = p->logit_scale;
    s.matmul.softcap = p->logit_softcap;
    done = add(b, &s, false);
    if (done != STATUS_OK) return done;
    done = add_norm(b, &(struct norm_use){.k = p->d_model,
                                          .planes = s.matmul.activation_bits,
                                          .norm = p->out_norm != NULL});
    if (done != STATUS_OK) return done;
    s = new_spec(KERNEL_SAMPLER);
    s.sampler.n = p->n_vocab;
    done = add(b, &s, false);
    for (uint32_t mean = 0; mean < 2 && done == STATUS_OK; mean++) {
        s = new_spec(KERNEL_TAP);
        s.tap.k = p->d_model;
        s.tap.mean = mean;
        done = add(b, &s, false);
    }
    return done;
}

static const struct layer_plan *layer_of_group(const struct plan *p, uint32_t group) {
    for (uint32_t i = 0; i < p->n_layers; i++) {
        if (p->layers[i].group == group) return &p->layers[i];
    }
    return NULL;
}

static enum status add_pages(struct builder *b) {
    enum status done = STATUS_OK;
    for (uint32_t g = 0; g < b->plan->n_groups && done == STATUS_OK; g++) {
        const struct kv_group *group = &b->plan->groups[g];
        const struct layer_plan *l = layer_of_group(b->plan, g);
        struct kernel_spec s = new_spec(KERNEL_PAGE_COPY);
        s.page_copy.page_bytes = (uint32_t)kv_page_bytes(group, KV_F16);
        done = add(b, &s, false);
        if (done != STATUS_OK || l == NULL) continue;
        s = new_spec(KERNEL_PAGE_SEAL);
        s.page_seal.n_kv_heads = group->n_kv_heads;
        s.page_seal.head_dim = group->head_dim;
        done = add(b, &s, false);
        if (done != STATUS_OK) continue;
        s = new_spec(KERNEL_PAGE_SCORE);
        s.page_score.n_heads = l->n_heads;
        s.page_score.n_kv_heads = group->n_kv_heads;
        s.page_score.head_dim = group->head_dim;
        done = add(b, &s, false);
        if (done != STATUS_OK) continue;
        s = new_spec(KERNEL_PAGE_CHOOSE);
        s.page_choose.n_kv_heads = group->n_kv_heads;
        done = add(b, &s, false);
    }
    return done;
}

enum status kernel_set_build(const struct plan *plan, const struct kernel_device *device,
                             const struct kernel_set_options *options, struct kernel_set *out,
                             struct error *e) {
    CHECK(options->activation_bits == 16 || options->activation_bits == 8);
    CHECK(options->max_rows >= 1 && options->max_rows <= KERNEL_SET_MAX_ROWS);
    *out = (struct kernel_set){.device = *device};
    struct builder b = {.plan = plan, .options = options, .set = out, .e = e};
    enum status s = STATUS_OK;
    for (b.rows = 1; s == STATUS_OK; b.rows *= 2) {
        s = add_layers(&b);
        if (s == STATUS_OK) s = add_ends(&b);
        if (b.rows >= options->max_rows) break;
    }
    if (s == STATUS_OK) s = add_pages(&b);
    if (s != STATUS_OK) {
        kernel_set_free(out);
        return s;
    }
    return STATUS_OK;
}

void kernel_set_free(struct kernel_set *set) {
    free(set->uses);
    *set = (struct kernel_set){0};
}

enum status kernel_set_request(struct compiler *c, const struct kernel_device *device,
                               const struct kernel_use *use, struct error *e) {
    char name[KERNEL_NAME_BYTES], spec[KERNEL_KEY_BYTES];
    struct buffer text;
    buffer_init(&text, 0);
    kernel_name(&use->spec, &use->config, device, name);
    kernel_key(&use->spec, &use->config, device, spec);
    kernel_render(&use->spec, &use->config, device, &text);
    const char *source = buffer_cstr(&text);
    enum status s;
    if (source == NULL || text.full) {
        s = error_set(e, STATUS_NO_MEMORY, "jit", "no memory for the text of %.100s", name);
    } else {
        const struct compiler_request r = {
            .name = name,
            .spec = spec,
            .source = source,
            .options = KERNEL_OPTIONS,
            .arch = device->cc,
            .sm_count = device->n_sms,
            .hash = kernel_hash(&use->spec, &use->config, device),
        };
        s = compiler_request(c, &r, e);
    }
    buffer_free(&text);
    return s;
}

enum status kernel_set_request_all(struct compiler *c, const struct kernel_set *set,
                                   struct error *e) {
    for (uint32_t i = 0; i < set->n_uses; i++) {
        const enum status s = kernel_set_request(c, &set->device, &set->uses[i], e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}
