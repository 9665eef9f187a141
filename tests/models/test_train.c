/* train_gemm.c, train_block.c, train_attention.c: the loss against a float64 block written here,
 * every gradient against numerical differences of that; the same bits on all instruction sets and
 * threads; learning, and going on from a saved state. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu_features.h"
#include "core/rng.h"
#include "models/train_block.h"

enum { D = 24, HEADS = 4, KV = 2, HD = 6, FF = 40, LIST = 21, ROWS = 14, TARGETS = 9 };
static const double INV_FREQ[2] = {1.0, 0.1};

static double uniform(uint64_t seed, uint32_t i) {
    return (double)(rng_draw(seed, 0, i, RNG_TEST, 0) >> 11) * 0x1p-53 * 2 - 1;
}

static struct train_shape make_shape(uint32_t n_inputs, enum rope_style style) {
    return (struct train_shape){
        .n_inputs = n_inputs,
        .d = D,
        .n_heads = HEADS,
        .n_kv_heads = KV,
        .head_dim = HD,
        .d_ff = FF,
        .n_shortlist = LIST,
        .norm_epsilon = 1e-5f,
        .attn_scale = 0.4f,
        .rope = {.style = style, .n_dims = 4, .inv_freq = INV_FREQ, .mscale = 1.1f}};
}

struct fixture {
    struct train_shape shape;
    float head[LIST * D], in[ROWS * 2 * D], features[ROWS * D];
    uint32_t first_row[4], position[ROWS];
    struct train_target targets[TARGETS];
    struct train_batch batch;
};

static void make_fixture(struct fixture *f, uint32_t n_inputs, enum rope_style style) {
    memset(f, 0, sizeof *f);
    f->shape = make_shape(n_inputs, style);
    for (uint32_t i = 0; i < LIST * D; i++) f->head[i] = (float)uniform(1, i);
    for (uint32_t i = 0; i < ROWS * 2 * D; i++) f->in[i] = (float)uniform(2, i);
    for (uint32_t i = 0; i < ROWS * D; i++) f->features[i] = (float)uniform(3, i);
    const uint32_t first[4] = {0, 7, 8, ROWS};
    memcpy(f->first_row, first, sizeof first);
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t r = first[s]; r < first[s + 1]; r++) f->position[r] = 5 * s + r - first[s];
    const uint32_t rows[TARGETS] = {1, 2, 5, 6, 7, 9, 10, 11, 13};
    for (uint32_t i = 0; i < TARGETS; i++) {
        struct train_target *t = &f->targets[i];
        t->row = rows[i];
        t->n = i == 3 ? 0 : 1 + i % 4; /* one has only a feature */
        float sum = 0;
        for (uint32_t k = 0; k < t->n; k++) {
            t->rank[k] = (7 * i + 5 * k) % LIST;
            t->probability[k] = 0.2f + (float)k;
            sum += t->probability[k];
        }
        for (uint32_t k = 0; k < t->n; k++) t->probability[k] /= sum;
        t->feature = i % 2 == 1 ? f->features + rows[i] * D : NULL;
    }
    f->batch = (struct train_batch){.in = f->in,
                                    .n_rows = ROWS,
                                    .n_sequences = 3,
                                    .first_row = f->first_row,
                                    .position = f->position,
                                    .targets = f->targets,
                                    .n_targets = TARGETS};
}

/* y [n, out] = x [n, in] W^T in float64. */
static void times(const double *x, const double *w, double *y, uint32_t n, uint32_t out,
                  uint32_t in) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t o = 0; o < out; o++) {
            double sum = 0;
            for (uint32_t k = 0; k < in; k++) sum += x[i * in + k] * w[o * in + k];
            y[i * out + o] = sum;
        }
}

static void norm(const double *x, const double *w, double *y, double epsilon) {
    for (uint32_t i = 0; i < ROWS; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < D; k++) sum += x[i * D + k] * x[i * D + k];
        const double r = 1 / sqrt(sum / D + epsilon);
        for (uint32_t k = 0; k < D; k++) y[i * D + k] = x[i * D + k] * r * w[k];
    }
}

static void turn(const struct fixture *f, double *x, uint32_t heads) {
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < 2; i++) {
                const bool adjacent = f->shape.rope.style == ROPE_ADJACENT;
                double *v = x + (r * heads + h) * HD;
                double *p = &v[adjacent ? 2 * i : i], *q = &v[adjacent ? 2 * i + 1 : i + 2];
                const double t = f->position[r] * INV_FREQ[i], m = (double)1.1f;
                const double a = *p, b = *q;
                *p = m * (a * cos(t) - b * sin(t));
                *q = m * (a * sin(t) + b * cos(t));
            }
}

