/* kernel_set.c: the kernels of made-up plans on every chip of the table. */
#include "jit_test.h"

#include "jit/kernel_set.h"

enum { LAYERS = 4 };

struct fake_model {
    struct plan plan;
    struct layer_plan layers[LAYERS];
    struct tensor q, k, v, o, gate, up, down, norm, head_norm, embed;
    double inv_freq[64];
};

static void set_tensor(struct tensor *t, const char *name, enum tensor_type type, uint64_t k,
                       uint64_t n) {
    *t = (struct tensor){.type = type, .n_dims = 2, .dim = {k, n, 1, 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
}

/* SmolLM2-135M's shapes, in `format`. */
static void make_model(struct fake_model *m, enum tensor_type format) {
    memset(m, 0, sizeof *m);
    set_tensor(&m->q, "blk.0.attn_q.weight", format, 576, 576);
    set_tensor(&m->k, "blk.0.attn_k.weight", format, 576, 192);
    set_tensor(&m->v, "blk.0.attn_v.weight", format, 576, 192);
    set_tensor(&m->o, "blk.0.attn_output.weight", format, 576, 576);
    set_tensor(&m->gate, "blk.0.ffn_gate.weight", format, 576, 1536);
    set_tensor(&m->up, "blk.0.ffn_up.weight", format, 576, 1536);
    set_tensor(&m->down, "blk.0.ffn_down.weight", format, 1536, 576);
    set_tensor(&m->embed, "token_embd.weight", TENSOR_Q8_0, 576, 49152);
    m->norm = (struct tensor){.type = TENSOR_F32, .n_dims = 1, .dim = {576, 1, 1, 1}};
    m->head_norm = (struct tensor){.type = TENSOR_F32, .n_dims = 1, .dim = {64, 1, 1, 1}};
    for (int i = 0; i < LAYERS; i++) {
        m->layers[i] = (struct layer_plan){
            .group_layer = (uint16_t)i,
            .n_heads = 9,
            .n_kv_heads = 3,
            .head_dim = 64,
            .attn_scale = 0.125f,
            .attn_norm = &m->norm,
            .ffn_norm = &m->norm,
            .q = {&m->q, 0, 576},
            .k = {&m->k, 0, 192},
            .v = {&m->v, 0, 192},
            .o = {&m->o, 0, 576},
            .gate = {&m->gate, 0, 1536},
            .up = {&m->up, 0, 1536},
            .down = {&m->down, 0, 576},
            .d_ff = 1536,
            .residual_scale = 1,
        };
    }
    m->plan = (struct plan){
        .n_layers = LAYERS,
        .d_model = 576,
        .n_vocab = 49152,
        .d_ff_max = 1536,
        .norm_epsilon = 1e-5f,
        .embed_scale = 1,
        .logit_scale = 1,
        .embed = &m->embed,
        .head = {&m->embed, 0, 49152},
        .out_norm = &m->norm,
        .n_groups = 1,
        .n_ropes = 1,
        .groups = {{LAYERS, 3, 64, 0}},
        .ropes = {{ROPE_HALVES, 64, m->inv_freq, 1}},
        .layers = m->layers,
    };
}

static uint32_t count(const struct kernel_set *s, enum kernel_family family) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_uses; i++) n += s->uses[i].spec.family == family;
    return n;
}

static bool has_epilogue(const struct kernel_set *s, enum kernel_epilogue epilogue) {
    for (uint32_t i = 0; i < s->n_uses; i++) {
        const struct kernel_use *u = &s->uses[i];
        if (u->spec.family == KERNEL_MATMUL && u->spec.matmul.epilogue == epilogue) return true;
    }
    return false;
}

static void build(const struct fake_model *m, const struct kernel_device *d, uint32_t bits,
                  struct kernel_set *out) {
    struct error e = {0};
    const struct kernel_set_options o = {.activation_bits = bits, .max_rows = 64};
    if (kernel_set_build(&m->plan, d, &o, out, &e) != STATUS_OK) fail_msg("%s", e.message);
}

static void test_every_chip(void **state) {
    (void)state;
    struct fake_model m;
    make_model(&m, TENSOR_Q4_1);
    const char *name;
    const struct kernel_device *d;
    for (uint32_t i = 0; (d = kernel_device_at(i, &name)) != NULL; i++) {
        struct kernel_set s;
        build(&m, d, 16, &s);
        for (uint32_t a = 0; a < s.n_uses; a++) {
            const uint64_t h = kernel_hash(&s.uses[a].spec, &s.uses[a].config, d);
            assert_true(s.uses[a].config.warps > 0);
            for (uint32_t b = 0; b < a; b++) {
                assert_true(h != kernel_hash(&s.uses[b].spec, &s.uses[b].config, d));
            }
        }
        assert_int_equal(count(&s, KERNEL_ATTENTION), 4); /* split, walk; plain, gated */
        assert_int_equal(count(&s, KERNEL_SAMPLER), 1);
        assert_int_equal(count(&s, KERNEL_EMBED), 1);
        assert_int_equal(count(&s, KERNEL_PAGE_COPY), 3); /* pages, their bounds, slots */
        assert_int_equal(count(&s, KERNEL_PAGE_CHOOSE), 1);
        assert_int_equal(count(&s, KERNEL_ROPE_KV), 0);
        /* One kernel for any number of rows. */
        assert_true(count(&s, KERNEL_FFN) >= 4);
        assert_false(has_epilogue(&s, KERNEL_OUT_GATED));
        assert_true(has_epilogue(&s, KERNEL_OUT_QKV) && has_epilogue(&s, KERNEL_OUT_RESIDUAL) &&
                    has_epilogue(&s, KERNEL_OUT_STORE));
        assert_in_range(s.n_uses, 20, 100);
        kernel_set_free(&s);
        assert_null(s.uses);
    }
}

