/* cuda_backend_block.c: a step as the block that a graph reads, and what comes back. All the host
 * does per step is here: a few hundred words for a decode. */
#include <math.h>
#include <string.h>

#include "alloc/page_pool.h"
#include "core/check.h"
#include "jit/cuda_backend_state.h"

static struct cuda_block block_of(const struct cuda_backend *b, const struct cuda_bucket *k) {
    uint8_t *base = b->host_block;
#define AT(field) (void *)(base + k->at.field)
    return (struct cuda_block){.bucket = k,
                               .counts = AT(counts),
                               .ids = AT(ids),
                               .position = AT(position),
                               .row_pages = AT(row_pages),
                               .run = AT(run),
                               .full = AT(full),
                               .tiles = AT(tiles),
                               .head_rows = AT(head_rows),
                               .head_run = AT(head_run),
                               .pages = AT(pages),
                               .copies = AT(copies),
                               .taps = AT(taps),
                               .seals = AT(seals),
                               .anchors = AT(anchors),
                               .slot_copies = AT(slot_copies),
                               .row_gates = AT(row_gates),
                               .choices = AT(choices),
                               .items = AT(items),
                               .samples = AT(samples)};
#undef AT
}

/* The first thing in the step that this backend has no kernels or memory for, or NULL. */
static const char *not_run(const struct cuda_backend *b, const struct step *s) {
    if (s->n_looks > 0) return "label heads";
    if (s->epoch != 0) return "heads of an epoch";
    for (uint32_t i = 0; i < s->n_spans; i++) {
        if (s->spans[i].exit != STEP_NONE) return "early exits";
        if (s->spans[i].gate != STEP_NONE && !b->cfg.gates)
            return "page choices, for which no memory was asked";
    }
    for (uint32_t i = 0; i < s->n_outputs; i++)
        if (s->outputs[i].head != STEP_NONE) return "outputs of another head";
    for (uint32_t r = 0; r < s->n_rows; r++)
        if (s->first_layers[r] != 0) return "carried rows";
    return NULL;
}

static bool lists_fit(const struct cuda_backend *b, const struct step *s) {
    uint64_t biases = 0, bitmaps = 0, tap_rows = 0;
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        biases += s->outputs[i].sample.n_biases;
        bitmaps += s->outputs[i].sample.allowed != NULL;
    }
    for (uint32_t i = 0; i < s->n_taps; i++) tap_rows += s->taps[i].n_rows;
    return biases <= b->max_biases && bitmaps <= b->max_bitmaps && tap_rows <= b->max_tap_rows &&
           s->n_taps <= b->max_taps && s->n_copies <= b->max_copies;
}

static void set_bits(uint32_t *words, uint32_t first, uint32_t n) {
    for (uint32_t r = first; r < first + n;) {
        const uint32_t in = r % 32, left = first + n - r;
        const uint32_t take = left < 32 - in ? left : 32 - in;
        words[r / 32] |= (take == 32 ? UINT32_MAX : ((1u << take) - 1)) << in;
        r += take;
    }
}

static bool runs(const struct depth_profile *p, uint32_t layer) {
    return p->layers[layer / 64] >> layer % 64 & 1;
}

static void read_profiles(struct cuda_backend *b, const struct step *s) {
    for (uint32_t i = 0; i < s->n_profiles; i++) {
        b->last_layer[i] = b->n_run_layers[i] = 0;
        for (uint32_t l = 0; l < b->cfg.plan->n_layers; l++) {
            if (!runs(&s->profiles[i], l)) continue;
            b->last_layer[i] = l;
            b->n_run_layers[i]++;
        }
    }
}

static void fill_rows(struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    const struct plan *p = b->cfg.plan;
    uint32_t rows = 0, n_pages = 0;
    memcpy(k->ids, s->ids, s->n_rows * sizeof *k->ids);
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *span = &s->spans[i];
        const uint32_t end = span->first_position + span->n_tokens;
        const uint32_t used = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        CHECK(span->first_row == rows && span->profile < s->n_profiles);
        CHECK(end <= b->cfg.n_ctx && span->n_pages >= used);
        rows += span->n_tokens;
        for (uint32_t r = 0; r < span->n_tokens; r++) {
            CHECK(s->ids[span->first_row + r] < p->n_vocab);
            b->row_span[span->first_row + r] = i;
            k->position[span->first_row + r] = span->first_position + r;
        }
        for (uint32_t g = 0; g < p->n_groups; g++) {
            const uint32_t first = span->block_table[g];
            CHECK(first + span->n_pages <= s->n_pages && n_pages + used <= k->bucket->max_pages);
            for (uint32_t j = 0; j < used; j++) {
                const uint32_t page = s->pages[first + j];
                CHECK(page == PAGE_NONE || page < b->n_pages[g]);
                k->pages[n_pages + j] = page;
            }
            for (uint32_t r = 0; r < span->n_tokens; r++)
                k->row_pages[g * k->bucket->rows + span->first_row + r] = n_pages;
            n_pages += used;
        }
    }
    CHECK(rows == s->n_rows);
    k->counts[CUDA_COUNT_ROWS] = rows;
}

