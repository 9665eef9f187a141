/* Operations of a whole warp against their definitions: shuffles, votes, matches, reductions,
 * matrix loads and stores, mma, atomics; whole warps and parts of one. */
#include "tests/softgpu/harness.h"

#include <math.h>

enum { LANES_OF_WARP = 32, ROUNDS = 60 };

static uint64_t random_state = 99;
static uint32_t random32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

/* Each lane whose bit is set in word 3 of its inputs runs `body` on a b c (and w = word 3), and
 * leaves r; the others store 0. 16 words in and out per lane: a[0..15], r[0..7]. */
static char *kernel(const char *body, bool all) {
    static char text[32768];
    const int n = snprintf(
        text, sizeof text,
        ".version 9.0\n.target sm_120\n.address_size 64\n"
        ".visible .entry k(.param .u64 pin, .param .u64 pout)\n{\n"
        ".reg .pred p, q, off; .reg .b32 a<16>, r<8>, t<8>; .reg .b64 i0, o0, x0, x1; .reg .b16 "
        "h<8>;\n"
        ".shared .align 16 .b8 smem[4096];\n"
        "ld.param.u64 i0, [pin]; ld.param.u64 o0, [pout]; mov.u32 t0, %%tid.x;\n"
        "mad.wide.u32 i0, t0, 64, i0; mad.wide.u32 o0, t0, 32, o0;\n"
        "ld.global.v4.u32 {a0, a1, a2, a3}, [i0]; ld.global.v4.u32 {a4, a5, a6, a7}, [i0+16];\n"
        "ld.global.v4.u32 {a8, a9, a10, a11}, [i0+32]; ld.global.v4.u32 {a12, a13, a14, a15}, "
        "[i0+48];\n"
        "mov.u32 r0, 0; mov.u32 r1, 0; mov.u32 r2, 0; mov.u32 r3, 0; mov.u32 r4, 0; mov.u32 r5, 0; "
        "mov.u32 r6, 0; mov.u32 r7, 0;\n"
        "%s\n%s\nOVER:\n"
        "st.global.v4.u32 [o0], {r0, r1, r2, r3}; st.global.v4.u32 [o0+16], {r4, r5, r6, "
        "r7};\nret;\n}\n",
        all ? ""
            : "mov.u32 t1, %lanemask_eq; and.b32 t1, t1, a3; setp.eq.u32 off, t1, 0; @off bra "
              "OVER;",
        body);
    assert_true(n > 0 && n < (int)sizeof text);
    return text;
}

struct lanes {
    uint32_t a[LANES_OF_WARP][16], r[LANES_OF_WARP][8];
};

static void run(struct lanes *x, const char *body, bool all, uint64_t seed) {
    struct harness h;
    harness_start(&h, true, seed);
    harness_load(&h, kernel(body, all));
    const uint64_t in = harness_buffer(&h, sizeof x->a, x->a),
                   out = harness_buffer(&h, sizeof x->r, NULL);
    harness_arg(&h, in);
    harness_arg(&h, out);
    harness_launch(&h, "k", 1, LANES_OF_WARP);
    harness_expect_clean(&h);
    harness_read(&h, out, x->r, sizeof x->r);
    harness_stop(&h);
}

static void fill(struct lanes *x, uint32_t mask) {
    for (int l = 0; l < LANES_OF_WARP; l++) {
        for (int i = 0; i < 16; i++) x->a[l][i] = random32();
        x->a[l][3] = mask;
    }
}

static uint32_t random_mask(int round) {
    if (round % 3 == 0) return ~0u;
    const uint32_t m = random32();
    return m ? m : 1;
}

