/* lanes.h: the operations that treat every lane for itself, in one build per instruction set.
 *
 * lane_ops() returns the handlers, indexed by enum lane_op, of the best instruction set this CPU
 * has; all builds give the same bits. Operand types are in the names: 16-bit values lie zero
 * extended in 32-bit lanes.
 */
#ifndef LAC_TESTS_SOFTGPU_LANES_H
#define LAC_TESTS_SOFTGPU_LANES_H

#include "tests/softgpu/op.h"

/* clang-format off */
/* Families that exist for 16, 32 and 64 bits. */
#define LANE_LIST_WIDTHS(X, W)                                                                     \
    X(ADD_##W)                                                                                     \
    X(SUB_##W)                                                                                     \
    X(MUL_##W)                                                                                     \
    X(MULHI_S##W)                                                                                  \
    X(MULHI_U##W)                                                                                  \
    X(MAD_##W) X(MADHI_S##W) X(MADHI_U##W) X(DIV_S##W) X(DIV_U##W) X(REM_S##W) X(REM_U##W)         \
        X(ABS_##W) X(NEG_##W) X(MIN_S##W) X(MIN_U##W) X(MAX_S##W) X(MAX_U##W) X(AND_##W) X(OR_##W) \
            X(XOR_##W) X(NOT_##W) X(CNOT_##W) X(SHL_##W) X(SHR_S##W) X(SHR_U##W) X(SELP_##W)       \
                X(SLCT_S##W) X(SLCT_F##W) X(SETP_S##W) X(SETP_U##W) X(MOV_##W) X(SAD_S##W)         \
                    X(SAD_U##W)
#define LANE_LIST_INTEGER(X)                                                                       \
    LANE_LIST_WIDTHS(X, 16)                                                                        \
    LANE_LIST_WIDTHS(X, 32)                                                                        \
    LANE_LIST_WIDTHS(X, 64)                                                                        \
    X(MULWIDE_S16)                                                                                 \
    X(MULWIDE_U16)                                                                                 \
    X(MULWIDE_S32) X(MULWIDE_U32) X(MADWIDE_S16) X(MADWIDE_U16) X(MADWIDE_S32) X(MADWIDE_U32)      \
        X(ADD_SAT_S32) X(SUB_SAT_S32) X(MADHI_SAT_S32) X(MUL24_LO_S) X(MUL24_LO_U) X(MUL24_HI_S)   \
            X(MUL24_HI_U) X(MAD24_LO_S) X(MAD24_LO_U) X(MAD24_HI_S) X(MAD24_HI_U) X(ADD_U16X2)     \
                X(MIN_S16X2) X(MIN_U16X2) X(MAX_S16X2) X(MAX_U16X2) X(MIN_RELU_S32)                \
                    X(MAX_RELU_S32) X(SHF_L_WRAP) X(SHF_L_CLAMP) X(SHF_R_WRAP) X(SHF_R_CLAMP)      \
                        X(LOP3) X(PRMT) X(PRMT_MODE) X(BFE_S32) X(BFE_U32) X(BFE_S64) X(BFE_U64)   \
                            X(BFI_32) X(BFI_64) X(BFIND_S32) X(BFIND_U32) X(BFIND_S64)             \
                                X(BFIND_U64) X(CLZ_32) X(CLZ_64) X(POPC_32) X(POPC_64) X(BREV_32)  \
                                    X(BREV_64) X(SZEXT_S) X(SZEXT_U) X(BMSK) X(FNS) X(DP4A)        \
                                        X(DP2A) X(ADDC_32) X(ADDC_64) X(SUBC_32) X(SUBC_64)        \
                                            X(MADC_32) X(MOV_PRED) X(AND_PRED) X(OR_PRED)          \
                                                X(XOR_PRED) X(NOT_PRED) X(SELP_128)
#define LANE_LIST_FLOAT(X)                                                                         \
    X(ADD_F32)                                                                                     \
    X(SUB_F32)                                                                                     \
    X(MUL_F32)                                                                                     \
    X(FMA_F32)                                                                                     \
    X(ADD_FTZ_F32)                                                                                 \
    X(SUB_FTZ_F32) X(MUL_FTZ_F32) X(FMA_FTZ_F32) X(ADD_ANY_F32) X(SUB_ANY_F32) X(MUL_ANY_F32)      \
        X(FMA_ANY_F32) X(DIV_ANY_F32) X(DIV_APPROX_F32) X(RCP_ANY_F32) X(SQRT_ANY_F32)             \
            X(RSQRT_F32) X(EX2_F32) X(LG2_F32) X(SIN_F32) X(COS_F32) X(TANH_F32) X(NEG_F32)        \
                X(ABS_F32) X(MIN_F32) X(MAX_F32) X(COPYSIGN_F32) X(SETP_F32) X(SETP_F64)           \
                    X(ADD_F64) X(SUB_F64) X(MUL_F64) X(FMA_F64) X(DIV_F64) X(RCP_F64) X(SQRT_F64)  \
                        X(RCP_APPROX_F64) X(RSQRT_F64) X(NEG_F64) X(ABS_F64) X(MIN_F64) X(MAX_F64) \
                            X(COPYSIGN_F64) X(TESTP_F32) X(TESTP_F64) X(HALF) X(HALF_MIXED)        \
                                X(SETP_HALF) X(F32X2)
#define LANE_LIST_CONVERT(X)                                                                       \
    X(CVT_INT)                                                                                     \
    X(CVT_U32_U8)                                                                                  \
    X(CVT_S32_S8)                                                                                  \
    X(CVT_U32_U16)                                                                                 \
    X(CVT_S32_S16)                                                                                 \
    X(CVT_U64_U32) X(CVT_S64_S32) X(CVT_U32_U64) X(CVT_F32_S32) X(CVT_F32_U32) X(CVT_F32_INT)      \
        X(CVT_F64_INT) X(CVT_HALF_INT) X(CVT_INT_F32) X(CVT_INT_F64) X(CVT_INT_HALF)               \
            X(CVT_S32_F32) X(CVT_F32_F32) X(CVT_F64_F64) X(CVT_F64_F32) X(CVT_F32_F64)             \
                X(CVT_F32_F16) X(CVT_F32_BF16) X(CVT_F16_F32) X(CVT_BF16_F32) X(CVT_SMALL)         \
                    X(CVT_PACK2) X(CVT_PACK_INT) X(PACK) X(UNPACK) X(MMA)
#define LANE_LIST(X) LANE_LIST_INTEGER(X) LANE_LIST_FLOAT(X) LANE_LIST_CONVERT(X)

/* clang-format on */
#define X(name) LANE_##name,
enum lane_op { LANE_LIST(X) LANE_OPS };
#undef X

/* op.kind of HALF: what is done; op.type says F16, BF16, F16X2 or BF16X2. */
enum half_kind {
    HALF_ADD,
    HALF_SUB,
    HALF_MUL,
    HALF_FMA,
    HALF_NEG,
    HALF_ABS,
    HALF_MIN,
    HALF_MAX,
    HALF_EX2,
    HALF_TANH,
};
enum testp_kind {
    TESTP_FINITE,
    TESTP_INFINITE,
    TESTP_NUMBER,
    TESTP_NOTANUMBER,
    TESTP_NORMAL,
    TESTP_SUBNORMAL,
};
enum prmt_mode { PRMT_F4E, PRMT_B4E, PRMT_RC8, PRMT_ECL, PRMT_ECR, PRMT_RC16 };

extern op_fn *const lanes_scalar[LANE_OPS];
extern op_fn *const lanes_avx2[LANE_OPS];
extern op_fn *const lanes_avx512[LANE_OPS];
op_fn *const *lane_ops(void);

/* lanes.c: what a comparison's mask becomes: predicates d and e (setp), or the lanes of d (set);
 * op.combine with predicate c. */
const struct op *lane_compared(struct warp *w, const struct op *op, uint32_t holds);

#endif
