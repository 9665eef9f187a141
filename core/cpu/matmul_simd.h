/* matmul_simd.h: the tile kernels, written once over vectors of LANES outputs. Included at the end
 * of each instruction set's file, which defines before it: LANES                     16, 8 or 4; a
 * panel is done in 16 / LANES passes vf vi vb vh               float, int32, uint8 and uint16
 * vectors of 4 * LANES bytes v_load v_fma v_f16 v_u8 v_table v_to_float v_broadcast_f v_broadcast_i
 *   struct wide, wide_set     the unpacked weights of a block, as v_dot wants them
 *   v_dot_quad(format, signed, w, t, pass, x, v)
 *                             v + the products of quad t with the block at x
 *   DOT_PASSES(format)        2: pass 0 multiplies the high bytes, pass 1 the low ones; 1: whole
 * values
 *   ROWS_AT_ONCE(n)           of a tile of n rows (1, 2, 4, 8), those whose sums are kept in
 *                             registers together; >= n / 4
 *   PASSES_TOGETHER(n)        whether the registers hold two sums of each: short chains, and no
 *                             weight waits in a register; else low bytes come after high ones
 *   SIGNED_BYTES(format)      whether 8-bit weights are handed to wide_set as int8 (u ^ 0x80)
 *   kernels_quantise_row      the table's quantiser
 *   KERNELS, KERNELS_NAME     the table to define
 * Everything is inlined with the format, the class and the row count constant.
 */
#include <string.h>

#include "core/check.h"

#define INLINE static inline __attribute__((always_inline))

#define EACH4(X, first) X(first) X((first) + 1) X((first) + 2) X((first) + 3)
#define EACH8(X)        EACH4(X, 0) EACH4(X, 4)

/* Bytes shifted left (n > 0) or right; the bits that cross bytes are for the caller to mask. */
INLINE vb v_shift(vb v, int n) {
    if (n > 0) return (vb)((vh)v << n);
    if (n < 0) return (vb)((vh)v >> -n);
    return v;
}

INLINE bool has_nibbles(enum tensor_type type) {
    return type != TENSOR_Q8_0 && type != TENSOR_Q2_K && type != TENSOR_Q3_K;
}

static const uint8_t iq4_table[16] = {IQ4_TABLE};
static const uint8_t mxfp4_table[16] = {MXFP4_TABLE};

/* Quad t of the block at q. */
INLINE vb unpack_quad(enum tensor_type type, const uint8_t *q, int t) {
    if (type == TENSOR_Q8_0) return v_load(q + 64 * t);
    vb u;
    if (has_nibbles(type)) {
        u = v_shift(v_load(q + 64 * (t % 4)), t < 4 ? 0 : -4) & 15;
    } else {
        u = v_shift(v_load(q + 64 * (t / 4)), -2 * (t % 4)) & 3;
    }
    switch (type) {
    case TENSOR_Q3_K:
        return u | (v_shift(v_load(q + 128), 2 - t) & 4);
    case TENSOR_Q5_0:
    case TENSOR_Q5_1:
    case TENSOR_Q5_K:
        return u | (v_shift(v_load(q + 256), 4 - t) & 16);
    case TENSOR_Q6_K:
        return u | (v_shift(v_load(q + 256 + 64 * (t / 4)), 4 - 2 * (t % 4)) & 48);
    case TENSOR_IQ4_NL:
    case TENSOR_IQ4_XS:
        return v_table(iq4_table, u);
    case TENSOR_MXFP4:
        return v_table(mxfp4_table, u);
    default:
        return u;
    }
}

INLINE void unpack(enum tensor_type type, enum activation_format format, const uint8_t *q,
                   struct wide *w) {
    const bool flip = SIGNED_BYTES(format) && packed_layout(type).offset_shift == 0;
#define X(t)                                                                                       \
    {                                                                                              \
        const vb u = unpack_quad(type, q, t);                                                      \
        wide_set(w, format, t, flip ? u ^ 0x80 : u);                                               \
    }
    EACH8(X)
#undef X
}

