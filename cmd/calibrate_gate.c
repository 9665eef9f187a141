#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/calibrate.h"
#include "cmd/vocabulary.h"
#include "core/clock.h"
#include "core/math.h"
#include "sched/gate.h"

enum { TIMED_STEPS = 4 * STEP_GATE_REFRESH, TIMED_ROUNDS = 5 };
static const double PAYS = 0.97; /* of a dense step's time, at most */

/* What one row's distribution is under one budget, as far as the vocabulary was gone through. */
struct row_sums {
    float max, target;
    double sum, weighted; /* of exp(z - max), and that times (z - z of the budget) */
};

struct measure {
    struct calibrate *c;
    struct vocabulary vocabulary;
    uint32_t n_budgets, n_rows, d;
    float *states;         /* [1 + n_budgets, n_rows, d]: full attention, then each budget */
    struct row_sums *own;  /* [1 + n_budgets][n_rows] */
    struct row_sums *full; /* [1 + n_budgets][n_rows]: of full attention, against each budget */
    uint32_t *best;        /* [1 + n_budgets][n_rows] arg-maxes */
    double *kl;            /* [n_budgets] sums of one document */
    /* over documents, per budget */
    double *sum_kl, *sum_kl2, *sum_nll, *sum_nll2, *sum_agree;
    uint32_t n_documents;
};

static struct gate_policy policy_of(uint32_t first_position, uint32_t budget) {
    return (struct gate_policy){
        .first_position = first_position,
        .sink_pages = GATE_SINK_PAGES,
        .recent_pages = GATE_RECENT_PAGES,
        .budget_pages = budget,
        .dense_layers = GATE_DENSE_LAYERS,
    };
}

static void add_gate(struct step *s, struct span *span, uint32_t first_position, uint32_t budget) {
    if (budget == 0) return;
    s->gates[0] = policy_of(first_position, budget);
    s->n_gates = 1;
    span->gate = 0;
}

static enum status prefill(struct measure *m, const struct engine_sequence *q, const uint32_t *ids,
                           uint32_t from, uint32_t to, struct error *e) {
    struct engine *g = m->c->engine;
    struct step *s = m->c->step;
    enum status st = STATUS_OK;
    for (uint32_t at = from; at < to && st == STATUS_OK; at += s->limits.max_rows) {
        const uint32_t rows = to - at < s->limits.max_rows ? to - at : s->limits.max_rows;
        step_clear(s, g->plan->n_layers);
        engine_add_span(g, s, SPAN_PREFILL, q, at, ids + at, rows);
        st = engine_run(g, s, e);
    }
    return st;
}

/* States and arg-maxes of rows [at, at + n) of those that are scored, which begin at `first`;
 * which: 0 full attention, else the budget which - 1. */
static enum status run_rows(struct measure *m, const struct engine_sequence *q, const uint32_t *ids,
                            uint32_t first, uint32_t at, uint32_t n, uint32_t which,
                            uint32_t budget, struct error *e) {
    struct engine *g = m->c->engine;
    struct step *s = m->c->step;
    const size_t row = (size_t)which * m->n_rows + at;
    step_clear(s, g->plan->n_layers);
    struct span *span = engine_add_span(g, s, SPAN_VERIFY, q, first + at, ids + first + at, n);
    add_gate(s, span, first + at, budget);
    for (uint32_t r = 0; r < n; r++) step_add_output(s, r);
    s->taps[0] = (struct tap){
        .layer = g->plan->n_layers, .n_rows = n, .mode = TAP_KEEP, .out = m->states + row * m->d};
    s->n_taps = 1;
    const enum status st = engine_run(g, s, e);
    if (st != STATUS_OK) return st;
    for (uint32_t r = 0; r < n; r++) {
        if (s->outputs[r].bad)
            return error_set(e, STATUS_BAD_NUMBER, NULL, "a logit is not finite");
        m->best[row + r] = s->outputs[r].token;
    }
    return STATUS_OK;
}