/* The mean loss, weights in float64. */
static double reference(const struct fixture *f, const double *w, double feature_weight) {
    const struct train_shape *s = &f->shape;
    const double *tensor[TRAIN_TENSORS];
    for (int t = 0; t < TRAIN_TENSORS; t++)
        tensor[t] = w + train_tensor_offset(s, (enum train_tensor)t);
    static double in[ROWS * 2 * D], x[ROWS * D], a[ROWS * D], q[ROWS * HEADS * HD],
        k[ROWS * KV * HD], v[ROWS * KV * HD], o[ROWS * HEADS * HD], add[ROWS * D], g[ROWS * FF],
        u[ROWS * FF];
    for (uint32_t i = 0; i < ROWS * s->n_inputs * D; i++) in[i] = (double)f->in[i];
    if (s->n_inputs == 2)
        times(in, tensor[TRAIN_IN], x, ROWS, D, 2 * D);
    else
        memcpy(x, in, sizeof x);
    norm(x, tensor[TRAIN_NORM1], a, (double)s->norm_epsilon);
    times(a, tensor[TRAIN_Q], q, ROWS, HEADS * HD, D);
    times(a, tensor[TRAIN_K], k, ROWS, KV * HD, D);
    times(a, tensor[TRAIN_V], v, ROWS, KV * HD, D);
    turn(f, q, HEADS);
    turn(f, k, KV);
    for (uint32_t seq = 0; seq < 3; seq++)
        for (uint32_t r = f->first_row[seq]; r < f->first_row[seq + 1]; r++)
            for (uint32_t h = 0; h < HEADS; h++) {
                double p[ROWS], sum = 0;
                const uint32_t kh = h / (HEADS / KV);
                for (uint32_t c = f->first_row[seq]; c <= r; c++) {
                    p[c] = 0;
                    for (uint32_t e = 0; e < HD; e++)
                        p[c] += q[(r * HEADS + h) * HD + e] * k[(c * KV + kh) * HD + e];
                    p[c] = exp(p[c] * (double)s->attn_scale);
                    sum += p[c];
                }
                for (uint32_t e = 0; e < HD; e++) {
                    double y = 0;
                    for (uint32_t c = f->first_row[seq]; c <= r; c++)
                        y += p[c] / sum * v[(c * KV + kh) * HD + e];
                    o[(r * HEADS + h) * HD + e] = y;
                }
            }
    times(o, tensor[TRAIN_O], add, ROWS, D, HEADS * HD);
    for (uint32_t i = 0; i < ROWS * D; i++) x[i] += add[i];
    norm(x, tensor[TRAIN_NORM2], a, (double)s->norm_epsilon);
    times(a, tensor[TRAIN_GATE], g, ROWS, FF, D);
    times(a, tensor[TRAIN_UP], u, ROWS, FF, D);
    for (uint32_t i = 0; i < ROWS * FF; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    times(g, tensor[TRAIN_DOWN], add, ROWS, D, FF);
    for (uint32_t i = 0; i < ROWS * D; i++) x[i] += add[i];
    norm(x, tensor[TRAIN_NORM3], a, (double)s->norm_epsilon);
    double loss = 0;
    for (uint32_t i = 0; i < TARGETS; i++) {
        const struct train_target *t = &f->targets[i];
        const double *y = a + t->row * D;
        double z[LIST], sum = 0;
        for (uint32_t j = 0; j < LIST; j++) {
            z[j] = 0;
            for (uint32_t e = 0; e < D; e++) z[j] += y[e] * (double)f->head[j * D + e];
            sum += exp(z[j]);
        }
        for (uint32_t j = 0; j < t->n; j++)
            loss += (double)t->probability[j] * (log(sum) - z[t->rank[j]]);
        for (uint32_t e = 0; e < D && t->feature != NULL; e++) {
            const double off = y[e] - (double)t->feature[e];
            loss += feature_weight / 2 * off * off / D;
        }
    }
    return loss / TARGETS;
}

static struct train_block *open_block(const struct fixture *f, enum cpu_isa isa,
                                      struct worker_pool *pool) {
    struct train_block *b;
    struct error e = {0};
    assert_int_equal(train_block_open(&f->shape, f->head, isa, pool, ROWS + 3, TARGETS, &b, &e),
                     STATUS_OK);
    float *w = train_block_weights(b);
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        uint32_t rows, columns;
        train_tensor_shape(&f->shape, (enum train_tensor)t, &rows, &columns);
        const size_t at = train_tensor_offset(&f->shape, (enum train_tensor)t);
        for (size_t i = 0; i < (size_t)rows * columns; i++)
            w[at + i] = (float)uniform(10 + (uint64_t)t, (uint32_t)i) * 0.4f + (rows == 1);
    }
    return b;
}

