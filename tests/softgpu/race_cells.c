/* The record of accesses: per byte the last write, per four bytes the reads since. */
#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/race.h"

enum { CELLS = 1024, EXACT_READERS = 32, BLOCK_READERS = 96 };

static struct races *of(const struct warp *w) {
    return w->block->launch->races;
}

static uint64_t thread_number(const struct warp *w, uint32_t lane) {
    return w->block->linear * race_threads_per_block(w->block->launch) + w->index * LANES + lane;
}

struct spot { /* what is being accessed, for messages and checks */
    struct warp *w;
    const struct op *op;
    uint32_t lane;
    uint64_t address;
    enum access_kind kind;
    bool strong;
    const char *space;
};

static void report_race(const struct spot *s, const char *other, uint64_t thread, uint32_t clock,
                        uint32_t op) {
    static const char *const verbs[] = {"read", "write", "atomic operation"};
    const struct launch *l = s->w->block->launch;
    const uint64_t per_block = race_threads_per_block(l);
    char who[120];
    if (clock < of(s->w)->first)
        snprintf(who, sizeof who, "of an earlier launch");
    else if (thread == RACE_WHOLE_GRID)
        snprintf(who, sizeof who, "of other blocks, PTX line %u", l->image->lines[op].ptx_line);
    else
        snprintf(who, sizeof who, "of block %llu thread %llu, PTX line %u",
                 (unsigned long long)(thread / per_block), (unsigned long long)(thread % per_block),
                 l->image->lines[op].ptx_line);
    report(s->w, s->op, FINDING_RACE, s->lane, s->address,
           "%s of %s memory at %#llx is not ordered against the %s %s", verbs[s->kind], s->space,
           (unsigned long long)s->address, other, who);
}

/* Two strong accesses do not race if each one's scope includes the other's thread. */
static bool both_strong(const struct spot *s, uint8_t strong, bool same_block) {
    return s->strong && strong && (same_block || (strong > SCOPE_GPU && s->op->scope >= SCOPE_GPU));
}

static void check_write(const struct spot *s, const struct race_write_cell *c, uint32_t bytes) {
    if (!c) return;
    for (uint32_t i = 0; i < 4; i++) {
        if (!(bytes >> i & 1) || c->clock[i] == 0) continue;
        if (race_ordered(s->w, s->lane, c->thread[i], c->clock[i])) continue;
        const bool same_block =
            c->clock[i] >= of(s->w)->first &&
            c->thread[i] / race_threads_per_block(s->w->block->launch) == s->w->block->linear;
        if (both_strong(s, c->strong[i], same_block)) continue;
        report_race(s, "write", c->thread[i], c->clock[i], c->op[i]);
        return;
    }
}

static bool reader_ordered(const struct spot *s, const struct race_reader *r, uint64_t *thread) {
    const struct launch *l = s->w->block->launch;
    const uint64_t per_block = race_threads_per_block(l);
    if (r->warp == RACE_WHOLE_GRID) {
        *thread = RACE_WHOLE_GRID;
        for (uint64_t b = 0; b < l->grid_blocks; b++)
            if (!race_ordered_block(s->w, s->lane, b, r->clock)) return false;
        return true;
    }
    if (r->warp & RACE_WHOLE_BLOCK) {
        *thread = (r->warp & ~RACE_WHOLE_BLOCK) * per_block;
        return race_ordered_block(s->w, s->lane, r->warp & ~RACE_WHOLE_BLOCK, r->clock);
    }
    for (uint32_t m = r->lanes; m; m &= m - 1) {
        *thread = r->warp * LANES + first_lane(m);
        if (!race_ordered(s->w, s->lane, *thread, r->clock)) return false;
    }
    return true;
}

static bool check_reader(const struct spot *s, const struct race_reader *r, uint32_t bytes) {
    uint64_t thread;
    if (r->clock == 0 || !(r->bytes & bytes) || reader_ordered(s, r, &thread)) return true;
    const bool same_block =
        thread != RACE_WHOLE_GRID && r->clock >= of(s->w)->first &&
        thread / race_threads_per_block(s->w->block->launch) == s->w->block->linear;
    if (both_strong(s, r->strong ? 1 + SCOPE_GPU : 0, same_block)) return true;
    report_race(s, "read", thread, r->clock, r->op);
    return false;
}