/* As struct block32_scales; rest is set, and read, for split scales only. */
struct scales {
    vf dw[2], mw[2], rest;
};

/* The F16 scale of a unit at s (already moved to the first lane of this pass: bytes arrays begin at
 * s + offset + lane, halves at s + offset + 2 lane). */
INLINE vf unit_scale(enum tensor_type type, const uint8_t *s, int lane) {
    return type == TENSOR_MXFP4 ? (vf){0} : v_f16(s + 2 * lane);
}

INLINE vf scaled(vf d, vi scale) {
    return d * v_to_float(scale);
}

INLINE void block_scales(enum tensor_type type, const uint8_t *s, int lane, uint32_t g, vf d, vf m,
                         struct scales *out) {
    s += lane;
    switch (type) {
    case TENSOR_Q4_K:
    case TENSOR_Q5_K: {
        const vi low = v_u8(s + 64 + 16 * g);
        const vi head = v_u8(s + 192 + g / 2 * 16) >> (int)(4 * (g % 2));
        out->dw[0] = scaled(d, (low & 15) | (head & 3) << 4);
        out->mw[0] = -scaled(m, low >> 4 | (head & 12) << 2);
        break;
    }
    case TENSOR_Q2_K: {
        const vi a = v_u8(s + 64 + 32 * g), b = v_u8(s + 80 + 32 * g);
        out->dw[0] = scaled(d, a & 15);
        out->mw[0] = -scaled(m, a >> 4);
        out->dw[1] = scaled(d, b & 15);
        out->mw[1] = -scaled(m, b >> 4);
        break;
    }
    case TENSOR_Q3_K: {
        const vi low = v_u8(s + 32 + 16 * g);
        const vi head = v_u8(s + 160 + g / 2 * 16) >> (int)(4 * (g % 2));
        out->dw[0] = scaled(d, ((low & 15) | (head & 3) << 4) - 32);
        out->dw[1] = scaled(d, (low >> 4 | (head & 12) << 2) - 32);
        break;
    }
    case TENSOR_Q6_K:
        out->dw[0] = scaled(d, (v_u8(s + 32 + 32 * g) ^ 128) - 128);
        out->dw[1] = scaled(d, (v_u8(s + 48 + 32 * g) ^ 128) - 128);
        break;
    case TENSOR_IQ4_XS: {
        const vi low = v_u8(s + 32 + g / 2 * 16) >> (int)(4 * (g % 2));
        const vi head = v_u8(s + 96 + g / 4 * 16) >> (int)(2 * (g % 4));
        out->dw[0] = scaled(d, ((low & 15) | (head & 3) << 4) - 32);
        break;
    }
    case TENSOR_MXFP4: {
        const vi e = v_u8(s);
        const vi least = (e < MXFP4_SPLIT);
        out->dw[0] = (vf)((((least & MXFP4_SPLIT) | (~least & e)) - 1) << 23);
        out->rest = (vf)((((least & e) | (~least & MXFP4_SPLIT)) + (127 - MXFP4_SPLIT)) << 23);
        break;
    }
    default:
        out->dw[0] = d;
        out->mw[0] = m;
    }
}

/* Rows at one block, with the multiples of their distance that no addressing mode makes. */
struct rows_at {
    const uint8_t *x;
    size_t stride, stride3, stride5, stride7;
};
INLINE const uint8_t *row_at(const struct rows_at *a, const uint32_t r) {
    return a->x + (r == 3   ? a->stride3
                   : r == 5 ? a->stride5
                   : r == 6 ? 2 * a->stride3
                   : r == 7 ? a->stride7
                            : r * a->stride);
}
#ifndef v_dot_row
/* v + the products of quad t with row r. */
#define v_dot_row(format, is_signed, w, t, pass, rows, r, v)                                       \
    v_dot_quad(format, is_signed, w, t, pass, row_at(rows, r), v)
#endif

