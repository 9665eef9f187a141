#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "models/encoder_kernels.h"
#include "models/train_block_impl.h"

void train_tensor_shape(const struct train_shape *s, enum train_tensor t, uint32_t *rows,
                        uint32_t *columns) {
    const uint32_t wide = s->n_heads * s->head_dim, narrow = s->n_kv_heads * s->head_dim;
    const uint32_t shapes[TRAIN_TENSORS][2] = {
        [TRAIN_IN] = {s->n_inputs == 2 ? s->d : 0, 2 * s->d},
        [TRAIN_NORM1] = {1, s->d},
        [TRAIN_Q] = {wide, s->d},
        [TRAIN_K] = {narrow, s->d},
        [TRAIN_V] = {narrow, s->d},
        [TRAIN_O] = {s->d, wide},
        [TRAIN_NORM2] = {1, s->d},
        [TRAIN_GATE] = {s->d_ff, s->d},
        [TRAIN_UP] = {s->d_ff, s->d},
        [TRAIN_DOWN] = {s->d, s->d_ff},
        [TRAIN_NORM3] = {1, s->d},
    };
    *rows = shapes[t][0];
    *columns = shapes[t][1];
}

size_t train_tensor_offset(const struct train_shape *s, enum train_tensor t) {
    size_t at = 0;
    for (int i = 0; i < (int)t; i++) {
        uint32_t rows, columns;
        train_tensor_shape(s, (enum train_tensor)i, &rows, &columns);
        at += (size_t)rows * columns;
    }
    return at;
}

/* Every array of a block is taken as one piece; NULL mem: only counts. */
static size_t lay_out(struct train_block *b, float *mem, uint32_t workers) {
    const struct train_shape *s = &b->shape;
    const size_t r = b->max_rows, d = s->d, t = b->max_targets;
    const size_t wide = (size_t)s->n_heads * s->head_dim,
                 narrow = (size_t)s->n_kv_heads * s->head_dim;
    const size_t half = s->rope.n_dims / 2;
    /* A short last group of sixteen lanes may be read and written beyond n_shortlist. */
    const size_t shortlist = t * s->n_shortlist + ENCODER_LANES;
    const struct {
        float **at;
        size_t floats;
    } pieces[] = {
        {&b->weights, b->n_weights},
        {&b->gradient, b->n_weights},
        {&b->moment1, b->n_weights},
        {&b->moment2, b->n_weights},
        {&b->x0, r * d},
        {&b->a, r * d},
        {&b->r1, r},
        {&b->q, r * wide},
        {&b->k, r * narrow},
        {&b->v, r * narrow},
        {&b->o, r * wide},
        {&b->x1, r * d},
        {&b->f, r * d},
        {&b->r2, r},
        {&b->gate, r * s->d_ff},
        {&b->up, r * s->d_ff},
        {&b->act, r * s->d_ff},
        {&b->x2, r * d},
        {&b->y, r * d},
        {&b->r3, r},
        {&b->logits, shortlist},
        {&b->normed, t * d},
        {&b->dx, r * d},
        {&b->da, r * (wide > d ? wide : d)},
        {&b->dq, r * wide},
        {&b->dk, r * narrow},
        {&b->dv, r * narrow},
        {&b->dwide, r * s->d_ff},
        {&b->dup, r * s->d_ff},
        {&b->dnormed, t * d},
        {&b->sines, r * half},
        {&b->cosines, r * half},
        {&b->attention_scratch, b->attention_floats * workers},
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        if (mem != NULL) *pieces[i].at = mem + n;
        n += (pieces[i].floats + 15) & ~(size_t)15;
    }
    return n;
}

