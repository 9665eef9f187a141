/* fake.h: a model of nothing for the scheduler's tests: a byte-level tokenizer, a clock, and a
 * backend whose KV pages hold the tokens themselves. Each output is computed from what the pages
 * hold, walked through the block table, so a wrong page, copy, share or rollback shows as a wrong
 * token; what the step promises (core/step.h) is checked on the way. */
#ifndef LAC_TESTS_SCHED_FAKE_H
#define LAC_TESTS_SCHED_FAKE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "alloc/page_pool.h"
#include "core/backend.h"
#include "core/check.h"
#include "core/flight.h"
#include "core/metric.h"
#include "core/sample.h"
#include "core/worker_pool.h"
#include "models/detokenizer.h"
#include "models/label_heads.h"
#include "models/tokenizer.h"
#include "sched/sched.h"

enum {
    FAKE_BOS = 268,
    FAKE_EOS = 269,
    FAKE_CONTROL = 270,
    FAKE_TOKENS = 271,
    FAKE_VOCAB = 280, /* the model has more rows than the tokenizer has tokens */
    FAKE_GROUPS = 2,
    FAKE_D = 4,
    FAKE_EPOCH = 5,
};

/* ---- random numbers ---- */

static inline uint64_t mix64(uint64_t x) {
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static inline uint64_t rnd(uint64_t *state) {
    return mix64((*state)++);
}
static inline uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)(rnd(state) % n);
}

/* ---- tokenizer: bytes, a few longer tokens, three control tokens ---- */

static inline size_t put_utf8(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

/* The printable stand-in that byte-level BPE files write for a byte. */
static inline uint32_t byte_char(uint32_t byte) {
    uint32_t hidden = 0;
    for (uint32_t b = 0; b <= byte; b++) {
        const bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return shown ? b : 256 + hidden;
        hidden += !shown;
    }
    return 0;
}

static inline struct tokenizer *fake_tokenizer(void) {
    static const char *const longer[12] = {"ab",   "ba",   "abc", "ca", "\xC3\xA9",     "d\xC3",
                                           "stop", "\n\n", "e ",  "ef", "\xF0\x9F\x98", "bcd"};
    static char text[FAKE_TOKENS][16];
    struct gguf_string tokens[FAKE_TOKENS];
    uint8_t types[FAKE_TOKENS];
    for (uint32_t id = 0; id < FAKE_TOKENS; id++) {
        size_t n = 0;
        types[id] = TOKEN_NORMAL;
        if (id < 256) {
            n = put_utf8(text[id], byte_char(id));
        } else if (id < FAKE_BOS) {
            for (const char *p = longer[id - 256]; *p != 0; p++)
                n += put_utf8(text[id] + n, byte_char((uint8_t)*p));
        } else {
            static const char *const control[] = {"<bos>", "<eos>", "<control>"};
            n = strlen(control[id - FAKE_BOS]);
            memcpy(text[id], control[id - FAKE_BOS], n);
            types[id] = TOKEN_CONTROL;
        }
        tokens[id] = (struct gguf_string){text[id], n};
    }
    const struct gguf_string merges[] = {{"a b", 3}, {"b a", 3}, {"ab c", 4}, {"c a", 3}};
    struct tokenizer_spec spec = tokenizer_spec_default(TOKENIZER_BPE);
    spec.pre = (struct gguf_string){"gpt-2", 5};
    spec.n_tokens = FAKE_TOKENS;
    spec.tokens = tokens;
    spec.types = types;
    spec.n_merges = sizeof merges / sizeof *merges;
    spec.merges = merges;
    spec.bos = FAKE_BOS;
    spec.eos = FAKE_EOS;
    spec.add_bos = 1;
    struct tokenizer *t;
    struct error e = {0};
    if (tokenizer_build(&spec, &t, &e) != STATUS_OK) {
        fprintf(stderr, "tokenizer: %s: %s\n", e.field, e.message);
        abort();
    }
    return t;
}

/* ---- the model's arithmetic ---- */

static inline uint64_t fake_hash(uint64_t h, uint32_t token) {
    return mix64(h ^ token * 0x10001u);
}

/* The state of that row. */
static inline void fake_state(uint64_t h, float *x) {
    for (uint32_t i = 0; i < FAKE_D; i++) x[i] = (float)(mix64(h + i) % 2001) / 1000 - 1;
}

/* What the monitor's tap sees of the row. */
static inline uint64_t fake_monitored(uint64_t h) {
    return h ^ 0x5A5A;
}

/* Logits of the row whose tokens so far hash to h. Few ids are likely, so that stop strings, ends
 * and penalties matter. One row in `bad_every` is not a number. */
static inline void fake_logits(uint64_t h, float *z, uint32_t bad_every) {
    static const uint32_t likely[] = {'a', 'b', 'c', 'd', 256, 257, 258,  259,  260,          261,
                                      262, 263, 264, 265, 266, 267, 0xC3, 0xA9, FAKE_CONTROL, 275};
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        z[i] = (float)(mix64(h ^ (uint64_t)i << 32) % 4096) / 4096 * 2 - 1;
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++) z[likely[i]] += 5;
    z[FAKE_EOS] += h % 16 == 0 ? 7 : 3;
    if (bad_every > 0 && mix64(h) % bad_every == 0) z[h % FAKE_VOCAB] = NAN;
}

