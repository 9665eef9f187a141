/* lane_convert.h: cvt, cvt.pack, and vector mov; PTX ISA 9.7.9.22 - 9.7.9.23. See lane_macros.h.
 *
 * op.type is the result's type, op.type_a the source's; op.kind = 1 says that a float to float
 * conversion rounds to an integral value. OP_WIDE and OP_WIDE_A: d or a is a 64-bit register,
 * whatever its type.
 */
#ifndef LAC_TESTS_SOFTGPU_LANE_CONVERT_H
#define LAC_TESTS_SOFTGPU_LANE_CONVERT_H

#include "tests/softgpu/lane_float.h"

LANE_OP(CVT_U32_U8, u32x, u32x, u32x, u32x, a & 0xff)
LANE_OP(CVT_S32_S8, u32x, u32x, u32x, u32x, (int32_t)(int8_t)a)
LANE_OP(CVT_U32_U16, u32x, u32x, u32x, u32x, a & 0xffff)
LANE_OP(CVT_S32_S16, u32x, u32x, u32x, u32x, (int32_t)(int16_t)a)
LANE_OP(CVT_U64_U32, u64x, u32x, u32x, u32x, a)
LANE_OP(CVT_S64_S32, u64x, s32x, u32x, u32x, (int64_t)a)
LANE_OP(CVT_U32_U64, u32x, u64x, u32x, u32x, a)
LANE_OP(CVT_F32_S32, f32x, s32x, u32x, u32x, (float)a)
LANE_OP(CVT_F32_U32, f32x, u32x, u32x, u32x, (float)a)
LANE_OP(CVT_F32_F16, f32x, u32x, u32x, u32x, canonical(f16_to_f32(a & 0xffff)))
LANE_OP(CVT_F32_BF16, f32x, u32x, u32x, u32x, canonical(bf16_to_f32(a & 0xffff)))
LANE_OP(CVT_F16_F32, u32x, f32x, u32x, u32x, f32_to_f16(a))
LANE_OP(CVT_BF16_F32, u32x, f32x, u32x, u32x, f32_to_bf16(a))
/* Toward zero, the commonest; out of range saturates, NaN is 0. */
static inline int32_t trunc_s32(float a) {
    return a >= 0x1p31f ? INT32_MAX : a >= -0x1p31f ? (int32_t)a : a < 0 ? INT32_MIN : 0;
}
LANE_OP(CVT_S32_F32, u32x, f32x, u32x, u32x, (uint32_t)trunc_s32(a))

static inline bool is_signed_type(uint32_t t) {
    return t == PTX_S8 || t == PTX_S16 || t == PTX_S32 || t == PTX_S64;
}
static inline uint32_t type_bits(uint32_t t) {
    switch ((enum ptx_type)t) {
    case PTX_B8:
    case PTX_U8:
    case PTX_S8:
        return 8;
    case PTX_B16:
    case PTX_U16:
    case PTX_S16:
        return 16;
    case PTX_B64:
    case PTX_U64:
    case PTX_S64:
        return 64;
    default:
        return 32;
    }
}
static inline uint64_t lane_bits(const struct warp *w, int32_t place, uint32_t wide, uint32_t l) {
    return wide ? ((const u64x *)in_place(w, place))[l] : ((const u32x *)in_place(w, place))[l];
}
static inline void set_lane(struct warp *w, const struct op *op, uint32_t l, uint64_t v) {
    if (op->flags & OP_WIDE)
        ((u64x *)out_place(w, op->d))[l] = v;
    else
        ((u32x *)out_place(w, op->d))[l] = (uint32_t)v;
}
/* The low bits of v as a value of integer type t, extended to 64 bits. */
static inline uint64_t extend(uint64_t v, uint32_t t) {
    const uint32_t n = 64 - type_bits(t);
    return is_signed_type(t) ? (uint64_t)((int64_t)(v << n) >> n) : v << n >> n;
}
/* What a register of the result's width holds: 16-bit registers keep their upper half clear. */
static inline uint64_t register_value(const struct op *op, uint64_t v) {
    v = extend(v, op->type);
    return op->sets_wide == 2 ? v & 0xffff : v;
}
static inline uint64_t saturate_integer(uint64_t v, uint32_t from, uint32_t to) {
    const uint32_t bits = type_bits(to);
    if (is_signed_type(to)) {
        const int64_t hi = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - 1)) - 1, lo = -hi - 1;
        if (!is_signed_type(from)) return v > (uint64_t)hi ? (uint64_t)hi : v;
        const int64_t s = (int64_t)v;
        return (uint64_t)(s > hi ? hi : s < lo ? lo : s);
    }
    const uint64_t hi = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    if (is_signed_type(from) && (int64_t)v < 0) return 0;
    return v > hi ? hi : v;
}
static const struct op *lane_CVT_INT(struct warp *w, const struct op *op) {
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint64_t v = extend(lane_bits(w, op->a, op->flags & OP_WIDE_A, l), op->type_a);
        if (op->flags & OP_SAT) v = saturate_integer(v, op->type_a, op->type);
        set_lane(w, op, l, register_value(op, v));
    }
    return op + 1;
}

