/* cuda_backend_graph.c: a plan as one straight line of kernels, for each bucket and phase. The same
 * walk asks for the kernels (before there are any) and then adds the nodes. Which kernels a layer
 * takes is jit/kernel_set.h's to say; a test compares the two. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "jit/cuda_backend_state.h"
#include "jit/repack.h"

struct line {
    struct cuda_backend *b;
    const struct cuda_bucket *bucket;
    enum cuda_phase phase;
    bool extras;
    struct cu_graph *graph; /* NULL: kernels are only asked for */
    struct cuda_after last; /* node NULL: none yet */
    uint64_t bytes, flops;
    enum status status; /* of the first failure; nothing is added after it */
    struct error *e;
};

/* Specs. */

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

static struct kernel_spec product_spec(const struct tensor *t, uint32_t n, uint32_t bits,
                                       enum kernel_epilogue epilogue) {
    struct kernel_spec s = new_spec(KERNEL_MATMUL);
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

static void describe_attention_in(const struct plan *p, const struct layer_plan *l,
                                  struct cuda_layer *cl) {
    const struct weight *const w[3] = {&l->q, &l->k, &l->v};
    const bool bias[3] = {l->q_bias != NULL, l->k_bias != NULL, l->v_bias != NULL};
    uint32_t dims;
    const uint32_t rope = rope_of(p, l, &dims);
    const bool equal = l->q.t->type == l->k.t->type && l->k.t->type == l->v.t->type &&
                       bias[0] == bias[1] && bias[1] == bias[2];
    const bool plain = l->q_norm == NULL && l->k_norm == NULL;
    cl->qkv_at_once = equal && plain && l->head_dim % 16 == 0 && dims % 16 == 0;
    if (cl->qkv_at_once) {
        struct kernel_spec *s = &cl->part[0].spec;
        *s = product_spec(l->q.t, l->q.n_rows + l->k.n_rows + l->v.n_rows, 16, KERNEL_OUT_QKV);
        s->matmul.bias = bias[0];
        s->matmul.n_heads = l->n_heads;
        s->matmul.n_kv_heads = l->n_kv_heads;
        s->matmul.head_dim = l->head_dim;
        s->matmul.rope = rope;
        s->matmul.rope_dims = dims;
        s->matmul.attn_scale = l->attn_scale;
        cl->n_parts = 1;
        return;
    }
    for (uint32_t i = 0, at = 0; i < 3;) {
        uint32_t n = w[i]->n_rows, next = i + 1;
        while (next < 3 && w[next]->t->type == w[i]->t->type && bias[next] == bias[i])
            n += w[next++]->n_rows;
        cl->part[cl->n_parts].spec = product_spec(w[i]->t, n, 16, KERNEL_OUT_STORE);
        cl->part[cl->n_parts].spec.matmul.bias = bias[i];
        cl->part_at[cl->n_parts++] = at;
        at += n;
        i = next;
    }
    struct kernel_spec *r = &cl->rope_kv;
    *r = new_spec(KERNEL_ROPE_KV);
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

static void describe_out(const struct cuda_backend *b, const struct layer_plan *l,
                         const struct weight *w, bool bias, bool post_norm,
                         struct cuda_product *out) {
    out->spec = product_spec(w->t, b->cfg.plan->d_model, b->bits,
                             post_norm ? KERNEL_OUT_STORE : KERNEL_OUT_RESIDUAL);
    out->spec.matmul.bias = bias;
    if (!post_norm) out->spec.matmul.scale = l->residual_scale;
}

void cuda_describe(struct cuda_backend *b) {
    const struct plan *p = b->cfg.plan;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct layer_plan *l = &p->layers[i];
        struct cuda_layer *cl = &b->layers[i];
        cl->group = l->group;
        describe_attention_in(p, l, cl);
        /* Blocks of 32 values must not straddle the heads of two CTAs. */
        cl->attended_f32 = l->n_heads / l->n_kv_heads * l->head_dim % 32 != 0;
        cl->attention = new_spec(KERNEL_ATTENTION);
        cl->attention.attention.n_heads = l->n_heads;
        cl->attention.attention.n_kv_heads = l->n_kv_heads;
        cl->attention.attention.head_dim = l->head_dim;
        cl->attention.attention.window = l->window;
        cl->attention.attention.activation_bits =
            cl->attended_f32 ? 0 : planes_of(l->o.t->type, b->bits);
        cl->attention.attention.softcap = l->attn_softcap;
        describe_out(b, l, &l->o, l->o_bias != NULL, l->attn_post_norm != NULL, &cl->o);
        cl->gate.spec = product_spec(l->gate.t, 2 * l->d_ff, b->bits, KERNEL_OUT_GATED);
        cl->gate.spec.matmul.gelu = p->activation == PLAN_GELU_TANH;
        describe_out(b, l, &l->down, false, l->ffn_post_norm != NULL, &cl->down);
    }
    b->head.spec = product_spec(p->head.t, p->n_vocab, b->bits, KERNEL_OUT_STORE);
    b->head.spec.matmul.bias = p->head_bias != NULL;
    b->head.spec.matmul.scale = p->logit_scale;
    b->head.spec.matmul.softcap = p->logit_softcap;
}

/* Nodes. */

static bool fits(const struct line *n, const struct kernel_spec *spec, uint32_t rows) {
    struct kernel_config config;
    return kernel_config_choose(spec, &n->b->chip, rows, false, NULL, &config, NULL) == STATUS_OK;
}

static void want(struct line *n, const struct kernel_use *use, uint64_t hash) {
    struct cuda_backend *b = n->b;
    for (uint32_t i = 0; i < b->n_hashes; i++)
        if (b->hashes[i] == hash) return;
    if (b->n_hashes == b->room_hashes) {
        const uint32_t room = b->room_hashes == 0 ? 64 : 2 * b->room_hashes;
        uint64_t *more = realloc(b->hashes, room * sizeof *more);
        if (more == NULL) {
            n->status = error_set(n->e, STATUS_NO_MEMORY, NULL, "no memory for kernel names");
            return;
        }
        b->hashes = more;
        b->room_hashes = room;
    }
    b->hashes[b->n_hashes++] = hash;
    n->status = kernel_set_request(b->compiler, &b->chip, use, n->e);
}

static enum status read_usage(const struct cuda_backend *b, struct cu_function *f,
                              struct kernel_usage *out, struct error *e) {
    int registers = 0, shared_bytes = 0;
    enum status s =
        CUDA_CALL(&b->cuda, e, func_get_attribute, &registers, CU_FUNCTION_REGISTERS, f);
    if (s == STATUS_OK)
        s = CUDA_CALL(&b->cuda, e, func_get_attribute, &shared_bytes, CU_FUNCTION_SHARED_BYTES, f);
    *out = (struct kernel_usage){(uint32_t)registers, (uint32_t)shared_bytes};
    return s;
}

static void add_kernel(struct line *n, const struct kernel_use *use, uint64_t hash, void *params) {
    const struct cuda_backend *b = n->b;
    const struct compiled *k = compiler_find(b->compiler, hash);
    CHECK(k != NULL && k->function != NULL); /* compiler_run made all or failed */
    struct kernel_geometry g;
    struct kernel_usage usage;
    n->status = read_usage(b, k->function, &usage, n->e);
    if (n->status != STATUS_OK) return;
    kernel_launch(&use->spec, &use->config, &b->chip, &usage, use->n_rows, &g);
    n->bytes += g.bytes;
    n->flops += g.flops;
    if (g.shared_bytes > 0)
        n->status = CUDA_CALL(&b->cuda, n->e, func_set_attribute, k->function,
                              CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)g.shared_bytes);
    if (n->status != STATUS_OK) return;
    const struct cuda_launch launch = {.grid = {g.grid[0], g.grid[1], g.grid[2]},
                                       .block = {g.block, 1, 1},
                                       .shared_bytes = g.shared_bytes};
    void *all[] = {params};
    struct cu_graph_node *node;
    n->status = cuda_graph_add_kernel(&b->cuda, n->graph, k->function, &launch, all, &n->last,
                                      n->last.node != NULL, &node, n->e);
    n->last = (struct cuda_after){node, b->chip.dependent_launch != 0};
}