/* ---- backend ---- */

struct fake_kv {
    uint32_t token, position;
};

struct fake_backend {
    struct backend base;
    struct page_pool *pages;
    uint64_t *clock_ns;
    uint32_t polls_late; /* a step is done after so many polls; 0: inside submit */
    uint32_t polls_left;
    uint32_t bad_every, n_layers;
    uint64_t step_ns; /* besides its rows */
    bool fail_submit, fail_step;
    struct step *pending;
    const struct heads *heads; /* of FAKE_EPOCH */
    uint64_t n_looks, n_audited;
    uint32_t differ_per_mille; /* of early answers, with the last head's */
    void *scratch;
    uint64_t n_steps, n_rows, n_copies, n_mixed, n_guesses;
    uint32_t most_rows;        /* of a step with decodes */
    uint32_t seen[FAKE_VOCAB]; /* rows by token */
};

static inline struct fake_kv *fake_page(struct fake_backend *b, uint32_t group, uint32_t page) {
    return page_pool_data(b->pages, group, page);
}

static inline void fake_copies(struct fake_backend *b, struct step *s) {
    for (uint32_t i = 0; i < s->n_copies; i++) {
        const struct page_copy *c = &s->copies[i];
        CHECK(c->from != c->to && c->group < FAKE_GROUPS);
        CHECK(page_pool_meta(b->pages, c->group, c->to)->references == 1);
        CHECK(page_pool_meta(b->pages, c->group, c->from)->references >= 1);
        for (uint32_t k = 0; k < s->n_copies; k++)
            CHECK(k == i || s->copies[k].group != c->group || s->copies[k].to != c->to);
        memcpy(fake_page(b, c->group, c->to), fake_page(b, c->group, c->from),
               KV_PAGE_TOKENS * sizeof(struct fake_kv));
    }
    b->n_copies += s->n_copies;
}

static inline uint32_t table_page(const struct step *s, const struct span *p, uint32_t group,
                                  uint32_t i) {
    CHECK(i < p->n_pages && p->block_table[group] + i < s->n_pages);
    return s->pages[p->block_table[group] + i];
}

/* Whether another span's rows write this page. */
static inline bool written_by_other(const struct step *s, const struct span *me, uint32_t group,
                                    uint32_t page) {
    for (uint32_t k = 0; k < s->n_spans; k++) {
        const struct span *p = &s->spans[k];
        if (p == me) continue;
        const uint32_t last = (p->first_position + p->n_tokens - 1) / KV_PAGE_TOKENS;
        for (uint32_t i = p->first_position / KV_PAGE_TOKENS; i <= last; i++)
            if (table_page(s, p, group, i) == page) return true;
    }
    return false;
}

/* What a policy does to the row at `position`, from 1 to 255; 0: nothing. It becomes part of the
 * KV, so a page that was computed under a policy shows when somebody else reads it. */