static void test_shuffle(void **state) {
    (void)state;
    static const char *const modes[] = {"up", "down", "bfly", "idx"};
    for (int round = 0; round < ROUNDS; round++) {
        struct lanes x;
        const int mode = round % 4;
        fill(&x, ~0u);
        /* whole segments of 1, 2, 4 ... 32 lanes, as __shfl_sync makes them, or anything */
        const uint32_t width = 1u << random32() % 6;
        for (int l = 0; l < LANES_OF_WARP; l++) {
            x.a[l][1] = random32() % 40;
            x.a[l][2] =
                round % 5 == 0 ? random32() & 0x1f1f : (32 - width) << 8 | (mode == 0 ? 0 : 31);
        }
        char body[160];
        snprintf(body, sizeof body, "shfl.sync.%s.b32 r0|p, a0, a1, a2, -1; selp.b32 r1, 1, 0, p;",
                 modes[mode]);
        run(&x, body, true, (uint64_t)round);
        for (int l = 0; l < LANES_OF_WARP; l++) {
            const int b = (int)(x.a[l][1] & 31), clamp = (int)(x.a[l][2] & 31);
            const int seg = (int)(x.a[l][2] >> 8 & 31);
            const int max = (l & seg) | (clamp & ~seg & 31), min = l & seg;
            int j = mode == 0   ? l - b
                    : mode == 1 ? l + b
                    : mode == 2 ? l ^ b
                                : min | (b & ~seg & 31);
            const bool in = mode == 0 ? j >= max : j <= max;
            if (!in) j = l;
            assert_int_equal(x.r[l][0], x.a[j][0]);
            assert_int_equal(x.r[l][1], in);
        }
    }
}

static void test_votes(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct lanes x;
        const uint32_t mask = random_mask(round);
        fill(&x, mask);
        const uint32_t bias = round % 4 == 1 ? 0 : round % 4 == 2 ? 1 : 2;
        for (int l = 0; l < LANES_OF_WARP; l++) {
            if (bias < 2)
                x.a[l][0] = bias;
            else
                x.a[l][0] &= 1;
        }
        run(&x,
            "setp.ne.u32 p, a0, 0; vote.sync.ballot.b32 r0, p, a3; vote.sync.all.pred q, p, a3; "
            "selp.b32 r1, 1, 0, q;"
            "vote.sync.any.pred q, p, a3; selp.b32 r2, 1, 0, q; vote.sync.uni.pred q, p, a3; "
            "selp.b32 r3, 1, 0, q;"
            "vote.sync.ballot.b32 r4, !p, a3; elect.sync r5|q, a3; selp.b32 r6, 1, 0, q; "
            "activemask.b32 r7;",
            false, (uint64_t)round % 3);
        uint32_t yes = 0;
        for (int l = 0; l < LANES_OF_WARP; l++) yes |= (x.a[l][0] & 1) << l;
        for (int l = 0; l < LANES_OF_WARP; l++) {
            if (!(mask >> l & 1)) {
                assert_int_equal(x.r[l][0], 0);
                continue;
            }
            assert_int_equal(x.r[l][0], yes & mask);
            assert_int_equal(x.r[l][1], (yes & mask) == mask);
            assert_int_equal(x.r[l][2], (yes & mask) != 0);
            assert_int_equal(x.r[l][3], (yes & mask) == mask || (yes & mask) == 0);
            assert_int_equal(x.r[l][4], ~yes & mask);
            assert_int_equal(x.r[l][5], __builtin_ctz(mask));
            assert_int_equal(x.r[l][6], l == __builtin_ctz(mask));
            assert_true(x.r[l][7] & 1u << l);
        }
    }
}

static void test_match_and_redux(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct lanes x;
        const uint32_t mask = random_mask(round);
        fill(&x, mask);
        for (int l = 0; l < LANES_OF_WARP; l++) x.a[l][0] = round % 4 == 0 ? 7 : random32() % 5;
        run(&x,
            "match.any.sync.b32 r0, a0, a3; match.all.sync.b32 r1|p, a0, a3; selp.b32 r2, 1, 0, p;"
            "redux.sync.add.u32 r3, a1, a3; redux.sync.min.s32 r4, a1, a3; redux.sync.max.u32 r5, "
            "a1, a3;"
            "redux.sync.and.b32 r6, a1, a3; redux.sync.xor.b32 r7, a1, a3;",
            false, (uint64_t)round % 3);
        uint32_t sum = 0, max = 0, all = ~0u, odd = 0;
        int32_t min = INT32_MAX;
        bool same = true;
        for (int l = 0; l < LANES_OF_WARP; l++) {
            if (!(mask >> l & 1)) continue;
            const uint32_t v = x.a[l][1];
            sum += v;
            max = v > max ? v : max;
            all &= v;
            odd ^= v;
            min = (int32_t)v < min ? (int32_t)v : min;
            same &= x.a[l][0] == x.a[__builtin_ctz(mask)][0];
        }
        for (int l = 0; l < LANES_OF_WARP; l++) {
            if (!(mask >> l & 1)) continue;
            uint32_t equal = 0;
            for (int k = 0; k < LANES_OF_WARP; k++)
                if (mask >> k & 1 && x.a[k][0] == x.a[l][0]) equal |= 1u << k;
            assert_int_equal(x.r[l][0], equal);
            assert_int_equal(x.r[l][1], same ? mask : 0);
            assert_int_equal(x.r[l][2], same);
            assert_int_equal(x.r[l][3], sum);
            assert_int_equal((int32_t)x.r[l][4], min);
            assert_int_equal(x.r[l][5], max);
            assert_int_equal(x.r[l][6], all);
            assert_int_equal(x.r[l][7], odd);
        }
    }
}

