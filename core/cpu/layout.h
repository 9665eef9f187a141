/* layout.h: where a packed matrix keeps its bits. Inside core/cpu only.
 *
 * A panel holds 16 output rows: the scale plane, padded to 64 bytes, then the quant plane (all
 * blocks of 32 weights, ascending). In the quant plane a "vector" is 64 bytes: byte 4 r + i belongs
 * to row r, so that one load gives every row four consecutive weights, the operand of VNNI, of sdot
 * and of an AMX tile row. Weights are unsigned: u = stored weight, or table value + offset; quad t
 * holds weights 4t .. 4t+3.
 *
 *   4 bits   vectors 0-3: quad t in the low nibbles of vector t, quad t + 4 in the high ones
 *   5th bit  one vector behind the nibbles: bit t of each byte is for quad t
 *   6 bits   two vectors behind the nibbles: quad t in vector t / 4, bits 2 (t % 4)
 *   2 bits   two vectors: quad t in vector t / 4, bits 2 (t % 4); Q3_K's third bit as the 5th above
 *   8 bits   eight vectors, quad t in vector t
 *
 * The scale plane has one unit per GGUF block (32 or 256 weights); each field is an array over the
 * 16 rows, F16 or bytes: Q4_0 Q5_0 Q8_0 IQ4_NL   d                 Q4_1 Q5_1   d, m MXFP4   e (one
 * byte) Q4_K Q5_K   d, dmin; 8 x {scale & 15 | (min & 15) << 4}; 4 x {top bits of scale, min of
 * block 2p, scale, min of block 2p + 1} Q2_K        d, dmin; 16 x {scale | min << 4} Q3_K        d;
 * 8 x {low nibbles of scales 2b, 2b + 1}; 4 x {top bits of scales 4p .. 4p + 3} Q6_K        d; 16 x
 * {scale} IQ4_XS      d; 4 x {low nibbles of scales 2p, 2p + 1}; 2 x {top bits of scales 4p .. 4p +
 * 3} F32, F16, BF16: one plane, [k][16 rows], values as stored.
 *
 * Quantised activations, per block of 32: INT16 32 bytes hi, 32 bytes lo; INT8 32 bytes; then
 * struct activation_sums. (The AVX2 table stores INT16 as 16-bit words instead; same size.)
 */
#ifndef LAC_CORE_CPU_LAYOUT_H
#define LAC_CORE_CPU_LAYOUT_H

#include "core/cpu/matmul.h"

struct packed_layout {
    uint16_t quant_bytes; /* per block of 32, of a panel */
    uint16_t scale_bytes; /* per unit, of a panel */
    uint8_t unit_blocks;  /* blocks of 32 per unit: 1 or 8 */
    uint8_t offset_shift; /* the offset of u is 128 >> this; 8: no offset */
    bool halves;          /* a scale for every 16 weights */
    bool has_min;
    bool split_scale; /* MXFP4_SPLIT */
};

static inline struct packed_layout packed_layout(enum tensor_type type) {
    switch (type) {
    case TENSOR_Q4_0:
        return (struct packed_layout){256, 32, 1, 4, false, false, false};
    case TENSOR_Q4_1:
        return (struct packed_layout){256, 64, 1, 8, false, true, false};
    case TENSOR_Q5_0:
        return (struct packed_layout){320, 32, 1, 3, false, false, false};
    case TENSOR_Q5_1:
        return (struct packed_layout){320, 64, 1, 8, false, true, false};
    case TENSOR_Q8_0:
        return (struct packed_layout){512, 32, 1, 0, false, false, false};
    case TENSOR_Q2_K:
        return (struct packed_layout){128, 320, 8, 8, true, true, false};
    case TENSOR_Q3_K:
        return (struct packed_layout){192, 224, 8, 5, true, false, false};
    case TENSOR_Q4_K:
        return (struct packed_layout){256, 256, 8, 8, false, true, false};
    case TENSOR_Q5_K:
        return (struct packed_layout){320, 256, 8, 8, false, true, false};
    case TENSOR_Q6_K:
        return (struct packed_layout){384, 288, 8, 2, true, false, false};
    case TENSOR_IQ4_NL:
        return (struct packed_layout){256, 32, 1, 0, false, false, false};
    case TENSOR_IQ4_XS:
        return (struct packed_layout){256, 128, 8, 0, false, false, false};
    case TENSOR_MXFP4:
        return (struct packed_layout){256, 16, 1, 3, false, false, true};
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_TYPE_COUNT:
        break;
    }
    return (struct packed_layout){0};
}

static inline size_t packed_scale_plane_bytes(enum tensor_type type, uint32_t k) {
    const struct packed_layout l = packed_layout(type);
    return ((size_t)(k / 32 / l.unit_blocks) * l.scale_bytes + 63) & ~(size_t)63;
}

