/* backend_bits.h: the promise of core/step.h, checked: a sequence's outputs are the same bits
 * however its tokens were cut into spans, whatever else is in the step, with any number of workers,
 * on any instruction set, with pages shared, copied or rewritten. Used with random tiny plans and,
 * in tests/cmd, with a real model.
 */
#ifndef LAC_TESTS_BACKEND_BITS_H
#define LAC_TESTS_BACKEND_BITS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/page_pool.h"
#include "core/cpu/cpu_backend.h"
#include "core/worker_pool.h"

enum { BITS_MAX_SEQS = 40 };

struct bits_rig {
    const struct plan *plan;
    struct page_pool *pages;
    struct worker_pool *workers;
    struct backend *backend;
    struct step *step;
    void *mem, *step_mem;
    struct step_limits limits;
    uint32_t n_ctx;
    const struct gate_policy *gate;                  /* of every span; NULL: full attention */
    uint32_t *table[BITS_MAX_SEQS][PLAN_MAX_GROUPS]; /* pages of each sequence, taken when needed */
};

static inline void bits_open_gated(struct bits_rig *r, const struct plan *plan, uint32_t n_ctx,
                                   enum cpu_isa isa, uint32_t threads, enum activation_format act,
                                   enum kv_format kv, const struct gate_policy *gate) {
    memset(r, 0, sizeof *r);
    r->gate = gate;
    r->plan = plan;
    r->n_ctx = n_ctx;
    const uint32_t full = (n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    r->limits = (struct step_limits){.max_spans = BITS_MAX_SEQS,
                                     .max_rows = n_ctx + 8 * BITS_MAX_SEQS,
                                     .max_outputs = n_ctx + 8 * BITS_MAX_SEQS,
                                     .max_pages = BITS_MAX_SEQS * full * plan->n_groups,
                                     .max_copies = 64,
                                     .max_taps = 8,
                                     .max_gates = 1,
                                     .max_exits = 1,
                                     .max_looks = 8,
                                     .max_slot_copies = 1,
                                     .max_guesses = BITS_MAX_SEQS * STEP_GUESSES,
                                     .max_profiles = 2};
    struct page_pool_config pool = {.n_groups = plan->n_groups};
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        pool.page_bytes[g] = kv_page_bytes(&plan->groups[g], kv);
        pool.n_pages[g] = 3 * full + BITS_MAX_SEQS * 4;
    }
    struct error e = {0};
    assert_int_equal(page_pool_open(&pool, &r->pages, &e), STATUS_OK);
    const struct worker_pool_config workers = {.n_workers = threads};
    assert_int_equal(worker_pool_start(&workers, &r->workers, &e), STATUS_OK);
    const struct backend_config cfg = {.plan = plan,
                                       .pages = r->pages,
                                       .workers = r->workers,
                                       .limits = r->limits,
                                       .n_slots = BITS_MAX_SEQS,
                                       .n_ctx = n_ctx,
                                       .isa = isa,
                                       .activations = act,
                                       .kv = kv,
                                       .gates = gate != NULL,
                                       .event_fd = -1};
    const size_t bytes = cpu_backend_footprint(&cfg);
    r->mem = aligned_alloc(64, bytes);
    assert_non_null(r->mem);
    /* What init does not write must not matter. */
    memset(r->mem, 0xa5, bytes);
    if (cpu_backend_init(r->mem, &cfg, &r->backend, &e) != STATUS_OK) fail_msg("%s", e.message);
    r->step_mem = aligned_alloc(64, (step_footprint(&r->limits) + 63) & ~(size_t)63);
    r->step = step_init(r->step_mem, &r->limits);
    for (int s = 0; s < BITS_MAX_SEQS; s++) {
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            r->table[s][g] = malloc(full * sizeof(uint32_t));
            for (uint32_t p = 0; p < full; p++) r->table[s][g][p] = PAGE_NONE;
        }
    }
}

static inline void bits_open(struct bits_rig *r, const struct plan *plan, uint32_t n_ctx,
                             enum cpu_isa isa, uint32_t threads, enum activation_format act,
                             enum kv_format kv) {
    bits_open_gated(r, plan, n_ctx, isa, threads, act, kv, NULL);
}

static inline void bits_close(struct bits_rig *r) {
    r->backend->ops->destroy(r->backend);
    worker_pool_stop(r->workers);
    page_pool_close(r->pages);
    for (int s = 0; s < BITS_MAX_SEQS; s++)
        for (int g = 0; g < PLAN_MAX_GROUPS; g++) free(r->table[s][g]);
    free(r->mem);
    free(r->step_mem);
}

static inline uint32_t bits_take(struct bits_rig *r, uint32_t group) {
    const uint32_t page = page_pool_take(r->pages, group);
    assert_true(page != PAGE_NONE);
    /* NaNs in F16 and F32: what was not written must not be read. */
    memset(page_pool_data(r->pages, group, page), 0xff,
           kv_page_bytes(&r->plan->groups[group], KV_Q8));
    return page;
}

