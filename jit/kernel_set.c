#include "jit/kernel_set.h"

#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/check.h"
#include "jit/plan_specs.h"
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

/* A product over F32 rows, with what must run before it. */
static enum status add_product(struct builder *b, const struct kernel_spec *product,
                               bool has_norm) {
    struct kernel_spec s = *product, before;
    enum status done = STATUS_OK;
    if (!spec_take_norm(b->plan, &b->set->device, b->rows, has_norm, &s, &before))
        done = add(b, &before, false);
    return done != STATUS_OK ? done : add(b, &s, false);
}

/* x += norm(y), behind a product of a post-norm model. */
static enum status add_post_norm(struct builder *b, const struct layer_plan *l) {
    const struct kernel_spec s = spec_norm(
        b->plan,
        &(struct norm_shape){
            .k = b->plan->d_model, .add = true, .post_norm = true, .scale = l->residual_scale});
    return add(b, &s, false);
}

static enum status add_attention(struct builder *b, const struct layer_plan *l,
                                 const struct layer_specs *specs) {
    /* Page choices leave layers with a window alone. */
    const uint32_t forms = l->window > 0 ? 1 : 2;
    for (uint32_t which = 0; which < 2 * forms; which++) {
        struct kernel_spec s = specs->attention;
        s.attention.gated = which / 2;
        const enum status done = add(b, &s, which % 2 == 1);
        if (done != STATUS_OK) return done;
    }
    return STATUS_OK;
}

static enum status add_layer(struct builder *b, uint32_t layer) {
    const struct layer_plan *l = &b->plan->layers[layer];
    const uint32_t bits = b->options->activation_bits;
    struct layer_specs specs;
    struct kernel_spec ffn;
    layer_specs_make(b->plan, layer, bits, &specs);
    enum status s = STATUS_OK;
    const bool ready = spec_rows_ready(b->plan, &b->set->device, layer, bits, b->rows);
    if (ready && layer == 0) {
        const struct kernel_spec first = spec_first_norm(b->plan, bits);
        s = add(b, &first, false);
    }
    for (uint32_t i = 0; i < specs.n_parts && s == STATUS_OK; i++)
        s = ready ? add(b, &specs.part[i], false)
                  : add_product(b, &specs.part[i], l->attn_norm != NULL);
    if (s == STATUS_OK && !specs.qkv_at_once) s = add(b, &specs.rope_kv, false);
    if (s == STATUS_OK) s = add_attention(b, l, &specs);
    if (s == STATUS_OK)
        s = specs.attended_f32 ? add_product(b, &specs.o, false) : add(b, &specs.o, false);
    if (s == STATUS_OK && l->attn_post_norm != NULL) s = add_post_norm(b, l);
    if (s != STATUS_OK) return s;
    if (spec_feed_forward(b->plan, &b->set->device, layer, bits, b->rows, &ffn))
        return add(b, &ffn, false);
    s = add_product(b, &specs.gate, l->ffn_norm != NULL);
    if (s == STATUS_OK) s = add_product(b, &specs.down, false);
    if (s == STATUS_OK && l->ffn_post_norm != NULL) s = add_post_norm(b, l);
    return s;
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
        enum status s = check_layer(b->plan, i, b->e);
        if (s == STATUS_OK) s = add_layer(b, i);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

/* Around the layers: embedding, head, sampler, taps. */
static enum status add_ends(struct builder *b) {
    const struct plan *p = b->plan;
    if (!takes(p->head.t->type, p->d_model) || !takes(p->embed->type, p->d_model)) {
        return error_set(b->e, STATUS_UNSUPPORTED, NULL, "%s is %s: no GPU kernels for it",
                         p->head.t->name, tensor_format(p->head.t->type)->name);
    }
    const struct kernel_spec head = spec_head(p, b->options->activation_bits);
    const struct kernel_spec all[] = {
        spec_embed(p),
        spec_norm(p, &(struct norm_shape){.k = p->d_model,
                                          .planes = head.matmul.activation_bits,
                                          .norm = p->out_norm != NULL}),
        head,
        spec_sampler(p),
        spec_tap(p),
    };
    enum status s = STATUS_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && s == STATUS_OK; i++)
        s = add(b, &all[i], false);
    return s;
}

/* Page copies, and for page choices: bounds of whole pages and the choosing itself. */
static enum status add_pages(struct builder *b) {
    enum status s = STATUS_OK;
    for (uint32_t g = 0; g < b->plan->n_groups && s == STATUS_OK; g++) {
        const struct kv_group *group = &b->plan->groups[g];
        const struct kernel_spec all[] = {
            spec_copy(kv_page_bytes(group, KV_F16)),
            spec_copy(kernel_bounds_bytes(group->n_layers, group->n_kv_heads, group->head_dim)),
            spec_copy(0), /* slots: their size is the server's */
            spec_seal(group),
        };
        const size_t n = group->window > 0 ? 1 : sizeof all / sizeof all[0];
        for (size_t i = 0; i < n && s == STATUS_OK; i++) s = add(b, &all[i], false);
        if (s != STATUS_OK || group->window > 0) continue;
        const struct kernel_spec choose = spec_choose(b->plan, g);
        s = add(b, &choose, false);
    }
    return s;
}

enum status kernel_set_build(const struct plan *plan, const struct kernel_device *device,
                             const struct kernel_set_options *options, struct kernel_set *out,
                             struct error *e) {
    CHECK(options->activation_bits == 16 || options->activation_bits == 8);
    CHECK(options->max_rows >= 1 && options->max_rows <= KERNEL_SET_MAX_ROWS);
    *out = (struct kernel_set){.device = *device};
    struct builder b = {.plan = plan, .options = options, .set = out, .e = e};
    enum status s = STATUS_OK;
    b.rows = options->min_rows > 0 ? options->min_rows : 1;
    for (; s == STATUS_OK; b.rows *= 2) {
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
