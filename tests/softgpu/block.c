/* A block: its memory, its barriers, whose turn it is. */
#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/run.h"

enum { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_POPC, BARRIER_AND, BARRIER_OR };

static size_t take(size_t *at, size_t bytes) {
    const size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

struct block *block_create(struct launch *l) {
    const struct image *m = l->image;
    const uint32_t n = l->block_warps;
    size_t at = 0;
    const size_t head = take(&at, sizeof(struct block)), warps = take(&at, n * sizeof(struct warp));
    /* one register file's width behind each other, with room for whole vectors at the end */
    const size_t regs = take(&at, (size_t)n * m->registers_bytes + 64);
    const size_t watch = take(&at, (size_t)n * m->registers_bytes);
    const size_t local = take(&at, (size_t)n * LANES * m->local_bytes + 64);
    const size_t shared = take(&at, l->shared_bytes + 64u);
    size_t poison = 0, local_poison = 0, shared_poison = 0, pending = 0;
    if (l->track) {
        poison = take(&at, (size_t)n * m->registers_bytes / 4);
        local_poison = take(&at, (size_t)n * LANES * m->local_bytes + 64);
        shared_poison = take(&at, l->shared_bytes + 64u);
    }
    pending = take(&at, l->shared_bytes + 64u);
    uint8_t *p = aligned_alloc(64, at);
    if (!p) return NULL;
    memset(p, 0, warps);
    memset(p + warps, 0, n * sizeof(struct warp));
    memset(p + regs, 0xcb, (size_t)n * m->registers_bytes);
    memset(p + local, 0xcb, (size_t)n * LANES * m->local_bytes);
    memset(p + pending, 0, l->shared_bytes);
    struct block *b = (struct block *)(p + head);
    b->memory = p;
    b->launch = l;
    b->n_warps = n;
    b->n_threads = l->block_threads;
    b->warps = (struct warp *)(p + warps);
    b->shared = p + shared;
    b->shared_bytes = l->shared_bytes;
    b->shared_poison = l->track ? p + shared_poison : NULL;
    b->shared_pending = p + pending;
    for (uint32_t i = 0; i < n; i++) {
        struct warp *w = &b->warps[i];
        w->regs = p + regs + (size_t)i * m->registers_bytes;
        w->watch_regs = p + watch + (size_t)i * m->registers_bytes;
        w->local = p + local + (size_t)i * LANES * m->local_bytes;
        w->consts = m->constants;
        w->image = m;
        w->block = b;
        w->index = i;
        if (!l->track) continue;
        w->poison = p + poison + (size_t)i * m->registers_bytes / 4;
        w->local_poison = p + local_poison + (size_t)i * LANES * m->local_bytes;
    }
    return b;
}

void block_destroy(struct block *b) {
    if (!b) return;
    races_block_end(b);
    for (uint32_t i = 0; i < b->n_warps; i++) async_free(&b->warps[i]);
    free(b->memory);
}

bool block_start(struct worker *k, struct block *b, uint64_t number) {
    struct launch *l = b->launch;
    const uint32_t *grid = l->request->grid;
    b->linear = number;
    b->id[0] = (uint32_t)(number % grid[0]);
    b->id[1] = (uint32_t)(number / grid[0] % grid[1]);
    b->id[2] = (uint32_t)(number / grid[0] / grid[1]);
    b->live_warps = b->n_warps;
    b->ended_threads = 0;
    b->next_warp = 0;
    b->rng = l->request->seed + number * 0x2545f4914f6cdd1du;
    memset(b->barriers, 0, sizeof b->barriers);
    memset(b->shared, 0xcb, b->shared_bytes);
    if (b->shared_poison) memset(b->shared_poison, 1, b->shared_bytes);
    memset(b->shared_pending, 0, b->shared_bytes);
    for (uint32_t i = 0; i < b->n_warps; i++) {
        struct warp *w = &b->warps[i];
        const uint32_t left = b->n_threads - i * LANES;
        w->worker = k;
        w->exited = left >= LANES ? 0 : ~0u << left;
        w->rng = b->rng + i;
        w->carry = w->waited = w->launched_early = 0;
        w->executed = 0;
        async_reset(w);
        w->converged = false;
        w->watch = NULL;
        w->watch_tries = w->grace = 0;
        if (l->track) {
            memset(w->poison, 0xff, l->image->registers_bytes / 4);
            /* of predicates the second word is the poison */
            memset(w->regs, 0xff, l->image->registers_bytes);
            memset(w->local_poison, 1, (size_t)LANES * l->image->local_bytes);
        }
        warp_start(w);
    }
    return !l->track || races_block_start(b);
}

static uint64_t total_progress(const struct launch *l) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_workers; i++)
        n += atomic_load_explicit(&l->workers[i].progress, memory_order_relaxed);
    return n;
}

