#include "models/task_fit.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "core/rng.h"
#include "models/task_model_impl.h"

/* Weights in the making: the real ones are scale * (dense, hashed). */
struct fit {
    const struct task_fit_input *in;
    float scale;
    float bias[TASK_MAX_CLASSES];
    float *dense, *hashed;
    size_t n_dense, n_hashed; /* floats */
};

static void score(const struct fit *f, uint32_t i, float *logit) {
    const struct task_fit_input *in = f->in;
    const struct task_matrix *x = in->x;
    const uint32_t k = in->n_classes, r = in->row[i];
    float sum[TASK_MAX_CLASSES] = {0};
    const float *d = x->dense + (size_t)r * x->n_dense;
    for (uint32_t j = 0; j < x->n_dense; j++) {
        if (d[j] == 0) continue;
        for (uint32_t c = 0; c < k; c++) sum[c] += d[j] * in->dense_gain * f->dense[j * k + c];
    }
    for (uint64_t j = x->index ? x->row_start[r] : 0, end = x->index ? x->row_start[r + 1] : 0;
         j < end; j++)
        for (uint32_t c = 0; c < k; c++)
            sum[c] += x->value[j] * f->hashed[(size_t)x->index[j] * k + c];
    for (uint32_t c = 0; c < k; c++)
        logit[c] = f->bias[c] + f->scale * sum[c] + (in->offset ? in->offset[i * k + c] : 0.0f);
}

static void move(struct fit *f, uint32_t i, const float *step) {
    const struct task_fit_input *in = f->in;
    const struct task_matrix *x = in->x;
    const uint32_t k = in->n_classes, r = in->row[i];
    float scaled[TASK_MAX_CLASSES];
    for (uint32_t c = 0; c < k; c++) {
        f->bias[c] += step[c];
        scaled[c] = step[c] / f->scale;
    }
    const float *d = x->dense + (size_t)r * x->n_dense;
    for (uint32_t j = 0; j < x->n_dense; j++) {
        if (d[j] == 0) continue;
        for (uint32_t c = 0; c < k; c++) f->dense[j * k + c] += d[j] * in->dense_gain * scaled[c];
    }
    if (x->index == NULL) return;
    for (uint64_t j = x->row_start[r]; j < x->row_start[r + 1]; j++)
        for (uint32_t c = 0; c < k; c++)
            f->hashed[(size_t)x->index[j] * k + c] += x->value[j] * scaled[c];
}