/* Lanes store 16 bytes each (a0-a3 of lane l is row l), and read 8x8 matrices of 16-bit elements.
 */
static void test_matrix_moves(void **state) {
    (void)state;
    for (int round = 0; round < 8; round++) {
        struct lanes x;
        fill(&x, 0);
        for (int l = 0; l < LANES_OF_WARP; l++) x.a[l][3] = random32();
        const bool trans = round % 2, store = round / 2 % 2;
        char body[900];
        const char *set =
            "mov.u32 t0, %tid.x; shl.b32 t1, t0, 4; mov.u32 t2, smem; add.u32 t1, t1, t2;";
        if (!store)
            snprintf(body, sizeof body,
                     "%s st.shared.v4.u32 [t1], {a0, a1, a2, a3}; bar.warp.sync -1;"
                     "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {r0, r1, r2, r3}, [t1];"
                     "ldmatrix.sync.aligned.m8n8.x1%s.shared.b16 {r4}, [t1+128];"
                     "ldmatrix.sync.aligned.m8n8.x2%s.shared.b16 {r5, r6}, [t1+256];",
                     set, trans ? ".trans" : "", trans ? ".trans" : "", trans ? ".trans" : "");
        else
            snprintf(body, sizeof body,
                     "%s stmatrix.sync.aligned.m8n8.x4%s.shared.b16 [t1], {a0, a1, a2, a3}; "
                     "bar.warp.sync -1;"
                     "ld.shared.v4.u32 {r0, r1, r2, r3}, [t1];",
                     set, trans ? ".trans" : "");
        run(&x, body, true, 0);
        for (int t = 0; t < LANES_OF_WARP; t++)
            for (int m = 0; m < 4; m++)
                for (int k = 0; k < 2; k++) {
                    /* the element (row t/4, column 2(t%4)+k) of matrix m, or its mirror image */
                    const int row = trans ? 2 * (t % 4) + k : t / 4;
                    const int column = trans ? t / 4 : 2 * (t % 4) + k;
                    const uint32_t *memory = store ? x.r[8 * m + row] : x.a[8 * m + row];
                    const uint32_t *reg = store ? x.a[t] : x.r[t];
                    const uint32_t want = memory[column / 2] >> 16 * (column % 2) & 0xffff;
                    assert_int_equal(reg[m] >> 16 * k & 0xffff, want);
                    if (store) continue;
                    if (m == 1) assert_int_equal(x.r[t][4] >> 16 * k & 0xffff, want);
                    if (m >= 2) assert_int_equal(x.r[t][5 + m - 2] >> 16 * k & 0xffff, want);
                }
    }
}

/* The ISA's index formulas, element by element. */
struct mma {
    const char *instruction;
    int m, k, bits; /* bits of an element of A and B */
    bool sa, sb;    /* integers: signs */
    int exponent;   /* floats: bits of the exponent; 0 = integers */
    bool half_result;
};

