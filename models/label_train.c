#include "models/label_train.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "core/rng.h"
#include "models/train_gemm.h"

enum { BATCH = 128, LANES = 16, TEXT_EPOCHS = 16, NEWTON_STEPS = 30 };
#define STATE_RATE 3e-3f
#define STATE_L2   1e-3f
#define TEXT_RATE  3.0f
#define TEXT_L2    2e-6f

struct trainer {
    const struct label_input *in;
    const struct label_options *o;
    struct gemm_context gemm;
    uint32_t k, kp; /* labels, and that rounded up to whole lanes */
    uint32_t *fold; /* [n] */
    /* held-out scores */
    float *text; /* [n, k] */
    float *held; /* [n_taps][n, k] */
    /* of all rows */
    float *text_bias, *text_weight;   /* [kp], [n_buckets, kp] */
    float *state_bias, *state_weight; /* [n_taps][k], [n_taps][k, d] */
    atomic_bool failed;
};

static void softmax_step(float *z, uint32_t k, uint32_t label) {
    float most = z[0], mass = 0;
    for (uint32_t c = 1; c < k; c++) most = z[c] > most ? z[c] : most;
    for (uint32_t c = 0; c < k; c++) mass += z[c] = math_expf(z[c] - most);
    for (uint32_t c = 0; c < k; c++) z[c] /= mass;
    z[label] -= 1;
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed, uint32_t epoch) {
    for (uint32_t i = n; i > 1; i--) {
        const uint64_t draw = rng_draw(seed, epoch, i, RNG_AUDIT, 1);
        const uint32_t j = (uint32_t)(((draw >> 32) * i) >> 32);
        const uint32_t t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

/* Rows outside the fold (of fold o->folds: all). */
static uint32_t rows_of(const struct trainer *t, uint32_t fold, bool inside, uint32_t *rows) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->in->n; i++)
        if ((t->fold[i] == fold) == inside) rows[n++] = i;
    return n;
}

/* ---- the look at the text ---- */

static void text_scores(const struct trainer *t, const float *bias, const float *w, float scale,
                        uint32_t row, float *z) {
    const struct label_input *in = t->in;
    float sum[HEADS_MAX_LABELS] = {0};
    for (uint64_t j = in->row_start[row]; j < in->row_start[row + 1]; j++) {
        const float *x = w + (size_t)label_bucket(t->o->n_buckets, in->index[j]) * t->kp;
        const float v = in->value[j];
        for (uint32_t c = 0; c < t->kp; c += LANES)
            for (uint32_t i = 0; i < LANES; i++) sum[c + i] += v * x[c + i];
    }
    for (uint32_t c = 0; c < t->k; c++) z[c] = bias[c] + scale * sum[c];
}

static void text_move(const struct trainer *t, float *w, uint32_t row, const float *step) {
    const struct label_input *in = t->in;
    for (uint64_t j = in->row_start[row]; j < in->row_start[row + 1]; j++) {
        float *x = w + (size_t)label_bucket(t->o->n_buckets, in->index[j]) * t->kp;
        const float v = in->value[j];
        for (uint32_t c = 0; c < t->kp; c += LANES)
            for (uint32_t i = 0; i < LANES; i++) x[c + i] += v * step[c + i];
    }
}

/* The weights are scale * w, so that the penalty touches no row's absent features. */
static void text_fit(const struct trainer *t, uint32_t *rows, uint32_t n, float *bias, float *w) {
    const size_t n_w = (size_t)t->o->n_buckets * t->kp;
    float z[HEADS_MAX_LABELS], step[HEADS_MAX_LABELS] = {0}, scale = 1;
    memset(bias, 0, t->kp * sizeof *bias);
    memset(w, 0, n_w * sizeof *w);
    const float all = (float)n * TEXT_EPOCHS;
    uint64_t steps = 0;
    for (uint32_t epoch = 0; epoch < TEXT_EPOCHS; epoch++) {
        shuffle(rows, n, t->o->seed, epoch);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t row = rows[i];
            text_scores(t, bias, w, scale, row, z);
            softmax_step(z, t->k, t->in->label[row]);
            const float rate = TEXT_RATE * (1 - (float)steps++ / all);
            scale *= 1 - rate * TEXT_L2;
            for (uint32_t c = 0; c < t->k; c++) {
                bias[c] -= 0.1f * rate * z[c];
                step[c] = -rate * z[c] / scale;
            }
            text_move(t, w, row, step);
        }
    }
    for (size_t j = 0; j < n_w; j++) w[j] *= scale;
}

