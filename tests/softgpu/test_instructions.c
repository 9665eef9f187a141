/* Every instruction of instruction_table.h on random and on awkward operands, against a second
 * writing of its meaning; whole warps, a part of one, and lanes that are switched off, in each
 * build of the lane operations. */
#include "tests/softgpu/harness.h"

#include <float.h>
#include <math.h>

#include "tests/softgpu/instruction_table.h"

enum { N = 2048, THREADS = 80, MODES = 2 };

#define SW(x)  ((int32_t)(x))
#define SH(x)  ((int16_t)(x))
#define SB(x)  ((int8_t)(x))
#define S24(x) ((int64_t)((int32_t)((x) << 8) >> 8))

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static uint64_t bits_of64(double f) {
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static uint32_t no_nan(float f) {
    return f != f ? 0x7fffffffu : bits_of(f);
}
static float flush(float f) {
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}
static uint32_t pair(uint32_t low, uint32_t high) {
    return (low & 0xffff) | high << 16;
}
static int64_t clampto(int64_t v, int64_t low, int64_t high) {
    return v < low ? low : v > high ? high : v;
}
static uint32_t clamp32(int64_t v) {
    return (uint32_t)clampto(v, INT32_MIN, INT32_MAX);
}
static uint64_t high64(uint64_t a, uint64_t b) { /* schoolbook, 32 bits a digit */
    const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const uint64_t mid = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (mid & 0xffffffffu);
    return a1 * b1 + (mid >> 32) + (other >> 32);
}
static uint64_t floor_shift(int64_t v, uint32_t n) {
    for (; n > 0; n--) v = v >= 0 ? v / 2 : -(-(v + 1) / 2) - 1;
    return (uint64_t)v;
}
static uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < 32; i++)
        r |= (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
    return r;
}
static uint32_t permute(uint32_t a, uint32_t b, uint32_t c) {
    uint8_t in[8], out[4];
    memcpy(in, &a, 4);
    memcpy(in + 4, &b, 4);
    for (int i = 0; i < 4; i++) {
        const uint32_t s = c >> 4 * i & 15;
        out[i] = s & 8 ? (in[s & 7] > 127 ? 255 : 0) : in[s & 7];
    }
    uint32_t r;
    memcpy(&r, out, 4);
    return r;
}
static uint64_t extract(uint64_t a, uint32_t pos, uint32_t len, uint32_t bits, int is_signed) {
    uint64_t sign = 0, r = 0;
    if (is_signed && len) sign = a >> (pos + len - 1 < bits - 1 ? pos + len - 1 : bits - 1) & 1;
    for (uint32_t i = 0; i < bits; i++)
        r |= (i < len && pos + i < bits ? a >> (pos + i) & 1 : sign) << i;
    return r;
}
static uint64_t insert(uint64_t a, uint64_t b, uint32_t pos, uint32_t len, uint32_t bits) {
    for (uint32_t i = 0; i < len && pos + i < bits; i++)
        b = (b & ~(1ull << (pos + i))) | (i < 64 ? a >> i & 1 : 0) << (pos + i);
    return b;
}
static uint32_t top_bit(uint64_t v) {
    uint32_t r = ~0u;
    for (uint32_t i = 0; i < 64; i++)
        if (v >> i & 1) r = i;
    return r;
}
static uint32_t ones(uint64_t v) {
    uint32_t n = 0;
    for (; v; v >>= 1) n += v & 1;
    return n;
}
static uint64_t reverse(uint64_t v, uint32_t bits) {
    uint64_t r = 0;
    for (uint32_t i = 0; i < bits; i++) r |= (v >> i & 1) << (bits - 1 - i);
    return r;
}
static uint32_t dot4(uint32_t a, uint32_t b, uint32_t c, int sa, int sb) {
    int64_t sum = SW(c);
    for (int i = 0; i < 4; i++) {
        const int64_t x = sa ? SB(a >> 8 * i) : (int64_t)(a >> 8 * i & 0xff);
        const int64_t y = sb ? SB(b >> 8 * i) : (int64_t)(b >> 8 * i & 0xff);
        sum += x * y;
    }
    return (uint32_t)sum;
}
static double half_even(double x) {
    if (!(fabs(x) < 0x1p52)) return x;
    double f = floor(x);
    if (x - f > 0.5 || (x - f == 0.5 && fmod(f, 2) != 0)) f += 1;
    return copysign(f, x);
}
static uint32_t float_to_int(double x, double low, double high) {
    if (x != x) return 0;
    return (uint32_t)(int64_t)(x < low ? low : x > high ? high : x);
}
/* The neighbour of the nearest float that lies toward zero, -1: below, 1: above the exact value. */
static float directed(double exact, double rest, int way) {
    float f = (float)exact;
    if (exact != exact || isinf(exact)) return f;
    const double off = isinf(f) ? (double)f : (double)f - exact;
    const bool above = off > 0 || (off == 0 && rest < 0), below = off < 0 || (off == 0 && rest > 0);
    const bool down = way < 0 || (way == 0 && exact > 0);
    const bool up = way > 0 || (way == 0 && exact < 0);
    if (above && down) return nextafterf(f, -INFINITY);
    if (below && up) return nextafterf(f, INFINITY);
    return f;
}
static float toward_zero(double x) {
    return directed(x, 0, 0);
}
static float rounded_sum(float a, float b, int way) {
    const double s = (double)a + (double)b; /* with its rounding error: two-sum */
    const double t = s - (double)a, rest = ((double)a - (s - t)) + ((double)b - t);
    if (s == 0 && a == -b && a != 0) return way < 0 ? -0.0f : 0.0f;
    if (a == 0 && b == 0 && signbit(a) != signbit(b)) return way < 0 ? -0.0f : 0.0f;
    return directed(s, rest, way);
}
static float rounded_product(float a, float b, int way) {
    return directed((double)a * (double)b, 0, way); /* exact: 48 bits */
}
/* a * b is exact in binary64; the sum is brought to odd if it is not. */
static float exact_fma(float a, float b, float c) {
    const double p = (double)a * (double)b, s = p + (double)c;
    if (!isfinite(s)) return (float)s;
    const double t = s - p, rest = (p - (s - t)) + ((double)c - t);
    if (rest == 0 || (bits_of64(s) & 1)) return (float)s;
    uint64_t u = bits_of64(s);
    u += (rest > 0) == (s > 0) ? 1 : (uint64_t)-1;
    double odd;
    memcpy(&odd, &u, sizeof odd);
    return (float)odd;
}
static float minimum(float a, float b, int sign) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return (signbit(a) != 0) == (sign > 0) ? a : b;
    return (a < b) == (sign > 0) ? a : b;
}
static double half_value(uint32_t v, int exponent_bits, int mantissa_bits) {
    const int top = (1 << exponent_bits) - 1, bias = top / 2;
    const int e = (int)(v >> mantissa_bits) & top;
    const double m = (double)(v & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    double x;
    if (e == top)
        x = m > 0 ? (double)NAN : (double)INFINITY;
    else
        x = e ? (1 + m) * pow(2, e - bias) : m * pow(2, 1 - bias);
    return v & 0x8000 ? -x : x;
}
/* By search: the code whose value is nearest (even on a tie), or the next toward zero. */
static uint32_t half_bits(double x, int exponent_bits, int mantissa_bits, int truncate) {
    const uint32_t top = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (x != x) return 0x7fff;
    const uint32_t sign = signbit(x) ? 0x8000 : 0;
    const double a = fabs(x);
    uint32_t low = 0, high = top;
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        if (half_value(mid, exponent_bits, mantissa_bits) <= a)
            low = mid;
        else
            high = mid;
    }
    if (isinf(x)) return top | sign;
    const double below = half_value(low, exponent_bits, mantissa_bits);
    const double step = high == top ? below - half_value(low - 1, exponent_bits, mantissa_bits)
                                    : half_value(high, exponent_bits, mantissa_bits) - below;
    if (truncate || a - below < step / 2 || (a - below == step / 2 && low % 2 == 0))
        return low | sign;
    return high | sign;
}
static double e4m3(double x) { /* nearest value of 1-4-3, at most 448 */
    if (x != x) return x;
    double best = 0;
    const double a = fabs(x);
    for (int code = 0; code < 0x7f; code++) {
        const int e = code >> 3, m = code & 7;
        const double v = e ? (8 + m) * pow(2, e - 10) : m * pow(2, -9);
        const double d = fabs(v - a), old = fabs(best - a);
        if (d < old || (d == old && m % 2 == 0)) best = v;
    }
    return x < 0 || signbit(x) ? -best : best;
}

