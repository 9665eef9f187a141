/* safetensors.h: reads a .safetensors file (format: the README of huggingface/safetensors): eight
 * bytes of header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data.
 *
 * The file is mapped read-only (alloc/map.h); tensors point into the map, maybe unaligned, and live
 * until safetensors_close. Everything in the file is hostile until checked: the header's length,
 * its JSON, names, dtypes, dims x type size overflow, and offsets, which must cover the data
 * without gap or overlap, as the format demands. `__metadata__` must be an object of strings and is
 * not kept. Limits: below; JSON takes memory in proportion to the header, so that is at most
 * SAFETENSORS_MAX_HEADER_BYTES. Split models (several files and an index) are not read.
 * Errors: error.field is the tensor at fault, "header" before any is known. *out is NULL then.
 * Threads: read-only after open, any thread may read.
 */
#ifndef LAC_MODELS_SAFETENSORS_H
#define LAC_MODELS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    SAFETENSORS_MAX_HEADER_BYTES = 4 << 20,
    SAFETENSORS_MAX_TENSORS = 16384,
    SAFETENSORS_MAX_NAME_BYTES = 255,
    SAFETENSORS_MAX_DIMS = 8,
};

/* X(code, name, bytes of an element) */
#define SAFETENSORS_TYPE_LIST(X)                                                                   \
    X(SAFETENSORS_F32, "F32", 4)                                                                   \
    X(SAFETENSORS_F16, "F16", 2)                                                                   \
    X(SAFETENSORS_BF16, "BF16", 2)                                                                 \
    X(SAFETENSORS_F64, "F64", 8)                                                                   \
    X(SAFETENSORS_F8_E4M3, "F8_E4M3", 1)                                                           \
    X(SAFETENSORS_F8_E5M2, "F8_E5M2", 1)                                                           \
    X(SAFETENSORS_I64, "I64", 8)                                                                   \
    X(SAFETENSORS_I32, "I32", 4)                                                                   \
    X(SAFETENSORS_I16, "I16", 2)                                                                   \
    X(SAFETENSORS_I8, "I8", 1)                                                                     \
    X(SAFETENSORS_U64, "U64", 8)                                                                   \
    X(SAFETENSORS_U32, "U32", 4)                                                                   \
    X(SAFETENSORS_U16, "U16", 2)                                                                   \
    X(SAFETENSORS_U8, "U8", 1)                                                                     \
    X(SAFETENSORS_BOOL, "BOOL", 1)

enum safetensors_type {
#define X(code, name, bytes) code,
    SAFETENSORS_TYPE_LIST(X)
#undef X
        SAFETENSORS_TYPE_COUNT
};

struct safetensors;

struct safetensors_tensor {
    const char *name; /* UTF-8, the file's */
    enum safetensors_type type;
    uint32_t n_dims;
    uint64_t dim[SAFETENSORS_MAX_DIMS]; /* as written: the last is the fastest */
    uint64_t n;                         /* elements; may be 0 */
    uint64_t bytes;
    const uint8_t *data;
};

LAC_MUST_USE enum status safetensors_open(const char *path, struct safetensors **out,
                                          struct error *e);
void safetensors_close(struct safetensors *s); /* NULL is fine */

/* In the order of their names. */
size_t safetensors_n_tensors(const struct safetensors *s);
const struct safetensors_tensor *safetensors_tensor(const struct safetensors *s, size_t i);
/* NULL if there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);

const char *safetensors_type_name(enum safetensors_type type);
/* F32, F16, BF16: what safetensors_read_f32 can read. */
bool safetensors_is_float(enum safetensors_type type);
/* Elements [first, first + n), which must exist, as F32. CHECKs the type. */
void safetensors_read_f32(const struct safetensors_tensor *t, uint64_t first, size_t n, float *out);

#endif
