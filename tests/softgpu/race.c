#include "tests/softgpu/race.h"

#include <stdlib.h>
#include <string.h>

/* Kept with the device memory from launch to launch. */
struct kept {
    uint32_t next_clock;
    uint32_t valid;
    struct bump readers;
};

static void release_kept(void *state) {
    struct kept *k = state;
    bump_free(&k->readers);
    free(k);
}

static void drop_pages(void *arg, const struct memory_range *r) {
    (void)arg;
    for (uint64_t i = 0; r->pages && i < 2 * ((r->size_bytes + 4095) / 4096); i++) {
        free(r->pages[i]);
        r->pages[i] = NULL;
    }
}

struct races *races_create(struct launch *l) {
    struct memory_races *home = memory_races(l->memory);
    struct kept *k = home->state;
    if (!k) {
        k = calloc(1, sizeof *k);
        if (!k) return NULL;
        k->next_clock = k->valid = 1;
        home->state = k;
        home->release = release_kept;
    }
    struct races *r = calloc(1, sizeof *r);
    struct clock_pool *pool = calloc(1, sizeof *pool);
    if (!r || !pool) {
        free(r);
        free(pool);
        return NULL;
    }
    const struct exec_launch *q = l->request;
    if (q->n_unordered_before_wait + q->n_unordered_after_wait == 0) {
        /* all that was recorded is in the past: its lists may go */
        k->valid = k->next_clock;
        bump_free(&k->readers);
        if (k->next_clock > 0xf0000000u) {
            memory_each(l->memory, drop_pages, NULL);
            k->next_clock = k->valid = 1;
        }
    }
    r->launch = l;
    r->pool = pool;
    r->readers = &k->readers;
    r->first = r->highest = k->next_clock;
    r->valid = k->valid;
    return r;
}

void races_finish(struct launch *l, struct exec_interval *interval) {
    struct races *r = l->races;
    struct kept *k = memory_races(l->memory)->state;
    k->next_clock = r->highest + 1;
    *interval = (struct exec_interval){r->first, k->next_clock};
    if (r->pool->no_memory) l->no_memory = true;
    bump_free(&r->pool->bump);
    free(r->pool);
    free(r);
    l->races = NULL;
}

bool races_block_start(struct block *b) {
    races_block_end(b);
    const struct launch *l = b->launch;
    struct block_races *r = calloc(1, sizeof *r);
    if (!r) return false;
    b->races = r;
    r->n_threads = l->block_warps * LANES;
    r->threads = calloc(r->n_threads, sizeof *r->threads);
    r->writes = calloc(b->shared_bytes / 4 + 1, sizeof *r->writes);
    r->reads = calloc(b->shared_bytes / 4 + 1, sizeof *r->reads);
    if (!r->threads || !r->writes || !r->reads) return false;
    for (uint32_t i = 0; i < r->n_threads; i++) {
        r->threads[i].clock = l->races->first;
        r->threads[i].block_until = l->races->first;
    }
    return true;
}

void races_block_end(struct block *b) {
    struct block_races *r = b->races;
    if (!r) return;
    free(r->threads);
    free(r->writes);
    free(r->reads);
    free(r);
    b->races = NULL;
}

static struct races *of(const struct warp *w) {
    return w->block->launch->races;
}

static struct race_thread *thread_of(const struct warp *w, uint32_t lane) {
    return &w->block->races->threads[w->index * LANES + lane];
}

static uint64_t number_of(const struct warp *w, uint32_t lane) {
    return w->block->linear * race_threads_per_block(w->block->launch) + w->index * LANES + lane;
}

uint32_t race_clock(const struct warp *w, uint32_t lane) {
    return thread_of(w, lane)->clock;
}

static void move_on(struct warp *w, struct race_thread *t, uint32_t clock) {
    t->clock = clock;
    if (clock > of(w)->highest) of(w)->highest = clock;
}

