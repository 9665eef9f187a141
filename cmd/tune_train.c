/* Training a draft block or an exit block on the records. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "cmd/tune.h"
#include "core/check.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "models/learned_block.h"
#include "models/ridge_fit.h"
#include "models/shortlist.h"

enum {
    BATCH_ROWS = 256,    /* a batch is closed once it has as many rows */
    SEQUENCE_ROWS = 384, /* of a longer one, the last */
    CONTEXT_ROWS = 24,   /* of the prompt */
    MAX_ROWS = BATCH_ROWS + SEQUENCE_ROWS,
    MAX_SEQUENCES = MAX_ROWS,
    CHECKPOINT_STEPS = 40,
    WARM_UP_STEPS = 20,
};
/* A draft block begins with a linear map that is often right already; a higher rate throws that
 * away: of 33 % right on unseen topics, 90 answers and one epoch leave 30 with 2e-4, 28 with 1.5e-3
 * (in a NumPy copy of this). On 616 answers one epoch at this rate goes from 36.5 to 45.8 %. */
#define DRAFT_RATE     5e-5f
#define EXIT_RATE      1.5e-3f
#define FEATURE_WEIGHT 0.1f

struct trainer {
    struct tune *t;
    const struct tune_block *spec;
    struct train_shape shape;
    struct train_block *block;
    float *head;                  /* [n_shortlist, d] */
    uint32_t *rank;               /* [n_vocab]: of the shortlist, or STEP_NONE */
    uint32_t *order, n_order;     /* answers */
    uint32_t epoch, next;         /* answers of this epoch that were used */
    const struct shortlist *seen; /* as the seen topics alone give it */
    bool measuring;
    /* the batch */
    float *in, *features;
    uint32_t *first_row, *position;
    struct train_target *targets;
    struct train_batch batch;
};

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for training");
}

static void dequantise_rows(const struct weight *w, uint32_t row, uint32_t n, float *to) {
    const uint64_t k = w->t->dim[0], bytes = tensor_row_bytes(tensor_format(w->t->type), k);
    tensor_dequantise(w->t->type, (const uint8_t *)w->t->data + (w->row0 + row) * bytes, to, n * k);
}

/* Of the mean square of an input. On 90 answers, right on unseen topics without any training: 34.0,
 * 33.6, 33.1, 29.3 % with 1e-4, 3e-4, 1e-3, 1e-2; on 616 answers 36.5 % (3e-4). */
#define RIDGE 3e-4

/* Divisors of the state's channels: the output norm's weights, of which small ones say little. */
static float norm_weight(float w) {
    const float least = 0.05f;
    return fabsf(w) < least ? copysignf(least, w) : w;
}

/* The layer's own weights to begin with. A draft block's layer adds nothing at first: its input
 * projection alone makes the guess (fit_input), and training goes on from there. */
