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
    PROBE_EVERY = 32,   /* steps between looks at a block that does not pay */
    WORTH_TRIALS = 128, /* half-life of what a block brings */
    OWN_PRIOR = 12,     /* times asked that the average of all counts beside a choice's own */
};
/* A guess behind another comes true about so often; a token of a step is worth a look. */
static const double NEXT_RIGHT = 0.6;
/* No row is worth less than this. */
static const float LEAST_REACH = 0.05f;
/* Before anything was measured. */
static const struct draft_worth FIRST_WORTH = {.asked = 8, .passes = 12, .taken = 8, .gained = 5};

static bool uses(const struct drafts *d, enum metric_draft source) {
    return d->cfg.sources >> source & 1;
}

static enum metric_draft source_of(enum block_kind block) {
    return block == BLOCK_DRAFT ? METRIC_DRAFT_BLOCK : METRIC_DRAFT_EXIT;
}

enum status drafts_open(struct drafts *d, const struct drafts_config *cfg, struct error *e) {
    memset(d, 0, sizeof *d);
    d->cfg = *cfg;
    d->tokens_per_step = 1;
    for (int k = 0; k < BLOCK_KIND_COUNT; k++) d->worth[k] = FIRST_WORTH;
    const bool suffix = uses(d, METRIC_DRAFT_SUFFIX), ngram = uses(d, METRIC_DRAFT_NGRAM);
    const size_t suffix_bytes = suffix ? suffix_automaton_footprint(cfg->n_ctx) : 0;
    const size_t tenant_bytes = ngram ? ngram_tenants_footprint(N_TENANTS, TENANT_LINES) : 0;
    const size_t bytes = suffix_bytes * cfg->n_choices + ((tenant_bytes + 63) & ~(size_t)63);
    d->choices = calloc(cfg->n_choices, sizeof *d->choices);
    d->memory = aligned_alloc(64, bytes > 0 ? bytes : 64);
    if (d->choices == NULL || d->memory == NULL) {
        drafts_close(d);
        return error_set(e, STATUS_NO_MEMORY, "drafts", "out of memory for the sources of drafts");
    }
    char *at = d->memory;
    for (uint32_t i = 0; i < cfg->n_choices && suffix; i++, at += suffix_bytes)
        d->choices[i].suffix = suffix_automaton_init(at, cfg->n_ctx);
    if (ngram) d->tenants = ngram_tenants_init(at, N_TENANTS, TENANT_LINES);
    return STATUS_OK;
}

void drafts_close(struct drafts *d) {
    free(d->choices);
    free(d->memory);
    memset(d, 0, sizeof *d);
}

void draft_start(struct drafts *d, uint32_t choice, uint64_t tenant, uint32_t n_prompt) {
    struct draft *k = &d->choices[choice];
    k->on = d->cfg.sources != 0;
    k->n_followed = 0;
    k->n_prompt = n_prompt;
    k->chain.n = 0;
    memset(k->worth, 0, sizeof k->worth);
    k->n_quiet = 0;
    if (k->suffix != NULL) suffix_automaton_clear(k->suffix);
    if (!uses(d, METRIC_DRAFT_NGRAM)) return;
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
    if (k->learn != NULL && to > k->n_prompt) {
        const uint32_t from = k->n_followed > k->n_prompt ? k->n_followed : k->n_prompt;
        const uint32_t back = from > NGRAM_ORDERS ? from - NGRAM_ORDERS : 0;
        ngram_table_learn(k->learn, tokens + back, from - back, to - back);
    }
    k->n_followed = to;
}

/* ---- the mixture ---- */

static uint32_t class_of(float confidence) {
    const int c = (int)(confidence * DRAFT_CLASSES);
    return c < 0 ? 0 : c >= DRAFT_CLASSES ? DRAFT_CLASSES - 1 : (uint32_t)c;
}

/* What a source says, from position `from` of the guess on. */
struct voice {
    bool on;
    uint32_t from;
    struct draft_proposal said;
};

struct mixer {
    struct draft *k;
    struct voice voices[METRIC_DRAFT_COUNT];
    uint32_t tail[NGRAM_ORDERS + DRAFT_MAX_TOKENS], n_tail; /* context, then what was chosen */
    uint32_t max;
};

/* One token behind what was chosen so far: the table can be asked about anything. */
static void ask_table(struct mixer *m, uint32_t from) {
    struct voice *v = &m->voices[METRIC_DRAFT_NGRAM];
    draft_propose(&m->k->ngram.source, m->tail, m->n_tail, 1, &v->said);
    v->from = from;
    v->on = true;
}

