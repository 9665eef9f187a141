#include "sched/draft.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/suffix_automaton.h"

enum {
    N_TENANTS = 8,
    TENANT_LINES = 1 << 14, /* 1 MiB each */
    HALF_LIFE = 256,
    PRIOR_TRIALS = 8,
    PROBE_EVERY = 64,
};

enum status drafts_open(struct drafts *d, const struct drafts_config *cfg, struct error *e) {
    memset(d, 0, sizeof *d);
    d->cfg = *cfg;
    const size_t suffix_bytes = cfg->suffix ? suffix_automaton_footprint(cfg->n_ctx) : 0;
    const size_t tenant_bytes = cfg->ngram ? ngram_tenants_footprint(N_TENANTS, TENANT_LINES) : 0;
    const size_t bytes = suffix_bytes * cfg->n_choices + ((tenant_bytes + 63) & ~(size_t)63);
    d->choices = calloc(cfg->n_choices, sizeof *d->choices);
    d->memory = aligned_alloc(64, bytes > 0 ? bytes : 64);
    if (d->choices == NULL || d->memory == NULL) {
        drafts_close(d);
        return error_set(e, STATUS_NO_MEMORY, "drafts", "out of memory for the sources of drafts");
    }
    char *at = d->memory;
    for (uint32_t i = 0; i < cfg->n_choices && cfg->suffix; i++, at += suffix_bytes)
        d->choices[i].suffix = suffix_automaton_init(at, cfg->n_ctx);
    if (cfg->ngram) d->tenants = ngram_tenants_init(at, N_TENANTS, TENANT_LINES);
    return STATUS_OK;
}

void drafts_close(struct drafts *d) {
    free(d->choices);
    free(d->memory);
    memset(d, 0, sizeof *d);
}

void draft_start(struct drafts *d, uint32_t choice, uint64_t tenant, uint32_t n_prompt) {
    struct draft *k = &d->choices[choice];
    k->on = d->cfg.suffix || d->cfg.ngram;
    k->n_followed = 0;
    k->n_prompt = n_prompt;
    if (k->suffix != NULL) suffix_automaton_clear(k->suffix);
    if (!d->cfg.ngram) return;
    k->learn = ngram_tenants_find(d->tenants, tenant, true);
    ngram_source_init(&k->ngram, d->cfg.deployment, k->learn, d->cfg.n_vocab);
}

void draft_follow(struct drafts *d, uint32_t choice, const uint32_t *tokens, uint32_t n,
                  uint32_t most) {
    struct draft *k = &d->choices[choice];
    CHECK(n >= k->n_followed);
    if (!k->on || n == k->n_followed) return;
    const uint32_t to = n - k->n_followed < most ? n : k->n_followed + most;
    if (k->suffix != NULL)
        suffix_automaton_append(k->suffix, tokens + k->n_followed, to - k->n_followed);
    /* Answers are learnt, prompts are not: a tenant's documents need not be remembered. */
    if (d->cfg.ngram && to > k->n_prompt) {
        const uint32_t from = k->n_followed > k->n_prompt ? k->n_followed : k->n_prompt;
        const uint32_t back = from > NGRAM_ORDERS ? from - NGRAM_ORDERS : 0;
        ngram_table_learn(k->learn, tokens + back, from - back, to - back);
    }
    k->n_followed = to;
}

static uint32_t class_of(float confidence) {
    const int c = (int)(confidence * DRAFT_CLASSES);
    return c < 0 ? 0 : c >= DRAFT_CLASSES ? DRAFT_CLASSES - 1 : (uint32_t)c;
}

static float probability(struct draft_class *k, float confidence) {
    if (k->left_out >= PROBE_EVERY) return confidence;
    return (float)((k->accepted + PRIOR_TRIALS * (double)confidence) / (k->tried + PRIOR_TRIALS));
}

/* Tokens that the guess is worth. */
static float weigh(struct drafts *d, enum metric_draft source, const struct draft_proposal *p,
                   struct draft_guess *out) {
    float reach = 1, worth = 0;
    out->source = source;
    out->n = p->n;
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t c = class_of(p->confidence[i]);
        reach *= probability(&d->classes[source][c], p->confidence[i]);
        out->ids[i] = p->ids[i];
        out->reach[i] = reach;
        out->class_of[i] = (uint8_t)c;
        worth += reach;
    }
    return worth;
}

void draft_guess(struct drafts *d, uint32_t choice, const uint32_t *tokens, uint32_t n,
                 uint32_t max, struct draft_guess *out) {
    struct draft *k = &d->choices[choice];
    const struct draft_source *sources[METRIC_DRAFT_COUNT] = {0};
    out->n = 0;
    if (!k->on || k->n_followed != n || max == 0) return;
    if (k->suffix != NULL) sources[METRIC_DRAFT_SUFFIX] = suffix_automaton_source(k->suffix);
    if (d->cfg.ngram) sources[METRIC_DRAFT_NGRAM] = &k->ngram.source;
    float best = 0;
    for (uint32_t i = 0; i < METRIC_DRAFT_COUNT; i++) {
        if (sources[i] == NULL) continue;
        struct draft_proposal p;
        struct draft_guess g;
        draft_propose(sources[i], tokens, n, max < DRAFT_MAX_TOKENS ? max : DRAFT_MAX_TOKENS, &p);
        const float worth = weigh(d, (enum metric_draft)i, &p, &g);
        if (worth <= best) continue;
        best = worth;
        *out = g;
    }
}

void draft_settled(struct drafts *d, const struct draft_guess *g, uint32_t taken,
                   uint32_t accepted) {
    CHECK(taken <= g->n && accepted <= taken);
    struct draft_class *of = d->classes[g->source];
    /* What stood behind the first wrong one was not seen. */
    for (uint32_t i = 0; i < taken && i <= accepted; i++) {
        struct draft_class *k = &of[g->class_of[i]];
        k->left_out = 0;
        k->tried++;
        k->accepted += i < accepted;
        if (k->tried < HALF_LIFE) continue;
        k->tried /= 2;
        k->accepted /= 2;
    }
    if (taken < g->n) of[g->class_of[taken]].left_out++;
    if (d->cfg.metrics == NULL) return;
    metric_add(d->cfg.metrics, METRIC_DRAFT_TOKENS,
               metric_draft_outcome(g->source, METRIC_DRAFT_ACCEPTED), accepted);
    metric_add(d->cfg.metrics, METRIC_DRAFT_TOKENS,
               metric_draft_outcome(g->source, METRIC_DRAFT_REJECTED), taken - accepted);
}
