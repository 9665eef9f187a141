/* cuda_backend_load.c: what is where on the device, and the contents of what never changes. One
 * walk serves both: first it only counts, then it uploads. */
#include <stdlib.h>
#include <string.h>

#include "alloc/page_pool.h"
#include "core/check.h"
#include "core/math.h"
#include "core/worker_pool.h"
#include "jit/cuda_backend_state.h"
#include "jit/repack.h"

enum { CHUNK_BYTES = 16 << 20, STAGING_BYTES = 8 << 20, PANELS_PER_TASK = 16 };

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Buckets. */

static uint32_t put(uint32_t *at, uint64_t bytes) {
    const uint32_t here = *at;
    CHECK(bytes < (UINT32_MAX - here) / 2);
    *at = here + (uint32_t)((bytes + 15) / 16 * 16);
    return here;
}

static void lay_out_block(const struct cuda_backend *b, struct cuda_bucket *k) {
    const struct plan *p = b->cfg.plan;
    const uint64_t rows = k->rows, groups = p->n_groups;
    uint32_t at = 0;
    k->at.counts = put(&at, (CUDA_COUNT_HEADS + 2 * k->n_passes) * 4);
    k->at.ids = put(&at, rows * 4);
    k->at.position = put(&at, rows * 4);
    k->at.row_pages = put(&at, groups * rows * 4);
    k->at.run = put(&at, (uint64_t)(p->n_layers + 1) * k->run_words * 4);
    k->at.full = put(&at, (uint64_t)p->n_layers * k->run_words * 4);
    k->at.items = put(&at, groups * k->max_items * 16);
    k->at.tiles = put(&at, rows * 8);
    k->at.head_rows = put(&at, (uint64_t)k->n_passes * CUDA_HEAD_ROWS * 4);
    k->at.head_run = put(&at, k->n_passes * 8);
    k->at.samples = put(&at, (uint64_t)k->n_passes * CUDA_HEAD_ROWS * sizeof(struct kernel_sample));
    k->at.pages = put(&at, (uint64_t)k->max_pages * 4);
    k->at.plain_bytes = at;
    if (b->cfg.gates) {
        const struct step_limits *l = &b->cfg.limits;
        k->at.row_gates = put(&at, rows * sizeof(struct attention_gate));
        k->at.seals = put(&at, groups * k->max_seals * 8);
        k->at.choices = put(&at, k->max_choices * sizeof(struct page_choice));
        k->at.anchors = put(&at, (uint64_t)l->max_gate_pages * 4);
        k->at.slot_copies = put(&at, (uint64_t)l->max_slot_copies * 8);
    }
    k->at.gated_bytes = at;
    k->at.copies = put(&at, groups * b->max_copies * 8);
    k->at.taps = put(&at, (uint64_t)p->n_layers * 4);
    put(&at, (uint64_t)p->n_layers * b->max_taps * 12);
    k->at.bytes = at;
}

static uint32_t heads_width(const struct plan *p) {
    uint32_t w = 1;
    for (uint32_t i = 0; i < p->n_layers; i++)
        w = larger(w, p->layers[i].n_heads * (p->layers[i].head_dim + 2));
    return w;
}

