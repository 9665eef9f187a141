/* diagnose_stats.h: the figures of `laconic diagnose`, from what was measured. Pure functions but
 * for scratch on the heap (CHECKed: some KiB).
 *
 * Quantiles are linear between order statistics (Hyndman and Fan, "Sample Quantiles in Statistical
 * Packages", 1996, type 7). Intervals are the central 95 % of a percentile bootstrap (Efron and
 * Tibshirani, "An Introduction to the Bootstrap", 1993): 2,000 resamples of whole prompts, so that
 * what was measured on one prompt stays together; the same numbers give the same interval.
 */
#ifndef LAC_CMD_DIAGNOSE_STATS_H
#define LAC_CMD_DIAGNOSE_STATS_H

#include <stddef.h>
#include <stdint.h>

enum {
    DIAGNOSE_WINDOW = 8, /* tokens: shorter is no stretch */
    DIAGNOSE_RESAMPLES = 2000,
    DIAGNOSE_MAX_ROWS = 4096,
};
/* A tail worth a warning; and what a divergent stretch is. */
#define DIAGNOSE_TAIL       2.5
#define DIAGNOSE_ENTROPY    2.5 /* nats */
#define DIAGNOSE_SIMILARITY 0.3

struct interval {
    double value, low, high;
};

struct distribution {
    uint32_t n;
    double least, p50, p90, p95, p99, most, mean;
    struct interval tail; /* p95 / p50; over DIAGNOSE_MAX_ROWS numbers without an interval */
};

/* v[n] in any order; NaN are left out. n 0: zeros. */
struct distribution distribution_of(const double *v, uint32_t n);
void sort_numbers(double *v, uint32_t n); /* ascending */
/* 0 <= q <= 1; v[n] ascending, n >= 1. */
double quantile(const double *v, uint32_t n, double q);

enum paired { PAIRED_MEDIAN_RATIO, PAIRED_P95_RATIO, PAIRED_MEAN_DIFFERENCE };
/* b against a, measured on the same prompts: [n] each, n >= 1, positive where a ratio is asked for.
 * MEDIAN_RATIO: the median of b[i] / a[i]; P95_RATIO: that of b over that of a. */
struct interval compare_paired(enum paired what, const double *a, const double *b, uint32_t n);
struct interval mean_interval(const double *v, uint32_t n);

/* How much two texts agree, 0 .. 1: twice their longest common subsequence over both lengths, in
 * words (runs of letters and digits, lower case) and ideographs. Two texts without any agree if
 * they are equal. At most 1,024 units of each are compared. */
double agreement(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Tokens [from, to) of a trace. */
struct stretch {
    uint32_t from, to;
    double entropy, similarity; /* means; similarity NaN: not known */
};
/* The union of all windows of DIAGNOSE_WINDOW tokens whose mean entropy is over DIAGNOSE_ENTROPY
 * and whose mean similarity is under DIAGNOSE_SIMILARITY; a window in which nothing is known of the
 * similarity counts by its entropy only where the whole trace knows nothing. Returns how many,
 * at most `most` are told. similarity may hold NaN. */
uint32_t find_stretches(const double *entropy, const double *similarity, uint32_t n,
                        struct stretch *out, uint32_t most);

#endif
