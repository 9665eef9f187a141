/* Groups of lanes: how they part, meet and wait for each other (exec.h says the policy). */
#include <string.h>

#include "tests/softgpu/run.h"

enum { PATIENCE = 256, WATCH_JOINS = 64 };

void lane_thread(const struct warp *w, uint32_t lane, uint32_t out[3]) {
    const uint32_t *n = w->block->launch->request->block;
    const uint32_t t = w->index * LANES + lane;
    out[0] = t % n[0];
    out[1] = t / n[0] % n[1];
    out[2] = t / n[0] / n[1];
}

void warp_start(struct warp *w) {
    w->resume = w->image->ops;
    w->stop = STOP_NONE;
    w->active = w->exec = ~w->exited;
    w->n_groups = 0;
}

void warp_run(struct warp *w) {
    const struct op *op = w->active ? w->resume : warp_next_group(w);
    if (!op) return;
    w->stop = STOP_NONE;
    if (w->poison) {
        while (op) {
            undefined_step(w, op);
            op = op->fn(w, op);
        }
    } else {
        while (op) op = op->fn(w, op);
    }
}

const struct op *op_guarded(struct warp *w, const struct op *op) {
    const uint32_t m = (pred_in(w, op->guard) ^ op->guard_flip) & w->exec;
    if (m == 0) return op + 1;
    w->exec = m;
    const struct op *next = op->inner(w, op);
    w->exec = w->active;
    return next;
}

static void add_group(struct warp *w, uint32_t mask, enum group_state state, const struct op *pc) {
    CHECK(mask != 0 && w->n_groups < LANES);
    w->groups[w->n_groups++] = (struct group){.mask = mask, .state = state, .pc = pc};
}

static struct group take_group(struct warp *w, uint32_t i) {
    const struct group g = w->groups[i];
    w->groups[i] = w->groups[--w->n_groups];
    return g;
}

/* The current group becomes lane set `mask`, with those waiting at the same place taken in. */
static const struct op *resume_group(struct warp *w, uint32_t mask, const struct op *pc) {
    for (uint32_t i = 0; i < w->n_groups;) {
        if (w->groups[i].state == GROUP_READY && w->groups[i].pc == pc)
            mask |= take_group(w, i).mask;
        else
            i++;
    }
    w->active = w->exec = mask;
    return pc;
}

static bool seeded(const struct warp *w) {
    return w->block->launch->request->seed != 0;
}

/* Nobody else can come: the groups at the lowest aligned operation go on, as they are. */
static const struct op *converge(struct warp *w) {
    const struct op *pc = NULL;
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (w->groups[i].state == GROUP_CONVERGE && (!pc || w->groups[i].pc < pc))
            pc = w->groups[i].pc;
    if (!pc) return NULL;
    uint32_t mask = 0;
    for (uint32_t i = 0; i < w->n_groups;) {
        if (w->groups[i].state == GROUP_CONVERGE && w->groups[i].pc == pc)
            mask |= take_group(w, i).mask;
        else
            i++;
    }
    w->converged = true;
    return resume_group(w, mask, pc);
}

const struct op *warp_next_group(struct warp *w) {
    uint32_t best = LANES, ready = 0;
    for (uint32_t i = 0; i < w->n_groups; i++) {
        if (w->groups[i].state != GROUP_READY) continue;
        ready++;
        if (best == LANES || w->groups[i].pc < w->groups[best].pc) best = i;
    }
    w->active = w->exec = 0;
    w->resume = NULL;
    if (best == LANES) {
        const struct op *pc = converge(w);
        if (pc) return pc;
        w->stop = w->n_groups ? STOP_WAIT : STOP_EXIT;
        return NULL;
    }
    if (ready > 1 && seeded(w) && next_random(&w->rng) % 4 == 0) {
        uint32_t pick = (uint32_t)(next_random(&w->rng) % ready);
        for (uint32_t i = 0; i < w->n_groups; i++)
            if (w->groups[i].state == GROUP_READY && pick-- == 0) best = i;
        w->grace = (uint32_t)(next_random(&w->rng) % 8);
    }
    const struct group g = take_group(w, best);
    return resume_group(w, g.mask, g.pc);
}

/* Another group than the current one, for fairness; the current one stays behind at `pc`. */
static const struct op *switch_group(struct warp *w, const struct op *pc, uint32_t ready) {
    uint32_t pick = (uint32_t)(next_random(&w->rng) % ready);
    for (uint32_t i = 0; i < w->n_groups; i++) {
        if (w->groups[i].state != GROUP_READY || pick-- != 0) continue;
        const struct group g = take_group(w, i);
        add_group(w, w->active, GROUP_READY, pc);
        w->grace = PATIENCE;
        return resume_group(w, g.mask, g.pc);
    }
    return NULL;
}

static uint64_t total_progress(const struct launch *l) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_workers; i++)
        n += atomic_load_explicit(&l->workers[i].progress, memory_order_relaxed);
    return n;
}