static void check_gradients(uint32_t n_inputs, enum rope_style style) {
    static struct fixture f;
    make_fixture(&f, n_inputs, style);
    struct train_block *b = open_block(&f, CPU_ISA_SCALAR, NULL);
    const size_t n = train_tensor_offset(&f.shape, TRAIN_TENSORS);
    double *w = calloc(n, sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < n; i++) w[i] = (double)train_block_weights(b)[i];
    const float feature_weight = 0.7f;
    struct train_loss loss = {0};
    train_block_run(b, &f.batch, feature_weight, true, &loss);
    assert_int_equal(loss.n, TARGETS - 1);
    const double want = reference(&f, w, (double)feature_weight);
    const double got = (loss.cross_entropy + loss.feature) / TARGETS;
    assert_true(fabs(got - want) < 1e-5 * fabs(want));

    const float *g = train_block_gradient(b);
    for (int t = 0; t < TRAIN_TENSORS; t++) {
        uint32_t rows, columns;
        train_tensor_shape(&f.shape, (enum train_tensor)t, &rows, &columns);
        const size_t at = train_tensor_offset(&f.shape, (enum train_tensor)t);
        const size_t size = (size_t)rows * columns;
        double most = 0, off = 0;
        for (size_t i = 0; i<size; i += size> 100 ? 7 : 1) {
            const double was = w[at + i], step = 1e-5;
            w[at + i] = was + step;
            const double up = reference(&f, w, (double)feature_weight);
            w[at + i] = was - step;
            const double down = reference(&f, w, (double)feature_weight);
            w[at + i] = was;
            const double numerical = (up - down) / (2 * step);
            most = fmax(most, fabs(numerical));
            off = fmax(off, fabs(numerical - (double)g[at + i]));
        }
        if (size > 0 && !(off < 2e-5 * most + 1e-7)) fail_msg("tensor %d: %g of %g", t, off, most);
        assert_true(size == 0 || most > 1e-4);
    }
    free(w);
    train_block_close(b);
}

static void test_gradients(void **state) {
    (void)state;
    check_gradients(1, ROPE_HALVES);
    check_gradients(2, ROPE_ADJACENT);
}

static void test_same_bits(void **state) {
    (void)state;
    static struct fixture f;
    make_fixture(&f, 2, ROPE_HALVES);
    struct cpu_features features;
    cpu_features_detect(&features);
    struct train_loss first = {0};
    float *first_gradient = NULL;
    const size_t n = train_tensor_offset(&f.shape, TRAIN_TENSORS);
    uint32_t n_compared = 0;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_supported(&features, (enum cpu_isa)isa)) continue;
        for (uint32_t threads = 0; threads <= 3; threads += 3) {
            struct worker_pool *pool = NULL;
            struct error e = {0};
            const struct worker_pool_config cfg = {.n_workers = threads};
            if (threads > 0) assert_int_equal(worker_pool_start(&cfg, &pool, &e), STATUS_OK);
            struct train_block *b = open_block(&f, (enum cpu_isa)isa, pool);
            struct train_loss loss = {0};
            train_block_run(b, &f.batch, 0.5f, true, &loss);
            if (first_gradient == NULL) {
                first_gradient = malloc(n * sizeof *first_gradient);
                assert_non_null(first_gradient);
                memcpy(first_gradient, train_block_gradient(b), n * sizeof *first_gradient);
                first = loss;
            } else {
                assert_memory_equal(first_gradient, train_block_gradient(b), n * sizeof(float));
                assert_memory_equal(&first, &loss, sizeof loss);
                n_compared++;
            }
            train_block_close(b);
            worker_pool_stop(pool);
        }
    }
    assert_true(n_compared > 0);
    free(first_gradient);
}

static void test_learns_and_resumes(void **state) {
    (void)state;
    static struct fixture f;
    make_fixture(&f, 1, ROPE_HALVES);
    const struct train_adam adam = {0.01f, 0.9f, 0.95f, 1e-8f, 0.01f, 1.0f};
    struct train_block *b = open_block(&f, CPU_ISA_SCALAR, NULL);
    struct train_block *other = open_block(&f, CPU_ISA_SCALAR, NULL);
    void *saved = malloc(train_block_state_bytes(b)), *end = malloc(train_block_state_bytes(b));
    void *resumed = malloc(train_block_state_bytes(b));
    assert_true(saved != NULL && end != NULL && resumed != NULL);
    struct train_loss before = {0}, after = {0};
    train_block_run(b, &f.batch, 0, false, &before);
    for (int i = 0; i < 200; i++) {
        struct train_loss loss = {0};
        if (i == 50) train_block_save(b, saved);
        train_block_run(b, &f.batch, 0, true, &loss);
        train_block_step(b, &adam);
    }
    train_block_run(b, &f.batch, 0, false, &after);
    train_block_save(b, end);
    double entropy = 0; /* the least that cross-entropy can be */
    for (uint32_t i = 0; i < TARGETS; i++)
        for (uint32_t k = 0; k < f.targets[i].n; k++)
            entropy -=
                (double)f.targets[i].probability[k] * log((double)f.targets[i].probability[k]);
    assert_true(before.cross_entropy > 15 && after.cross_entropy < entropy + 0.5);
    assert_true(after.cross_entropy > entropy - 1e-4);
    assert_int_equal(after.agreed, TARGETS - 1);

    train_block_load(other, saved);
    for (int i = 50; i < 200; i++) {
        struct train_loss loss = {0};
        train_block_run(other, &f.batch, 0, true, &loss);
        train_block_step(other, &adam);
    }
    train_block_save(other, resumed);
    assert_memory_equal(resumed, end, train_block_state_bytes(b));
    train_block_close(b);
    train_block_close(other);
    free(saved);
    free(end);
    free(resumed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_learns_and_resumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