/* ---- heads on states ---- */

struct state_fit {
    float *mean, *inverse;         /* [d]: of the rows' states; 1 / standard deviation */
    float *w, *gradient, *m, *v;   /* [kp, d] */
    float *bias, *bias_m, *bias_v; /* [kp] */
    float *x, *z;                  /* [BATCH, d], [BATCH, kp] */
};

static void standards(const struct trainer *t, const float *states, const uint32_t *rows,
                      uint32_t n, struct state_fit *f) {
    const uint32_t d = t->in->d;
    for (uint32_t i = 0; i < d; i++) {
        double sum = 0, square = 0;
        for (uint32_t r = 0; r < n; r++) sum += (double)states[(size_t)rows[r] * d + i];
        const double mean = sum / n;
        for (uint32_t r = 0; r < n; r++) {
            const double x = (double)states[(size_t)rows[r] * d + i] - mean;
            square += x * x;
        }
        f->mean[i] = (float)mean;
        f->inverse[i] = (float)(1 / sqrt(square / n + 1e-12));
    }
}

static void gather(const struct trainer *t, const float *states, const uint32_t *rows, uint32_t n,
                   const struct state_fit *f) {
    const uint32_t d = t->in->d;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < d; i++)
            f->x[(size_t)r * d + i] =
                (states[(size_t)rows[r] * d + i] - f->mean[i]) * f->inverse[i];
}

static void state_scores(const struct trainer *t, const struct state_fit *f, uint32_t n,
                         uint32_t worker) {
    const struct gemm g = {.m = n,
                           .n = t->kp,
                           .k = t->in->d,
                           .a = f->x,
                           .b = f->w,
                           .c = f->z,
                           .a_stride = t->in->d,
                           .b_stride = t->in->d,
                           .c_stride = t->kp,
                           .b_transposed = true};
    gemm_serial(&t->gemm, &g, worker);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < t->k; c++) f->z[(size_t)r * t->kp + c] += f->bias[c];
}

static void adam(float *w, const float *g, float *m, float *v, size_t n, float rate, float l2,
                 float share1, float share2) {
    for (size_t i = 0; i < n; i++) {
        const float x = g[i] + l2 * w[i];
        m[i] += 0.1f * (x - m[i]);
        v[i] += 0.001f * (x * x - v[i]);
        w[i] -= rate * (m[i] * share1) / (sqrtf(v[i] * share2) + 1e-8f);
    }
}

static void state_step(const struct trainer *t, const struct state_fit *f, const uint32_t *rows,
                       uint32_t n, float rate, float share1, float share2, uint32_t worker) {
    const uint32_t d = t->in->d, kp = t->kp;
    float bias[HEADS_MAX_LABELS] = {0};
    state_scores(t, f, n, worker);
    for (uint32_t r = 0; r < n; r++) {
        float *z = f->z + (size_t)r * kp;
        softmax_step(z, t->k, t->in->label[rows[r]]);
        for (uint32_t c = t->k; c < kp; c++) z[c] = 0;
        for (uint32_t c = 0; c < t->k; c++) {
            z[c] /= (float)n;
            bias[c] += z[c];
        }
    }
    const struct gemm g = {.m = kp,
                           .n = d,
                           .k = n,
                           .a = f->z,
                           .b = f->x,
                           .c = f->gradient,
                           .a_stride = kp,
                           .b_stride = d,
                           .c_stride = d,
                           .a_transposed = true};
    gemm_serial(&t->gemm, &g, worker);
    adam(f->w, f->gradient, f->m, f->v, (size_t)kp * d, rate, STATE_L2, share1, share2);
    adam(f->bias, bias, f->bias_m, f->bias_v, kp, rate, 0, share1, share2);
}