/* All scored rows of a document, STEP_GATE_ROWS at a time, each time behind dense ones. */
static enum status run_document(struct measure *m, const struct engine_sequence *q,
                                const uint32_t *ids, uint32_t first, const struct gate_row *rows,
                                struct error *e) {
    enum status st = prefill(m, q, ids, 0, first, e);
    for (uint32_t at = 0; at < m->n_rows && st == STATUS_OK; at += STEP_GATE_ROWS) {
        const uint32_t left = m->n_rows - at, n = left < STEP_GATE_ROWS ? left : STEP_GATE_ROWS;
        for (uint32_t b = 0; b < m->n_budgets && st == STATUS_OK; b++)
            st = run_rows(m, q, ids, first, at, n, b + 1, rows[b].budget, e);
        if (st == STATUS_OK) st = run_rows(m, q, ids, first, at, n, 0, 0, e);
    }
    return st;
}

static void take(struct row_sums *s, float z, float other) {
    if (z > s->max) {
        const double scale = math_exp((double)s->max - (double)z);
        s->sum *= scale;
        s->weighted *= scale;
        s->max = z;
    }
    const double e = (double)math_expf(z - s->max);
    s->sum += e;
    s->weighted += e * ((double)z - (double)other);
}

struct tile {
    struct measure *m;
    const float *logits; /* [(1 + n_budgets) * n_rows, VOCABULARY_TILE] */
    uint32_t first, n;   /* ids */
    const uint32_t *targets;
};

/* One row of the document, under all budgets. */
static void sum_task(void *arg, uint32_t r, uint32_t worker) {
    (void)worker;
    const struct tile *t = arg;
    struct measure *m = t->m;
    const float *full = t->logits + (size_t)r * VOCABULARY_TILE;
    for (uint32_t b = 0; b <= m->n_budgets; b++) {
        const float *z = t->logits + ((size_t)b * m->n_rows + r) * VOCABULARY_TILE;
        struct row_sums *own = &m->own[b * m->n_rows + r], *of = &m->full[b * m->n_rows + r];
        for (uint32_t i = 0; i < t->n; i++) {
            take(own, z[i], z[i]);
            if (b > 0) take(of, full[i], z[i]);
        }
        if (t->targets[r] >= t->first && t->targets[r] < t->first + t->n)
            own->target = z[t->targets[r] - t->first];
    }
}

static void sum_tile(void *arg, const float *logits, uint32_t first, uint32_t n) {
    struct tile *t = arg;
    t->logits = logits;
    t->first = first;
    t->n = n;
    worker_pool_run(t->m->c->engine->workers, sum_task, t, t->m->n_rows);
}

/* Goes through the vocabulary once for all states of a document. */
static void sum_vocabulary(struct measure *m, const uint32_t *targets) {
    const uint32_t rows = (1 + m->n_budgets) * m->n_rows;
    for (uint32_t i = 0; i < rows; i++) m->own[i] = m->full[i] = (struct row_sums){.max = -1e30f};
    struct tile t = {.m = m, .targets = targets};
    vocabulary_walk(&m->vocabulary, m->states, rows, sum_tile, &t);
}

static double lse(const struct row_sums *s) {
    return (double)s->max + math_log(s->sum);
}

static void enter_document(struct measure *m) {
    const uint32_t n = m->n_rows;
    for (uint32_t b = 1; b <= m->n_budgets; b++) {
        double kl = 0, nll = 0, agree = 0;
        for (uint32_t r = 0; r < n; r++) {
            const struct row_sums *full = &m->own[r], *own = &m->own[b * n + r];
            const struct row_sums *of = &m->full[b * n + r];
            kl += of->weighted / of->sum - lse(of) + lse(own);
            nll += (lse(own) - (double)own->target) - (lse(full) - (double)full->target);
            agree += m->best[b * n + r] == m->best[r];
        }
        kl /= n;
        nll /= n;
        m->sum_kl[b - 1] += kl;
        m->sum_kl2[b - 1] += kl * kl;
        m->sum_nll[b - 1] += nll;
        m->sum_nll2[b - 1] += nll * nll;
        m->sum_agree[b - 1] += agree / n;
    }
    m->n_documents++;
}

