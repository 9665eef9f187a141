/* learned_block.c: weights written and read back within Q8_0's step, what a layer must be like, and
 * a lie in every byte of header and table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/learned_block.h"

static const double INV_FREQ[8] = {1, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005};

struct model {
    struct plan plan;
    struct layer_plan layers[3];
    struct tensor tensor;
};

static void make_model(struct model *m) {
    memset(m, 0, sizeof *m);
    m->plan = (struct plan){.architecture = "llama",
                            .n_layers = 3,
                            .d_model = 64,
                            .n_vocab = 100,
                            .norm_epsilon = 1e-5f,
                            .embed_scale = 1,
                            .logit_scale = 1,
                            .n_ropes = 1,
                            .layers = m->layers};
    m->plan.ropes[0] = (struct rope_plan){ROPE_HALVES, 16, INV_FREQ, 1};
    for (int i = 0; i < 3; i++)
        m->layers[i] = (struct layer_plan){.n_heads = 4,
                                           .n_kv_heads = 2,
                                           .head_dim = 16,
                                           .d_ff = 40, /* no multiple of 32: F32 */
                                           .attn_scale = 0.25f,
                                           .residual_scale = 1,
                                           .attn_norm = &m->tensor,
                                           .ffn_norm = &m->tensor,
                                           .gate = {&m->tensor, 0, 40}};
}

static float *random_weights(const struct train_shape *s, size_t *n) {
    *n = train_tensor_offset(s, TRAIN_TENSORS);
    float *w = malloc(*n * sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < *n; i++)
        w[i] = (float)(rng_draw(5, 0, (uint32_t)i, RNG_TEST, 0) >> 40) * 0x1p-24f - 0.5f;
    return w;
}

static void test_round_trip(void **state) {
    (void)state;
    struct model m;
    make_model(&m);
    struct error e = {0};
    for (uint32_t inputs = 1; inputs <= 2; inputs++) {
        struct train_shape s;
        assert_int_equal(learned_block_shape(&m.plan, 2, inputs, &s, &e), STATUS_OK);
        assert_true(s.d == 64 && s.d_ff == 40 && s.rope.n_dims == 16);
        size_t n, bytes;
        float *w = random_weights(&s, &n), *back = calloc(n, sizeof *back);
        assert_non_null(back);
        void *section;
        assert_int_equal(learned_block_write(&s, w, 2, 2, 0.25f, &section, &bytes, &e), STATUS_OK);
        learned_block_set_agreement(section, 0.75f);
        struct learned_block b;
        assert_int_equal(learned_block_view(&b, section, bytes, &m.plan, &e), STATUS_OK);
        assert_true(b.n_inputs == inputs && b.after_layer == 2 && b.like_layer == 2);
        assert_true(b.agreement == 0.75f);
        assert_int_equal(b.tensors[TRAIN_Q].type, TENSOR_Q8_0);
        assert_int_equal(b.tensors[TRAIN_DOWN].type, TENSOR_F32);
        assert_int_equal(b.tensors[TRAIN_IN].dim[1], inputs == 2 ? 64 : 0);
        learned_block_weights(&b, back);
        double most = 0;
        for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)(w[i] - back[i])));
        assert_true(most > 1e-4 && most < 0.5 / 127 * 0.51);
        const size_t at = train_tensor_offset(&s, TRAIN_NORM3);
        assert_memory_equal(w + at, back + at, 64 * sizeof *w);
        free(section);
        free(w);
        free(back);
    }
}

static void expect_unsupported(struct model *m) {
    struct train_shape s;
    struct error e = {0};
    assert_int_equal(learned_block_shape(&m->plan, 1, 1, &s, &e), STATUS_UNSUPPORTED);
    assert_int_equal(s.d, 0);
    assert_non_null(strstr(e.message, "llama"));
    make_model(m);
}

static void test_layers_that_do_not_fit(void **state) {
    (void)state;
    struct model m;
    make_model(&m);
    m.layers[1].q_bias = &m.tensor, expect_unsupported(&m);
    m.layers[1].k_norm = &m.tensor, expect_unsupported(&m);
    m.layers[1].n_experts = 4, expect_unsupported(&m);
    m.layers[1].window = 16, expect_unsupported(&m);
    m.layers[1].attn_norm = NULL, expect_unsupported(&m);
    m.layers[1].residual_scale = 0.2f, expect_unsupported(&m);
    m.plan.logit_softcap = 30, expect_unsupported(&m);
    m.plan.activation = PLAN_GELU_TANH, expect_unsupported(&m);
}

static void test_lies(void **state) {
    (void)state;
    struct model m;
    make_model(&m);
    struct error e = {0};
    struct train_shape s;
    assert_int_equal(learned_block_shape(&m.plan, 2, 2, &s, &e), STATUS_OK);
    size_t n, bytes;
    float *w = random_weights(&s, &n);
    uint8_t *section;
    void *out;
    assert_int_equal(learned_block_write(&s, w, 3, 2, 0.5f, &out, &bytes, &e), STATUS_OK);
    section = out;
    struct learned_block b;
    const size_t head = 64 + 32 * TRAIN_TENSORS;
    uint32_t refused = 0;
    for (size_t i = 0; i < head; i++) {
        const uint8_t was = section[i];
        section[i] ^= 0x41;
        memset(&e, 0, sizeof e);
        if (learned_block_view(&b, section, bytes, &m.plan, &e) != STATUS_OK) {
            refused++;
            assert_true(e.message[0] != '\0' && b.shape.d == 0);
        } else { /* what is left must lie inside */
            for (int t = 0; t < TRAIN_TENSORS; t++) {
                const uint8_t *data = b.tensors[t].data;
                assert_true(data >= section && data + b.tensors[t].bytes <= section + bytes);
            }
        }
        section[i] = was;
    }
    assert_true(refused > head * 3 / 4);
    for (size_t cut = 0; cut < bytes; cut += 13)
        assert_int_equal(learned_block_view(&b, section, cut, &m.plan, &e), STATUS_CORRUPT);
    m.layers[2].d_ff = 72;
    assert_int_equal(learned_block_view(&b, section, bytes, &m.plan, &e), STATUS_INVALID);
    free(out);
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_layers_that_do_not_fit),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