static void a_place(const struct mma *x, int lane, int i, int *row, int *col) {
    const int group = lane / 4, in = lane % 4, per = 32 / x->bits; /* elements of a register */
    const int reg = i / per;
    *row = x->m == 8 || reg % 2 == 0 ? group : group + 8;
    *col = in * per + i % per + (reg >= 2 ? 4 * per : 0);
}
static void b_place(const struct mma *x, int lane, int i, int *row, int *col) {
    const int per = 32 / x->bits;
    *row = lane % 4 * per + i % per + i / per * 4 * per;
    *col = lane / 4;
}
static void c_place(int lane, int i, int *row, int *col) {
    *row = lane / 4 + (i >= 2 ? 8 : 0);
    *col = lane % 4 * 2 + i % 2;
}
static double small_float(uint32_t v, int bits, int exponent) {
    const int mantissa = bits - 1 - exponent, bias = (1 << (exponent - 1)) - 1;
    const int e = (int)(v >> mantissa) & ((1 << exponent) - 1);
    const double f = (double)(v & ((1u << mantissa) - 1)) / (double)(1u << mantissa);
    const double x = e ? ldexp(1 + f, e - bias) : ldexp(f, 1 - bias);
    return v >> (bits - 1) ? -x : x;
}
static double value_of(const struct mma *x, uint32_t v, bool is_signed) {
    if (!x->exponent) return is_signed ? (int8_t)v : (double)(uint8_t)v;
    if (x->bits == 32) v &= 0xffffe000u;
    return small_float(v, x->bits, x->exponent);
}

static void one_mma(const struct mma *x, uint64_t seed) {
    struct lanes in;
    double a[16][32] = {{0}}, b[32][8] = {{0}}, c[16][8];
    const int n_a = x->m * x->k / 32, n_b = 8 * x->k / 32, n_c = x->m * 8 / 32;
    const int per = 32 / x->bits, ra = n_a / per, rb = n_b / per,
              rc = x->half_result ? n_c / 2 : n_c;
    fill(&in, 0);
    for (int l = 0; l < LANES_OF_WARP; l++)
        for (int i = 0; i < 16; i++) {
            uint32_t v = random32();
            /* moderate numbers, so that sums in another order agree closely */
            if (x->exponent == 5) v = (v & 0x83ff83ffu) | 0x34003000u;
            if (x->exponent == 8 && x->bits == 16) v = (v & 0x807f807fu) | 0x3f003e80u;
            if (x->exponent == 8 && x->bits == 32) v = (v & 0x807fffffu) | 0x3f000000u;
            if (i >= ra + rb && x->exponent && !x->half_result) v = (v & 0x807fffffu) | 0x3f800000u;
            in.a[l][i] = v;
        }
    for (int l = 0; l < LANES_OF_WARP; l++) {
        int row, col;
        const uint32_t mask = x->bits == 32 ? ~0u : (1u << x->bits) - 1;
        for (int i = 0; i < n_a; i++) {
            a_place(x, l, i, &row, &col);
            a[row][col] = value_of(x, in.a[l][i / per] >> x->bits * (i % per) & mask, x->sa);
        }
        for (int i = 0; i < n_b; i++) {
            b_place(x, l, i, &row, &col);
            b[row][col] = value_of(x, in.a[l][ra + i / per] >> x->bits * (i % per) & mask, x->sb);
        }
        for (int i = 0; i < n_c; i++) {
            c_place(l, i, &row, &col);
            const uint32_t v = in.a[l][ra + rb + (x->half_result ? i / 2 : i)];
            if (!x->exponent)
                c[row][col] = (int32_t)v;
            else if (x->half_result)
                c[row][col] = small_float(v >> 16 * (i % 2) & 0xffff, 16, 5);
            else
                c[row][col] = small_float(v, 32, 8);
        }
    }
    char body[600], list[4][64];
    int at = 0;
    const int counts[4] = {rc, ra, rb, rc};
    for (int k = 0; k < 4; k++) {
        int n = 0;
        for (int i = 0; i < counts[k]; i++)
            n += snprintf(list[k] + n, sizeof list[k] - (size_t)n, "%s%s%d", i ? ", " : "",
                          k ? "a" : "r", k ? at + i : i);
        if (k) at += counts[k];
    }
    snprintf(body, sizeof body, "mma.sync.aligned.%s {%s}, {%s}, {%s}, {%s};", x->instruction,
             list[0], list[1], list[2], list[3]);
    run(&in, body, true, seed);
    for (int l = 0; l < LANES_OF_WARP; l++)
        for (int i = 0; i < n_c; i++) {
            int row, col;
            c_place(l, i, &row, &col);
            double want = c[row][col];
            for (int k = 0; k < x->k; k++) want += a[row][k] * b[k][col];
            const uint32_t got = in.r[l][x->half_result ? i / 2 : i];
            if (!x->exponent) {
                if (strstr(x->instruction, "satfinite"))
                    want = want > INT32_MAX ? INT32_MAX : want < INT32_MIN ? INT32_MIN : want;
                assert_int_equal(got, (uint32_t)(int64_t)want);
            } else if (x->half_result) {
                const double g = small_float(got >> 16 * (i % 2) & 0xffff, 16, 5);
                assert_true(fabs(g - want) <= 0.002 * (fabs(want) + 1));
            } else {
                assert_true(fabs(small_float(got, 32, 8) - want) <= 2e-6 * (fabs(want) + x->k));
            }
        }
}

