#include "jit/kernel_bench.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "jit/repack.h"

enum { MAX_BUFFERS = 32, MAX_REPS = 1000, MAX_COPIES = 32, COPY_BYTES = 256 << 20 };

union params {
#define X(TAG, name, fields, params) struct name##_params name;
    KERNEL_LIST(X)
#undef X
};

struct run {
    const struct kernel_bench *k;
    union params params;
    /* What changes from launch to launch: an address in params, and how far the next one is. */
    uint64_t *turning;
    uint64_t turn_bytes;
    uint32_t n_turns;
    uint32_t rows, pages_per_row; /* of sequences at `depth` */
    uint64_t blocks;              /* that attention reads, of 256 positions */
    struct kernel_geometry geometry;
    uint64_t buffers[MAX_BUFFERS];
    uint32_t n_buffers;
    enum status status;
    struct error *e;
};

static uint64_t take(struct run *r, uint64_t bytes, uint8_t fill) {
    const struct cuda *cu = r->k->cuda;
    uint64_t address = 0;
    bytes = (bytes + 255) / 256 * 256 + 256;
    CHECK(r->n_buffers < MAX_BUFFERS);
    if (r->status != STATUS_OK) return 0;
    r->status = CUDA_CALL(cu, r->e, mem_alloc, &address, bytes);
    if (r->status != STATUS_OK) return 0;
    r->buffers[r->n_buffers++] = address;
    r->status = CUDA_CALL(cu, r->e, memset_d8_async, address, fill, bytes, r->k->stream);
    return address;
}

static uint64_t put(struct run *r, const void *data, uint64_t bytes) {
    const struct cuda *cu = r->k->cuda;
    const uint64_t address = take(r, bytes, 0);
    if (r->status == STATUS_OK)
        r->status = CUDA_CALL(cu, r->e, memcpy_htod_async, address, data, bytes, r->k->stream);
    if (r->status == STATUS_OK) r->status = CUDA_CALL(cu, r->e, stream_synchronize, r->k->stream);
    return address;
}

/* f(i) for i in [0, n), on the device. */
static uint64_t put_words(struct run *r, uint64_t n, uint32_t (*f)(const struct run *, uint64_t)) {
    uint32_t *words = malloc((n > 0 ? n : 1) * sizeof *words);
    if (words == NULL) {
        r->status = error_set(r->e, STATUS_NO_MEMORY, NULL, "no memory for a list");
        return 0;
    }
    for (uint64_t i = 0; i < n; i++) words[i] = f(r, i);
    const uint64_t address = put(r, words, n * sizeof *words);
    free(words);
    return address;
}