static void state_fit(const struct trainer *t, const float *states, uint32_t *rows, uint32_t n,
                      const struct state_fit *f, uint32_t worker) {
    const uint32_t steps = (n + BATCH - 1) / BATCH * t->o->epochs;
    float beta1 = 1, beta2 = 1;
    uint32_t step = 0;
    for (uint32_t epoch = 0; epoch < t->o->epochs; epoch++) {
        shuffle(rows, n, t->o->seed + 1, epoch);
        for (uint32_t at = 0; at < n; at += BATCH, step++) {
            const uint32_t rows_now = n - at < BATCH ? n - at : BATCH;
            beta1 *= 0.9f, beta2 *= 0.999f;
            gather(t, states, rows + at, rows_now, f);
            state_step(t, f, rows + at, rows_now, STATE_RATE * (1 - (float)step / (float)steps),
                       1 / (1 - beta1), 1 / (1 - beta2), worker);
        }
    }
}

/* ---- one learner on one fold's rows ---- */

static bool run_text(struct trainer *t, uint32_t fold, uint32_t *rows) {
    const bool last = fold == t->o->folds;
    const size_t n_w = (size_t)t->o->n_buckets * t->kp;
    float *mem = last ? NULL : malloc((n_w + t->kp) * sizeof *mem);
    if (!last && mem == NULL) return false;
    float *w = last ? t->text_weight : mem, *bias = last ? t->text_bias : mem + n_w;
    uint32_t n = rows_of(t, fold, false, rows);
    text_fit(t, rows, n, bias, w);
    n = last ? 0 : rows_of(t, fold, true, rows);
    for (uint32_t i = 0; i < n; i++)
        text_scores(t, bias, w, 1, rows[i], t->text + (size_t)rows[i] * t->k);
    free(mem);
    return true;
}

static bool run_state(struct trainer *t, uint32_t tap, uint32_t fold, uint32_t *rows,
                      uint32_t worker) {
    const uint32_t d = t->in->d, k = t->k, kp = t->kp;
    const float *states = t->in->states + (size_t)tap * t->in->n * d;
    const size_t wide = (size_t)kp * d;
    float *mem = calloc(2 * d + 4 * wide + 3 * kp + BATCH * (d + kp), sizeof *mem);
    if (mem == NULL) return false;
    struct state_fit f = {.mean = mem, .inverse = mem + d, .w = mem + 2 * d};
    f.gradient = f.w + wide, f.m = f.gradient + wide, f.v = f.m + wide;
    f.bias = f.v + wide, f.bias_m = f.bias + kp, f.bias_v = f.bias_m + kp;
    f.x = f.bias_v + kp, f.z = f.x + (size_t)BATCH * d;
    uint32_t n = rows_of(t, fold, false, rows);
    standards(t, states, rows, n, &f);
    state_fit(t, states, rows, n, &f, worker);
    if (fold == t->o->folds) {
        /* As weights of the states themselves. */
        for (uint32_t c = 0; c < k; c++) {
            double bias = (double)f.bias[c];
            float *w = t->state_weight + ((size_t)tap * k + c) * d;
            for (uint32_t i = 0; i < d; i++) {
                w[i] = f.w[(size_t)c * d + i] * f.inverse[i];
                bias -= (double)w[i] * (double)f.mean[i];
            }
            t->state_bias[(size_t)tap * k + c] = (float)bias;
        }
    } else {
        n = rows_of(t, fold, true, rows);
        for (uint32_t at = 0; at < n; at += BATCH) {
            const uint32_t rows_now = n - at < BATCH ? n - at : BATCH;
            gather(t, states, rows + at, rows_now, &f);
            state_scores(t, &f, rows_now, worker);
            for (uint32_t r = 0; r < rows_now; r++)
                memcpy(t->held + ((size_t)tap * t->in->n + rows[at + r]) * k, f.z + (size_t)r * kp,
                       k * sizeof(float));
        }
    }
    free(mem);
    return true;
}