void cuda_plan_buckets(struct cuda_backend *b) {
    const struct plan *p = b->cfg.plan;
    const struct step_limits *l = &b->cfg.limits;
    const uint32_t most = larger(larger(l->max_rows, l->max_outputs), 1);
    const uint32_t blocks = (b->cfg.n_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    const uint32_t full = (b->cfg.n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    const uint64_t bitmap_bytes = (p->n_vocab + 63) / 64 * 8;
    const uint64_t list_bytes = CUDA_PINNED_LIST_BYTES;
    uint64_t n = (uint64_t)l->max_outputs * smaller(p->n_vocab, b->cfg.n_ctx + 1024);
    b->max_biases = l->max_biases;
    if (b->max_biases == 0) b->max_biases = (uint32_t)(n < list_bytes / 12 ? n : list_bytes / 12);
    n = list_bytes / bitmap_bytes;
    b->max_bitmaps = l->max_bitmaps;
    if (b->max_bitmaps == 0) b->max_bitmaps = (uint32_t)(n < l->max_outputs ? n : l->max_outputs);
    b->max_taps = l->max_taps;
    b->max_tap_rows = l->max_tap_rows;
    n = (uint64_t)b->max_taps * l->max_rows;
    if (b->max_tap_rows == 0)
        b->max_tap_rows =
            (uint32_t)(n < list_bytes / (p->d_model * 4) ? n : list_bytes / (p->d_model * 4));
    b->max_copies = l->max_copies;
    const uint64_t room = CUDA_PARTIAL_BYTES / (heads_width(p) * sizeof(float));
    b->n_buckets = 0;
    for (uint32_t rows = 1;; rows *= 2) {
        CHECK(b->n_buckets < CUDA_MAX_BUCKETS);
        struct cuda_bucket *k = &b->buckets[b->n_buckets++];
        k->rows = rows;
        if (rows >= most && rows > 64) k->rows = (most + 63) / 64 * 64;
        k->run_words = (k->rows + 63) / 64 * 2;
        k->n_passes = (smaller(k->rows, l->max_outputs) + CUDA_HEAD_ROWS - 1) / CUDA_HEAD_ROWS;
        const uint64_t spans = smaller(k->rows, larger(l->max_spans, 1));
        const uint64_t pages = spans * full * p->n_groups;
        k->max_pages = (uint32_t)(pages < l->max_pages ? pages : l->max_pages);
        const uint64_t short_rows = spans * CUDA_SHORT_SPAN;
        uint64_t items = (short_rows < k->rows ? short_rows : k->rows) * blocks;
        if (items > room) items = room;
        k->max_items = larger((uint32_t)items, blocks);
        if (b->cfg.gates) cuda_gate_plan_bucket(b, k);
        lay_out_block(b, k);
        if (rows >= most) break;
    }
    b->max_rows = b->buckets[b->n_buckets - 1].rows;
}

/* A walk over one range of device memory. */

struct walk {
    struct cuda_backend *b;
    uint64_t base, at;
    bool upload;
    void *staging;
    uint8_t *chunk;
    uint64_t total_bytes; /* for progress */
    enum status status;
    struct error *e;
};

static uint64_t room_for(struct walk *w, uint64_t bytes) {
    const uint64_t address = w->base + w->at;
    w->at += (bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
    return address;
}

static void send(struct walk *w, uint64_t to, const void *from, uint64_t bytes) {
    if (!w->upload || w->status != STATUS_OK) return;
    w->status = device_memory_upload(&w->b->cuda, to, from, bytes, w->staging, STAGING_BYTES,
                                     w->b->stream, w->e);
    if (w->b->cfg.progress != NULL && w->total_bytes > 0)
        w->b->cfg.progress(w->b->cfg.progress_arg, (double)(to - w->base) / (double)w->total_bytes);
}

static float *floats_new(struct walk *w, uint64_t n) {
    float *f = malloc((n > 0 ? n : 1) * sizeof *f);
    if (f == NULL) w->status = error_set(w->e, STATUS_NO_MEMORY, NULL, "no memory for a vector");
    return f;
}

/* n elements of t from `first`, as F32, behind `at` bytes of what is at `to`. */
static void send_vector(struct walk *w, uint64_t to, const struct tensor *t, uint32_t first,
                        uint32_t n) {
    if (!w->upload || w->status != STATUS_OK) return;
    const uint32_t whole = (uint32_t)(t->dim[0] * t->dim[1]);
    CHECK(first + n <= whole);
    float *f = floats_new(w, whole);
    if (f == NULL) return;
    tensor_dequantise(t->type, t->data, f, whole);
    send(w, to, f + first, n * sizeof *f);
    free(f);
}

static uint64_t put_vector(struct walk *w, const struct tensor *t, uint32_t n) {
    if (t == NULL) return 0;
    const uint64_t to = room_for(w, n * sizeof(float));
    send_vector(w, to, t, 0, n);
    return to;
}

struct pack_job {
    enum tensor_type type;
    uint32_t n, k, n_panels;
    const uint8_t *const *rows;
    uint8_t *out;
};

static void pack_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct pack_job *j = arg;
    const uint32_t first = task * PANELS_PER_TASK;
    repack_panels(j->type, j->n, j->k, j->rows, first,
                  smaller(first + PANELS_PER_TASK, j->n_panels), j->out);
}

static uint64_t put_matrix(struct walk *w, enum tensor_type type, uint32_t n, uint32_t k,
                           const uint8_t *const *rows) {
    const uint64_t panel_bytes = repack_panel_bytes(type, k);
    const uint64_t to = room_for(w, repack_bytes(type, n, k));
    const uint32_t n_panels = (n + KERNEL_PANEL_ROWS - 1) / KERNEL_PANEL_ROWS;
    if (!w->upload) return to;
    CHECK(panel_bytes <= CHUNK_BYTES); /* a row of the widest model is 4 MB */
    const uint32_t at_once = (uint32_t)(CHUNK_BYTES / panel_bytes);
    for (uint32_t p = 0; p < n_panels && w->status == STATUS_OK; p += at_once) {
        struct pack_job job = {.type = type,
                               .n = n - p * KERNEL_PANEL_ROWS,
                               .k = k,
                               .n_panels = smaller(at_once, n_panels - p),
                               .rows = rows + (size_t)p * KERNEL_PANEL_ROWS,
                               .out = w->chunk};
        worker_pool_run(w->b->cfg.workers, pack_task, &job,
                        (job.n_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK);
        send(w, to + p * panel_bytes, w->chunk, job.n_panels * panel_bytes);
    }
    return to;
}

/* Rows of several matrices of one type as outputs, in `order` (NULL: as they come). */
static uint64_t put_weights(struct walk *w, const struct weight *const *parts, uint32_t n_parts,
                            const uint32_t *order) {
    const struct tensor *t = parts[0]->t;
    const uint32_t k = (uint32_t)t->dim[0];
    const uint64_t row_bytes = tensor_row_bytes(tensor_format(t->type), k);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_parts; i++) n += parts[i]->n_rows;
    if (!w->upload || w->status != STATUS_OK) return put_matrix(w, t->type, n, k, NULL);
    const uint8_t **source = malloc(n * sizeof *source), **rows = malloc(n * sizeof *rows);
    uint64_t to = 0;
    if (source == NULL || rows == NULL) {
        w->status = error_set(w->e, STATUS_NO_MEMORY, NULL, "no memory for rows of weights");
    } else {
        for (uint32_t i = 0, at = 0; i < n_parts; i++)
            for (uint32_t r = 0; r < parts[i]->n_rows; r++)
                source[at++] =
                    (const uint8_t *)parts[i]->t->data + (parts[i]->row0 + r) * row_bytes;
        for (uint32_t r = 0; r < n; r++) rows[r] = source[order != NULL ? order[r] : r];
        to = put_matrix(w, t->type, n, k, rows);
    }
    free(source);
    free(rows);
    return to;
}

static uint32_t *order_new(struct walk *w, uint32_t n) {
    uint32_t *order = malloc(n * sizeof *order);
    if (order == NULL) w->status = error_set(w->e, STATUS_NO_MEMORY, NULL, "no memory");
    return order;
}

static void put_attention_in(struct walk *w, const struct layer_plan *l, struct cuda_layer *cl) {
    const struct weight *const all[3] = {&l->q, &l->k, &l->v};
    const struct tensor *const bias[3] = {l->q_bias, l->k_bias, l->v_bias};
    const uint32_t bias0[3] = {l->q_bias0, l->k_bias0, l->v_bias0};
    uint32_t first = 0;
    for (uint32_t i = 0; i < cl->n_parts && w->status == STATUS_OK; i++) {
        const struct matmul_spec *m = &cl->part[i].spec.matmul;
        uint32_t n = 0, parts = 0;
        while (n < m->n) n += all[first + parts++]->n_rows;
        uint32_t *order = NULL;
        if (cl->qkv_at_once && w->upload) {
            order = order_new(w, n);
            if (order == NULL) return;
            repack_order_qkv(m->n_heads, m->n_kv_heads, m->head_dim, m->rope, m->rope_dims, order);
        }
        cl->part[i].weights = put_weights(w, all + first, parts, order);
        free(order);
        if (m->bias) {
            uint64_t to = cl->part[i].bias = room_for(w, n * sizeof(float));
            for (uint32_t j = first; j < first + parts; j++) {
                send_vector(w, to, bias[j], bias0[j], all[j]->n_rows);
                to += all[j]->n_rows * sizeof(float);
            }
        }
        first += parts;
    }
}

static void put_layer(struct walk *w, uint32_t i) {
    const struct plan *p = w->b->cfg.plan;
    const struct layer_plan *l = &p->layers[i];
    struct cuda_layer *cl = &w->b->layers[i];
    const uint32_t d = p->d_model;
    put_attention_in(w, l, cl);
    const struct weight *const o = &l->o, *const down = &l->down;
    const struct weight *const gated[2] = {&l->gate, &l->up};
    cl->o.weights = put_weights(w, &o, 1, NULL);
    cl->o.bias = put_vector(w, l->o_bias, d);
    uint32_t *order = w->upload ? order_new(w, 2 * l->d_ff) : NULL;
    if (order != NULL) repack_order_gated(l->d_ff, order);
    cl->gate.weights = put_weights(w, gated, 2, order);
    free(order);
    cl->down.weights = put_weights(w, &down, 1, NULL);
    cl->attn_norm = put_vector(w, l->attn_norm, d);
    cl->attn_post_norm = put_vector(w, l->attn_post_norm, d);
    cl->ffn_norm = put_vector(w, l->ffn_norm, d);
    cl->ffn_post_norm = put_vector(w, l->ffn_post_norm, d);
    if (l->q_norm != NULL) cl->q_norm = put_vector(w, l->q_norm, (uint32_t)l->q_norm->dim[0]);
    if (l->k_norm != NULL) cl->k_norm = put_vector(w, l->k_norm, (uint32_t)l->k_norm->dim[0]);
}

static uint64_t put_rope(struct walk *w, const struct rope_plan *r) {
    const uint32_t half = r->n_dims / 2;
    const uint64_t n = (uint64_t)w->b->cfg.n_ctx * half * 2;
    const uint64_t to = room_for(w, n * sizeof(float));
    if (!w->upload || w->status != STATUS_OK) return to;
    float *table = floats_new(w, n);
    if (table == NULL) return 0;
    for (uint32_t p = 0, at = 0; p < w->b->cfg.n_ctx; p++)
        for (uint32_t i = 0; i < half; i++) {
            double sine, cosine;
            math_sincos((double)p * r->inv_freq[i], &sine, &cosine);
            table[at++] = (float)(cosine * (double)r->mscale);
            table[at++] = (float)(sine * (double)r->mscale);
        }
    send(w, to, table, n * sizeof(float));
    free(table);
    return to;
}

static void put_embedding(struct walk *w) {
    struct cuda_backend *b = w->b;
    const struct plan *p = b->cfg.plan;
    const struct weight *const head = &p->head;
    const struct weight whole = {p->embed, 0, p->n_vocab}, *const embed = &whole;
    const bool tied = p->head.t == p->embed && p->head.row0 == 0 && p->head.n_rows == p->n_vocab;
    const enum tensor_type type = p->embed->type;
    b->head.weights = put_weights(w, &head, 1, NULL);
    b->head.bias = put_vector(w, p->head_bias, p->n_vocab);
    if (type == TENSOR_F16 || type == TENSOR_BF16 || type == TENSOR_F32) {
        /* Rows as they are stored. */
        const uint64_t bytes =
            tensor_row_bytes(tensor_format(type), p->d_model) * (uint64_t)p->n_vocab;
        b->embed = room_for(w, bytes);
        send(w, b->embed, p->embed->data, bytes);
    } else {
        b->embed = tied ? b->head.weights : put_weights(w, &embed, 1, NULL);
    }
    b->out_norm = put_vector(w, p->out_norm, p->d_model);
}

static uint64_t walk_weights(struct walk *w) {
    struct cuda_backend *b = w->b;
    const struct plan *p = b->cfg.plan;
    put_embedding(w);
    for (uint32_t r = 0; r < p->n_ropes; r++) b->rope[r] = put_rope(w, &p->ropes[r]);
    for (uint32_t i = 0; i < p->n_layers && w->status == STATUS_OK; i++) put_layer(w, i);
    for (uint32_t i = 0; i < p->n_layers; i++)
        if (p->layers[i].rope != PLAN_NO_ROPE) b->layers[i].rope = b->rope[p->layers[i].rope];
    return w->at;
}

static uint64_t walk_kv(struct walk *w) {
    struct cuda_backend *b = w->b;
    const struct plan *p = b->cfg.plan;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        b->page_bytes[g] = kv_page_bytes(&p->groups[g], KV_F16);
        b->kv[g] = room_for(w, b->page_bytes[g] * b->n_pages[g]);
    }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct layer_plan *l = &p->layers[i];
        b->layers[i].kv = b->kv[l->group] +
                          l->group_layer * (b->page_bytes[l->group] / p->groups[l->group].n_layers);
    }
    return w->at;
}