static inline uint32_t fake_gate_tag(const struct gate_policy *g, uint32_t position) {
    if (g == NULL || position < g->first_position) return 0;
    return 1 + (g->budget_pages * 7 + g->budget_share + g->budget_least) % 255;
}

static inline uint32_t fake_row_tag(const struct step *s, const struct span *p, uint32_t position) {
    if (p->gate == STEP_NONE) return 0;
    CHECK(p->gate < s->n_gates && p->n_tokens <= STEP_GATE_ROWS && p->kind != SPAN_PREFILL);
    const struct gate_policy *g = &s->gates[p->gate];
    CHECK(g->sink_pages >= 1 && g->recent_pages >= 1);
    CHECK(g->first_anchor + g->n_anchors <= s->n_gate_pages);
    return fake_gate_tag(g, position);
}

static inline void fake_write(struct fake_backend *b, const struct step *s, const struct span *p) {
    for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
        for (uint32_t i = 0; i < p->n_tokens; i++) {
            const uint32_t position = p->first_position + i;
            const uint32_t page = table_page(s, p, g, position / KV_PAGE_TOKENS);
            CHECK(page_pool_meta(b->pages, g, page)->references == 1);
            CHECK(!page_pool_meta(b->pages, g, page)->sealed);
            if (i == 0 || position % KV_PAGE_TOKENS == 0) CHECK(!written_by_other(s, p, g, page));
            fake_page(b, g, page)[position % KV_PAGE_TOKENS] = (struct fake_kv){
                .token = (s->ids[p->first_row + i] ^ g << 24) | fake_row_tag(s, p, position) << 12,
                .position = position};
        }
    }
}

/* What the pages hold up to the row. */
static inline uint64_t fake_row_hash(struct fake_backend *b, const struct step *s,
                                     const struct span *p, uint32_t row) {
    const uint32_t position = p->first_position + (row - p->first_row);
    uint64_t h = 0;
    for (uint32_t at = 0; at <= position; at++) {
        uint32_t token = 0;
        for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
            const struct fake_kv kv =
                fake_page(b, g, table_page(s, p, g, at / KV_PAGE_TOKENS))[at % KV_PAGE_TOKENS];
            CHECK(kv.position == at);
            CHECK(g == 0 || (kv.token ^ g << 24) == token);
            token = kv.token ^ g << 24;
        }
        h = fake_hash(h, token);
    }
    return h;
}

static inline void fake_output(struct fake_backend *b, const struct step *s, const struct span *p,
                               struct output *o) {
    float z[FAKE_VOCAB];
    const uint32_t position = p->first_position + (o->row - p->first_row);
    fake_logits(fake_row_hash(b, s, p, o->row), z, b->bad_every);
    for (uint32_t i = 1; i < o->sample.n_biases; i++)
        CHECK(o->sample.biases[i - 1].id < o->sample.biases[i].id);
    sample_row(NULL, z, FAKE_VOCAB, position + 1, o, b->scratch);
}

/* A block that is right at two positions of three, where nothing but the likeliest is drawn. What
 * it writes on its way stands in the pages until it is written over. */
