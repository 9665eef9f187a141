/* lane_float.h: floating-point operations on lanes; PTX ISA 9.7.3 - 9.7.5. See lane_macros.h.
 *
 * add, sub, mul, fma, div.rnd, rcp.rnd and sqrt.rnd are IEEE 754 in each rounding; a NaN result is
 * the canonical one. The .approx functions are computed in binary64 and rounded once, so they are
 * within half a unit of the exact value, well inside what the PTX ISA allows the hardware; their
 * bits are not the hardware's.
 */
#ifndef LAC_TESTS_SOFTGPU_LANE_FLOAT_H
#define LAC_TESTS_SOFTGPU_LANE_FLOAT_H

#include "tests/softgpu/lane_integer.h"

static inline float canonical(float f) {
    return f != f ? bits_float(0x7fffffffu) : f;
}
static inline double canonical64(double f) {
    return f != f ? bits_double(UINT64_C(0x7fffffffffffffff)) : f;
}

LANE_OP(ADD_F32, f32x, f32x, f32x, f32x, canonical(a + b))
LANE_OP(SUB_F32, f32x, f32x, f32x, f32x, canonical(a - b))
LANE_OP(MUL_F32, f32x, f32x, f32x, f32x, canonical(a *b))
LANE_OP(FMA_F32, f32x, f32x, f32x, f32x, canonical(fmaf(a, b, c)))
LANE_OP(ADD_FTZ_F32, f32x, f32x, f32x, f32x, canonical(ftz(ftz(a) + ftz(b))))
LANE_OP(SUB_FTZ_F32, f32x, f32x, f32x, f32x, canonical(ftz(ftz(a) - ftz(b))))
LANE_OP(MUL_FTZ_F32, f32x, f32x, f32x, f32x, canonical(ftz(ftz(a) * ftz(b))))
LANE_OP(FMA_FTZ_F32, f32x, f32x, f32x, f32x, canonical(ftz(fmaf(ftz(a), ftz(b), ftz(c)))))

/* Any rounding, .ftz, .sat. The host's rounding is changed around the whole warp; volatile keeps
 * the compiler from moving the arithmetic. */
static void set_rounding(enum op_round round) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(modes[round]);
}
static inline float finish(const struct op *op, float r) {
    if (op->flags & OP_FTZ) r = ftz(r);
    if (op->flags & OP_SAT) return r > 0 ? (r < 1 ? r : 1) : 0; /* NaN: 0 */
    return canonical(r);
}
#define ANY(NAME, EXPR)                                                                            \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        f32x *d = out_place(w, op->d);                                                             \
        const f32x *pa = in_place(w, op->a), *pb = in_place(w, op->b), *pc = in_place(w, op->c);   \
        const uint32_t flush = op->flags & OP_FTZ;                                                 \
        if (op->round) set_rounding((enum op_round)op->round);                                     \
        for (uint32_t m = w->exec; m; m &= m - 1) {                                                \
            const uint32_t l = first_lane(m);                                                      \
            volatile float va = ftz_if(flush, pa[l]), vb = ftz_if(flush, pb[l]);                   \
            volatile float vc = ftz_if(flush, pc[l]);                                              \
            const float a = va, b = vb, c = vc;                                                    \
            (void)b, (void)c;                                                                      \
            volatile float r = EXPR;                                                               \
            d[l] = finish(op, r);                                                                  \
        }                                                                                          \
        if (op->round) fesetround(FE_TONEAREST);                                                   \
        return op + 1;                                                                             \
    }
ANY(ADD_ANY_F32, a + b)
ANY(SUB_ANY_F32, a - b)
ANY(MUL_ANY_F32, a *b)
ANY(FMA_ANY_F32, fmaf(a, b, c))
ANY(DIV_ANY_F32, a / b)
ANY(RCP_ANY_F32, 1.0f / a)
ANY(SQRT_ANY_F32, sqrtf(a))

/* For |b| in [2^126, 2^128) the approximate quotient is 0 (infinity: NaN), PTX ISA 9.7.3.8. */
static inline float div_approx(float a, float b) {
    const float mb = fabsf(b);
    if (mb >= 0x1p126f && mb < INFINITY && a == a)
        return isinf(a) ? NAN : copysignf(0, a) * copysignf(1, b);
    return a / b;
}
ANY(DIV_APPROX_F32, div_approx(a, b))