static const struct op *lane_CVT_F32_INT(struct warp *w, const struct op *op) {
    f32x *d = out_place(w, op->d);
    if (op->round) set_rounding((enum op_round)op->round);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint64_t v = extend(lane_bits(w, op->a, op->flags & OP_WIDE_A, l), op->type_a);
        volatile uint64_t u = v;
        volatile float r = is_signed_type(op->type_a) ? (float)(int64_t)u : (float)u;
        d[l] = op->flags & OP_SAT ? finish(op, r) : r;
    }
    if (op->round) fesetround(FE_TONEAREST);
    return op + 1;
}
static const struct op *lane_CVT_F64_INT(struct warp *w, const struct op *op) {
    f64x *d = out_place(w, op->d);
    if (op->round) set_rounding((enum op_round)op->round);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        volatile uint64_t u = extend(lane_bits(w, op->a, op->flags & OP_WIDE_A, l), op->type_a);
        volatile double r = is_signed_type(op->type_a) ? (double)(int64_t)u : (double)u;
        d[l] = r;
    }
    if (op->round) fesetround(FE_TONEAREST);
    return op + 1;
}
static enum small_format small_of(uint32_t type) {
    switch ((enum ptx_type)type) {
    case PTX_F16:
    case PTX_F16X2:
        return SMALL_F16;
    case PTX_BF16:
    case PTX_BF16X2:
        return SMALL_BF16;
    case PTX_E4M3X2:
        return SMALL_E4M3;
    case PTX_E5M2X2:
        return SMALL_E5M2;
    default:
        return SMALL_TF32;
    }
}
/* Integers of up to 64 bits into 16-bit floats: binary64 might round first, so sticky bits are kept
 * by hand. */
static const struct op *lane_CVT_HALF_INT(struct warp *w, const struct op *op) {
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint64_t v = extend(lane_bits(w, op->a, op->flags & OP_WIDE_A, l), op->type_a);
        const bool negative = is_signed_type(op->type_a) && (int64_t)v < 0;
        uint64_t magnitude = negative ? 0 - v : v;
        if (magnitude >> 32)
            magnitude = (magnitude & ~UINT64_C(0xffff)) | ((magnitude & 0xffff) != 0);
        const double x = negative ? -(double)magnitude : (double)magnitude;
        set_lane(w, op, l,
                 small_encode(small_of(op->type), x, (enum op_round)op->round,
                              (op->flags & OP_SAT) != 0));
    }
    return op + 1;
}

static inline double round_integral(double x, enum op_round round) {
    switch (round) {
    case ROUND_NEAREST:
        return nearbyint(x);
    case ROUND_ZERO:
        return trunc(x);
    case ROUND_DOWN:
        return floor(x);
    case ROUND_UP:
        return ceil(x);
    default:
        return x;
    }
}
/* Out of range saturates; NaN is 0, or the top bit when either side has 64 bits. */
static inline uint64_t integer_of(double x, uint32_t type, enum op_round round, bool nan_top) {
    const uint32_t bits = type_bits(type);
    if (x != x) return nan_top ? UINT64_C(1) << (bits - 1) : 0;
    x = round_integral(x, round);
    if (is_signed_type(type)) {
        const double top = ldexp(1, (int)bits - 1);
        if (x >= top) return (UINT64_C(1) << (bits - 1)) - 1;
        if (x < -top) return ~UINT64_C(0) << (bits - 1);
        return (uint64_t)(int64_t)x;
    }
    if (x <= 0) return 0;
    if (x >= ldexp(1, (int)bits)) return bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    return (uint64_t)x;
}
#define FLOAT_TO_INT(NAME, LOAD, WIDE_SOURCE)                                                      \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        const bool top = WIDE_SOURCE || type_bits(op->type) == 64;                                 \
        for (uint32_t m = w->exec; m; m &= m - 1) {                                                \
            const uint32_t l = first_lane(m);                                                      \
            const double x = LOAD;                                                                 \
            set_lane(w, op, l,                                                                     \
                     register_value(op, integer_of(x, op->type, (enum op_round)op->round, top)));  \
        }                                                                                          \
        return op + 1;                                                                             \
    }
