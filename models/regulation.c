#include "models/regulation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"

enum { HEAD_BYTES = 64 };

struct section_head {
    uint32_t d_model, zero;
    float bias[2], least[2], most[2];
    uint8_t zeros[HEAD_BYTES - 32];
};
_Static_assert(sizeof(struct section_head) == HEAD_BYTES, "as written");

/* ---- the section ---- */

static enum status corrupt(struct error *e, const char *what) {
    return error_set(e, STATUS_CORRUPT, "side-car", "the section of regulation %s", what);
}

static bool in_range(const struct section_head *h) {
    static const float most[2] = {2, 1}; /* what a request may ask for */
    for (int k = 0; k < 2; k++)
        if (!isfinite(h->bias[k]) || !(h->least[k] > 0) || !(h->most[k] >= h->least[k]) ||
            !(h->most[k] <= most[k]))
            return false;
    return true;
}

enum status regulation_view(struct regulation *r, const struct sidecar *s, uint32_t d_model,
                            struct error *e) {
    *r = (struct regulation){0};
    const struct sidecar_section *x =
        s != NULL ? sidecar_find(s, SIDECAR_REGULATION, REGULATION_KEY) : NULL;
    if (x == NULL) return STATUS_OK;
    struct section_head h;
    const size_t weights = 2 * (size_t)d_model;
    if (x->bytes < sizeof h) return corrupt(e, "is too short");
    memcpy(&h, x->data, sizeof h);
    if (h.d_model != d_model)
        return error_set(e, STATUS_INVALID, "side-car",
                         "regulation is for states of %u numbers, the model's have %u", h.d_model,
                         d_model);
    if (x->bytes < sizeof h + weights * sizeof(float)) return corrupt(e, "is too short");
    if (!in_range(&h)) return corrupt(e, "is out of range");
    const float *weight = (const float *)(const void *)((const uint8_t *)x->data + sizeof h);
    for (size_t i = 0; i < weights; i++)
        if (!isfinite(weight[i])) return corrupt(e, "holds numbers that are not finite");
    *r = (struct regulation){.present = true,
                             .d_model = d_model,
                             .digest = XXH3_64bits(x->data, x->bytes),
                             .report = (const char *)(weight + weights)};
    r->report_bytes = x->bytes - sizeof h - weights * sizeof(float);
    r->head.weight = weight;
    memcpy(r->head.bias, h.bias, sizeof h.bias);
    memcpy(r->head.least, h.least, sizeof h.least);
    memcpy(r->head.most, h.most, sizeof h.most);
    return STATUS_OK;
}