/* A row's last layer computes K and V only, unless somebody reads its last state. */
static void mark_needed(struct cuda_backend *b, const struct step *s) {
    memset(b->needed, 0, s->n_rows);
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        CHECK(s->outputs[i].row < s->n_rows);
        b->needed[s->outputs[i].row] = 1;
    }
    for (uint32_t i = 0; i < s->n_taps; i++) {
        const struct tap *t = &s->taps[i];
        CHECK(t->n_rows >= 1 && t->first_row + t->n_rows <= s->n_rows);
        CHECK(t->layer <= b->cfg.plan->n_layers);
        const struct span *span = &s->spans[b->row_span[t->first_row]];
        CHECK(t->first_row + t->n_rows <= span->first_row + span->n_tokens);
        if (t->layer >= b->last_layer[span->profile])
            memset(b->needed + t->first_row, 1, t->n_rows);
    }
}

static void fill_run(const struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    const uint32_t n_layers = b->cfg.plan->n_layers, words = k->bucket->run_words;
    memset(k->run, 0, (size_t)(n_layers + 1) * words * sizeof *k->run);
    memset(k->full, 0, (size_t)n_layers * words * sizeof *k->full);
    set_bits(k->run + (size_t)n_layers * words, 0, s->n_rows);
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *span = &s->spans[i];
        for (uint32_t l = 0; l < n_layers; l++) {
            if (!runs(&s->profiles[span->profile], l)) continue;
            uint32_t *full = k->full + (size_t)l * words;
            set_bits(k->run + (size_t)l * words, span->first_row, span->n_tokens);
            if (l != b->last_layer[span->profile]) {
                set_bits(full, span->first_row, span->n_tokens);
                continue;
            }
            for (uint32_t r = span->first_row; r < span->first_row + span->n_tokens; r++)
                if (b->needed[r]) set_bits(full, r, 1);
        }
    }
}

/* Key blocks that position p attends to under the window. */
static uint32_t first_block(uint32_t p, uint32_t window) {
    return (window > 0 && p >= window ? p - window + 1 : 0) / KV_BLOCK_TOKENS;
}

/* The span's rows as one item per key block, in every group; false: no room, nothing is added. */
static bool add_items(const struct cuda_backend *b, const struct span *span, struct cuda_block *k) {
    const struct plan *p = b->cfg.plan;
    for (int write = 0; write < 2; write++)
        for (uint32_t g = 0; g < p->n_groups; g++) {
            uint32_t *count = &k->counts[CUDA_COUNT_ITEMS + g], n = *count;
            struct attention_item *items = k->items + (size_t)g * k->bucket->max_items;
            for (uint32_t r = 0; r < span->n_tokens; r++) {
                const uint32_t position = span->first_position + r;
                const uint32_t first = first_block(position, p->groups[g].window);
                const uint32_t blocks = position / KV_BLOCK_TOKENS - first + 1;
                if (n + blocks > k->bucket->max_items) return false;
                for (uint32_t j = 0; write && j < blocks; j++)
                    items[n + j] =
                        (struct attention_item){span->first_row + r, first + j, n, blocks};
                n += blocks;
            }
            if (write) *count = n;
        }
    return true;
}