FLOAT_TO_INT(CVT_INT_F32, (double)ftz_if(op->flags &OP_FTZ, ((const f32x *)in_place(w, op->a))[l]),
             false)
FLOAT_TO_INT(CVT_INT_F64, ((const f64x *)in_place(w, op->a))[l], true)
FLOAT_TO_INT(CVT_INT_HALF,
             small_decode(small_of(op->type_a), ((const u32x *)in_place(w, op->a))[l] & 0xffff),
             false)

static const struct op *lane_CVT_F32_F32(struct warp *w, const struct op *op) {
    f32x *d = out_place(w, op->d);
    const f32x *a = in_place(w, op->a);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        float x = ftz_if(op->flags & OP_FTZ, a[l]);
        if (op->kind) x = (float)round_integral((double)x, (enum op_round)op->round);
        d[l] = finish(op, x);
    }
    return op + 1;
}
static const struct op *lane_CVT_F64_F64(struct warp *w, const struct op *op) {
    f64x *d = out_place(w, op->d);
    const f64x *a = in_place(w, op->a);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        double x = op->kind ? round_integral(a[l], (enum op_round)op->round) : a[l];
        if (op->flags & OP_SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
        d[l] = canonical64(x);
    }
    return op + 1;
}
static const struct op *lane_CVT_F32_F64(struct warp *w, const struct op *op) {
    f32x *d = out_place(w, op->d);
    const f64x *a = in_place(w, op->a);
    if (op->round) set_rounding((enum op_round)op->round);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        volatile double x = a[l];
        volatile float r = (float)x;
        d[l] = finish(op, r);
    }
    if (op->round) fesetround(FE_TONEAREST);
    return op + 1;
}
static const struct op *lane_CVT_F64_F32(struct warp *w, const struct op *op) {
    f64x *d = out_place(w, op->d);
    const f32x *a = in_place(w, op->a);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        double x = (double)ftz_if(op->flags & OP_FTZ, a[l]);
        if (op->flags & OP_SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
        d[l] = canonical64(x);
    }
    return op + 1;
}

/* Into and out of formats of 16 bits or fewer (and tf32) that are not on the fast paths above. */
static const struct op *lane_CVT_SMALL(struct warp *w, const struct op *op) {
    const bool to_small = op->type != PTX_F32 && op->type != PTX_F64;
    const bool from_small = op->type_a != PTX_F32 && op->type_a != PTX_F64;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint64_t v = lane_bits(w, op->a, op->flags & OP_WIDE_A, l);
        double x = from_small ? small_decode(small_of(op->type_a), (uint32_t)v & 0xffff)
                   : op->type_a == PTX_F32
                       ? (double)ftz_if(op->flags & OP_FTZ, bits_float((uint32_t)v))
                       : bits_double(v);
        if (op->kind) x = round_integral(x, (enum op_round)op->round);
        if (op->flags & OP_SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
        if (op->flags & OP_RELU) x = x > 0 || x != x ? x : 0;
        if (to_small)
            set_lane(w, op, l,
                     small_encode(small_of(op->type), x, (enum op_round)op->round,
                                  (op->flags & OP_SATFINITE) != 0));
        else if (op->type == PTX_F32)
            set_lane(w, op, l, float_bits(canonical((float)x)));
        else
            set_lane(w, op, l, double_bits(canonical64(x)));
    }
    return op + 1;
}
/* Two values into one register: a is the upper, b the lower. Sources: two binary32 registers, or
 * (op->n = 1) the two halves of a. */