#define APPROX(NAME, EXPR)                                                                         \
    LANE_SLOW(NAME, f32x, f32x, f32x, f32x,                                                        \
              finish(op, (float)(EXPR((double)ftz_if(op->flags & OP_FTZ, a)))))
static double rsqrt64(double x) {
    return 1.0 / sqrt(x);
}
APPROX(RSQRT_F32, rsqrt64)
APPROX(EX2_F32, exp2)
APPROX(LG2_F32, log2)
APPROX(SIN_F32, sin)
APPROX(COS_F32, cos)
APPROX(TANH_F32, tanh)

LANE_OP(NEG_F32, f32x, f32x, f32x, f32x, ftz_if(op->flags &OP_FTZ, -a))
LANE_OP(ABS_F32, f32x, f32x, f32x, f32x, ftz_if(op->flags &OP_FTZ, fabsf(a)))
LANE_OP(COPYSIGN_F32, u32x, u32x, u32x, u32x, (a & 0x80000000u) | (b & 0x7fffffffu))

/* min and max order -0 below +0; a NaN loses against a number unless .NaN. */
static inline float min_max(float a, float b, uint32_t flags, bool max) {
    if (flags & OP_FTZ) {
        a = ftz(a);
        b = ftz(b);
    }
    uint32_t sign = 0;
    const bool nan = a != a || b != b;
    if (flags & OP_XORSIGN) {
        sign = (float_bits(a) ^ float_bits(b)) & 0x80000000u;
        a = fabsf(a);
        b = fabsf(b);
    } else if (flags & OP_ABS) {
        a = fabsf(a);
        b = fabsf(b);
    }
    float r;
    if (nan && ((flags & OP_NAN) || (a != a && b != b))) return bits_float(0x7fffffffu);
    if (nan)
        r = a != a ? b : a;
    else if (a == b)
        r = (signbit(a) != 0) != max ? a : b;
    else
        r = (a < b) != max ? a : b;
    return bits_float(float_bits(r) | sign);
}
/* Fast when it is plain: written so that it vectorises. */
#define MIN_MAX(NAME, MAX, OP)                                                                     \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        f32x *d = out_place(w, op->d);                                                             \
        const f32x *pa = in_place(w, op->a), *pb = in_place(w, op->b);                             \
        const f32x *pc = op->n == 3 ? in_place(w, op->c) : NULL;                                   \
        if (op->flags & (OP_FTZ | OP_NAN | OP_XORSIGN | OP_ABS) || pc || w->exec != ~0u) {         \
            for (uint32_t m = w->exec; m; m &= m - 1) {                                            \
                const uint32_t l = first_lane(m);                                                  \
                float r = min_max(pa[l], pb[l], op->flags, MAX);                                   \
                if (pc) r = min_max(r, pc[l], op->flags, MAX);                                     \
                d[l] = r;                                                                          \
            }                                                                                      \
            return op + 1;                                                                         \
        }                                                                                          \
        EACH_LANE {                                                                                \
            const float a = pa[l], b = pb[l];                                                      \
            const uint32_t ua = float_bits(a), ub = float_bits(b);                                 \
            const uint32_t same = MAX ? ua & ub : ua | ub; /* of equal numbers */                  \
            uint32_t r = a OP b ? ua : ub;                                                         \
            r = a == b ? same : r;                                                                 \
            r = b != b ? ua : r;                                                                   \
            d[l] = canonical(bits_float(r));                                                       \
        }                                                                                          \
        return op + 1;                                                                             \
    }
MIN_MAX(MIN_F32, false, <)
MIN_MAX(MAX_F32, true, >)

