/* histogram.h: a histogram of times, in memory of fixed size.
 *
 * Buckets are log-linear with decimal edges: each decade from 1 microsecond to 100 seconds is cut
 * in 35 (steps of 0.1 from 1 to 2, 0.2 from 2 to 5, 0.5 from 5 to 10), so a bucket is at most 10 %
 * wide and every Prometheus bound below is an edge, counted exactly. A bucket holds (lower, upper];
 * the first holds everything up to 1 microsecond, the last everything above 100 seconds. Count,
 * sum, least and greatest are exact. Threads: one at a time. Nothing here allocates or fails.
 */
#ifndef LAC_CORE_HISTOGRAM_H
#define LAC_CORE_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    HISTOGRAM_DECADES = 8,
    HISTOGRAM_DECADE_BUCKETS = 35,
    HISTOGRAM_BUCKETS = 2 + HISTOGRAM_DECADES * HISTOGRAM_DECADE_BUCKETS,
    HISTOGRAM_BOUNDS = 19, /* 100 us, 200 us, 500 us, 1 ms, ... 20 s, 30 s, 60 s */
};

struct histogram {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t min_ns; /* 0 while empty */
    uint64_t max_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_init(struct histogram *h);
void histogram_add(struct histogram *h, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);

/* The upper edge (inclusive) of bucket i; UINT64_MAX for the last. */
uint64_t histogram_edge_ns(size_t i);

/* The time that a share q (0..1) of the values does not pass: the bucket of the nearest rank,
 * linear inside it, never outside the least and greatest values. 0 while empty. */
uint64_t histogram_quantile_ns(const struct histogram *h, double q);

/* The bounds for Prometheus' `le`, rising, and for each the number of values at or below it. The
 * `+Inf` bucket is `count`. */
uint64_t histogram_bound_ns(size_t i);
void histogram_cumulative(const struct histogram *h, uint64_t counts[HISTOGRAM_BOUNDS]);

#endif