enum status regulation_write(const struct regulation_head *h, uint32_t d_model, const char *report,
                             struct sidecar_section *out, struct error *e) {
    struct section_head head = {.d_model = d_model};
    memcpy(head.bias, h->bias, sizeof head.bias);
    memcpy(head.least, h->least, sizeof head.least);
    memcpy(head.most, h->most, sizeof head.most);
    const size_t weights = 2 * (size_t)d_model * sizeof(float), n = strlen(report);
    *out = (struct sidecar_section){.kind = SIDECAR_REGULATION,
                                    .version = sidecar_kind_version(SIDECAR_REGULATION),
                                    .key = REGULATION_KEY};
    char *data = malloc(sizeof head + weights + n);
    if (data == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the section");
    memcpy(data, &head, sizeof head);
    memcpy(data + sizeof head, h->weight, weights);
    memcpy(data + sizeof head + weights, report, n);
    out->data = data;
    out->bytes = sizeof head + weights + n;
    return STATUS_OK;
}

/* ---- a row ---- */

static uint32_t bin_of(float distance) {
    const float at = distance / REGULATION_BIN_WIDTH;
    return at < REGULATION_BINS - 1 ? (uint32_t)at : REGULATION_BINS - 1;
}

void regulation_row_add(struct regulation_row *r, float distance) {
    if (!(distance > 0)) distance = 0; /* the largest, however it was rounded */
    const uint32_t b = bin_of(distance);
    r->count[b]++;
    r->distance[b] += distance;
}

void regulation_row_finish(struct regulation_row *r) {
    if (!(r->target > 0)) r->target = 0;
    for (uint32_t b = 0; b < REGULATION_BINS; b++)
        if (r->count[b] > 0) r->distance[b] /= r->count[b];
}

static const double SOFT = 0.05, REACH = 1.25; /* top_p 1 reaches 5 SOFT over all mass */

double regulation_likelihood(const struct regulation_row *r, double T, double top_p,
                             double slope[2]) {
    double mass[REGULATION_BINS], all = 0, all_dT = 0;
    for (uint32_t b = 0; b < REGULATION_BINS; b++) {
        const double g = (double)r->distance[b];
        mass[b] = r->count[b] > 0 ? (double)r->count[b] * exp(-g / T) : 0;
        all += mass[b];
        all_dT += mass[b] * g / (T * T);
    }
    const uint32_t at = bin_of(r->target);
    const double P = top_p * REACH;
    double before = 0, before_dT = 0; /* mass of the bins before, and its derivative by T */
    double sum = 0, sum_dT = 0, sum_dp = 0, own = 0, own_dT = 0, own_dp = 0;
    for (uint32_t b = 0; b < REGULATION_BINS; b++) {
        if (mass[b] == 0 && b != at) continue;
        const double c = before / all, c_dT = (before_dT - c * all_dT) / all;
        const double w = 1 / (1 + exp(-(P - c) / SOFT));
        const double m_dT = mass[b] * (double)r->distance[b] / (T * T);
        sum += mass[b] * w;
        sum_dT += m_dT * w - mass[b] * w * (1 - w) / SOFT * c_dT;
        sum_dp += mass[b] * w * (1 - w) / SOFT * REACH;
        if (b == at) {
            own = log(w);
            own_dT = -(1 - w) / SOFT * c_dT;
            own_dp = (1 - w) / SOFT * REACH;
        }
        before += mass[b];
        before_dT += m_dT;
    }
    if (slope != NULL) {
        slope[0] = (double)r->target / (T * T) + own_dT - sum_dT / sum;
        slope[1] = own_dp - sum_dp / sum;
    }
    return -(double)r->target / T + own - log(sum);
}

bool regulation_inside(const struct regulation_row *r, double T, double top_p) {
    double all = 0, before = 0;
    const uint32_t at = bin_of(r->target);
    if (top_p >= 1) return true;
    for (uint32_t b = 0; b < REGULATION_BINS; b++) {
        if (r->count[b] == 0) continue;
        const double mass = (double)r->count[b] * exp(-(double)r->distance[b] / T);
        all += mass;
        if (b < at) before += mass;
    }
    return before < top_p * all;
}

void regulation_grid(uint32_t i, double *T, double *top_p) {
    static const double p[8] = {0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1};
    CHECK(i < REGULATION_GRID);
    *T = 0.3 + 0.1 * (i / 8);
    *top_p = p[i % 8];
}

/* ---- the fit ---- */

enum { PASSES = 200, PATIENCE = 16 };
static const double RATE = 0.05, DECAY = 1e-3;

/* Parameters in standardised states: [2][d] weights, then [2] biases. */
struct fit {
    const struct regulation_fit *in;
    const struct regulation_head *range;
    uint32_t d, n;
    double *centre, *scale;           /* [d] of the states to learn from */
    double *w, *best, *slope, *m, *v; /* [n] */
};

static double sigmoid(double u) {
    return 1 / (1 + exp(-u));
}

static void says(const struct fit *f, const float *state, double out[2], double s[2]) {
    double u[2] = {f->w[2 * f->d], f->w[2 * f->d + 1]};
    for (uint32_t i = 0; i < f->d; i++) {
        const double x = ((double)state[i] - f->centre[i]) * f->scale[i];
        u[0] += f->w[i] * x;
        u[1] += f->w[f->d + i] * x;
    }
    for (int k = 0; k < 2; k++) {
        s[k] = sigmoid(u[k]);
        out[k] =
            (double)f->range->least[k] + (double)(f->range->most[k] - f->range->least[k]) * s[k];
    }
}

/* The mean likelihood over a part; with `learn` its slope by the parameters. */
static double go_over(struct fit *f, uint8_t part, bool learn) {
    double sum = 0;
    uint32_t n = 0;
    if (learn) memset(f->slope, 0, f->n * sizeof *f->slope);
    for (uint32_t r = 0; r < f->in->n_rows; r++) {
        if (f->in->part[r] != part) continue;
        const float *state = f->in->states + (size_t)r * f->d;
        double v[2], s[2], by[2];
        says(f, state, v, s);
        sum += regulation_likelihood(&f->in->rows[r], v[0], v[1], learn ? by : NULL);
        n++;
        if (!learn) continue;
        for (int k = 0; k < 2; k++) {
            const double g =
                by[k] * (double)(f->range->most[k] - f->range->least[k]) * s[k] * (1 - s[k]);
            double *to = f->slope + (size_t)k * f->d;
            for (uint32_t i = 0; i < f->d; i++)
                to[i] += g * ((double)state[i] - f->centre[i]) * f->scale[i];
            f->slope[2 * f->d + (uint32_t)k] += g;
        }
    }
    for (uint32_t i = 0; learn && n > 0 && i < f->n; i++) f->slope[i] /= n;
    return n > 0 ? sum / n : -INFINITY;
}

static void standardise(struct fit *f) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < f->in->n_rows; r++) {
        if (f->in->part[r] != 0) continue;
        n++;
        for (uint32_t i = 0; i < f->d; i++) {
            const double x = (double)f->in->states[(size_t)r * f->d + i];
            f->centre[i] += x;
            f->scale[i] += x * x;
        }
    }
    for (uint32_t i = 0; i < f->d; i++) {
        f->centre[i] /= n;
        const double variance = f->scale[i] / n - f->centre[i] * f->centre[i];
        f->scale[i] = variance > 1e-12 ? 1 / sqrt(variance * f->d) : 0;
    }
}

