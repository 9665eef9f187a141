/* matrix.h: the shapes of mma.sync that are known; lane_matrix.h and its decoder. In op.kind.
 */
#ifndef LAC_TESTS_SOFTGPU_MATRIX_H
#define LAC_TESTS_SOFTGPU_MATRIX_H

enum matrix_kind {
    MATRIX_S8_K32,  /* m16n8k32, 8-bit integers; signs in OP_SIGNED_A, OP_SIGNED_B */
    MATRIX_S8_K16,  /* m16n8k16 */
    MATRIX_S8_M8,   /* m8n8k16 */
    MATRIX_F16_K16, /* m16n8k16, f16; result f32 or f16 by op.type */
    MATRIX_F16_K8,  /* m16n8k8 */
    MATRIX_BF16_K16,
    MATRIX_BF16_K8,
    MATRIX_TF32_K8,
    MATRIX_TF32_K4,
    MATRIX_KINDS,
};

#endif
