/* repack.h: quantised weights as the GPU kernels stream them, made on the host.
 *
 * A matrix is panels of 16 outputs, one after the other; n is padded to 16 with zero weights, k to
 * 64 (an even number of blocks of 32) with zero blocks. A panel is its quants, block by block, then
 * its scales; every run that a warp reads at once is contiguous and a multiple of 32 bytes.
 *
 * Quants:
 * - 4 bits: [block][output][16 bytes], byte i holds weight i (low) and weight 16 + i (high nibble);
 *   Q4_0 nibbles have their top bit flipped (two's complement).
 * - Q8_0: [block][half][output][16 bytes].
 * - Q6_K: nibbles as above; then [block][output][2 words]: bits 2 t of byte j of word h are the
 *   upper two bits, top bit flipped, of weight 16 h + 4 t + j.
 * - F16, BF16: [block][output][32 values], no scales.
 *
 * Scales:
 * - Q4_0, Q8_0: [block][output] F16. Q4_1: [block][output] {d, m} F16.
 * - Q4_K: [super-block][output] 4 words: {d, dmin} F16; for each parity p of a block a word with
 * its four scales (6 bits each), bits 24-29 the last min, 30-31 the top of the third; the last
 * word, from bit 16 p: first and second min (6 bits), low 4 bits of the third.
 * - Q6_K: [super-block][output] 16 int8; then [super-block][output] F16.
 *
 * Sizes equal those of the GGUF rows, paddings aside. Rows come in any order from any tensors of
 * one type: repack_order_* are the orders of the kernels' epilogues. F32 is not packed.
 */
#ifndef LAC_JIT_REPACK_H
#define LAC_JIT_REPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/tensor.h"

bool repack_supported(enum tensor_type type, uint32_t k);
size_t repack_panel_bytes(enum tensor_type type, uint32_t k);
/* Of a matrix of n outputs; 0 where unsupported. */
size_t repack_bytes(enum tensor_type type, uint32_t n, uint32_t k);
/* Writes panels [panel0, panel1) to dst (which points at panel 0). rows[i]: the source row (GGUF
 * blocks) of output i, or NULL for zeros; n entries, from any tensors of that type. Any thread. */
void repack_panels(enum tensor_type type, uint32_t n, uint32_t k, const uint8_t *const *rows,
                   uint32_t panel0, uint32_t panel1, uint8_t *dst);
/* One row back as F32 [k], the bits of tensor_dequantise. */
void repack_row(enum tensor_type type, uint32_t k, const uint8_t *packed, uint32_t row, float *out);

/* Output order of KERNEL_OUT_GATED: rows of gate, then of up (2 d_ff in all), 8 and 8 a panel.
 * d_ff is a multiple of 8. */
void repack_order_gated(uint32_t d_ff, uint32_t *order);
/* Output order of KERNEL_OUT_QKV: heads of q, k, v; rotary partners are outputs o and o + 8 of a
 * panel. rope as in jit/kernel.h; head_dim and rope_dims are multiples of 16. */
void repack_order_qkv(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t rope,
                      uint32_t rope_dims, uint32_t *order);

#endif
