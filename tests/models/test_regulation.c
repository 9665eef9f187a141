/* Regulation: the likelihood against a distribution written out, its slopes against differences, a
 * head that finds what decides, and hostile sections. */
#include "models/regulation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/rng.h"

enum { VOCABULARY = 300, D = 16, ROWS = 900 };

static double uniform(uint32_t a, uint32_t b) {
    return (double)(rng_draw(5, a, b, RNG_TEST, 0) >> 11) * 0x1p-53;
}

/* Logits on a lattice of a quarter, so that each bin holds equal ones and the histogram is exact.
 */
static void make_row(uint32_t seed, float scale, struct regulation_row *row, float *z,
                     uint32_t target) {
    memset(row, 0, sizeof *row);
    float max = -INFINITY;
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        z[i] = 0.25f * (float)floor(4 * (double)scale * uniform(seed, i));
        max = z[i] > max ? z[i] : max;
    }
    for (uint32_t i = 0; i < VOCABULARY; i++) regulation_row_add(row, max - z[i]);
    row->target = max - z[target];
    regulation_row_finish(row);
}

/* The same from the logits themselves. */
static double written_out(const float *z, uint32_t target, double T, double top_p, bool *inside) {
    double p[VOCABULARY], all = 0, sum = 0, own = 0;
    for (uint32_t i = 0; i < VOCABULARY; i++) all += p[i] = exp((double)z[i] / T);
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        double before = 0;
        for (uint32_t k = 0; k < VOCABULARY; k++)
            if (z[k] > z[i]) before += p[k] / all;
        const double q = p[i] / all / (1 + exp(-(top_p * 1.25 - before) / 0.05));
        sum += q;
        if (i != target) continue;
        own = q;
        *inside = top_p >= 1 || before < top_p;
    }
    return log(own / sum);
}

static void likelihoods(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct regulation_row row;
        float z[VOCABULARY];
        const uint32_t target = seed * 13 % VOCABULARY;
        make_row(seed, 4 + (float)seed, &row, z, target);
        for (uint32_t g = 0; g < REGULATION_GRID; g += 7) {
            double T, p, slope[2];
            bool inside;
            regulation_grid(g, &T, &p);
            const double l = regulation_likelihood(&row, T, p, slope), h = 1e-5;
            const double want = written_out(z, target, T, p, &inside);
            if (fabs(l - want) > 1e-6 * (1 + fabs(want))) fail_msg("%g is not %g", l, want);
            assert_int_equal(regulation_inside(&row, T, p), inside);
            const double by_T = (regulation_likelihood(&row, T + h, p, NULL) -
                                 regulation_likelihood(&row, T - h, p, NULL)) /
                                (2 * h);
            const double by_p = (regulation_likelihood(&row, T, p + h, NULL) -
                                 regulation_likelihood(&row, T, p - h, NULL)) /
                                (2 * h);
            if (fabs(slope[0] - by_T) > 1e-4 * (1 + fabs(by_T)))
                fail_msg("by T %g is not %g", slope[0], by_T);
            if (fabs(slope[1] - by_p) > 1e-4 * (1 + fabs(by_p)))
                fail_msg("by top_p %g is not %g", slope[1], by_p);
        }
    }
}

/* Half of the rows are drawn at 0.5, the others at 1.3, and one number of the state says which. */
static void finds_what_decides(void **state) {
    (void)state;
    struct regulation_row *rows = calloc(ROWS, sizeof *rows);
    float *states = calloc((size_t)ROWS * D, sizeof *states), weight[2 * D], z[VOCABULARY];
    uint8_t part[ROWS];
    assert_true(rows != NULL && states != NULL);
    for (uint32_t r = 0; r < ROWS; r++) {
        const double T = r % 2 ? 1.3 : 0.5;
        double sum = 0, at = uniform(1000000 + r, 0);
        uint32_t target = 0;
        make_row(r, 8, &rows[r], z, 0);
        for (uint32_t i = 0; i < VOCABULARY; i++) sum += exp((double)z[i] / T);
        for (at *= sum; target + 1 < VOCABULARY; target++) {
            at -= exp((double)z[target] / T);
            if (at < 0) break;
        }
        make_row(r, 8, &rows[r], z, target);
        part[r] = r % 5 == 0 ? 1 : r % 5 == 1 ? 2 : 0;
        for (uint32_t i = 0; i < D; i++)
            states[(size_t)r * D + i] = (float)(3 + uniform(r, 5000 + i));
        states[(size_t)r * D + 7] += r % 2 ? 1 : -1;
    }
    const struct regulation_fit fit = {
        .d_model = D, .n_rows = ROWS, .rows = rows, .states = states, .part = part};
    struct regulation_head h;
    struct error e = {0};
    assert_int_equal(regulation_fit(&fit, &h, weight, &e), STATUS_OK);
    double best = -INFINITY, own = 0, cold = 0, hot = 0;
    for (uint32_t g = 0; g < REGULATION_GRID; g++) {
        double T, p, l = 0;
        regulation_grid(g, &T, &p);
        for (uint32_t r = 0; r < ROWS; r++)
            if (part[r] == 2) l += regulation_likelihood(&rows[r], T, p, NULL);
        best = l > best ? l : best;
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        float v[2];
        if (part[r] != 2) continue;
        regulation_head_run(&h, states + (size_t)r * D, D, v);
        own += regulation_likelihood(&rows[r], (double)v[0], (double)v[1], NULL);
        *(r % 2 ? &hot : &cold) += (double)v[0];
        n++;
    }
    if (!(own > best + 0.03 * n)) fail_msg("%g against %g over %u rows", own, best, n);
    if (!(hot / (n / 2.0) > cold / (n / 2.0) + 0.25)) fail_msg("%g and %g", hot / n, cold / n);
    free(rows);
    free(states);
}