/* What a scale sub-block's sums become, for one row whose activation_sums are at `field`: the
 * offset that its products are to be corrected by, the scale and the sum that meet dw and mw. */
struct row_terms {
    vi offset;
    vf scale, sum;
};
INLINE struct row_terms row_terms(const bool halves, const bool has_min, const bool has_offset,
                                  const int offset_shift, const int sub, const uint8_t *field) {
    struct row_terms t;
    vi sum = (vi){0};
    if (halves || has_offset) {
        const size_t whole = offsetof(struct activation_sums, offset);
        const size_t low = offsetof(struct activation_sums, offset_low);
        sum = v_broadcast_i(field + (halves && sub == 0 ? low : whole));
        if (halves && sub == 1) sum = sum - v_broadcast_i(field + low);
    }
    t.offset = has_offset ? sum >> offset_shift : sum;
    t.scale = v_broadcast_f(field + offsetof(struct activation_sums, scale));
    t.sum = !has_min ? t.scale
            : halves ? t.scale * v_to_float(-(sum >> 7))
                     : v_broadcast_f(field + offsetof(struct activation_sums, scaled_sum));
    return t;
}

/* v[r] += the products of quads [first, last) with rows [r0, r1): quad by quad over all rows, so
 * that as many chains of additions run side by side as there are rows. */
INLINE void dot_pass(enum activation_format format, bool is_signed, const struct wide *w,
                     const int first, const int last, const int pass, const struct rows_at *rows,
                     const uint32_t r0, const uint32_t r1, vi *v) {
#define ROW(r, t)                                                                                  \
    if ((r) >= r0 && (r) < r1) v[r] = v_dot_row(format, is_signed, w, t, pass, rows, r, v[r]);
#define X(t)                                                                                       \
    if ((t) >= first && (t) < last) {                                                              \
        ROW(0, t) ROW(1, t) ROW(2, t) ROW(3, t) ROW(4, t) ROW(5, t) ROW(6, t) ROW(7, t)            \
    }
    EACH8(X)
#undef X
#undef ROW
}

/* The same over the high and the low bytes at once, into two sums a row; quads are unpacked as they
 * are met, two of a vector of nibbles one after the other. */
INLINE void dot_both(enum tensor_type type, enum activation_format format, bool is_signed,
                     const uint8_t *q, const int sub, const struct rows_at *rows, const uint32_t r0,
                     const uint32_t r1, vi *high, vi *low) {
    const bool halves = packed_layout(type).halves;
#define ROW(r, t)                                                                                  \
    if ((r) >= r0 && (r) < r1) {                                                                   \
        high[r] = v_dot_row(format, is_signed, &w, t, 0, rows, r, high[r]);                        \
        if (DOT_PASSES(format) == 2)                                                               \
            low[r] = v_dot_row(format, is_signed, &w, t, 1, rows, r, low[r]);                      \
    }
#define QUAD(t)                                                                                    \
    {                                                                                              \
        struct wide w;                                                                             \
        const vb u = unpack_quad(type, q, t);                                                      \
        wide_set(&w, format, t, is_signed ? u ^ 0x80 : u);                                         \
        ROW(0, t) ROW(1, t) ROW(2, t) ROW(3, t) ROW(4, t) ROW(5, t) ROW(6, t) ROW(7, t)            \
    }
    if (!halves) {
        QUAD(0) QUAD(4) QUAD(1) QUAD(5) QUAD(2) QUAD(6) QUAD(3) QUAD(7)
    } else if (sub == 0) {
        QUAD(0) QUAD(1) QUAD(2) QUAD(3)
    } else {
        QUAD(4) QUAD(5) QUAD(6) QUAD(7)
    }
#undef QUAD
#undef ROW
}

