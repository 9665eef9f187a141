#include "cmd/diagnose_stats.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"
#include "core/rng.h"
#include "models/unicode.h"

enum { MAX_UNITS = 1024 };

static double *scratch(size_t n) {
    double *v = malloc((n > 0 ? n : 1) * sizeof *v);
    CHECK(v != NULL);
    return v;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_numbers(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, ascending);
}

double quantile(const double *v, uint32_t n, double q) {
    CHECK(n >= 1);
    const double at = q * (n - 1);
    const uint32_t i = (uint32_t)at;
    return i + 1 < n ? v[i] + (at - i) * (v[i + 1] - v[i]) : v[n - 1];
}

static double mean(const double *v, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += v[i];
    return sum / n;
}

/* ---- the bootstrap ---- */

/* A statistic of the rows picked; `work` is scratch for 2 n numbers. */
typedef double statistic(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                         double *work);

static struct interval bootstrap(statistic *of, const double *a, const double *b, uint32_t n) {
    double *work = scratch(2 * (size_t)n), *found = scratch(DIAGNOSE_RESAMPLES);
    uint32_t *pick = malloc(n * sizeof *pick);
    CHECK(pick != NULL && n >= 1);
    for (uint32_t i = 0; i < n; i++) pick[i] = i;
    struct interval out = {.value = of(a, b, pick, n, work)};
    for (uint32_t r = 0; r < DIAGNOSE_RESAMPLES; r++) {
        for (uint32_t i = 0; i < n; i++)
            pick[i] = (uint32_t)((rng_draw(1, r, i, RNG_TEST, 0) >> 32) * n >> 32);
        found[r] = of(a, b, pick, n, work);
    }
    sort_numbers(found, DIAGNOSE_RESAMPLES);
    out.low = quantile(found, DIAGNOSE_RESAMPLES, 0.025);
    out.high = quantile(found, DIAGNOSE_RESAMPLES, 0.975);
    free(pick);
    free(found);
    free(work);
    return out;
}

static double picked_quantile(const double *v, const uint32_t *pick, uint32_t n, double q,
                              double *work) {
    for (uint32_t i = 0; i < n; i++) work[i] = v[pick[i]];
    sort_numbers(work, n);
    return quantile(work, n, q);
}

static double tail_of(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                      double *work) {
    (void)b;
    const double p95 = picked_quantile(a, pick, n, 0.95, work);
    const double p50 = quantile(work, n, 0.5);
    return p50 > 0 ? p95 / p50 : 0;
}

static double median_ratio(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                           double *work) {
    for (uint32_t i = 0; i < n; i++) work[i] = b[pick[i]] / a[pick[i]];
    sort_numbers(work, n);
    return quantile(work, n, 0.5);
}

static double p95_ratio(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                        double *work) {
    return picked_quantile(b, pick, n, 0.95, work) / picked_quantile(a, pick, n, 0.95, work);
}

static double mean_difference(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                              double *work) {
    for (uint32_t i = 0; i < n; i++) work[i] = b[pick[i]] - a[pick[i]];
    return mean(work, n);
}

static double mean_of(const double *a, const double *b, const uint32_t *pick, uint32_t n,
                      double *work) {
    (void)b;
    for (uint32_t i = 0; i < n; i++) work[i] = a[pick[i]];
    return mean(work, n);
}

struct interval compare_paired(enum paired what, const double *a, const double *b, uint32_t n) {
    static statistic *const of[] = {[PAIRED_MEDIAN_RATIO] = median_ratio,
                                    [PAIRED_P95_RATIO] = p95_ratio,
                                    [PAIRED_MEAN_DIFFERENCE] = mean_difference};
    return bootstrap(of[what], a, b, n);
}

struct interval mean_interval(const double *v, uint32_t n) {
    return bootstrap(mean_of, v, NULL, n);
}

