/* A grid: which blocks are resident, on which host thread they run, and what it all added up to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/softgpu/program.h"
#include "tests/softgpu/run.h"

enum { TURN = 20000, SEEDED_RESIDENT = 6 };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t round_up(uint32_t v, uint32_t to) {
    return (v + to - 1) / to * to;
}

uint32_t exec_occupancy(const struct exec_device *d, const struct program_function *f,
                        uint32_t block_threads, uint32_t dynamic_shared_bytes, uint32_t registers) {
    if (block_threads == 0) return 0;
    const uint32_t warps = (block_threads + LANES - 1) / LANES;
    if (registers == 0) registers = f->image.live_registers;
    registers = round_up(registers < 16 ? 16 : registers, 8);
    uint32_t n = d->max_blocks_per_sm;
    const uint32_t by_threads = d->max_threads_per_sm / (warps * LANES);
    const uint32_t by_registers = d->registers_per_sm / (warps * registers * LANES);
    const uint32_t shared = round_up(
        f->image.static_shared_bytes + dynamic_shared_bytes + d->shared_reserved_bytes, 128);
    const uint32_t by_shared = shared ? d->shared_per_sm_bytes / shared : n;
    if (by_threads < n) n = by_threads;
    if (by_registers < n) n = by_registers;
    if (by_shared < n) n = by_shared;
    return n;
}

static enum status refuse(struct error *e, const char *what, uint64_t have, uint64_t limit) {
    return error_set(e, STATUS_INVALID, NULL, "%s: %llu, the limit is %llu", what,
                     (unsigned long long)have, (unsigned long long)limit);
}

static enum status check_request(const struct exec_device *d, const struct exec_launch *r,
                                 struct error *e) {
    const struct program_function *f = r->function;
    const uint64_t limits[6] = {0x7fffffff, 65535, 65535, 1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 6; i++) {
        const uint64_t v = i < 3 ? r->grid[i] : r->block[i - 3];
        if (v == 0 || v > limits[i])
            return refuse(e, i < 3 ? "grid dimension" : "block dimension", v, limits[i]);
        if (i >= 3) threads *= v;
    }
    if (threads > d->max_threads_per_block)
        return refuse(e, "threads of a block", threads, d->max_threads_per_block);
    if (threads > f->image.max_threads)
        return refuse(e, "threads of a block (.maxntid)", threads, f->image.max_threads);
    for (int i = 0; i < 3 && f->reqntid[0]; i++)
        if (r->block[i] != f->reqntid[i])
            return refuse(e, "block dimension (.reqntid)", r->block[i], f->reqntid[i]);
    if (r->params_bytes != f->params_bytes)
        return refuse(e, "bytes of parameters", r->params_bytes, f->params_bytes);
    const uint64_t fixed = f->image.static_shared_bytes;
    uint64_t most = d->shared_per_block_bytes > fixed ? d->shared_per_block_bytes - fixed : 0;
    if (r->max_dynamic_shared_bytes > most) most = r->max_dynamic_shared_bytes;
    if (fixed + most > d->shared_per_block_optin_bytes && fixed <= d->shared_per_block_optin_bytes)
        most = d->shared_per_block_optin_bytes - fixed;
    if (fixed > d->shared_per_block_bytes)
        return refuse(e, "bytes of static shared memory", fixed, d->shared_per_block_bytes);
    if (r->dynamic_shared_bytes > most)
        return refuse(e, "bytes of dynamic shared memory", r->dynamic_shared_bytes, most);
    for (int i = 0; i < 3; i++) {
        const uint32_t c = r->cluster[i] ? r->cluster[i] : 1;
        if (r->grid[i] % c || (f->cluster[i] && f->cluster[i] != c))
            return refuse(e, "cluster dimension", c, f->cluster[i] ? f->cluster[i] : r->grid[i]);
    }
    if (exec_occupancy(d, f, (uint32_t)threads, r->dynamic_shared_bytes, r->registers) == 0)
        return error_set(e, STATUS_INVALID, NULL, "a block does not fit on a multiprocessor");
    return STATUS_OK;
}

static uint64_t gcd(uint64_t a, uint64_t b) {
    return b ? gcd(b, a % b) : a;
}

static void choose_order(struct launch *l) {
    l->stride = 1;
    l->shift = 0;
    l->order_rng = l->request->seed;
    if (l->request->seed == 0 || l->grid_blocks < 2) return;
    l->shift = next_random(&l->order_rng) % l->grid_blocks;
    do l->stride = 1 + next_random(&l->order_rng) % l->grid_blocks;
    while (gcd(l->stride, l->grid_blocks) != 1);
}

static uint64_t block_in_order(const struct launch *l, uint64_t i) {
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)i * l->stride + l->shift) % l->grid_blocks);
}

static uint64_t total_progress(const struct launch *l) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->n_workers; i++)
        n += atomic_load_explicit(&l->workers[i].progress, memory_order_relaxed);
    return n;
}

static void push(struct launch *l, struct block *b) {
    b->next = NULL;
    if (l->ready_tail)
        l->ready_tail->next = b;
    else
        l->ready = b;
    l->ready_tail = b;
}

static struct block *pop_runnable(struct launch *l, uint64_t progress) {
    struct block **at = &l->ready, *last = NULL;
    while (*at && (*at)->parked_progress == progress) {
        last = *at;
        at = &(*at)->next;
    }
    struct block *b = *at;
    if (!b) return NULL;
    *at = b->next;
    if (l->ready_tail == b) l->ready_tail = last;
    return b;
}

static void report_stuck(struct launch *l, uint64_t left) {
    struct block *b = l->ready;
    struct warp *w = NULL;
    for (uint32_t i = 0; i < b->n_warps && !w; i++)
        if (b->warps[i].stop == STOP_SPIN) w = &b->warps[i];
    if (!w) w = &b->warps[0];
    const struct op *at = w->resume ? w->resume : w->image->ops;
    if (at[1].index) at++; /* behind the join, which has no line of its own */
    if (left)
        report(w, at, FINDING_CO_RESIDENCY, 0, 0,
               "all %llu blocks that fit (%llu of the grid) wait for memory to change, and %llu "
               "blocks "
               "can not start before one of them ends",
               (unsigned long long)l->resident, (unsigned long long)l->grid_blocks,
               (unsigned long long)left);
    else
        report(w, at, FINDING_DEADLOCK, 0, 0,
               "all %llu blocks that are left wait for memory to change, and nobody will change it",
               (unsigned long long)l->resident);
    atomic_store(&l->abort, true);
}

