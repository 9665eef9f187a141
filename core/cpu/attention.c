/* attention.c: which keys meet which queries, and who computes it.
 *
 * Keys are summed block by block (KV_BLOCK_TOKENS absolute positions) and block results merged in
 * ascending order; that alone fixes the bits. How the work is cut is free: with many query tiles a
 * task walks the blocks of its tile; with few (decoding a long context: Flash-Decoding, Dao et al.
 * 2023) each block is a task of its own and the results are merged afterwards.
 */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"

#define NO_CHOICE UINT32_MAX

struct block_scratch {
    float m[ATTENTION_ROWS * 256], l[ATTENTION_ROWS * 256];
    float data[]; /* scores, then acc */
};

/* First position that a row at `position` sees. */
static uint32_t first_visible(const struct layer_plan *l, uint32_t position) {
    return l->window > 0 && position >= l->window ? position - l->window + 1 : 0;
}

static uint32_t position_of(const struct cpu_backend *b, uint32_t i) {
    return b->position[b->rows[i]];
}

/* The position whose choice of pages serves a row, or NO_CHOICE: it attends to everything. */
static uint32_t choice_of(const struct cpu_backend *b, uint32_t row) {
    const struct gate_policy *g = gate_of(b, row);
    return g != NULL ? gate_choice_position(g, b->position[row]) : NO_CHOICE;
}

/* Tiles of the full rows, and the way to go through them. */
static void plan_tiles(struct cpu_backend *b) {
    const struct layer_plan *l = b->layer->plan;
    const uint32_t tile_rows = b->n_full >= 64 ? ATTENTION_TILE_ROWS : ATTENTION_ROWS;
    b->n_tiles = 0;
    uint32_t max_blocks = 0, slots = 0, tasks = 0;
    for (uint32_t i = 0; i < b->n_full;) {
        struct attention_tile *t = &b->tiles[b->n_tiles];
        const struct span *span = b->row_span[b->rows[i]];
        t->first = i;
        t->span = (uint32_t)(span - b->step->spans);
        const uint32_t choice = choice_of(b, b->rows[i]);
        uint32_t end = i + 1;
        while (end < b->n_full && end - i < tile_rows && b->rows[end] == b->rows[end - 1] + 1 &&
               b->row_span[b->rows[end]] == span && choice_of(b, b->rows[end]) == choice)
            end++;
        t->chosen = NULL;
        if (choice != NO_CHOICE) {
            t->chosen = gate_chosen(b, span->slot, choice);
            t->recent_page = gate_recent_page(&b->step->gates[span->gate], choice);
        }
        t->n = end - i;
        t->block0 = first_visible(l, position_of(b, i)) / KV_BLOCK_TOKENS;
        t->n_blocks = position_of(b, end - 1) / KV_BLOCK_TOKENS + 1 - t->block0;
        t->first_slot = slots;
        t->first_task = tasks;
        slots += t->n * t->n_blocks * l->n_heads;
        tasks += t->n_blocks * l->n_kv_heads;
        if (t->n_blocks > max_blocks) max_blocks = t->n_blocks;
        for (; i < end; i++) b->row_tile[i] = b->n_tiles;
        b->n_tiles++;
    }
    b->split = b->n_workers > 1 && max_blocks > 1 && slots <= b->n_partial &&
               b->n_tiles * l->n_kv_heads < 8 * b->n_workers;
}

struct block_set {
    const struct attention_tile *tile;
    uint32_t kv_head, block;
    /* Those that are attended to, side by side; of page p of the block, before[p] stand before it.
     */
    uint32_t n_pages, before[KV_BLOCK_TOKENS / KV_PAGE_TOKENS];
    const uint8_t *pages[KV_BLOCK_TOKENS / KV_PAGE_TOKENS];
};

static bool attended(const struct cpu_backend *b, const struct block_set *s, uint32_t page) {
    const struct attention_tile *t = s->tile;
    return t->chosen == NULL || page >= t->recent_page ||
           (t->chosen[(size_t)s->kv_head * b->gate_words + page / 64] >> page % 64 & 1);
}

/* Where the pages of one block lie; those behind the last written are left out. */
static void find_pages(const struct cpu_backend *b, struct block_set *s) {
    const struct span *span = &b->step->spans[s->tile->span];
    const struct layer_plan *l = b->layer->plan;
    const uint32_t first = s->block * (KV_BLOCK_TOKENS / KV_PAGE_TOKENS);
    const size_t layer = l->group_layer * b->layer->kv.layer_bytes;
    s->n_pages = 0;
    for (uint32_t p = 0; p < KV_BLOCK_TOKENS / KV_PAGE_TOKENS; p++) {
        s->before[p] = s->n_pages;
        if (first + p >= span->n_pages || !attended(b, s, first + p)) continue;
        const uint8_t *data = b->page_data[span->block_table[l->group] + first + p];
        s->pages[s->n_pages++] = data != NULL ? data + layer : NULL;
    }
    for (uint32_t p = s->n_pages; p < KV_BLOCK_TOKENS / KV_PAGE_TOKENS; p++) s->pages[p] = NULL;
}