struct operands {
    uint64_t a, b, c;
};
struct instruction {
    const char *text;
    char result;
    uint32_t ulps;
};
#define X(result, ulps, text, expression) {text, #result[0], ulps},
static const struct instruction instructions[] = {INSTRUCTION_LIST(X)};
#undef X
enum { INSTRUCTIONS = sizeof instructions / sizeof *instructions };

/* What each one should give, in order. */
static void expected(const struct operands *o, uint64_t out[INSTRUCTIONS]) {
    const uint64_t ad = o->a, bd = o->b, cd = o->c;
    const uint32_t aw = (uint32_t)ad, bw = (uint32_t)bd, cw = (uint32_t)cd;
    const uint32_t sw = bw % 80, uw = cw % 80;
    const uint16_t ah = (uint16_t)ad, bh = (uint16_t)bd, ch = (uint16_t)cd;
    float af, bf, cf;
    double ag, bg, cg;
    memcpy(&af, &aw, 4);
    memcpy(&bf, &bw, 4);
    memcpy(&cf, &cw, 4);
    memcpy(&ag, &ad, 8);
    memcpy(&bg, &bd, 8);
    memcpy(&cg, &cd, 8);
    uint64_t *at = out;
#define X(result, ulps, text, expression) *at++ = (uint64_t)(expression);
    INSTRUCTION_LIST(X)
#undef X
}

