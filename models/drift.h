/* drift.h: notices that traffic is no longer what it was.
 *
 * A monitor keeps the first `reference_rows` rows as the reference and a window of the newest
 * `window_rows`. Every `step_rows` rows, once the window is full and clear of the reference, it
 * compares the two:
 *   - per series of values: the two-sample Kolmogorov-Smirnov distance and its p-value (asymptotic,
 *     Stephens' correction; with ties it errs towards silence);
 *   - over the classes: the population stability index, sum (w - r) ln(w / r) over shares with half
 * a row added to each class, and a p-value: the index over (1/n + 1/m) is about chi-squared with
 *     n_classes - 1 degrees of freedom.
 * An alarm is raised when a p-value falls below a threshold that spreads the allowed rate of false
 * alarms over all tests of 1,000 rows by the union bound: without drift, the chance of any alarm in
 * 1,000 rows is at most `false_alarms`. Neighbouring windows overlap, so the true rate is lower.
 * A monitor of only a language's rows tells a shift within the language from a shift of the mix.
 *
 * Rows may carry whether the class was right (labelled feedback). Accuracy "falls" when the
 * window's is below the reference's with p < 0.01 (one-sided test of two proportions). Drift and
 * falling accuracy together call for a new model.
 *
 * Limits: DRIFT_MAX_ROWS a window. Values must be finite (others count as 0). Errors:
 * STATUS_INVALID for options out of range, STATUS_NO_MEMORY. Threads: a monitor serves one thread.
 */
#ifndef LAC_MODELS_DRIFT_H
#define LAC_MODELS_DRIFT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum { DRIFT_MAX_ROWS = 65536, DRIFT_MAX_SERIES = 8, DRIFT_MAX_CLASSES = 16 };

struct drift_options {
    uint32_t reference_rows, window_rows, step_rows;
    uint32_t n_series, n_classes;
    uint32_t n_monitors; /* that watch the same stream side by side; they share the false alarms */
    double false_alarms; /* per 1,000 rows, over all monitors */
};

enum drift_right { DRIFT_UNKNOWN = -1, DRIFT_WRONG = 0, DRIFT_RIGHT = 1 };

struct drift_row {
    uint32_t class;
    float value[DRIFT_MAX_SERIES];
    enum drift_right right;
};

struct drift_result {
    uint64_t rows; /* seen by then */
    double ks[DRIFT_MAX_SERIES], ks_p[DRIFT_MAX_SERIES];
    double mean_before[DRIFT_MAX_SERIES], mean_now[DRIFT_MAX_SERIES];
    double psi, psi_p;
    uint32_t labelled_before, labelled_now;
    double accuracy_before, accuracy_now, accuracy_p;
    bool alarm;   /* a p-value is below the threshold */
    int alarm_by; /* the series with the lowest p-value, n_series for the classes */
    bool falling; /* accuracy */
    double p_least, threshold;
};

struct drift_monitor;

struct drift_options drift_defaults(uint32_t n_series, uint32_t n_classes);

LAC_MUST_USE enum status drift_new(const struct drift_options *o, struct drift_monitor **out,
                                   struct error *e);
void drift_free(struct drift_monitor *m); /* NULL is fine */

/* True: the row completed a step, and *r is its comparison. */
bool drift_add(struct drift_monitor *m, const struct drift_row *row, struct drift_result *r);

/* Compares now, if the window is full and clear of the reference. */
bool drift_compare(struct drift_monitor *m, struct drift_result *r);

/* Two samples, sorted upwards. *distance is the largest gap of their distribution functions. */
double drift_ks(const float *a, uint32_t n_a, const float *b, uint32_t n_b, double *distance);
double drift_psi(const uint32_t *before, const uint32_t *now, uint32_t n_classes, double *psi);
/* P(chi-squared with `degrees` >= x). */
double drift_chi_squared(double x, uint32_t degrees);

#endif