/* The fastest of some rounds of single steps, full attention (budget 0) or gated. */
static enum status time_steps(struct measure *m, const struct engine_sequence *q,
                              const uint32_t *ids, uint32_t first, uint32_t budget, double *ns,
                              struct error *e) {
    struct engine *g = m->c->engine;
    struct step *s = m->c->step;
    const uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < TIMED_STEPS; i++) {
        step_clear(s, g->plan->n_layers);
        struct span *span = engine_add_span(g, s, SPAN_DECODE, q, first + i, ids + first + i, 1);
        add_gate(s, span, first, budget);
        step_add_output(s, 0);
        const enum status st = engine_run(g, s, e);
        if (st != STATUS_OK) return st;
    }
    const double took = (double)(clock_now_ns() - start);
    if (*ns == 0 || took < *ns) *ns = took;
    return STATUS_OK;
}

static enum status time_budgets(struct measure *m, const struct engine_sequence *q,
                                const uint32_t *ids, uint32_t context, struct gate_row *rows,
                                struct error *e) {
    enum status st = STATUS_OK;
    double ns[1 + CONFIG_MAX_LIST] = {0};
    for (uint32_t round = 0; round < TIMED_ROUNDS; round++)
        for (uint32_t b = 0; b <= m->n_budgets && st == STATUS_OK; b++)
            st = time_steps(m, q, ids, context - TIMED_STEPS, b == 0 ? 0 : rows[b - 1].budget,
                            &ns[b], e);
    for (uint32_t b = 0; b < m->n_budgets; b++) rows[b].step = (float)(ns[b + 1] / ns[0]);
    return st;
}

/* Of the mean of n documents; the mean itself where there is but one. */
static double standard_error(double sum, double squares, double n) {
    const double mean = sum / n;
    const double variance = n > 1 ? (squares - n * mean * mean) / (n - 1) : mean * mean;
    return __builtin_sqrt(variance > 0 ? variance / n : 0);
}

/* One context over all documents that reach it; fills rows[n_budgets]. */
static enum status one_context(struct measure *m, uint32_t context, struct gate_row *rows,
                               struct error *e) {
    const struct config *c = m->c->config;
    struct engine_sequence q;
    enum status st = engine_sequence_open(m->c->engine, context, &q, e);
    if (st != STATUS_OK) return st;
    m->n_documents = 0;
    for (uint32_t b = 0; b < m->n_budgets; b++)
        m->sum_kl[b] = m->sum_kl2[b] = m->sum_nll[b] = m->sum_nll2[b] = m->sum_agree[b] = 0;
    const uint32_t first = context - m->n_rows;
    const uint32_t *last = NULL;
    for (uint32_t i = 0; i < m->c->n_documents && m->n_documents < c->gate_documents; i++) {
        const struct calibrate_document *d = &m->c->documents[i];
        if (d->n <= context) continue;
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\rcontext %u, document %u  ", context, m->n_documents + 1);
        st = run_document(m, &q, d->ids, first, rows, e);
        if (st != STATUS_OK) break;
        sum_vocabulary(m, d->ids + first + 1);
        enter_document(m);
        last = d->ids;
    }
    if (st == STATUS_OK && last != NULL) st = time_budgets(m, &q, last, context, rows, e);
    engine_sequence_close(m->c->engine, &q);
    const double n = m->n_documents;
    for (uint32_t b = 0; b < m->n_budgets && n > 0; b++) {
        rows[b].n_positions = m->n_documents * m->n_rows;
        rows[b].kl = (float)(m->sum_kl[b] / n);
        rows[b].kl_upper =
            (float)(m->sum_kl[b] / n + 1.645 * standard_error(m->sum_kl[b], m->sum_kl2[b], n));
        rows[b].delta_nll = (float)(m->sum_nll[b] / n);
        rows[b].delta_nll_error = (float)standard_error(m->sum_nll[b], m->sum_nll2[b], n);
        rows[b].agreement = (float)(m->sum_agree[b] / n);
    }
    return st;
}

