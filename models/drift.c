#include "models/drift.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"

struct drift_monitor {
    struct drift_options o;
    uint64_t rows;
    float *reference;     /* [n_series][reference_rows], sorted once full */
    float *window;        /* [n_series][window_rows], a ring */
    float *sorted;        /* [window_rows] */
    uint16_t *class_ring; /* [window_rows] */
    int8_t *right_ring;   /* [window_rows] */
    uint32_t class_before[DRIFT_MAX_CLASSES];
    uint32_t labelled_before, right_before;
    double mean_before[DRIFT_MAX_SERIES];
};

struct drift_options drift_defaults(uint32_t n_series, uint32_t n_classes) {
    return (struct drift_options){.reference_rows = 300,
                                  .window_rows = 100,
                                  .step_rows = 10,
                                  .n_series = n_series,
                                  .n_classes = n_classes,
                                  .n_monitors = 1,
                                  .false_alarms = 0.01};
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Q(x) = 2 sum (-1)^(k-1) exp(-2 k^2 x^2) */
static double kolmogorov(double x) {
    if (x < 0.3) return 1; /* the sum is 1 to 9 digits there, and slow */
    double sum = 0;
    for (int k = 1; k <= 100; k++) {
        const double term = math_exp(-2.0 * k * k * x * x);
        sum += k % 2 ? term : -term;
        if (term < 1e-18) break;
    }
    const double q = 2 * sum;
    return q > 1 ? 1 : q < 0 ? 0 : q;
}

double drift_ks(const float *a, uint32_t n_a, const float *b, uint32_t n_b, double *distance) {
    CHECK(n_a > 0 && n_b > 0);
    double most = 0;
    for (uint32_t i = 0, j = 0; i < n_a && j < n_b;) {
        const float x = a[i] < b[j] ? a[i] : b[j];
        while (i < n_a && a[i] <= x) i++;
        while (j < n_b && b[j] <= x) j++;
        const double gap = fabs((double)i / n_a - (double)j / n_b);
        if (gap > most) most = gap;
    }
    *distance = most;
    const double root = sqrt((double)n_a * n_b / ((double)n_a + n_b));
    return kolmogorov((root + 0.12 + 0.11 / root) * most);
}

double drift_chi_squared(double x, uint32_t degrees) {
    CHECK(degrees > 0);
    if (!(x > 0)) return 1;
    const double half = x / 2, e = math_exp(-half);
    /* Q(a + 1) = Q(a) + half^a e^-half / Gamma(a + 1), from a = 1/2 or 1 on. */
    const bool odd = degrees % 2 != 0;
    double q = odd ? erfc(sqrt(half)) : e;
    double term = odd ? e * sqrt(half) / 0.88622692545275801 : e * half;
    for (uint32_t d = odd ? 1 : 2; d + 2 <= degrees; d += 2) {
        q += term;
        term *= half / ((d + 2) / 2.0);
    }
    return q > 1 ? 1 : q;
}

double drift_psi(const uint32_t *before, const uint32_t *now, uint32_t n_classes, double *psi) {
    CHECK(n_classes >= 2 && n_classes <= DRIFT_MAX_CLASSES);
    double n = 0, m = 0, sum = 0;
    for (uint32_t c = 0; c < n_classes; c++) {
        n += before[c];
        m += now[c];
    }
    CHECK(n > 0 && m > 0);
    for (uint32_t c = 0; c < n_classes; c++) {
        const double r = (before[c] + 0.5) / (n + 0.5 * n_classes);
        const double w = (now[c] + 0.5) / (m + 0.5 * n_classes);
        sum += (w - r) * math_log(w / r);
    }
    *psi = sum;
    return drift_chi_squared(sum / (1 / n + 1 / m), n_classes - 1);
}

static bool options_are_good(const struct drift_options *o) {
    return o->reference_rows >= 20 && o->reference_rows <= DRIFT_MAX_ROWS && o->window_rows >= 20 &&
           o->window_rows <= DRIFT_MAX_ROWS && o->step_rows >= 1 &&
           o->step_rows <= DRIFT_MAX_ROWS && o->n_series <= DRIFT_MAX_SERIES && o->n_classes >= 2 &&
           o->n_classes <= DRIFT_MAX_CLASSES && o->n_monitors >= 1 && o->false_alarms > 0 &&
           o->false_alarms < 1;
}

enum status drift_new(const struct drift_options *o, struct drift_monitor **out, struct error *e) {
    *out = NULL;
    if (!options_are_good(o))
        return error_set(e, STATUS_INVALID, NULL,
                         "a drift monitor takes 20 to %d rows of reference and window, steps of at "
                         "least one row, and a false-alarm rate between 0 and 1",
                         DRIFT_MAX_ROWS);
    struct drift_monitor *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->o = *o;
        m->reference = calloc((size_t)o->reference_rows * o->n_series + 1, sizeof *m->reference);
        m->window = calloc((size_t)o->window_rows * o->n_series + 1, sizeof *m->window);
        m->sorted = calloc(o->window_rows, sizeof *m->sorted);
        m->class_ring = calloc(o->window_rows, sizeof *m->class_ring);
        m->right_ring = calloc(o->window_rows, sizeof *m->right_ring);
    }
    if (!m || !m->reference || !m->window || !m->sorted || !m->class_ring || !m->right_ring) {
        drift_free(m);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a drift monitor");
    }
    *out = m;
    return STATUS_OK;
}