/* Tasks: the text's folds first, since they take longest. */
static void learner_task(void *arg, uint32_t task, uint32_t worker) {
    struct trainer *t = arg;
    const uint32_t folds = t->o->folds + 1;
    uint32_t *rows = malloc(t->in->n * sizeof *rows);
    const bool ok =
        rows != NULL && (task < folds ? run_text(t, task, rows)
                                      : run_state(t, task / folds - 1, task % folds, rows, worker));
    if (!ok) t->failed = true;
    free(rows);
    if (t->o->progress != NULL && worker == 0) t->o->progress(task, (t->in->n_taps + 1) * folds);
}

static enum status run_learners(struct trainer *t, struct error *e) {
    const uint32_t all = (t->in->n_taps + 1) * (t->o->folds + 1);
    worker_pool_run(t->o->workers, learner_task, t, all);
    return t->failed ? error_set(e, STATUS_NO_MEMORY, NULL, "no memory to train label heads")
                     : STATUS_OK;
}

/* ---- calibration ---- */

/* Rows are halved by a draw. What is fitted and chosen on one half is measured on the other; what
 * is kept is fitted and chosen on both. */
enum part { HALF_A, HALF_B, BOTH, PARTS };

static bool in_part(uint32_t row, enum part part) {
    return part == BOTH || (rng_draw(3, 0, row, RNG_AUDIT, 2) & 1) == (uint64_t)part;
}

/* What each part's scales make of every row: [PARTS][n_taps][n]. */
struct calibration {
    struct trainer *t;
    float *confidence;
    uint8_t *told; /* the likeliest label */
    float scale[PARTS][LABEL_MAX_HEADS], prior_scale[PARTS][LABEL_MAX_HEADS];
};

static size_t place(const struct trainer *t, enum part part, uint32_t tap) {
    return ((size_t)part * t->in->n_taps + tap) * t->in->n;
}

static uint32_t likeliest(const float *z, uint32_t k) {
    uint32_t best = 0;
    for (uint32_t c = 1; c < k; c++)
        if (z[c] > z[best]) best = c;
    return best;
}

/* Sums of the gradient and the curvature of the loss in (a, b). */
struct slope {
    double g[2], h[3], loss;
};

static void add_slope(const float *s, const float *prior, uint32_t k, uint32_t label, float a,
                      float b, struct slope *out) {
    float z[HEADS_MAX_LABELS], most = -INFINITY;
    double mass = 0, mean[2] = {0}, square[3] = {0};
    for (uint32_t c = 0; c < k; c++) {
        z[c] = a * s[c] + b * prior[c];
        most = z[c] > most ? z[c] : most;
    }
    for (uint32_t c = 0; c < k; c++) {
        const double x = (double)s[c], y = (double)prior[c], p = (double)math_expf(z[c] - most);
        mass += p;
        mean[0] += p * x, mean[1] += p * y;
        square[0] += p * x * x, square[1] += p * x * y, square[2] += p * y * y;
    }
    const double m0 = mean[0] / mass, m1 = mean[1] / mass;
    out->g[0] += m0 - (double)s[label];
    out->g[1] += m1 - (double)prior[label];
    out->h[0] += square[0] / mass - m0 * m0;
    out->h[1] += square[1] / mass - m0 * m1;
    out->h[2] += square[2] / mass - m1 * m1;
    out->loss += math_log(mass) + (double)(most - z[label]);
}

static struct slope slope_at(const struct trainer *t, const float *sums, enum part part, double a,
                             double b) {
    struct slope s = {{0}, {0}, 0};
    for (uint32_t i = 0; i < t->in->n; i++)
        if (in_part(i, part))
            add_slope(sums + (size_t)i * t->k, t->text + (size_t)i * t->k, t->k, t->in->label[i],
                      (float)a, (float)b, &s);
    return s;
}