/* An access of an earlier launch. */
static bool earlier_ordered(const struct warp *w, uint32_t lane, uint32_t clock) {
    const struct exec_launch *q = w->block->launch->request;
    const bool waited = w->waited >> lane & 1;
    const struct exec_interval *list = waited ? q->unordered_after_wait : q->unordered_before_wait;
    const uint32_t n = waited ? q->n_unordered_after_wait : q->n_unordered_before_wait;
    for (uint32_t i = 0; i < n && i < EXEC_MAX_UNORDERED; i++)
        if (clock >= list[i].first && clock < list[i].end) return false;
    return true;
}

bool race_ordered(const struct warp *w, uint32_t lane, uint64_t thread, uint32_t clock) {
    const struct races *r = of(w);
    if (clock < r->valid) return true;
    if (clock < r->first) return earlier_ordered(w, lane, clock);
    const uint64_t per_block = race_threads_per_block(w->block->launch);
    if (thread == number_of(w, lane)) return true;
    const struct race_thread *t = thread_of(w, lane);
    const uint64_t block = thread / per_block;
    if (block == w->block->linear) {
        if (clock < t->block_until) return true;
        const uint64_t inside = thread % per_block;
        if (inside / LANES == w->index && clock < t->seen[inside % LANES]) return true;
    }
    return clock < clock_set_get(t->known, CLOCK_BLOCK | block) ||
           clock < clock_set_get(t->known, thread);
}

bool race_ordered_block(const struct warp *w, uint32_t lane, uint64_t block, uint32_t clock) {
    const struct races *r = of(w);
    if (clock < r->valid) return true;
    if (clock < r->first) return earlier_ordered(w, lane, clock);
    const struct race_thread *t = thread_of(w, lane);
    if (block == w->block->linear && clock < t->block_until) return true;
    return clock < clock_set_get(t->known, CLOCK_BLOCK | block);
}

/* All that the thread has done and knows; its clock moves on. */
static const struct clock_set *snapshot(struct warp *w, uint32_t lane) {
    struct race_thread *t = thread_of(w, lane);
    struct clock_entry e[LANES + 2];
    uint32_t n = 0;
    for (uint32_t i = 0; i < LANES; i++)
        if (i != lane && t->seen[i] > t->block_until)
            e[n++] = (struct clock_entry){number_of(w, i), t->seen[i]};
    e[n++] = (struct clock_entry){number_of(w, lane), t->clock + 1};
    e[n++] = (struct clock_entry){CLOCK_BLOCK | w->block->linear, t->block_until};
    const struct clock_set *s = clock_set_make(of(w)->pool, e, n);
    move_on(w, t, t->clock + 1);
    return clock_set_join(of(w)->pool, s, t->known);
}

void races_warp_sync(struct warp *w, uint32_t lanes) {
    uint32_t seen[LANES] = {0}, clock = 0, until = 0;
    const struct clock_set *known = NULL;
    for (uint32_t m = lanes; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const struct race_thread *t = thread_of(w, l);
        for (uint32_t i = 0; i < LANES; i++)
            if (t->seen[i] > seen[i]) seen[i] = t->seen[i];
        if (t->clock > clock) clock = t->clock;
        if (t->block_until > until) until = t->block_until;
        known = clock_set_join(of(w)->pool, known, t->known);
    }
    /* one clock for all lanes: what they read together then takes one record */
    for (uint32_t m = lanes; m; m &= m - 1) seen[first_lane(m)] = clock + 1;
    for (uint32_t m = lanes; m; m &= m - 1) {
        struct race_thread *t = thread_of(w, first_lane(m));
        memcpy(t->seen, seen, sizeof seen);
        t->block_until = until;
        t->known = known;
        move_on(w, t, clock + 1);
    }
}

void races_barrier_arrive(struct warp *w, struct barrier *bar, uint32_t lanes, bool waits) {
    bar->partial |= !waits;
    /* A barrier of the whole block needs no sets; see races_barrier_leave. */
    if (!bar->expected) return;
    for (uint32_t m = lanes; m; m &= m - 1)
        bar->released = clock_set_join(of(w)->pool, bar->released, snapshot(w, first_lane(m)));
}