enum status train_block_open(const struct train_shape *shape, const float *head, enum cpu_isa isa,
                             struct worker_pool *pool, uint32_t max_rows, uint32_t max_targets,
                             struct train_block **out, struct error *e) {
    CHECK(shape->n_inputs == 1 || shape->n_inputs == 2);
    CHECK(shape->d > 0 && shape->n_kv_heads > 0 && shape->n_heads % shape->n_kv_heads == 0);
    CHECK(shape->rope.n_dims <= shape->head_dim && max_rows > 0 && max_targets <= max_rows);
    *out = NULL;
    struct train_block *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for training");
    b->shape = *shape;
    b->head = head;
    b->max_rows = max_rows;
    b->max_targets = max_targets;
    b->n_weights = train_tensor_offset(shape, TRAIN_TENSORS);
    b->attention_floats = train_attention_floats(shape, max_rows);
    const uint32_t workers = pool != NULL ? worker_pool_size(pool) : 1;
    uint32_t longest = shape->d_ff;
    const uint32_t others[] = {2 * shape->d, shape->n_heads * shape->head_dim, shape->n_shortlist,
                               max_rows};
    for (int i = 0; i < 4; i++)
        if (others[i] > longest) longest = others[i];
    const size_t bytes = lay_out(b, NULL, workers) * sizeof(float);
    void *mem = NULL;
    enum status st = gemm_open(&b->gemm, isa, pool, longest, e);
    if (st == STATUS_OK && posix_memalign(&mem, 64, bytes) != 0)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for training: %zu MB", bytes >> 20);
    if (st != STATUS_OK) {
        gemm_close(&b->gemm);
        free(b);
        return st;
    }
    memset(mem, 0, bytes);
    lay_out(b, mem, workers);
    *out = b;
    return STATUS_OK;
}

void train_block_close(struct train_block *b) {
    if (b == NULL) return;
    gemm_close(&b->gemm);
    free(b->weights); /* the first piece */
    free(b);
}

float *train_block_weights(struct train_block *b) {
    return b->weights;
}
const float *train_block_gradient(const struct train_block *b) {
    return b->gradient;
}
const float *train_block_output(const struct train_block *b) {
    return b->y;
}

static float *tensor_in(const struct train_block *b, float *array, enum train_tensor t) {
    return array + train_tensor_offset(&b->shape, t);
}

/* y [rows, out] = x [rows, in] W^T */
static void linear(const struct train_block *b, const float *x, enum train_tensor t, float *y,
                   uint32_t n_rows, bool accumulate) {
    uint32_t out, in;
    train_tensor_shape(&b->shape, t, &out, &in);
    const struct gemm g = {n_rows, out,   in,   x,         tensor_in(b, b->weights, t), y, in, in,
                           out,    false, true, accumulate};
    gemm_run(&b->gemm, &g);
}

/* dW = dy^T x; and, where dx is wanted, dx (+)= dy W. */
static void linear_backward(const struct train_block *b, const float *x, const float *dy,
                            enum train_tensor t, uint32_t n_rows, float *dx, bool accumulate) {
    uint32_t out, in;
    train_tensor_shape(&b->shape, t, &out, &in);
    const struct gemm weights = {out, in, n_rows, dy,   x,     tensor_in(b, b->gradient, t),
                                 out, in, in,     true, false, false};
    gemm_run(&b->gemm, &weights);
    if (dx == NULL) return;
    const struct gemm inputs = {n_rows, in,        out, dy, tensor_in(b, b->weights, t),
                                dx,     out,       in,  in, false,
                                false,  accumulate};
    gemm_run(&b->gemm, &inputs);
}

/* y = x r w, r = 1 / sqrt(mean x^2 + epsilon). */
static void rms_norm(const struct train_block *b, const float *x, enum train_tensor t, float *y,
                     float *r, uint32_t n_rows) {
    const uint32_t d = b->shape.d;
    const float *w = tensor_in(b, b->weights, t);
    for (uint32_t i = 0; i < n_rows; i++, x += d, y += d) {
        float sum = 0;
        for (uint32_t j = 0; j < d; j++) sum = fmaf(x[j], x[j], sum);
        r[i] = 1.0f / sqrtf(sum / (float)d + b->shape.norm_epsilon);
        for (uint32_t j = 0; j < d; j++) y[j] = x[j] * r[i] * w[j];
    }
}