/* One scale sub-block of rows [r0, r1), of the block at q whose unpacked weights are w. */
INLINE void rows_sub_block(enum tensor_type type, enum activation_format format, const int sub,
                           const bool together, const uint8_t *q, const struct wide *w,
                           const struct scales *s, const struct rows_at *rows, const uint32_t r0,
                           const uint32_t r1, vf *acc) {
    const struct packed_layout l = packed_layout(type);
    const bool is_signed = SIGNED_BYTES(format) && l.offset_shift == 0;
    const bool has_offset = l.offset_shift < 8 && !is_signed;
    const int first = l.halves ? 4 * sub : 0, last = l.halves ? first + 4 : 8;
    const bool two = DOT_PASSES(format) == 2;
    vi high[8], low[8];
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define X(r)                                                                                       \
    if ((r) >= r0 && (r) < r1) high[r] = low[r] = (vi){0};
    EACH_ROW(X)
#undef X
    if (together) {
        dot_both(type, format, is_signed, q, sub, rows, r0, r1, high, low);
    } else {
        dot_pass(format, is_signed, w, first, last, 0, rows, r0, r1, high);
#define X(r)                                                                                       \
    if (two && (r) >= r0 && (r) < r1) low[r] = high[r] << 8;
        EACH_ROW(X)
#undef X
        if (two) dot_pass(format, is_signed, w, first, last, 1, rows, r0, r1, low);
    }
#define X(r)                                                                                       \
    if ((r) >= r0 && (r) < r1) {                                                                   \
        const uint8_t *field = row_at(rows, r) + (format == ACTIVATION_INT16 ? 64 : 32);           \
        const struct row_terms k =                                                                 \
            row_terms(l.halves, l.has_min, has_offset, l.offset_shift, sub, field);                \
        vi product = !two ? high[r] : together ? (high[r] << 8) + low[r] : low[r];                 \
        if (has_offset) product = product + k.offset;                                              \
        vf sum = v_to_float(product);                                                              \
        if (l.split_scale) sum = s->rest * sum;                                                    \
        acc[r] = v_fma(s->dw[sub] * k.scale, sum, acc[r]);                                         \
        if (l.has_min) acc[r] = v_fma(s->mw[sub], k.sum, acc[r]);                                  \
    }
    EACH_ROW(X)
#undef X
#undef EACH_ROW
}

INLINE vf first_acc(const struct matmul_tile *t, int lane) {
    float bias[LANES] = {0};
    vf acc;
    if (t->bias && (int)t->n_valid > lane) {
        const int n = (int)t->n_valid - lane < LANES ? (int)t->n_valid - lane : LANES;
        memcpy(bias, t->bias + lane, (size_t)n * sizeof(float));
    }
    memcpy(&acc, bias, sizeof acc);
    return acc;
}

INLINE void store(const struct matmul_tile *t, int lane, uint32_t r, vf acc) {
    float *out = t->out + r * t->out_stride + lane;
    const int n = (int)t->n_valid - lane;
    if (n >= LANES) {
        memcpy(out, &acc, sizeof acc);
    } else if (n > 0) {
        memcpy(out, &acc, (size_t)n * sizeof(float));
    }
}

/* Weights are asked for in address order, this far ahead of an even walk through the panel, beyond
 * the scale plane. Asking for the two planes as two streams reads a fifth slower (36 against 45
 * GB/s on a Zen 5). */
enum { PREFETCH_BYTES = 7168 };

