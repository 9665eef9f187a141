/* The pictures of `laconic diagnose`. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/diagnose.h"
#include "cmd/plot.h"
#include "core/check.h"

enum { WIDTH = 960, PANEL = 150, GAP = 62, LEFT = 60, RIGHT = 20, TRACES = 6 };

static const uint32_t COLOURS[DIAGNOSE_ARMS] = {PLOT_BLUE, PLOT_ORANGE, PLOT_GREY};

static enum status save(struct plot *p, const char *folder, const char *name, struct error *e) {
    char path[4096];
    enum status st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        st = error_set(e, STATUS_TOO_LARGE, "plots", "the folder's name is too long");
    else
        st = plot_save(p, path, e);
    plot_close(p);
    return st;
}

static double *numbers(uint32_t n) {
    double *v = malloc((n > 0 ? n : 1) * sizeof *v);
    CHECK(v != NULL);
    return v;
}

/* Ascending, without failures. */
static uint32_t sorted(const struct diagnose *d, uint32_t arm, bool first, double *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct diagnose_answer *a = &d->answers[arm][i];
        if (!a->failed) out[n++] = 1000 * (first ? a->first_s : a->seconds);
    }
    sort_numbers(out, n);
    return n;
}

/* The share of requests that took at most so long, one panel. */
static void draw_shares(const struct diagnose *d, struct plot *p, int top, bool first) {
    double *x = numbers(d->n), *share = numbers(d->n), most = 0;
    for (uint32_t arm = 0; arm < d->n_arms; arm++) {
        const uint32_t n = sorted(d, arm, first, x);
        if (n > 0 && x[n - 1] > most) most = x[n - 1];
    }
    const struct plot_axes axes = plot_axes(
        p, LEFT, top, WIDTH - RIGHT, top + PANEL, 0, most > 0 ? 1.05 * most : 1, 0, 1.02,
        first ? "share of requests with a first text within" : "share of requests answered within",
        "ms");
    static const char *const names[] = {"A", "B", "control: A, other seeds"};
    for (uint32_t arm = 0; arm < d->n_arms; arm++) {
        const uint32_t n = sorted(d, arm, first, x);
        if (n == 0) continue;
        for (uint32_t i = 0; i < n; i++) share[i] = (i + 1.0) / n;
        plot_curve(&axes, COLOURS[arm], x, share, n);
        const double q[] = {quantile(x, n, 0.5), quantile(x, n, 0.95)}, at[] = {0.5, 0.95};
        plot_dots(&axes, COLOURS[arm], q, at, 2);
        char name[96];
        snprintf(name, sizeof name, "%s: P50 %.1f, P95 %.1f (%.2f times)", names[arm], q[0], q[1],
                 q[0] > 0 ? q[1] / q[0] : 0);
        plot_legend(&axes, COLOURS[arm], 7 + (int)arm, name);
    }
    free(x);
    free(share);
}

static enum status plot_latency(const struct diagnose *d, const char *folder, struct error *e) {
    struct plot *p = plot_open(WIDTH, 2 * (PANEL + GAP) + 10);
    draw_shares(d, p, 30, false);
    draw_shares(d, p, 30 + PANEL + GAP, true);
    return save(p, folder, "latency.png", e);
}

static double mean_entropy(const struct diagnose_answer *t) {
    double sum = 0;
    for (uint32_t i = 0; i < t->entropy.n; i++) sum += t->entropy.v[i];
    return t->failed || t->entropy.n < 2 ? -1 : sum / t->entropy.n;
}

/* Those with the longest stretches, then those with the most entropy. */
static uint32_t choose(const struct diagnose *d, const struct diagnose_figures *f,
                       uint32_t out[TRACES]) {
    uint32_t n = 0;
    bool *taken = calloc(d->n, sizeof *taken);
    CHECK(taken != NULL);
    for (uint32_t i = 0; i < f->n_stretches && i < DIAGNOSE_MAX_STRETCHES && n < TRACES; i++) {
        const uint32_t prompt = f->stretches[i].prompt;
        if (!taken[prompt]) out[n++] = prompt;
        taken[prompt] = true;
    }
    for (double best = 0; n < TRACES && best >= 0;) {
        uint32_t at = 0;
        best = -1;
        for (uint32_t i = 0; i < d->n; i++)
            if (!taken[i] && mean_entropy(&d->traces[i]) > best)
                best = mean_entropy(&d->traces[i]), at = i;
        if (best >= 0) out[n++] = at;
        taken[at] = true;
    }
    free(taken);
    return n;
}

/* Over DIAGNOSE_WINDOW tokens, as stretches are found; NaN before there are as many. */
static void running_mean(const double *v, uint32_t n, double *out) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        uint32_t known = 0;
        for (uint32_t k = 0; i + 1 >= DIAGNOSE_WINDOW && k < DIAGNOSE_WINDOW; k++)
            if (!isnan(v[i - k])) sum += v[i - k], known++;
        out[i] = known > 0 ? sum / known : NAN;
    }
}

