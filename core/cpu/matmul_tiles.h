/* matmul_tiles.h: products of sixteen rows and more on AMX tiles (Intel SDM volume 1, chapter 18).
 * Included by matmul_avx512.c behind its own kernels, which take fewer rows, F32 and the formats
 * with a scale for every 16 weights. Same bits: the tiles only make the exact integer sums.
 *
 * One step of the tile unit is a block of 32 weights: A, 16 rows x 32 signed bytes of activations
 * as they lie; B, 8 quads x 16 outputs x 4 unsigned bytes, which is what unpacking a block of a
 * panel gives; C, 16 x 16 sums. The scales of a block belong to its sums alone, so C goes through
 * memory after each block, and AVX-512 scales and adds it while the tile unit makes the next one.
 *
 * NO HARDWARE HAS RUN THIS: it was written on a machine without AMX. tests/core/test_tiles_avx512.c
 * runs it on tiles emulated in C, which checks the arithmetic and the shapes, not the encodings;
 * matmul_tiles_work tries those with a known product before the table is handed out.
 *
 * The tile instructions, unless the includer defines others. Assembly, because the intrinsics of
 * gcc 12 do not say which memory they read, so that stores before them are dropped.
 */
#include "core/check.h"

#ifndef TILE_LOAD
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg (%0)" : : "r"(config) : "memory")
#define TILE_RELEASE()         __asm__ volatile("tilerelease" : : : "memory")
#define TILE_ZERO(t)           __asm__ volatile("tilezero %%tmm" #t : : : "memory")
#define TILE_LOAD(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"(p), "r"((size_t)(stride))                                               \
                     : "memory")
/* c += a (signed) x b (unsigned). */
#define TILE_DOT(c, a, b)                                                                          \
    __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")
#endif

enum { TILE_ROWS = 16, TILE_BLOCKS = 16, TILE_MANY_ROWS = 64 };

