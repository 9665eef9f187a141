#include "core/histogram.h"

#include <string.h>

#include "core/check.h"

static const uint64_t first_ns = 1000;

static const uint64_t bounds_ns[HISTOGRAM_BOUNDS] = {
    100000,     200000,      500000,      1000000,     2000000,     5000000,    10000000,
    20000000,   50000000,    100000000,   200000000,   500000000,   1000000000, 2000000000,
    5000000000, 10000000000, 20000000000, 30000000000, 60000000000,
};

void histogram_init(struct histogram *h) {
    memset(h, 0, sizeof *h);
}

static size_t bucket_of(uint64_t ns) {
    if (ns <= first_ns) return 0;
    uint64_t unit = first_ns; /* ns lies in (unit, 10 unit] */
    size_t base = 1;
    while (ns > 10 * unit) {
        unit *= 10;
        base += HISTOGRAM_DECADE_BUCKETS;
        if (base == HISTOGRAM_BUCKETS - 1) return base;
    }
    /* ns - 1, because a bucket holds its upper edge. */
    if (ns <= 2 * unit) return base + (size_t)((ns - 1 - unit) / (unit / 10));
    if (ns <= 5 * unit) return base + 10 + (size_t)((ns - 1 - 2 * unit) / (unit / 5));
    return base + 25 + (size_t)((ns - 1 - 5 * unit) / (unit / 2));
}

uint64_t histogram_edge_ns(size_t i) {
    CHECK(i < HISTOGRAM_BUCKETS);
    if (i == 0) return first_ns;
    if (i == HISTOGRAM_BUCKETS - 1) return UINT64_MAX;
    uint64_t unit = first_ns;
    size_t step = i - 1;
    for (; step >= HISTOGRAM_DECADE_BUCKETS; step -= HISTOGRAM_DECADE_BUCKETS) unit *= 10;
    if (step < 10) return unit + unit / 10 * (step + 1);
    if (step < 25) return 2 * unit + unit / 5 * (step - 9);
    return 5 * unit + unit / 2 * (step - 24);
}

void histogram_add(struct histogram *h, uint64_t ns) {
    if (h->count == 0 || ns < h->min_ns) h->min_ns = ns;
    if (ns > h->max_ns) h->max_ns = ns;
    h->count++;
    h->sum_ns += ns;
    h->buckets[bucket_of(ns)]++;
}

void histogram_merge(struct histogram *into, const struct histogram *from) {
    if (from->count == 0) return;
    if (into->count == 0 || from->min_ns < into->min_ns) into->min_ns = from->min_ns;
    if (from->max_ns > into->max_ns) into->max_ns = from->max_ns;
    into->count += from->count;
    into->sum_ns += from->sum_ns;
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) into->buckets[i] += from->buckets[i];
}

uint64_t histogram_quantile_ns(const struct histogram *h, double q) {
    if (h->count == 0) return 0;
    if (!(q > 0.0)) return h->min_ns;
    if (q >= 1.0) return h->max_ns;
    double rank = q * (double)h->count; /* nearest rank: its ceiling, at least 1 */
    uint64_t wanted = (uint64_t)rank;
    if ((double)wanted < rank || wanted == 0) wanted++;

    uint64_t before = 0;
    size_t i = 0;
    while (i < HISTOGRAM_BUCKETS - 1 && before + h->buckets[i] < wanted) before += h->buckets[i++];

    uint64_t low = i == 0 ? 0 : histogram_edge_ns(i - 1);
    uint64_t high = histogram_edge_ns(i);
    if (low < h->min_ns) low = h->min_ns;
    if (high > h->max_ns) high = h->max_ns;
    if (high <= low) return high;
    const double share = (double)(wanted - before) / (double)h->buckets[i];
    const uint64_t ns = low + (uint64_t)((double)(high - low) * share);
    return ns < high ? ns : high;
}

uint64_t histogram_bound_ns(size_t i) {
    CHECK(i < HISTOGRAM_BOUNDS);
    return bounds_ns[i];
}

void histogram_cumulative(const struct histogram *h, uint64_t counts[HISTOGRAM_BOUNDS]) {
    uint64_t sum = 0;
    size_t bucket = 0;
    for (size_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        const size_t last = bucket_of(bounds_ns[i]);
        while (bucket <= last) sum += h->buckets[bucket++];
        counts[i] = sum;
    }
}