static bool has_group(const struct warp *w, enum group_state state) {
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (w->groups[i].state == state) return true;
    return false;
}

static bool has_ready_group(const struct warp *w) {
    return w->active || has_group(w, GROUP_READY) || has_group(w, GROUP_CONVERGE);
}

static bool may_run(const struct warp *w, uint64_t progress) {
    if (w->stop == STOP_EXIT) return false;
    if (w->stop == STOP_SPIN) return w->spin_progress != progress || has_group(w, GROUP_READY);
    return has_ready_group(w);
}

/* The next warp that can run, or NULL. */
static struct warp *pick_warp(struct block *b) {
    const uint64_t progress = total_progress(b->launch);
    const uint32_t start =
        b->launch->request->seed ? (uint32_t)(next_random(&b->rng) % b->n_warps) : b->next_warp;
    for (uint32_t i = 0; i < b->n_warps; i++) {
        struct warp *w = &b->warps[(start + i) % b->n_warps];
        if (!may_run(w, progress)) continue;
        b->next_warp = (w->index + 1) % b->n_warps;
        return w;
    }
    return NULL;
}

static void describe_wait(struct warp *w) {
    for (uint32_t i = 0; i < w->n_groups; i++) {
        const struct group *g = &w->groups[i];
        if (g->state == GROUP_BARRIER) {
            const struct barrier *bar = &w->block->barriers[g->barrier];
            report(w, g->pc, FINDING_DEADLOCK, first_lane(g->mask), 0,
                   "warp %u (lanes %08x) waits at barrier %u for ever: %u threads came, %u of the "
                   "block's %u have ended",
                   w->index, g->mask, g->barrier, bar->arrived, w->block->ended_threads,
                   w->block->n_threads);
        } else {
            report(w, g->pc, FINDING_DEADLOCK, first_lane(g->mask), 0,
                   "lanes %08x of warp %u wait for ever for lanes %08x at a .sync operation",
                   g->mask, w->index, g->wait_mask);
        }
    }
}

/* Writes of this worker's block that others see count as progress; without any for very long, the
 * launch is given up. */
static bool still_hopeful(struct worker *k, struct warp *w, uint64_t executed) {
    struct launch *l = k->launch;
    const uint64_t limit =
        l->request->max_instructions ? l->request->max_instructions : UINT64_C(200000000);
    const uint64_t progress = total_progress(l);
    if (progress != l->idle_progress) {
        l->idle_progress = progress;
        atomic_store_explicit(&l->idle_instructions, 0, memory_order_relaxed);
        return true;
    }
    if (atomic_fetch_add_explicit(&l->idle_instructions, executed, memory_order_relaxed) +
            executed <
        limit)
        return true;
    const struct op *at = w->resume ? w->resume : w->image->ops;
    report(w, at, FINDING_HANG, w->active ? first_lane(w->active) : 0, 0,
           "no write to memory in %llu instructions", (unsigned long long)limit);
    atomic_store(&l->abort, true);
    return false;
}