static uint64_t random_state;
static uint64_t random64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t operand_value(void) {
    static const uint64_t words[] = {0,          1,          2,          0xffffffff, 0x80000000,
                                     0x7fffffff, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000,
                                     0x7fc00000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                     0x3f000000, 0x40200000, 0x80000001, 0x4b000001, 0x3c00,
                                     0x7c00,     0x8000,     0x7bff,     0x7e800000};
    const uint64_t r = random64();
    switch (r % 8) {
    case 0:
        return words[random64() % 24];
    case 1:
        return words[random64() % 24] << 32 | words[random64() % 24];
    case 2:
        return random64() % 100;
    case 3:
        return 0 - random64() % 100;
    case 4: { /* moderate floats */
        const float f = ((float)(int32_t)(random64() % 20001) - 10000) / 256;
        const double g = (double)f * 1.25;
        return r & 256 ? bits_of(f) : (bits_of64(g) & ~0xffffffffull) | bits_of(f * 0.37f);
    }
    case 5:
        return (random64() & 0xffffffff00000000u) |
               ((random64() % 40 + 107) << 23 | random64() % (1 << 23));
    default:
        return random64();
    }
}

static char *make_module(uint32_t mode) {
    static char text[1 << 20];
    size_t n = 0;
    n += (size_t)snprintf(text, sizeof text, ".version 9.0\n.target sm_120\n.address_size 64\n");
    for (uint32_t i = 0; i < INSTRUCTIONS; i++) {
        const char r = instructions[i].result;
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            ".visible .entry k%u(.param .u64 pin, .param .u64 pout, .param .u64 pn)\n{\n"
            ".reg .pred p, q, out, off; .reg .b16 ah, bh, ch, rh, xh; .reg .b32 aw, bw, cw, rw, "
            "xw, yw, sw, uw, t0, t1, t2;\n"
            ".reg .f32 af, bf, cf, rf; .reg .f64 ag, bg, cg, rg; .reg .b64 ad, bd, cd, rd, xd, yd, "
            "zd, i0, o0, "
            "n0;\n"
            "ld.param.u64 i0, [pin]; ld.param.u64 o0, [pout]; ld.param.u64 n0, [pn];\n"
            "mov.u32 t0, %%ctaid.x; mov.u32 t1, %%ntid.x; mov.u32 t2, %%tid.x; mad.lo.u32 t0, t0, "
            "t1, t2;\n"
            "cvt.u32.u64 t1, n0; setp.ge.u32 out, t0, t1; @out exit;\n"
            "mad.wide.u32 i0, t0, 24, i0; mad.wide.u32 o0, t0, 8, o0;\n"
            "ld.global.u64 ad, [i0]; ld.global.u64 bd, [i0+8]; ld.global.u64 cd, [i0+16];\n"
            "cvt.u32.u64 aw, ad; cvt.u32.u64 bw, bd; cvt.u32.u64 cw, cd; cvt.u16.u32 ah, aw; "
            "cvt.u16.u32 bh, bw; cvt.u16.u32 ch, cw;\n"
            "mov.b32 af, aw; mov.b32 bf, bw; mov.b32 cf, cw; mov.b64 ag, ad; mov.b64 bg, bd; "
            "mov.b64 cg, cd;\n"
            "rem.u32 sw, bw, 80; rem.u32 uw, cw, 80; mov.u64 rd, 0; mov.u32 rw, 0; mov.u16 rh, 0; "
            "mov.f32 rf, 0f00000000;\n",
            i);
        /* mode 1: every third lane jumps over the instruction and keeps 0 */
        if (mode == 1)
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  "rem.u32 t1, t0, 3; setp.eq.u32 off, t1, 0; @off bra OVER;\n");
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\n", instructions[i].text);
        if (mode == 1) n += (size_t)snprintf(text + n, sizeof text - n, "OVER:\n");
        if (r == 'w') n += (size_t)snprintf(text + n, sizeof text - n, "cvt.u64.u32 rd, rw;\n");
        if (r == 'h') n += (size_t)snprintf(text + n, sizeof text - n, "cvt.u64.u16 rd, rh;\n");
        if (r == 'f')
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  "mov.b32 rw, rf; cvt.u64.u32 rd, rw;\n");
        n += (size_t)snprintf(text + n, sizeof text - n, "st.global.u64 [o0], rd;\nret;\n}\n");
        assert_true(n < sizeof text - 4096);
    }
    return text;
}