static void begin_weights(const struct trainer *r, uint32_t like_layer) {
    const struct plan *p = r->t->engine->plan;
    const struct layer_plan *l = &p->layers[like_layer];
    const struct train_shape *s = &r->shape;
    float *w = train_block_weights(r->block);
    const struct {
        enum train_tensor to;
        const struct weight *from;
    } matrices[] = {{TRAIN_Q, &l->q},      {TRAIN_K, &l->k},       {TRAIN_V, &l->v},
                    {TRAIN_O, &l->o},      {TRAIN_GATE, &l->gate}, {TRAIN_UP, &l->up},
                    {TRAIN_DOWN, &l->down}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        dequantise_rows(matrices[i].from, 0, matrices[i].from->n_rows,
                        w + train_tensor_offset(s, matrices[i].to));
    const struct {
        enum train_tensor to;
        const struct tensor *from;
    } norms[] = {
        {TRAIN_NORM1, l->attn_norm}, {TRAIN_NORM2, l->ffn_norm}, {TRAIN_NORM3, p->out_norm}};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        tensor_dequantise(norms[i].from->type, norms[i].from->data,
                          w + train_tensor_offset(s, norms[i].to), s->d);
    if (s->n_inputs == 1) return;
    memset(w + train_tensor_offset(s, TRAIN_O), 0,
           (size_t)s->d * s->n_heads * s->head_dim * sizeof *w);
    memset(w + train_tensor_offset(s, TRAIN_DOWN), 0, (size_t)s->d * s->d_ff * sizeof *w);
}

/* Rows of an answer that are used: [*first, *last), by the token whose state they hold. */
static void answer_rows(const struct trainer *r, const struct tune_answer *a, uint32_t *first,
                        uint32_t *last) {
    *last = r->shape.n_inputs == 2 ? a->n - 2 : a->n - 1;
    *first = a->n_prompt > CONTEXT_ROWS ? a->n_prompt - CONTEXT_ROWS : 0;
    if (*last > *first + SEQUENCE_ROWS) *last = *first + SEQUENCE_ROWS;
    if (*last < *first) *last = *first;
}

static void embed_token(const struct trainer *r, uint32_t id, float *to) {
    const struct plan *p = r->t->engine->plan;
    const struct weight w = {p->embed, 0, p->n_vocab};
    dequantise_rows(&w, id, 1, to);
    for (uint32_t i = 0; i < p->d_model; i++) to[i] *= p->embed_scale;
}

static void to_floats(const uint16_t *from, uint32_t n, float *to) {
    for (uint32_t i = 0; i < n; i++) to[i] = f16_to_f32(from[i]);
}

/* The model's distribution over the shortlist, renormalised; n = 0 when none of it is there, or
 * when, in measuring, the likeliest token is one that the seen topics would not have listed. */
static void set_target(const struct trainer *r, const struct tune_record *record,
                       struct train_target *t) {
    float sum = 0;
    t->n = 0;
    if (r->measuring && shortlist_find(r->seen, record->ids[0]) == SHORTLIST_NONE) return;
    for (uint32_t k = 0; k < TUNE_TOP; k++) {
        if (record->ids[k] == STEP_NONE || r->rank[record->ids[k]] == STEP_NONE) continue;
        t->rank[t->n] = r->rank[record->ids[k]];
        t->probability[t->n++] = record->probability[k];
        sum += record->probability[k];
    }
    if (!(sum > 0)) t->n = 0;
    for (uint32_t k = 0; k < t->n; k++) t->probability[k] /= sum;
}

static void add_answer(struct trainer *r, uint32_t index) {
    const struct tune_answer *a = &r->t->set.answers[index];
    const uint32_t d = r->shape.d, wide = d * r->shape.n_inputs;
    const uint16_t *states = tune_states(r->t, index, r->spec->tap);
    const struct tune_record *records = tune_records(r->t, index);
    const uint32_t ahead = r->shape.n_inputs - 1; /* tokens that a draft's guess lies further on */
    struct train_batch *b = &r->batch;
    uint32_t first, last;
    answer_rows(r, a, &first, &last);
    for (uint32_t at = first; at < last; at++) {
        const uint32_t row = b->n_rows++;
        float *in = r->in + (size_t)row * wide;
        to_floats(states + (size_t)at * d, d, in);
        if (ahead > 0) embed_token(r, a->ids[at + 1], in + d);
        r->position[row] = at;
        if (at + ahead + 1 < a->n_prompt) continue;
        struct train_target *t = &r->targets[b->n_targets];
        *t = (struct train_target){.row = row};
        set_target(r, &records[at + ahead + 1 - a->n_prompt], t);
        if (ahead > 0) {
            float *feature = r->features + (size_t)b->n_targets * d;
            to_floats(states + (size_t)(at + 1) * d, d, feature);
            t->feature = feature;
        }
        b->n_targets++;
    }
    r->first_row[++b->n_sequences] = b->n_rows;
}

/* Fills a batch from order[*next] on; false when there is nothing more. */
static bool next_batch(struct trainer *r, uint32_t *next) {
    r->batch = (struct train_batch){
        .in = r->in, .first_row = r->first_row, .position = r->position, .targets = r->targets};
    r->first_row[0] = 0;
    while (*next < r->n_order && r->batch.n_rows < BATCH_ROWS &&
           r->batch.n_sequences < MAX_SEQUENCES)
        add_answer(r, r->order[(*next)++]);
    return r->batch.n_rows > 0;
}

/* The answers of one kind, and in which order they come in an epoch. */
static void set_order(struct trainer *r, bool unseen, uint32_t epoch) {
    const struct tune_set *s = &r->t->set;
    r->n_order = 0;
    for (uint32_t i = 0; i < s->n_answers; i++)
        if (s->topics[s->answers[i].topic].unseen == unseen) r->order[r->n_order++] = i;
    for (uint32_t i = r->n_order; !unseen && i > 1; i--) {
        const uint32_t k = (uint32_t)(rng_draw(epoch, 0, i, RNG_SAMPLE, 0) % i);
        const uint32_t was = r->order[k];
        r->order[k] = r->order[i - 1];
        r->order[i - 1] = was;
    }
}

struct checkpoint {
    uint64_t key;
    uint32_t epoch, next;
};

/* Raised when training changes: what another build began is not gone on with. */
enum { TRAINING_VERSION = 2 };

static uint64_t checkpoint_key(const struct trainer *r) {
    const uint32_t parts[] = {TRAINING_VERSION,          r->shape.n_inputs,    r->spec->after_layer,
                              r->t->config->tune_epochs, r->shape.n_shortlist, r->n_order};
    return XXH3_64bits_withSeed(r->rank, r->t->engine->plan->n_vocab * sizeof *r->rank,
                                XXH3_64bits(parts, sizeof parts));
}

static enum status save(const struct trainer *r, struct error *e) {
    char path[4096], temporary[4096];
    snprintf(path, sizeof path, "%s/%s", r->t->work, r->spec->name);
    snprintf(temporary, sizeof temporary, "%s/%s.new", r->t->work, r->spec->name);
    const size_t n = train_block_state_bytes(r->block);
    void *state = malloc(n);
    if (state == NULL) return no_memory(e);
    train_block_save(r->block, state);
    const struct checkpoint c = {checkpoint_key(r), r->epoch, r->next};
    const uint64_t hash = XXH3_64bits_withSeed(state, n, c.key ^ c.epoch ^ (uint64_t)c.next << 32);
    FILE *f = fopen(temporary, "wb");
    bool ok = f != NULL && fwrite(&c, sizeof c, 1, f) == 1 && fwrite(state, 1, n, f) == n &&
              fwrite(&hash, sizeof hash, 1, f) == 1;
    if (f != NULL && fclose(f) != 0) ok = false;
    free(state);
    if (!ok || rename(temporary, path) != 0)
        return error_set(e, STATUS_IO, "o", "%s cannot be written", path);
    return STATUS_OK;
}

/* Goes on from a checkpoint of the same training, if there is one. */
static enum status load(struct trainer *r, struct error *e) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", r->t->work, r->spec->name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return STATUS_OK;
    const size_t n = train_block_state_bytes(r->block);
    void *state = malloc(n);
    struct checkpoint c;
    uint64_t hash;
    const bool whole = state != NULL && fread(&c, sizeof c, 1, f) == 1 &&
                       fread(state, 1, n, f) == n && fread(&hash, sizeof hash, 1, f) == 1;
    fclose(f);
    if (whole && c.key == checkpoint_key(r) &&
        hash == XXH3_64bits_withSeed(state, n, c.key ^ c.epoch ^ (uint64_t)c.next << 32)) {
        train_block_load(r->block, state);
        r->epoch = c.epoch;
        r->next = c.next;
    }
    free(state);
    return state != NULL ? STATUS_OK : no_memory(e);
}