/* One kernel, for as many rows as the bucket (or a pass of the head) has. */
static void kernel(struct line *n, const struct kernel_spec *spec, uint32_t rows, bool walk,
                   void *params) {
    if (n->status != STATUS_OK) return;
    struct kernel_use use = {.spec = *spec, .n_rows = rows};
    n->status = kernel_config_choose(spec, &n->b->chip, rows, walk, NULL, &use.config, n->e);
    if (n->status != STATUS_OK) return;
    const uint64_t hash = kernel_hash(&use.spec, &use.config, &n->b->chip);
    if (n->graph == NULL)
        want(n, &use, hash);
    else
        add_kernel(n, &use, hash, params);
}

static uint64_t block_at(const struct line *n, uint32_t offset) {
    return n->b->block + offset;
}
static uint64_t count_at(const struct line *n, uint32_t which) {
    return block_at(n, n->bucket->at.counts + which * 4);
}
/* Rows of a layer that write K and V; that go on to its end (`full`). n_layers: all rows. */
static uint64_t run_at(const struct line *n, uint32_t layer, bool full) {
    return block_at(n, (full ? n->bucket->at.full : n->bucket->at.run) +
                           layer * n->bucket->run_words * 4);
}
static uint64_t row_pages_at(const struct line *n, uint32_t group) {
    return block_at(n, n->bucket->at.row_pages + group * n->bucket->rows * 4);
}

