#include "cmd/calibrate_monitor_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/logistic_fit.h"

enum { FIT_FROM = 4 /* draws behind a splice that are fitted on, up to MONITOR_CAUGHT_WITHIN */ };
/* Of normal answers that are touched; of normal draws whose score, or surprise, holds them back. */
static const double FALSE_ALARMS = 0.02, HELD_DRAWS = 0.02, SURPRISING_DRAWS = 0.02;

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the draws");
}

static float score(const float *w, const struct monitor_draw_record *d) {
    float s = w[0];
    if (!d->has_cosine) return -__builtin_inff();
    for (uint32_t k = 0; k < MONITOR_FEATURES; k++) s = s + w[k + 1] * d->features[k];
    return s;
}

/* Fitted on prompts of that half (2: all). */
static enum status fit(const struct monitor_text *texts, uint32_t n_texts, uint32_t half, float *w,
                       struct error *e) {
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < n_texts; i++) cap += texts[i].n;
    float *rows = malloc(cap * MONITOR_FEATURES * sizeof *rows);
    bool *labels = malloc(cap * sizeof *labels);
    enum status st = rows == NULL || labels == NULL ? no_memory(e) : STATUS_OK;
    for (uint32_t i = 0; st == STATUS_OK && i < n_texts; i++) {
        const struct monitor_text *t = &texts[i];
        if (half < 2 && t->half != half) continue;
        const bool drift = t->drift != UINT32_MAX;
        const uint32_t from = drift ? t->drift + FIT_FROM : 0;
        const uint32_t to = drift && t->drift + MONITOR_CAUGHT_WITHIN < t->n
                                ? t->drift + MONITOR_CAUGHT_WITHIN
                                : t->n;
        for (uint32_t k = from; k < to; k++) {
            if (!t->draws[k].has_cosine) continue;
            memcpy(rows + n * MONITOR_FEATURES, t->draws[k].features, sizeof t->draws[k].features);
            labels[n++] = drift;
        }
    }
    if (st == STATUS_OK) st = logistic_fit(rows, labels, n, MONITOR_FEATURES, w, e);
    free(rows);
    free(labels);
    return st;
}