static void take_scale_in(struct fit *f) {
    for (size_t j = 0; j < f->n_dense; j++) f->dense[j] *= f->scale;
    for (size_t j = 0; j < f->n_hashed; j++) f->hashed[j] *= f->scale;
    f->scale = 1;
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed, uint32_t epoch) {
    for (uint32_t i = n; i > 1; i--) {
        const uint64_t draw = rng_draw(seed, epoch, i, RNG_AUDIT, 0);
        const uint32_t j = (uint32_t)(((draw >> 32) * i) >> 32);
        const uint32_t t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

static void run_epoch(struct fit *f, const struct task_fit_options *o, const uint32_t *order,
                      uint64_t *steps) {
    const uint32_t k = f->in->n_classes;
    for (uint32_t s = 0; s < f->in->n; s++) {
        const uint32_t i = order[s];
        float p[TASK_MAX_CLASSES], step[TASK_MAX_CLASSES];
        score(f, i, p);
        task_softmax(p, k, 1, p);
        const float rate = o->rate / (1 + o->rate * o->l2 * (float)(*steps)++);
        for (uint32_t c = 0; c < k; c++)
            step[c] = rate * f->in->weight[i] * ((c == f->in->label[i] ? 1.0f : 0.0f) - p[c]);
        /* A few rows under a strong penalty must shrink the weights, not turn them over. */
        f->scale *= 1 - (rate * o->l2 < 0.5f ? rate * o->l2 : 0.5f);
        if (f->scale < 1e-4f) take_scale_in(f);
        move(f, i, step);
    }
    take_scale_in(f);
}

static void add_to(float *sum, const float *w, size_t n) {
    for (size_t j = 0; j < n; j++) sum[j] += w[j];
}

static void average(struct task_weights *w, const struct fit *f, uint32_t count) {
    const float share = 1.0f / (float)count;
    for (uint32_t c = 0; c < f->in->n_classes; c++) w->bias[c] *= share;
    for (size_t j = 0; j < f->n_dense; j++) w->dense[j] *= share * f->in->dense_gain;
    for (size_t j = 0; j < f->n_hashed; j++) w->hashed[j] *= share;
}

static void run(struct fit *f, const struct task_fit_options *o, uint32_t *order,
                struct task_weights *out) {
    uint64_t steps = 0;
    const uint32_t first = o->epochs / 2;
    for (uint32_t epoch = 0; epoch < o->epochs; epoch++) {
        shuffle(order, f->in->n, o->seed, epoch);
        run_epoch(f, o, order, &steps);
        if (epoch < first) continue;
        add_to(out->bias, f->bias, f->in->n_classes);
        add_to(out->dense, f->dense, f->n_dense);
        if (out->hashed != NULL) add_to(out->hashed, f->hashed, f->n_hashed);
    }
    average(out, f, o->epochs - first);
}

enum status task_fit(const struct task_fit_input *in, const struct task_fit_options *o,
                     struct task_weights *out, struct error *e) {
    CHECK(in->n > 0 && o->epochs > 0 && in->n_classes >= 2 && in->n_classes <= TASK_MAX_CLASSES);
    *out = (struct task_weights){.n_classes = in->n_classes, .n_dense = in->x->n_dense};
    struct fit f = {.in = in, .scale = 1, .n_dense = (size_t)in->x->n_dense * in->n_classes};
    if (in->x->index != NULL) f.n_hashed = (size_t)TASK_N_BUCKETS * in->n_classes;
    f.dense = calloc(f.n_dense, sizeof *f.dense);
    f.hashed = calloc(f.n_hashed + 1, sizeof *f.hashed);
    out->dense = calloc(f.n_dense, sizeof *out->dense);
    if (f.n_hashed > 0) out->hashed = calloc(f.n_hashed, sizeof *out->hashed);
    uint32_t *order = malloc(in->n * sizeof *order);
    const bool ok = f.dense && f.hashed && out->dense && order && (!f.n_hashed || out->hashed);
    if (ok) {
        for (uint32_t i = 0; i < in->n; i++) order[i] = i;
        run(&f, o, order, out);
    }
    free(order);
    free(f.dense);
    free(f.hashed);
    if (ok) return STATUS_OK;
    task_weights_free(out);
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the weights");
}

void task_weights_free(struct task_weights *w) {
    free(w->dense);
    free(w->hashed);
    memset(w, 0, sizeof *w);
}

static double loss_at(double temperature, const float *logits, const uint32_t *label,
                      const float *weight, uint32_t n, uint32_t k) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *z = logits + (size_t)i * k;
        float most = z[0];
        for (uint32_t c = 1; c < k; c++) most = z[c] > most ? z[c] : most;
        double mass = 0;
        for (uint32_t c = 0; c < k; c++) mass += math_exp((double)(z[c] - most) / temperature);
        sum += (double)weight[i] * (math_log(mass) - (double)(z[label[i]] - most) / temperature);
    }
    return sum;
}

float task_fit_temperature(const float *logits, const uint32_t *label, const float *weight,
                           uint32_t n, uint32_t k) {
    /* Golden section over the logarithm; the loss is convex in 1 / T. */
    const double ratio = 0.6180339887498949;
    double low = math_log(0.05), high = math_log(20);
    double a = high - ratio * (high - low), b = low + ratio * (high - low);
    double fa = loss_at(math_exp(a), logits, label, weight, n, k);
    double fb = loss_at(math_exp(b), logits, label, weight, n, k);
    for (int i = 0; i < 40; i++) {
        if (fa < fb) {
            high = b, b = a, fb = fa;
            a = high - ratio * (high - low);
            fa = loss_at(math_exp(a), logits, label, weight, n, k);
        } else {
            low = a, a = b, fa = fb;
            b = low + ratio * (high - low);
            fb = loss_at(math_exp(b), logits, label, weight, n, k);
        }
    }
    return (float)math_exp((low + high) / 2);
}