INLINE void tile_int(enum tensor_type type, enum activation_format format, uint32_t n_rows,
                     const struct matmul_tile *t) {
    const struct packed_layout l = packed_layout(type);
    const size_t x_bytes = activation_block_bytes(format);
    const uint32_t n_units = t->m->k / 32 / l.unit_blocks;
    const size_t scale_plane_bytes = packed_scale_plane_bytes(type, t->m->k);
    const int step_bytes = l.quant_bytes + l.scale_bytes / l.unit_blocks;
    const uint8_t *panel = packed_panel(t->m, t->panel);
    for (int lane = 0; lane < PANEL_ROWS && lane < (int)t->n_valid; lane += LANES) {
        const uint8_t *s = panel;
        const uint8_t *q = panel + scale_plane_bytes;
        const uint8_t *ahead = q + PREFETCH_BYTES;
        struct rows_at rows = {t->x, t->row_bytes, 3 * t->row_bytes, 5 * t->row_bytes,
                               7 * t->row_bytes};
        const vf start = first_acc(t, lane);
        vf acc[8] = {start, start, start, start, start, start, start, start};
        for (uint32_t unit = 0; unit < n_units; unit++, s += l.scale_bytes) {
            const vf d = unit_scale(type, s, lane);
            const vf m = l.has_min ? v_f16(s + 32 + 2 * lane) : d;
            for (uint32_t g = 0; g < l.unit_blocks; g++, q += l.quant_bytes, rows.x += x_bytes) {
                struct scales scales;
#pragma GCC unroll 9
                for (int i = 0; i < step_bytes; i += 64) {
                    if (lane == 0) __builtin_prefetch(ahead + i);
                }
                ahead += step_bytes;
                block_scales(type, s, lane, g, d, m, &scales);
                struct wide w;
                if (!PASSES_TOGETHER(n_rows)) unpack(type, format, q + 4 * lane, &w);
#define X(i)                                                                                       \
    if ((i)*ROWS_AT_ONCE(n_rows) < n_rows) {                                                       \
        const uint32_t r0 = (i)*ROWS_AT_ONCE(n_rows);                                              \
        const uint32_t r1 =                                                                        \
            n_rows - r0 < ROWS_AT_ONCE(n_rows) ? n_rows : r0 + ROWS_AT_ONCE(n_rows);               \
        rows_sub_block(type, format, 0, PASSES_TOGETHER(n_rows), q + 4 * lane, &w, &scales, &rows, \
                       r0, r1, acc);                                                               \
        if (l.halves)                                                                              \
            rows_sub_block(type, format, 1, PASSES_TOGETHER(n_rows), q + 4 * lane, &w, &scales,    \
                           &rows, r0, r1, acc);                                                    \
    }
                EACH4(X, 0)
#undef X
            }
        }
#define X(r)                                                                                       \
    if ((r) < n_rows) store(t, lane, r, acc[r]);
        EACH8(X)
#undef X
    }
}

/* Weights of block b as floats, LANES outputs each: w[i] is weight 32 b + i. */
INLINE void quantised_floats(enum tensor_type type, const struct packed_matrix *m,
                             const uint8_t *panel, int lane, uint32_t b, vf *w) {
    const struct packed_layout l = packed_layout(type);
    const uint8_t *s = panel + (size_t)(b / l.unit_blocks) * l.scale_bytes;
    const uint8_t *q = panel + packed_scale_plane_bytes(type, m->k) + (size_t)b * l.quant_bytes;
    const vf d = unit_scale(type, s, lane);
    struct scales scales;
    block_scales(type, s, lane, b % l.unit_blocks, d, l.has_min ? v_f16(s + 32 + 2 * lane) : d,
                 &scales);
#define X(t)                                                                                       \
    {                                                                                              \
        const vi u = (vi)unpack_quad(type, q + 4 * lane, t);                                       \
        const int h = l.halves ? (t) / 4 : 0;                                                      \
        for (int i = 0; i < 4; i++) {                                                              \
            const vi integer = ((u >> (8 * i)) & 255) - (128 >> l.offset_shift);                   \
            vf product = v_to_float(integer);                                                      \
            if (l.split_scale) product = scales.rest * product;                                    \
            product = scales.dw[h] * product;                                                      \
            w[4 * (t) + i] = l.has_min ? product + scales.mw[h] : product;                         \
        }                                                                                          \
    }
    EACH8(X)
#undef X
}

/* The quantised types go through a copy of the block as floats, w; the others are read in place. */
static void block_floats(const struct packed_matrix *m, const uint8_t *panel, int lane, uint32_t b,
                         vf *w) {
    switch (m->type) {
#define X(type)                                                                                    \
    case type:                                                                                     \
        quantised_floats(type, m, panel, lane, b, w);                                              \
        break;
        QUANTISED_TYPES(X)
#undef X
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_TYPE_COUNT:
        CHECK(!"a block format");
    }
}