static void begin_mix(const struct drafts *d, struct draft *k, const uint32_t *tokens, uint32_t n,
                      uint32_t max, struct mixer *m) {
    for (int s = 0; s < METRIC_DRAFT_COUNT; s++) m->voices[s].on = false;
    m->k = k;
    m->max = max < DRAFT_MAX_TOKENS ? max : DRAFT_MAX_TOKENS;
    m->n_tail = n < NGRAM_ORDERS ? n : NGRAM_ORDERS;
    memcpy(m->tail, tokens + n - m->n_tail, m->n_tail * sizeof *tokens);
    if (k->suffix != NULL) {
        struct voice *v = &m->voices[METRIC_DRAFT_SUFFIX];
        draft_propose(suffix_automaton_source(k->suffix), tokens, n, m->max, &v->said);
        v->on = true;
        v->from = 0;
    }
    if (uses(d, METRIC_DRAFT_NGRAM)) ask_table(m, 0);
    if (k->chain.n > 0 && k->chain_at == n)
        m->voices[k->chain_source] = (struct voice){.on = true, .said = k->chain};
}

/* What the sources say about position i; returns how many. */
static uint32_t gather(const struct drafts *d, const struct mixer *m, uint32_t i,
                       struct draft_option *options) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < METRIC_DRAFT_COUNT; s++) {
        const struct voice *v = &m->voices[s];
        if (!v->on || i - v->from >= v->said.n) continue;
        const float confidence = v->said.confidence[i - v->from];
        options[n++] = (struct draft_option){.id = v->said.ids[i - v->from],
                                             .probability = confidence,
                                             .source = (uint8_t)s,
                                             .class_of = (uint8_t)class_of(confidence)};
    }
    for (uint32_t a = 0; a < n; a++) {
        enum draft_company company = n > 1 ? DRAFT_DISPUTED : DRAFT_ALONE;
        for (uint32_t b = 0; b < n; b++)
            if (b != a && options[b].id == options[a].id) company = DRAFT_AGREED;
        struct draft_option *o = &options[a];
        const struct draft_class *k = &d->classes[o->source][company][o->class_of];
        o->company = (uint8_t)company;
        o->probability =
            (float)((k->right + PRIOR_TRIALS * (double)o->probability) / (k->tried + PRIOR_TRIALS));
    }
    return n;
}

void draft_guess(struct drafts *d, uint32_t choice, const uint32_t *tokens, uint32_t n,
                 uint32_t max, struct draft_guess *out) {
    struct draft *k = &d->choices[choice];
    out->n = out->n_passes = 0;
    if (!k->on || k->n_followed != n || max == 0) return;
    struct mixer m;
    begin_mix(d, k, tokens, n, max, &m);
    if (k->chain.n > 0 && k->chain_at == n) {
        out->n_passes = k->chain.n;
        out->block = k->chain_source == METRIC_DRAFT_BLOCK ? BLOCK_DRAFT : BLOCK_EXIT;
    }
    float reach = 1;
    for (uint32_t i = 0; i < m.max; i++) {
        struct draft_option *options = out->options[i];
        const uint32_t n_options = gather(d, &m, i, options);
        if (n_options == 0) return;
        const struct draft_option *best = &options[0];
        for (uint32_t o = 1; o < n_options; o++)
            if (options[o].probability > best->probability) best = &options[o];
        reach *= best->probability;
        out->n_options[i] = n_options;
        out->ids[i] = best->id;
        out->source[i] = best->source;
        out->reach[i] = reach;
        out->n = i + 1;
        m.tail[m.n_tail++] = best->id;
        if (reach < LEAST_REACH || i + 1 == m.max) return;
        /* Who said something else has no more to say, but for the table. */
        for (uint32_t o = 0; o < n_options; o++)
            if (options[o].id != best->id) m.voices[options[o].source].on = false;
        if (uses(d, METRIC_DRAFT_NGRAM)) ask_table(&m, i + 1);
    }
}

/* ---- what came true ---- */

static void count(struct draft_class *k, bool right) {
    k->tried++;
    k->right += right;
    if (k->tried < HALF_LIFE) return;
    k->tried /= 2;
    k->right /= 2;
}

static void add_worth(struct draft_worth *w, const struct draft_worth *more) {
    w->asked += more->asked;
    w->passes += more->passes;
    w->taken += more->taken;
    w->gained += more->gained;
    if (w->asked < WORTH_TRIALS) return;
    w->asked /= 2;
    w->passes /= 2;
    w->taken /= 2;
    w->gained /= 2;
}