/* Begins at the best fixed pair. */
static void begin(struct fit *f) {
    double best = -INFINITY, at[2] = {1, 1};
    for (uint32_t g = 0; g < REGULATION_GRID; g++) {
        double T, p, sum = 0;
        regulation_grid(g, &T, &p);
        for (uint32_t r = 0; r < f->in->n_rows; r++)
            if (f->in->part[r] == 0) sum += regulation_likelihood(&f->in->rows[r], T, p, NULL);
        if (sum > best) best = sum, at[0] = T, at[1] = p;
    }
    for (uint32_t k = 0; k < 2; k++) {
        double s =
            (at[k] - (double)f->range->least[k]) / (double)(f->range->most[k] - f->range->least[k]);
        s = s < 0.03 ? 0.03 : s > 0.97 ? 0.97 : s; /* where it still has a slope */
        f->w[2 * f->d + k] = log(s / (1 - s));
    }
}

static void adam(struct fit *f, uint32_t pass) {
    const double first = 1 - pow(0.9, pass), second = 1 - pow(0.98, pass);
    for (uint32_t i = 0; i < f->n; i++) {
        f->m[i] = 0.9 * f->m[i] + 0.1 * f->slope[i];
        f->v[i] = 0.98 * f->v[i] + 0.02 * f->slope[i] * f->slope[i];
        f->w[i] += RATE * (f->m[i] / first / (sqrt(f->v[i] / second) + 1e-9) -
                           (i < 2 * f->d ? DECAY * f->w[i] : 0));
    }
}

/* The weights as they read plain states. */
static void unfold(const struct fit *f, struct regulation_head *head, float *weight) {
    for (uint32_t k = 0; k < 2; k++) {
        double bias = f->best[2 * f->d + k];
        for (uint32_t i = 0; i < f->d; i++) {
            const double w = f->best[k * f->d + i] * f->scale[i];
            weight[(size_t)k * f->d + i] = (float)w;
            bias -= w * f->centre[i];
        }
        head->bias[k] = (float)bias;
    }
    head->weight = weight;
}

enum status regulation_fit(const struct regulation_fit *in, struct regulation_head *head,
                           float *weight, struct error *e) {
    *head = (struct regulation_head){.least = {0.1f, 0.3f}, .most = {1.6f, 1}};
    struct fit f = {.in = in, .range = head, .d = in->d_model, .n = 2 * in->d_model + 2};
    double *memory = calloc(2 * (size_t)f.d + 5 * (size_t)f.n, sizeof *memory);
    if (memory == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the fit");
    f.centre = memory;
    f.scale = f.centre + f.d;
    f.w = f.scale + f.d;
    f.best = f.w + f.n;
    f.slope = f.best + f.n;
    f.m = f.slope + f.n;
    f.v = f.m + f.n;
    standardise(&f);
    begin(&f);
    double best = go_over(&f, 1, false);
    memcpy(f.best, f.w, f.n * sizeof *f.w);
    for (uint32_t pass = 1, since = 0; pass <= PASSES && since < PATIENCE; pass++, since++) {
        (void)go_over(&f, 0, true);
        adam(&f, pass);
        const double now = go_over(&f, 1, false);
        if (in->progress != NULL) in->progress(in->progress_arg, pass, PASSES);
        if (!(now > best)) continue;
        best = now;
        since = 0;
        memcpy(f.best, f.w, f.n * sizeof *f.w);
    }
    unfold(&f, head, weight);
    free(memory);
    return STATUS_OK;
}