static void check_reads(const struct spot *s, struct race_read_cell *c, uint32_t bytes) {
    if (!c || c->first.clock == 0) return;
    bool good = check_reader(s, &c->first, bytes), all = (c->first.bytes & ~bytes) == 0;
    for (uint32_t i = 0; i < c->n_more; i++) {
        if (good) good = check_reader(s, &c->more[i], bytes);
        all &= (c->more[i].bytes & ~bytes) == 0;
    }
    if (!all) return;
    /* the write stands for them from now on */
    c->first.clock = 0;
    c->n_more = 0;
}

static void note_write(const struct spot *s, struct race_write_cell *c, uint32_t bytes) {
    for (uint32_t i = 0; i < 4; i++) {
        if (!(bytes >> i & 1)) continue;
        c->thread[i] = thread_number(s->w, s->lane);
        c->clock[i] = race_clock(s->w, s->lane);
        c->op[i] = s->op->index;
        c->strong[i] = s->strong ? (uint8_t)(1 + s->op->scope) : 0;
    }
}

/* Entries of whole warps become entries of whole blocks, and those one of the whole grid. */
static void coarsen(const struct spot *s, struct race_read_cell *c) {
    const uint64_t warps = s->w->block->launch->block_warps;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_more; i++) {
        struct race_reader r = c->more[i];
        if (r.warp != RACE_WHOLE_GRID && !(r.warp & RACE_WHOLE_BLOCK))
            r.warp = RACE_WHOLE_BLOCK | r.warp / warps;
        if (c->n_more >= BLOCK_READERS) r.warp = RACE_WHOLE_GRID;
        uint32_t k = 0;
        while (k < n && (c->more[k].warp != r.warp || c->more[k].bytes != r.bytes)) k++;
        if (k == n) {
            c->more[n++] = r;
            continue;
        }
        if (r.clock > c->more[k].clock) c->more[k].clock = r.clock;
        c->more[k].strong &= r.strong;
    }
    c->n_more = n;
}

/* Into an entry that speaks for the new reader too. A coarse one that came before this read need
 * not be kept: who comes after the read comes after the entry. (Without this a thread's own read
 * would look like one of its whole block.) One of an earlier launch takes no reader of this one. */
static bool merge_reader(const struct spot *s, struct race_reader *old,
                         const struct race_reader *new) {
    const uint64_t warps = s->w->block->launch->block_warps;
    uint64_t thread;
    /* Neighbours in a cell are readers of their own bytes only. */
    if (old->warp == new->warp && old->clock == new->clock && old->strong == new->strong &&
        (old->bytes == new->bytes || old->lanes == new->lanes)) {
        old->lanes |= new->lanes;
        old->bytes |= new->bytes;
        return true;
    }
    const bool within =
        old->warp == RACE_WHOLE_GRID ||
        ((old->warp & RACE_WHOLE_BLOCK) && (old->warp & ~RACE_WHOLE_BLOCK) == new->warp / warps);
    if (!within) return false;
    if (old->clock < new->clock && old->strong <= new->strong &&reader_ordered(s, old, &thread)) {
        /* Of more bytes it stays what it is: its other bytes were not read again. */
        if (old->bytes & ~new->bytes) return false;
        *old = *new;
        return true;
    }
    if (old->clock < of(s->w)->first) return false;
    if (new->clock > old->clock) old->clock = new->clock;
    old->bytes |= new->bytes;
    old->strong &= new->strong;
    return true;
}