struct distribution distribution_of(const double *v, uint32_t n) {
    double *s = scratch(n);
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(v[i])) s[m++] = v[i];
    struct distribution d = {.n = m};
    if (m > 0) {
        sort_numbers(s, m);
        d.least = s[0];
        d.p50 = quantile(s, m, 0.5);
        d.p90 = quantile(s, m, 0.9);
        d.p95 = quantile(s, m, 0.95);
        d.p99 = quantile(s, m, 0.99);
        d.most = s[m - 1];
        d.mean = mean(s, m);
        const double tail = d.p50 > 0 ? d.p95 / d.p50 : 0;
        d.tail = m <= DIAGNOSE_MAX_ROWS ? bootstrap(tail_of, s, NULL, m)
                                        : (struct interval){tail, NAN, NAN};
    }
    free(s);
    return d;
}

/* ---- agreement ---- */

static bool in_word(uint32_t cp) {
    const enum unicode_category c = unicode_category(cp);
    return (c >= UNICODE_LL && c <= UNICODE_LU) || (c >= UNICODE_MC && c <= UNICODE_NO);
}

/* The units' hashes. */
static uint32_t units_of(const char *text, size_t len, uint64_t out[MAX_UNITS]) {
    uint32_t n = 0;
    XXH64_hash_t word = 0;
    bool open = false;
    for (size_t at = 0; at < len && n < MAX_UNITS;) {
        uint32_t cp;
        at += utf8_decode(text + at, len - at, &cp);
        const bool letter = cp != UTF8_INVALID && in_word(cp), alone = letter && unicode_is_han(cp);
        if (open && (!letter || alone)) {
            out[n++] = word;
            open = false;
        }
        if (!letter || n == MAX_UNITS) continue;
        const uint32_t low = unicode_lower(cp);
        word = XXH64(&low, sizeof low, open ? word : 0);
        open = true;
        if (!alone) continue;
        out[n++] = word;
        open = false;
    }
    if (open && n < MAX_UNITS) out[n++] = word;
    return n;
}

double agreement(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    uint64_t *of_a = malloc(2 * MAX_UNITS * sizeof *of_a), *of_b = of_a + MAX_UNITS;
    uint32_t *longest = calloc(MAX_UNITS + 1, sizeof *longest);
    CHECK(of_a != NULL && longest != NULL);
    const uint32_t n = units_of(a, a_bytes, of_a), m = units_of(b, b_bytes, of_b);
    /* longest[k]: of a's first i units and b's first k. */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0, before = 0; k < m; k++) {
            const uint32_t now = longest[k + 1];
            if (of_a[i] == of_b[k])
                longest[k + 1] = before + 1;
            else if (longest[k] > now)
                longest[k + 1] = longest[k];
            before = now;
        }
    const double common = longest[m];
    free(longest);
    free(of_a);
    if (n + m == 0) return a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
    return 2 * common / (n + m);
}

/* ---- stretches ---- */

/* Of what is known among v[n]; NaN: nothing. */
static double known_mean(const double *v, uint32_t n) {
    double sum = 0;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(v[i])) sum += v[i], m++;
    return m > 0 ? sum / m : NAN;
}

uint32_t find_stretches(const double *entropy, const double *similarity, uint32_t n,
                        struct stretch *out, uint32_t most) {
    const bool blind = isnan(known_mean(similarity, n));
    uint32_t found = 0;
    bool open = false;
    struct stretch s = {0};
    for (uint32_t at = 0; at + DIAGNOSE_WINDOW <= n; at++) {
        const double similar = known_mean(similarity + at, DIAGNOSE_WINDOW);
        if (!(known_mean(entropy + at, DIAGNOSE_WINDOW) > DIAGNOSE_ENTROPY) ||
            !(blind || similar < DIAGNOSE_SIMILARITY))
            continue;
        if (open && at > s.to) {
            if (found++ < most) out[found - 1] = s;
            open = false;
        }
        if (!open) s.from = at;
        s.to = at + DIAGNOSE_WINDOW;
        open = true;
    }
    if (open && found++ < most) out[found - 1] = s;
    for (uint32_t i = 0; i < found && i < most; i++) {
        out[i].entropy = known_mean(entropy + out[i].from, out[i].to - out[i].from);
        out[i].similarity = known_mean(similarity + out[i].from, out[i].to - out[i].from);
    }
    return found;
}