/* Key bounds of every page, choices of every slot, and scores being compared. */
static uint64_t walk_gates(struct walk *w) {
    struct cuda_backend *b = w->b;
    struct cuda_gate *g = &b->gate_of;
    const struct plan *p = b->cfg.plan;
    uint64_t heads = 1, choices = 0;
    if (!b->cfg.gates) return 0;
    for (uint32_t i = 0; i < p->n_groups; i++) {
        const struct kv_group *y = &p->groups[i];
        if (y->window > 0) continue;
        g->bounds_bytes[i] = kernel_bounds_bytes(y->n_layers, y->n_kv_heads, y->head_dim);
        g->bounds[i] = room_for(w, g->bounds_bytes[i] * b->n_pages[i]);
        if (y->n_kv_heads > heads) heads = y->n_kv_heads;
    }
    for (uint32_t i = 0; i < b->n_buckets; i++)
        choices = larger((uint32_t)choices, b->buckets[i].max_choices);
    g->mask_stride = (b->cfg.n_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    /* Whole multiples of 16 bytes, for the kernel that copies slots. */
    g->mask_entry = (uint32_t)(p->n_layers * heads * g->mask_stride + 7) / 8 * 8;
    g->slot_bytes = (uint64_t)GATE_RING * g->mask_entry * sizeof(uint16_t);
    g->score_stride = g->mask_stride * (KV_BLOCK_TOKENS / KV_PAGE_TOKENS);
    g->masks = room_for(w, g->slot_bytes * b->cfg.n_slots);
    g->scores = room_for(w, choices * heads * g->score_stride * sizeof(float));
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct layer_plan *l = &p->layers[i];
        b->layers[i].bounds =
            g->bounds[l->group] + kernel_bounds_bytes(l->group_layer, l->n_kv_heads, l->head_dim);
        b->layers[i].masks = g->masks + i * heads * g->mask_stride * sizeof(uint16_t);
    }
    return w->at;
}