/* A right guess of the block counts as far as no other source was as sure of the same. */
static void learn_worth(struct drafts *d, uint32_t choice, const struct draft_guess *g,
                        uint32_t taken, uint32_t accepted) {
    struct draft_worth more = {.asked = 1, .passes = g->n_passes};
    const uint8_t source = (uint8_t)source_of(g->block);
    for (uint32_t i = 0; i < taken; i++) {
        float own = 0, others = 0;
        for (uint32_t o = 0; o < g->n_options[i]; o++) {
            const struct draft_option *x = &g->options[i][o];
            if (x->id != g->ids[i]) continue;
            if (x->source == source)
                own = x->probability;
            else if (x->probability > others)
                others = x->probability;
        }
        if (own == 0 || others >= own) continue;
        const double share = 1 - (double)(others / own);
        more.taken += share;
        if (i < accepted) more.gained += share;
    }
    add_worth(&d->worth[g->block], &more);
    add_worth(&d->choices[choice].worth[g->block], &more);
}

void draft_settled(struct drafts *d, uint32_t choice, const struct draft_guess *g, uint32_t taken,
                   uint32_t accepted, const struct output *outputs, uint32_t n_drawn) {
    CHECK(taken <= g->n && accepted <= taken && accepted <= n_drawn);
    /* As long as what was chosen came true, the sources spoke about this sequence. */
    for (uint32_t i = 0; i < g->n && i < n_drawn; i++) {
        for (uint32_t o = 0; o < g->n_options[i]; o++) {
            const struct draft_option *x = &g->options[i][o];
            count(&d->classes[x->source][x->company][x->class_of], x->id == outputs[i].token);
        }
        if (g->ids[i] != outputs[i].token) break;
    }
    d->tokens_per_step += ((double)n_drawn - d->tokens_per_step) / 64;
    if (g->n_passes > 0) learn_worth(d, choice, g, taken, accepted);
    for (uint32_t i = 0; d->cfg.metrics != NULL && i < taken; i++)
        metric_add(
            d->cfg.metrics, METRIC_DRAFT_TOKENS,
            metric_draft_outcome((enum metric_draft)g->source[i],
                                 i < accepted ? METRIC_DRAFT_ACCEPTED : METRIC_DRAFT_REJECTED),
            1);
}

/* ---- blocks ---- */

/* Nanoseconds saved each time the block is asked. */
static double saves(const struct drafts *d, const struct draft *k, enum block_kind block,
                    const struct draft_prices *p) {
    const struct draft_worth *own = &k->worth[block], *all = &d->worth[block];
    const double share = OWN_PRIOR / all->asked;
    const double asked = own->asked + OWN_PRIOR;
    return ((own->gained + all->gained * share) * p->token_ns -
            (own->taken + all->taken * share) * p->row_ns -
            (own->passes + all->passes * share) * p->guess_ns) /
           asked;
}

bool draft_ask(struct drafts *d, uint32_t choice, const struct draft_prices *prices,
               enum block_kind *block, float *least_reach) {
    struct draft *k = &d->choices[choice];
    k->chain.n = 0;
    if (!k->on || !(prices->token_ns > 0)) return false;
    double best = 0;
    bool ask = false;
    uint32_t n_blocks = 0;
    for (int b = 0; b < BLOCK_KIND_COUNT; b++) {
        if (!uses(d, source_of((enum block_kind)b))) continue;
        n_blocks++;
        const double ns = saves(d, k, (enum block_kind)b, prices);
        if (ns <= best) continue;
        best = ns;
        *block = (enum block_kind)b;
        ask = true;
    }
    if (n_blocks == 0) return false;
    if (++k->n_quiet >= PROBE_EVERY) {
        /* In turn, so that none is forgotten: also one that another keeps from being asked. */
        uint32_t turn = d->n_probes++ % n_blocks;
        for (int b = 0; b < BLOCK_KIND_COUNT; b++)
            if (uses(d, source_of((enum block_kind)b)) && turn-- == 0) *block = (enum block_kind)b;
        ask = true;
        k->n_quiet = 0;
    }
    const double least = (prices->guess_ns + prices->row_ns) / (NEXT_RIGHT * prices->token_ns);
    *least_reach = least < 0.9 ? (float)least : 0.9f;
    return ask;
}

void draft_answered(struct drafts *d, uint32_t choice, enum block_kind block, uint32_t at,
                    const struct guess *guesses, uint32_t n) {
    struct draft *k = &d->choices[choice];
    k->chain.n = n < DRAFT_MAX_TOKENS ? n : DRAFT_MAX_TOKENS;
    k->chain_source = source_of(block);
    k->chain_at = at;
    for (uint32_t i = 0; i < k->chain.n; i++) {
        k->chain.ids[i] = guesses[i].id;
        k->chain.confidence[i] = guesses[i].probability;
    }
}