static enum status train(struct trainer *r, struct error *e) {
    const uint32_t epochs = r->t->config->tune_epochs;
    set_order(r, false, 0);
    enum status st = load(r, e);
    uint32_t steps = 0;
    while (st == STATUS_OK && r->epoch < epochs && r->n_order > 0) {
        set_order(r, false, r->epoch);
        while (st == STATUS_OK) {
            const double begun =
                ((double)r->epoch * r->n_order + r->next) / ((double)epochs * r->n_order);
            if (!next_batch(r, &r->next)) break;
            const double done =
                ((double)r->epoch * r->n_order + r->next) / ((double)epochs * r->n_order);
            /* Warm-up over the first batches, told by how much of the data they are. */
            const double per_batch = done - begun;
            double rate = 1 - begun;
            if (begun < WARM_UP_STEPS * per_batch)
                rate *= (begun + per_batch) / ((WARM_UP_STEPS + 1) * per_batch);
            rate *= (double)(r->spec->draft ? DRAFT_RATE : EXIT_RATE);
            const struct train_adam adam = {(float)rate, 0.9f, 0.95f, 1e-8f, 0.01f, 1.0f};
            struct train_loss loss = {0};
            train_block_run(r->block, &r->batch, FEATURE_WEIGHT, true, &loss);
            train_block_step(r->block, &adam);
            if (++steps % CHECKPOINT_STEPS == 0) st = save(r, e);
            tune_progress(r->spec->name, r->epoch * r->n_order + r->next, epochs * r->n_order);
        }
        r->next = 0;
        r->epoch++;
    }
    return st == STATUS_OK && steps > 0 ? save(r, e) : st;
}