static inline struct span *bits_span(struct bits_rig *r, uint32_t seq, uint32_t first,
                                     const uint32_t *ids, uint32_t n) {
    struct span *s = step_add_span(r->step, n > 1 ? SPAN_PREFILL : SPAN_DECODE, seq, first, ids, n);
    s->n_pages = (first + n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    if (r->gate != NULL) s->gate = 0;
    for (uint32_t g = 0; g < r->plan->n_groups; g++) {
        s->block_table[g] = r->step->n_pages;
        for (uint32_t p = 0; p < s->n_pages; p++) {
            uint32_t *page = &r->table[seq][g][p];
            if (*page == PAGE_NONE) *page = bits_take(r, g);
            r->step->pages[r->step->n_pages++] = *page;
        }
    }
    return s;
}

static inline void bits_run(struct bits_rig *r) {
    assert_int_equal(backend_submit(r->backend, r->step), STATUS_OK);
    assert_ptr_equal(backend_poll(r->backend), r->step);
    assert_int_equal(r->step->status, STATUS_OK);
}

/* How one run of the sequence is cut and accompanied. */
struct bits_scenario {
    const char *name;
    uint32_t chunk;     /* tokens per span */
    uint32_t others;    /* sequences decoding beside it, before and after it in the step */
    bool only_last;     /* outputs of the last row of each span only: the others skip work */
    bool rewrite;       /* wrong tokens are run and overwritten between spans */
    uint32_t fork_at;   /* continue on a copy of the pages from here; 0: never */
    bool other_profile; /* the others skip layer 0 */
};

static inline void bits_begin(struct bits_rig *r) {
    step_clear(r->step, r->plan->n_layers);
    r->step->profiles[1] = r->step->profiles[0];
    r->step->profiles[1].layers[0] &= ~UINT64_C(1);
    r->step->n_profiles = 2;
    if (r->gate == NULL) return;
    r->step->gates[0] = *r->gate;
    r->step->n_gates = 1;
}

static inline void bits_others(struct bits_rig *r, const struct bits_scenario *sc, uint32_t from,
                               uint32_t to, uint32_t turn) {
    for (uint32_t o = from; o < to; o++) {
        const uint32_t id = (o * 31 + turn * 7 + 3) % r->plan->n_vocab;
        struct span *s = bits_span(r, 2 + o, turn % 60, &id, 1);
        s->profile = sc->other_profile ? 1 : 0;
        step_add_output(r->step, s->first_row);
    }
}

/* Runs ids [0, n) and writes the output of position p to out[p], and a 1 to seen[p]. */
static inline void bits_sequence(struct bits_rig *r, const struct bits_scenario *sc,
                                 const uint32_t *ids, uint32_t n, struct output *out,
                                 uint8_t *seen) {
    memset(seen, 0, n);
    uint32_t seq = 0;
    for (uint32_t at = 0, turn = 0; at < n; turn++) {
        uint32_t rows = n - at < sc->chunk ? n - at : sc->chunk;
        if (r->gate != NULL && rows > STEP_GATE_ROWS &&
            at + rows > r->gate->first_position + STEP_GATE_ROWS)
            rows = at < r->gate->first_position ? r->gate->first_position + STEP_GATE_ROWS - at
                                                : STEP_GATE_ROWS;
        if (sc->fork_at > at && at + rows > sc->fork_at) rows = sc->fork_at - at;
        bits_begin(r);
        if (sc->fork_at != 0 && at == sc->fork_at && seq == 0) {
            /* Whole pages are shared, the partly filled one is copied in the same step. */
            for (uint32_t g = 0; g < r->plan->n_groups; g++) {
                for (uint32_t p = 0; p < at / KV_PAGE_TOKENS; p++)
                    r->table[1][g][p] = r->table[0][g][p];
                if (at % KV_PAGE_TOKENS == 0) continue;
                const uint32_t p = at / KV_PAGE_TOKENS;
                r->table[1][g][p] = bits_take(r, g);
                r->step->copies[r->step->n_copies++] =
                    (struct page_copy){g, r->table[0][g][p], r->table[1][g][p]};
            }
            if (r->gate != NULL)
                r->step->slot_copies[r->step->n_slot_copies++] = (struct slot_copy){0, 1};
            seq = 1;
        }
        bits_others(r, sc, 0, sc->others / 2, turn);
        struct span *s = bits_span(r, seq, at, ids + at, rows);
        const uint32_t first_row = s->first_row;
        const uint32_t first_output = r->step->n_outputs;
        for (uint32_t i = 0; i < rows; i++) {
            if (sc->only_last && i + 1 < rows) continue;
            struct output *o = step_add_output(r->step, first_row + i);
            o->sample.seed = 99;
            o->sample.temperature = 0.8f;
            o->sample.top_p = 0.9f;
            seen[at + i] = 1;
        }
        const uint32_t last_output = r->step->n_outputs;
        bits_others(r, sc, sc->others / 2, sc->others, turn);
        bits_run(r);
        for (uint32_t o = first_output; o < last_output; o++)
            out[at + r->step->outputs[o].row - first_row] = r->step->outputs[o];
        at += rows;
        if (seq == 1 && turn % 3 == 0 && at + 4 < r->n_ctx) {
            /* The parent goes its own way on the page that was copied. */
            const uint32_t wrong = turn % r->plan->n_vocab;
            bits_begin(r);
            bits_span(r, 0, sc->fork_at, &wrong, 1);
            bits_run(r);
        }
        if (sc->rewrite && at + 5 < r->n_ctx) {
            uint32_t wrong[5];
            for (uint32_t i = 0; i < 5; i++) wrong[i] = (at * 13 + i) % r->plan->n_vocab;
            bits_begin(r);
            bits_span(r, seq, at, wrong, 5);
            step_add_output(r->step, 4);
            bits_run(r);
        }
    }
}

static inline bool bits_equal(const struct output *a, const struct output *b) {
    return a->token == b->token && memcmp(&a->logprob, &b->logprob, 4) == 0 &&
           memcmp(&a->lse, &b->lse, 4) == 0 && memcmp(&a->entropy, &b->entropy, 4) == 0 &&
           a->bad == b->bad && a->layer == b->layer && memcmp(a->top, b->top, sizeof a->top) == 0;
}

static inline void bits_compare(struct bits_rig *r, const struct bits_scenario *sc,
                                const char *where, const uint32_t *ids, uint32_t n,
                                const struct output *want) {
    struct output *got = calloc(n, sizeof *got);
    uint8_t *seen = calloc(n, 1);
    bits_sequence(r, sc, ids, n, got, seen);
    assert_int_equal(seen[n - 1], 1);
    for (uint32_t p = 0; p < n; p++)
        if (seen[p] && !bits_equal(&got[p], &want[p]))
            fail_msg("%s, %s: position %u differs: token %u/%u, lse %.9g/%.9g", where, sc->name, p,
                     got[p].token, want[p].token, (double)got[p].lse, (double)want[p].lse);
    free(got);
    free(seen);
}

/* All scenarios on all instruction sets and 1 to 3 workers, against the scalar set, one worker and
 * the whole sequence in one span. `every`: only each n-th combination, turning through all
 * scenarios, sets and worker counts; for what is slow. */
static inline void bits_everything(const struct plan *plan, const uint32_t *ids, uint32_t n,
                                   enum activation_format act, enum kv_format kv,
                                   const struct gate_policy *gate, uint32_t every) {
    static const struct bits_scenario scenarios[] = {
        {.name = "whole", .chunk = 100000},
        {.name = "token by token", .chunk = 1},
        {.name = "chunks of 3", .chunk = 3, .only_last = true},
        {.name = "chunks of 16", .chunk = 16},
        {.name = "chunks of 17, last rows", .chunk = 17, .only_last = true},
        {.name = "chunks of 100, rewritten", .chunk = 100, .rewrite = true},
        {.name = "with 1 other", .chunk = 1, .others = 1},
        {.name = "with 7 others", .chunk = 5, .others = 7, .only_last = true},
        {.name = "with 31 others", .chunk = 16, .others = 31},
        {.name = "with 7 others of another profile",
         .chunk = 9,
         .others = 7,
         .other_profile = true},
        {.name = "forked at 37", .chunk = 11, .fork_at = 37},
        {.name = "forked at 32, with others", .chunk = 1, .fork_at = 32, .others = 3},
        {.name = "whole, last row", .chunk = 100000, .only_last = true},
    };
    struct cpu_features f;
    cpu_features_detect(&f);
    struct output *want = calloc(n, sizeof *want);
    uint8_t *seen = calloc(n, 1);
    struct bits_rig r;
    bits_open_gated(&r, plan, n + 8, CPU_ISA_SCALAR, 1, act, kv, gate);
    bits_sequence(&r, &scenarios[0], ids, n, want, seen);
    bits_close(&r);
    for (uint32_t p = 0; p < n; p++) assert_false(want[p].bad);
    for (unsigned isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_supported(&f, (enum cpu_isa)isa)) continue;
        for (uint32_t threads = 1; threads <= 3; threads++) {
            char where[64];
            snprintf(where, sizeof where, "%s, %u workers", cpu_isa_name((enum cpu_isa)isa),
                     threads);
            for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
                /* Scalar is slow, and every cut has been tried on it with one worker. */
                if (isa == CPU_ISA_SCALAR && (threads != 1 || every > 1) && i != 0) continue;
                if ((i * 5 + isa * 3 + threads) % every != 0) continue;
                bits_open_gated(&r, plan, n + 8, (enum cpu_isa)isa, threads, act, kv, gate);
                bits_compare(&r, &scenarios[i], where, ids, n, want);
                bits_close(&r);
            }
        }
    }
    free(want);
    free(seen);
}

#endif