static inline void fake_guess(struct fake_backend *b, struct step *s, struct span *p) {
    CHECK(p->max_guesses <= STEP_GUESSES && s->n_guesses + p->max_guesses <= s->limits.max_guesses);
    CHECK(p->block < BLOCK_KIND_COUNT && p->least_reach > 0 && p->least_reach < 1);
    uint32_t row = p->first_row, o = 0;
    const struct output *last = NULL;
    for (; o < s->n_outputs && s->outputs[o].row < p->first_row + p->n_tokens; o++) {
        if (s->outputs[o].row < row) continue;
        CHECK(s->outputs[o].row == row);
        last = &s->outputs[o];
        if (last->bad || row + 1 == p->first_row + p->n_tokens || last->token != s->ids[row + 1])
            break;
        row++;
    }
    CHECK(last != NULL);
    if (last->bad) return;
    const uint32_t position = p->first_position + (row - p->first_row);
    uint64_t h = fake_hash(fake_row_hash(b, s, p, row), last->token);
    p->first_guess = s->n_guesses;
    s->n_guesses += p->max_guesses;
    for (uint32_t i = 0; i < p->max_guesses; i++) {
        float z[FAKE_VOCAB];
        struct output next = {.sample = last->sample};
        next.sample.biases = NULL;
        next.sample.n_biases = 0;
        fake_logits(h, z, 0);
        sample_row(NULL, z, FAKE_VOCAB, position + 2 + i, &next, b->scratch);
        const uint32_t id =
            mix64(h ^ 77) % 3 == 0 ? (uint32_t)(mix64(h) % FAKE_TOKENS) : next.token;
        s->guesses[p->first_guess + p->n_guesses++] =
            (struct guess){id, (float)(1 + mix64(h) % 999) / 1000};
        h = fake_hash(h, id);
        for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
            const uint32_t at = position + 1 + i;
            const uint32_t page = table_page(s, p, g, at / KV_PAGE_TOKENS);
            CHECK(page_pool_meta(b->pages, g, page)->references == 1);
            CHECK(!page_pool_meta(b->pages, g, page)->sealed);
            fake_page(b, g, page)[at % KV_PAGE_TOKENS] = (struct fake_kv){0x5A5A5A, UINT32_MAX};
        }
        if (mix64(h ^ 5) % 4 == 0) break;
    }
}

static inline void fake_tap(struct fake_backend *b, const struct step *s, const struct tap *t) {
    /* An embedding's, or the monitor's. */
    CHECK(t->n_rows > 0 && t->normalised == (t->layer != b->n_layers));
    CHECK(t->layer == b->n_layers ? t->mode == TAP_SUM : t->layer == b->n_layers * 3 / 5 - 1);
    uint32_t i = 0;
    while (t->first_row >= s->spans[i].first_row + s->spans[i].n_tokens) i++;
    const struct span *p = &s->spans[i];
    CHECK(t->first_row + t->n_rows <= p->first_row + p->n_tokens);
    for (uint32_t r = t->first_row; r < t->first_row + t->n_rows; r++) {
        const uint32_t page = (p->first_position + r - p->first_row) / KV_PAGE_TOKENS -
                              (p->first_position + t->first_row - p->first_row) / KV_PAGE_TOKENS;
        float x[FAKE_D];
        const uint64_t h = fake_row_hash(b, s, p, r);
        fake_state(t->normalised ? fake_monitored(h) : h, x);
        float *out = t->out + (t->mode == TAP_SUM ? page : r - t->first_row) * FAKE_D;
        for (uint32_t d = 0; d < FAKE_D; d++) out[d] = t->mode == TAP_SUM ? out[d] + x[d] : x[d];
    }
}

/* What label heads say of a text whose tokens hash to h: sure after the head that the hash names.
 */
static inline uint32_t fake_label(uint64_t h, uint32_t n_labels, uint32_t n_heads,
                                  const float *prior, float *p) {
    float sum = 0;
    for (uint32_t i = 0; i < n_labels; i++) {
        p[i] = (float)(mix64(h + i) % 1000 + 1) + (prior != NULL ? prior[i] : 0);
        sum += p[i];
    }
    for (uint32_t i = 0; i < n_labels; i++) p[i] /= sum;
    return (uint32_t)(h % n_heads);
}

/* What the last head would have said: the early answer, but for a share of texts. */
static inline uint32_t fake_last_label(const struct fake_backend *b, uint64_t h, const float *p,
                                       uint32_t n_labels) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_labels; i++)
        if (p[i] > p[best]) best = i;
    return mix64(h + 7) % 1000 < b->differ_per_mille ? (best + 1) % n_labels : best;
}