/* The loss is convex: Newton's steps, halved until they descend. */
static void fit_scales(const struct trainer *t, const float *sums, enum part part, float *scale,
                       float *prior_scale) {
    double a = 0.3, b = 0.5;
    struct slope s = slope_at(t, sums, part, a, b);
    for (uint32_t step = 0; step < NEWTON_STEPS; step++) {
        const double h0 = s.h[0] + 1e-6, h2 = s.h[2] + 1e-6, det = h0 * h2 - s.h[1] * s.h[1];
        if (!(det > 0)) break;
        const double da = (h2 * s.g[0] - s.h[1] * s.g[1]) / det;
        const double db = (h0 * s.g[1] - s.h[1] * s.g[0]) / det;
        double step_part = 1;
        struct slope next = s;
        for (; step_part > 1e-3; step_part /= 2) {
            next = slope_at(t, sums, part, a - step_part * da, b - step_part * db);
            if (next.loss < s.loss) break;
        }
        if (!(next.loss < s.loss - 1e-5 * s.loss)) break;
        a -= step_part * da, b -= step_part * db;
        s = next;
    }
    /* Neither may speak against itself; and rows told apart without error leave no finite best. */
    *scale = (float)(a < 0 ? 0 : a > 50 ? 50 : a);
    *prior_scale = (float)(b < 0 ? 0 : b > 50 ? 50 : b);
}

/* One head under one part's scales. `held` holds sums over the heads so far. */
static void calibrate_task(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    struct calibration *c = arg;
    const struct trainer *t = c->t;
    const enum part part = (enum part)(task % PARTS);
    const uint32_t tap = task / PARTS, k = t->k;
    const float *sums = t->held + (size_t)tap * t->in->n * k;
    struct label_head h = {.n_labels = k};
    float p[HEADS_MAX_LABELS];
    fit_scales(t, sums, part, &h.scale, &h.prior_scale);
    c->scale[part][tap] = h.scale;
    c->prior_scale[part][tap] = h.prior_scale;
    for (uint32_t i = 0; i < t->in->n; i++) {
        const size_t at = place(t, part, tap) + i;
        c->confidence[at] =
            label_head_probabilities(&h, sums + (size_t)i * k, t->text + (size_t)i * k, p);
        c->told[at] = (uint8_t)likeliest(p, k);
    }
}

struct policy {
    uint32_t last;
    float threshold;
};

struct outcome {
    uint32_t n, right, first, early, differ;
    double layers;
};

static void play(const struct calibration *c, enum part scales, enum part rows, struct policy p,
                 struct outcome *o) {
    const struct trainer *t = c->t;
    for (uint32_t i = 0; i < t->in->n; i++) {
        if (!in_part(i, rows)) continue;
        uint32_t r = 0;
        while (r < p.last && c->confidence[place(t, scales, r) + i] < p.threshold) r++;
        o->n++;
        const uint8_t told = c->told[place(t, scales, r) + i];
        o->right += told == t->in->label[i];
        o->early += r < p.last;
        o->differ += told != c->told[place(t, scales, p.last) + i];
        o->first += r == 0;
        o->layers += t->in->layers[r];
    }
}

static double share(double part, double all) {
    return all > 0 ? part / all : 0;
}

/* The fewest layers whose accuracy is all but the best; ties to the fewer heads. */
static struct policy choose(const struct calibration *c, enum part part) {
    static const float thresholds[] = {0.3f, 0.4f,  0.5f, 0.55f,  0.6f,  0.65f, 0.7f,  0.75f,
                                       0.8f, 0.85f, 0.9f, 0.925f, 0.95f, 0.97f, 0.98f, 0.99f};
    enum { N = sizeof thresholds / sizeof *thresholds };
    double accuracy[LABEL_MAX_HEADS][N], layers[LABEL_MAX_HEADS][N], best = 0, fewest = INFINITY;
    struct policy chosen = {0, thresholds[0]};
    for (uint32_t last = 0; last < c->t->in->n_taps; last++) {
        for (uint32_t i = 0; i < N; i++) {
            struct outcome o = {0};
            play(c, part, part, (struct policy){last, thresholds[i]}, &o);
            accuracy[last][i] = share(o.right, o.n);
            layers[last][i] = share(o.layers, o.n);
            if (accuracy[last][i] > best) best = accuracy[last][i];
        }
    }
    for (uint32_t last = 0; last < c->t->in->n_taps; last++) {
        for (uint32_t i = 0; i < N; i++) {
            if (accuracy[last][i] < best - LABEL_TOLERANCE || layers[last][i] >= fewest) continue;
            fewest = layers[last][i];
            chosen = (struct policy){last, thresholds[i]};
        }
    }
    return chosen;
}