/* Over r->order, with the weights as the file will hold them. A likeliest token outside the
 * shortlist of the seen topics counts as missed. */
static double agreement(struct trainer *r, uint64_t *positions, struct train_loss *loss) {
    uint32_t next = 0;
    *positions = 0;
    *loss = (struct train_loss){0};
    while (next_batch(r, &next)) {
        train_block_run(r->block, &r->batch, 0, false, loss);
        *positions += r->batch.n_targets;
    }
    return *positions > 0 ? (double)loss->agreed / (double)*positions : 0;
}

static void measure(struct trainer *r, struct tune_block_score *out) {
    struct train_loss loss;
    uint64_t ignored;
    r->measuring = true;
    set_order(r, true, 0);
    const uint32_t n_unseen = r->n_order;
    out->agreement = agreement(r, &out->positions, &loss);
    out->cross_entropy = loss.n > 0 ? loss.cross_entropy / loss.n : 0;
    set_order(r, false, 0);
    if (r->n_order > n_unseen) r->n_order = n_unseen;
    out->agreement_seen = agreement(r, &ignored, &loss);
}

/* The rows of a batch that have targets: x, what they read, y, the next state as the output norm's
 * weights leave it to be. */
static void add_rows(const struct trainer *r, struct ridge_fit *fit, float *x, float *y) {
    const uint32_t d = r->shape.d;
    const float *norm = train_block_weights(r->block) + train_tensor_offset(&r->shape, TRAIN_NORM3);
    for (uint32_t i = 0; i < r->batch.n_targets; i++) {
        const struct train_target *t = &r->targets[i];
        memcpy(x + (size_t)i * 2 * d, r->in + (size_t)t->row * 2 * d, 2 * d * sizeof *x);
        for (uint32_t k = 0; k < d; k++)
            y[(size_t)i * d + k] = t->feature[k] / norm_weight(norm[k]);
    }
    ridge_fit_add(fit, x, y, r->batch.n_targets);
}

/* The input projection as the linear map from state and embedding to the next state: what a draft
 * block has to add to that is small. */
static enum status fit_input(struct trainer *r, struct error *e) {
    const uint32_t d = r->shape.d;
    float *x = malloc((size_t)MAX_ROWS * 2 * d * sizeof *x), *y = malloc(MAX_ROWS * d * sizeof *y);
    struct ridge_fit fit = {0};
    enum status st = STATUS_OK;
    if (x == NULL || y == NULL) st = no_memory(e);
    if (st == STATUS_OK)
        st = ridge_fit_open(&fit, 2 * d, d, MAX_ROWS, r->t->engine->isa, r->t->engine->workers, e);
    uint32_t next = 0;
    set_order(r, false, 0);
    while (st == STATUS_OK && next_batch(r, &next)) {
        add_rows(r, &fit, x, y);
        tune_progress("linear map", next, r->n_order);
    }
    if (st == STATUS_OK && fit.n_rows > 0)
        st = ridge_fit_solve(
            &fit, RIDGE, train_block_weights(r->block) + train_tensor_offset(&r->shape, TRAIN_IN),
            e);
    ridge_fit_close(&fit);
    free(x);
    free(y);
    return st;
}