/* dw (is set), and dx += r (w dy - x r^2 mean(x w dy)). */
static void rms_norm_backward(const struct train_block *b, const float *x, const float *dy,
                              enum train_tensor t, const float *r, uint32_t n_rows, float *dx) {
    const uint32_t d = b->shape.d;
    const float *w = tensor_in(b, b->weights, t);
    float *dw = tensor_in(b, b->gradient, t);
    memset(dw, 0, d * sizeof *dw);
    for (uint32_t i = 0; i < n_rows; i++, x += d, dy += d, dx += d) {
        float sum = 0;
        for (uint32_t j = 0; j < d; j++) {
            sum = fmaf(x[j] * w[j], dy[j], sum);
            dw[j] = fmaf(x[j] * r[i], dy[j], dw[j]);
        }
        const float c = sum / (float)d * r[i] * r[i];
        for (uint32_t j = 0; j < d; j++) dx[j] = fmaf(r[i], w[j] * dy[j] - x[j] * c, dx[j]);
    }
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + math_expf(-x));
}

static void turn_positions(struct train_block *b, const struct train_batch *batch) {
    const struct rope_plan *r = &b->shape.rope;
    const uint32_t half = r->n_dims / 2;
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        for (uint32_t j = 0; j < half; j++) {
            double s, c;
            math_sincos((double)batch->position[i] * r->inv_freq[j], &s, &c);
            b->sines[(size_t)i * half + j] = (float)(s * (double)r->mscale);
            b->cosines[(size_t)i * half + j] = (float)(c * (double)r->mscale);
        }
    }
}

static void forward(struct train_block *b, const struct train_batch *batch) {
    const struct train_shape *s = &b->shape;
    const uint32_t n = batch->n_rows;
    const size_t all = (size_t)n * s->d;
    turn_positions(b, batch);
    if (s->n_inputs == 2)
        linear(b, batch->in, TRAIN_IN, b->x0, n, false);
    else
        memcpy(b->x0, batch->in, all * sizeof *b->x0);
    rms_norm(b, b->x0, TRAIN_NORM1, b->a, b->r1, n);
    linear(b, b->a, TRAIN_Q, b->q, n, false);
    linear(b, b->a, TRAIN_K, b->k, n, false);
    linear(b, b->a, TRAIN_V, b->v, n, false);
    train_rope(b, n, b->q, s->n_heads, false);
    train_rope(b, n, b->k, s->n_kv_heads, false);
    train_attention_forward(b, batch);
    memcpy(b->x1, b->x0, all * sizeof *b->x1);
    linear(b, b->o, TRAIN_O, b->x1, n, true);
    rms_norm(b, b->x1, TRAIN_NORM2, b->f, b->r2, n);
    linear(b, b->f, TRAIN_GATE, b->gate, n, false);
    linear(b, b->f, TRAIN_UP, b->up, n, false);
    for (size_t i = 0; i < (size_t)n * s->d_ff; i++)
        b->act[i] = b->gate[i] * sigmoid(b->gate[i]) * b->up[i];
    memcpy(b->x2, b->x1, all * sizeof *b->x2);
    linear(b, b->act, TRAIN_DOWN, b->x2, n, true);
    rms_norm(b, b->x2, TRAIN_NORM3, b->y, b->r3, n);
}