enum { FLOAT_PREFETCH_BYTES = 4096 };

/* `type`: F32, F16, BF16, or TENSOR_TYPE_COUNT for all others. */
INLINE void tile_float(enum tensor_type type, uint32_t n_rows, const struct matmul_tile *t) {
    const uint32_t k = t->m->k;
    const size_t row_bytes = t->row_bytes;
    const int element_bytes = type == TENSOR_F32 ? 4 : 2;
    const uint8_t *panel = packed_panel(t->m, t->panel);
    for (int lane = 0; lane < PANEL_ROWS && lane < (int)t->n_valid; lane += LANES) {
        const uint8_t *x = t->x;
        const uint8_t *p = panel + element_bytes * lane;
        const vf start = first_acc(t, lane);
        vf acc[8] = {start, start, start, start, start, start, start, start};
        for (uint32_t b = 0; b * 32 < k; b++) {
            const uint32_t n = k - b * 32 < 32 ? k - b * 32 : 32;
            vf w[32];
            if (type == TENSOR_TYPE_COUNT) block_floats(t->m, panel, lane, b, w);
            vf sum[8] = {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};
#pragma GCC unroll 4
            for (uint32_t i = 0; i < n; i++, x += 4, p += element_bytes * PANEL_ROWS) {
                const vf wi = type == TENSOR_F32    ? (vf)v_load(p)
                              : type == TENSOR_F16  ? v_f16(p)
                              : type == TENSOR_BF16 ? v_bf16(p)
                                                    : w[i];
                if (type != TENSOR_TYPE_COUNT) __builtin_prefetch(p + FLOAT_PREFETCH_BYTES);
#define X(r)                                                                                       \
    if ((r) < n_rows) sum[r] = v_fma(wi, v_broadcast_f(x + (r)*row_bytes), sum[r]);
                EACH8(X)
#undef X
            }
#define X(r)                                                                                       \
    if ((r) < n_rows) acc[r] = acc[r] + sum[r];
            EACH8(X)
#undef X
        }
#define X(r)                                                                                       \
    if ((r) < n_rows) store(t, lane, r, acc[r]);
        EACH8(X)
#undef X
    }
}

/* One function for each (type, class, row count), so that the compiler sees constants. */
#define INT_TILE(type, format, n)                                                                  \
    static                                                                                         \
        __attribute__((noinline)) void tile_##type##_##format##_##n(const struct matmul_tile *t) { \
        tile_int(type, format, n, t);                                                              \
    }
#define INT_TILES(type)                                                                            \
    INT_TILE(type, ACTIVATION_INT16, 1)                                                            \
    INT_TILE(type, ACTIVATION_INT16, 2)                                                            \
    INT_TILE(type, ACTIVATION_INT16, 4)                                                            \
    INT_TILE(type, ACTIVATION_INT16, 8)                                                            \
    INT_TILE(type, ACTIVATION_INT8, 1)                                                             \
    INT_TILE(type, ACTIVATION_INT8, 2)                                                             \
    INT_TILE(type, ACTIVATION_INT8, 4)                                                             \
    INT_TILE(type, ACTIVATION_INT8, 8)
QUANTISED_TYPES(INT_TILES)
#define FLOAT_TILE(type, n)                                                                        \
    static __attribute__((noinline)) void tile_float_##type##_##n(const struct matmul_tile *t) {   \
        tile_float(type, n, t);                                                                    \
    }
#define FLOAT_TILES(type)                                                                          \
    FLOAT_TILE(type, 1)                                                                            \
    FLOAT_TILE(type, 2)                                                                            \
    FLOAT_TILE(type, 4)                                                                            \
    FLOAT_TILE(type, 8)