/* True: in the very state it was in before, with no write by anybody in between. */
static bool spins(struct warp *w, const struct op *op) {
    const uint64_t now = total_progress(w->block->launch);
    if (w->watch == op && w->watch_lanes == w->active) {
        if (now == w->spin_progress && !memcmp(w->watch_regs, w->regs, w->image->registers_bytes))
            return true;
        if (now != w->spin_progress) w->watch_tries = WATCH_JOINS;
    }
    if (!w->watch || w->watch == op) {
        w->watch = op;
        w->watch_lanes = w->active;
        w->spin_progress = now;
        memcpy(w->watch_regs, w->regs, w->image->registers_bytes);
    }
    return false;
}

static const struct op *join_slowly(struct warp *w, const struct op *op) {
    uint32_t ready = 0, lower = 0;
    if (w->n_groups) {
        (void)resume_group(w, w->active, op);
        for (uint32_t i = 0; i < w->n_groups; i++) {
            if (w->groups[i].state != GROUP_READY) continue;
            ready++;
            lower += w->groups[i].pc < op;
        }
    }
    if (ready && w->grace) {
        w->grace--;
    } else if (lower) {
        add_group(w, w->active, GROUP_READY, op);
        return warp_next_group(w);
    } else if (ready) {
        const bool turn = seeded(w) ? next_random(&w->rng) % 16 == 0 : ++w->watch_tries > PATIENCE;
        if (turn) {
            w->watch_tries = 0;
            return switch_group(w, op, ready);
        }
    }
    if (w->fuel < 0) {
        bool stop = true;
        if (!ready && w->watch_regs) {
            if (!w->watch) w->watch_tries = 0;
            if (spins(w, op)) {
                w->watch = NULL;
                w->stop = STOP_SPIN;
                w->resume = op;
                return NULL;
            }
            stop = ++w->watch_tries > WATCH_JOINS;
        }
        if (stop) {
            w->watch = NULL;
            w->stop = STOP_YIELD;
            w->resume = op;
            return NULL;
        }
    }
    w->worker->join_count[op->target]++;
    w->worker->join_lanes[op->target] += (uint32_t)__builtin_popcount(w->active);
    return op + 1;
}

const struct op *op_join(struct warp *w, const struct op *op) {
    w->fuel -= op->imm + 1;
    w->executed += (uint64_t)op->imm;
    if (w->fuel < 0 || w->n_groups) return join_slowly(w, op);
    w->worker->join_count[op->target]++;
    w->worker->join_lanes[op->target] += (uint32_t)__builtin_popcount(w->active);
    return op + 1;
}

/* The lanes in w->exec go to `pc`, the others of the group on to `op + 1`. */
static const struct op *part(struct warp *w, const struct op *op, const struct op *pc) {
    if (w->exec == w->active) return pc;
    w->worker->counters.divergent_branches++;
    add_group(w, w->active & ~w->exec, GROUP_READY, op + 1);
    add_group(w, w->exec, GROUP_READY, pc);
    return warp_next_group(w);
}

const struct op *op_branch(struct warp *w, const struct op *op) {
    return part(w, op, w->image->ops + op->target);
}

const struct op *op_branch_table(struct warp *w, const struct op *op) {
    const u32x *index = in_place(w, op->a);
    const uint32_t rest = w->active & ~w->exec;
    uint32_t left = w->exec;
    uint32_t first = first_lane(left);
    const uint32_t v = index[first];
    if (v >= op->n) {
        report(w, op, FINDING_OUT_OF_BOUNDS, first, v, "branch %u of a table of %u", v, op->n);
        return warp_abort(w, op);
    }
    uint32_t same = 0;
    for (uint32_t m = left; m; m &= m - 1)
        if (index[first_lane(m)] == v) same |= 1u << first_lane(m);
    left &= ~same;
    const struct op *pc = w->image->ops + w->image->places[op->list + v];
    if (!left && !rest) return pc;
    w->worker->counters.divergent_branches++;
    if (left) add_group(w, left, GROUP_READY, op);
    if (rest) add_group(w, rest, GROUP_READY, op + 1);
    add_group(w, same, GROUP_READY, pc);
    return warp_next_group(w);
}

const struct op *op_call(struct warp *w, const struct op *op) {
    u32x *back = out_place(w, op->d);
    for (uint32_t m = w->exec; m; m &= m - 1) back[first_lane(m)] = op->index + 1;
    return part(w, op, w->image->ops + op->target);
}

const struct op *op_return(struct warp *w, const struct op *op) {
    const u32x *back = in_place(w, op->a);
    const uint32_t rest = w->active & ~w->exec;
    const uint32_t v = back[first_lane(w->exec)];
    uint32_t same = 0;
    for (uint32_t m = w->exec; m; m &= m - 1)
        if (back[first_lane(m)] == v) same |= 1u << first_lane(m);
    const uint32_t left = w->exec & ~same;
    const struct op *pc = w->image->ops + v;
    if (!left && !rest) return pc;
    if (left) add_group(w, left, GROUP_READY, op);
    if (rest) add_group(w, rest, GROUP_READY, op + 1);
    add_group(w, same, GROUP_READY, pc);
    return warp_next_group(w);
}