static enum cuda_phase fill_attention(const struct cuda_backend *b, const struct step *s,
                                      struct cuda_block *k) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < PLAN_MAX_GROUPS; g++) k->counts[CUDA_COUNT_ITEMS + g] = 0;
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *span = &s->spans[i];
        if (span->n_tokens <= CUDA_SHORT_SPAN && add_items(b, span, k)) continue;
        for (uint32_t r = 0; r < span->n_tokens; n++) {
            /* Rows of a tile share their page choice. */
            const uint32_t from = r;
            const uint32_t entry =
                span->gate != STEP_NONE ? k->row_gates[span->first_row + from].entry : 0;
            do r++;
            while (r < span->n_tokens && r - from < b->tile_rows &&
                   (span->gate == STEP_NONE || k->row_gates[span->first_row + r].entry == entry));
            k->tiles[2 * n] = span->first_row + from;
            k->tiles[2 * n + 1] = r - from;
        }
    }
    k->counts[CUDA_COUNT_TILES] = n;
    return n > 0 ? CUDA_PREFILL : CUDA_DECODE;
}

static void fill_outputs(struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    const size_t words = (b->cfg.plan->n_vocab + 63) / 64;
    uint32_t n_biases = 0, n_bitmaps = 0;
    for (uint32_t pass = 0; pass < k->bucket->n_passes; pass++) {
        const uint32_t first = pass * CUDA_HEAD_ROWS;
        const uint32_t left = s->n_outputs > first ? s->n_outputs - first : 0;
        const uint32_t n = left < CUDA_HEAD_ROWS ? left : CUDA_HEAD_ROWS;
        uint32_t *rows = k->head_rows + first, n_rows = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct output *o = &s->outputs[first + i];
            const struct sample_spec *a = &o->sample;
            if (n_rows == 0 || rows[n_rows - 1] != o->row) rows[n_rows++] = o->row;
            k->samples[first + i] = (struct kernel_sample){
                .random =
                    rng_draw(a->seed, a->choice, k->position[o->row] + 1, a->purpose, a->attempt),
                .logits_row = n_rows - 1,
                .target = a->target,
                .temperature = a->temperature,
                .top_k = a->top_k,
                .top_p = a->top_p,
                .min_p = a->min_p,
                .bitmap = a->allowed != NULL ? n_bitmaps : UINT32_MAX,
                .first_bias = n_biases,
                .n_biases = a->n_biases};
            if (a->allowed != NULL)
                memcpy(b->host_bitmaps + words * n_bitmaps++, a->allowed, words * 8);
            for (uint32_t j = 0; j < a->n_biases; j++) {
                uint32_t *to = b->host_biases + (size_t)3 * n_biases++;
                to[0] = a->biases[j].id;
                memcpy(to + 1, &a->biases[j].divisor, 4);
                memcpy(to + 2, &a->biases[j].delta, 4);
            }
        }
        k->counts[CUDA_COUNT_HEADS + 2 * pass] = n_rows;
        k->counts[CUDA_COUNT_HEADS + 2 * pass + 1] = n;
        memset(k->head_run + 2 * pass, 0, 2 * sizeof *k->head_run);
        set_bits(k->head_run + 2 * pass, 0, n_rows);
    }
}

static void fill_copies(const struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    uint32_t *count = k->counts + CUDA_COUNT_COPIES;
    for (uint32_t g = 0; g < PLAN_MAX_GROUPS; g++) count[g] = 0;
    for (uint32_t i = 0; i < s->n_copies; i++) {
        const struct page_copy *c = &s->copies[i];
        CHECK(c->group < b->cfg.plan->n_groups);
        CHECK(c->from < b->n_pages[c->group] && c->to < b->n_pages[c->group]);
        uint32_t *to = k->copies + ((size_t)c->group * b->max_copies + count[c->group]++) * 2;
        to[0] = c->from;
        to[1] = c->to;
    }
}

/* Hidden states after the output norm are made of the last layer's, here. */
static uint32_t tap_layer(const struct cuda_backend *b, const struct tap *t) {
    const uint32_t n = b->cfg.plan->n_layers;
    return t->layer < n ? t->layer : n - 1;
}

static void fill_taps(const struct cuda_backend *b, const struct step *s, struct cuda_block *k) {
    const uint32_t n_layers = b->cfg.plan->n_layers;
    uint32_t *lists = k->taps + (n_layers + 3) / 4 * 4, row = 0;
    memset(k->taps, 0, n_layers * sizeof *k->taps);
    for (uint32_t i = 0; i < s->n_taps; i++) {
        const struct tap *t = &s->taps[i];
        const uint32_t layer = tap_layer(b, t);
        uint32_t *to = lists + ((size_t)layer * b->max_taps + k->taps[layer]++) * 3;
        to[0] = t->first_row;
        to[1] = t->n_rows;
        to[2] = row;
        row += t->n_rows;
    }
}