FLOAT_TILES(TENSOR_F32)
FLOAT_TILES(TENSOR_F16)
FLOAT_TILES(TENSOR_BF16)
FLOAT_TILES(TENSOR_TYPE_COUNT)

#define BY_ROWS(type, format)                                                                      \
    [format] = {tile_##type##_##format##_1, tile_##type##_##format##_2,                            \
                tile_##type##_##format##_4, tile_##type##_##format##_8}
static matmul_tile_fn *const int_tiles[TENSOR_TYPE_COUNT][2][4] = {
#define X(type) [type] = {BY_ROWS(type, ACTIVATION_INT16), BY_ROWS(type, ACTIVATION_INT8)},
    QUANTISED_TYPES(X)
#undef X
};
#define FLOATS_BY_ROWS(type)                                                                       \
    { tile_float_##type##_1, tile_float_##type##_2, tile_float_##type##_4, tile_float_##type##_8 }
static matmul_tile_fn *const float_tiles[TENSOR_TYPE_COUNT][4] = {
    [TENSOR_F32] = FLOATS_BY_ROWS(TENSOR_F32),
    [TENSOR_F16] = FLOATS_BY_ROWS(TENSOR_F16),
    [TENSOR_BF16] = FLOATS_BY_ROWS(TENSOR_BF16),
#define X(type) [type] = FLOATS_BY_ROWS(TENSOR_TYPE_COUNT),
    QUANTISED_TYPES(X)
#undef X
};

static void kernels_tile(const struct matmul_tile *t) {
    const int rows = t->n_rows == 8 ? 3 : t->n_rows == 4 ? 2 : (int)t->n_rows - 1;
    if (t->format == ACTIVATION_F32) {
        float_tiles[t->m->type][rows](t);
    } else {
        int_tiles[t->m->type][t->format][rows](t);
    }
}

static void kernels_matmul(const struct packed_matrix *m, const struct activations *x,
                           const float *bias, uint32_t panel0, uint32_t panel1, float *out,
                           size_t out_stride) {
    matmul_tiles(kernels_tile, m, x, bias, panel0, panel1, out, out_stride);
}

static void kernels_quantise(const float *x, uint32_t k, enum activation_format format, void *dst) {
    if (format == ACTIVATION_F32) {
        memcpy(dst, x, k * sizeof *x);
        return;
    }
    CHECK(k % 32 == 0);
    if (format == ACTIVATION_INT16) {
        kernels_quantise_row(ACTIVATION_INT16, x, k / 32, dst);
    } else {
        kernels_quantise_row(ACTIVATION_INT8, x, k / 32, dst);
    }
}

INLINE uint64_t dots_of(enum activation_format format, uint64_t rounds) {
    uint8_t x[12 * 32] = {1};
    struct wide w = {0};
    /* As many chains of additions as hide the latency of two dots a cycle. */
    vi a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, m = a;
    for (uint64_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : : "r"(x), "r"(&w) : "memory");
#define DOT(v, r) v = v_dot_quad(format, false, &w, 0, 0, x + 32 * (r), v);
        DOT(a, 0)
        DOT(b, 1)
        DOT(c, 2)
        DOT(d, 3) DOT(e, 4) DOT(f, 5) DOT(g, 6) DOT(h, 7) DOT(i, 8) DOT(j, 9) DOT(k, 10) DOT(m, 11)
#undef DOT
    }
    vi sum = a + b + c + d + e + f + g + h + i + j + k + m;
    __asm__ volatile("" : : "r"(&sum) : "memory");
    return rounds * 12 * 4 * LANES / DOT_PASSES(format);
}

static uint64_t kernels_dots(enum activation_format format, uint64_t rounds) {
    if (format == ACTIVATION_INT8) return dots_of(ACTIVATION_INT8, rounds);
    return dots_of(ACTIVATION_INT16, rounds);
}

const struct matmul_kernels KERNELS = {.name = KERNELS_NAME,
                                       .quantise = kernels_quantise,
                                       .matmul = kernels_matmul,
                                       .dots = kernels_dots};