enum block_state block_run(struct worker *k, struct block *b) {
    struct launch *l = b->launch;
    const bool seeded = l->request->seed != 0;
    uint32_t turns = seeded ? 1 + (uint32_t)(next_random(&b->rng) % 64) : 4096;
    for (uint32_t i = 0; i < b->n_warps; i++) b->warps[i].worker = k;
    while (!atomic_load_explicit(&l->abort, memory_order_relaxed)) {
        if (b->live_warps == 0) return BLOCK_DONE;
        if (turns-- == 0) return BLOCK_READY;
        struct warp *w = pick_warp(b);
        if (!w) {
            bool spinning = false;
            for (uint32_t i = 0; i < b->n_warps; i++) spinning |= b->warps[i].stop == STOP_SPIN;
            if (spinning) {
                b->parked_progress = UINT64_MAX;
                for (uint32_t i = 0; i < b->n_warps; i++)
                    if (b->warps[i].stop == STOP_SPIN &&
                        b->warps[i].spin_progress < b->parked_progress)
                        b->parked_progress = b->warps[i].spin_progress;
                return BLOCK_PARKED;
            }
            for (uint32_t i = 0; i < b->n_warps; i++) describe_wait(&b->warps[i]);
            atomic_store(&l->abort, true);
            return BLOCK_DONE;
        }
        const uint64_t before = w->executed;
        w->fuel = seeded ? 16 + (int64_t)(next_random(&b->rng) % 2048) : l->turn;
        if (w->stop == STOP_SPIN) w->stop = STOP_NONE;
        warp_run(w);
        if (w->stop == STOP_EXIT) {
            b->live_warps--;
            made_progress(k);
        }
        if (w->stop == STOP_YIELD && !still_hopeful(k, w, w->executed - before)) break;
    }
    return BLOCK_DONE;
}

static void complete(struct block *b, uint32_t number) {
    struct barrier *bar = &b->barriers[number];
    if (b->launch->track) races_barrier_leave(b, bar, number);
    uint32_t result = bar->popc;
    for (uint32_t i = 0; i < b->n_warps; i++) {
        struct warp *w = &b->warps[i];
        for (uint32_t g = 0; g < w->n_groups; g++) {
            struct group *group = &w->groups[g];
            if (group->state != GROUP_BARRIER || group->barrier != number) continue;
            const struct op *op = group->pc;
            if (op->kind == BARRIER_POPC) {
                u32x *d = out_place(w, op->d);
                for (uint32_t m = group->mask; m; m &= m - 1) d[first_lane(m)] = result;
            } else if (op->kind == BARRIER_AND || op->kind == BARRIER_OR) {
                const bool yes = op->kind == BARRIER_AND ? bar->all : bar->any;
                pred_out(w, op->d, group->mask, yes ? ~0u : 0);
            }
            group->state = GROUP_READY;
            group->pc = op + 1;
        }
        if (w->stop == STOP_WAIT && has_ready_group(w)) w->stop = STOP_NONE;
    }
    b->warps[0].worker->counters.barriers++;
    made_progress(b->warps[0].worker);
    memset(bar, 0, sizeof *bar);
}

static bool is_complete(const struct block *b, const struct barrier *bar) {
    if (!bar->first) return false;
    return bar->arrived >= (bar->expected ? bar->expected : b->n_threads - b->ended_threads);
}

void block_lanes_ended(struct warp *w, uint32_t lanes) {
    struct block *b = w->block;
    b->ended_threads += (uint32_t)__builtin_popcount(lanes);
    for (uint32_t i = 0; i < MAX_BARRIERS; i++)
        if (is_complete(b, &b->barriers[i])) complete(b, i);
}

static void mark_defined(struct warp *w, const struct op *op) {
    if (op->d == NO_PLACE) return;
    if (op->kind == BARRIER_POPC) {
        uint8_t *poison = poison_out(w, op->d);
        for (uint32_t m = w->exec; m; m &= m - 1) poison[first_lane(m)] = 0;
    } else {
        u32x *poison = out_place(w, op->d + 4);
        *poison &= ~w->exec;
    }
}