static bool same(const struct instruction *in, uint64_t got, uint64_t want) {
    if (in->result == 'w') want &= 0xffffffffu;
    if (in->result == 'h') want &= 0xffff;
    if (in->result == 'd') {
        double g, w;
        memcpy(&g, &got, 8);
        memcpy(&w, &want, 8);
        return got == want || (strstr(in->text, "f64") && g != g && w != w);
    }
    if (in->result != 'f') return got == want;
    const uint32_t a = (uint32_t)got, b = (uint32_t)want;
    float g, w;
    memcpy(&g, &a, 4);
    memcpy(&w, &b, 4);
    if (w != w)
        return a == 0x7fffffffu || (g != g && !strncmp(in->text, "neg", 3)) ||
               (g != g && !strncmp(in->text, "abs", 3)) ||
               (g != g && !strncmp(in->text, "copysign", 8)) ||
               (g != g && strstr(in->text, "xorsign"));
    const int64_t x = (int32_t)a < 0 ? INT32_MIN - (int64_t)(int32_t)a : (int32_t)a;
    const int64_t y = (int32_t)b < 0 ? INT32_MIN - (int64_t)(int32_t)b : (int32_t)b;
    return a == b || (in->ulps && llabs(x - y) <= in->ulps);
}

static void test_instructions(void **state) {
    (void)state;
    static struct operands in[N];
    static uint64_t got[N], want[N][INSTRUCTIONS];
    random_state = 0x1234567890abcdefu;
    for (uint32_t i = 0; i < N; i++) {
        in[i] = (struct operands){operand_value(), operand_value(), operand_value()};
        if (random64() % 8 == 0) in[i].b = in[i].a;
        expected(&in[i], want[i]);
    }
    uint32_t wrong = 0;
    for (uint32_t mode = 0; mode < MODES; mode++) {
        struct harness h;
        harness_start(&h, false, 0);
        harness_load(&h, make_module(mode));
        const uint64_t di = harness_buffer(&h, sizeof in, in),
                       out = harness_buffer(&h, sizeof got, NULL);
        for (uint32_t i = 0; i < INSTRUCTIONS; i++) {
            char name[16];
            snprintf(name, sizeof name, "k%u", i);
            harness_arg(&h, di);
            harness_arg(&h, out);
            harness_arg(&h, N);
            harness_launch(&h, name, (N + THREADS - 1) / THREADS, THREADS);
            harness_expect_clean(&h);
            harness_read(&h, out, got, sizeof got);
            uint32_t shown = 0;
            for (uint32_t k = 0; k < N; k++) {
                const uint64_t w = mode == 1 && k % 3 == 0 ? 0 : want[k][i];
                if (same(&instructions[i], got[k], w)) continue;
                wrong++;
                if (shown++ < 2)
                    print_error("%s  a=%llx b=%llx c=%llx: %llx, not %llx\n", instructions[i].text,
                                (unsigned long long)in[k].a, (unsigned long long)in[k].b,
                                (unsigned long long)in[k].c, (unsigned long long)got[k],
                                (unsigned long long)w);
            }
        }
        harness_stop(&h);
    }
    print_message("%d instructions, %d operand sets each\n", (int)INSTRUCTIONS, (int)N * MODES);
    assert_int_equal(wrong, 0);
}

/* With everything tracked the results are the same, and nothing is undefined. */
static void test_tracked(void **state) {
    (void)state;
    enum { FEW = 160 };
    static struct operands in[FEW];
    static uint64_t got[FEW], want[FEW][INSTRUCTIONS];
    random_state = 77;
    for (uint32_t i = 0; i < FEW; i++) {
        in[i] = (struct operands){operand_value(), operand_value(), operand_value()};
        expected(&in[i], want[i]);
    }
    struct harness h;
    harness_start(&h, true, 5);
    harness_load(&h, make_module(0));
    const uint64_t di = harness_buffer(&h, sizeof in, in),
                   out = harness_buffer(&h, sizeof got, NULL);
    for (uint32_t i = 0; i < INSTRUCTIONS; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%u", i);
        harness_arg(&h, di);
        harness_arg(&h, out);
        harness_arg(&h, FEW);
        harness_launch(&h, name, 2, THREADS);
        harness_expect_clean(&h);
        harness_read(&h, out, got, sizeof got);
        for (uint32_t k = 0; k < FEW; k++) assert_true(same(&instructions[i], got[k], want[k][i]));
    }
    harness_stop(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_instructions),
                                       cmocka_unit_test(test_tracked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