#define LANE_SETP_FLOAT(NAME, S, LOAD)                                                             \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        const S *pa = in_place(w, op->a), *pb = in_place(w, op->b);                                \
        const uint32_t flush = op->flags & OP_FTZ;                                                 \
        (void)flush;                                                                               \
        uint32_t r;                                                                                \
        switch ((enum op_compare)op->kind) {                                                       \
        case CMP_EQ:                                                                               \
            LANE_MASK(r, LOAD(pa[l]) == LOAD(pb[l]));                                              \
            break;                                                                                 \
        case CMP_NE:                                                                               \
            LANE_MASK(r, (LOAD(pa[l]) < LOAD(pb[l])) | (LOAD(pa[l]) > LOAD(pb[l])));               \
            break;                                                                                 \
        case CMP_LT:                                                                               \
            LANE_MASK(r, LOAD(pa[l]) < LOAD(pb[l]));                                               \
            break;                                                                                 \
        case CMP_LE:                                                                               \
            LANE_MASK(r, LOAD(pa[l]) <= LOAD(pb[l]));                                              \
            break;                                                                                 \
        case CMP_GT:                                                                               \
            LANE_MASK(r, LOAD(pa[l]) > LOAD(pb[l]));                                               \
            break;                                                                                 \
        case CMP_GE:                                                                               \
            LANE_MASK(r, LOAD(pa[l]) >= LOAD(pb[l]));                                              \
            break;                                                                                 \
        case CMP_EQU:                                                                              \
            LANE_MASK(r, !((LOAD(pa[l]) < LOAD(pb[l])) | (LOAD(pa[l]) > LOAD(pb[l]))));            \
            break;                                                                                 \
        case CMP_NEU:                                                                              \
            LANE_MASK(r, !(LOAD(pa[l]) == LOAD(pb[l])));                                           \
            break;                                                                                 \
        case CMP_LTU:                                                                              \
            LANE_MASK(r, !(LOAD(pa[l]) >= LOAD(pb[l])));                                           \
            break;                                                                                 \
        case CMP_LEU:                                                                              \
            LANE_MASK(r, !(LOAD(pa[l]) > LOAD(pb[l])));                                            \
            break;                                                                                 \
        case CMP_GTU:                                                                              \
            LANE_MASK(r, !(LOAD(pa[l]) <= LOAD(pb[l])));                                           \
            break;                                                                                 \
        case CMP_GEU:                                                                              \
            LANE_MASK(r, !(LOAD(pa[l]) < LOAD(pb[l])));                                            \
            break;                                                                                 \
        case CMP_NUM:                                                                              \
            LANE_MASK(r, (pa[l] == pa[l]) & (pb[l] == pb[l]));                                     \
            break;                                                                                 \
        default:                                                                                   \
            LANE_MASK(r, (pa[l] != pa[l]) | (pb[l] != pb[l]));                                     \
            break;                                                                                 \
        }                                                                                          \
        return lane_compared(w, op, r);                                                            \
    }
#define LOAD_F32(x) ftz_if(flush, x)
#define LOAD_F64(x) (x)
LANE_SETP_FLOAT(SETP_F32, f32x, LOAD_F32)
LANE_SETP_FLOAT(SETP_F64, f64x, LOAD_F64)

#define ANY64(NAME, EXPR)                                                                          \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        f64x *d = out_place(w, op->d);                                                             \
        const f64x *pa = in_place(w, op->a), *pb = in_place(w, op->b), *pc = in_place(w, op->c);   \
        if (op->round) set_rounding((enum op_round)op->round);                                     \
        for (uint32_t m = w->exec; m; m &= m - 1) {                                                \
            const uint32_t l = first_lane(m);                                                      \
            volatile double va = pa[l], vb = pb[l], vc = pc[l];                                    \
            const double a = va, b = vb, c = vc;                                                   \
            (void)b, (void)c;                                                                      \
            volatile double r = EXPR;                                                              \
            d[l] = canonical64(r);                                                                 \
        }                                                                                          \
        if (op->round) fesetround(FE_TONEAREST);                                                   \
        return op + 1;                                                                             \
    }
ANY64(ADD_F64, a + b)
ANY64(SUB_F64, a - b)
ANY64(MUL_F64, a *b)
ANY64(FMA_F64, fma(a, b, c))
ANY64(DIV_F64, a / b)
ANY64(RCP_F64, 1.0 / a)
ANY64(SQRT_F64, sqrt(a))
/* .approx.ftz.f64 works on the high word: the low 32 bits of operand and result are zero. */
static inline double high_word(double x) {
    return bits_double(double_bits(x) & UINT64_C(0xffffffff00000000));
}
ANY64(RCP_APPROX_F64, high_word(1.0 / high_word(a)))
ANY64(RSQRT_F64, high_word(1.0 / sqrt(high_word(a))))
LANE_OP(NEG_F64, f64x, f64x, f64x, f64x, -a)
LANE_OP(ABS_F64, f64x, f64x, f64x, f64x, fabs(a))
LANE_OP(COPYSIGN_F64, u64x, u64x, u64x, u64x,
        (a & UINT64_C(0x8000000000000000)) | (b & UINT64_C(0x7fffffffffffffff)))
static inline double min_max64(double a, double b, bool max) {
    if (a != a) return canonical64(b);
    if (b != b) return a;
    if (a == b) return (signbit(a) != 0) != max ? a : b;
    return (a < b) != max ? a : b;
}
LANE_SLOW(MIN_F64, f64x, f64x, f64x, f64x, min_max64(a, b, false))
LANE_SLOW(MAX_F64, f64x, f64x, f64x, f64x, min_max64(a, b, true))