static void draw_trace(const struct diagnose *d, struct plot *p, int top, uint32_t prompt) {
    const struct diagnose_answer *t = &d->traces[prompt];
    const uint32_t n = t->entropy.n;
    double *x = numbers(n), *mean = numbers(n), most = 4;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = i;
        if (t->entropy.v[i] > most) most = t->entropy.v[i];
    }
    char title[160];
    snprintf(title, sizeof title, "prompt %u: %.80s", prompt, d->prompts[prompt]);
    const struct plot_axes axes = plot_axes(p, LEFT, top, WIDTH - RIGHT, top + PANEL, 0, n - 1.0,
                                            -0.5, 1.05 * most, title, "token");
    struct stretch found[DIAGNOSE_MAX_STRETCHES];
    const uint32_t n_found =
        find_stretches(t->entropy.v, t->similarity.v, n, found, DIAGNOSE_MAX_STRETCHES);
    for (uint32_t i = 0; i < n_found && i < DIAGNOSE_MAX_STRETCHES; i++)
        plot_band(&axes, PLOT_ROSE, found[i].from, found[i].to - 1.0);
    plot_line(&axes, PLOT_BLUE, 0, DIAGNOSE_ENTROPY, n - 1.0, DIAGNOSE_ENTROPY);
    plot_line(&axes, PLOT_ORANGE, 0, DIAGNOSE_SIMILARITY, n - 1.0, DIAGNOSE_SIMILARITY);
    plot_curve(&axes, PLOT_GREY, x, t->entropy.v, n);
    running_mean(t->entropy.v, n, mean);
    plot_curve(&axes, PLOT_BLUE, x, mean, n);
    running_mean(t->similarity.v, n, mean);
    plot_curve(&axes, PLOT_ORANGE, x, mean, n);
    plot_legend(&axes, PLOT_GREY, 0, "entropy (nats)");
    plot_legend(&axes, PLOT_BLUE, 1, "its mean over 8 tokens, and 2.5");
    plot_legend(&axes, PLOT_ORANGE, 2, "similarity, likewise, and 0.3");
    free(x);
    free(mean);
}

static enum status plot_traces(const struct diagnose *d, const struct diagnose_figures *f,
                               const char *folder, struct error *e) {
    uint32_t chosen[TRACES];
    const uint32_t n = choose(d, f, chosen);
    if (n == 0) return STATUS_OK;
    struct plot *p = plot_open(WIDTH, n * (PANEL + GAP) + 10);
    for (uint32_t i = 0; i < n; i++) draw_trace(d, p, 30 + (int)i * (PANEL + GAP), chosen[i]);
    return save(p, folder, "traces.png", e);
}

/* A prompt a dot: A's time across, B's up, and how much the answers agree. */
static enum status plot_compare(const struct diagnose *d, const char *folder, struct error *e) {
    const struct diagnose_answer *a = d->answers[DIAGNOSE_A], *b = d->answers[DIAGNOSE_B];
    double *x = numbers(d->n), *y = numbers(d->n), *z = numbers(d->n), most = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (a[i].failed || b[i].failed) continue;
        x[n] = 1000 * a[i].seconds, y[n] = 1000 * b[i].seconds;
        most = fmax(most, fmax(x[n], y[n]));
        z[n++] = agreement(a[i].text.data, a[i].text.len, b[i].text.data, b[i].text.len);
    }
    const int side = WIDTH / 2 - LEFT - RIGHT;
    struct plot *p = plot_open(WIDTH, (uint32_t)side + 80);
    most = most > 0 ? 1.05 * most : 1;
    const struct plot_axes times = plot_axes(p, LEFT, 30, LEFT + side, 30 + side, 0, most, 0, most,
                                             "B's ms over A's", "A, ms");
    plot_line(&times, PLOT_GREY, 0, 0, most, most);
    plot_dots(&times, PLOT_BLUE, x, y, n);
    sort_numbers(z, n);
    for (uint32_t i = 0; i < n; i++) x[i] = (i + 1.0) / n;
    const int left = WIDTH / 2 + LEFT;
    const struct plot_axes agree =
        plot_axes(p, left, 30, left + side, 30 + side, 0, 1, 0, 1.02,
                  "share of prompts whose answers agree at most so much", "agreement");
    plot_curve(&agree, PLOT_BLUE, z, x, n);
    free(x);
    free(y);
    free(z);
    return save(p, folder, "compare.png", e);
}

enum status diagnose_plot(const struct diagnose *d, const struct diagnose_figures *f,
                          const char *folder, struct error *e) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return error_set(e, STATUS_IO, "plots", "the folder %s cannot be made", folder);
    enum status st = plot_latency(d, folder, e);
    if (st == STATUS_OK && d->traces != NULL) st = plot_traces(d, f, folder, e);
    if (st == STATUS_OK && d->n_arms > 1) st = plot_compare(d, folder, e);
    return st;
}