/* Widths of the buffers, over all layers. */
struct widths {
    uint64_t planes, h, qkv, heads, kv_heads, partial;
};

static struct widths widths_of(const struct cuda_backend *b) {
    struct widths w = {
        kernel_planes_bytes(b->head.spec.matmul.k, b->head.spec.matmul.activation_bits),
        0,
        1,
        1,
        1,
        1};
#define WIDER(field, value)                                                                        \
    if ((value) > w.field) w.field = (value)
    for (uint32_t i = 0; i < b->cfg.plan->n_layers; i++) {
        const struct layer_plan *l = &b->cfg.plan->layers[i];
        const struct cuda_layer *cl = &b->layers[i];
        const struct cuda_product *const all[] = {&cl->part[0], &cl->part[1], &cl->part[2],
                                                  &cl->o,       &cl->gate,    &cl->down};
        for (unsigned j = 0; j < sizeof all / sizeof *all; j++) {
            const struct matmul_spec *m = &all[j]->spec.matmul;
            WIDER(planes, kernel_planes_bytes(m->k, m->activation_bits));
        }
        WIDER(h, kernel_planes_bytes(l->d_ff, b->bits));
        WIDER(qkv, (uint64_t)(l->n_heads + 2 * l->n_kv_heads) * l->head_dim);
        WIDER(heads, (uint64_t)l->n_heads);
        WIDER(kv_heads, (uint64_t)l->n_kv_heads);
        WIDER(partial, (uint64_t)l->n_heads * l->head_dim);
    }
#undef WIDER
    return w;
}