/* From dL/dy in b->dx. */
static void backward(struct train_block *b, const struct train_batch *batch) {
    const struct train_shape *s = &b->shape;
    const uint32_t n = batch->n_rows;
    const size_t all = (size_t)n * s->d;
    memcpy(b->da, b->dx, all * sizeof *b->da);
    memset(b->dx, 0, all * sizeof *b->dx);
    rms_norm_backward(b, b->x2, b->da, TRAIN_NORM3, b->r3, n, b->dx);

    linear_backward(b, b->act, b->dx, TRAIN_DOWN, n, b->dwide, false);
    for (size_t i = 0; i < (size_t)n * s->d_ff; i++) {
        const float g = b->gate[i], z = sigmoid(g), d = b->dwide[i];
        b->dup[i] = d * g * z;
        b->dwide[i] = d * b->up[i] * z * (1.0f + g * (1.0f - z));
    }
    linear_backward(b, b->f, b->dwide, TRAIN_GATE, n, b->da, false);
    linear_backward(b, b->f, b->dup, TRAIN_UP, n, b->da, true);
    rms_norm_backward(b, b->x1, b->da, TRAIN_NORM2, b->r2, n, b->dx);

    linear_backward(b, b->o, b->dx, TRAIN_O, n, b->da, false);
    train_attention_backward(b, batch);
    train_rope(b, n, b->dq, s->n_heads, true);
    train_rope(b, n, b->dk, s->n_kv_heads, true);
    linear_backward(b, b->a, b->dq, TRAIN_Q, n, b->da, false);
    linear_backward(b, b->a, b->dk, TRAIN_K, n, b->da, true);
    linear_backward(b, b->a, b->dv, TRAIN_V, n, b->da, true);
    rms_norm_backward(b, b->x0, b->da, TRAIN_NORM1, b->r1, n, b->dx);
    if (s->n_inputs == 2) linear_backward(b, batch->in, b->dx, TRAIN_IN, n, NULL, false);
}

/* Softmax in place, the row's loss, and with `gradient` q - p over it. */
static void row_loss(struct train_block *b, const struct train_target *t, float *logits,
                     bool gradient, float weight, struct train_loss *loss) {
    const uint32_t n = b->shape.n_shortlist;
    if (t->n == 0) {
        memset(logits, 0, n * sizeof *logits);
        return;
    }
    uint32_t best = 0, wanted = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    const float most = logits[best];
    float sum = 0, cross = 0;
    for (uint32_t i = 0; i < n; i++) sum += math_expf(logits[i] - most);
    const float lse = most + math_logf(sum);
    for (uint32_t k = 0; k < t->n; k++) {
        cross = fmaf(t->probability[k], lse - logits[t->rank[k]], cross);
        if (t->probability[k] > t->probability[wanted]) wanted = k;
    }
    loss->cross_entropy += (double)cross;
    loss->n++;
    loss->agreed += t->rank[wanted] == best;
    if (!gradient) return;
    for (uint32_t i = 0; i < n; i++) logits[i] = math_expf(logits[i] - lse) * weight;
    for (uint32_t k = 0; k < t->n; k++) logits[t->rank[k]] -= t->probability[k] * weight;
}

struct loss_job {
    struct train_block *b;
    const struct train_batch *batch;
    bool gradient;
    float weight;
    struct train_loss *rows; /* [n_targets] */
};

static void loss_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct loss_job *j = arg;
    row_loss(j->b, &j->batch->targets[task], j->b->logits + (size_t)task * j->b->shape.n_shortlist,
             j->gradient, j->weight, &j->rows[task]);
}