void races_barrier_leave(struct block *b, struct barrier *bar, uint32_t number) {
    struct races *r = b->launch->races;
    const bool whole = !bar->expected && !bar->partial;
    const struct clock_set *known = bar->released;
    uint32_t clock = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < b->n_warps; i++) {
            struct warp *w = &b->warps[i];
            for (uint32_t g = 0; g < w->n_groups; g++) {
                const struct group *group = &w->groups[g];
                if (group->state != GROUP_BARRIER || group->barrier != number) continue;
                for (uint32_t m = group->mask; m; m &= m - 1) {
                    struct race_thread *t = thread_of(w, first_lane(m));
                    if (pass == 0) {
                        if (t->clock > clock) clock = t->clock;
                        known = clock_set_join(r->pool, known, t->known);
                        continue;
                    }
                    t->known = known;
                    if (!whole) continue;
                    t->block_until = clock + 1;
                    move_on(w, t, clock + 1);
                }
            }
        }
        /* threads that have ended came before the barrier as well */
        for (uint32_t i = 0; whole && pass == 0 && i < b->races->n_threads; i++)
            if (b->races->threads[i].clock > clock) clock = b->races->threads[i].clock;
    }
}

void races_fence(struct warp *w, uint32_t lane, enum op_scope scope) {
    struct race_thread *t = thread_of(w, lane);
    struct clock_pool *pool = of(w)->pool;
    t->known = clock_set_join(pool, t->known, t->pending[0]);
    if (scope >= SCOPE_CLUSTER) t->known = clock_set_join(pool, t->known, t->pending[1]);
    t->fenced[0] = snapshot(w, lane);
    if (scope >= SCOPE_GPU) t->fenced[1] = t->fenced[0];
}

static struct race_location *location(struct warp *w, uint64_t address, bool shared) {
    struct races *r = of(w);
    const uint64_t key = shared ? CLOCK_BLOCK | w->block->linear << 24 | address : address;
    struct race_location **at = &r->locations[(key * 0x9e3779b97f4a7c15u) >> 54];
    while (*at && (*at)->key != key) at = &(*at)->next;
    if (!*at) {
        *at = bump_take(&r->pool->bump, sizeof **at);
        if (!*at) {
            r->pool->no_memory = true;
            return NULL;
        }
        (*at)->key = key;
    }
    return *at;
}

void races_release(struct warp *w, uint32_t lane, uint64_t address, bool shared, bool release,
                   bool rmw, enum op_scope scope) {
    struct race_location *x = location(w, address, shared);
    if (!x) return;
    struct race_thread *t = thread_of(w, lane);
    struct clock_pool *pool = of(w)->pool;
    const struct clock_set *own[2] = {t->fenced[0], scope >= SCOPE_GPU ? t->fenced[1] : NULL};
    if (release) {
        own[0] = snapshot(w, lane);
        if (scope >= SCOPE_GPU || shared) own[1] = own[0];
    }
    for (int i = 0; i < 2; i++) {
        const bool keep = rmw && (i == 1 || x->block == w->block->linear);
        x->released[i] = keep ? clock_set_join(pool, x->released[i], own[i]) : own[i];
    }
    x->block = w->block->linear;
}

void races_acquire(struct warp *w, uint32_t lane, uint64_t address, bool shared, bool acquire,
                   enum op_scope scope) {
    const struct race_location *x = location(w, address, shared);
    if (!x) return;
    struct race_thread *t = thread_of(w, lane);
    struct clock_pool *pool = of(w)->pool;
    const bool same = x->block == w->block->linear;
    const struct clock_set *near = same ? x->released[0] : NULL;
    const struct clock_set *far = scope >= SCOPE_GPU ? x->released[1] : NULL;
    if (acquire) {
        t->known = clock_set_join(pool, clock_set_join(pool, t->known, near), far);
    } else {
        t->pending[0] = clock_set_join(pool, t->pending[0], near);
        t->pending[1] = clock_set_join(pool, t->pending[1], far);
    }
}

/* Which earlier launches are waited for is looked up when an access is checked. */
void races_grid_wait(struct warp *w, uint32_t lanes) {
    for (uint32_t m = lanes; m; m &= m - 1) {
        struct race_thread *t = thread_of(w, first_lane(m));
        move_on(w, t, t->clock + 1);
    }
}