/* The layers behind the last that ran have no KV of such a span: nobody may read its pages. */
static inline void fake_look(struct fake_backend *b, struct step *s, struct label_look *look) {
    const struct span *p = &s->spans[look->span];
    const struct exit_policy *policy = &s->exits[p->exit];
    const struct label_head *head = &b->heads->labels[policy->head];
    uint32_t n_heads = 0;
    CHECK(s->epoch == FAKE_EPOCH && p->first_position == 0);
    CHECK(look->first_row >= p->first_row &&
          look->first_row + look->n_rows == p->first_row + p->n_tokens);
    for (uint32_t l = 0; l < b->n_layers; l++) {
        if (!(s->profiles[p->profile].decision_points[l / 64] >> l % 64 & 1)) continue;
        CHECK(head[n_heads].layer == l + 1 && policy->threshold[n_heads] > 0);
        n_heads++;
    }
    const uint64_t h = fake_row_hash(b, s, p, p->first_row + p->n_tokens - 1);
    uint32_t at = fake_label(h, head->n_labels, n_heads, look->prior, look->probability);
    if (policy->threshold[0] == INFINITY) at = n_heads - 1;
    look->early = at + 1 < n_heads;
    look->last_label = STEP_NONE;
    if (look->early && look->audit)
        look->last_label = fake_last_label(b, h, look->probability, head->n_labels);
    b->n_audited += look->audit;
    look->layer = (uint16_t)head[at].layer;
    look->bad = b->bad_every > 0 && mix64(h) % b->bad_every == 0;
    for (uint32_t g = 0; g < FAKE_GROUPS; g++)
        for (uint32_t i = 0; i < p->n_tokens; i++)
            fake_page(b, g, table_page(s, p, g, i / KV_PAGE_TOKENS))[i % KV_PAGE_TOKENS].position =
                UINT32_MAX;
}

static inline void fake_compute(struct fake_backend *b, struct step *s) {
    uint32_t row = 0, o = 0;
    bool prefill = false, decode = false;
    CHECK(s->n_spans > 0 && s->n_profiles == 1 + s->n_exits);
    for (uint32_t l = 0; l < b->n_layers; l++) CHECK(s->profiles[0].layers[l / 64] >> l % 64 & 1);
    fake_copies(b, s);
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *p = &s->spans[i];
        CHECK(p->first_row == row && p->n_tokens >= 1 && s->first_layers[row] == 0);
        CHECK(p->profile == (p->exit == STEP_NONE ? 0 : 1 + p->exit));
        CHECK(p->n_pages * KV_PAGE_TOKENS >= p->first_position + p->n_tokens);
        for (uint32_t k = 0; k < i; k++) CHECK(s->spans[k].slot != p->slot);
        row += p->n_tokens;
        prefill |= p->kind == SPAN_PREFILL;
        decode |= p->kind == SPAN_DECODE;
        fake_write(b, s, p);
    }
    CHECK(row == s->n_rows);
    for (uint32_t i = 0; i < s->n_spans; i++) {
        const struct span *p = &s->spans[i];
        for (; o < s->n_outputs && s->outputs[o].row < p->first_row + p->n_tokens; o++)
            fake_output(b, s, p, &s->outputs[o]);
    }
    CHECK(o == s->n_outputs);
    /* States are handed back layer by layer, before blocks go on from the last. */
    for (uint32_t i = 0; i < s->n_taps; i++) fake_tap(b, s, &s->taps[i]);
    s->n_guesses = 0;
    for (uint32_t i = 0; i < s->n_spans; i++) {
        struct span *p = &s->spans[i];
        p->n_guesses = 0;
        if (p->max_guesses > 0) fake_guess(b, s, p);
        b->n_guesses += p->n_guesses;
    }
    for (uint32_t i = 0; i < s->n_looks; i++) fake_look(b, s, &s->looks[i]);
    b->n_looks += s->n_looks;
    b->n_steps++;
    b->n_rows += s->n_rows;
    b->n_mixed += prefill && decode;
    if (decode && s->n_rows > b->most_rows) b->most_rows = s->n_rows;
    for (uint32_t i = 0; i < s->n_rows; i++) b->seen[s->ids[i]]++;
    s->submit_ns = *b->clock_ns;
    *b->clock_ns += b->step_ns + (uint64_t)s->n_rows * 100000;
    s->done_ns = *b->clock_ns;
    if (b->fail_step) s->status = STATUS_DEVICE;
}