/* The lower end of Wilson's interval, one-sided 95 %. */
static double lower_bound(double right, double n) {
    const double z = 1.6449, zz = z * z;
    if (!(n > 0)) return 0;
    const double p = right / n;
    const double low =
        (p + zz / (2 * n) - z * sqrt(p * (1 - p) / n + zz / (4 * n * n))) / (1 + zz / n);
    return low > 0 ? low : 0;
}

/* Its upper end. */
static double upper_bound(double differ, double n) {
    return n > 0 ? 1 - lower_bound(n - differ, n) : 0;
}

static float accuracy_of(const struct trainer *t, const float *z) {
    uint32_t right = 0;
    for (uint32_t i = 0; i < t->in->n; i++)
        right += likeliest(z + (size_t)i * t->k, t->k) == t->in->label[i];
    return (float)share(right, t->in->n);
}

static void find_scores(const struct calibration *c, struct label_scores *scores) {
    const struct trainer *t = c->t;
    for (uint32_t tap = 0; tap < t->in->n_taps; tap++) {
        uint32_t right = 0;
        for (uint32_t i = 0; i < t->in->n; i++)
            right +=
                c->told[place(t, in_part(i, HALF_A) ? HALF_B : HALF_A, tap) + i] == t->in->label[i];
        scores->combined[tap] = (float)share(right, t->in->n);
    }
}

static void calibrate(struct calibration *c, struct label_heads *out, struct label_scores *scores) {
    struct trainer *t = c->t;
    const uint32_t n_taps = t->in->n_taps;
    const size_t nk = (size_t)t->in->n * t->k;
    float best = 0;
    scores->text = accuracy_of(t, t->text);
    for (uint32_t tap = 0; tap < n_taps; tap++) {
        scores->state[tap] = accuracy_of(t, t->held + tap * nk);
        best = scores->state[tap] > best ? scores->state[tap] : best;
    }
    for (size_t i = nk; i < n_taps * nk; i++) t->held[i] += t->held[i - nk];
    worker_pool_run(t->o->workers, calibrate_task, c, n_taps * PARTS);
    find_scores(c, scores);
    struct outcome o = {0};
    play(c, HALF_A, HALF_B, choose(c, HALF_A), &o);
    play(c, HALF_B, HALF_A, choose(c, HALF_B), &o);
    const struct policy p = choose(c, BOTH);
    out->n_heads = p.last + 1;
    for (uint32_t i = 0; i < n_taps; i++) {
        out->threshold[i] = p.threshold;
        out->heads[i] = (struct label_head){.layer = t->in->layers[i],
                                            .n_labels = t->k,
                                            .scale = c->scale[BOTH][i],
                                            .prior_scale = c->prior_scale[BOTH][i],
                                            .weight = t->state_weight + (size_t)i * t->k * t->in->d,
                                            .bias = t->state_bias + (size_t)i * t->k};
    }
    out->figures = (struct label_figures){
        .n_rows = o.n,
        .accuracy = (float)share(o.right, o.n),
        .accuracy_low = (float)lower_bound(o.right, o.n),
        .mean_layer = (float)share(o.layers, o.n),
        .first_share = (float)share(o.first, o.n),
        .text_accuracy = scores->text,
        .state_accuracy = best,
        .full_accuracy = scores->state[n_taps - 1],
        .early_differs = (float)upper_bound(o.differ, o.early),
    };
}