struct norm_use {
    uint32_t k, planes; /* planes 0: F32 out */
    bool add, post_norm;
    float scale;
    uint64_t x, y, post, norm, out, run, row_list, count;
};

static void norm(struct line *n, uint32_t rows, const struct norm_use *u) {
    struct kernel_spec s = new_spec(KERNEL_NORM);
    s.norm.k = u->k;
    s.norm.add = u->add;
    s.norm.post_norm = u->post_norm;
    s.norm.norm = u->norm != 0;
    s.norm.activation_bits = u->planes;
    s.norm.epsilon = u->norm != 0 || u->post_norm ? n->b->cfg.plan->norm_epsilon : 0;
    s.norm.scale = u->add ? u->scale : 1;
    struct norm_params p = {.x = u->x,
                            .y = u->y,
                            .post_norm = u->post,
                            .norm = u->norm,
                            .out = u->out,
                            .run = u->run,
                            .row_list = u->row_list,
                            .count = u->count,
                            .max_rows = rows};
    kernel(n, &s, rows, false, &p);
}

struct product_use {
    uint64_t x;    /* rows in F32; 0: the planes are there */
    uint64_t norm; /* before the product; 0: none */
    uint64_t out, run;
    uint32_t out_stride;
    const struct cuda_layer *layer; /* for q, k and v */
};

/* The product with its norm in the prologue where that fits, else the norm and then the product. */
static void product(struct line *n, uint32_t rows, const struct cuda_product *w,
                    const struct product_use *u) {
    const struct cuda_backend *b = n->b;
    struct kernel_spec s = w->spec;
    struct matmul_params p = {.weights = w->weights,
                              .bias = w->bias,
                              .planes = b->planes,
                              .x = u->x,
                              .norm = u->norm,
                              .out = u->out,
                              .run = u->run,
                              .row_position = block_at(n, n->bucket->at.position),
                              .pages = block_at(n, n->bucket->at.pages),
                              .out_stride = u->out_stride,
                              .max_rows = rows};
    if (u->layer != NULL) {
        p.row_pages = row_pages_at(n, u->layer->group);
        p.kv = u->layer->kv;
        p.page_bytes = b->page_bytes[u->layer->group];
        p.rope = u->layer->rope;
    }
    s.matmul.input = KERNEL_IN_NORM;
    s.matmul.epsilon = b->cfg.plan->norm_epsilon;
    if (u->norm != 0 && fits(n, &s, rows)) {
        kernel(n, &s, rows, false, &p);
        return;
    }
    if (u->x != 0)
        norm(n, rows,
             &(struct norm_use){.k = s.matmul.k,
                                .planes = s.matmul.activation_bits,
                                .x = u->x,
                                .norm = u->norm,
                                .out = b->planes,
                                .run = u->run});
    s.matmul.input = KERNEL_IN_PLANES;
    s.matmul.epsilon = 0;
    kernel(n, &s, rows, false, &p);
}