static inline enum status fake_submit(struct backend *base, struct step *s) {
    struct fake_backend *b = (struct fake_backend *)base;
    CHECK(b->pending == NULL);
    if (b->fail_submit) return STATUS_DEVICE;
    b->pending = s;
    b->polls_left = b->polls_late;
    if (b->polls_late == 0) fake_compute(b, s);
    return STATUS_OK;
}

static inline struct step *fake_poll(struct backend *base) {
    struct fake_backend *b = (struct fake_backend *)base;
    if (b->pending == NULL || b->polls_left-- > 1) return NULL;
    struct step *s = b->pending;
    b->pending = NULL;
    if (b->polls_late > 0) fake_compute(b, s);
    return s;
}

static inline void fake_drain(struct backend *base) {
    ((struct fake_backend *)base)->polls_left = 1;
}

static const struct backend_ops fake_ops = {
    .name = "fake", .submit = fake_submit, .poll = fake_poll, .drain = fake_drain};

/* ---- everything a scheduler needs ---- */

struct fake_config {
    uint32_t n_ctx, max_batch, max_queue, n_pages, polls_late, bad_every;
    uint32_t max_rows;      /* 0: 64 */
    uint32_t draft_outputs; /* outputs beside those that the choices need */
    bool no_prefix_cache;
    uint32_t drafts;
    uint64_t step_ns; /* 0: 300 us */
    const struct gate_config *gate;
    uint64_t prefill_budget_ns;
    uint64_t chore_slice_ns; /* 0: long, so that chores end in one go and a run can be repeated */
    const struct chat_template *chat_template;
    const struct encoder *encoder;
    const struct label_sets *labels;
    struct policy *policy;
    struct sched_adapt adapt;
    const struct monitor_model *monitor;
};

struct fake {
    struct plan plan;
    uint64_t clock_ns;
    struct tokenizer *tokenizer;
    struct page_pool *pages;
    struct worker_pool *workers;
    struct metrics *metrics;
    void *flight_mem;
    struct fake_backend backend;
    struct sched *sched;
};

static inline uint64_t fake_now(void *arg) {
    return *(uint64_t *)arg;
}

static inline void must(enum status st, const struct error *e) {
    if (st == STATUS_OK) return;
    fprintf(stderr, "%s: %s: %s\n", status_name(st), e->field, e->message);
    abort();
}