void train_block_run(struct train_block *b, const struct train_batch *batch, float feature_weight,
                     bool gradient, struct train_loss *loss) {
    const struct train_shape *s = &b->shape;
    const uint32_t d = s->d, n_targets = batch->n_targets;
    CHECK(batch->n_rows <= b->max_rows && n_targets <= b->max_targets);
    CHECK(batch->first_row[batch->n_sequences] == batch->n_rows);
    forward(b, batch);
    for (uint32_t i = 0; i < n_targets; i++)
        memcpy(b->normed + (size_t)i * d, b->y + (size_t)batch->targets[i].row * d,
               d * sizeof *b->y);
    const struct gemm head = {n_targets, s->n_shortlist, d,     b->normed, b->head, b->logits, d,
                              d,         s->n_shortlist, false, true,      false};
    gemm_run(&b->gemm, &head);
    const float weight = n_targets > 0 ? 1.0f / (float)n_targets : 0;
    /* Per row, so that the sum has one order; dwide holds nothing yet. */
    struct train_loss *rows = (struct train_loss *)(void *)b->dwide;
    CHECK(n_targets * sizeof *rows <= (size_t)b->max_rows * s->d_ff * sizeof(float));
    memset(rows, 0, n_targets * sizeof *rows);
    struct loss_job j = {b, batch, gradient, weight, rows};
    if (b->gemm.pool != NULL)
        worker_pool_run(b->gemm.pool, loss_task, &j, n_targets);
    else
        for (uint32_t i = 0; i < n_targets; i++) loss_task(&j, i, 0);
    for (uint32_t i = 0; i < n_targets; i++) {
        loss->cross_entropy += rows[i].cross_entropy;
        loss->n += rows[i].n;
        loss->agreed += rows[i].agreed;
    }
    if (gradient) {
        const struct gemm back = {n_targets, d,          s->n_shortlist, b->logits,
                                  b->head,   b->dnormed, s->n_shortlist, d,
                                  d,         false,      false,          false};
        gemm_run(&b->gemm, &back);
        memset(b->dx, 0, (size_t)batch->n_rows * d * sizeof *b->dx);
    }
    for (uint32_t i = 0; i < n_targets; i++) {
        const struct train_target *t = &batch->targets[i];
        const float *y = b->normed + (size_t)i * d, *dy = b->dnormed + (size_t)i * d;
        float *dx = b->dx + (size_t)t->row * d;
        const float scale = t->feature != NULL ? feature_weight / (float)d : 0;
        for (uint32_t k = 0; k < d; k++) {
            const float off = t->feature != NULL ? y[k] - t->feature[k] : 0;
            loss->feature += 0.5 * (double)(scale * off) * (double)off;
            if (gradient) dx[k] = dy[k] + scale * off * weight;
        }
    }
    if (gradient) backward(b, batch);
}

void train_block_step(struct train_block *b, const struct train_adam *a) {
    double norm = 0;
    for (size_t i = 0; i < b->n_weights; i++)
        norm += (double)b->gradient[i] * (double)b->gradient[i];
    norm = sqrt(norm);
    const float clip = norm > (double)a->clip_norm ? (float)((double)a->clip_norm / norm) : 1.0f;
    b->n_steps++;
    const double n = (double)b->n_steps;
    const double correct1 = 1 - math_exp(n * math_log((double)a->beta1));
    const double correct2 = 1 - math_exp(n * math_log((double)a->beta2));
    const float rate = (float)((double)a->rate / correct1);
    const float scale2 = (float)(1 / correct2);
    for (size_t i = 0; i < b->n_weights; i++) {
        const float g = b->gradient[i] * clip;
        b->moment1[i] = a->beta1 * b->moment1[i] + (1 - a->beta1) * g;
        b->moment2[i] = a->beta2 * b->moment2[i] + (1 - a->beta2) * g * g;
        const float step = b->moment1[i] / (sqrtf(b->moment2[i] * scale2) + a->epsilon);
        b->weights[i] -= rate * step + a->rate * a->decay * b->weights[i];
    }
}

size_t train_block_state_bytes(const struct train_block *b) {
    return sizeof b->n_steps + 3 * b->n_weights * sizeof(float);
}

void train_block_save(const struct train_block *b, void *state) {
    const size_t bytes = b->n_weights * sizeof(float);
    uint8_t *to = state;
    memcpy(to, &b->n_steps, sizeof b->n_steps), to += sizeof b->n_steps;
    memcpy(to, b->weights, bytes), to += bytes;
    memcpy(to, b->moment1, bytes), to += bytes;
    memcpy(to, b->moment2, bytes);
}

void train_block_load(struct train_block *b, const void *state) {
    const size_t bytes = b->n_weights * sizeof(float);
    const uint8_t *from = state;
    memcpy(&b->n_steps, from, sizeof b->n_steps), from += sizeof b->n_steps;
    memcpy(b->weights, from, bytes), from += bytes;
    memcpy(b->moment1, from, bytes), from += bytes;
    memcpy(b->moment2, from, bytes);
}
