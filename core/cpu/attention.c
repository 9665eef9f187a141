/* attention.c: which keys meet which queries, and who computes it.
 *
 * Keys are summed block by block and block results merged in ascending order; that alone fixes the
 * bits. A block is KV_BLOCK_TOKENS absolute positions, or, under a choice of pages, as many
 * positions of the pages that are attended to, in ascending order: chosen ones, then the recent
 * window and all behind it. How the work is cut is free: with many query tiles a task walks the
 * blocks of its tile; with few (decoding a long context: Flash-Decoding, Dao et al. 2023) runs of
 * blocks are tasks of their own and the results are merged afterwards.
 */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"

#define NO_CHOICE UINT32_MAX
enum {
    BLOCK_PAGES = KV_BLOCK_TOKENS / KV_PAGE_TOKENS,
    SPLIT_TASKS = 8,  /* per worker, at least */
    SPLIT_BLOCKS = 8, /* of one task, at most */
};

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

/* Among the pages that a gated tile attends to, the place of one of its own last ones. */
static uint32_t attended_index(const struct attention_tile *t, uint32_t page) {
    return t->n_chosen + page - t->recent_page;
}

/* The blocks that a row sees, counted from its tile's first. */
struct block_range {
    uint32_t first, last;
};

static struct block_range blocks_of(const struct cpu_backend *b, const struct attention_tile *t,
                                    uint32_t i) {
    const uint32_t position = position_of(b, i);
    if (t->chosen != NULL)
        return (struct block_range){0, attended_index(t, position / KV_PAGE_TOKENS) / BLOCK_PAGES};
    return (struct block_range){first_visible(b->layer->plan, position) / KV_BLOCK_TOKENS -
                                    t->block0,
                                position / KV_BLOCK_TOKENS - t->block0};
}

/* Tiles of the full rows, and the way to go through them. */
static void plan_tiles(struct cpu_backend *b) {
    const struct layer_plan *l = b->layer->plan;
    const uint32_t tile_rows = b->n_full >= 64 ? ATTENTION_TILE_ROWS : ATTENTION_ROWS;
    b->n_tiles = 0;
    uint32_t max_blocks = 0, slots = 0, blocks = 0;
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
        t->n = end - i;
        t->chosen = NULL;
        t->n_chosen = t->recent_page = t->block0 = 0;
        if (choice != NO_CHOICE) {
            t->chosen = gate_chosen(b, span->slot, choice);
            t->n_chosen = gate_n_chosen(b, t->chosen);
            t->recent_page = gate_recent_page(&b->step->gates[span->gate], choice);
        } else {
            t->block0 = first_visible(l, position_of(b, i)) / KV_BLOCK_TOKENS;
        }
        t->n_blocks = blocks_of(b, t, end - 1).last + 1;
        t->first_slot = slots;
        slots += t->n * t->n_blocks * l->n_heads;
        blocks += t->n_blocks;
        if (t->n_blocks > max_blocks) max_blocks = t->n_blocks;
        for (; i < end; i++) b->row_tile[i] = b->n_tiles;
        b->n_tiles++;
    }
    b->split = b->n_workers > 1 && max_blocks > 1 && slots <= b->n_partial &&
               b->n_tiles * l->n_kv_heads < 8 * b->n_workers;
    if (!b->split) return;
    const uint32_t run = blocks * l->n_kv_heads / (SPLIT_TASKS * b->n_workers);
    b->blocks_per_task = run < 1 ? 1 : run < SPLIT_BLOCKS ? run : SPLIT_BLOCKS;
    b->n_split_tasks = 0;
    for (uint32_t i = 0; i < b->n_tiles; i++) {
        b->tiles[i].first_task = b->n_split_tasks;
        b->n_split_tasks +=
            (b->tiles[i].n_blocks + b->blocks_per_task - 1) / b->blocks_per_task * l->n_kv_heads;
    }
}

