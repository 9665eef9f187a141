/* draft_block.c: the learnt blocks of a plan, behind the outputs: their keys and values for the
 * step's rows, and chains of guesses. A chain lives in the row of its span's last known token:
 * state, position and rotary table of that row move on with it. */
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"
#include "core/math.h"

_Static_assert((int)STEP_CHAINS <= (int)HEAD_ROWS, "the logits of all chains are kept at once");

bool blocks_take(const struct cpu_backend *b, const struct span *span) {
    return span->kind != SPAN_ENCODE && span->exit == STEP_NONE &&
           b->n_run_layers[span->profile] == b->cfg.plan->n_layers;
}

/* Rows whose next token is known, into next_id; returns how many of the span's first rows. */
static uint32_t find_next_ids(struct cpu_backend *b, const struct span *span, uint32_t *output) {
    const struct step *s = b->step;
    const uint32_t end = span->first_row + span->n_tokens;
    for (uint32_t row = span->first_row; row < end; row++) {
        const uint32_t given = row + 1 < end ? s->ids[row + 1] : span->next_id;
        while (*output < s->n_outputs && s->outputs[*output].row < row) ++*output;
        const struct output *o = *output < s->n_outputs ? &s->outputs[*output] : NULL;
        if (o == NULL || o->row != row || o->sample.target != STEP_NONE) {
            if (given == STEP_NONE) return row - span->first_row;
            b->next_id[row] = given;
            continue;
        }
        if (o->bad) return row - span->first_row;
        b->next_id[row] = o->token;
        if (o->token != given) return row + 1 - span->first_row;
    }
    return span->n_tokens;
}

/* Spans that ask this block begin a chain each, in the rows that stand first; then the other rows
 * with known tokens, of which only keys and values are wanted. */
static void choose_rows(struct cpu_backend *b, enum block_kind kind) {
    struct step *s = b->step;
    b->n_rows = b->n_chains = 0;
    for (int asking = 1; asking >= 0; asking--) {
        uint32_t output = 0;
        for (uint32_t i = 0; i < s->n_spans; i++) {
            struct span *span = &s->spans[i];
            if (!blocks_take(b, span)) continue;
            const uint32_t known = find_next_ids(b, span, &output);
            if (known == 0) continue;
            const uint32_t last = span->first_row + known - 1;
            const bool asks = span->max_guesses > 0 && span->block == kind;
            bool chained = false;
            for (uint32_t c = 0; !asking && c < b->n_chains; c++)
                chained |= b->chains[c].span == span;
            if (asking && asks && b->n_chains < STEP_CHAINS) {
                b->chains[b->n_chains++] = (struct cpu_chain){span, last, b->next_id[last], 1};
                span->first_guess = s->n_guesses;
                s->n_guesses += span->max_guesses;
                b->rows[b->n_rows++] = last;
            }
            const uint32_t from = span->first_row + span->block_from;
            for (uint32_t row = from; !asking && row < last + !chained; row++)
                b->rows[b->n_rows++] = row;
        }
    }
    b->n_full = b->n_chains;
}

static void normalise_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model;
    for (uint32_t i = task * ROWS_PER_TASK; i < (task + 1) * ROWS_PER_TASK && i < b->n_rows; i++) {
        float *pair = b->pair + (size_t)i * 2 * d;
        b->vec->rms_norm(b->x + (size_t)b->rows[i] * d, b->out_norm, d, b->cfg.plan->norm_epsilon,
                         pair);
    }
}

/* The embedding beside the state, quantised together. */
static void join_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model;
    const bool quantised = reads_quantised(b, INPUT_ATTENTION, &b->blocks[BLOCK_DRAFT].in);
    for (uint32_t i = task * ROWS_PER_TASK; i < (task + 1) * ROWS_PER_TASK && i < b->n_rows; i++) {
        float *pair = b->pair + (size_t)i * 2 * d;
        embed_row(b, b->next_id[b->rows[i]], pair + d);
        if (quantised) quantise_row(b, INPUT_ATTENTION, pair, 2 * d, i);
    }
}

static void joined_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    const uint32_t d = b->cfg.plan->d_model;
    for (uint32_t i = task * ROWS_PER_TASK; i < (task + 1) * ROWS_PER_TASK && i < b->n_rows; i++)
        memcpy(b->x + (size_t)b->rows[i] * d, b->projected + (size_t)i * d, d * sizeof *b->x);
}

/* x of b->rows from pair and next_id. */
static void join(struct cpu_backend *b) {
    phase(b, join_task, row_tasks(b->n_rows));
    products_begin(b);
    products_add(b, INPUT_ATTENTION, &b->blocks[BLOCK_DRAFT].in, b->pair, b->quantised, b->n_rows,
                 NULL, b->projected, b->cfg.plan->d_model);
    products_run(b);
    phase(b, joined_task, row_tasks(b->n_rows));
}

/* y of the chains, into `pair` as the next state, and as the head reads it. */
static void output_norm_task(void *arg, uint32_t task, uint32_t worker) {
    (void)task, (void)worker;
    struct cpu_backend *b = arg;
    const struct cpu_block *block = &b->blocks[b->chains[0].span->block];
    const uint32_t d = b->cfg.plan->d_model;
    for (uint32_t c = 0; c < b->n_chains; c++) {
        float *y = b->normed + (size_t)c * d;
        b->vec->rms_norm(b->x + (size_t)b->chains[c].row * d, block->out_norm, d,
                         b->cfg.plan->norm_epsilon, y);
        memcpy(b->pair + (size_t)c * 2 * d, y, d * sizeof *y);
        if (reads_quantised(b, INPUT_HEAD, &block->head)) quantise_row(b, INPUT_HEAD, y, d, c);
    }
}