/* The look as int8: the largest weight of a label is 127. */
static void quantise(const struct trainer *t, float *scale, int8_t *weight) {
    for (uint32_t c = 0; c < t->k; c++) {
        float most = 0;
        for (uint32_t b = 0; b < t->o->n_buckets; b++) {
            const float x = fabsf(t->text_weight[(size_t)b * t->kp + c]);
            most = x > most ? x : most;
        }
        scale[c] = most > 0 ? most / 127 : 1;
        for (uint32_t b = 0; b < t->o->n_buckets; b++)
            weight[(size_t)b * t->k + c] =
                (int8_t)lrintf(t->text_weight[(size_t)b * t->kp + c] / scale[c]);
    }
}

/* Rows of a label are dealt to the folds in a drawn order, so that each fold has its share. */
static void deal(struct trainer *t, uint32_t *order) {
    for (uint32_t i = 0; i < t->in->n; i++) order[i] = i;
    shuffle(order, t->in->n, t->o->seed + 2, 0);
    uint32_t next[HEADS_MAX_LABELS] = {0};
    for (uint32_t i = 0; i < t->in->n; i++)
        t->fold[order[i]] = next[t->in->label[order[i]]]++ % t->o->folds;
}

enum status label_train(const struct label_input *in, const struct label_options *o,
                        struct label_heads *out, struct label_scores *scores, void **memory,
                        struct error *e) {
    CHECK(in->n >= 2 && in->n_labels >= 2 && in->n_labels <= HEADS_MAX_LABELS && o->folds >= 2);
    CHECK(in->n_taps >= 1 && in->n_taps <= LABEL_MAX_HEADS);
    memset(out, 0, sizeof *out);
    memset(scores, 0, sizeof *scores);
    *memory = NULL;
    struct trainer t = {.in = in, .o = o, .k = in->n_labels};
    t.kp = (t.k + LANES - 1) / LANES * LANES;
    const size_t nk = (size_t)in->n * t.k, taps = in->n_taps;
    /* What stays, then what does not. */
    const size_t kept = t.kp + t.k + taps * t.k * (in->d + 1);
    float *keep = calloc(kept + ((size_t)o->n_buckets * t.k + 3) / sizeof(float) + 1, sizeof *keep);
    float *floats = malloc((nk * (taps + 1) + (size_t)o->n_buckets * t.kp + PARTS * taps * in->n) *
                           sizeof *floats);
    uint32_t *fold = malloc(in->n * sizeof *fold), *order = malloc(in->n * sizeof *order);
    uint8_t *told = malloc(PARTS * taps * in->n);
    enum status st = STATUS_OK;
    if (keep == NULL || floats == NULL || fold == NULL || order == NULL || told == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory to train label heads");
    if (st == STATUS_OK)
        st = gemm_open(&t.gemm, o->isa, o->workers, in->d > BATCH ? in->d : BATCH, e);
    if (st == STATUS_OK) {
        t.fold = fold;
        t.text_bias = keep;
        float *text_scale = keep + t.kp;
        t.state_bias = text_scale + t.k;
        t.state_weight = t.state_bias + taps * t.k;
        int8_t *text_weight = (int8_t *)(keep + kept);
        t.text = floats, t.held = t.text + nk;
        t.text_weight = t.held + taps * nk;
        struct calibration c = {
            .t = &t, .confidence = t.text_weight + (size_t)o->n_buckets * t.kp, .told = told};
        deal(&t, order);
        st = run_learners(&t, e);
        if (st == STATUS_OK) {
            calibrate(&c, out, scores);
            quantise(&t, text_scale, text_weight);
            out->n_labels = t.k;
            out->d_model = in->d;
            out->n_buckets = o->n_buckets;
            out->text_bias = t.text_bias;
            out->text_scale = text_scale;
            out->text_weight = text_weight;
            *memory = keep;
            keep = NULL;
        }
        gemm_close(&t.gemm);
    }
    free(keep);
    free(floats);
    free(fold);
    free(order);
    free(told);
    return st;
}