const struct op *op_exit(struct warp *w, const struct op *op) {
    const uint32_t lanes = w->exec;
    w->exited |= lanes;
    w->active &= ~lanes;
    w->exec = w->active;
    warp_recheck(w);
    block_lanes_ended(w, lanes);
    return w->active ? op + 1 : warp_next_group(w);
}

void warp_recheck(struct warp *w) {
    for (uint32_t i = 0; i < w->n_groups; i++)
        if (w->groups[i].state == GROUP_SYNC) w->groups[i].state = GROUP_READY;
}

const struct op *warp_abort(struct warp *w, const struct op *op) {
    atomic_store(&w->block->launch->abort, true);
    w->stop = STOP_ABORT;
    w->resume = op;
    return NULL;
}

const struct op *op_trap(struct warp *w, const struct op *op) {
    report(w, op, FINDING_TRAP, first_lane(w->exec), 0, "trap");
    return warp_abort(w, op);
}

const struct op *op_nop(struct warp *w, const struct op *op) {
    (void)w;
    return op + 1;
}

/* A sleeping warp gives its turn away at the next join. */
const struct op *op_sleep(struct warp *w, const struct op *op) {
    if (w->fuel > 0) w->fuel = 0;
    return op + 1;
}

const struct op *warp_block_group(struct warp *w, const struct op *pc, enum group_state state,
                                  uint32_t wait_mask, uint32_t barrier) {
    add_group(w, w->exec, state, pc);
    w->groups[w->n_groups - 1].wait_mask = wait_mask;
    w->groups[w->n_groups - 1].barrier = barrier;
    return warp_next_group(w);
}

/* Lanes of the group that do not take part go on by themselves. */
static void leave_rest(struct warp *w, const struct op *op) {
    if (w->exec == w->active) return;
    add_group(w, w->active & ~w->exec, GROUP_READY, op + 1);
    w->active = w->exec;
}

/* Of the lanes in exec, those that name the same lanes as the first does. */
static uint32_t same_mask(struct warp *w, const struct op *op, const u32x *mask) {
    const uint32_t m0 = mask[first_lane(w->exec)];
    uint32_t same = 0;
    for (uint32_t m = w->exec; m; m &= m - 1)
        if (mask[first_lane(m)] == m0) same |= 1u << first_lane(m);
    if (same != w->exec) {
        add_group(w, w->exec & ~same, GROUP_READY, op);
        w->active = w->exec = same;
    }
    if (same & ~m0)
        report(w, op, FINDING_WARP_SYNC, first_lane(same & ~m0), m0,
               "lanes %08x run a .sync operation for lanes %08x", same, m0);
    return m0 | same;
}

uint32_t warp_sync(struct warp *w, const struct op *op, const u32x *mask, const struct op **next) {
    leave_rest(w, op);
    const uint32_t named = same_mask(w, op, mask);
    if (!(named & ~w->exited & ~w->exec)) return w->exec;
    uint32_t all = w->exec;
    for (uint32_t i = 0; i < w->n_groups;) {
        const struct group *g = &w->groups[i];
        if (g->state == GROUP_SYNC && g->pc == op && g->wait_mask == named)
            all |= take_group(w, i).mask;
        else
            i++;
    }
    w->active = w->exec = all;
    if (!(named & ~w->exited & ~all)) return all;
    *next = warp_block_group(w, op, GROUP_SYNC, named, 0);
    return 0;
}

static bool is_warp_barrier(const struct op *op) {
    return op->fn == op_warp_barrier || op->inner == op_warp_barrier;
}

/* bar.warp.sync: unlike the others it may be another instruction in each lane. */
const struct op *op_warp_barrier(struct warp *w, const struct op *op) {
    leave_rest(w, op);
    const uint32_t named = same_mask(w, op, in_place(w, op->b));
    uint32_t all = w->exec;
    for (uint32_t i = 0; i < w->n_groups; i++) {
        const struct group *g = &w->groups[i];
        if (g->state == GROUP_SYNC && g->wait_mask == named && is_warp_barrier(g->pc))
            all |= g->mask;
    }
    if (named & ~w->exited & ~all) return warp_block_group(w, op, GROUP_SYNC, named, 0);
    for (uint32_t i = 0; i < w->n_groups; i++) {
        struct group *g = &w->groups[i];
        if (g->state != GROUP_SYNC || g->wait_mask != named || !is_warp_barrier(g->pc)) continue;
        g->state = GROUP_READY;
        g->pc++;
    }
    if (w->poison) races_warp_sync(w, all);
    return resume_group(w, w->active, op + 1);
}
