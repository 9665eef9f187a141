#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/diagnose.h"
#include "core/check.h"

/* ---- an arm ---- */

typedef double figure(const struct diagnose_answer *a);

static double of_seconds(const struct diagnose_answer *a) {
    return a->seconds;
}
static double of_first(const struct diagnose_answer *a) {
    return a->first_s;
}
static double of_token(const struct diagnose_answer *a) {
    return a->token_s;
}
static double of_tokens(const struct diagnose_answer *a) {
    return a->tokens;
}

static struct distribution distribution_over(const struct diagnose_answer *a, uint32_t n,
                                             figure *of, double *work) {
    for (uint32_t i = 0; i < n; i++) work[i] = a[i].failed ? NAN : of(&a[i]);
    return distribution_of(work, n);
}

static struct distribution all_gaps(const struct diagnose_answer *a, uint32_t n) {
    struct diagnose_list all = {0};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; !a[i].failed && k < a[i].gaps.n; k++)
            diagnose_list_add(&all, a[i].gaps.v[k]);
    const struct distribution out = distribution_of(all.v, all.n);
    free(all.v);
    return out;
}

static void fill_arm(const struct diagnose_answer *a, uint32_t n, double *work,
                     struct diagnose_arm_figures *out) {
    out->seconds = distribution_over(a, n, of_seconds, work);
    out->first_s = distribution_over(a, n, of_first, work);
    out->token_s = distribution_over(a, n, of_token, work);
    out->tokens = distribution_over(a, n, of_tokens, work);
    out->gap_s = all_gaps(a, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!a[i].failed) continue;
        if (out->n_failed++ == 0) out->why = a[i].why;
    }
}

/* ---- one arm against another ---- */

static bool same_text(const struct diagnose_answer *a, const struct diagnose_answer *b) {
    return a->text.len == b->text.len && memcmp(a->text.data, b->text.data, a->text.len) == 0;
}

static void compare(const struct diagnose_answer *a, const struct diagnose_answer *b, uint32_t n,
                    double *work, struct diagnose_comparison *out) {
    double *of[6]; /* a's and b's seconds and first tokens, more tokens, agreement */
    for (int k = 0; k < 6; k++) of[k] = work + (size_t)k * n;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].failed || b[i].failed) continue;
        of[0][m] = a[i].seconds, of[1][m] = b[i].seconds;
        of[2][m] = a[i].first_s, of[3][m] = b[i].first_s;
        of[4][m] = (double)b[i].tokens - (double)a[i].tokens;
        of[5][m++] = agreement(a[i].text.data, a[i].text.len, b[i].text.data, b[i].text.len);
        if (same_text(&a[i], &b[i])) out->n_identical++;
    }
    out->n = m;
    if (m == 0) return;
    out->median_ratio = compare_paired(PAIRED_MEDIAN_RATIO, of[0], of[1], m);
    out->p95_ratio = compare_paired(PAIRED_P95_RATIO, of[0], of[1], m);
    out->difference_s = compare_paired(PAIRED_MEAN_DIFFERENCE, of[0], of[1], m);
    out->first_ratio = compare_paired(PAIRED_MEDIAN_RATIO, of[2], of[3], m);
    out->tokens = mean_interval(of[4], m);
    out->agreement = mean_interval(of[5], m);
}

/* ---- where the time goes ---- */

static struct diagnose_share share_between(const struct diagnose_answer *a, uint32_t n,
                                           double least, double most) {
    struct diagnose_share s = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].failed || a[i].seconds < least || a[i].seconds > most) continue;
        s.n++;
        s.tokens += a[i].tokens;
        s.total += 1000 * a[i].seconds;
        if (!a[i].cost.known) continue;
        s.n_known++;
        s.tokenise += a[i].cost.tokenise;
        s.queue += a[i].cost.queue;
        s.prefill += a[i].cost.prefill;
        s.decode += a[i].cost.decode;
    }
    if (s.n > 0) s.tokens /= s.n, s.total /= s.n;
    if (s.n_known > 0)
        s.tokenise /= s.n_known, s.queue /= s.n_known, s.prefill /= s.n_known,
            s.decode /= s.n_known;
    return s;
}

static void find_shares(const struct diagnose *d, struct diagnose_figures *f, double *work) {
    const struct diagnose_answer *a = d->answers[DIAGNOSE_A];
    const struct distribution *s = &f->arms[DIAGNOSE_A].seconds;
    double *finite = work;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++)
        if (!a[i].failed) finite[n++] = a[i].seconds;
    if (n == 0) return;
    sort_numbers(finite, n);
    f->slowest = share_between(a, d->n, s->p95, INFINITY);
    f->middle = share_between(a, d->n, quantile(finite, n, 0.25), quantile(finite, n, 0.75));
}

