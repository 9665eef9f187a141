/* matmul.h: out[r][j] = bias[j] + sum over i of W[j][i] * x[r][i], on weights that stay quantised.
 *
 * Life: packed_matrix_bytes -> packed_matrix_init(mem) -> packed_matrix_pack (panel ranges, in any
 * order, from any thread) -> read only. Per step: quantise the rows once, then call matmul for
 * (panel range x row range) tasks; tasks write disjoint outputs and share nothing.
 *
 * SHAPES. x is [n_rows, k], out is [n_rows, out_stride >= n], F32. A panel is 16 consecutive
 * outputs; the last one is padded with zero weights whose outputs are not stored.
 *
 * THE BITS. Every kernel table gives the bits below; scalar is the oracle. They depend on the
 * weights, the row and the activation format, on nothing else: not on n_rows, tasks or instruction
 * set. (Two NaNs count as equal: their payloads differ between machines.)
 *
 * Quantised rows: blocks of 32 values, b ascending. amax = max |x|.
 *   INT16: sx = amax / 32512, q = rint(x * (32512 / amax)), stored as q = 256 hi + lo with
 *          hi = (q + 128) >> 8 in [-127, 127] and lo in [-128, 127];
 *   INT8:  sx = amax / 127,   q = rint(x * (127 / amax)).
 *   rint is to nearest even. amax < 2^-100: sx = 0, q = 0. A NaN or infinity in the block: sx =
 * NaN, q = 0, which makes every output of the row NaN. Quantised weights: each scale sub-block s
 * (32 values; 16 for Q2_K, Q3_K, Q6_K) has an F32 scale dw and, in Q4_1, Q5_1, Q2_K, Q4_K, Q5_K, an
 * F32 addend mw (products of stored scales, all exact): weight = dw * u + mw, u a small integer
 * (signed where the format has an offset or a table). acc = bias or 0; for s ascending: acc =
 * fmaf(dw * sx, (float)(exact int32 sum of u * q), acc); acc = fmaf(mw, sx * (float)(exact int32
 * sum of q), acc)     where the format has mw. In MXFP4 dw is a power of two that may be as small
 * as 2^-128; what of it lies below 2^-11 multiplies the float sum instead, so that neither product
 * is subnormal: fmaf alone rounds. F32 activations (--exact, and always for F32, F16 and BF16
 * weights): weights as tensor_dequantise gives them; per block of 32 (the last may be shorter) p =
 * 0, p = fmaf(w, x, p) ascending; acc = bias or 0; for b ascending: acc = acc + p.
 *
 * Errors: there are none; shapes are programmer errors (CHECK). Hostile weights (infinite or NaN
 * scales) give infinities or NaNs in their own outputs only.
 */
#ifndef LAC_CORE_CPU_MATMUL_H
#define LAC_CORE_CPU_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backend.h"
#include "core/plan.h"

enum { PANEL_ROWS = 16 }; /* outputs per panel: the lanes of the kernels */

/* A weight matrix (or a slice, or one expert) in kernel order; core/cpu/layout.h has the layout.
 * Its size is that of the GGUF rows, with n rounded up to 16 and each panel to 64 bytes. */
struct packed_matrix {
    enum tensor_type type;
    uint32_t n, k;      /* outputs, inputs */
    uint32_t n_panels;  /* ceil(n / 16) */
    size_t panel_bytes; /* multiple of 64 */
    uint8_t *data;      /* 64-byte aligned, n_panels * panel_bytes; not owned */
};

/* Whether rows of k weights of that type can be packed: k > 0 and a multiple of the type's block.
 */
bool packed_supported(enum tensor_type type, uint32_t k);
/* Bytes to give to packed_matrix_init, a multiple of 64. Unsupported shapes: 0. */
size_t packed_matrix_bytes(enum tensor_type type, uint32_t n, uint32_t k);
/* `mem` is 64-byte aligned and outlives m; CHECKs the shape. Writes nothing to mem. */
void packed_matrix_init(struct packed_matrix *m, enum tensor_type type, uint32_t n, uint32_t k,
                        void *mem);
/* Repacks panels [panel0, panel1) from the slice w (m->n == w->n_rows, m->k == dim[0]) of the
 * tensor's matrix `expert` (0 when it has two dimensions). Every byte of those panels is written.
 */
void packed_matrix_pack(const struct packed_matrix *m, const struct weight *w, uint32_t expert,
                        uint32_t panel0, uint32_t panel1);
/* Row `row` as F32 [k], the bits of tensor_dequantise: the embedding look-up of a tied head. */
void packed_matrix_row(const struct packed_matrix *m, uint32_t row, float *dst);

/* The format that a matrix of this type takes in a numerics class: F32 for F32, F16 and BF16
 * weights, else the class itself. */
enum activation_format matmul_activation_format(enum tensor_type type,
                                                enum activation_format class);
/* Bytes of one row of k activations, a multiple of 64. For F32 a plain float[k], so that the caller
 * may point `activations` at his own rows and skip quantise. k is a multiple of 32 for INT8, INT16.
 */
size_t activation_row_bytes(enum activation_format format, uint32_t k);

/* Quantised rows, one after the other. The contents belong to the table that wrote them: a row
 * quantised by one table is not for another's matmul. */
struct activations {
    enum activation_format format;
    uint32_t n_rows;
    size_t row_bytes; /* stride: >= activation_row_bytes, multiple of 16; F32: multiple of 4 */
    const void *data; /* 64-byte aligned (F32: 4) */
};

struct matmul_kernels {
    const char *name; /* of the instruction set */
    /* One row: x[k] -> dst (activation_row_bytes; 64-byte aligned). F32 copies. */
    void (*quantise)(const float *x, uint32_t k, enum activation_format format, void *dst);
    /* Outputs [16 panel0, min(16 panel1, n)) of all rows of `x`. out points at output 0 of row 0,
     * rows `out_stride` floats apart; bias [n] may be NULL. CHECKs that x->format suits m->type. */
    void (*matmul)(const struct packed_matrix *m, const struct activations *x, const float *bias,
                   uint32_t panel0, uint32_t panel1, float *out, size_t out_stride);
    /* The instruction roofline of INT16 or INT8: `rounds` times the set's dot instructions on
     * registers, nothing else. Returns the multiply-adds of whole activations that this makes, for
     * the caller to time. NULL for scalar. */
    uint64_t (*dots)(enum activation_format format, uint64_t rounds);
};

/* The table of an instruction set. AMX: the AVX-512 one where the tiles are missing or fail a trial
 * (done anew by each call). NULL when the set is not built for this
 * processor family; whether the machine has it is the caller's question (core/cpu_features.h). */
const struct matmul_kernels *matmul_kernels(enum cpu_isa isa);

/* Multiply-adds a second that one thread of this machine makes in the dot instructions of a set it
 * has: measured, the best of some short runs (about 2 ms in all). 0 where there are none. */
double matmul_dot_rate(enum cpu_isa isa, enum activation_format format);

/* A task of about 40 microseconds: rows (multiple of 8) x panels. Every split gives the same bits.
 */
struct matmul_task {
    uint32_t panels, rows;
};
struct matmul_task matmul_task_size(const struct packed_matrix *m, enum activation_format format,
                                    uint32_t n_rows);

#endif