static float largest(const struct monitor_text *t, const float *w, uint32_t from, uint32_t to) {
    float most = -__builtin_inff();
    for (uint32_t k = from; k < to && k < t->n; k++) {
        const float s = score(w, &t->draws[k]);
        if (s > most) most = s;
    }
    return most;
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The value that a share of v[n] exceeds; v is sorted. */
static float upper(float *v, size_t n, double share) {
    qsort(v, n, sizeof *v, ascending);
    const size_t over = (size_t)(share * (double)n);
    return v[n - 1 - (over < n ? over : n - 1)];
}

/* Draws after which tokens wait for a verdict. */
static uint32_t held_draws(const struct monitor_text *t, const float *w,
                           const struct monitor_rule *r) {
    uint32_t held = 0, free_at = 0;
    for (uint32_t k = 0; k < t->n; k++) {
        if (score(w, &t->draws[k]) >= r->hold || t->draws[k].surprise >= r->surprise)
            free_at = k + r->clear_tokens;
        held += k < free_at;
    }
    return held;
}

enum status monitor_rule_fit(const struct monitor_text *texts, uint32_t n_texts,
                             struct monitor_rule *r, struct monitor_scores *out, struct error *e) {
    float halves[2][MONITOR_WEIGHTS];
    memset(out, 0, sizeof *out);
    enum status st = fit(texts, n_texts, 0, halves[0], e);
    if (st == STATUS_OK) st = fit(texts, n_texts, 1, halves[1], e);
    if (st == STATUS_OK) st = fit(texts, n_texts, 2, r->weights, e);
    size_t n_draws = 0;
    for (uint32_t i = 0; i < n_texts; i++) n_draws += texts[i].n;
    float *maxima = malloc(n_texts * sizeof *maxima), *scores = malloc(n_draws * sizeof *scores);
    float *surprises = malloc(n_draws * sizeof *surprises);
    float *delays = malloc(n_texts * sizeof *delays);
    if (maxima == NULL || scores == NULL || surprises == NULL || delays == NULL) st = no_memory(e);
    /* Hot ones stand at the end. */
    size_t n = 0, n_hot = 0, n_scores = 0, n_surprises = 0;
    for (uint32_t i = 0; st == STATUS_OK && i < n_texts; i++) {
        const struct monitor_text *t = &texts[i];
        const float *w = halves[1 - t->half];
        if (t->drift != UINT32_MAX) continue;
        maxima[t->hot ? n_texts - ++n_hot : n++] = largest(t, w, 0, t->n);
        for (uint32_t k = 0; k < t->n; k++) {
            surprises[n_surprises++] = t->draws[k].surprise;
            if (t->draws[k].has_cosine) scores[n_scores++] = score(w, &t->draws[k]);
        }
    }
    if (st == STATUS_OK && (n == 0 || n_scores == 0))
        st = error_set(e, STATUS_INVALID, "file", "the answers are too short");
    if (st == STATUS_OK) {
        r->threshold = nextafterf(upper(maxima, n, FALSE_ALARMS), __builtin_inff());
        r->threshold_hot = r->threshold;
        if (n_hot > 0)
            r->threshold_hot =
                nextafterf(upper(maxima + n_texts - n_hot, n_hot, FALSE_ALARMS), __builtin_inff());
        if (r->threshold_hot < r->threshold) r->threshold_hot = r->threshold;
        r->hold = upper(scores, n_scores, HELD_DRAWS);
        if (r->hold > r->threshold) r->hold = r->threshold;
        r->surprise = upper(surprises, n_surprises, SURPRISING_DRAWS);
        if (!(r->surprise > 0)) r->surprise = 1e-3f;
        r->clear_tokens = MONITOR_CLEAR_TOKENS;
    }
    uint64_t held = 0, normal_draws = 0;
    uint32_t alarms = 0, caught = 0, fixed_alarms = 0, fixed_caught = 0;
    uint32_t alarms_hot = 0, normal_hot = 0, caught_hot = 0, drifts_hot = 0;
    for (uint32_t i = 0; st == STATUS_OK && i < n_texts; i++) {
        const struct monitor_text *t = &texts[i];
        const float *w = halves[1 - t->half];
        const float threshold = t->hot ? r->threshold_hot : r->threshold;
        if (t->drift == UINT32_MAX) {
            out->n_normal++;
            const bool alarm = largest(t, w, 0, t->n) >= threshold;
            alarms += alarm;
            normal_hot += t->hot;
            alarms_hot += alarm && t->hot;
            fixed_alarms += t->fixed_caught;
            held += held_draws(t, w, r);
            normal_draws += t->n;
            continue;
        }
        out->n_drifts++;
        drifts_hot += t->hot;
        fixed_caught += t->fixed_caught;
        for (uint32_t k = 0; k < MONITOR_CAUGHT_WITHIN; k++) {
            if (largest(t, w, t->drift + k, t->drift + k + 1) < threshold) continue;
            delays[caught++] = (float)k;
            caught_hot += t->hot;
            break;
        }
    }
    if (st == STATUS_OK && out->n_drifts > 0) {
        out->false_alarms = alarms / (double)out->n_normal;
        out->held = (double)held / (double)normal_draws;
        out->caught = caught / (double)out->n_drifts;
        out->false_alarms_hot = normal_hot > 0 ? alarms_hot / (double)normal_hot : 0;
        out->caught_hot = drifts_hot > 0 ? caught_hot / (double)drifts_hot : 0;
        out->fixed_false_alarms = fixed_alarms / (double)out->n_normal;
        out->fixed_caught = fixed_caught / (double)out->n_drifts;
        out->median_delay = caught > 0 ? (double)upper(delays, caught, 0.5) : 0;
    }
    free(maxima);
    free(scores);
    free(surprises);
    free(delays);
    return st;
}
