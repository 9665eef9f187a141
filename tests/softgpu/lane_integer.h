/* lane_integer.h: integer, bit and predicate operations on lanes; PTX ISA 9.7.1, 9.7.4, 9.7.8. See
 * lane_macros.h.
 */
#ifndef LAC_TESTS_SOFTGPU_LANE_INTEGER_H
#define LAC_TESTS_SOFTGPU_LANE_INTEGER_H

#include "tests/softgpu/lane_macros.h"

/* W: bits; S: what a register's lane is stored in; U, I: the type; V, J: twice as wide (of the
 * 64-bit family: 128). Division by zero gives all ones, as the hardware does; the remainder then is
 * a. */
#define LANE_WIDTH(W, S, U, I, V, J)                                                               \
    static inline U div_u##W(U a, U b) {                                                           \
        if (b == 0) return (U) ~(U)0;                                                              \
        return (U)(a / b);                                                                         \
    }                                                                                              \
    static inline U rem_u##W(U a, U b) {                                                           \
        if (b == 0) return a;                                                                      \
        return (U)(a % b);                                                                         \
    }                                                                                              \
    static inline U div_s##W(I a, I b) {                                                           \
        if (b == 0) return (U) ~(U)0;                                                              \
        if (b == -1) return (U)(0 - (U)a);                                                         \
        return (U)(I)(a / b);                                                                      \
    }                                                                                              \
    static inline U rem_s##W(I a, I b) {                                                           \
        if (b == 0) return (U)a;                                                                   \
        if (b == -1) return 0;                                                                     \
        return (U)(I)(a % b);                                                                      \
    }                                                                                              \
    LANE_OP(ADD_##W, S, S, S, S, (U)(a + b))                                                       \
    LANE_OP(SUB_##W, S, S, S, S, (U)(a - b))                                                       \
    LANE_OP(MUL_##W, S, S, S, S, (U)(a * b))                                                       \
    LANE_OP(MAD_##W, S, S, S, S, (U)(a * b + c))                                                   \
    LANE_OP(MULHI_S##W, S, S, S, S, (U)((V)((J)(I)a * (J)(I)b) >> W))                              \
    LANE_OP(MULHI_U##W, S, S, S, S, (U)((V)(U)a * (V)(U)b >> W))                                   \
    LANE_OP(MADHI_S##W, S, S, S, S, (U)((U)((V)((J)(I)a * (J)(I)b) >> W) + (U)c))                  \
    LANE_OP(MADHI_U##W, S, S, S, S, (U)((U)((V)(U)a * (V)(U)b >> W) + (U)c))                       \
    LANE_SLOW(DIV_S##W, S, S, S, S, div_s##W((I)a, (I)b))                                          \
    LANE_SLOW(DIV_U##W, S, S, S, S, div_u##W((U)a, (U)b))                                          \
    LANE_SLOW(REM_S##W, S, S, S, S, rem_s##W((I)a, (I)b))                                          \
    LANE_SLOW(REM_U##W, S, S, S, S, rem_u##W((U)a, (U)b))                                          \
    LANE_OP(ABS_##W, S, S, S, S, (U)((I)a < 0 ? 0 - a : a))                                        \
    LANE_OP(NEG_##W, S, S, S, S, (U)(0 - a))                                                       \
    LANE_OP(MIN_S##W, S, S, S, S, (U)((I)a < (I)b ? a : b))                                        \
    LANE_OP(MIN_U##W, S, S, S, S, (U)((U)a < (U)b ? a : b))                                        \
    LANE_OP(MAX_S##W, S, S, S, S, (U)((I)a > (I)b ? a : b))                                        \
    LANE_OP(MAX_U##W, S, S, S, S, (U)((U)a > (U)b ? a : b))                                        \
    LANE_OP(AND_##W, S, S, S, S, a &b)                                                             \
    LANE_OP(OR_##W, S, S, S, S, a | b)                                                             \
    LANE_OP(XOR_##W, S, S, S, S, a ^ b)                                                            \
    LANE_OP(NOT_##W, S, S, S, S, (U)~a)                                                            \
    LANE_OP(CNOT_##W, S, S, S, S, (U)a == 0)                                                       \
    LANE_OP(SHL_##W, S, S, u32x, S, b < W ? (U)(a << (b & (W - 1))) : 0)                           \
    LANE_OP(SHR_U##W, S, S, u32x, S, b < W ? (U)((U)a >> (b & (W - 1))) : 0)                       \
    LANE_OP(SHR_S##W, S, S, u32x, S, (U)((I)a >> (b < W ? b : W - 1)))                             \
    LANE_OP(SLCT_S##W, S, S, S, s32x, c >= 0 ? a : b)                                              \
    LANE_OP(SLCT_F##W, S, S, S, f32x, ftz_if(op->flags &OP_FTZ, c) >= 0 ? a : b)                   \
    LANE_OP(MOV_##W, S, S, S, S, a)                                                                \
    LANE_OP(SAD_S##W, S, S, S, S, (U)(c + ((I)a < (I)b ? b - a : a - b)))                          \
    LANE_OP(SAD_U##W, S, S, S, S, (U)(c + ((U)a < (U)b ? b - a : a - b)))                          \
    static const struct op *lane_SELP_##W(struct warp *w, const struct op *op) {                   \
        S *d = out_place(w, op->d);                                                                \
        const S *a = in_place(w, op->a), *b = in_place(w, op->b);                                  \
        const uint32_t p = pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0), m = w->exec;   \
        EACH_LANE {                                                                                \
            const S r = p >> l & 1 ? a[l] : b[l];                                                  \
            d[l] = m >> l & 1 ? r : d[l];                                                          \
        }                                                                                          \
        return op + 1;                                                                             \
    }                                                                                              \
    LANE_SETP(SETP_S##W, S, I)                                                                     \
    LANE_SETP(SETP_U##W, S, U)

#define LANE_SETP(NAME, S, T)                                                                      \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        const S *a = in_place(w, op->a), *b = in_place(w, op->b);                                  \
        uint32_t r;                                                                                \
        switch ((enum op_compare)op->kind) {                                                       \
        case CMP_EQ:                                                                               \
            LANE_MASK(r, (T)a[l] == (T)b[l]);                                                      \
            break;                                                                                 \
        case CMP_NE:                                                                               \
            LANE_MASK(r, (T)a[l] != (T)b[l]);                                                      \
            break;                                                                                 \
        case CMP_LT:                                                                               \
            LANE_MASK(r, (T)a[l] < (T)b[l]);                                                       \
            break;                                                                                 \
        case CMP_LE:                                                                               \
            LANE_MASK(r, (T)a[l] <= (T)b[l]);                                                      \
            break;                                                                                 \
        case CMP_GT:                                                                               \
            LANE_MASK(r, (T)a[l] > (T)b[l]);                                                       \
            break;                                                                                 \
        default:                                                                                   \
            LANE_MASK(r, (T)a[l] >= (T)b[l]);                                                      \
            break;                                                                                 \
        }                                                                                          \
        return lane_compared(w, op, r);                                                            \
    }

static inline float ftz(float f) {
    const uint32_t u = float_bits(f);
    return bits_float(u & 0x7f800000u ? u : u & 0x80000000u);
}
static inline float ftz_if(uint32_t on, float f) {
    return on ? ftz(f) : f;
}

LANE_WIDTH(16, u32x, uint16_t, int16_t, uint32_t, int32_t)
LANE_WIDTH(32, u32x, uint32_t, int32_t, uint64_t, int64_t)
__extension__ typedef unsigned __int128 wide_unsigned;
__extension__ typedef __int128 wide_signed;
LANE_WIDTH(64, u64x, uint64_t, int64_t, wide_unsigned, wide_signed)

LANE_OP(MULWIDE_S16, u32x, u32x, u32x, u32x, (int32_t)(int16_t)a *(int16_t)b)
LANE_OP(MULWIDE_U16, u32x, u32x, u32x, u32x, a *b)
LANE_OP(MULWIDE_S32, u64x, s32x, s32x, u32x, (int64_t)a *b)
LANE_OP(MULWIDE_U32, u64x, u32x, u32x, u32x, (uint64_t)a *b)
LANE_OP(MADWIDE_S16, u32x, u32x, u32x, u32x, (uint32_t)((int32_t)(int16_t)a *(int16_t)b) + c)
LANE_OP(MADWIDE_U16, u32x, u32x, u32x, u32x, a *b + c)
LANE_OP(MADWIDE_S32, u64x, s32x, s32x, u64x, (uint64_t)((int64_t)a *b) + c)
LANE_OP(MADWIDE_U32, u64x, u32x, u32x, u64x, (uint64_t)a *b + c)

static inline uint32_t clamp_s32(int64_t v) {
    return (uint32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}
LANE_OP(ADD_SAT_S32, u32x, s32x, s32x, u32x, clamp_s32((int64_t)a + b))
LANE_OP(SUB_SAT_S32, u32x, s32x, s32x, u32x, clamp_s32((int64_t)a - b))
LANE_OP(MADHI_SAT_S32, u32x, s32x, s32x, s32x, clamp_s32(((int64_t)a * b >> 32) + c))

/* Sign extension of the low 24 bits. */
static inline int64_t low24(uint32_t a) {
    return (int32_t)(a << 8) >> 8;
}
LANE_OP(MUL24_LO_S, u32x, u32x, u32x, u32x, (uint64_t)(low24(a) * low24(b)))
LANE_OP(MUL24_LO_U, u32x, u32x, u32x, u32x, (uint64_t)(a & 0xffffff) * (b & 0xffffff))
LANE_OP(MUL24_HI_S, u32x, u32x, u32x, u32x, (uint64_t)(low24(a) * low24(b) >> 16))
LANE_OP(MUL24_HI_U, u32x, u32x, u32x, u32x, (uint64_t)(a & 0xffffff) * (b & 0xffffff) >> 16)
LANE_OP(MAD24_LO_S, u32x, u32x, u32x, u32x, (uint32_t)(low24(a) * low24(b)) + c)
LANE_OP(MAD24_LO_U, u32x, u32x, u32x, u32x,
        (uint32_t)((uint64_t)(a & 0xffffff) * (b & 0xffffff)) + c)
LANE_OP(MAD24_HI_S, u32x, u32x, u32x, u32x, (uint32_t)(low24(a) * low24(b) >> 16) + c)
LANE_OP(MAD24_HI_U, u32x, u32x, u32x, u32x,
        (uint32_t)((uint64_t)(a & 0xffffff) * (b & 0xffffff) >> 16) + c)

LANE_OP(ADD_U16X2, u32x, u32x, u32x, u32x,
        ((a & 0xffff0000u) + (b & 0xffff0000u)) | ((a + b) & 0xffff))
#define HALVES(T, OP)                                                                              \
    ((uint32_t)(uint16_t)((T)a OP(T) b ? a : b) |                                                  \
     ((T)(a >> 16) OP(T)(b >> 16) ? a & 0xffff0000u : b & 0xffff0000u))
LANE_OP(MIN_S16X2, u32x, u32x, u32x, u32x, HALVES(int16_t, <))
LANE_OP(MIN_U16X2, u32x, u32x, u32x, u32x, HALVES(uint16_t, <))
LANE_OP(MAX_S16X2, u32x, u32x, u32x, u32x, HALVES(int16_t, >))
LANE_OP(MAX_U16X2, u32x, u32x, u32x, u32x, HALVES(uint16_t, >))
LANE_OP(MIN_RELU_S32, u32x, s32x, s32x, u32x, (a < b ? a : b) < 0 ? 0 : (a < b ? a : b))
LANE_OP(MAX_RELU_S32, u32x, s32x, s32x, u32x, (a > b ? a : b) < 0 ? 0 : (a > b ? a : b))

/* {b, a} as 64 bits, shifted */
#define FUNNEL (((uint64_t)b << 32) | a)
LANE_OP(SHF_L_WRAP, u32x, u32x, u32x, u32x, (uint32_t)(FUNNEL << (c & 31) >> 32))
LANE_OP(SHF_L_CLAMP, u32x, u32x, u32x, u32x, (uint32_t)(FUNNEL << (c < 32 ? c : 32) >> 32))
LANE_OP(SHF_R_WRAP, u32x, u32x, u32x, u32x, (uint32_t)(FUNNEL >> (c & 31)))
LANE_OP(SHF_R_CLAMP, u32x, u32x, u32x, u32x, (uint32_t)(FUNNEL >> (c < 32 ? c : 32)))

/* One term for each set bit of the table, chosen once for all lanes. */
static const struct op *lane_LOP3(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *pa = in_place(w, op->a), *pb = in_place(w, op->b), *pc = in_place(w, op->c);
    const uint32_t m = w->exec, table = op->kind;
    uint32_t t[8];
    for (int i = 0; i < 8; i++) t[i] = table >> i & 1 ? ~0u : 0;
    EACH_LANE {
        const uint32_t a = pa[l], b = pb[l], c = pc[l];
        const uint32_t c0 = (~c & t[0]) | (c & t[1]), c1 = (~c & t[2]) | (c & t[3]);
        const uint32_t c2 = (~c & t[4]) | (c & t[5]), c3 = (~c & t[6]) | (c & t[7]);
        const uint32_t b0 = (~b & c0) | (b & c1), b1 = (~b & c2) | (b & c3);
        const uint32_t r = (~a & b0) | (a & b1);
        d[l] = m >> l & 1 ? r : d[l];
    }
    return op + 1;
}

static inline uint32_t prmt_byte(uint64_t bytes, uint32_t selector) {
    const uint32_t v = (uint32_t)(bytes >> 8 * (selector & 7)) & 0xff;
    return selector & 8 ? (v & 0x80 ? 0xff : 0) : v;
}
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    return prmt_byte(bytes, s) | prmt_byte(bytes, s >> 4) << 8 | prmt_byte(bytes, s >> 8) << 16 |
           prmt_byte(bytes, s >> 12) << 24;
}
static inline uint32_t prmt_selector(uint32_t mode, uint32_t c) {
    const uint32_t n = c & 3;
    uint32_t s = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t v;
        switch ((enum prmt_mode)mode) {
        case PRMT_F4E:
            v = n + i;
            break;
        case PRMT_B4E:
            v = n - i;
            break;
        case PRMT_RC8:
            v = n;
            break;
        case PRMT_ECL:
            v = i > n ? i : n;
            break;
        case PRMT_ECR:
            v = i < n ? i : n;
            break;
        default:
            v = (n & 1) * 2 + (i & 1);
            break;
        }
        s |= (v & 7) << 4 * i;
    }
    return s;
}
LANE_OP(PRMT, u32x, u32x, u32x, u32x, prmt(a, b, c))
LANE_OP(PRMT_MODE, u32x, u32x, u32x, u32x, prmt(a, b, prmt_selector(op->kind, c)))

static inline uint64_t bfe(uint64_t a, uint32_t pos, uint32_t len, uint32_t width, bool is_signed) {
    pos &= 255;
    len &= 255;
    const uint64_t field = pos < 64 ? a >> pos : 0;
    const uint64_t kept = len < 64 ? field & ((UINT64_C(1) << len) - 1) : field;
    if (!is_signed || len == 0) return kept;
    const uint32_t top = pos + len - 1 < width - 1 ? pos + len - 1 : width - 1;
    const bool negative = a >> top & 1;
    /* bits past the word's end are copies of the sign too */
    const uint32_t have = pos < width ? (len < width - pos ? len : width - pos) : 0;
    if (!negative) return kept;
    return have < 64 ? kept | ~UINT64_C(0) << have : kept;
}
LANE_OP(BFE_U32, u32x, u32x, u32x, u32x, bfe(a, b, c, 32, false))
LANE_OP(BFE_S32, u32x, u32x, u32x, u32x, bfe(a, b, c, 32, true))
LANE_OP(BFE_U64, u64x, u64x, u32x, u32x, bfe(a, b, c, 64, false))
LANE_OP(BFE_S64, u64x, u64x, u32x, u32x, bfe(a, b, c, 64, true))

/* f = a inserted into b at c, length in place e */
static inline uint64_t bfi(uint64_t a, uint64_t b, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (pos > 63 || len == 0) return b;
    const uint64_t mask = (len < 64 ? (UINT64_C(1) << len) - 1 : ~UINT64_C(0)) << pos;
    return (b & ~mask) | (a << pos & mask);
}
#define LANE_BFI(NAME, S)                                                                          \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        S *d = out_place(w, op->d);                                                                \
        const S *a = in_place(w, op->a), *b = in_place(w, op->b);                                  \
        const u32x *c = in_place(w, op->c), *e = in_place(w, op->e);                               \
        const uint32_t m = w->exec;                                                                \
        EACH_LANE {                                                                                \
            const S r = (S)bfi(a[l], b[l], c[l], e[l]);                                            \
            d[l] = m >> l & 1 ? r : d[l];                                                          \
        }                                                                                          \
        return op + 1;                                                                             \
    }
LANE_BFI(BFI_32, u32x)
LANE_BFI(BFI_64, u64x)

/* op->kind: 1 = the shift amount that brings the bit to the top (bfind.shiftamt) */
static inline uint32_t bfind(uint64_t a, uint32_t width, bool shift) {
    if (a == 0) return ~0u;
    const uint32_t at = 63 - (uint32_t)__builtin_clzll(a);
    return shift ? width - 1 - at : at;
}
LANE_SLOW(BFIND_U32, u32x, u32x, u32x, u32x, bfind(a, 32, op->kind))
LANE_SLOW(BFIND_S32, u32x, u32x, u32x, u32x, bfind(a >> 31 ? ~a : a, 32, op->kind))
LANE_SLOW(BFIND_U64, u32x, u64x, u32x, u32x, bfind(a, 64, op->kind))
LANE_SLOW(BFIND_S64, u32x, u64x, u32x, u32x, bfind(a >> 63 ? ~a : a, 64, op->kind))
LANE_SLOW(CLZ_32, u32x, u32x, u32x, u32x, a ? (uint32_t)__builtin_clz(a) : 32)
LANE_SLOW(CLZ_64, u32x, u64x, u32x, u32x, a ? (uint32_t)__builtin_clzll(a) : 64)
LANE_SLOW(POPC_32, u32x, u32x, u32x, u32x, (uint32_t)__builtin_popcount(a))
LANE_SLOW(POPC_64, u32x, u64x, u32x, u32x, (uint32_t)__builtin_popcountll(a))

static inline uint64_t brev64(uint64_t a) {
    a = (a >> 1 & UINT64_C(0x5555555555555555)) | (a & UINT64_C(0x5555555555555555)) << 1;
    a = (a >> 2 & UINT64_C(0x3333333333333333)) | (a & UINT64_C(0x3333333333333333)) << 2;
    a = (a >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (a & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(a);
}
LANE_SLOW(BREV_32, u32x, u32x, u32x, u32x, brev64(a) >> 32)
LANE_SLOW(BREV_64, u64x, u64x, u32x, u32x, brev64(a))

/* op->kind: 1 = wrap, 0 = clamp */
static inline uint32_t szext(uint32_t a, uint32_t n, uint32_t wrap, bool is_signed) {
    n = wrap ? n & 31 : n > 32 ? 32 : n;
    if (n == 0) return 0;
    if (n == 32) return a;
    return is_signed ? (uint32_t)((int32_t)(a << (32 - n)) >> (32 - n)) : a & ((1u << n) - 1);
}
LANE_OP(SZEXT_S, u32x, u32x, u32x, u32x, szext(a, b, op->kind, true))
LANE_OP(SZEXT_U, u32x, u32x, u32x, u32x, szext(a, b, op->kind, false))
static inline uint32_t bmsk(uint32_t a, uint32_t b, uint32_t wrap) {
    a = wrap ? a & 31 : a > 32 ? 32 : a;
    b = wrap ? b & 31 : b > 32 ? 32 : b;
    const uint64_t m = ((UINT64_C(1) << b) - 1) << a;
    return (uint32_t)m;
}
LANE_OP(BMSK, u32x, u32x, u32x, u32x, bmsk(a, b, op->kind))

/* The n-th set bit of the mask from base on: upward for n > 0, downward for n < 0. */
static inline uint32_t fns(uint32_t mask, uint32_t base, int32_t n) {
    if (n == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
    const int32_t step = n > 0 ? 1 : -1;
    int64_t left = n > 0 ? n : -(int64_t)n;
    for (int64_t at = base; at >= 0 && at < 32; at += step)
        if (mask >> at & 1 && --left == 0) return (uint32_t)at;
    return ~0u;
}
LANE_SLOW(FNS, u32x, u32x, u32x, s32x, fns(a, b, c))

static inline int32_t byte_of(uint32_t v, uint32_t i, uint32_t is_signed) {
    return is_signed ? (int8_t)(v >> 8 * i) : (int32_t)(v >> 8 * i & 0xff);
}
static const struct op *lane_DP4A(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    const uint32_t m = w->exec;
#define DOT4(SA, SB)                                                                               \
    EACH_LANE {                                                                                    \
        uint32_t r = c[l];                                                                         \
        for (uint32_t i = 0; i < 4; i++)                                                           \
            r += (uint32_t)(byte_of(a[l], i, SA) * byte_of(b[l], i, SB));                          \
        d[l] = m >> l & 1 ? r : d[l];                                                              \
    }
    if (op->flags & OP_SIGNED_A) {
        if (op->flags & OP_SIGNED_B) DOT4(1, 1) else DOT4(1, 0)
    } else {
        if (op->flags & OP_SIGNED_B) DOT4(0, 1) else DOT4(0, 0)
    }
#undef DOT4
    return op + 1;
}
/* op->kind: 1 = the high two bytes of b */
static const struct op *lane_DP2A(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    const uint32_t sa = op->flags & OP_SIGNED_A, sb = op->flags & OP_SIGNED_B;
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint32_t r = c[l];
        for (uint32_t i = 0; i < 2; i++) {
            const int32_t x = sa ? (int16_t)(a[l] >> 16 * i) : (int32_t)(a[l] >> 16 * i & 0xffff);
            r += (uint32_t)(x * byte_of(b[l], i + 2u * (op->kind & 1), sb));
        }
        d[l] = r;
    }
    return op + 1;
}

/* Add and subtract with the condition code. op->kind: 1 = carry in, 2 = carry out. */
#define LANE_CARRY(NAME, S, U, SUM, OUT)                                                           \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        S *d = out_place(w, op->d);                                                                \
        const S *pa = in_place(w, op->a), *pb = in_place(w, op->b);                                \
        for (uint32_t m = w->exec; m; m &= m - 1) {                                                \
            const uint32_t l = first_lane(m);                                                      \
            const wide_unsigned a = (U)pa[l], b = (U)pb[l];                                        \
            const wide_unsigned in = op->kind & 1 ? w->carry >> l & 1 : 0;                         \
            const wide_unsigned sum = SUM;                                                         \
            d[l] = (U)sum;                                                                         \
            if (op->kind & 2) w->carry = (w->carry & ~(1u << l)) | (uint32_t)((OUT)&1) << l;       \
        }                                                                                          \
        return op + 1;                                                                             \
    }
LANE_CARRY(ADDC_32, u32x, uint32_t, a + b + in, sum >> 32)
LANE_CARRY(ADDC_64, u64x, uint64_t, a + b + in, sum >> 64)
LANE_CARRY(SUBC_32, u32x, uint32_t, a - b - in, sum >> 32)
LANE_CARRY(SUBC_64, u64x, uint64_t, a - b - in, sum >> 64)

/* mad with the condition code; op->kind as above, and 4 = the upper half of the product. */
static const struct op *lane_MADC_32(struct warp *w, const struct op *op) {
    u32x *d = out_place(w, op->d);
    const u32x *a = in_place(w, op->a), *b = in_place(w, op->b), *c = in_place(w, op->c);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        uint64_t product = (uint64_t)a[l] * b[l];
        if (op->flags & OP_SIGNED) product = (uint64_t)((int64_t)(int32_t)a[l] * (int32_t)b[l]);
        const uint64_t half = op->kind & 4 ? product >> 32 : product & 0xffffffffu;
        const uint64_t sum = half + c[l] + (op->kind & 1 ? w->carry >> l & 1 : 0);
        d[l] = (uint32_t)sum;
        if (op->kind & 2) w->carry = (w->carry & ~(1u << l)) | (uint32_t)(sum >> 32 & 1) << l;
    }
    return op + 1;
}

#define LANE_PRED(NAME, EXPR)                                                                      \
    static const struct op *lane_##NAME(struct warp *w, const struct op *op) {                     \
        const uint32_t a = pred_in(w, op->a) ^ (op->flags & OP_NEGATE_A ? ~0u : 0);                \
        const uint32_t b = pred_in(w, op->b) ^ (op->flags & OP_NEGATE_B ? ~0u : 0);                \
        (void)b;                                                                                   \
        pred_out(w, op->d, w->exec, EXPR);                                                         \
        return op + 1;                                                                             \
    }
LANE_PRED(MOV_PRED, a)
LANE_PRED(AND_PRED, a &b)
LANE_PRED(OR_PRED, a | b)
LANE_PRED(XOR_PRED, a ^ b)
LANE_PRED(NOT_PRED, ~a)

static const struct op *lane_SELP_128(struct warp *w, const struct op *op) {
    const uint32_t p = pred_in(w, op->c) ^ (op->flags & OP_NEGATE_C ? ~0u : 0);
    for (uint32_t m = w->exec; m; m &= m - 1) {
        const uint32_t l = first_lane(m);
        for (uint32_t half = 0; half < 2; half++) {
            const u64x *from = in_place(w, p >> l & 1 ? op->a : op->b);
            ((u64x *)out_place(w, op->d))[half * LANES + l] = from[half * LANES + l];
        }
    }
    return op + 1;
}

#endif