/* Task t takes every n_samplers-th chain, with a scratch of its own. */
static void guess_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_backend *b = arg;
    for (uint32_t c = task; c < b->n_chains; c += b->n_samplers) {
        struct cpu_chain *chain = &b->chains[c];
        struct span *span = chain->span;
        const struct block_plan *block = b->blocks[span->block].plan;
        float *z = b->logits + (size_t)c * block->n_ids;
        const float scale = b->cfg.plan->logit_scale;
        if (scale != 1) b->vec->scale(z, scale, block->n_ids);
        struct output o = {.sample = {.target = STEP_NONE, .top_p = 1}};
        sample_row(&b->vec->sample, z, block->n_ids, 0, &o,
                   b->sample_scratch + task * b->sample_scratch_bytes);
        if (o.bad) {
            chain->reach = -1; /* ends here, whatever was asked */
            continue;
        }
        const float p = o.logprob < 0 ? math_expf(o.logprob) : 1;
        chain->id = block->ids[o.token];
        chain->reach *= p;
        b->step->guesses[span->first_guess + span->n_guesses++] = (struct guess){chain->id, p};
    }
}

static void guess(struct cpu_backend *b, const struct cpu_block *block) {
    phase(b, output_norm_task, 1);
    products_begin(b);
    products_add(b, INPUT_HEAD, &block->head, b->normed, b->quantised, b->n_chains, NULL, b->logits,
                 block->plan->n_ids);
    products_run(b);
    phase(b, guess_task, b->n_chains < b->n_samplers ? b->n_chains : b->n_samplers);
}

/* Room for one more position, and a reason to take it. */
static bool goes_on(const struct cpu_backend *b, const struct cpu_chain *c) {
    const uint32_t next = b->position[c->row] + 1;
    const struct span *span = c->span;
    if (next >= b->cfg.n_ctx || next >= span->n_pages * KV_PAGE_TOKENS) return false;
    if (span->n_guesses == 0) return c->reach == 1;
    return span->n_guesses < span->max_guesses && c->reach > 0 && c->reach >= span->least_reach;
}

/* Chains that go on, close together, with their rows one position further. */
static void advance(struct cpu_backend *b) {
    const uint32_t d = b->cfg.plan->d_model;
    uint32_t n = 0;
    for (uint32_t c = 0; c < b->n_chains; c++) {
        struct cpu_chain *chain = &b->chains[c];
        if (!goes_on(b, chain)) continue;
        b->position[chain->row]++;
        b->next_id[chain->row] = chain->id;
        rope_rows(b, chain->row);
        if (n < c)
            memcpy(b->pair + (size_t)n * 2 * d, b->pair + (size_t)c * 2 * d, d * sizeof(float));
        b->chains[n] = *chain;
        b->rows[n++] = chain->row;
    }
    b->n_chains = b->n_rows = b->n_full = n;
}

static void draft_block_run(struct cpu_backend *b) {
    const struct cpu_block *block = &b->blocks[BLOCK_DRAFT];
    choose_rows(b, BLOCK_DRAFT);
    if (b->n_rows > 0) phase(b, normalise_task, row_tasks(b->n_rows));
    while (b->n_rows > 0) {
        join(b);
        b->layer = block->layer;
        layer_run(b);
        if (b->n_chains == 0) return;
        guess(b, block);
        advance(b);
    }
}

/* Its keys were written in passing (exit_block_keys); the tokens are fed through the trunk. */
static void exit_block_run(struct cpu_backend *b) {
    const struct cpu_block *block = &b->blocks[BLOCK_EXIT];
    choose_rows(b, BLOCK_EXIT);
    for (advance(b); b->n_chains > 0; advance(b)) {
        for (uint32_t c = 0; c < b->n_chains; c++)
            embed_row(b, b->chains[c].id, b->x + (size_t)b->chains[c].row * b->cfg.plan->d_model);
        for (uint32_t l = 0; l <= block->plan->after_layer; l++) {
            b->layer = l < block->plan->after_layer ? &b->layers[l] : block->layer;
            layer_run(b);
        }
        guess(b, block);
    }
}

void blocks_guess(struct cpu_backend *b) {
    b->step->n_guesses = 0;
    for (uint32_t i = 0; i < b->step->n_spans; i++) b->step->spans[i].n_guesses = 0;
    b->guessing = true;
    /* The draft block reads the rows' last states: before an exit block's chains move any. */
    if (b->blocks[BLOCK_DRAFT].plan != NULL) draft_block_run(b);
    if (b->blocks[BLOCK_EXIT].plan != NULL) exit_block_run(b);
    b->guessing = false;
}

void exit_block_keys(struct cpu_backend *b, uint32_t n_layers_run) {
    const struct cpu_block *block = &b->blocks[BLOCK_EXIT];
    const struct step *s = b->step;
    if (block->plan == NULL || block->plan->after_layer != n_layers_run) return;
    b->n_rows = b->n_full = 0;
    for (uint32_t i = 0; i < s->n_spans; i++)
        for (uint32_t r = s->spans[i].block_from;
             blocks_take(b, &s->spans[i]) && r < s->spans[i].n_tokens; r++)
            b->rows[b->n_rows++] = s->spans[i].first_row + r;
    b->layer = block->layer;
    if (b->n_rows > 0) layer_run(b);
}