/* Rows [first, first + n) of the tile (n <= ATTENTION_ROWS), all of which see the block. */
static void block_prepare(const struct cpu_backend *b, const struct block_set *s, uint32_t first,
                          uint32_t n, float *scores, struct attention_block *t) {
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    *t = (struct attention_block){
        .pages = s->pages,
        .k_bytes = kv->k0 + s->kv_head * kv->k_stride,
        .v_bytes = kv->v0 + s->kv_head * kv->v_stride,
        .k_scale_bytes = kv->k_scale0 + s->kv_head * kv->scale_stride,
        .v_scale_bytes = kv->v_scale0 + s->kv_head * kv->scale_stride,
        .kv = b->cfg.kv,
        .head_dim = hd,
        .n_group = group,
        .n_rows = n,
        .softcap = l->attn_softcap,
        .scratch = scores,
    };
    const uint32_t start = s->block * KV_BLOCK_TOKENS;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t i = s->tile->first + first + r, position = position_of(b, i);
        const uint32_t visible = first_visible(l, position);
        t->q[r] = b->q_packed + (size_t)i * b->cfg.plan->d_attention_max +
                  (size_t)s->kv_head * group * hd;
        t->lo[r] = visible > start ? visible - start : 0;
        const uint32_t own = (position - start) / KV_PAGE_TOKENS;
        t->hi[r] = own < KV_BLOCK_TOKENS / KV_PAGE_TOKENS
                       ? s->before[own] * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS + 1
                       : s->n_pages * KV_PAGE_TOKENS;
    }
}

/* The rows of a tile that see a block: consecutive, since both ends rise with the position. */
static void rows_of_block(const struct cpu_backend *b, const struct block_set *s, uint32_t *from,
                          uint32_t *to) {
    const struct layer_plan *l = b->layer->plan;
    uint32_t r = 0, n = s->tile->n;
    while (r < n && position_of(b, s->tile->first + r) / KV_BLOCK_TOKENS < s->block) r++;
    while (n > r &&
           first_visible(l, position_of(b, s->tile->first + n - 1)) / KV_BLOCK_TOKENS > s->block)
        n--;
    *from = r;
    *to = n;
}

static void split_task(void *arg, uint32_t task, uint32_t worker) {
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    struct block_scratch *scratch = scratch_of(b, worker);
    uint32_t lo = 0, hi = b->n_tiles;
    while (hi - lo > 1) {
        const uint32_t middle = (lo + hi) / 2;
        if (b->tiles[middle].first_task <= task)
            lo = middle;
        else
            hi = middle;
    }
    const struct attention_tile *tile = &b->tiles[lo];
    const uint32_t t = task - tile->first_task, block = t / l->n_kv_heads;
    struct block_set s = {
        .tile = tile, .kv_head = t % l->n_kv_heads, .block = tile->block0 + block};
    find_pages(b, &s);
    uint32_t from, to;
    rows_of_block(b, &s, &from, &to);
    /* A block of which no page was chosen: a sum of nothing, which attention_finish leaves out. */
    for (uint32_t r = from; s.n_pages == 0 && r < to; r++)
        for (uint32_t g = 0; g < group; g++)
            b->partial_l[tile->first_slot + (size_t)(block * tile->n + r) * l->n_heads +
                         s.kv_head * group + g] = 0;
    for (uint32_t r = from; s.n_pages > 0 && r < to; r += ATTENTION_ROWS) {
        struct attention_block a;
        block_prepare(b, &s, r, to - r < ATTENTION_ROWS ? to - r : ATTENTION_ROWS, scratch->data,
                      &a);
        for (uint32_t j = 0; j < a.n_rows; j++) {
            const size_t slot = tile->first_slot + (size_t)(block * tile->n + r + j) * l->n_heads +
                                s.kv_head * group;
            a.m[j] = b->partial_m + slot;
            a.l[j] = b->partial_l + slot;
            a.acc[j] = b->partial_acc + slot * hd;
        }
        b->vec->attention_block(&a);
    }
}

