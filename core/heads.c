#include "core/heads.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/math.h"

float heads_dot(const float *a, const float *b, uint32_t n) {
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % 16] = fmaf(a[i], b[i], lane[i % 16]);
    for (uint32_t half = 8; half >= 1; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

void heads_mean_add(float *sum, const float *row, uint32_t d) {
    for (uint32_t i = 0; i < d; i++) sum[i] += row[i];
}

void heads_mean_finish(float *sum, uint32_t n_rows, uint32_t d) {
    if (n_rows == 0) return;
    const float share = 1.0f / (float)n_rows;
    for (uint32_t i = 0; i < d; i++) sum[i] *= share;
}

void label_head_add(const struct label_head *h, const float *mean, uint32_t d, heads_dot_fn *dot,
                    float *S) {
    if (dot == NULL) dot = heads_dot;
    for (uint32_t c = 0; c < h->n_labels; c++)
        S[c] += h->bias[c] + dot(h->weight + (size_t)c * d, mean, d);
}

float label_head_probabilities(const struct label_head *h, const float *S, const float *prior,
                               float *p) {
    float most = -INFINITY, mass = 0;
    bool finite = true;
    for (uint32_t c = 0; c < h->n_labels; c++) {
        p[c] = fmaf(h->scale, S[c], prior != NULL ? h->prior_scale * prior[c] : 0.0f);
        finite &= isfinite(p[c]) != 0;
        most = p[c] > most ? p[c] : most;
    }
    if (!finite) return NAN;
    for (uint32_t c = 0; c < h->n_labels; c++) {
        p[c] = math_expf(p[c] - most);
        mass += p[c];
    }
    float best = 0;
    for (uint32_t c = 0; c < h->n_labels; c++) {
        p[c] /= mass;
        best = p[c] > best ? p[c] : best;
    }
    return best;
}

void regulation_head_run(const struct regulation_head *h, const float *state, uint32_t d,
                         float out[2]) {
    for (uint32_t k = 0; k < 2; k++) {
        float u = h->bias[k] + heads_dot(h->weight + (size_t)k * d, state, d);
        if (!isfinite(u)) u = 0;
        u = u > 30 ? 30 : u < -30 ? -30 : u;
        out[k] = h->least[k] + (h->most[k] - h->least[k]) / (1 + math_expf(-u));
    }
}