static inline bool testp(double x, double smallest_normal, uint32_t kind) {
    switch ((enum testp_kind)kind) {
    case TESTP_FINITE:
        return isfinite(x);
    case TESTP_INFINITE:
        return isinf(x);
    case TESTP_NUMBER:
        return !isnan(x);
    case TESTP_NOTANUMBER:
        return isnan(x);
    case TESTP_NORMAL:
        return isfinite(x) && fabs(x) >= smallest_normal;
    default:
        return x != 0 && fabs(x) < smallest_normal;
    }
}
static const struct op *lane_TESTP_F32(struct warp *w, const struct op *op) {
    const f32x *a = in_place(w, op->a);
    uint32_t r;
    LANE_MASK(r, testp((double)a[l], 0x1p-126, op->kind));
    pred_out(w, op->d, w->exec, r);
    return op + 1;
}
static const struct op *lane_TESTP_F64(struct warp *w, const struct op *op) {
    const f64x *a = in_place(w, op->a);
    uint32_t r;
    LANE_MASK(r, testp(a[l], 0x1p-1022, op->kind));
    pred_out(w, op->d, w->exec, r);
    return op + 1;
}

/* 16-bit arithmetic. Sums and products of two halves round once from binary64 (exact there, or far
 * from any rounding boundary of 11 bits: an exact product has 22 bits). */
static inline double half_in(uint32_t v, enum small_format f, uint32_t flush) {
    const float x = f == SMALL_F16 ? f16_to_f32(v) : bf16_to_f32(v);
    if (flush && f == SMALL_F16 && fabsf(x) < 0x1p-14f) return (double)copysignf(0, x);
    return (double)x;
}
static inline uint32_t half_out(double r, enum small_format f, const struct op *op) {
    if (op->flags & OP_SAT) r = r > 0 ? (r < 1 ? r : 1) : 0;
    if (op->flags & OP_RELU) r = r > 0 || r != r ? r : 0;
    uint32_t v = small_encode(f, r, (enum op_round)op->round, false);
    if ((op->flags & OP_FTZ) && f == SMALL_F16 && !(v & 0x7c00)) v &= 0x8000;
    return v;
}
static uint32_t half_op(const struct op *op, enum small_format f, uint32_t ua, uint32_t ub,
                        uint32_t uc) {
    const uint32_t flush = op->flags & OP_FTZ;
    if (op->kind == HALF_NEG || op->kind == HALF_ABS) {
        uint32_t v = op->kind == HALF_NEG ? ua ^ 0x8000u : ua & 0x7fffu;
        if (flush && f == SMALL_F16 && !(v & 0x7c00)) v &= 0x8000;
        return v;
    }
    const double a = half_in(ua, f, flush), b = half_in(ub, f, flush), c = half_in(uc, f, flush);
    switch ((enum half_kind)op->kind) {
    case HALF_ADD:
        return half_out(a + b, f, op);
    case HALF_SUB:
        return half_out(a - b, f, op);
    case HALF_MUL:
        return half_out(a * b, f, op);
    case HALF_FMA:
        return half_out(fma(a, b, c), f, op);
    case HALF_EX2:
        return half_out(exp2(a), f, op);
    case HALF_TANH:
        return half_out(tanh(a), f, op);
    default: {
        float r = min_max((float)a, (float)b, op->flags & (OP_NAN | OP_XORSIGN | OP_ABS),
                          op->kind == HALF_MAX);
        if (op->n == 3)
            r = min_max(r, (float)c, op->flags & (OP_NAN | OP_XORSIGN | OP_ABS),
                        op->kind == HALF_MAX);
        return half_out((double)r, f, op);
    }
    }
}
static const struct op *lane_HALF(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    const bool two = op->type == PTX_F16X2 || op->type == PTX_BF16X2;
    const enum small_format f =
        op->type == PTX_F16 || op->type == PTX_F16X2 ? SMALL_F16 : SMALL_BF16;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint32_t r = half_op(op, f, a[l] & 0xffff, b[l] & 0xffff, c[l] & 0xffff);
        if (two) r |= half_op(op, f, a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16;
        d[l] = r;
    }
    return op + 1;
}
/* add, sub, fma of binary32 with 16-bit operands (sm_100): type_a is theirs. */
static const struct op *lane_HALF_MIXED(struct warp *w, const struct op *op) {
    f32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b);
    const f32x *c = in_place(w, op->c);
    const enum small_format f = op->type_a == PTX_F16 ? SMALL_F16 : SMALL_BF16;
    if (op->round) set_rounding((enum op_round)op->round);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const float x = f == SMALL_F16 ? f16_to_f32(a[l]) : bf16_to_f32(a[l]);
        const float y = f == SMALL_F16 ? f16_to_f32(b[l]) : bf16_to_f32(b[l]);
        volatile float r = op->kind == HALF_FMA   ? fmaf(x, y, c[l])
                           : op->kind == HALF_SUB ? x - c[l]
                                                  : x + c[l];
        d[l] = finish(op, r);
    }
    if (op->round) fesetround(FE_TONEAREST);
    return op + 1;
}