/* Activations; `zero` is what must be written once before it is read. */
static uint64_t walk_scratch(struct walk *w, uint64_t *zero_at, uint64_t *zero_bytes) {
    struct cuda_backend *b = w->b;
    const struct plan *p = b->cfg.plan;
    const struct widths width = widths_of(b);
    const struct cuda_bucket *top = &b->buckets[b->n_buckets - 1];
    const uint64_t rows = b->max_rows, padded = (rows + 63) / 64 * 64;
    const uint64_t head_rows = smaller(b->max_rows, CUDA_HEAD_ROWS);
    uint64_t items = 0;
    for (uint32_t i = 0; i < b->n_buckets; i++)
        if (b->buckets[i].max_items > items) items = b->buckets[i].max_items;
    *zero_at = w->at;
    b->planes = room_for(w, padded * width.planes);
    b->h = room_for(w, padded * width.h);
    b->tickets = room_for(w, rows * width.kv_heads * 4);
    b->barrier = room_for(w, 8);
    b->answers = room_for(w, rows * sizeof(struct kernel_answer));
    *zero_bytes = w->at - *zero_at;
    b->block = room_for(w, top->at.bytes);
    b->x = room_for(w, padded * p->d_model * 4);
    b->q = room_for(w, rows * p->d_attention_max * 4);
    b->qkv = room_for(w, rows * width.qkv * 4);
    b->attended = room_for(w, rows * p->d_attention_max * 4);
    b->y = room_for(w, rows * p->d_model * 4);
    b->gate = room_for(w, rows * p->d_ff_max * 4);
    b->logits = room_for(w, head_rows * p->n_vocab * 4);
    b->sampler_scratch = room_for(w, head_rows * kernel_sampler_scratch_bytes(p->n_vocab));
    b->partial = room_for(w, items * width.partial * 4);
    b->partial_ml = room_for(w, items * width.heads * 8);
    return w->at;
}