static void sections(void **state) {
    (void)state;
    float weight[2 * D];
    for (int i = 0; i < 2 * D; i++) weight[i] = 0.01f * (float)i;
    const struct regulation_head h = {
        .bias = {0.5f, -1}, .least = {0.1f, 0.3f}, .most = {1.6f, 1}, .weight = weight};
    const uint64_t model[2] = {1, 2};
    char path[] = "/tmp/regulation-XXXXXX";
    struct sidecar_section s;
    struct sidecar *car;
    struct regulation r;
    struct error e = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(regulation_view(&r, NULL, D, &e), STATUS_OK);
    assert_false(r.present);
    assert_int_equal(regulation_write(&h, D, "{}", &s, &e), STATUS_OK);
    char *bytes = (char *)(uintptr_t)s.data;
    static const struct {
        size_t at, n;
        float v;
        enum status want;
    } cases[] = {{0, 0, 0, STATUS_OK},
                 {8, 0, NAN, STATUS_CORRUPT},
                 {16, 0, -1, STATUS_CORRUPT},
                 {16, 0, 1.7f, STATUS_CORRUPT}, /* least over most */
                 {28, 0, 1.5f, STATUS_CORRUPT}, /* top_p over 1 */
                 {64 + 4 * 5, 0, INFINITY, STATUS_CORRUPT},
                 {0, 20, 0, STATUS_CORRUPT},
                 {0, 64 + 8 * D - 1, 0, STATUS_CORRUPT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float before;
        const size_t whole = s.bytes;
        memcpy(&before, bytes + cases[i].at, 4);
        if (cases[i].at > 0) memcpy(bytes + cases[i].at, &cases[i].v, 4);
        if (cases[i].n > 0) s.bytes = cases[i].n;
        assert_int_equal(sidecar_write(path, model, &s, 1, &e), STATUS_OK);
        assert_int_equal(sidecar_open(path, model, &car, &e), STATUS_OK);
        if (regulation_view(&r, car, D, &e) != cases[i].want) fail_msg("case %zu", i);
        assert_int_equal(r.present, cases[i].want == STATUS_OK);
        if (r.present) {
            assert_memory_equal(r.head.weight, weight, sizeof weight);
            assert_true(r.head.bias[1] == -1 && r.head.most[0] == 1.6f && r.report_bytes == 2);
            assert_int_equal(regulation_view(&r, car, D + 1, &e), STATUS_INVALID);
        }
        sidecar_close(car);
        s.bytes = whole;
        memcpy(bytes + cases[i].at, &before, 4);
    }
    free(bytes);
    unlink(path);
}

static void says_the_middle_of_nonsense(void **state) {
    (void)state;
    float weight[2 * D] = {1}, states[D] = {NAN}, v[2];
    const struct regulation_head h = {.least = {0.2f, 0.5f}, .most = {1, 1}, .weight = weight};
    regulation_head_run(&h, states, D, v);
    assert_true(fabsf(v[0] - 0.6f) < 1e-6f && fabsf(v[1] - 0.75f) < 1e-6f);
    states[0] = 1e30f;
    regulation_head_run(&h, states, D, v);
    assert_true(v[0] <= 1 && v[0] > 0.999f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(likelihoods),
        cmocka_unit_test(finds_what_decides),
        cmocka_unit_test(sections),
        cmocka_unit_test(says_the_middle_of_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