struct block_set {
    const struct attention_tile *tile;
    uint32_t kv_head, block; /* counted from the tile's first */
    uint32_t n_pages;
    /* The block's, then those that come next, which are only prefetched. */
    const uint8_t *pages[BLOCK_PAGES + ATTENTION_AHEAD];
};

/* Pages [k, k + most) of those that a gated tile attends to, as far as there are; returns how many.
 */
static uint32_t attended_pages(const struct cpu_backend *b, const struct block_set *s, uint32_t k,
                               uint32_t most, uint32_t n_pages, uint32_t *out) {
    const struct attention_tile *t = s->tile;
    uint32_t n = 0;
    if (k < t->n_chosen) {
        const uint64_t *bits = t->chosen + (size_t)s->kv_head * b->gate_words;
        uint64_t word = bits[0];
        uint32_t at = 0, skip = k, count;
        while (skip >= (count = (uint32_t)__builtin_popcountll(word))) {
            skip -= count;
            word = bits[++at];
        }
        for (; skip > 0; skip--) word &= word - 1;
        for (; n < most && k + n < t->n_chosen; word &= word - 1) {
            while (word == 0) word = bits[++at];
            out[n++] = at * 64 + (uint32_t)__builtin_ctzll(word);
        }
    }
    for (; n < most; n++) {
        const uint32_t page = t->recent_page + (k + n - t->n_chosen);
        if (page >= n_pages) break;
        out[n] = page;
    }
    return n;
}

/* Where the pages of one block lie. */
static void find_pages(const struct cpu_backend *b, struct block_set *s) {
    const struct span *span = &b->step->spans[s->tile->span];
    const struct layer_plan *l = b->layer->plan;
    const size_t layer = l->group_layer * b->layer->kv.layer_bytes;
    uint8_t *const *data = b->page_data + span->block_table[l->group];
    uint32_t index[BLOCK_PAGES + ATTENTION_AHEAD], n = 0;
    if (s->tile->chosen != NULL) {
        n = attended_pages(b, s, s->block * BLOCK_PAGES, BLOCK_PAGES + ATTENTION_AHEAD,
                           span->n_pages, index);
    } else {
        const uint32_t first = (s->tile->block0 + s->block) * BLOCK_PAGES;
        while (n < BLOCK_PAGES + ATTENTION_AHEAD && first + n < span->n_pages) {
            index[n] = first + n;
            n++;
        }
    }
    s->n_pages = n < BLOCK_PAGES ? n : BLOCK_PAGES;
    for (uint32_t p = 0; p < n; p++)
        s->pages[p] = data[index[p]] != NULL ? data[index[p]] + layer : NULL;
    for (uint32_t p = n; p < BLOCK_PAGES + ATTENTION_AHEAD; p++) s->pages[p] = s->pages[n - 1];
}

/* Rows [first, first + n) of the tile (n <= ATTENTION_ROWS), all of which see the block. */
static void block_prepare(const struct cpu_backend *b, const struct block_set *s, uint32_t first,
                          uint32_t n, float *scores, struct attention_block *t) {
    const struct layer_plan *l = b->layer->plan;
    const struct kv_layout *kv = &b->layer->kv;
    const struct attention_tile *tile = s->tile;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    *t = (struct attention_block){
        .pages = s->pages,
        .n_pages = s->n_pages,
        .prefetch = tile->n <= ATTENTION_ROWS,
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
    const uint32_t start = (tile->block0 + s->block) * KV_BLOCK_TOKENS;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t i = tile->first + first + r, position = position_of(b, i);
        const uint32_t visible = first_visible(l, position);
        uint32_t end = position + 1;
        if (tile->chosen != NULL)
            end = attended_index(tile, position / KV_PAGE_TOKENS) * KV_PAGE_TOKENS +
                  position % KV_PAGE_TOKENS + 1;
        t->q[r] = b->q_packed + (size_t)i * b->cfg.plan->d_attention_max +
                  (size_t)s->kv_head * group * hd;
        t->lo[r] = tile->chosen == NULL && visible > start ? visible - start : 0;
        t->hi[r] = end - start < KV_BLOCK_TOKENS ? end - start : KV_BLOCK_TOKENS;
    }
}