/* A product that reads planes and ends in the residual: in its epilogue, or behind a post-norm. */
static void out_product(struct line *n, uint32_t layer, const struct cuda_product *w, uint64_t from,
                        uint64_t post_norm) {
    const struct cuda_backend *b = n->b;
    const uint32_t d = b->cfg.plan->d_model, rows = n->bucket->rows;
    const uint64_t run = run_at(n, layer, true);
    product(n, rows, w,
            &(struct product_use){
                .x = from, .out = post_norm != 0 ? b->y : b->x, .out_stride = d, .run = run});
    if (post_norm != 0)
        norm(n, rows,
             &(struct norm_use){.k = d,
                                .add = true,
                                .post_norm = true,
                                .scale = b->cfg.plan->layers[layer].residual_scale,
                                .x = b->x,
                                .y = b->y,
                                .post = post_norm,
                                .run = run});
}

static void attention_in(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct layer_plan *l = &b->cfg.plan->layers[layer];
    const struct cuda_layer *cl = &b->layers[layer];
    const uint32_t rows = n->bucket->rows, width = (l->n_heads + 2 * l->n_kv_heads) * l->head_dim;
    const uint64_t run = run_at(n, layer, false);
    for (uint32_t i = 0; i < cl->n_parts; i++) {
        product(n, rows, &cl->part[i],
                &(struct product_use){
                    .x = b->x,
                    .norm = cl->attn_norm,
                    .out = cl->qkv_at_once ? b->q : b->qkv + (uint64_t)cl->part_at[i] * 4,
                    .out_stride = cl->qkv_at_once ? l->n_heads * l->head_dim : width,
                    .run = run,
                    .layer = cl->qkv_at_once ? cl : NULL,
                });
    }
    if (cl->qkv_at_once) return;
    struct rope_kv_params p = {.qkv = b->qkv,
                               .q_norm = cl->q_norm,
                               .k_norm = cl->k_norm,
                               .q = b->q,
                               .run = run,
                               .row_position = block_at(n, n->bucket->at.position),
                               .row_pages = row_pages_at(n, cl->group),
                               .pages = block_at(n, n->bucket->at.pages),
                               .kv = cl->kv,
                               .page_bytes = b->page_bytes[cl->group],
                               .rope = cl->rope,
                               .max_rows = rows};
    kernel(n, &cl->rope_kv, rows, false, &p);
}

static void attention(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    struct attention_params p = {
        .q = b->q,
        .kv = cl->kv,
        .page_bytes = b->page_bytes[cl->group],
        .run = run_at(n, layer, true),
        .row_position = block_at(n, n->bucket->at.position),
        .row_pages = row_pages_at(n, cl->group),
        .pages = block_at(n, n->bucket->at.pages),
        .items = block_at(n, n->bucket->at.items + cl->group * n->bucket->max_items * 16),
        .count = count_at(n, CUDA_COUNT_ITEMS + cl->group),
        .partial = b->partial,
        .partial_ml = b->partial_ml,
        .tickets = b->tickets,
        .out = cl->attended_f32 ? b->attended : b->planes};
    kernel(n, &cl->attention, n->bucket->rows, false, &p);
    if (n->phase != CUDA_PREFILL) return;
    p.items = block_at(n, n->bucket->at.tiles);
    p.count = count_at(n, CUDA_COUNT_TILES);
    kernel(n, &cl->attention, n->bucket->rows, true, &p);
}

static bool feed_forward_at_once(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    const struct matmul_spec *gate = &cl->gate.spec.matmul, *down = &cl->down.spec.matmul;
    const uint32_t rows = n->bucket->rows;
    if (cl->ffn_norm == 0 || cl->ffn_post_norm != 0 || rows > 16 ||
        gate->activation_bits != b->bits || down->activation_bits != b->bits)
        return false;
    struct kernel_spec s = new_spec(KERNEL_FFN);
    s.ffn.format = gate->format;
    s.ffn.n = gate->n / 2;
    s.ffn.k = gate->k;
    s.ffn.down_format = down->format;
    s.ffn.activation_bits = b->bits;
    s.ffn.gelu = gate->gelu;
    s.ffn.epsilon = b->cfg.plan->norm_epsilon;
    s.ffn.scale = down->scale;
    if (!fits(n, &s, rows)) return false;
    struct ffn_params p = {.weights = cl->gate.weights,
                           .down_weights = cl->down.weights,
                           .norm = cl->ffn_norm,
                           .x = b->x,
                           .h = b->h,
                           .run = run_at(n, layer, true),
                           .barrier = b->barrier,
                           .max_rows = rows};
    kernel(n, &s, rows, false, &p);
    return true;
}