/* Two binary32 in a 64-bit register (sm_100). */
static const struct op *lane_F32X2(struct warp *w, const struct op *op) {
    f32x *d = out_place(w, op->d);
    const f32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    const uint32_t flush = op->flags & OP_FTZ;
    if (op->round) set_rounding((enum op_round)op->round);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        for (uint32_t i = 2 * first_lane(m), end = i + 2; i < end; i++) {
            volatile float x = ftz_if(flush, a[i]), y = ftz_if(flush, b[i]),
                           z = ftz_if(flush, c[i]);
            volatile float r = op->kind == HALF_FMA   ? fmaf(x, y, z)
                               : op->kind == HALF_MUL ? x * y
                               : op->kind == HALF_SUB ? x - y
                                                      : x + y;
            d[i] = finish(op, r);
        }
    }
    if (op->round) fesetround(FE_TONEAREST);
    return op + 1;
}

static bool half_compare(enum op_compare kind, double a, double b) {
    const bool nan = a != a || b != b;
    switch (kind) {
    case CMP_EQ:
        return a == b;
    case CMP_NE:
        return !nan && a != b;
    case CMP_LT:
        return a < b;
    case CMP_LE:
        return a <= b;
    case CMP_GT:
        return a > b;
    case CMP_GE:
        return a >= b;
    case CMP_EQU:
        return nan || a == b;
    case CMP_NEU:
        return nan || a != b;
    case CMP_LTU:
        return nan || a < b;
    case CMP_LEU:
        return nan || a <= b;
    case CMP_GTU:
        return nan || a > b;
    case CMP_GEU:
        return nan || a >= b;
    case CMP_NUM:
        return !nan;
    default:
        return nan;
    }
}
/* setp and set on 16-bit types. Packed: setp gives d from the low halves, e from the high ones;
 * set (op->n = 1) gives two 16-bit results. */
static const struct op *lane_SETP_HALF(struct warp *w, const struct op *op) {
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b);
    const bool two = op->type_a == PTX_F16X2 || op->type_a == PTX_BF16X2;
    const enum small_format f =
        op->type_a == PTX_F16 || op->type_a == PTX_F16X2 ? SMALL_F16 : SMALL_BF16;
    uint32_t low = 0, high = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        const uint32_t x = a[l], y = b[l], flush = op->flags & OP_FTZ;
        low |= (uint32_t)half_compare((enum op_compare)op->kind, half_in(x & 0xffff, f, flush),
                                      half_in(y & 0xffff, f, flush))
               << l;
        high |= (uint32_t)half_compare((enum op_compare)op->kind, half_in(x >> 16, f, flush),
                                       half_in(y >> 16, f, flush))
                << l;
    }
    if (!two) return lane_compared(w, op, low);
    if (op->combine != COMBINE_NONE) {
        const uint32_t c = pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0);
        const bool and = op->combine == COMBINE_AND, or = op->combine == COMBINE_OR;
        low = and? low & c : or ? low | c : low ^ c;
        high = and? high & c : or ? high | c : high ^ c;
    }
    if (op->n != 1) {
        if (op->d != NO_PLACE) pred_out(w, op->d, w->exec, low);
        if (op->e != NO_PLACE) pred_out(w, op->e, w->exec, high);
        return op + 1;
    }
    u32x *d = out_place(w, op->d);
    const uint32_t one = op->type == PTX_F16X2 ? 0x3c00 : op->type == PTX_BF16X2 ? 0x3f80 : 0xffff;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        d[l] = (low >> l & 1 ? one : 0) | (high >> l & 1 ? one << 16 : 0);
    }
    return op + 1;
}

#endif