/* The tokenizer and the workers are made once by the caller. */
static inline void fake_open(struct fake *f, const struct fake_config *cfg, struct tokenizer *t,
                             struct worker_pool *workers) {
    struct error e = {0};
    memset(f, 0, sizeof *f);
    f->clock_ns = 1000000000;
    f->tokenizer = t;
    f->workers = workers;
    f->plan.n_layers = 70;
    f->plan.d_model = FAKE_D;
    f->plan.n_vocab = FAKE_VOCAB;
    f->plan.n_groups = FAKE_GROUPS;
    /* The backend needs no more of its blocks than that they are there. */
    f->plan.blocks[BLOCK_DRAFT].n_ids = f->plan.blocks[BLOCK_EXIT].n_ids = FAKE_TOKENS;
    struct page_pool_config pages = {.n_groups = FAKE_GROUPS};
    for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
        pages.page_bytes[g] = KV_PAGE_TOKENS * sizeof(struct fake_kv);
        pages.n_pages[g] = cfg->n_pages + g; /* the groups need not be equal */
    }
    must(page_pool_open(&pages, &f->pages, &e), &e);
    f->metrics = malloc(sizeof *f->metrics);
    metric_init(f->metrics);
    f->flight_mem = aligned_alloc(64, (flight_footprint(cfg->max_batch, 64) + 63) / 64 * 64);
    f->backend = (struct fake_backend){
        .base = {&fake_ops},
        .pages = f->pages,
        .clock_ns = &f->clock_ns,
        .polls_late = cfg->polls_late,
        .bad_every = cfg->bad_every,
        .n_layers = f->plan.n_layers,
        .heads = cfg->labels != NULL ? &cfg->labels->heads : NULL,
        .step_ns = cfg->step_ns != 0 ? cfg->step_ns : 300000,
        .scratch = aligned_alloc(64, (sample_scratch_bytes(FAKE_VOCAB) + 63) / 64 * 64),
    };
    const struct sched_config sc = {
        .plan = &f->plan,
        .tokenizer = t,
        .chat_template = cfg->chat_template,
        .encoder = cfg->encoder,
        .backend = &f->backend.base,
        .pages = f->pages,
        .workers = workers,
        .metrics = f->metrics,
        .flight = flight_init(f->flight_mem, cfg->max_batch, 64),
        .limits = {.max_spans = cfg->max_batch,
                   .max_rows = cfg->max_rows != 0 ? cfg->max_rows : 64,
                   .max_outputs = cfg->max_batch + 4 + cfg->draft_outputs,
                   .max_pages = cfg->max_batch * FAKE_GROUPS * ((cfg->n_ctx + 15) / 16),
                   .max_copies = cfg->max_batch * FAKE_GROUPS,
                   .max_gates = cfg->max_batch,
                   .max_gate_pages = cfg->max_batch * ((cfg->n_ctx + 15) / 16),
                   .max_profiles = cfg->labels != NULL ? cfg->max_batch + 1 : 1,
                   .max_exits = cfg->labels != NULL ? cfg->max_batch : 0,
                   .max_looks = cfg->labels != NULL ? cfg->max_batch : 0,
                   .max_taps = cfg->max_batch,
                   .max_guesses = cfg->max_batch * STEP_GUESSES},
        .gate = cfg->gate,
        .labels = cfg->labels,
        .epoch = cfg->labels != NULL ? FAKE_EPOCH : 0,
        .n_ctx = cfg->n_ctx,
        .max_batch = cfg->max_batch,
        .max_queue = cfg->max_queue,
        .prefix_cache = !cfg->no_prefix_cache,
        .monitor = cfg->monitor,
        .drafts = cfg->drafts,
        .prefill_budget_ns = cfg->prefill_budget_ns,
        .chore_slice_ns = cfg->chore_slice_ns != 0 ? cfg->chore_slice_ns : UINT64_C(10000000000),
        .policy = cfg->policy,
        .adapt = cfg->adapt,
        .kv_domain = 7,
        .now_ns = fake_now,
        .now_arg = &f->clock_ns,
    };
    must(sched_open(&sc, &f->sched, &e), &e);
}

static inline void fake_close(struct fake *f) {
    sched_close(f->sched);
    for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
        const struct page_pool_counts k = page_pool_counts(f->pages, g);
        assert_int_equal(k.used, 0);
        assert_int_equal(k.reserved, 0);
    }
    page_pool_close(f->pages);
    free(f->metrics);
    free(f->flight_mem);
    free(f->backend.scratch);
}

static inline struct worker_pool *fake_workers(void) {
    struct error e = {0};
    struct worker_pool *w;
    const struct worker_pool_config cfg = {.n_workers = 2};
    must(worker_pool_start(&cfg, &w, &e), &e);
    return w;
}

/* What every tick leaves true. */
static inline void check_balance(const struct fake *f) {
    const struct metrics *m = f->metrics;
    const struct sched_stats st = sched_stats(f->sched);
    uint64_t ended = 0;
    for (int o = 0; o < METRIC_OUTCOME_COUNT; o++)
        for (int task = 0; task < METRIC_TASK_COUNT; task++)
            ended +=
                metric_count(m, METRIC_REQUEST,
                             metric_outcome_task((enum metric_outcome)o, (enum metric_task)task));
    assert_int_equal(metric_count(m, METRIC_REQUEST_STARTED, 0), ended + st.running);
    assert_int_equal((int)metric_value(m, METRIC_RUNNING, 0), st.running);
    assert_int_equal((int)metric_value(m, METRIC_QUEUE_DEPTH, 0), st.queued);
    for (uint32_t g = 0; g < FAKE_GROUPS; g++) {
        const struct page_pool_counts k = page_pool_counts(f->pages, g);
        assert_true(k.reserved <= k.free);
        if (st.running == 0) {
            assert_int_equal(k.reserved, 0);
            assert_int_equal(k.used, st.prefix_pages);
        }
    }
}

#endif