static void walk_task(void *arg, uint32_t task, uint32_t worker) {
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    struct block_scratch *scratch = scratch_of(b, worker);
    float *acc = scratch->data + (size_t)ATTENTION_ROWS * group * KV_BLOCK_TOKENS;
    const struct attention_tile *tile = &b->tiles[task / l->n_kv_heads];
    struct block_set s = {.tile = tile, .kv_head = task % l->n_kv_heads};
    const uint32_t first = b->pass * b->blocks_per_pass;
    const uint32_t last =
        first + b->blocks_per_pass < tile->n_blocks ? first + b->blocks_per_pass : tile->n_blocks;
    for (uint32_t block = first; block < last; block++) {
        s.block = tile->block0 + block;
        find_pages(b, &s);
        if (s.n_pages == 0) continue;
        uint32_t from, to;
        rows_of_block(b, &s, &from, &to);
        for (uint32_t r = from; r < to; r += ATTENTION_ROWS) {
            struct attention_block a;
            block_prepare(b, &s, r, to - r < ATTENTION_ROWS ? to - r : ATTENTION_ROWS,
                          scratch->data, &a);
            for (uint32_t j = 0; j < a.n_rows; j++) {
                a.m[j] = scratch->m + j * group;
                a.l[j] = scratch->l + j * group;
                a.acc[j] = acc + (size_t)j * group * hd;
            }
            b->vec->attention_block(&a);
            for (uint32_t j = 0; j < a.n_rows; j++) {
                const uint32_t i = tile->first + r + j;
                const size_t head = (size_t)i * l->n_heads + s.kv_head * group;
                float *out = b->attended + (size_t)i * l->n_heads * hd + s.kv_head * group * hd;
                if (first_visible(l, position_of(b, i)) / KV_BLOCK_TOKENS == s.block) {
                    memcpy(b->state_m + head, a.m[j], group * sizeof(float));
                    memcpy(b->state_l + head, a.l[j], group * sizeof(float));
                    memcpy(out, a.acc[j], (size_t)group * hd * sizeof(float));
                    continue;
                }
                for (uint32_t g = 0; g < group; g++)
                    b->vec->attention_merge(b->state_m + head + g, b->state_l + head + g,
                                            out + (size_t)g * hd, a.m[j][g], a.l[j][g],
                                            a.acc[j] + (size_t)g * hd, hd);
            }
        }
    }
}

void attention_run(struct cpu_backend *b) {
    const struct layer_plan *l = b->layer->plan;
    if (b->n_full == 0) return;
    plan_tiles(b);
    if (b->split) {
        const struct attention_tile *last = &b->tiles[b->n_tiles - 1];
        phase(b, split_task, last->first_task + last->n_blocks * l->n_kv_heads);
        return;
    }
    uint32_t max_blocks = 0, max_rows = 0;
    for (uint32_t t = 0; t < b->n_tiles; t++) {
        if (b->tiles[t].n_blocks > max_blocks) max_blocks = b->tiles[t].n_blocks;
        if (b->tiles[t].n > max_rows) max_rows = b->tiles[t].n;
    }
    /* A pass is some blocks of every tile: tasks stay near 100 microseconds at any context. */
    const uint64_t products =
        (uint64_t)max_rows * (l->n_heads / l->n_kv_heads) * l->head_dim * KV_BLOCK_TOKENS * 2;
    const uint64_t fit = 4000000 / products;
    b->blocks_per_pass = fit > 1 ? (uint32_t)fit : 1;
    for (b->pass = 0; b->pass * b->blocks_per_pass < max_blocks; b->pass++)
        phase(b, walk_task, b->n_tiles * l->n_kv_heads);
}

void attention_finish(struct cpu_backend *b, uint32_t i) {
    const struct layer_plan *l = b->layer->plan;
    const struct attention_tile *tile = &b->tiles[b->row_tile[i]];
    const uint32_t hd = l->head_dim, position = position_of(b, i);
    const uint32_t first = first_visible(l, position) / KV_BLOCK_TOKENS - tile->block0;
    const uint32_t last = position / KV_BLOCK_TOKENS - tile->block0;
    for (uint32_t h = 0; h < l->n_heads; h++) {
        float *out = b->attended + ((size_t)i * l->n_heads + h) * hd;
        float *m = b->state_m + (size_t)i * l->n_heads + h;
        float *sum = b->state_l + (size_t)i * l->n_heads + h;
        for (uint32_t block = first; b->split && block <= last; block++) {
            const size_t slot =
                tile->first_slot + (size_t)(block * tile->n + i - tile->first) * l->n_heads + h;
            const float *acc = b->partial_acc + slot * hd;
            if (block == first) {
                *m = b->partial_m[slot];
                *sum = b->partial_l[slot];
                memcpy(out, acc, hd * sizeof(float));
            } else if (b->partial_l[slot] > 0) {
                b->vec->attention_merge(m, sum, out, b->partial_m[slot], b->partial_l[slot], acc,
                                        hd);
            }
        }
        b->vec->scale(out, 1.0f / *sum, hd);
    }
}
