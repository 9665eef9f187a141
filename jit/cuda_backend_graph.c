/* cuda_backend_graph.c: a plan as one straight line of kernels, for each bucket and phase. The same
 * walk asks for the kernels (before there are any) and then adds the nodes. Specs and the choice of
 * kernels are jit/plan_specs.h's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "jit/cuda_backend_state.h"
#include "jit/plan_specs.h"

struct line {
    struct cuda_backend *b;
    const struct cuda_bucket *bucket;
    enum cuda_phase phase;
    bool extras;
    enum cuda_gates gates;
    /* What a walk does with the kernels: asks for them, counts their work, adds them to a graph, or
     * launches them. */
    enum { LINE_REQUEST, LINE_COUNT, LINE_GRAPH, LINE_LAUNCH } mode;
    struct cu_graph *graph;
    struct cuda_after last; /* node NULL: none yet; launching, only whether the next may overlap */
    uint64_t bytes, flops;
    uint32_t n_kernels, most_layer_kernels; /* counted: all, of a layer */
    enum status status;                     /* of the first failure; nothing is added after it */
    struct error *e;
};

void cuda_describe(struct cuda_backend *b) {
    const struct plan *p = b->cfg.plan;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        struct cuda_layer *cl = &b->layers[i];
        struct layer_specs specs;
        layer_specs_make(p, i, b->bits, &specs);
        cl->group = p->layers[i].group;
        cl->qkv_at_once = specs.qkv_at_once;
        cl->n_parts = specs.n_parts;
        for (uint32_t k = 0; k < specs.n_parts; k++) {
            cl->part[k].spec = specs.part[k];
            cl->part_at[k] = specs.part_at[k];
        }
        cl->rope_kv = specs.rope_kv;
        cl->attention = specs.attention;
        cl->attended_f32 = specs.attended_f32;
        cl->o.spec = specs.o;
        cl->gate.spec = specs.gate;
        cl->down.spec = specs.down;
    }
    b->head.spec = spec_head(p, b->bits);
}

/* Nodes. */

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

/* Key blocks of rows that go block by block: the geometry counts one each. */
static void count_blocks(const struct line *n, const struct kernel_use *use,
                         struct kernel_geometry *g) {
    const struct cuda_backend *b = n->b;
    if (n->mode != LINE_LAUNCH || use->spec.family != KERNEL_ATTENTION) return;
    const uint32_t *counts = (const void *)(b->host_block + n->bucket->at.counts);
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < b->cfg.plan->n_groups; i++)
        if (b->cfg.plan->groups[i].window == use->spec.attention.window &&
            counts[CUDA_COUNT_ITEMS + i] > blocks)
            blocks = counts[CUDA_COUNT_ITEMS + i];
    if (use->config.variant != KERNEL_SPLIT) return;
    g->bytes = g->bytes / use->n_rows * blocks;
    g->flops = g->flops / use->n_rows * blocks;
}

static void push_kernel(const struct line *n, const struct kernel_use *use,
                        const struct kernel_geometry *g) {
    char name[KERNEL_NAME_BYTES];
    if (n->b->nvtx.push == NULL) return;
    kernel_name(&use->spec, &use->config, &n->b->chip, name);
    nvtx_push(&n->b->nvtx, name, g->bytes, g->flops);
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
    count_blocks(n, use, &g);
    n->bytes += g.bytes;
    n->flops += g.flops;
    if (g.shared_bytes > 0)
        n->status = CUDA_CALL(&b->cuda, n->e, func_set_attribute, k->function,
                              CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)g.shared_bytes);
    if (n->status != STATUS_OK) return;
    const struct cuda_launch launch = {.grid = {g.grid[0], g.grid[1], g.grid[2]},
                                       .block = {g.block, 1, 1},
                                       .shared_bytes = g.shared_bytes,
                                       .dependent = n->mode == LINE_LAUNCH && n->last.programmatic};
    void *all[] = {params};
    struct cu_graph_node *node = NULL;
    push_kernel(n, use, &g);
    if (n->mode == LINE_LAUNCH)
        n->status = cuda_launch(&b->cuda, k->function, &launch, all, b->stream, n->e);
    else
        n->status = cuda_graph_add_kernel(&b->cuda, n->graph, k->function, &launch, all, &n->last,
                                          n->last.node != NULL, &node, n->e);
    nvtx_pop(&b->nvtx);
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
    struct kernel_geometry g;
    switch (n->mode) {
    case LINE_REQUEST:
        want(n, &use, hash);
        return;
    case LINE_COUNT:
        n->n_kernels++;
        kernel_launch(&use.spec, &use.config, &n->b->chip, NULL, rows, &g);
        count_blocks(n, &use, &g);
        n->bytes += g.bytes;
        n->flops += g.flops;
        return;
    case LINE_GRAPH:
    case LINE_LAUNCH:
        add_kernel(n, &use, hash, params);
    }
}