static uint32_t identity(const struct run *r, uint64_t i) {
    (void)r;
    return (uint32_t)i;
}
static uint32_t rows_of(const struct run *r, uint64_t i) {
    (void)i;
    return r->rows;
}
static uint32_t run_bits(const struct run *r, uint64_t i) {
    const uint64_t first = i * 32;
    if (r->rows <= first) return 0;
    return r->rows - first >= 32 ? UINT32_MAX : (1u << (r->rows - first)) - 1;
}
static bool walks(const struct run *r) {
    return r->k->use->config.variant == KERNEL_WALK;
}
static uint32_t position(const struct run *r, uint64_t i) {
    return walks(r) ? r->k->depth - r->rows + 1 + (uint32_t)i : r->k->depth;
}
static uint32_t first_page(const struct run *r, uint64_t i) {
    return walks(r) ? 0 : (uint32_t)i * r->pages_per_row;
}
/* A number between -1 and 1, as bits. */
static uint32_t noise(const struct run *r, uint64_t i) {
    (void)r;
    uint32_t x = (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    const float f = (float)(x & 0xffff) * (1.0f / 32768) - 1;
    memcpy(&x, &f, sizeof x);
    return x;
}

/* As many copies of what a launch reads once as no cache holds, one a launch at most. */
static uint64_t turn(struct run *r, uint64_t *address, uint64_t bytes, uint8_t fill) {
    const uint64_t wanted = bytes > 0 ? 3 * (uint64_t)r->k->chip->l2_bytes / bytes + 1 : 1;
    r->turn_bytes = (bytes + 255) / 256 * 256;
    r->n_turns = (uint32_t)(wanted < MAX_COPIES ? wanted : MAX_COPIES);
    if (r->n_turns > r->k->launches) r->n_turns = r->k->launches;
    r->turning = address;
    return *address = take(r, r->turn_bytes * r->n_turns, fill);
}

/* Items of split attention: all blocks of every row; tiles of walking attention. */
static uint64_t put_attention_work(struct run *r, uint32_t *count, uint32_t window) {
    const uint32_t last = r->k->depth / KERNEL_ATTENTION_BLOCK;
    const uint32_t low = window > 0 && r->k->depth >= window ? r->k->depth - window + 1 : 0;
    const uint32_t first = low / KERNEL_ATTENTION_BLOCK, blocks = last - first + 1;
    const uint32_t tile = r->k->use->config.tile_rows;
    *count = walks(r) ? (r->rows + tile - 1) / tile : r->rows * blocks;
    r->blocks = walks(r) ? blocks : *count;
    uint32_t *words = malloc(*count * 4 * sizeof *words);
    if (words == NULL) {
        r->status = error_set(r->e, STATUS_NO_MEMORY, NULL, "no memory for a list");
        return 0;
    }
    for (uint32_t i = 0; i < *count; i++) {
        if (walks(r)) {
            const uint32_t left = r->rows - i * tile;
            words[2 * i] = i * tile;
            words[2 * i + 1] = left < tile ? left : tile;
        } else {
            const struct attention_item item = {i / blocks, first + i % blocks, i / blocks * blocks,
                                                blocks};
            memcpy(words + 4 * i, &item, sizeof item);
        }
    }
    const uint64_t address = put(r, words, *count * (walks(r) ? 8ull : 16ull));
    free(words);
    return address;
}

static void prepare_matmul(struct run *r, uint64_t run, uint64_t at, uint64_t row_pages,
                           uint64_t pages) {
    const struct matmul_spec *m = &r->k->use->spec.matmul;
    struct matmul_params *p = &r->params.matmul;
    const uint32_t padded = (r->rows + 63) / 64 * 64;
    turn(r, &p->weights, repack_bytes((enum tensor_type)m->format, m->n, m->k), 0x31);
    p->bias = m->bias ? take(r, m->n * 4ull, 0) : 0;
    p->planes = take(r, kernel_planes_bytes(m->k, m->activation_bits) * padded, 0x11);
    p->x = take(r, (uint64_t)padded * m->k * 4, 0x3e);
    p->norm = take(r, m->k * 4ull, 0x3e);
    p->out_stride =
        m->epilogue == KERNEL_OUT_GATED || m->epilogue == KERNEL_OUT_GATED_PLANES ? m->n / 2 : m->n;
    const uint64_t planes = kernel_planes_bytes(m->n, m->activation_bits);
    p->out = take(r, padded * (planes > m->n * 4ull ? planes : m->n * 4ull), 0);
    p->run = run;
    p->row_position = at;
    p->row_pages = row_pages;
    p->pages = pages;
    p->max_rows = r->rows;
    if (m->epilogue != KERNEL_OUT_QKV) return;
    p->page_bytes = 64ull * m->n_kv_heads * m->head_dim;
    p->kv = take(r, p->page_bytes * r->rows * r->pages_per_row, 0);
    p->rope = take(r, (r->k->depth + 1) * 4ull * (m->rope_dims > 0 ? m->rope_dims : 1), 0x3e);
}

static void prepare_attention(struct run *r, uint64_t run, uint64_t at, uint64_t row_pages,
                              uint64_t pages) {
    const struct attention_spec *a = &r->k->use->spec.attention;
    struct attention_params *p = &r->params.attention;
    uint32_t count = 0;
    p->q = take(r, (uint64_t)r->rows * a->n_heads * a->head_dim * 4, 0x3c);
    p->page_bytes = 64ull * a->n_kv_heads * a->head_dim;
    turn(r, &p->kv, p->page_bytes * r->pages_per_row * (walks(r) ? 1 : r->rows), 0x31);
    p->run = run;
    p->row_position = at;
    p->row_pages = row_pages;
    p->pages = pages;
    p->items = put_attention_work(r, &count, a->window);
    p->count = put(r, &count, sizeof count);
    p->row_gates = take(r, r->rows * sizeof(struct attention_gate), 0xff);
    p->masks = take(r, 64, 0);
    p->partial = take(r, (uint64_t)count * a->n_heads * a->head_dim * 4, 0);
    p->partial_ml = take(r, (uint64_t)count * a->n_heads * 8, 0);
    p->tickets = take(r, (uint64_t)r->rows * a->n_kv_heads * 4, 0);
    const uint64_t width = (uint64_t)a->n_heads * a->head_dim;
    p->out = take(r, (r->rows + 63) / 64 * 64 * (width * 4 + 256), 0);
    r->geometry.bytes = r->blocks * KERNEL_ATTENTION_BLOCK * 4 * a->n_kv_heads * a->head_dim;
    r->geometry.flops = (walks(r) ? r->rows * r->blocks : r->blocks) * KERNEL_ATTENTION_BLOCK * 4 *
                        a->n_heads * a->head_dim;
}

static void prepare_choose(struct run *r, uint64_t run, uint64_t row_pages, uint64_t pages) {
    const struct page_choose_spec *c = &r->k->use->spec.page_choose;
    struct page_choose_params *p = &r->params.page_choose;
    const uint32_t recent = r->k->depth / 16, words = recent / 16 + 1;
    struct page_choice choices[64];
    CHECK(r->rows <= 64);
    for (uint32_t i = 0; i < r->rows; i++)
        choices[i] = (struct page_choice){.row = i,
                                          .entry = i,
                                          .sink_pages = 1,
                                          .recent_page = recent,
                                          .budget_pages = recent / 4};
    p->q = put_words(r, (uint64_t)r->rows * c->n_heads * c->head_dim, noise);
    p->bounds_bytes = kernel_bounds_bytes(1, c->n_kv_heads, c->head_dim);
    turn(r, &p->bounds, p->bounds_bytes * r->rows * r->pages_per_row, 0x31);
    p->choices = put(r, choices, r->rows * sizeof *choices);
    p->count = put_words(r, 1, rows_of);
    p->anchors = pages;
    p->run = run;
    p->row_pages = row_pages;
    p->pages = pages;
    p->score_stride = recent + 1;
    p->mask_stride = words;
    p->mask_entry = words * c->n_kv_heads;
    p->scores = take(r, (uint64_t)r->rows * c->n_kv_heads * p->score_stride * 4, 0);
    p->masks = take(r, (uint64_t)r->rows * p->mask_entry * 2, 0);
    r->geometry.bytes = p->bounds_bytes * r->rows * recent;
    r->geometry.flops = 4ull * r->rows * recent * c->n_heads * c->head_dim;
}

static void prepare_pages(struct run *r, uint64_t run) {
    const struct kernel_spec *s = &r->k->use->spec;
    uint32_t list[128];
    CHECK(r->rows <= 64);
    for (uint32_t i = 0; i < r->rows; i++) {
        list[2 * i] = s->family == KERNEL_PAGE_COPY ? 2 * i : i;
        list[2 * i + 1] = s->family == KERNEL_PAGE_COPY ? 2 * i + 1 : i;
    }
    const uint64_t items = put(r, list, r->rows * 8ull), count = put_words(r, 1, rows_of);
    if (s->family == KERNEL_PAGE_COPY) {
        struct page_copy_params *p = &r->params.page_copy;
        p->bytes = s->page_copy.page_bytes > 0 ? s->page_copy.page_bytes : 1 << 20;
        p->copies = items;
        p->count = count;
        turn(r, &p->kv, p->bytes * 2 * r->rows, 0);
        r->geometry.bytes = 2 * p->bytes * r->rows;
        return;
    }
    struct page_seal_params *p = &r->params.page_seal;
    p->page_bytes = 64ull * s->page_seal.n_kv_heads * s->page_seal.head_dim;
    p->bounds_bytes = kernel_bounds_bytes(1, s->page_seal.n_kv_heads, s->page_seal.head_dim);
    turn(r, &p->kv, p->page_bytes * r->rows, 0x31);
    p->bounds = take(r, p->bounds_bytes * r->rows, 0);
    p->list = items;
    p->count = count;
    p->run = run;
}

static void prepare_sampler(struct run *r) {
    const uint32_t n = r->k->use->spec.sampler.n;
    struct sampler_params *p = &r->params.sampler;
    struct kernel_sample samples[64];
    CHECK(r->rows <= 64);
    for (uint32_t i = 0; i < r->rows; i++)
        samples[i] = (struct kernel_sample){.random = i * UINT64_C(0x9e3779b97f4a7c15),
                                            .logits_row = i,
                                            .target = UINT32_MAX,
                                            .temperature = 0.8f,
                                            .top_p = 0.95f,
                                            .bitmap = UINT32_MAX};
    p->logits = put_words(r, (uint64_t)r->rows * n, noise);
    p->specs = put(r, samples, r->rows * sizeof *samples);
    p->count = put_words(r, 1, rows_of);
    p->bitmaps = p->biases = p->specs;
    p->scratch = take(r, kernel_sampler_scratch_bytes(n) * r->rows, 0);
    p->answers = take(r, r->rows * sizeof(struct kernel_answer), 0);
}

static void prepare_rows(struct run *r, uint64_t run, uint64_t at, uint64_t row_pages,
                         uint64_t pages) {
    const struct kernel_spec *s = &r->k->use->spec;
    const uint64_t rows = r->rows;
    switch ((enum kernel_family)s->family) {
    case KERNEL_NORM:
        r->params.norm = (struct norm_params){.x = take(r, rows * s->norm.k * 4, 0x3e),
                                              .y = take(r, rows * s->norm.k * 4, 0x3e),
                                              .post_norm = take(r, s->norm.k * 4ull, 0x3e),
                                              .norm = take(r, s->norm.k * 4ull, 0x3e),
                                              .out = take(r, rows * (s->norm.k * 8ull + 512), 0),
                                              .run = run,
                                              .max_rows = r->rows};
        return;
    case KERNEL_EMBED: {
        const enum tensor_type type = (enum tensor_type)s->embed.format;
        const bool plain = tensor_format(type)->block_weights == 1;
        r->params.embed = (struct embed_params){
            .weights = take(r,
                            plain ? tensor_row_bytes(tensor_format(type), s->embed.k) * s->embed.n
                                  : repack_bytes(type, s->embed.n, s->embed.k),
                            0x31),
            .ids = put_words(r, rows, identity),
            .count = put_words(r, 1, rows_of),
            .x = take(r, rows * s->embed.k * 4, 0),
            .max_rows = r->rows};
        return;
    }
    case KERNEL_ROPE_KV: {
        const struct rope_kv_spec *y = &s->rope_kv;
        const uint64_t heads = y->n_heads + 2ull * y->n_kv_heads;
        r->params.rope_kv = (struct rope_kv_params){
            .qkv = take(r, rows * heads * y->head_dim * 4, 0x3e),
            .q_norm = take(r, (uint64_t)y->n_heads * y->head_dim * 4, 0x3e),
            .k_norm = take(r, (uint64_t)y->n_heads * y->head_dim * 4, 0x3e),
            .q = take(r, rows * y->n_heads * y->head_dim * 4, 0),
            .run = run,
            .row_position = at,
            .row_pages = row_pages,
            .pages = pages,
            .kv = take(r, 64ull * y->n_kv_heads * y->head_dim * rows * r->pages_per_row, 0),
            .page_bytes = 64ull * y->n_kv_heads * y->head_dim,
            .rope = take(r, (r->k->depth + 1) * 4ull * (y->rope_dims > 0 ? y->rope_dims : 1), 0x3e),
            .max_rows = r->rows};
        return;
    }
    case KERNEL_HEADS:
        r->params.heads = (struct heads_params){.x = take(r, rows * s->heads.k * 4, 0x3e),
                                                .norm = take(r, s->heads.k * 4ull, 0x3e),
                                                .bias = take(r, s->heads.n * 4ull, 0),
                                                .scores = take(r, rows * s->heads.n * 4, 0),
                                                .thresholds = take(r, rows * 4, 0x7f),
                                                .run = run,
                                                .exit_layer = take(r, rows * 4, 0),
                                                .run_stride = 2,
                                                .n_layers = 1,
                                                .max_rows = r->rows};
        turn(r, &r->params.heads.weights, (uint64_t)s->heads.n * s->heads.k * 4, 0x3c);
        return;
    default: {
        const uint32_t tap[3] = {0, r->rows, 0}, one = 1;
        CHECK(s->family == KERNEL_TAP);
        r->params.tap = (struct tap_params){.x = take(r, rows * s->tap.k * 4, 0x3e),
                                            .taps = put(r, tap, sizeof tap),
                                            .count = put(r, &one, sizeof one),
                                            .out = take(r, rows * s->tap.k * 4, 0)};
    }
    }
}

static void prepare(struct run *r) {
    const struct kernel_spec *s = &r->k->use->spec;
    const uint64_t run = put_words(r, (r->rows + 63) / 64 * 2, run_bits);
    const uint64_t at = put_words(r, r->rows, position);
    const uint64_t row_pages = put_words(r, r->rows, first_page);
    const uint64_t pages = put_words(r, (uint64_t)r->rows * r->pages_per_row, identity);
    switch ((enum kernel_family)s->family) {
    case KERNEL_MATMUL:
        prepare_matmul(r, run, at, row_pages, pages);
        break;
    case KERNEL_FFN: {
        struct ffn_params *p = &r->params.ffn;
        const struct ffn_spec *m = &s->ffn;
        const uint64_t gate =
            (repack_bytes((enum tensor_type)m->format, 2 * m->n, m->k) + 255) / 256 * 256;
        const uint64_t down = repack_bytes((enum tensor_type)m->down_format, m->k, m->n);
        turn(r, &p->weights, gate + down, 0x31);
        p->down_weights = p->weights + gate;
        p->norm = take(r, m->k * 4ull, 0x3e);
        p->x = take(r, (uint64_t)r->rows * m->k * 4, 0x3e);
        const uint64_t padded = (r->rows + 63) / 64 * 64ull;
        p->h = take(r, kernel_planes_bytes(m->n, m->activation_bits) * padded, 0);
        p->planes = take(r, kernel_planes_bytes(m->k, KERNEL_PLANES_INT16) * padded, 0);
        p->next_norm = p->norm;
        p->run = p->next_run = run;
        p->barrier = take(r, 8, 0);
        p->max_rows = r->rows;
        break;
    }
    case KERNEL_ATTENTION:
        prepare_attention(r, run, at, row_pages, pages);
        break;
    case KERNEL_PAGE_CHOOSE:
        prepare_choose(r, run, row_pages, pages);
        break;
    case KERNEL_PAGE_COPY:
    case KERNEL_PAGE_SEAL:
        prepare_pages(r, run);
        break;
    case KERNEL_SAMPLER:
        prepare_sampler(r);
        break;
    default:
        prepare_rows(r, run, at, row_pages, pages);
    }
    if (r->status == STATUS_OK)
        r->status = CUDA_CALL(r->k->cuda, r->e, stream_synchronize, r->k->stream);
}

/* The parameters of launch i. */
static union params params_of(const struct run *r, uint32_t i) {
    union params p = r->params;
    if (r->turning == NULL || r->n_turns < 2) return p;
    const uint64_t by = r->turn_bytes * (i % r->n_turns);
    const size_t at = (size_t)((const char *)r->turning - (const char *)&r->params);
    uint64_t address = *r->turning + by;
    memcpy((char *)&p + at, &address, sizeof address);
    if (r->k->use->spec.family == KERNEL_FFN) p.ffn.down_weights += by;
    return p;
}

static struct cuda_launch launch_of(const struct run *r) {
    const struct kernel_geometry *g = &r->geometry;
    return (struct cuda_launch){.grid = {g->grid[0], g->grid[1], g->grid[2]},
                                .block = {g->block, 1, 1},
                                .shared_bytes = g->shared_bytes,
                                .dependent = r->k->chip->dependent_launch != 0};
}

static enum status build(struct run *r, struct cu_graph_exec **out) {
    const struct kernel_bench *k = r->k;
    struct cu_graph *graph;
    struct cuda_after last = {0};
    struct cuda_launch launch = launch_of(r);
    launch.dependent = false;
    enum status s = CUDA_CALL(k->cuda, r->e, graph_create, &graph, 0);
    if (s != STATUS_OK) return s;
    for (uint32_t i = 0; i < k->launches && s == STATUS_OK; i++) {
        union params p = params_of(r, i);
        void *all[] = {&p};
        struct cu_graph_node *node = NULL;
        s = cuda_graph_add_kernel(k->cuda, graph, k->function, &launch, all, &last,
                                  last.node != NULL, &node, r->e);
        last = (struct cuda_after){node, k->chip->dependent_launch != 0};
    }
    if (s == STATUS_OK) s = CUDA_CALL(k->cuda, r->e, graph_instantiate, out, graph, 0);
    const enum cu_result gone = k->cuda->graph_destroy(graph);
    return s != STATUS_OK ? s : cuda_status(k->cuda, gone, "graph_destroy", r->e);
}

static enum status launch_all(struct run *r, struct cu_graph_exec *graph, const char *name) {
    const struct kernel_bench *k = r->k;
    if (graph != NULL) return CUDA_CALL(k->cuda, r->e, graph_launch, graph, k->stream);
    const struct cuda_launch launch = launch_of(r);
    enum status s = STATUS_OK;
    for (uint32_t i = 0; i < k->launches && s == STATUS_OK; i++) {
        union params p = params_of(r, i);
        void *all[] = {&p};
        nvtx_push(k->nvtx, name, r->geometry.bytes, r->geometry.flops);
        s = cuda_launch(k->cuda, k->function, &launch, all, k->stream, r->e);
        nvtx_pop(k->nvtx);
    }
    return s;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Between two events; *timed is false where the driver does not say. */
static enum status elapsed(const struct cuda *cu, struct cu_event *start, struct cu_event *end,
                           bool *timed, double *us, struct error *e) {
    float ms = 0;
    const enum cu_result r = cu->event_elapsed_time(&ms, start, end);
    *timed = r == CUDA_SUCCESS;
    *us = (double)ms * 1000;
    return r == CUDA_ERROR_NOT_SUPPORTED ? STATUS_OK : cuda_status(cu, r, "event_elapsed_time", e);
}

enum status kernel_bench_clock(const struct kernel_bench *k, bool *has_clock, struct error *e) {
    struct cu_event *events[2] = {0};
    double us;
    *has_clock = false;
    enum status s = STATUS_OK;
    for (int i = 0; i < 2 && s == STATUS_OK; i++)
        s = CUDA_CALL(k->cuda, e, event_create, &events[i], CU_EVENT_DEFAULT);
    for (int i = 0; i < 2 && s == STATUS_OK; i++)
        s = CUDA_CALL(k->cuda, e, event_record, events[i], k->stream);
    if (s == STATUS_OK) s = CUDA_CALL(k->cuda, e, stream_synchronize, k->stream);
    if (s == STATUS_OK) s = elapsed(k->cuda, events[0], events[1], has_clock, &us, e);
    for (int i = 0; i < 2; i++)
        if (events[i] != NULL) (void)k->cuda->event_destroy(events[i]);
    return s;
}

static enum status measure(struct run *r, struct cu_graph_exec *graph, struct cu_event *events[2],
                           struct kernel_bench_result *out) {
    const struct kernel_bench *k = r->k;
    char name[KERNEL_NAME_BYTES];
    double us[MAX_REPS], host = 0;
    uint32_t n = 0;
    kernel_name(&k->use->spec, &k->use->config, k->chip, name);
    enum status s = STATUS_OK;
    /* The first run warms up, where there is a clock to see it. */
    for (uint32_t rep = 0; rep <= k->reps && n < MAX_REPS && s == STATUS_OK; rep++) {
        s = CUDA_CALL(k->cuda, r->e, event_record, events[0], k->stream);
        const uint64_t before = clock_now_ns();
        if (s == STATUS_OK) s = launch_all(r, graph, name);
        const uint64_t after = clock_now_ns();
        if (s == STATUS_OK) s = CUDA_CALL(k->cuda, r->e, event_record, events[1], k->stream);
        if (s == STATUS_OK) s = CUDA_CALL(k->cuda, r->e, stream_synchronize, k->stream);
        if (s == STATUS_OK) s = elapsed(k->cuda, events[0], events[1], &out->timed, &us[n], r->e);
        out->n_launches += k->launches;
        if (!out->timed) return s;
        if (rep == 0) continue;
        us[n++] /= k->launches;
        host += (double)(after - before) * 1e-3 / k->launches;
    }
    if (n == 0) return s;
    qsort(us, n, sizeof *us, by_value);
    out->min_us = us[0];
    out->median_us = (us[(n - 1) / 2] + us[n / 2]) / 2;
    out->host_us = host / n;
    return s;
}

static enum status with_events(struct run *r, struct kernel_bench_result *out) {
    const struct cuda *cu = r->k->cuda;
    struct cu_event *events[2] = {0};
    struct cu_graph_exec *graph = NULL;
    enum status s = CUDA_CALL(cu, r->e, event_create, &events[0], CU_EVENT_DEFAULT);
    if (s == STATUS_OK) s = CUDA_CALL(cu, r->e, event_create, &events[1], CU_EVENT_DEFAULT);
    if (s == STATUS_OK && r->k->graphs) s = build(r, &graph);
    if (s == STATUS_OK) s = measure(r, graph, events, out);
    if (graph != NULL) (void)cu->graph_exec_destroy(graph);
    for (int i = 0; i < 2; i++)
        if (events[i] != NULL) (void)cu->event_destroy(events[i]);
    return s;
}

enum status kernel_bench_run(const struct kernel_bench *k, struct kernel_bench_result *out,
                             struct error *e) {
    const struct kernel_use *u = k->use;
    CHECK(k->launches > 0 && k->reps > 0 && u->n_rows > 0 && k->depth + 1 >= u->n_rows);
    struct run r = {
        .k = k, .rows = u->n_rows, .pages_per_row = k->depth / 16 + 1, .status = STATUS_OK, .e = e};
    int registers = 0, shared = 0;
    *out = (struct kernel_bench_result){0};
    enum status s =
        CUDA_CALL(k->cuda, e, func_get_attribute, &registers, CU_FUNCTION_REGISTERS, k->function);
    if (s == STATUS_OK)
        s = CUDA_CALL(k->cuda, e, func_get_attribute, &shared, CU_FUNCTION_SHARED_BYTES,
                      k->function);
    if (s != STATUS_OK) return s;
    const struct kernel_usage usage = {(uint32_t)registers, (uint32_t)shared};
    kernel_launch(&u->spec, &u->config, k->chip, &usage, u->n_rows, &r.geometry);
    if (r.geometry.shared_bytes > 0)
        s = CUDA_CALL(k->cuda, e, func_set_attribute, k->function,
                      CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)r.geometry.shared_bytes);
    if (s != STATUS_OK) return s;
    prepare(&r);
    s = r.status;
    if (s == STATUS_OK) s = with_events(&r, out);
    out->bytes = r.geometry.bytes;
    out->flops = r.geometry.flops;
    out->grid = r.geometry.grid[0] * r.geometry.grid[1] * r.geometry.grid[2];
    out->block = r.geometry.block;
    out->shared_bytes = r.geometry.shared_bytes + usage.shared_static_bytes;
    out->registers = usage.registers;
    (void)k->cuda->stream_synchronize(k->stream);
    for (uint32_t i = 0; i < r.n_buffers; i++) (void)k->cuda->mem_free(r.buffers[i]);
    return s;
}

enum status kernel_bench_copy(const struct kernel_bench *k, double *bytes_per_s, struct error *e) {
    struct run r = {.k = k, .status = STATUS_OK, .e = e};
    struct cu_event *events[2] = {0};
    double best = 0;
    bool timed = true;
    *bytes_per_s = 0;
    const uint64_t a = take(&r, COPY_BYTES, 0), b = take(&r, COPY_BYTES, 0);
    enum status s = r.status;
    for (int i = 0; i < 2 && s == STATUS_OK; i++)
        s = CUDA_CALL(k->cuda, e, event_create, &events[i], CU_EVENT_DEFAULT);
    for (uint32_t rep = 0; rep < 8 && timed && s == STATUS_OK; rep++) {
        double us = 0;
        s = CUDA_CALL(k->cuda, e, event_record, events[0], k->stream);
        for (int i = 0; i < 4 && s == STATUS_OK; i++)
            s = CUDA_CALL(k->cuda, e, memcpy_dtod_async, b, a, COPY_BYTES, k->stream);
        if (s == STATUS_OK) s = CUDA_CALL(k->cuda, e, event_record, events[1], k->stream);
        if (s == STATUS_OK) s = CUDA_CALL(k->cuda, e, stream_synchronize, k->stream);
        if (s == STATUS_OK) s = elapsed(k->cuda, events[0], events[1], &timed, &us, e);
        if (timed && rep > 0 && us > 0) {
            const double rate = 8.0 * COPY_BYTES / us * 1e6;
            best = rate > best ? rate : best;
        }
    }
    *bytes_per_s = best;
    (void)k->cuda->stream_synchronize(k->stream);
    for (int i = 0; i < 2; i++)
        if (events[i] != NULL) (void)k->cuda->event_destroy(events[i]);
    for (uint32_t i = 0; i < r.n_buffers; i++) (void)k->cuda->mem_free(r.buffers[i]);
    return s;
}