static const struct cuda_bucket *bucket_for(const struct cuda_backend *b, const struct step *s) {
    const uint32_t n = s->n_rows > s->n_outputs ? s->n_rows : s->n_outputs;
    for (uint32_t i = 0; i < b->n_buckets; i++)
        if (b->buckets[i].rows >= n) return &b->buckets[i];
    CHECK(false);
}

enum status cuda_block_fill(struct cuda_backend *b, struct step *s, enum cuda_phase *phase,
                            bool *extras, enum cuda_gates *gates) {
    const struct step_limits *most = &b->cfg.limits;
    CHECK(s->n_rows <= most->max_rows && s->n_outputs <= most->max_outputs);
    CHECK(s->n_pages <= most->max_pages && s->n_profiles <= most->max_profiles);
    const char *what = not_run(b, s);
    if (what != NULL) {
        log_write(b->options.log, LOG_ERROR, "cuda: a step was refused: %s", what);
        return STATUS_UNSUPPORTED;
    }
    if (!lists_fit(b, s)) return STATUS_FULL;
    b->bucket = bucket_for(b, s);
    struct cuda_block k = block_of(b, b->bucket);
    read_profiles(b, s);
    fill_rows(b, s, &k);
    mark_needed(b, s);
    fill_run(b, s, &k);
    *gates = b->cfg.gates ? cuda_gate_fill(b, s, &k) : CUDA_UNGATED;
    *phase = fill_attention(b, s, &k);
    fill_outputs(b, s, &k);
    fill_copies(b, s, &k);
    *extras = s->n_copies > 0 || s->n_taps > 0;
    if (*extras) fill_taps(b, s, &k);
    return STATUS_OK;
}

/* Results. */

static void read_output(const struct kernel_answer *a, struct output *o) {
    o->bad = a->bad != 0;
    o->token = a->token;
    o->logprob = a->logprob;
    o->lse = a->lse;
    o->entropy = a->entropy;
    o->cosine = __builtin_nanf("");
    for (uint32_t i = 0; i < STEP_TOP; i++)
        o->top[i] = (struct top_logit){a->top_id[i], a->top_logit[i]};
}

/* x / its root mean square, times w if there is one. */
static void norm_row(float *x, const float *w, uint32_t d, float epsilon) {
    double sum = 0;
    for (uint32_t i = 0; i < d; i++) sum += (double)x[i] * (double)x[i];
    const float factor = (float)(1 / sqrt(sum / d + (double)epsilon));
    for (uint32_t i = 0; i < d; i++) x[i] = w != NULL ? x[i] * factor * w[i] : x[i] * factor;
}

static void read_tap(const struct cuda_backend *b, const struct tap *t, uint32_t first_position,
                     float *x) {
    const struct plan *p = b->cfg.plan;
    const uint32_t d = p->d_model;
    for (uint32_t r = 0; r < t->n_rows; r++, x += d) {
        if (t->layer == p->n_layers && b->host_norm != NULL)
            norm_row(x, b->host_norm, d, p->norm_epsilon);
        if (t->normalised) norm_row(x, NULL, d, p->norm_epsilon);
        if (t->mode == TAP_KEEP) {
            memcpy(t->out + (size_t)r * d, x, d * sizeof *x);
            continue;
        }
        const uint32_t page =
            (first_position + r) / KV_PAGE_TOKENS - first_position / KV_PAGE_TOKENS;
        float *sum = t->out + (size_t)page * d;
        for (uint32_t i = 0; i < d; i++) sum[i] = sum[i] + x[i];
    }
}

void cuda_block_read(struct cuda_backend *b, struct step *s) {
    const uint32_t *position = (const void *)(b->host_block + b->bucket->at.position);
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        struct output *o = &s->outputs[i];
        read_output(&b->host_answers[i], o);
        o->layer = b->n_run_layers[s->spans[b->row_span[o->row]].profile];
    }
    for (uint32_t i = 0; i < s->n_taps; i++) {
        const struct tap *t = &s->taps[i];
        read_tap(b, t, position[t->first_row], b->host_taps + (size_t)row * b->cfg.plan->d_model);
        row += t->n_rows;
    }
    for (uint32_t r = 0; r < s->n_rows; r++) s->next_layers[r] = (uint16_t)b->cfg.plan->n_layers;
}