/* A part of the walk as a range of its own, for profilers. */
static void section(struct line *n, const char *name, void (*part)(struct line *, uint32_t),
                    uint32_t arg) {
    const struct nvtx *nvtx = &n->b->nvtx;
    const bool shown = nvtx->push != NULL && (n->mode == LINE_GRAPH || n->mode == LINE_LAUNCH);
    if (shown) {
        struct line work = *n;
        char text[48];
        work.mode = LINE_COUNT;
        work.bytes = work.flops = 0;
        part(&work, arg);
        snprintf(text, sizeof text, "%s %u", name, arg);
        nvtx_push(nvtx, text, work.bytes, work.flops);
    }
    part(n, arg);
    if (shown) nvtx_pop(nvtx);
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

static void norm(struct line *n, uint32_t rows, const struct kernel_spec *spec,
                 struct norm_params p) {
    p.max_rows = rows;
    kernel(n, spec, rows, false, &p);
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
    struct kernel_spec before;
    if (!spec_take_norm(b->cfg.plan, &b->chip, rows, u->norm != 0, &s, &before) && u->x != 0)
        norm(n, rows, &before,
             (struct norm_params){.x = u->x, .norm = u->norm, .out = b->planes, .run = u->run});
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
    if (post_norm == 0) return;
    const struct kernel_spec add = spec_norm(
        b->cfg.plan, &(struct norm_shape){.k = d,
                                          .add = true,
                                          .post_norm = true,
                                          .scale = b->cfg.plan->layers[layer].residual_scale});
    norm(n, rows, &add,
         (struct norm_params){.x = b->x, .y = b->y, .post_norm = post_norm, .run = run});
}

static void attention_in(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct layer_plan *l = &b->cfg.plan->layers[layer];
    const struct cuda_layer *cl = &b->layers[layer];
    const uint32_t rows = n->bucket->rows, width = (l->n_heads + 2 * l->n_kv_heads) * l->head_dim;
    const uint64_t run = run_at(n, layer, false);
    const bool ready = spec_rows_ready(b->cfg.plan, &b->chip, layer, b->bits, rows);
    for (uint32_t i = 0; i < cl->n_parts; i++) {
        product(n, rows, &cl->part[i],
                &(struct product_use){
                    .x = ready ? 0 : b->x,
                    .norm = ready ? 0 : cl->attn_norm,
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

/* Bounds of the pages that this step completes, then the choices of its rows. */
static void choose_pages(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    const struct cuda_bucket *k = n->bucket;
    const struct kernel_spec seal = spec_seal(&b->cfg.plan->groups[cl->group]);
    struct page_seal_params sp = {.kv = cl->kv,
                                  .page_bytes = b->page_bytes[cl->group],
                                  .bounds = cl->bounds,
                                  .bounds_bytes = b->gate_of.bounds_bytes[cl->group],
                                  .list = block_at(n, k->at.seals + cl->group * k->max_seals * 8),
                                  .count = count_at(n, CUDA_COUNT_SEALS + cl->group),
                                  .run = run_at(n, layer, false)};
    kernel(n, &seal, k->max_seals, false, &sp);
    const struct kernel_spec choose = spec_choose(b->cfg.plan, cl->group);
    struct page_choose_params cp = {.q = b->q,
                                    .bounds = cl->bounds,
                                    .bounds_bytes = sp.bounds_bytes,
                                    .choices = block_at(n, k->at.choices),
                                    .count = count_at(n, CUDA_COUNT_CHOICES),
                                    .anchors = block_at(n, k->at.anchors),
                                    .run = sp.run,
                                    .row_pages = row_pages_at(n, cl->group),
                                    .pages = block_at(n, k->at.pages),
                                    .scores = b->gate_of.scores,
                                    .masks = cl->masks,
                                    .score_stride = b->gate_of.score_stride,
                                    .mask_stride = b->gate_of.mask_stride,
                                    .mask_entry = b->gate_of.mask_entry,
                                    .layer = layer};
    kernel(n, &choose, k->max_choices, false, &cp);
}

static void attention(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    struct kernel_spec spec = cl->attention;
    spec.attention.gated = n->gates != CUDA_UNGATED && spec.attention.window == 0;
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
        .masks = cl->masks,
        .row_gates = block_at(n, n->bucket->at.row_gates),
        .mask_stride = b->gate_of.mask_stride,
        .mask_entry = b->gate_of.mask_entry,
        .layer = layer,
        .partial = b->partial,
        .partial_ml = b->partial_ml,
        .tickets = b->tickets,
        .out = cl->attended_f32 ? b->attended : b->planes};
    kernel(n, &spec, n->bucket->rows, false, &p);
    if (n->phase != CUDA_PREFILL) return;
    p.items = block_at(n, n->bucket->at.tiles);
    p.count = count_at(n, CUDA_COUNT_TILES);
    kernel(n, &spec, n->bucket->rows, true, &p);
}

static bool feed_forward_at_once(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    const uint32_t rows = n->bucket->rows;
    struct kernel_spec s;
    if (!spec_feed_forward(b->cfg.plan, &b->chip, layer, b->bits, rows, &s)) return false;
    struct ffn_params p = {.weights = cl->gate.weights,
                           .down_weights = cl->down.weights,
                           .norm = cl->ffn_norm,
                           .x = b->x,
                           .h = b->h,
                           .planes = b->planes,
                           .run = run_at(n, layer, true),
                           .barrier = b->barrier,
                           .max_rows = rows};
    if (s.ffn.next_bits != 0) {
        p.next_norm = b->layers[layer + 1].attn_norm;
        p.next_run = run_at(n, layer + 1, false);
    }
    kernel(n, &s, rows, false, &p);
    return true;
}

static void tap(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const uint32_t lists = n->bucket->at.taps + (b->cfg.plan->n_layers * 4 + 15) / 16 * 16;
    const struct kernel_spec s = spec_tap(b->cfg.plan);
    struct tap_params p = {.x = b->x,
                           .taps = block_at(n, lists + layer * b->max_taps * 12),
                           .count = block_at(n, n->bucket->at.taps + layer * 4),
                           .out = b->taps};
    kernel(n, &s, b->max_taps, false, &p);
}

static void layer_line(struct line *n, uint32_t layer) {
    const struct cuda_backend *b = n->b;
    const struct cuda_layer *cl = &b->layers[layer];
    const uint32_t rows = n->bucket->rows;
    attention_in(n, layer);
    if (n->gates == CUDA_CHOOSING && b->cfg.plan->layers[layer].window == 0) choose_pages(n, layer);
    attention(n, layer);
    out_product(n, layer, &cl->o, cl->attended_f32 ? b->attended : 0, cl->attn_post_norm);
    if (!feed_forward_at_once(n, layer)) {
        product(n, rows, &cl->gate,
                &(struct product_use){.x = b->x,
                                      .norm = cl->ffn_norm,
                                      .out = b->gate,
                                      .out_stride = b->cfg.plan->layers[layer].d_ff,
                                      .run = run_at(n, layer, true)});
        out_product(n, layer, &cl->down, b->gate, cl->ffn_post_norm);
    }
    if (n->extras && b->max_taps > 0) tap(n, layer);
}

static void copy_blocks(struct line *n, uint64_t base, uint64_t bytes, uint32_t list,
                        uint32_t count, uint32_t most, bool fixed) {
    const struct kernel_spec s = spec_copy(fixed ? bytes : 0);
    struct page_copy_params p = {
        .kv = base, .copies = block_at(n, list), .count = count_at(n, count), .bytes = bytes};
    kernel(n, &s, most, false, &p);
}

static void page_copies(struct line *n) {
    const struct cuda_backend *b = n->b;
    for (uint32_t g = 0; g < b->cfg.plan->n_groups; g++) {
        const uint32_t list = n->bucket->at.copies + g * b->max_copies * 8;
        const uint64_t bounds_bytes = b->gate_of.bounds_bytes[g];
        copy_blocks(n, b->kv[g], b->page_bytes[g], list, CUDA_COUNT_COPIES + g, b->max_copies,
                    true);
        if (bounds_bytes > 0)
            copy_blocks(n, b->gate_of.bounds[g], bounds_bytes, list, CUDA_COUNT_COPIES + g,
                        b->max_copies, true);
    }
}

static void embed(struct line *n) {
    const struct cuda_backend *b = n->b;
    const struct plan *plan = b->cfg.plan;
    const struct kernel_spec s = spec_embed(plan);
    struct embed_params p = {.weights = b->embed,
                             .ids = block_at(n, n->bucket->at.ids),
                             .count = count_at(n, CUDA_COUNT_ROWS),
                             .x = b->x,
                             .max_rows = n->bucket->rows};
    kernel(n, &s, n->bucket->rows, false, &p);
    if (!spec_rows_ready(plan, &b->chip, 0, b->bits, n->bucket->rows)) return;
    const struct kernel_spec first = spec_first_norm(plan, b->bits);
    norm(n, n->bucket->rows, &first,
         (struct norm_params){.x = b->x,
                              .norm = b->layers[0].attn_norm,
                              .out = b->planes,
                              .run = run_at(n, 0, false)});
}

/* Logits and draws of outputs [64 pass, 64 pass + 64). */
static void head(struct line *n, uint32_t pass) {
    const struct cuda_backend *b = n->b;
    const struct plan *plan = b->cfg.plan;
    const uint32_t rows = n->bucket->rows < CUDA_HEAD_ROWS ? n->bucket->rows : CUDA_HEAD_ROWS;
    const uint64_t n_rows = count_at(n, CUDA_COUNT_HEADS + 2 * pass);
    const struct kernel_spec before =
        spec_norm(plan, &(struct norm_shape){.k = plan->d_model,
                                             .planes = b->head.spec.matmul.activation_bits,
                                             .norm = b->out_norm != 0});
    norm(n, rows, &before,
         (struct norm_params){.x = b->x,
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
    const struct kernel_spec s = spec_sampler(plan);
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
    const struct cuda_backend *b = n->b;
    if (n->status != STATUS_OK || n->mode == LINE_REQUEST) return;
    n->bytes += c->bytes;
    if (n->mode == LINE_COUNT) return;
    struct cu_graph_node *node;
    if (n->mode == LINE_LAUNCH) {
        nvtx_push(&b->nvtx, c->src_host != NULL ? "block to device" : "answers to host", c->bytes,
                  0);
        n->status = c->src_host != NULL ? CUDA_CALL(&b->cuda, n->e, memcpy_htod_async,
                                                    c->dst_device, c->src_host, c->bytes, b->stream)
                                        : CUDA_CALL(&b->cuda, n->e, memcpy_dtoh_async, c->dst_host,
                                                    c->src_device, c->bytes, b->stream);
        nvtx_pop(&b->nvtx);
        n->last = (struct cuda_after){0};
        return;
    }
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
    copy(n, &(struct cuda_copy){.dst_device = b->block,
                                .src_host = b->host_block,
                                .bytes = n->extras                  ? n->bucket->at.bytes
                                         : n->gates != CUDA_UNGATED ? n->bucket->at.gated_bytes
                                                                    : n->bucket->at.plain_bytes});
    if (n->extras && b->max_copies > 0) page_copies(n);
    if (n->gates == CUDA_CHOOSING && b->cfg.limits.max_slot_copies > 0)
        copy_blocks(n, b->gate_of.masks, b->gate_of.slot_bytes, n->bucket->at.slot_copies,
                    CUDA_COUNT_SLOT_COPIES, b->cfg.limits.max_slot_copies, false);
    embed(n);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const uint32_t before = n->n_kernels;
        section(n, "layer", layer_line, i);
        const uint32_t kernels = n->n_kernels - before;
        if (n->most_layer_kernels < kernels) n->most_layer_kernels = kernels;
    }
    for (uint32_t i = 0; i < n->bucket->n_passes; i++) section(n, "head", head, i);
    n->last.programmatic = false;
    copy(n, &(struct cuda_copy){.dst_host = b->host_answers,
                                .src_device = b->answers,
                                .bytes = n->bucket->rows * sizeof(struct kernel_answer)});
    if (n->status != STATUS_OK || n->mode == LINE_REQUEST || n->mode == LINE_COUNT) return;
    if (n->mode == LINE_LAUNCH) {
        n->status =
            CUDA_CALL(&b->cuda, n->e, launch_host_func, b->stream, finished, (void *)(uintptr_t)b);
        return;
    }
    struct cu_graph_node *node;
    n->status = cuda_graph_add_host(&b->cuda, n->graph, finished, (void *)(uintptr_t)b, &n->last, 1,
                                    &node, n->e);
}

enum status cuda_request_kernels(struct cuda_backend *b, struct error *e) {
    for (uint32_t i = 0; i < b->n_buckets; i++)
        for (enum cuda_phase phase = CUDA_DECODE; phase < CUDA_PHASES; phase++)
            for (int gates = 0; gates < 2; gates++) {
                struct line n = {.b = b,
                                 .bucket = &b->buckets[i],
                                 .phase = phase,
                                 .extras = true,
                                 .gates = gates ? CUDA_CHOOSING : CUDA_UNGATED,
                                 .e = e};
                if (gates && !b->cfg.gates) continue;
                step_line(&n);
                if (n.status != STATUS_OK) return n.status;
            }
    return cuda_count_work(b, e);
}

enum status cuda_count_work(struct cuda_backend *b, struct error *e) {
    for (uint32_t i = 0; i < b->n_buckets; i++)
        for (enum cuda_phase phase = CUDA_DECODE; phase < CUDA_PHASES; phase++) {
            struct line n = {
                .b = b, .bucket = &b->buckets[i], .phase = phase, .mode = LINE_COUNT, .e = e};
            step_line(&n);
            if (n.status != STATUS_OK) return n.status;
            if (b->layer_kernels[phase] < n.most_layer_kernels)
                b->layer_kernels[phase] = n.most_layer_kernels;
            b->buckets[i].bytes[phase] = n.bytes;
            b->buckets[i].flops[phase] = n.flops;
        }
    return STATUS_OK;
}

static enum status build_graph(struct cuda_backend *b, struct cuda_bucket *bucket,
                               enum cuda_phase phase, bool extras, enum cuda_gates gates,
                               struct error *e) {
    struct line n = {.b = b,
                     .bucket = bucket,
                     .phase = phase,
                     .extras = extras,
                     .gates = gates,
                     .mode = LINE_GRAPH,
                     .e = e};
    enum status s = CUDA_CALL(&b->cuda, e, graph_create, &n.graph, 0);
    if (s != STATUS_OK) return s;
    step_line(&n);
    s = n.status;
    struct cu_graph_exec *x = NULL;
    if (s == STATUS_OK) s = CUDA_CALL(&b->cuda, e, graph_instantiate, &x, n.graph, 0);
    if (s == STATUS_OK) {
        bucket->graph[phase][extras][gates] = x;
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
            for (int extras = 0; extras <= has_extras; extras++)
                for (enum cuda_gates gates = CUDA_UNGATED;
                     gates < (b->cfg.gates ? CUDA_GATES : CUDA_GATED); gates++) {
                    const enum status s = build_graph(b, &b->buckets[i], phase, extras, gates, e);
                    if (s != STATUS_OK) return s;
                }
    return STATUS_OK;
}

enum status cuda_launch_step(struct cuda_backend *b, enum cuda_phase phase, bool extras,
                             enum cuda_gates gates, struct error *e) {
    struct line n = {.b = b,
                     .bucket = b->bucket,
                     .phase = phase,
                     .extras = extras,
                     .gates = gates,
                     .mode = LINE_LAUNCH,
                     .e = e};
    step_line(&n);
    return n.status;
}
