/* lane_matrix.h: mma.sync, fragments as the PTX ISA (9.7.15) lays them out over the lanes.
 *
 * Integer sums are exact (modulo 2^32, or clamped with .satfinite). Floating-point ones start from
 * c and add the products in order of k with fmaf; a GPU sums in an order of its own, so its last
 * bits differ.
 * See lane_macros.h.
 */
#ifndef LAC_TESTS_SOFTGPU_LANE_MATRIX_H
#define LAC_TESTS_SOFTGPU_LANE_MATRIX_H

#include "tests/softgpu/lane_convert.h"
#include "tests/softgpu/matrix.h"

struct matrix_shape {
    uint32_t m, k, per_register; /* elements of k in a 32-bit register */
    uint32_t n_d, n_a, n_b;
};

static const struct matrix_shape matrix_shapes[MATRIX_KINDS] = {
    [MATRIX_S8_K32] = {16, 32, 4, 4, 4, 2}, [MATRIX_S8_K16] = {16, 16, 4, 4, 2, 1},
    [MATRIX_S8_M8] = {8, 16, 4, 2, 1, 1},   [MATRIX_F16_K16] = {16, 16, 2, 4, 4, 2},
    [MATRIX_F16_K8] = {16, 8, 2, 4, 2, 1},  [MATRIX_BF16_K16] = {16, 16, 2, 4, 4, 2},
    [MATRIX_BF16_K8] = {16, 8, 2, 4, 2, 1}, [MATRIX_TF32_K8] = {16, 8, 1, 4, 4, 2},
    [MATRIX_TF32_K4] = {16, 4, 1, 4, 2, 1},
};

enum { COLUMNS = 8 };

/* Register r of A in lane t holds row t/4 (+ 8 for odd r of the 16-row shapes), and the elements of
 * k from per_register * (t%4 + 4 * (r / 2)) on. B's register r in lane t: column t/4, k likewise.
 */
static void place_a(const struct matrix_shape *s, uint32_t r, uint32_t t, uint32_t *row,
                    uint32_t *k) {
    *row = t / 4 + (s->m == 16 ? 8 * (r % 2) : 0);
    *k = s->per_register * (t % 4 + 4 * (s->m == 16 ? r / 2 : r));
}
/* Register r of C and D: row t/4 (+ 8 for r >= 2), column 2 (t%4) + r%2. */
static void place_c(uint32_t r, uint32_t t, uint32_t *row, uint32_t *column) {
    *row = t / 4 + 8 * (r / 2);
    *column = 2 * (t % 4) + r % 2;
}

static float element(uint32_t kind, uint32_t v, uint32_t i) {
    switch (kind) {
    case MATRIX_F16_K16:
    case MATRIX_F16_K8:
        return f16_to_f32(v >> 16 * i & 0xffff);
    case MATRIX_BF16_K16:
    case MATRIX_BF16_K8:
        return bf16_to_f32(v >> 16 * i & 0xffff);
    default:
        return bits_float(v & 0xffffe000u);
    }
}

static int16_t byte_value(uint32_t v, uint32_t i, bool is_signed) {
    const uint8_t b = (uint8_t)(v >> 8 * i);
    return (int16_t)(is_signed ? (int8_t)b : (int16_t)b);
}

static void multiply_bytes(const struct matrix_shape *s, const struct op *op,
                           const u32x *const *reg, int32_t c[16][COLUMNS]) {
    /* k is padded to 32 with zeros, so that the loop below has a fixed length */
    int16_t a[16][32] = {{0}}, b[COLUMNS][32] = {{0}};
    for (uint32_t r = 0; r < s->n_a; r++)
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, k;
            place_a(s, r, t, &row, &k);
            for (uint32_t i = 0; i < 4; i++)
                a[row][k + i] = byte_value(reg[s->n_d + r][t], i, op->flags & OP_SIGNED_A);
        }
    for (uint32_t r = 0; r < s->n_b; r++)
        for (uint32_t t = 0; t < LANES; t++)
            for (uint32_t i = 0; i < 4; i++)
                b[t / 4][4 * (t % 4 + 4 * r) + i] =
                    byte_value(reg[s->n_d + s->n_a + r][t], i, op->flags & OP_SIGNED_B);
    for (uint32_t row = 0; row < s->m; row++)
        for (uint32_t column = 0; column < COLUMNS; column++) {
            int32_t sum = 0; /* at most 32 * 255 * 255 */
            for (uint32_t k = 0; k < 32; k++) sum += a[row][k] * b[column][k];
            const int64_t exact = (int64_t)c[row][column] + sum;
            if (op->flags & OP_SAT)
                c[row][column] = (int32_t)(exact > INT32_MAX   ? INT32_MAX
                                           : exact < INT32_MIN ? INT32_MIN
                                                               : exact);
            else
                c[row][column] = (int32_t)(uint32_t)exact;
        }
}