/* Addresses from made-up bases: what is there and what is not decides the kernels. */
void cuda_plan_memory(struct cuda_backend *b, uint64_t granularity_bytes) {
    uint64_t at, bytes;
    struct walk w = {.b = b, .base = DEVICE_MEMORY_ALIGN};
    budget_init(&b->budget);
    device_memory_plan(&b->budget, "weights (device)", walk_weights(&w), granularity_bytes);
    b->weights_bytes = w.at;
    w.at = 0;
    device_memory_plan(&b->budget, "KV pages (device)", walk_kv(&w), granularity_bytes);
    b->kv_bytes = w.at;
    w.at = 0;
    if (b->cfg.gates)
        device_memory_plan(&b->budget, "page choices (device)", walk_gates(&w), granularity_bytes);
    b->gate_bytes = w.at;
    w.at = 0;
    device_memory_plan(&b->budget, "activations (device)", walk_scratch(&w, &at, &bytes),
                       granularity_bytes);
    b->scratch_bytes = w.at;
}

static enum status open_range(struct cuda_backend *b, struct device_memory *m, const char *name,
                              uint64_t bytes, uint64_t *base, struct error *e) {
    enum status s = device_memory_open(m, &b->cuda, &b->device, name, bytes, e);
    if (s == STATUS_OK) s = device_memory_take(m, bytes, 0, base, e);
    if (s == STATUS_OK) device_memory_freeze(m);
    return s;
}

/* Of the parts of the pinned block; the sum has room for their alignment. */
struct pinned_sizes {
    uint64_t block, answers, bitmaps, biases, taps;
};
static struct pinned_sizes pinned_sizes(const struct cuda_backend *b) {
    const struct plan *p = b->cfg.plan;
    return (struct pinned_sizes){
        .block = b->buckets[b->n_buckets - 1].at.bytes,
        .answers = (uint64_t)b->max_rows * sizeof(struct kernel_answer),
        .bitmaps = (uint64_t)b->max_bitmaps * ((p->n_vocab + 63) / 64 * 8) + 8,
        .biases = (uint64_t)b->max_biases * 12 + 8,
        .taps = (uint64_t)b->max_tap_rows * p->d_model * 4 + 8,
    };
}

