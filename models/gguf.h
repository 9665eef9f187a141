/* gguf.h: reads a GGUF file, version 2 or 3 (format: ggml's docs/gguf.md), single or split.
 *
 * The file is mapped read-only (alloc/map.h); keys, strings and tensors point into the map and live
 * until gguf_close. Everything in the file is hostile until checked: counts, lengths, types,
 * alignment, offsets, dims x type size overflow, overlap past the end, duplicate names, array
 * nesting. Arrays of arrays, empty tensors, overlapping tensors and big-endian files are refused.
 * Memory used beside the map is bounded by the number of keys and tensors (each at most 65,536) and
 * of strings in arrays (4 bytes each, at most 2^24). Split files (NAME-00001-of-00005.gguf): give
 * the first one; the others are found beside it. Keys are those of the first file. Threads:
 * read-only after open, any thread may read; gguf_digest by one thread at a time. Errors:
 * error.field is the key or tensor at fault, "header" for the counts and the magic.
 */
#ifndef LAC_MODELS_GGUF_H
#define LAC_MODELS_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/tensor.h"

struct gguf;

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* A string inside the map: not NUL-terminated, any bytes. */
struct gguf_string {
    const char *data;
    size_t len;
};

enum status gguf_open(const char *path, struct gguf **out, struct error *e);
void gguf_close(struct gguf *g);

/* Scalars: false when the key is absent or of a type that does not convert without loss
 * (any integer type to u64 when it is not negative; f32, f64 and integers to double).
 * gguf_has: it is there, of whatever type. */
bool gguf_has(const struct gguf *g, const char *key);
bool gguf_u64(const struct gguf *g, const char *key, uint64_t *out);
bool gguf_f64(const struct gguf *g, const char *key, double *out);
bool gguf_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_str(const struct gguf *g, const char *key, struct gguf_string *out);

/* Arrays of one scalar or string type. */
bool gguf_array(const struct gguf *g, const char *key, enum gguf_type *type, size_t *n);
/* Element i; strings are found in O(1) (an index is built at open for string arrays). An element
 * that is not there or not of a fitting type is the empty string or 0. */
struct gguf_string gguf_array_str(const struct gguf *g, const char *key, size_t i);
double gguf_array_f64(const struct gguf *g, const char *key, size_t i);
int64_t gguf_array_i64(const struct gguf *g, const char *key, size_t i);
/* The raw elements of a numeric array (little endian, maybe unaligned), NULL if absent. */
const void *gguf_array_data(const struct gguf *g, const char *key);

/* Keys and tensors in file order, for `inspect`. */
size_t gguf_n_keys(const struct gguf *g);
struct gguf_string gguf_key(const struct gguf *g, size_t i, enum gguf_type *type);
/* The value as JSON text (of an array the first 16 elements and how many more there are), cut to
 * `cap` bytes between characters, NUL-terminated. */
void gguf_value_text(const struct gguf *g, size_t i, char *text, size_t cap);

size_t gguf_n_tensors(const struct gguf *g);
/* `t->data` points into the map; shape as in core/tensor.h (dim 0 fastest). */
const struct tensor *gguf_tensor(const struct gguf *g, size_t i);
const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name);
uint64_t gguf_file_bytes(const struct gguf *g);
/* XXH3-128 over the tensor infos and data, file by file (the model's digest, {low, high}; keys and
 * padding do not count; computed on first call, slow). */
void gguf_digest(struct gguf *g, uint64_t out[2]);

#endif