static void note_read(const struct spot *s, struct race_read_cell *c, uint32_t bytes) {
    const struct launch *l = s->w->block->launch;
    const struct race_reader new = {.warp = s->w->block->linear * l->block_warps + s->w->index,
                                    .lanes = 1u << s->lane,
                                    .clock = race_clock(s->w, s->lane),
                                    .op = s->op->index,
                                    .bytes = (uint8_t)bytes,
                                    .strong = s->strong};
    struct races *r = of(s->w);
    if (c->first.clock < r->valid) {
        c->n_more = 0;
        c->cap_more = 0; /* lists of that age were dropped */
        c->more = NULL;
        c->first = new;
        return;
    }
    if (merge_reader(s, &c->first, &new)) return;
    for (uint32_t i = c->n_more; i-- > 0;)
        if (merge_reader(s, &c->more[i], &new)) return;
    if (c->n_more == 0 && !(c->first.bytes & ~bytes) && c->first.strong <= new.strong) {
        /* a lone earlier reader that comes before this one need not be kept */
        uint64_t thread;
        if (reader_ordered(s, &c->first, &thread)) {
            c->first = new;
            return;
        }
    }
    if (c->n_more >= EXACT_READERS) {
        coarsen(s, c);
        for (uint32_t i = c->n_more; i-- > 0;)
            if (merge_reader(s, &c->more[i], &new)) return;
    }
    if (c->n_more == c->cap_more) {
        const uint32_t cap = c->cap_more ? c->cap_more * 2 : 4;
        struct race_reader *more = bump_take(r->readers, cap * sizeof *more);
        if (!more) {
            r->pool->no_memory = true;
            return;
        }
        if (c->n_more) memcpy(more, c->more, c->n_more * sizeof *more);
        c->more = more;
        c->cap_more = cap;
    }
    c->more[c->n_more++] = new;
}

static void access_cell(const struct spot *s, struct race_write_cell *w, struct race_read_cell *r,
                        uint32_t bytes) {
    check_write(s, w, bytes);
    if (s->kind != ACCESS_READ) {
        /* lists older than this launch's view are gone: their cells count as empty */
        if (r && r->first.clock < of(s->w)->valid) {
            r->first.clock = 0;
            r->n_more = r->cap_more = 0;
            r->more = NULL;
        }
        check_reads(s, r, bytes);
        note_write(s, w, bytes);
    } else {
        note_read(s, r, bytes);
    }
}

static void *page(struct memory_access **slot, size_t cell_bytes, struct races *r) {
    if (!*slot) *slot = calloc(CELLS, cell_bytes);
    if (!*slot) r->pool->no_memory = true;
    return *slot;
}

void races_global(struct warp *w, const struct op *op, uint32_t lane,
                  const struct memory_range *range, uint64_t address, uint32_t bytes,
                  enum access_kind kind) {
    if (!range->pages) return;
    struct races *races = of(w);
    uint64_t at = address - range->base;
    const struct spot s = {
        w, op, lane, address, kind, kind == ACCESS_ATOMIC || (op->flags & OP_RELAXED), "global"};
    for (const uint64_t end = at + bytes; at < end;) {
        const uint32_t in = (uint32_t)(at % 4),
                       n = (uint32_t)(end - at < 4 - in ? end - at : 4 - in);
        struct memory_access **slot = &range->pages[2 * (at / 4096)];
        /* reads make no page of writes, nor writes one of reads */
        struct race_write_cell *writes =
            kind == ACCESS_READ ? (void *)slot[0] : page(&slot[0], sizeof *writes, races);
        struct race_read_cell *reads =
            kind != ACCESS_READ ? (void *)slot[1] : page(&slot[1], sizeof *reads, races);
        if (races->pool->no_memory) return;
        const uint64_t cell = at % 4096 / 4;
        access_cell(&s, writes ? writes + cell : NULL, reads ? reads + cell : NULL,
                    ((1u << n) - 1) << in);
        at += n;
    }
}

void races_shared(struct warp *w, const struct op *op, uint32_t lane, uint32_t address,
                  uint32_t bytes, enum access_kind kind) {
    struct block_races *r = w->block->races;
    const struct spot s = {
        w, op, lane, address, kind, kind == ACCESS_ATOMIC || (op->flags & OP_RELAXED), "shared"};
    for (uint32_t at = address, end = address + bytes; at < end;) {
        const uint32_t in = at % 4, n = end - at < 4 - in ? end - at : 4 - in;
        access_cell(&s, &r->writes[at / 4], &r->reads[at / 4], ((1u << n) - 1) << in);
        at += n;
    }
}