static void layer_line(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    const uint32_t rows = n->bucket->rows;
    attention_in(n, layer);
    attention(n, layer);
    out_product(n, layer, &cl->o, cl->attended_f32 ? b->attended : 0, cl->attn_post_norm);
    if (feed_forward_at_once(n, layer)) return;
    product(n, rows, &cl->gate,
            &(struct product_use){.x = b->x,
                                  .norm = cl->ffn_norm,
                                  .out = b->gate,
                                  .out_stride = b->cfg.plan->layers[layer].d_ff,
                                  .run = run_at(n, layer, true)});
    out_product(n, layer, &cl->down, b->gate, cl->ffn_post_norm);
}

static void tap(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const uint32_t lists = n->bucket->at.taps + (b->cfg.plan->n_layers * 4 + 15) / 16 * 16;
    struct kernel_spec s = new_spec(KERNEL_TAP);
    s.tap.k = b->cfg.plan->d_model;
    struct tap_params p = {.x = b->x,
                           .taps = block_at(n, lists + layer * b->max_taps * 12),
                           .count = block_at(n, n->bucket->at.taps + layer * 4),
                           .out = b->taps};
    kernel(n, &s, b->max_taps, false, &p);
}

static void page_copies(struct line *n) {
    const struct cuda_backend *b = n->b;
    for (uint32_t g = 0; g < b->cfg.plan->n_groups; g++) {
        struct kernel_spec s = new_spec(KERNEL_PAGE_COPY);
        s.page_copy.page_bytes = (uint32_t)b->page_bytes[g];
        struct page_copy_params p = {.kv = b->kv[g],
                                     .copies =
                                         block_at(n, n->bucket->at.copies + g * b->max_copies * 8),
                                     .count = count_at(n, CUDA_COUNT_COPIES + g)};
        kernel(n, &s, b->max_copies, false, &p);
    }
}

static void embed(struct line *n) {
    const struct cuda_backend *b = n->b;
    const struct plan *plan = b->cfg.plan;
    struct kernel_spec s = new_spec(KERNEL_EMBED);
    s.embed.format = plan->embed->type;
    s.embed.n = plan->n_vocab;
    s.embed.k = plan->d_model;
    s.embed.scale = plan->embed_scale;
    struct embed_params p = {.weights = b->embed,
                             .ids = block_at(n, n->bucket->at.ids),
                             .count = count_at(n, CUDA_COUNT_ROWS),
                             .x = b->x,
                             .max_rows = n->bucket->rows};
    kernel(n, &s, n->bucket->rows, false, &p);
}

/* Logits and draws of outputs [64 pass, 64 pass + 64). */
static void head(struct line *n, uint32_t pass) {
    const struct cuda_backend *b = n->b;
    const struct plan *plan = b->cfg.plan;
    const uint32_t rows = n->bucket->rows < CUDA_HEAD_ROWS ? n->bucket->rows : CUDA_HEAD_ROWS;
    const uint64_t n_rows = count_at(n, CUDA_COUNT_HEADS + 2 * pass);
    norm(n, rows,
         &(struct norm_use){.k = plan->d_model,
                            .planes = b->head.spec.matmul.activation_bits,
                            .x = b->x,
                            .norm = b->out_norm,
                            .out = b->planes,
                            .run = run_at(n, plan->n_layers, false),
                            .row_list =
                                block_at(n, n->bucket->at.head_rows + pass * CUDA_HEAD_ROWS * 4),
                            .count = n_rows});
    product(n, rows, &b->head,
            &(struct product_use){.out = b->logits,
                                  .out_stride = plan->n_vocab,
                                  .run = block_at(n, n->bucket->at.head_run + pass * 8)});
    struct kernel_spec s = new_spec(KERNEL_SAMPLER);
    s.sampler.n = plan->n_vocab;
    struct sampler_params p = {
        .logits = b->logits,
        .specs = block_at(n, n->bucket->at.samples +
                                 pass * CUDA_HEAD_ROWS * (uint32_t)sizeof(struct kernel_sample)),
        .count = count_at(n, CUDA_COUNT_HEADS + 2 * pass + 1),
        .bitmaps = b->bitmaps,
        .biases = b->biases,
        .scratch = b->sampler_scratch,
        .answers = b->answers + (uint64_t)pass * CUDA_HEAD_ROWS * sizeof(struct kernel_answer)};
    kernel(n, &s, rows, false, &p);
}