static void close_trainer(struct trainer *r) {
    train_block_close(r->block);
    free(r->head);
    free(r->rank);
    free(r->order);
    free(r->in);
    free(r->features);
    free(r->first_row);
    free(r->position);
    free(r->targets);
}

static enum status open_trainer(struct trainer *r, const uint32_t *ids, uint32_t n_ids,
                                struct error *e) {
    const struct engine *g = r->t->engine;
    const struct plan *p = g->plan;
    enum status st =
        learned_block_shape(p, r->spec->like_layer, r->spec->draft ? 2 : 1, &r->shape, e);
    if (st != STATUS_OK) return st;
    r->shape.n_shortlist = n_ids;
    const size_t d = p->d_model;
    r->head = malloc(n_ids * d * sizeof *r->head);
    r->rank = malloc(p->n_vocab * sizeof *r->rank);
    r->order = malloc((r->t->set.n_answers + 1) * sizeof *r->order);
    r->in = malloc(MAX_ROWS * d * r->shape.n_inputs * sizeof *r->in);
    r->features = malloc(MAX_ROWS * d * sizeof *r->features);
    r->first_row = malloc((MAX_SEQUENCES + 1) * sizeof *r->first_row);
    r->position = malloc(MAX_ROWS * sizeof *r->position);
    r->targets = malloc(MAX_ROWS * sizeof *r->targets);
    if (r->head == NULL || r->rank == NULL || r->order == NULL || r->in == NULL ||
        r->features == NULL || r->first_row == NULL || r->position == NULL || r->targets == NULL)
        return no_memory(e);
    memset(r->rank, 0xff, p->n_vocab * sizeof *r->rank);
    for (uint32_t i = 0; i < n_ids; i++) {
        r->rank[ids[i]] = i;
        dequantise_rows(&p->head, ids[i], 1, r->head + i * d);
        for (size_t k = 0; k < d; k++) r->head[i * d + k] *= p->logit_scale;
    }
    st = train_block_open(&r->shape, r->head, g->isa, g->workers, MAX_ROWS, MAX_ROWS, &r->block, e);
    if (st != STATUS_OK) return st;
    begin_weights(r, r->spec->like_layer);
    return r->spec->draft ? fit_input(r, e) : STATUS_OK;
}

enum status tune_train_block(struct tune *t, const struct tune_block *spec, const uint32_t *ids,
                             uint32_t n_ids, const struct shortlist *seen, void **section,
                             size_t *n_bytes, struct tune_block_score *score, struct error *e) {
    struct trainer r = {.t = t, .spec = spec, .seen = seen};
    *section = NULL;
    *n_bytes = 0;
    enum status st = open_trainer(&r, ids, n_ids, e);
    if (st == STATUS_OK) st = train(&r, e);
    if (st == STATUS_OK)
        st = learned_block_write(&r.shape, train_block_weights(r.block), spec->after_layer,
                                 spec->like_layer, 0, section, n_bytes, e);
    if (st == STATUS_OK) {
        struct learned_block b;
        st = learned_block_view(&b, *section, *n_bytes, t->engine->plan, e);
        if (st == STATUS_OK) learned_block_weights(&b, train_block_weights(r.block));
    }
    if (st == STATUS_OK) {
        measure(&r, score);
        learned_block_set_agreement(*section, (float)score->agreement);
    }
    if (st != STATUS_OK) {
        free(*section);
        *section = NULL;
        *n_bytes = 0;
    }
    close_trainer(&r);
    return st;
}