/* What a model is made of decides how it is cut. */
static void test_shapes(void **state) {
    (void)state;
    const struct kernel_device *d = kernel_device_find("H200");
    struct fake_model m;
    struct kernel_set plain, s;
    make_model(&m, TENSOR_Q4_1);
    build(&m, d, 16, &plain);

    /* Equal layers share; one of another format adds. */
    struct tensor other = m.down;
    other.type = TENSOR_Q8_0;
    m.layers[2].down.t = &other;
    build(&m, d, 16, &s);
    assert_true(s.n_uses > plain.n_uses);
    kernel_set_free(&s);

    /* Norms of heads, and v in another format than q and k: products, then rope_kv. */
    make_model(&m, TENSOR_Q4_1);
    for (int i = 0; i < LAYERS; i++) m.layers[i].q_norm = m.layers[i].k_norm = &m.head_norm;
    m.v.type = TENSOR_Q8_0;
    build(&m, d, 16, &s);
    assert_int_equal(count(&s, KERNEL_ROPE_KV), 1);
    assert_false(has_epilogue(&s, KERNEL_OUT_QKV));
    kernel_set_free(&s);

    /* Norms behind the blocks: no residual in an epilogue, no fused feed-forward. */
    make_model(&m, TENSOR_Q4_1);
    for (int i = 0; i < LAYERS; i++) {
        m.layers[i].attn_post_norm = m.layers[i].ffn_post_norm = &m.norm;
    }
    build(&m, d, 16, &s);
    assert_int_equal(count(&s, KERNEL_FFN), 0);
    assert_false(has_epilogue(&s, KERNEL_OUT_RESIDUAL));
    kernel_set_free(&s);

    /* The int8 class: one pass, but q, k and v keep two. */
    make_model(&m, TENSOR_Q4_1);
    build(&m, d, 8, &s);
    for (uint32_t i = 0; i < s.n_uses; i++) {
        const struct kernel_use *u = &s.uses[i];
        if (u->spec.family != KERNEL_MATMUL) continue;
        const bool qkv = u->spec.matmul.epilogue == KERNEL_OUT_QKV;
        assert_int_equal(u->spec.matmul.activation_bits, qkv ? 16 : 8);
    }
    kernel_set_free(&s);
    kernel_set_free(&plain);
}

static void test_refusals(void **state) {
    (void)state;
    const struct kernel_device *d = kernel_device_find("H200");
    const struct kernel_set_options o = {.activation_bits = 16, .max_rows = 64};
    struct fake_model m;
    struct kernel_set s;
    struct error e = {0};
    make_model(&m, TENSOR_Q4_1);
    m.layers[1].n_experts = 8;
    assert_int_equal(kernel_set_build(&m.plan, d, &o, &s, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "layer 1 has experts"));
    assert_null(s.uses);
    make_model(&m, TENSOR_Q4_1);
    m.o.type = TENSOR_Q3_K;
    assert_int_equal(kernel_set_build(&m.plan, d, &o, &s, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.message, "attn_output"));
    assert_non_null(strstr(e.message, "Q3_K"));
    make_model(&m, TENSOR_Q4_1);
    m.up.type = TENSOR_Q8_0;
    assert_int_equal(kernel_set_build(&m.plan, d, &o, &s, &e), STATUS_UNSUPPORTED);
}

/* Every kernel of a set has a name, a key, a text and a hash that the compiler takes. */
static void test_request(void **state) {
    (void)state;
    struct fake_model m;
    struct kernel_set s;
    struct compiler *c;
    struct error e = {0};
    make_model(&m, TENSOR_Q4_1);
    build(&m, kernel_device_find("A100"), 16, &s);
    const struct compiler_config cfg = {.build = "0.1.0"};
    assert_int_equal(compiler_open(&cfg, &c, &e), STATUS_OK);
    for (int again = 0; again < 2; again++) {
        if (kernel_set_request_all(c, &s, &e) != STATUS_OK) fail_msg("%s", e.message);
    }
    for (uint32_t i = 0; i < s.n_uses; i++) {
        const struct compiled *k = compiler_at(c, i);
        assert_non_null(k);
        assert_int_equal(k->hash, kernel_hash(&s.uses[i].spec, &s.uses[i].config, &s.device));
        assert_int_equal(k->id.arch, 80);
        assert_int_equal(k->id.sm_count, 108);
    }
    assert_null(compiler_at(c, s.n_uses));
    compiler_close(c);
    kernel_set_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_chip),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