struct tile_config { /* what LDTILECFG reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
/* Tiles 0, 1: sums over high and low bytes; 2, 3: the activations; 4: the weights. */
static const struct tile_config tile_config = {
    .palette = 1, .row_bytes = {64, 64, 32, 32, 64}, .rows = {16, 16, 16, 16, 8}};

struct tile_segment {
    uint8_t w[TILE_BLOCKS][8 * 64] __attribute__((aligned(64)));
    struct scales scales[TILE_BLOCKS];
};

/* Blocks [b0, b0 + n) of a panel; b0 and n are multiples of the blocks of a unit. */
INLINE void tile_unpack(enum tensor_type type, const struct packed_matrix *m, uint32_t panel,
                        uint32_t b0, uint32_t n, struct tile_segment *g) {
    const struct packed_layout l = packed_layout(type);
    const uint8_t *s = packed_panel(m, panel) + (size_t)(b0 / l.unit_blocks) * l.scale_bytes;
    const uint8_t *q =
        packed_panel(m, panel) + packed_scale_plane_bytes(type, m->k) + (size_t)b0 * l.quant_bytes;
    if (l.halves) return;
    for (uint32_t b = 0; b < n; s += l.scale_bytes) {
        const vf d = unit_scale(type, s, 0);
        const vf minimum = l.has_min ? v_f16(s + 32) : d;
        for (uint32_t i = 0; i < l.unit_blocks; i++, b++, q += l.quant_bytes) {
            block_scales(type, s, 0, i, d, minimum, &g->scales[b]);
#define X(t)                                                                                       \
    {                                                                                              \
        const vb u = unpack_quad(type, q, t);                                                      \
        memcpy(g->w[b] + 64 * (t), &u, sizeof u);                                                  \
    }
            EACH8(X)
#undef X
        }
    }
}

static void tile_unpack_any(const struct packed_matrix *m, uint32_t panel, uint32_t b0, uint32_t n,
                            struct tile_segment *g) {
    switch (m->type) {
#define X(type)                                                                                    \
    case type:                                                                                     \
        tile_unpack(type, m, panel, b0, n, g);                                                     \
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

INLINE void tile_sums(const bool two, const uint8_t *w, const uint8_t *x, size_t row_bytes,
                      int32_t sums[2][TILE_ROWS][PANEL_ROWS]) {
    TILE_LOAD(4, w, 64);
    TILE_ZERO(0);
    TILE_LOAD(2, x, row_bytes);
    TILE_DOT(0, 2, 4);
    if (two) {
        TILE_ZERO(1);
        TILE_LOAD(3, x + 32, row_bytes);
        TILE_DOT(1, 3, 4);
    }
    TILE_STORE(0, sums[0], 64);
    if (two) TILE_STORE(1, sums[1], 64);
}

/* acc[row][output] += n blocks' products with sixteen rows. */
INLINE void tile_group(const enum activation_format format, const bool has_min,
                       const bool split_scale, const struct tile_segment *g, uint32_t n,
                       int offset_shift, const uint8_t *x, size_t row_bytes, float *acc) {
    const bool two = format == ACTIVATION_INT16;
    const size_t x_bytes = activation_block_bytes(format);
    int32_t sums[2][2][TILE_ROWS][PANEL_ROWS] __attribute__((aligned(64)));
    vf total[TILE_ROWS];
    memcpy(total, acc, sizeof total);
    tile_sums(two, g->w[0], x, row_bytes, sums[0]);
    for (uint32_t b = 0; b < n; b++, x += x_bytes) {
        if (b + 1 < n) tile_sums(two, g->w[b + 1], x + x_bytes, row_bytes, sums[(b + 1) % 2]);
        const struct scales *s = &g->scales[b];
#pragma GCC unroll 16
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            vi high, low;
            memcpy(&high, sums[b % 2][0][r], sizeof high);
            if (two) memcpy(&low, sums[b % 2][1][r], sizeof low);
            const struct row_terms k = row_terms(false, has_min, !has_min, offset_shift, 0,
                                                 x + r * row_bytes + (two ? 64 : 32));
            vi product = two ? (high << 8) + low : high;
            if (!has_min) product = product + k.offset;
            vf sum = v_to_float(product);
            if (split_scale) sum = s->rest * sum;
            total[r] = v_fma(s->dw[0] * k.scale, sum, total[r]);
            if (has_min) total[r] = v_fma(s->mw[0], k.sum, total[r]);
        }
    }
    memcpy(acc, total, sizeof total);
}

typedef void tile_group_fn(const struct tile_segment *g, uint32_t n, int offset_shift,
                           const uint8_t *x, size_t row_bytes, float *acc);
#define TILE_GROUP(name, format, has_min, split_scale)                                             \
    static __attribute__((noinline)) void name(const struct tile_segment *g, uint32_t n,           \
                                               int offset_shift, const uint8_t *x,                 \
                                               size_t row_bytes, float *acc) {                     \
        tile_group(format, has_min, split_scale, g, n, offset_shift, x, row_bytes, acc);           \
    }
TILE_GROUP(tile_group_int16_min, ACTIVATION_INT16, true, false)
TILE_GROUP(tile_group_int16_offset, ACTIVATION_INT16, false, false)
TILE_GROUP(tile_group_int16_split, ACTIVATION_INT16, false, true)
TILE_GROUP(tile_group_int8_min, ACTIVATION_INT8, true, false)
TILE_GROUP(tile_group_int8_offset, ACTIVATION_INT8, false, false)
TILE_GROUP(tile_group_int8_split, ACTIVATION_INT8, false, true)

/* A format without an addend has an offset. */
static tile_group_fn *tile_group_of(struct packed_layout l, enum activation_format format) {
    const bool two = format == ACTIVATION_INT16;
    if (l.has_min) return two ? tile_group_int16_min : tile_group_int8_min;
    if (l.split_scale) return two ? tile_group_int16_split : tile_group_int8_split;
    return two ? tile_group_int16_offset : tile_group_int8_offset;
}

/* One panel of n_rows (a multiple of 16, at most TILE_MANY_ROWS) rows, bias and out at its first
 * output. */
static void tile_panel(const struct packed_matrix *m, uint32_t panel, const struct activations *x,
                       uint32_t row0, uint32_t n_rows, const float *bias, float *out,
                       size_t out_stride) {
    const struct packed_layout l = packed_layout(m->type);
    tile_group_fn *const group = tile_group_of(l, x->format);
    const uint32_t n_blocks = m->k / 32, left = m->n - panel * PANEL_ROWS;
    const uint32_t n_valid = left < PANEL_ROWS ? left : PANEL_ROWS;
    const uint8_t *rows = (const uint8_t *)x->data + row0 * x->row_bytes;
    struct tile_segment g;
    float acc[TILE_MANY_ROWS * PANEL_ROWS] __attribute__((aligned(64)));
    float start[PANEL_ROWS] = {0};
    if (bias != NULL) memcpy(start, bias, n_valid * sizeof *start);
    for (uint32_t r = 0; r < n_rows; r++) memcpy(acc + r * PANEL_ROWS, start, sizeof start);
    for (uint32_t b = 0; b < n_blocks; b += TILE_BLOCKS) {
        const uint32_t n = n_blocks - b < TILE_BLOCKS ? n_blocks - b : TILE_BLOCKS;
        tile_unpack_any(m, panel, b, n, &g);
        for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
            const uint8_t *at = rows + r * x->row_bytes + b * activation_block_bytes(x->format);
            group(&g, n, l.offset_shift, at, x->row_bytes, acc + r * PANEL_ROWS);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(out + r * out_stride, acc + r * PANEL_ROWS, n_valid * sizeof *out);
}

static void tiles_matmul(const struct packed_matrix *m, const struct activations *x,
                         const float *bias, uint32_t panel0, uint32_t panel1, float *out,
                         size_t out_stride) {
    const bool tiles = x->format != ACTIVATION_F32 && !packed_layout(m->type).halves;
    const uint32_t n_rows = tiles ? x->n_rows / TILE_ROWS * TILE_ROWS : 0;
    CHECK(matmul_activation_format(m->type, x->format) == x->format);
    CHECK(panel0 <= panel1 && panel1 <= m->n_panels && out_stride >= m->n);
    if (n_rows < x->n_rows) {
        struct activations rest = *x;
        rest.n_rows -= n_rows;
        rest.data = (const uint8_t *)x->data + n_rows * x->row_bytes;
        kernels_matmul(m, &rest, bias, panel0, panel1, out + n_rows * out_stride, out_stride);
    }
    if (n_rows == 0) return;
    TILE_CONFIGURE(&tile_config);
    for (uint32_t r = 0; r < n_rows; r += TILE_MANY_ROWS) {
        const uint32_t n = n_rows - r < TILE_MANY_ROWS ? n_rows - r : TILE_MANY_ROWS;
        for (uint32_t p = panel0; p < panel1; p++) {
            const size_t j = (size_t)p * PANEL_ROWS;
            tile_panel(m, p, x, r, n, bias != NULL ? bias + j : NULL, out + r * out_stride + j,
                       out_stride);
        }
    }
    TILE_RELEASE();
}

bool matmul_tiles_work(void) {
    uint8_t w[8 * 64];
    int8_t x[TILE_ROWS][64];
    int32_t sums[2][TILE_ROWS][PANEL_ROWS];
    for (int i = 0; i < 8 * 64; i++) w[i] = (uint8_t)(i * 37 + i / 64);
    for (int r = 0; r < TILE_ROWS; r++)
        for (int i = 0; i < 64; i++) x[r][i] = (int8_t)(r * 29 + i * 13 - 128);
    memset(sums, 0x55, sizeof sums);
    TILE_CONFIGURE(&tile_config);
    tile_sums(true, w, (const uint8_t *)x, sizeof x[0], sums);
    TILE_RELEASE();
    for (int p = 0; p < 2; p++)
        for (int r = 0; r < TILE_ROWS; r++)
            for (int j = 0; j < PANEL_ROWS; j++) {
                int32_t want = 0;
                for (int i = 0; i < 32; i++)
                    want += w[i / 4 * 64 + 4 * j + i % 4] * x[r][32 * p + i];
                if (sums[p][r][j] != want) return false;
            }
    return true;
}

const struct matmul_kernels matmul_amx = {
    .name = "amx", .quantise = kernels_quantise, .matmul = tiles_matmul, .dots = kernels_dots};
