/* tensor.h: a named, typed, row-major array in somebody else's memory, and the block formats that
 * its rows may be stored in (layouts: ggml's public type list; figures in tensor.c).
 *
 * dim[0] is the fastest: for a weight of a linear layer dim[0] = n_in (k), dim[1] = n_out (n), so
 * row r is the weights of output r.
 */
#ifndef LAC_CORE_TENSOR_H
#define LAC_CORE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(code, name, number in GGUF, weights per block, bytes per block) */
#define TENSOR_TYPE_LIST(X)                                                                        \
    X(TENSOR_F32, "F32", 0, 1, 4)                                                                  \
    X(TENSOR_F16, "F16", 1, 1, 2)                                                                  \
    X(TENSOR_Q4_0, "Q4_0", 2, 32, 18)                                                              \
    X(TENSOR_Q4_1, "Q4_1", 3, 32, 20)                                                              \
    X(TENSOR_Q5_0, "Q5_0", 6, 32, 22)                                                              \
    X(TENSOR_Q5_1, "Q5_1", 7, 32, 24)                                                              \
    X(TENSOR_Q8_0, "Q8_0", 8, 32, 34)                                                              \
    X(TENSOR_Q2_K, "Q2_K", 10, 256, 84)                                                            \
    X(TENSOR_Q3_K, "Q3_K", 11, 256, 110)                                                           \
    X(TENSOR_Q4_K, "Q4_K", 12, 256, 144)                                                           \
    X(TENSOR_Q5_K, "Q5_K", 13, 256, 176)                                                           \
    X(TENSOR_Q6_K, "Q6_K", 14, 256, 210)                                                           \
    X(TENSOR_IQ4_NL, "IQ4_NL", 20, 32, 18)                                                         \
    X(TENSOR_IQ4_XS, "IQ4_XS", 23, 256, 136)                                                       \
    X(TENSOR_BF16, "BF16", 30, 1, 2)                                                               \
    X(TENSOR_MXFP4, "MXFP4", 39, 32, 17)

enum tensor_type {
#define X(code, name, number, weights, bytes) code,
    TENSOR_TYPE_LIST(X)
#undef X
        TENSOR_TYPE_COUNT
};

struct tensor_format {
    const char *name;
    uint32_t gguf_number;
    uint32_t block_weights;
    uint32_t block_bytes;
};

struct tensor {
    char name[64];
    enum tensor_type type;
    uint32_t n_dims;
    uint64_t dim[4];  /* unused dims are 1 */
    uint64_t bytes;   /* of the whole tensor */
    const void *data; /* not owned */
};

const struct tensor_format *tensor_format(enum tensor_type type);
/* The type with that number in GGUF; false if this build does not know it. */
bool tensor_type_from_gguf(uint32_t number, enum tensor_type *out);

/* Bytes of one row of n weights; n must be a multiple of the block. */
static inline uint64_t tensor_row_bytes(const struct tensor_format *f, uint64_t n) {
    return n / f->block_weights * f->block_bytes;
}

/* Dequantise n weights (a multiple of the block) at `src` into F32, the same bits as the `gguf`
 * Python package's dequantize. The reference for every kernel. */
void tensor_dequantise(enum tensor_type type, const void *src, float *dst, size_t n);

/* IEEE 754 half and bfloat16 to and from F32; to half rounds to nearest even, overflow to infinity.
 */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
float bf16_to_f32(uint16_t b);

#endif
