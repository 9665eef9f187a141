#include "models/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "alloc/map.h"
#include "core/check.h"
#include "core/tensor.h"
#include "models/gguf_file.h"

struct safetensors {
    struct map map;
    json_t *header; /* owns the names */
    size_t n;
    struct safetensors_tensor *tensors; /* by name */
};

static const struct {
    const char *name;
    uint32_t bytes;
} types[SAFETENSORS_TYPE_COUNT] = {
#define X(code, name_, bytes_) [code] = {name_, bytes_},
    SAFETENSORS_TYPE_LIST(X)
#undef X
};

const char *safetensors_type_name(enum safetensors_type type) {
    return types[type].name;
}

bool safetensors_is_float(enum safetensors_type type) {
    return type == SAFETENSORS_F32 || type == SAFETENSORS_F16 || type == SAFETENSORS_BF16;
}

static enum status bad(struct error *e, const char *name, const char *what) {
    return gguf_error(e, STATUS_CORRUPT, (struct gguf_string){name, strlen(name)}, "%s", what);
}

static bool read_u64(const json_t *v, uint64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static bool read_type(const json_t *v, enum safetensors_type *out) {
    if (!json_is_string(v)) return false;
    for (int i = 0; i < SAFETENSORS_TYPE_COUNT; i++) {
        if (strcmp(json_string_value(v), types[i].name) == 0) {
            *out = (enum safetensors_type)i;
            return true;
        }
    }
    return false;
}

static enum status read_tensor(const char *name, const json_t *v, const uint8_t *data,
                               uint64_t data_bytes, struct safetensors_tensor *t, struct error *e) {
    *t = (struct safetensors_tensor){.name = name, .n = 1};
    const size_t name_bytes = strlen(name);
    if (name_bytes == 0 || name_bytes > SAFETENSORS_MAX_NAME_BYTES)
        return bad(e, name, "a tensor's name must have 1 to 255 bytes");
    if (!json_is_object(v)) return bad(e, name, "not an object");
    if (!read_type(json_object_get(v, "dtype"), &t->type))
        return bad(e, name, "dtype is missing or not one that is known");
    const json_t *shape = json_object_get(v, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return bad(e, name, "shape is not a list of at most 8 sizes");
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!read_u64(json_array_get(shape, i), &t->dim[i]))
            return bad(e, name, "a size in shape is not a whole number");
        if (__builtin_mul_overflow(t->n, t->dim[i], &t->n))
            return bad(e, name, "shape is larger than any file");
    }
    const json_t *offsets = json_object_get(v, "data_offsets");
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_u64(json_array_get(offsets, 0), &begin) ||
        !read_u64(json_array_get(offsets, 1), &end))
        return bad(e, name, "data_offsets is not a pair of whole numbers");
    if (begin > end || end > data_bytes) return bad(e, name, "data_offsets lies outside the file");
    if (__builtin_mul_overflow(t->n, (uint64_t)types[t->type].bytes, &t->bytes) ||
        t->bytes != end - begin)
        return bad(e, name, "data_offsets does not fit dtype and shape");
    t->data = data + begin;
    return STATUS_OK;
}

static int by_place(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Each byte of the data belongs to exactly one tensor. */
static enum status check_cover(struct safetensors *s, const uint8_t *data, uint64_t data_bytes,
                               struct error *e) {
    qsort(s->tensors, s->n, sizeof *s->tensors, by_place);
    const uint8_t *at = data;
    for (size_t i = 0; i < s->n; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        if (t->data != at)
            return bad(e, t->name,
                       t->data < at ? "overlaps another tensor" : "has a gap in front of it");
        at += t->bytes;
    }
    if (at != data + data_bytes)
        return error_set(e, STATUS_CORRUPT, "header", "%llu bytes at the end belong to no tensor",
                         (unsigned long long)(data + data_bytes - at));
    qsort(s->tensors, s->n, sizeof *s->tensors, by_name);
    return STATUS_OK;
}

static enum status check_metadata(const json_t *v, struct error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(v)) return bad(e, "__metadata__", "not an object");
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        if (!json_is_string(value)) return bad(e, "__metadata__", "holds more than strings");
    }
    return STATUS_OK;
}

static enum status read_header(struct safetensors *s, uint64_t header_bytes, struct error *e) {
    const uint8_t *data = s->map.data + 8 + header_bytes;
    const uint64_t data_bytes = s->map.bytes - 8 - header_bytes;
    json_error_t why;
    s->header = json_loadb((const char *)s->map.data + 8, (size_t)header_bytes,
                           JSON_REJECT_DUPLICATES, &why);
    if (s->header == NULL)
        return error_set(e, STATUS_CORRUPT, "header", "not JSON that can be read (line %d)",
                         why.line);
    if (!json_is_object(s->header))
        return error_set(e, STATUS_CORRUPT, "header", "not a JSON object");
    const size_t n = json_object_size(s->header);
    if (n > SAFETENSORS_MAX_TENSORS)
        return error_set(e, STATUS_TOO_LARGE, "header", "%zu tensors, at most %d are read", n,
                         SAFETENSORS_MAX_TENSORS);
    s->tensors = calloc(n + 1, sizeof *s->tensors);
    if (s->tensors == NULL)
        return error_set(e, STATUS_NO_MEMORY, "header", "no memory for %zu tensors", n);
    const char *name;
    json_t *v;
    enum status st = STATUS_OK;
    json_object_foreach(s->header, name, v) {
        if (strcmp(name, "__metadata__") == 0)
            st = check_metadata(v, e);
        else
            st = read_tensor(name, v, data, data_bytes, &s->tensors[s->n++], e);
        if (st != STATUS_OK) return st;
    }
    return check_cover(s, data, data_bytes, e);
}

enum status safetensors_open(const char *path, struct safetensors **out, struct error *e) {
    *out = NULL;
    struct safetensors *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to open %s", path);
    enum status st = map_read(path, &s->map, e);
    if (st == STATUS_OK) {
        uint64_t header_bytes = 0;
        for (int i = 7; i >= 0 && s->map.bytes >= 8; i--)
            header_bytes = header_bytes << 8 | s->map.data[i];
        if (s->map.bytes < 8 || header_bytes > s->map.bytes - 8)
            st = error_set(e, STATUS_CORRUPT, "header", "the file ends inside its header");
        else if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
            st = error_set(e, STATUS_TOO_LARGE, "header", "%llu bytes, at most %d are read",
                           (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
        else
            st = read_header(s, header_bytes, e);
    }
    if (st != STATUS_OK) {
        safetensors_close(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *s) {
    if (s == NULL) return;
    json_decref(s->header);
    free(s->tensors);
    map_close(&s->map);
    free(s);
}

size_t safetensors_n_tensors(const struct safetensors *s) {
    return s->n;
}

const struct safetensors_tensor *safetensors_tensor(const struct safetensors *s, size_t i) {
    CHECK(i < s->n);
    return &s->tensors[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name) {
    const struct safetensors_tensor key = {.name = name};
    return bsearch(&key, s->tensors, s->n, sizeof *s->tensors, by_name);
}

void safetensors_read_f32(const struct safetensors_tensor *t, uint64_t first, size_t n,
                          float *out) {
    CHECK(safetensors_is_float(t->type) && first <= t->n && n <= t->n - first);
    const uint8_t *p = t->data + first * types[t->type].bytes;
    if (t->type == SAFETENSORS_F32) {
        if (n > 0) memcpy(out, p, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, p + 2 * i, sizeof bits);
        out[i] = t->type == SAFETENSORS_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
}