static void copy(struct line *n, const struct cuda_copy *c) {
    if (n->status != STATUS_OK || n->graph == NULL) return;
    struct cu_graph_node *node;
    n->status = cuda_graph_add_copy(&n->b->cuda, n->graph, n->b->context, c, &n->last,
                                    n->last.node != NULL, &node, n->e);
    n->last = (struct cuda_after){node, false};
}

/* On a thread of the driver's: it says that the results are there, and calls nothing of CUDA. */
static void finished(void *arg) {
    struct cuda_backend *b = arg;
    atomic_store(&b->done_ns, clock_now_ns());
    atomic_store(&b->done, true);
    if (b->cfg.event_fd < 0) return;
    const uint64_t one = 1;
    /* A full counter is as good as one more. */
    if (write(b->cfg.event_fd, &one, sizeof one) < 0) return;
}

static void step_line(struct line *n) {
    const struct cuda_backend *b = n->b;
    const struct plan *p = b->cfg.plan;
    copy(n,
         &(struct cuda_copy){.dst_device = b->block,
                             .src_host = b->host_block,
                             .bytes = n->extras ? n->bucket->at.bytes : n->bucket->at.plain_bytes});
    if (n->extras && b->max_copies > 0) page_copies(n);
    embed(n);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        layer_line(n, i);
        if (n->extras && b->max_taps > 0) tap(n, i);
    }
    for (uint32_t i = 0; i < n->bucket->n_passes; i++) head(n, i);
    n->last.programmatic = false;
    copy(n, &(struct cuda_copy){.dst_host = b->host_answers,
                                .src_device = b->answers,
                                .bytes = n->bucket->rows * sizeof(struct kernel_answer)});
    if (n->status != STATUS_OK || n->graph == NULL) return;
    struct cu_graph_node *node;
    n->status = cuda_graph_add_host(&b->cuda, n->graph, finished, (void *)(uintptr_t)b, &n->last, 1,
                                    &node, n->e);
}

enum status cuda_request_kernels(struct cuda_backend *b, struct error *e) {
    for (uint32_t i = 0; i < b->n_buckets; i++)
        for (enum cuda_phase phase = CUDA_DECODE; phase < CUDA_PHASES; phase++) {
            struct line n = {
                .b = b, .bucket = &b->buckets[i], .phase = phase, .extras = true, .e = e};
            step_line(&n);
            if (n.status != STATUS_OK) return n.status;
        }
    return STATUS_OK;
}

static enum status build_graph(struct cuda_backend *b, struct cuda_bucket *bucket,
                               enum cuda_phase phase, bool extras, struct error *e) {
    struct line n = {.b = b, .bucket = bucket, .phase = phase, .extras = extras, .e = e};
    enum status s = CUDA_CALL(&b->cuda, e, graph_create, &n.graph, 0);
    if (s != STATUS_OK) return s;
    step_line(&n);
    s = n.status;
    struct cu_graph_exec *x = NULL;
    if (s == STATUS_OK) s = CUDA_CALL(&b->cuda, e, graph_instantiate, &x, n.graph, 0);
    if (s == STATUS_OK) {
        bucket->graph[phase][extras] = x;
        bucket->bytes[phase] = n.bytes;
        bucket->flops[phase] = n.flops;
        b->n_graphs++;
        s = CUDA_CALL(&b->cuda, e, graph_upload, x, b->stream);
    }
    const enum cu_result gone = b->cuda.graph_destroy(n.graph);
    return s != STATUS_OK ? s : cuda_status(&b->cuda, gone, "graph_destroy", e);
}

enum status cuda_build_graphs(struct cuda_backend *b, struct error *e) {
    const bool has_extras = b->max_copies > 0 || b->max_taps > 0;
    for (uint32_t i = 0; i < b->n_buckets; i++)
        for (enum cuda_phase phase = CUDA_DECODE; phase < CUDA_PHASES; phase++)
            for (int extras = 0; extras <= has_extras; extras++) {
                const enum status s = build_graph(b, &b->buckets[i], phase, extras, e);
                if (s != STATUS_OK) return s;
            }
    return STATUS_OK;
}