static void test_mma(void **state) {
    (void)state;
    static const struct mma list[] = {
        {"m16n8k32.row.col.s32.s8.s8.s32", 16, 32, 8, true, true, 0, false},
        {"m16n8k32.row.col.s32.u8.s8.s32", 16, 32, 8, false, true, 0, false},
        {"m16n8k32.row.col.s32.u8.u8.s32", 16, 32, 8, false, false, 0, false},
        {"m16n8k32.row.col.satfinite.s32.s8.u8.s32", 16, 32, 8, true, false, 0, false},
        {"m16n8k16.row.col.s32.s8.s8.s32", 16, 16, 8, true, true, 0, false},
        {"m8n8k16.row.col.s32.s8.s8.s32", 8, 16, 8, true, true, 0, false},
        {"m8n8k16.row.col.s32.u8.s8.s32", 8, 16, 8, false, true, 0, false},
        {"m16n8k16.row.col.f32.f16.f16.f32", 16, 16, 16, false, false, 5, false},
        {"m16n8k16.row.col.f16.f16.f16.f16", 16, 16, 16, false, false, 5, true},
        {"m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 16, false, false, 5, false},
        {"m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, 16, false, false, 8, false},
        {"m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8, 16, false, false, 8, false},
        {"m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 32, false, false, 8, false},
        {"m16n8k4.row.col.f32.tf32.tf32.f32", 16, 4, 32, false, false, 8, false},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (uint64_t seed = 0; seed < 4; seed++) one_mma(&list[i], seed);
}

/* Every lane updates the same word; what it ends as, and that the old values are those of some
 * order. */
static void test_atomics(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct lanes x;
        fill(&x, 0);
        for (int l = 0; l < LANES_OF_WARP; l++) x.a[l][0] = random32() % 1000;
        run(&x,
            "mov.u32 t2, smem; mov.u32 t0, %tid.x; setp.eq.u32 p, t0, 0; @p st.shared.v4.u32 [t2], "
            "{0, 5000, 0, 0};"
            "@p st.shared.v2.u64 [t2+16], {0, 0}; bar.warp.sync -1; atom.shared.add.u32 r0, [t2], "
            "a0; atom.shared.min.u32 r7, [t2+4], a0;"
            "atom.shared.or.b32 r7, [t2+8], a0; atom.shared.inc.u32 r1, [t2+12], 9; "
            "red.shared.add.u64 [t2+16], 3; atom.shared.cas.b32 r2, [t2+24], 0, a0;"
            "bar.warp.sync -1; ld.shared.u32 r3, [t2]; ld.shared.u32 r4, [t2+4]; ld.shared.u32 r5, "
            "[t2+16]; ld.shared.u32 r6, [t2+24]; ld.shared.u32 r7, [t2+12];",
            true, seed);
        uint32_t sum = 0, min = 5000, winners = 0, seen = 0;
        for (int l = 0; l < LANES_OF_WARP; l++) {
            sum += x.a[l][0];
            min = x.a[l][0] < min ? x.a[l][0] : min;
            winners += x.r[l][2] == 0;
            seen |= 1u << x.r[l][1];
        }
        for (int l = 0; l < LANES_OF_WARP; l++) {
            assert_int_equal(x.r[l][3], sum);
            assert_int_equal(x.r[l][4], min);
            assert_int_equal(x.r[l][5], 96);
            assert_int_equal(x.r[l][7], 32 % 10);
        }
        assert_int_equal(seen, 0x3ff);
        assert_true(winners >= 1);
        /* old values of the additions: distinct partial sums of one order */
        for (int l = 0; l < LANES_OF_WARP; l++) {
            uint32_t next = 0;
            for (int k = 0; k < LANES_OF_WARP; k++) next += x.r[k][0] == x.r[l][0] + x.a[l][0];
            assert_true(next >= 1 || x.r[l][0] + x.a[l][0] == sum);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_match_and_redux),
        cmocka_unit_test(test_matrix_moves),
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_atomics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