static void multiply_floats(const struct matrix_shape *s, const struct op *op,
                            const u32x *const *reg, float c[16][COLUMNS]) {
    float a[16][16], b[16][COLUMNS]; /* b by k first: the sums of a row run side by side */
    for (uint32_t r = 0; r < s->n_a; r++)
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, k;
            place_a(s, r, t, &row, &k);
            for (uint32_t i = 0; i < s->per_register; i++)
                a[row][k + i] = element(op->kind, reg[s->n_d + r][t], i);
        }
    for (uint32_t r = 0; r < s->n_b; r++)
        for (uint32_t t = 0; t < LANES; t++)
            for (uint32_t i = 0; i < s->per_register; i++)
                b[s->per_register * (t % 4 + 4 * r) + i][t / 4] =
                    element(op->kind, reg[s->n_d + s->n_a + r][t], i);
    for (uint32_t row = 0; row < s->m; row++)
        for (uint32_t k = 0; k < s->k; k++)
            for (uint32_t column = 0; column < COLUMNS; column++)
                c[row][column] = fmaf(a[row][k], b[k][column], c[row][column]);
}

/* An element of D is undefined if anything it is made of is. */
static void spread_poison(struct warp *w, const struct matrix_shape *s, const struct op *op,
                          const int32_t *list, uint32_t n_d) {
    bool rows[16] = {false}, columns[COLUMNS] = {false};
    for (uint32_t r = 0; r < s->n_a; r++)
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, k;
            place_a(s, r, t, &row, &k);
            rows[row] |= poison_in(w, list[n_d + r])[t] & 15;
        }
    for (uint32_t r = 0; r < s->n_b; r++)
        for (uint32_t t = 0; t < LANES; t++)
            columns[t / 4] |= poison_in(w, list[n_d + s->n_a + r])[t] & 15;
    const bool half = op->type == PTX_F16;
    uint8_t poison[4][LANES] = {{0}};
    for (uint32_t r = 0; r < s->n_d; r++)
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, column;
            place_c(r, t, &row, &column);
            const uint32_t at = half ? r / 2 : r, part = half ? 3u << 2 * (r % 2) : 15;
            const uint8_t old = poison_in(w, list[n_d + s->n_a + s->n_b + at])[t];
            if (rows[row] || columns[column] || (old & part)) poison[at][t] |= (uint8_t)part;
        }
    for (uint32_t r = 0; r < n_d; r++) memcpy(poison_out(w, list[r]), poison[r], LANES);
}

static const struct op *lane_MMA(struct warp *w, const struct op *op) {
    static const u32x all[LANES] = {[0 ... LANES - 1] = ~0u};
    const struct op *next;
    const uint32_t lanes = warp_sync(w, op, all, &next);
    if (!lanes) return next;
    if (lanes != ~0u) {
        report(w, op, FINDING_WARP_SYNC, first_lane(lanes), 0,
               "only lanes %08x run an operation of the whole warp", lanes);
        return warp_abort(w, op);
    }
    const struct matrix_shape *s = &matrix_shapes[op->kind];
    const int32_t *list = w->image->places + op->list;
    const bool half = op->type == PTX_F16;
    const uint32_t n_d = half ? s->n_d / 2 : s->n_d;
    /* as multiply_* count them: D, A, B, C with D and C at full size */
    const u32x *reg[16] = {NULL};
    for (uint32_t i = 0; i < s->n_a + s->n_b; i++) reg[s->n_d + i] = in_place(w, list[n_d + i]);
    const int32_t *list_c = list + n_d + s->n_a + s->n_b;
    if (w->poison) spread_poison(w, s, op, list, n_d);
    union {
        int32_t i[16][COLUMNS];
        float f[16][COLUMNS];
    } c;
    for (uint32_t r = 0; r < s->n_d; r++) {
        const u32x *v = in_place(w, list_c[half ? r / 2 : r]);
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, column;
            place_c(r, t, &row, &column);
            if (half)
                c.f[row][column] = f16_to_f32(v[t] >> 16 * (r % 2) & 0xffff);
            else
                c.i[row][column] = (int32_t)v[t];
        }
    }
    if (s->per_register == 4)
        multiply_bytes(s, op, reg, c.i);
    else
        multiply_floats(s, op, reg, c.f);
    for (uint32_t r = 0; r < s->n_d; r++) {
        u32x *v = out_place(w, list[half ? r / 2 : r]);
        for (uint32_t t = 0; t < LANES; t++) {
            uint32_t row, column;
            place_c(r, t, &row, &column);
            if (half) {
                const uint32_t h = f32_to_f16(c.f[row][column]) << 16 * (r % 2);
                v[t] = r % 2 ? (v[t] & 0xffff) | h : h;
            } else {
                const uint32_t u = (uint32_t)c.i[row][column];
                const bool nan = s->per_register != 4 && (u & 0x7fffffffu) > 0x7f800000u;
                v[t] = nan ? 0x7fffffffu : u;
            }
        }
    }
    return op + 1;
}

#endif