/* The rows of a tile that see a block: consecutive, since both ends rise with the position. */
static void rows_of_block(const struct cpu_backend *b, const struct block_set *s, uint32_t *from,
                          uint32_t *to) {
    const struct attention_tile *t = s->tile;
    uint32_t r = 0, n = t->n;
    while (r < n && blocks_of(b, t, t->first + r).last < s->block) r++;
    while (n > r && blocks_of(b, t, t->first + n - 1).first > s->block) n--;
    *from = r;
    *to = n;
}

/* One block's results for each of its rows, beside those of the other blocks. */
static void split_block(struct cpu_backend *b, struct block_set *s, struct block_scratch *scratch) {
    const struct layer_plan *l = b->layer->plan;
    const struct attention_tile *tile = s->tile;
    const uint32_t group = l->n_heads / l->n_kv_heads, hd = l->head_dim;
    uint32_t from, to;
    find_pages(b, s);
    rows_of_block(b, s, &from, &to);
    for (uint32_t r = from; r < to; r += ATTENTION_ROWS) {
        struct attention_block a;
        block_prepare(b, s, r, to - r < ATTENTION_ROWS ? to - r : ATTENTION_ROWS, scratch->data,
                      &a);
        for (uint32_t j = 0; j < a.n_rows; j++) {
            const size_t slot = tile->first_slot +
                                (size_t)(s->block * tile->n + r + j) * l->n_heads +
                                s->kv_head * group;
            a.m[j] = b->partial_m + slot;
            a.l[j] = b->partial_l + slot;
            a.acc[j] = b->partial_acc + slot * hd;
        }
        b->vec->attention_block(&a);
    }
}

static void split_task(void *arg, uint32_t task, uint32_t worker) {
    struct cpu_backend *b = arg;
    const struct layer_plan *l = b->layer->plan;
    uint32_t lo = 0, hi = b->n_tiles;
    while (hi - lo > 1) {
        const uint32_t middle = (lo + hi) / 2;
        if (b->tiles[middle].first_task <= task)
            lo = middle;
        else
            hi = middle;
    }
    const struct attention_tile *tile = &b->tiles[lo];
    const uint32_t t = task - tile->first_task, run = b->blocks_per_task;
    struct block_set s = {
        .tile = tile, .kv_head = t % l->n_kv_heads, .block = t / l->n_kv_heads * run};
    const uint32_t end = s.block + run < tile->n_blocks ? s.block + run : tile->n_blocks;
    for (; s.block < end; s.block++) split_block(b, &s, scratch_of(b, worker));
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
    for (s.block = first; s.block < last; s.block++) {
        find_pages(b, &s);
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
                if (blocks_of(b, tile, i).first == s.block) {
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
        phase(b, split_task, b->n_split_tasks);
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
    const uint32_t hd = l->head_dim;
    const struct block_range blocks = blocks_of(b, tile, i);
    for (uint32_t h = 0; h < l->n_heads; h++) {
        float *out = b->attended + ((size_t)i * l->n_heads + h) * hd;
        float *m = b->state_m + (size_t)i * l->n_heads + h;
        float *sum = b->state_l + (size_t)i * l->n_heads + h;
        for (uint32_t block = blocks.first; b->split && block <= blocks.last; block++) {
            const size_t slot =
                tile->first_slot + (size_t)(block * tile->n + i - tile->first) * l->n_heads + h;
            const float *acc = b->partial_acc + slot * hd;
            if (block == blocks.first) {
                *m = b->partial_m[slot];
                *sum = b->partial_l[slot];
                memcpy(out, acc, hd * sizeof(float));
            } else {
                b->vec->attention_merge(m, sum, out, b->partial_m[slot], b->partial_l[slot], acc,
                                        hd);
            }
        }
        b->vec->scale(out, 1.0f / *sum, hd);
    }
}