/* The smallest budget of a context that holds the limit; the largest measured if none does. */
static const struct gate_row *safe_row(const struct gate_section *g, uint32_t first, uint32_t n) {
    for (uint32_t b = 0; b < n; b++)
        if (g->rows[first + b].kl_upper <= g->kl_limit) return &g->rows[first + b];
    return &g->rows[first + n - 1];
}

/* A line through the first and last context's safe budgets, lifted over those between. */
static void fit(struct gate_section *g, uint32_t n_budgets) {
    const uint32_t n = g->n_rows / n_budgets;
    const struct gate_row *a = safe_row(g, 0, n_budgets);
    const struct gate_row *z = safe_row(g, (n - 1) * n_budgets, n_budgets);
    const uint32_t pages = (z->context - a->context) / KV_PAGE_TOKENS;
    if (pages > 0 && z->budget > a->budget) {
        g->safe_share = ((z->budget - a->budget) * 1024 + pages - 1) / pages;
        if (g->safe_share > 1024) g->safe_share = 1024;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct gate_row *r = safe_row(g, i * n_budgets, n_budgets);
        const uint32_t there = r->context / KV_PAGE_TOKENS;
        const uint32_t sloped = (uint32_t)((uint64_t)there * g->safe_share / 1024);
        if (r->budget > sloped + g->safe_pages) g->safe_pages = r->budget - sloped;
    }
    /* Where the safe budget is not all there is, and is faster. */
    g->least_context = UINT32_MAX;
    for (uint32_t i = n; i-- > 0;) {
        const struct gate_row *r = safe_row(g, i * n_budgets, n_budgets);
        if ((double)r->step > PAYS) break;
        g->least_context = r->context;
    }
}

static enum status open_measure(struct measure *m, struct error *e) {
    const struct engine *g = m->c->engine;
    const size_t sets = 1 + m->n_budgets, rows = sets * m->n_rows;
    m->states = malloc(rows * m->d * sizeof *m->states);
    m->own = malloc(rows * sizeof *m->own);
    m->full = malloc(rows * sizeof *m->full);
    m->best = malloc(rows * sizeof *m->best);
    m->sum_kl = calloc(5 * sets, sizeof *m->sum_kl);
    if (m->states == NULL || m->own == NULL || m->full == NULL || m->best == NULL ||
        m->sum_kl == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    m->sum_kl2 = m->sum_kl + sets;
    m->sum_nll = m->sum_kl + 2 * sets;
    m->sum_agree = m->sum_kl + 3 * sets;
    m->sum_nll2 = m->sum_kl + 4 * sets;
    return vocabulary_open(&m->vocabulary, g, (uint32_t)rows, e);
}

static void close_measure(struct measure *m) {
    vocabulary_close(&m->vocabulary);
    free(m->states);
    free(m->own);
    free(m->full);
    free(m->best);
    free(m->sum_kl);
}

enum status calibrate_gate(struct calibrate *c, struct gate_section *out, struct error *e) {
    const struct config_list *contexts = &c->config->gate_contexts;
    const struct config_list *budgets = &c->config->gate_budgets;
    memset(out, 0, sizeof *out);
    out->kl_limit = c->config->gate_kl;
    struct measure m = {.c = c,
                        .n_budgets = budgets->n,
                        .n_rows = c->config->gate_tokens,
                        .d = c->engine->plan->d_model};
    enum status st = open_measure(&m, e);
    for (uint32_t i = 0; i < contexts->n && st == STATUS_OK; i++) {
        struct gate_row *rows = &out->rows[out->n_rows];
        for (uint32_t b = 0; b < budgets->n; b++)
            rows[b] = (struct gate_row){.context = (uint32_t)contexts->values[i],
                                        .budget = (uint32_t)budgets->values[b]};
        st = one_context(&m, (uint32_t)contexts->values[i], rows, e);
        if (m.n_documents > 0) out->n_rows += budgets->n;
    }
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    close_measure(&m);
    if (st != STATUS_OK) return st;
    if (out->n_rows == 0)
        return error_set(e, STATUS_INVALID, "file", "no document has more than %d tokens",
                         contexts->values[0]);
    fit(out, budgets->n);
    return STATUS_OK;
}