static const struct op *lane_CVT_PACK2(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const f32x *a = in_place(w, op->a), *b = in_place(w, op->b);
    const u32x *packed = in_place(w, op->a);
    const enum small_format to = small_of(op->type), from = small_of(op->type_a);
    const uint32_t bits = to == SMALL_F16 || to == SMALL_BF16 ? 16 : 8;
    const uint32_t from_bits = from == SMALL_F16 || from == SMALL_BF16 ? 16 : 8;
    const uint32_t plain = OP_RELU | OP_SATFINITE | OP_FTZ;
    if (op->n != 1 && bits == 16 && !op->round && !(op->flags & plain) && w->exec == ~0u) {
        if (to == SMALL_F16)
            EACH_LANE d[l] = f32_to_f16(a[l]) << 16 | f32_to_f16(b[l]);
        else
            EACH_LANE d[l] = f32_to_bf16(a[l]) << 16 | f32_to_bf16(b[l]);
        return op + 1;
    }
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint32_t r = 0;
        for (uint32_t i = 0; i < 2; i++) {
            double x =
                op->n == 1
                    ? small_decode(from, packed[l] >> from_bits * i & ((1u << from_bits) - 1))
                    : (double)(i ? a[l] : b[l]);
            if (op->flags & OP_RELU) x = x > 0 || x != x ? x : 0;
            r |= small_encode(to, x, (enum op_round)op->round, (op->flags & OP_SATFINITE) != 0)
                 << bits * i;
        }
        d[l] = r;
    }
    return op + 1;
}
/* cvt.pack.sat.type.s32{.b32} d, a, b{, c}: c moves up, a then b come in below. */
static const struct op *lane_CVT_PACK_INT(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    const uint32_t bits = type_bits(op->type), mask = bits == 16 ? 0xffff : (1u << bits) - 1;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const uint32_t x =
            (uint32_t)saturate_integer((uint64_t)(int64_t)(int32_t)a[l], PTX_S32, op->type);
        const uint32_t y =
            (uint32_t)saturate_integer((uint64_t)(int64_t)(int32_t)b[l], PTX_S32, op->type);
        const uint32_t above = op->n == 3 ? (bits == 16 ? 0 : c[l] << 2 * bits) : 0;
        d[l] = above | (x & mask) << bits | (y & mask);
    }
    return op + 1;
}

/* mov.bN d, {a, b, ...}: op->width bytes each, first lowest. */
static const struct op *lane_PACK(struct warp *w, const struct op *op) {
    const int32_t *list = w->image->places + op->list;
    if (op->width == 2 && op->n == 2 && w->exec == ~0u) {
        u32x *d = out_place(w, op->d);
        const u32x *a = in_place(w, list[0]), *b = in_place(w, list[1]);
        EACH_LANE d[l] = (a[l] & 0xffff) | b[l] << 16;
        return op + 1;
    }
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint64_t v[2] = {0, 0};
        uint32_t at = 0;
        for (uint32_t i = 0; i < op->n; i++, at += op->width * 8u) {
            const uint64_t x = op->width == 8 ? ((const u64x *)in_place(w, list[i]))[l]
                                              : ((const u32x *)in_place(w, list[i]))[l];
            const uint64_t kept = op->width == 8 ? x : x & ((UINT64_C(1) << op->width * 8) - 1);
            v[at / 64] |= kept << at % 64;
        }
        if (op->sets_wide == 16) {
            ((u64x *)out_place(w, op->d))[l] = v[0];
            ((u64x *)out_place(w, op->d))[LANES + l] = v[1];
        } else {
            set_lane(w, op, l, v[0]);
        }
    }
    return op + 1;
}
static const struct op *lane_UNPACK(struct warp *w, const struct op *op) {
    const int32_t *list = w->image->places + op->list;
    if (op->width == 2 && op->n == 2 && w->exec == ~0u && list[0] != NO_PLACE &&
        list[1] != NO_PLACE && list[0] != op->a) {
        const u32x *a = in_place(w, op->a);
        u32x *x = out_place(w, list[0]), *y = out_place(w, list[1]);
        EACH_LANE x[l] = a[l] & 0xffff;
        EACH_LANE y[l] = a[l] >> 16;
        return op + 1;
    }
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        const bool wide = op->flags & OP_WIDE_A;
        uint64_t v[2] = {lane_bits(w, op->a, wide, l), 0};
        if (op->imm == 16) v[1] = ((const u64x *)in_place(w, op->a))[LANES + l];
        uint32_t at = 0;
        for (uint32_t i = 0; i < op->n; i++, at += op->width * 8u) {
            if (list[i] == NO_PLACE) continue;
            const uint64_t x = v[at / 64] >> at % 64;
            if (op->width == 8)
                ((u64x *)out_place(w, list[i]))[l] = x;
            else
                ((u32x *)out_place(w, list[i]))[l] =
                    (uint32_t)(x & ((UINT64_C(1) << op->width * 8) - 1));
        }
    }
    return op + 1;
}

#endif