static inline bool tensor_is_float(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

/* X(type): the block formats, those with integer kernels. */
#define QUANTISED_TYPES(X)                                                                         \
    X(TENSOR_Q4_0)                                                                                 \
    X(TENSOR_Q4_1)                                                                                 \
    X(TENSOR_Q5_0)                                                                                 \
    X(TENSOR_Q5_1)                                                                                 \
    X(TENSOR_Q8_0)                                                                                 \
    X(TENSOR_Q2_K)                                                                                 \
    X(TENSOR_Q3_K)                                                                                 \
    X(TENSOR_Q4_K)                                                                                 \
    X(TENSOR_Q5_K)                                                                                 \
    X(TENSOR_Q6_K)                                                                                 \
    X(TENSOR_IQ4_NL)                                                                               \
    X(TENSOR_IQ4_XS)                                                                               \
    X(TENSOR_MXFP4)

/* The scale of an MXFP4 block is 2^(e - 128), e a byte: half of 2^(e - 127), because the table
 * below is doubled. As one float it would make dw * sx subnormal, and so inexact, for small e: it
 * is kept as dw * rest, two powers of two. dw >= 2^-11 is normal times any sx (>= 2^-115), rest >=
 * 2^-117 is normal times any sum, so the fused multiply-add rounds alone. For e >= 117 rest is 1.
 */
enum { MXFP4_SPLIT = 117 };

/* u of the sixteen codes of the table formats. */
#define IQ4_TABLE                                                                                  \
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 /* value + 128 */
#define MXFP4_TABLE                                                                                \
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 /* 2 x value + 16 */

struct activation_sums {
    float scale;        /* sx */
    float scaled_sum;   /* sx * (float)sum */
    int32_t offset;     /* -128 * sum: shifted right, the correction for any offset */
    int32_t offset_low; /* the same over the first 16 values */
};

enum {
    ACTIVATION_INT16_BLOCK_BYTES = 64 + sizeof(struct activation_sums),
    ACTIVATION_INT8_BLOCK_BYTES = 32 + sizeof(struct activation_sums),
};
#define ACTIVATION_INT16_MAX 32512.0f
#define ACTIVATION_INT8_MAX  127.0f
#define ACTIVATION_TINY      0x1p-100f /* blocks below it are zero */

static inline size_t activation_block_bytes(enum activation_format format) {
    return format == ACTIVATION_INT16 ? ACTIVATION_INT16_BLOCK_BYTES : ACTIVATION_INT8_BLOCK_BYTES;
}

/* One row's 32 weights of one block with their stored scales, in no layout. sc and mn are used by
 * the formats with two levels of scales: one entry per scale sub-block. */
struct block32 {
    uint8_t u[32];
    uint16_t d, m;
    uint8_t sc[2], mn[2];
};

/* Block `b` (index from the start of the panel) of row `row` of a packed panel. */
void packed_block_read(const struct packed_matrix *m, uint32_t panel, uint32_t row, uint32_t b,
                       struct block32 *out);
/* F32 scales and addends of the block's scale sub-blocks: weight = dw * rest * (u - offset) + mw.
 * rest is 1 but for MXFP4. */
struct block32_scales {
    float dw[2], mw[2], rest;
};
struct block32_scales block32_scales(enum tensor_type type, const struct block32 *block);
/* min(32, k - 32 b) weights as F32, the bits of tensor_dequantise; also for F32, F16, BF16. */
void packed_block_floats(const struct packed_matrix *m, uint32_t panel, uint32_t row, uint32_t b,
                         float *dst);

static inline const uint8_t *packed_panel(const struct packed_matrix *m, uint32_t panel) {
    return m->data + (size_t)panel * m->panel_bytes;
}

#if defined(__x86_64__)
extern const struct matmul_kernels matmul_avx2, matmul_avxvnni, matmul_avx512, matmul_amx;
/* A product of known bytes through the tile unit, which the processor must have: whether it came
 * out right. */
bool matmul_tiles_work(void);
#elif defined(__aarch64__)
extern const struct matmul_kernels matmul_neon;
#endif
extern const struct matmul_kernels matmul_scalar;

/* Splits a call into tiles of at most 8 rows x 1 panel and hands them to `tile`, in an order that
 * keeps the weights in cache from tile to tile. Shared by every table. */
struct matmul_tile {
    const struct packed_matrix *m;
    uint32_t panel;
    uint32_t n_rows;  /* 1, 2, 4 or 8 */
    const uint8_t *x; /* first row */
    size_t row_bytes;
    enum activation_format format;
    const float *bias; /* [16], or NULL */
    float *out;        /* [n_rows, out_stride] */
    size_t out_stride;
    uint32_t n_valid; /* outputs to store: 1 .. 16 */
};
typedef void matmul_tile_fn(const struct matmul_tile *t);
void matmul_tiles(matmul_tile_fn *tile, const struct packed_matrix *m, const struct activations *x,
                  const float *bias, uint32_t panel0, uint32_t panel1, float *out,
                  size_t out_stride);

#endif