const struct op *op_barrier(struct warp *w, const struct op *op) {
    struct block *b = w->block;
    const uint32_t lanes = w->exec, lane = first_lane(lanes);
    const u32x *numbers = in_place(w, op->a);
    const u32x *counts = op->b == NO_PLACE ? NULL : in_place(w, op->b);
    const uint32_t number = numbers[lane], expected = counts ? counts[lane] : 0;
    bool uniform = true;
    for (uint32_t m = lanes; m; m &= m - 1)
        uniform &=
            numbers[first_lane(m)] == number && (!counts || counts[first_lane(m)] == expected);
    if (number >= MAX_BARRIERS || (counts && (expected == 0 || expected % LANES)) || !uniform) {
        report(w, op, FINDING_BARRIER, lane, number,
               uniform ? "barrier %u with %u threads is none"
                       : "lanes of a warp name different barriers (%u, %u)",
               number, expected);
        return warp_abort(w, op);
    }
    const bool whole = lanes == (uint32_t)~w->exited;
    if (!whole && (op->flags & OP_ALIGNED) && !w->converged &&
        (has_group(w, GROUP_READY) || has_group(w, GROUP_CONVERGE) || lanes != w->active)) {
        /* the others may be on their way: compilers let a warp meet before an aligned barrier */
        if (lanes != w->active)
            w->groups[w->n_groups++] =
                (struct group){.mask = w->active & ~lanes, .state = GROUP_READY, .pc = op + 1};
        w->active = lanes;
        return warp_block_group(w, op, GROUP_CONVERGE, 0, 0);
    }
    w->converged = false;
    if (!whole && (op->flags & OP_ALIGNED))
        report(w, op, FINDING_BARRIER, lane, number,
               "lanes %08x of warp %u run an aligned barrier while lanes %08x are elsewhere", lanes,
               w->index, ~w->exited & ~lanes);
    if (lanes != w->active) {
        w->groups[w->n_groups++] =
            (struct group){.mask = w->active & ~lanes, .state = GROUP_READY, .pc = op + 1};
        w->active = lanes;
    }
    struct barrier *bar = &b->barriers[number];
    if (!bar->first) {
        bar->first = op;
        bar->expected = expected;
        bar->all = 1;
    } else if (bar->expected != expected) {
        report(w, op, FINDING_BARRIER, lane, number,
               "barrier %u is waited for with %u threads here and %u elsewhere", number, expected,
               bar->expected);
    } else if (bar->first != op && !expected && (op->flags & OP_ALIGNED)) {
        const struct image_line *line = &w->image->lines[bar->first->index];
        report(
            w, op, FINDING_BARRIER, lane, number,
            "part of the block is at this barrier while another part is at the one of PTX line %u",
            line->ptx_line);
    }
    /* A warp counts as a whole where threads are counted. */
    const uint32_t threads = (uint32_t)__builtin_popcount(lanes);
    bar->arrived += expected && whole ? LANES : threads;
    if (op->c != NO_PLACE) {
        const uint32_t p = (pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0)) & lanes;
        bar->popc += (uint32_t)__builtin_popcount(p);
        bar->all &= p == lanes;
        bar->any |= p != 0;
    }
    if (w->poison) {
        if (op->kind >= BARRIER_POPC) mark_defined(w, op);
        races_barrier_arrive(w, bar, lanes, op->kind != BARRIER_ARRIVE);
    }
    if (op->kind == BARRIER_ARRIVE) {
        if (is_complete(b, bar)) complete(b, number);
        return op + 1;
    }
    /* It waits even if it is the last, so that all are released in one way. */
    w->groups[w->n_groups++] =
        (struct group){.mask = lanes, .state = GROUP_BARRIER, .barrier = number, .pc = op};
    if (is_complete(b, bar)) complete(b, number);
    return warp_next_group(w);
}