void drift_free(struct drift_monitor *m) {
    if (m == NULL) return;
    free(m->reference);
    free(m->window);
    free(m->sorted);
    free(m->class_ring);
    free(m->right_ring);
    free(m);
}

static void add_reference(struct drift_monitor *m, const struct drift_row *row) {
    const uint32_t n = m->o.reference_rows;
    for (uint32_t s = 0; s < m->o.n_series; s++) {
        const float v = isfinite(row->value[s]) ? row->value[s] : 0;
        m->reference[(size_t)s * n + m->rows] = v;
        m->mean_before[s] += (double)v / n;
        if (m->rows + 1 == n)
            qsort(m->reference + (size_t)s * n, n, sizeof *m->reference, by_value);
    }
    m->class_before[row->class]++;
    m->labelled_before += row->right != DRIFT_UNKNOWN;
    m->right_before += row->right == DRIFT_RIGHT;
}

static void compare_accuracy(const struct drift_monitor *m, struct drift_result *r) {
    uint32_t right = 0;
    for (uint32_t i = 0; i < m->o.window_rows; i++) {
        r->labelled_now += m->right_ring[i] != DRIFT_UNKNOWN;
        right += m->right_ring[i] == DRIFT_RIGHT;
    }
    r->labelled_before = m->labelled_before;
    r->accuracy_p = 1;
    if (r->labelled_before == 0 || r->labelled_now == 0) return;
    const double n = r->labelled_before, w = r->labelled_now;
    r->accuracy_before = m->right_before / n;
    r->accuracy_now = right / w;
    const double pooled = (m->right_before + right) / (n + w);
    const double spread = sqrt(pooled * (1 - pooled) * (1 / n + 1 / w));
    if (spread > 0)
        r->accuracy_p = 0.5 * erfc((r->accuracy_before - r->accuracy_now) / spread / sqrt(2.0));
    r->falling = r->accuracy_p < 0.01;
}

static void note_p(struct drift_result *r, double p, int by) {
    if (p >= r->p_least) return;
    r->p_least = p;
    r->alarm_by = by;
}

bool drift_compare(struct drift_monitor *m, struct drift_result *r) {
    memset(r, 0, sizeof *r);
    const struct drift_options *o = &m->o;
    if (m->rows < (uint64_t)o->reference_rows + o->window_rows) return false;
    r->rows = m->rows;
    r->p_least = 2;
    for (uint32_t s = 0; s < o->n_series; s++) {
        memcpy(m->sorted, m->window + (size_t)s * o->window_rows,
               o->window_rows * sizeof *m->sorted);
        qsort(m->sorted, o->window_rows, sizeof *m->sorted, by_value);
        for (uint32_t i = 0; i < o->window_rows; i++)
            r->mean_now[s] += (double)m->sorted[i] / o->window_rows;
        r->mean_before[s] = m->mean_before[s];
        r->ks_p[s] = drift_ks(m->reference + (size_t)s * o->reference_rows, o->reference_rows,
                              m->sorted, o->window_rows, &r->ks[s]);
        note_p(r, r->ks_p[s], (int)s);
    }
    uint32_t now[DRIFT_MAX_CLASSES] = {0};
    for (uint32_t i = 0; i < o->window_rows; i++) now[m->class_ring[i]]++;
    r->psi_p = drift_psi(m->class_before, now, o->n_classes, &r->psi);
    note_p(r, r->psi_p, (int)o->n_series);
    const double tests = ceil(1000.0 / o->step_rows) * (o->n_series + 1) * o->n_monitors;
    r->threshold = o->false_alarms / tests;
    r->alarm = r->p_least < r->threshold;
    compare_accuracy(m, r);
    return true;
}

bool drift_add(struct drift_monitor *m, const struct drift_row *row, struct drift_result *r) {
    CHECK(row->class < m->o.n_classes);
    const uint32_t w = m->o.window_rows;
    if (m->rows < m->o.reference_rows) {
        add_reference(m, row);
        m->rows++;
        return false;
    }
    const uint32_t at = (uint32_t)((m->rows - m->o.reference_rows) % w);
    for (uint32_t s = 0; s < m->o.n_series; s++)
        m->window[(size_t)s * w + at] = isfinite(row->value[s]) ? row->value[s] : 0;
    m->class_ring[at] = (uint16_t)row->class;
    m->right_ring[at] = (int8_t)row->right;
    m->rows++;
    if ((m->rows - m->o.reference_rows) % m->o.step_rows != 0) return false;
    return drift_compare(m, r);
}