static void add_saving(struct diagnose_figures *f, const char *what, double ms) {
    uint32_t i = 0;
    while (i < f->n_savings && strcmp(f->savings[i].what, what) != 0) i++;
    if (i == DIAGNOSE_MAX_SAVINGS) return;
    struct diagnose_saving *s = &f->savings[i];
    if (i == f->n_savings) {
        f->n_savings++;
        snprintf(s->what, sizeof s->what, "%s", what);
    }
    s->n++;
    s->ms += ms;
}

static int more_saved(const void *a, const void *b) {
    const double x = ((const struct diagnose_saving *)a)->ms;
    const double y = ((const struct diagnose_saving *)b)->ms;
    return (x < y) - (x > y);
}

static void find_savings(const struct diagnose *d, struct diagnose_figures *f) {
    for (uint32_t i = 0; i < d->n; i++) {
        size_t k;
        json_t *s;
        json_array_foreach(d->answers[DIAGNOSE_A][i].cost.faster, k, s) {
            const char *what = json_string_value(json_object_get(s, "what"));
            const double ms = json_number_value(json_object_get(s, "saved_ms"));
            if (what != NULL) add_saving(f, what, ms);
        }
    }
    qsort(f->savings, f->n_savings, sizeof *f->savings, more_saved);
}

/* ---- traces ---- */

static uint32_t length(const struct stretch *s) {
    return s->to - s->from;
}

/* The longest first. */
static void add_stretch(struct diagnose_figures *f, uint32_t prompt, const struct stretch *s) {
    f->n_divergent += length(s);
    uint32_t at = f->n_stretches < DIAGNOSE_MAX_STRETCHES ? f->n_stretches : DIAGNOSE_MAX_STRETCHES;
    f->n_stretches++;
    while (at > 0 && length(&f->stretches[at - 1].at) < length(s)) {
        if (at < DIAGNOSE_MAX_STRETCHES) f->stretches[at] = f->stretches[at - 1];
        at--;
    }
    if (at < DIAGNOSE_MAX_STRETCHES)
        f->stretches[at] = (struct diagnose_stretch){.prompt = prompt, .at = *s};
}

static void find_traces(const struct diagnose *d, struct diagnose_figures *f) {
    double entropies = 0, similarities = 0;
    uint64_t n_entropies = 0, n_similarities = 0;
    for (uint32_t i = 0; d->traces != NULL && i < d->n; i++) {
        const struct diagnose_answer *t = &d->traces[i];
        if (t->failed || t->entropy.n == 0) {
            if (f->trace_why == NULL) f->trace_why = t->failed ? t->why : "it gives no logprobs";
            continue;
        }
        f->n_traced++;
        f->n_exact += t->exact;
        const struct diagnose_answer *a = &d->answers[DIAGNOSE_A][i];
        f->n_same += !a->failed && same_text(t, a);
        for (uint32_t k = 0; k < t->entropy.n; k++) {
            if (!isnan(t->entropy.v[k])) entropies += t->entropy.v[k], n_entropies++;
            if (!isnan(t->similarity.v[k])) similarities += t->similarity.v[k], n_similarities++;
        }
        f->n_tokens += t->entropy.n;
        struct stretch found[DIAGNOSE_MAX_STRETCHES];
        const uint32_t n = find_stretches(t->entropy.v, t->similarity.v, t->entropy.n, found,
                                          DIAGNOSE_MAX_STRETCHES);
        for (uint32_t k = 0; k < n && k < DIAGNOSE_MAX_STRETCHES; k++) add_stretch(f, i, &found[k]);
    }
    f->entropy = n_entropies > 0 ? entropies / (double)n_entropies : NAN;
    f->similarity = n_similarities > 0 ? similarities / (double)n_similarities : NAN;
}

void diagnose_figures(const struct diagnose *d, struct diagnose_figures *f) {
    *f = (struct diagnose_figures){0};
    double *work = malloc(6 * (size_t)d->n * sizeof *work);
    CHECK(work != NULL);
    for (uint32_t arm = 0; arm < d->n_arms; arm++)
        fill_arm(d->answers[arm], d->n, work, &f->arms[arm]);
    const struct diagnose_answer *a = d->answers[DIAGNOSE_A];
    if (d->n_arms > 1) {
        compare(a, d->answers[DIAGNOSE_B], d->n, work, &f->b);
        compare(a, d->answers[DIAGNOSE_CONTROL], d->n, work, &f->control);
    }
    find_shares(d, f, work);
    find_savings(d, f);
    find_traces(d, f);
    free(work);
}