/* What to run next: a block that can go on, or a new one. NULL: all is done (or given up). */
static struct block *next_block(struct worker *k) {
    struct launch *l = k->launch;
    struct block *b = NULL;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        if (atomic_load(&l->abort) || l->ended == l->grid_blocks) break;
        const uint64_t progress = total_progress(l);
        const bool may_start = l->started < l->grid_blocks && l->resident < l->resident_limit;
        const bool fresh = may_start && l->request->seed && l->resident < SEEDED_RESIDENT &&
                           next_random(&l->order_rng) % 2 == 0;
        if (!fresh) b = pop_runnable(l, progress);
        if (b) break;
        if (may_start) {
            const uint64_t number = block_in_order(l, l->started++);
            l->resident++;
            if (l->resident > l->resident_peak) l->resident_peak = l->resident;
            b = k->spare ? k->spare : block_create(l);
            k->spare = NULL;
            if (!b || !block_start(k, b, number)) {
                l->no_memory = true;
                atomic_store(&l->abort, true);
                block_destroy(b);
                b = NULL;
            }
            break;
        }
        if (l->busy == 0 && l->ready && total_progress(l) == progress) {
            report_stuck(l, l->grid_blocks - l->started);
            break;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    if (b)
        l->busy++;
    else
        pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return b;
}

static void count_ended(struct launch *l, const struct block *b) {
    for (uint32_t i = 0; i < b->n_warps; i++) {
        const uint32_t left = b->n_threads - i * LANES;
        const uint32_t lanes = left >= LANES ? ~0u : (1u << left) - 1;
        l->not_waited += (uint32_t)__builtin_popcount(lanes & ~b->warps[i].waited);
        l->early += (uint32_t)__builtin_popcount(b->warps[i].launched_early);
    }
}

static void *work(void *arg) {
    struct worker *k = arg;
    struct launch *l = k->launch;
    for (struct block *b; (b = next_block(k)) != NULL;) {
        b->parked_progress = UINT64_MAX;
        const enum block_state s = block_run(k, b);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        if (s == BLOCK_DONE && !atomic_load(&l->abort)) {
            races_block_end(b);
            count_ended(l, b);
            l->resident--;
            l->ended++;
            if (k->spare)
                block_destroy(b);
            else
                k->spare = b;
        } else {
            push(l, b);
        }
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

static bool start_worker(struct launch *l, struct worker *k, uint32_t n_ranges) {
    k->launch = l;
    k->n_ranges = n_ranges;
    k->cache = calloc(l->image->n_ops, sizeof *k->cache);
    k->join_count = calloc(l->image->n_joins, sizeof *k->join_count);
    k->join_lanes = calloc(l->image->n_joins, sizeof *k->join_lanes);
    k->loaded = calloc(n_ranges + 1u, sizeof *k->loaded);
    k->stored = calloc(n_ranges + 1u, sizeof *k->stored);
    return k->cache && k->join_count && k->join_lanes && k->loaded && k->stored;
}

static void free_worker(struct worker *k) {
    block_destroy(k->spare);
    free(k->cache);
    free(k->join_count);
    free(k->join_lanes);
    free(k->loaded);
    free(k->stored);
}

struct byte_sum {
    struct launch *l;
    struct exec_counters *c;
    uint32_t cap;
    bool count_only;
};

static void count_range(void *arg, const struct memory_range *r) {
    struct byte_sum *s = arg;
    if (s->count_only) {
        if (r->index != UINT32_MAX && r->index >= s->cap) s->cap = r->index + 1;
        return;
    }
    uint64_t loaded = 0, stored = 0;
    for (uint32_t i = 0; i < s->l->n_workers && r->index < s->l->workers[i].n_ranges; i++) {
        loaded += s->l->workers[i].loaded[r->index];
        stored += s->l->workers[i].stored[r->index];
    }
    if (loaded + stored == 0 || !s->c->bytes) return;
    struct exec_bytes *b = &s->c->bytes[s->c->n_bytes++];
    b->base = r->base;
    memcpy(b->label, r->label, sizeof b->label);
    b->loaded_bytes = loaded;
    b->stored_bytes = stored;
    struct memory_range *mine = (struct memory_range *)(uintptr_t)r;
    mine->loaded_bytes += loaded;
    mine->stored_bytes += stored;
}

static void add_counters(struct launch *l, struct exec_counters *c) {
    for (uint32_t i = 0; i < l->n_workers; i++) {
        const struct worker *k = &l->workers[i];
        const struct exec_counters *x = &k->counters;
        for (uint32_t j = 0; j < l->image->n_joins; j++)
            for (uint32_t n = 0; n < EXEC_CLASS_COUNT; n++) {
                const uint64_t ops = l->image->join_classes[j * EXEC_CLASS_COUNT + n];
                c->warp_instructions[n] += ops * k->join_count[j];
                c->lane_instructions[n] += ops * k->join_lanes[j];
            }
        c->barriers += x->barriers;
        c->divergent_branches += x->divergent_branches;
        c->global_load_requests += x->global_load_requests;
        c->global_store_requests += x->global_store_requests;
        c->global_load_sectors += x->global_load_sectors;
        c->global_store_sectors += x->global_store_sectors;
        c->global_load_needed += x->global_load_needed;
        c->global_store_needed += x->global_store_needed;
        c->shared_requests += x->shared_requests;
        c->shared_wavefronts += x->shared_wavefronts;
        c->shared_ideal += x->shared_ideal;
        for (int d = 0; d < 33; d++) c->shared_degree[d] += x->shared_degree[d];
    }
    c->blocks = l->ended;
    c->warps = l->ended * l->block_warps;
    c->live_registers = l->image->live_registers;
    c->resident_limit = l->resident_limit > UINT32_MAX ? UINT32_MAX : (uint32_t)l->resident_limit;
    c->resident_peak = (uint32_t)l->resident_peak;
}

static bool run_workers(struct launch *l, uint32_t n_threads, uint32_t n_ranges) {
    l->workers = calloc(n_threads, sizeof *l->workers);
    if (!l->workers) return false;
    l->n_workers = n_threads;
    bool good = true;
    for (uint32_t i = 0; i < n_threads; i++) good &= start_worker(l, &l->workers[i], n_ranges);
    if (!good) return false;
    uint32_t running = 1;
    while (running < n_threads &&
           pthread_create(&l->workers[running].thread, NULL, work, &l->workers[running]) == 0)
        running++;
    (void)work(&l->workers[0]);
    for (uint32_t i = 1; i < running; i++) pthread_join(l->workers[i].thread, NULL);
    return !l->no_memory;
}

/* The shared variables with the dynamic part's size of this launch. */
static bool lay_out(struct launch *l) {
    const struct image *m = l->image;
    l->shared = calloc(m->n_shared + 1u, sizeof *l->shared);
    l->params = calloc(1, l->request->params_bytes + 64u);
    if (!l->shared || !l->params) return false;
    if (l->request->params_bytes) memcpy(l->params, l->request->params, l->request->params_bytes);
    l->n_shared = m->n_shared;
    if (m->n_shared) memcpy(l->shared, m->shared, m->n_shared * sizeof *l->shared);
    for (uint32_t i = 0; i < l->n_shared; i++)
        if (l->shared[i].dynamic) l->shared[i].size_bytes = l->request->dynamic_shared_bytes;
    l->shared_bytes = m->shared_end + l->request->dynamic_shared_bytes + 128;
    return true;
}

enum status exec_launch(const struct exec_device *device, struct memory *memory,
                        const struct exec_launch *launch, struct finding_list *findings,
                        struct exec_result *result, struct error *e) {
    memset(result, 0, sizeof *result);
    enum status s = check_request(device, launch, e);
    if (s != STATUS_OK) return s;
    const uint64_t start = now_ns();
    struct launch l = {.request = launch,
                       .device = device,
                       .memory = memory,
                       .image = &launch->function->image,
                       .findings = findings,
                       .track = launch->check == EXEC_CHECK_FULL,
                       .count_memory = launch->count_memory,
                       .turn = TURN};
    l.block_threads = launch->block[0] * launch->block[1] * launch->block[2];
    l.block_warps = (l.block_threads + LANES - 1) / LANES;
    l.grid_blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    result->counters.occupancy = exec_occupancy(device, launch->function, l.block_threads,
                                                launch->dynamic_shared_bytes, launch->registers);
    l.resident_limit = (uint64_t)device->sm_count * result->counters.occupancy;
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    choose_order(&l);
    struct byte_sum sum = {.l = &l, .c = &result->counters, .count_only = true};
    memory_each(memory, count_range, &sum);
    bool good = lay_out(&l);
    if (good && l.track) good = (l.races = races_create(&l)) != NULL;
    uint32_t threads = l.track || launch->threads == 0 ? 1 : launch->threads;
    if (threads > l.grid_blocks) threads = (uint32_t)l.grid_blocks;
    if (good) good = run_workers(&l, threads, sum.cap);
    if (good) {
        result->counters.bytes = calloc(sum.cap + 1u, sizeof *result->counters.bytes);
        sum.count_only = false;
        memory_each(memory, count_range, &sum);
        add_counters(&l, &result->counters);
        result->waited = l.not_waited == 0;
        result->waited_first = result->waited && l.early == 0;
    }
    while (l.ready) {
        struct block *next = l.ready->next;
        block_destroy(l.ready);
        l.ready = next;
    }
    if (l.races) races_finish(&l, &result->interval);
    for (uint32_t i = 0; i < l.n_workers; i++) free_worker(&l.workers[i]);
    free(l.workers);
    free(l.shared);
    free(l.params);
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.changed);
    result->elapsed_ns = now_ns() - start;
    if (!good) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to run %s", l.image->name);
    if (atomic_load(&l.abort))
        return error_set(e, STATUS_DEVICE, NULL, "%s was stopped by a finding", l.image->name);
    return STATUS_OK;
}

void exec_result_free(struct exec_result *r) {
    free(r->counters.bytes);
    r->counters.bytes = NULL;
    r->counters.n_bytes = 0;
}

const char *exec_class_name(enum exec_class c) {
#define X(code, name) name,
    static const char *const names[] = {EXEC_CLASS_LIST(X)};
#undef X
    return c < EXEC_CLASS_COUNT ? names[c] : "?";
}

static void print_count(FILE *out, const char *name, uint64_t v) {
    fprintf(out, "%s %llu\n", name, (unsigned long long)v);
}

void exec_counters_print(const struct exec_counters *c, FILE *out) {
    for (uint32_t i = 0; i < EXEC_CLASS_COUNT; i++)
        if (c->warp_instructions[i])
            fprintf(out, "instructions.%s warp %llu lane %llu\n",
                    exec_class_name((enum exec_class)i),
                    (unsigned long long)c->warp_instructions[i],
                    (unsigned long long)c->lane_instructions[i]);
    print_count(out, "blocks", c->blocks);
    print_count(out, "warps", c->warps);
    print_count(out, "barriers", c->barriers);
    print_count(out, "divergent_branches", c->divergent_branches);
    print_count(out, "global_load_requests", c->global_load_requests);
    print_count(out, "global_load_sectors", c->global_load_sectors);
    print_count(out, "global_load_needed", c->global_load_needed);
    print_count(out, "global_store_requests", c->global_store_requests);
    print_count(out, "global_store_sectors", c->global_store_sectors);
    print_count(out, "global_store_needed", c->global_store_needed);
    print_count(out, "shared_requests", c->shared_requests);
    print_count(out, "shared_wavefronts", c->shared_wavefronts);
    print_count(out, "shared_ideal", c->shared_ideal);
    for (uint32_t d = 1; d <= 32; d++)
        if (c->shared_degree[d])
            fprintf(out, "shared_degree.%u %llu\n", d, (unsigned long long)c->shared_degree[d]);
    print_count(out, "live_registers", c->live_registers);
    print_count(out, "occupancy", c->occupancy);
    for (uint32_t i = 0; i < c->n_bytes; i++)
        fprintf(out, "bytes %#llx %s loaded %llu stored %llu\n",
                (unsigned long long)c->bytes[i].base, c->bytes[i].label,
                (unsigned long long)c->bytes[i].loaded_bytes,
                (unsigned long long)c->bytes[i].stored_bytes);
}