uint64_t cuda_pinned_bytes(const struct cuda_backend *b) {
    const struct pinned_sizes s = pinned_sizes(b);
    return s.block + s.answers + s.bitmaps + s.biases + s.taps + 5 * 256;
}

static enum status take_pinned(struct cuda_backend *b, struct error *e) {
    struct pinned_memory *m = &b->pinned;
    const struct pinned_sizes z = pinned_sizes(b);
    void *at[5] = {0};
    enum status s = pinned_memory_open(m, &b->cuda, "steps", cuda_pinned_bytes(b), false, e);
    if (s == STATUS_OK) s = pinned_memory_take(m, z.block, 256, &at[0], NULL, e);
    if (s == STATUS_OK) s = pinned_memory_take(m, z.answers, 256, &at[1], NULL, e);
    if (s == STATUS_OK) s = pinned_memory_take(m, z.bitmaps, 256, &at[2], &b->bitmaps, e);
    if (s == STATUS_OK) s = pinned_memory_take(m, z.biases, 256, &at[3], &b->biases, e);
    if (s == STATUS_OK) s = pinned_memory_take(m, z.taps, 256, &at[4], &b->taps, e);
    if (s != STATUS_OK) return s;
    pinned_memory_freeze(m);
    b->host_block = at[0];
    b->host_answers = at[1];
    b->host_bitmaps = at[2];
    b->host_biases = at[3];
    b->host_taps = at[4];
    memset(b->host_block, 0, z.block);
    return STATUS_OK;
}

static enum status upload_weights(struct cuda_backend *b, uint64_t base, struct error *e) {
    struct pinned_memory staging = {0};
    struct walk w = {.b = b, .base = base, .upload = true, .total_bytes = b->weights_bytes, .e = e};
    w.chunk = malloc(CHUNK_BYTES);
    enum status s =
        w.chunk != NULL ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for weights");
    if (s == STATUS_OK)
        s = pinned_memory_open(&staging, &b->cuda, "loading", STAGING_BYTES, true, e);
    if (s == STATUS_OK) s = pinned_memory_take(&staging, STAGING_BYTES, 0, &w.staging, NULL, e);
    if (s == STATUS_OK) {
        (void)walk_weights(&w);
        s = w.status;
    }
    pinned_memory_close(&staging);
    free(w.chunk);
    if (s == STATUS_OK && b->cfg.progress != NULL) b->cfg.progress(b->cfg.progress_arg, 1);
    return s;
}

enum status cuda_load(struct cuda_backend *b, struct error *e) {
    uint64_t base = 0, zero_at, zero_bytes;
    struct walk w = {.b = b};
    enum status s = open_range(b, &b->weights_memory, "weights", b->weights_bytes, &base, e);
    if (s == STATUS_OK) s = upload_weights(b, base, e);
    if (s == STATUS_OK) s = open_range(b, &b->kv_memory, "KV pages", b->kv_bytes, &w.base, e);
    if (s != STATUS_OK) return s;
    (void)walk_kv(&w);
    if (b->cfg.gates) {
        w = (struct walk){.b = b};
        s = open_range(b, &b->gate_memory, "page choices", b->gate_bytes, &w.base, e);
        if (s != STATUS_OK) return s;
        (void)walk_gates(&w);
        s = CUDA_CALL(&b->cuda, e, memset_d8_async, b->gate_memory.base, 0, b->gate_bytes,
                      b->stream);
        if (s != STATUS_OK) return s;
    }
    s = open_range(b, &b->scratch_memory, "activations", b->scratch_bytes, &base, e);
    if (s != STATUS_OK) return s;
    w = (struct walk){.b = b, .base = base};
    (void)walk_scratch(&w, &zero_at, &zero_bytes);
    s = CUDA_CALL(&b->cuda, e, memset_d8_async, base + zero_at, 0, zero_bytes, b->stream);
    /* A page is copied whole, also what of it was never written. */
    if (s == STATUS_OK)
        s = CUDA_CALL(&b->cuda, e, memset_d8_async, b->kv_memory.base, 0, b->kv_bytes, b->stream);
    if (s == STATUS_OK) s = CUDA_CALL(&b->cuda, e, stream_synchronize, b->stream);
    if (s == STATUS_OK) s = take_pinned(b, e);
    return s;
}
