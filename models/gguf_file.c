#include "models/gguf_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read in place, little endian");

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 30,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1, /* length, one character, type, a one-byte value */
    MIN_TENSOR_BYTES =
        8 + 1 + 4 + 8 + 4 + 8 /* length, one character, dims, one dim, type, offset */
};

/* What is left to read. Nothing moves past `end`. */
struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

static size_t left(const struct cursor *c) {
    return (size_t)(c->end - c->at);
}

static const uint8_t *take(struct cursor *c, uint64_t bytes) {
    if (bytes > left(c)) return NULL;
    const uint8_t *p = c->at;
    c->at += bytes;
    return p;
}

static bool take_u32(struct cursor *c, uint32_t *out) {
    const uint8_t *p = take(c, sizeof *out);
    if (p) memcpy(out, p, sizeof *out);
    return p != NULL;
}

static bool take_u64(struct cursor *c, uint64_t *out) {
    const uint8_t *p = take(c, sizeof *out);
    if (p) memcpy(out, p, sizeof *out);
    return p != NULL;
}

static bool take_string(struct cursor *c, struct gguf_string *out) {
    uint64_t len;
    if (!take_u64(c, &len)) return false;
    const uint8_t *p = take(c, len);
    if (!p) return false;
    *out = (struct gguf_string){(const char *)p, (size_t)len};
    return true;
}

static struct gguf_string name_of(const char *text) {
    return (struct gguf_string){text, strlen(text)};
}

enum status gguf_error(struct error *e, enum status s, struct gguf_string name, const char *fmt,
                       ...) {
    if (!e) return s;
    char field[sizeof e->field];
    size_t n = name.len < sizeof field - 1 ? name.len : sizeof field - 1;
    for (size_t i = 0; i < n; i++) {
        field[i] = name.data[i] >= 0x20 && name.data[i] < 0x7f ? name.data[i] : '?';
    }
    field[n] = '\0';
    char message[sizeof e->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return error_set(e, s, field, "%s", message);
}

size_t gguf_type_bytes(enum gguf_type type) {
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
        [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    CHECK((unsigned)type < sizeof bytes);
    return bytes[type];
}

bool gguf_entry_integer(const struct gguf_entry *k, size_t i, uint64_t *bits, bool *negative) {
    const enum gguf_type type = k->type == GGUF_ARRAY ? k->element : k->type;
    const size_t bytes = gguf_type_bytes(type);
    const bool is_signed =
        type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    *bits = 0;
    *negative = false;
    if (bytes == 0 || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL) return false;
    memcpy(bits, k->value + i * bytes, bytes);
    if (is_signed && *bits >> (8 * bytes - 1)) {
        *negative = true;
        if (bytes < sizeof *bits) *bits |= ~UINT64_C(0) << (8 * bytes);
    }
    return true;
}

static enum status cut_short(struct error *e, struct gguf_string name, const char *where) {
    return gguf_error(e, STATUS_CORRUPT, name, "the file ends inside %s", where);
}

static enum status check_bools(const struct gguf_entry *k, struct error *e) {
    for (size_t i = 0; i < k->n; i++) {
        if (k->value[i] > 1) {
            return gguf_error(e, STATUS_CORRUPT, k->key, "a boolean of value %u", k->value[i]);
        }
    }
    return STATUS_OK;
}

/* Walks the strings of an array and notes where each starts. */
static enum status read_strings(struct cursor *c, struct gguf_entry *k, size_t *n_strings,
                                struct error *e) {
    *n_strings += k->n;
    if (*n_strings > GGUF_MAX_ARRAY_STRINGS) {
        return gguf_error(e, STATUS_TOO_LARGE, k->key, "over %d strings in the file's arrays",
                          GGUF_MAX_ARRAY_STRINGS);
    }
    k->starts = malloc((k->n ? k->n : 1) * sizeof *k->starts);
    if (!k->starts) return gguf_error(e, STATUS_NO_MEMORY, k->key, "no memory for its index");
    for (size_t i = 0; i < k->n; i++) {
        const size_t start = (size_t)(c->at - k->value);
        struct gguf_string s;
        if (start > UINT32_MAX) {
            return gguf_error(e, STATUS_TOO_LARGE, k->key, "an array of strings over 4 GiB");
        }
        if (!take_string(c, &s)) return cut_short(e, k->key, "an array of strings");
        k->starts[i] = (uint32_t)start;
    }
    return STATUS_OK;
}

static enum status read_array(struct cursor *c, struct gguf_entry *k, size_t *n_strings,
                              struct error *e) {
    uint32_t element;
    uint64_t n;
    if (!take_u32(c, &element) || !take_u64(c, &n))
        return cut_short(e, k->key, "an array's header");
    if (element > GGUF_F64) {
        return gguf_error(e, STATUS_CORRUPT, k->key, "unknown array element type %u", element);
    }
    if (element == GGUF_ARRAY) {
        return gguf_error(e, STATUS_UNSUPPORTED, k->key, "arrays of arrays are not supported");
    }
    k->element = (enum gguf_type)element;
    k->value = c->at;
    /* Also for strings a lower bound: each has a length of 8 bytes. */
    const size_t bytes = element == GGUF_STRING ? 8 : gguf_type_bytes(k->element);
    if (n > left(c) / bytes) {
        return gguf_error(e, STATUS_CORRUPT, k->key,
                          "an array of %llu elements, more than the file holds",
                          (unsigned long long)n);
    }
    k->n = (size_t)n;
    if (element == GGUF_STRING) return read_strings(c, k, n_strings, e);
    (void)take(c, n * bytes);
    return element == GGUF_BOOL ? check_bools(k, e) : STATUS_OK;
}

static enum status read_value(struct cursor *c, struct gguf_entry *k, size_t *n_strings,
                              struct error *e) {
    uint32_t type;
    if (!take_u32(c, &type)) return cut_short(e, k->key, "this key");
    if (type > GGUF_F64) {
        return gguf_error(e, STATUS_CORRUPT, k->key, "unknown value type %u", type);
    }
    k->type = (enum gguf_type)type;
    k->element = k->type;
    k->n = 1;
    k->value = c->at;
    if (type == GGUF_ARRAY) return read_array(c, k, n_strings, e);
    if (type == GGUF_STRING) {
        struct gguf_string s;
        return take_string(c, &s) ? STATUS_OK : cut_short(e, k->key, "this key's string");
    }
    if (!take(c, gguf_type_bytes(k->type))) return cut_short(e, k->key, "this key's value");
    return type == GGUF_BOOL ? check_bools(k, e) : STATUS_OK;
}

static enum status read_keys(struct cursor *c, struct gguf_file *f, uint64_t n, struct error *e) {
    size_t n_strings = 0;
    f->keys = calloc(n ? n : 1, sizeof *f->keys);
    if (!f->keys) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the key table");
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_entry *k = &f->keys[i];
        if (!take_string(c, &k->key)) {
            return error_set(e, STATUS_CORRUPT, "header", "the file ends inside key %llu of %llu",
                             (unsigned long long)i + 1, (unsigned long long)n);
        }
        if (k->key.len == 0 || k->key.len > GGUF_MAX_KEY_BYTES ||
            memchr(k->key.data, 0, k->key.len)) {
            return gguf_error(e, STATUS_CORRUPT, k->key.len ? k->key : name_of("header"),
                              "key %llu has a bad name (%zu bytes)", (unsigned long long)i + 1,
                              k->key.len);
        }
        f->n_keys = (size_t)i + 1;
        const enum status s = read_value(c, k, &n_strings, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static int compare_names(struct gguf_string a, struct gguf_string b) {
    const int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    if (order != 0) return order;
    return (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b, void *keys) {
    const struct gguf_entry *k = keys;
    return compare_names(k[*(const uint32_t *)a].key, k[*(const uint32_t *)b].key);
}

static enum status sort_keys(struct gguf_file *f, struct error *e) {
    f->by_key = malloc((f->n_keys ? f->n_keys : 1) * sizeof *f->by_key);
    if (!f->by_key) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the key table");
    for (size_t i = 0; i < f->n_keys; i++) f->by_key[i] = (uint32_t)i;
    qsort_r(f->by_key, f->n_keys, sizeof *f->by_key, compare_keys, f->keys);
    for (size_t i = 1; i < f->n_keys; i++) {
        const struct gguf_string name = f->keys[f->by_key[i]].key;
        if (compare_names(f->keys[f->by_key[i - 1]].key, name) == 0) {
            return gguf_error(e, STATUS_CORRUPT, name, "this key appears twice");
        }
    }
    return STATUS_OK;
}

const struct gguf_entry *gguf_file_find(const struct gguf_file *f, const char *key) {
    const struct gguf_string name = name_of(key);
    size_t lo = 0, hi = f->n_keys;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const struct gguf_entry *k = &f->keys[f->by_key[mid]];
        const int order = compare_names(name, k->key);
        if (order == 0) return k;
        if (order < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

static enum status read_alignment(const struct gguf_file *f, uint64_t *out, struct error *e) {
    static const char name[] = "general.alignment";
    *out = DEFAULT_ALIGNMENT;
    const struct gguf_entry *k = gguf_file_find(f, name);
    if (!k) return STATUS_OK;
    bool negative;
    if (k->type == GGUF_ARRAY || !gguf_entry_integer(k, 0, out, &negative) || negative) {
        return error_set(e, STATUS_CORRUPT, name, "not an unsigned integer");
    }
    if (*out < 8 || *out > MAX_ALIGNMENT || (*out & (*out - 1)) != 0) {
        return error_set(e, STATUS_CORRUPT, name, "%llu is not a power of two from 8 to 2^30",
                         (unsigned long long)*out);
    }
    return STATUS_OK;
}

/* Name, dims, type; the data's offset goes to *offset. */
static enum status read_tensor(struct cursor *c, struct tensor *t, size_t number, uint64_t *offset,
                               struct error *e) {
    struct gguf_string name;
    uint32_t type;
    if (!take_string(c, &name)) {
        return error_set(e, STATUS_CORRUPT, "header", "the file ends inside tensor %zu's name",
                         number + 1);
    }
    if (name.len == 0 || name.len >= sizeof t->name || memchr(name.data, 0, name.len)) {
        return gguf_error(e, STATUS_CORRUPT, name.len ? name : name_of("header"),
                          "tensor %zu has a bad name (%zu bytes, at most %zu)", number + 1,
                          name.len, sizeof t->name - 1);
    }
    memcpy(t->name, name.data, name.len);
    if (!take_u32(c, &t->n_dims)) return cut_short(e, name, "this tensor's shape");
    if (t->n_dims == 0 || t->n_dims > 4) {
        return gguf_error(e, STATUS_CORRUPT, name, "%u dimensions (1 to 4 are supported)",
                          t->n_dims);
    }
    for (uint32_t d = 0; d < 4; d++) t->dim[d] = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (!take_u64(c, &t->dim[d])) return cut_short(e, name, "this tensor's shape");
        if (t->dim[d] == 0) return gguf_error(e, STATUS_CORRUPT, name, "dimension %u is 0", d);
    }
    if (!take_u32(c, &type) || !take_u64(c, offset)) {
        return cut_short(e, name, "this tensor's type and offset");
    }
    if (!tensor_type_from_gguf(type, &t->type)) {
        return gguf_error(e, STATUS_UNSUPPORTED, name, "tensor type %u is not supported", type);
    }
    const struct tensor_format *format = tensor_format(t->type);
    if (t->dim[0] % format->block_weights != 0) {
        return gguf_error(e, STATUS_CORRUPT, name,
                          "rows of %llu weights, not a multiple of %s's %u",
                          (unsigned long long)t->dim[0], format->name, format->block_weights);
    }
    t->bytes = t->dim[0] / format->block_weights;
    bool overflow = __builtin_mul_overflow(t->bytes, format->block_bytes, &t->bytes);
    for (uint32_t d = 1; d < t->n_dims; d++) {
        overflow |= __builtin_mul_overflow(t->bytes, t->dim[d], &t->bytes);
    }
    if (overflow) return gguf_error(e, STATUS_CORRUPT, name, "its size overflows 64 bits");
    return STATUS_OK;
}

static enum status read_tensors(struct cursor *c, struct gguf_file *f, uint64_t *offsets,
                                uint64_t n, struct error *e) {
    f->infos = c->at;
    for (uint64_t i = 0; i < n; i++) {
        const enum status s = read_tensor(c, &f->tensors[i], (size_t)i, &offsets[i], e);
        if (s != STATUS_OK) return s;
        f->n_tensors = (size_t)i + 1;
    }
    f->infos_bytes = (size_t)(c->at - f->infos);
    return STATUS_OK;
}

static int compare_data(const void *a, const void *b, void *tensors) {
    const struct tensor *t = tensors;
    const uintptr_t x = (uintptr_t)t[*(const uint32_t *)a].data;
    const uintptr_t y = (uintptr_t)t[*(const uint32_t *)b].data;
    return (x > y) - (x < y);
}

static enum status check_overlap(const struct gguf_file *f, struct error *e) {
    uint32_t *order = malloc(f->n_tensors * sizeof *order);
    if (!order) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the tensor table");
    for (size_t i = 0; i < f->n_tensors; i++) order[i] = (uint32_t)i;
    qsort_r(order, f->n_tensors, sizeof *order, compare_data, f->tensors);
    enum status s = STATUS_OK;
    for (size_t i = 1; i < f->n_tensors && s == STATUS_OK; i++) {
        const struct tensor *before = &f->tensors[order[i - 1]];
        const struct tensor *t = &f->tensors[order[i]];
        if ((const uint8_t *)t->data - (const uint8_t *)before->data < (ptrdiff_t)before->bytes) {
            s = gguf_error(e, STATUS_CORRUPT, name_of(t->name), "its data overlaps that of %s",
                           before->name);
        }
    }
    free(order);
    return s;
}

/* Sets every tensor's data pointer; the data section starts at the next multiple of the alignment.
 */
static enum status place_tensors(const struct cursor *c, struct gguf_file *f,
                                 const uint64_t *offsets, struct error *e) {
    uint64_t alignment;
    enum status s = read_alignment(f, &alignment, e);
    if (s != STATUS_OK || f->n_tensors == 0) return s;

    const uint64_t end_of_infos = (uint64_t)(c->at - f->map.data);
    const uint64_t start = (end_of_infos + alignment - 1) / alignment * alignment;
    const uint64_t room = start < f->map.bytes ? f->map.bytes - start : 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        struct tensor *t = &f->tensors[i];
        if (offsets[i] % alignment != 0) {
            return gguf_error(e, STATUS_CORRUPT, name_of(t->name),
                              "offset %llu is not a multiple of the alignment %llu",
                              (unsigned long long)offsets[i], (unsigned long long)alignment);
        }
        if (offsets[i] > room || t->bytes > room - offsets[i]) {
            return gguf_error(e, STATUS_CORRUPT, name_of(t->name),
                              "%llu bytes at offset %llu pass the end of the file (%llu bytes of "
                              "data)",
                              (unsigned long long)t->bytes, (unsigned long long)offsets[i],
                              (unsigned long long)room);
        }
        t->data = f->map.data + start + offsets[i];
        const uint64_t end = offsets[i] + t->bytes;
        if (end > f->data_bytes) f->data_bytes = (size_t)end;
    }
    f->data = f->map.data + start;
    return check_overlap(f, e);
}

static enum status check_count(uint64_t n, uint64_t max, uint64_t min_bytes, size_t bytes_left,
                               const char *what, struct error *e) {
    if (n > max) {
        return error_set(e, STATUS_TOO_LARGE, "header", "%llu %s, at most %llu are read",
                         (unsigned long long)n, what, (unsigned long long)max);
    }
    if (n > bytes_left / min_bytes) {
        return error_set(e, STATUS_CORRUPT, "header", "%llu %s, more than the file holds",
                         (unsigned long long)n, what);
    }
    return STATUS_OK;
}

static enum status read_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys,
                               struct error *e) {
    const uint8_t *magic = take(c, 4);
    uint32_t version;
    if (!magic || memcmp(magic, "GGUF", 4) != 0) {
        return error_set(e, STATUS_CORRUPT, "header", "not a GGUF file");
    }
    if (!take_u32(c, &version)) {
        return error_set(e, STATUS_CORRUPT, "header", "the file ends inside the header");
    }
    if ((version & 0xffffu) == 0 && version != 0) {
        return error_set(e, STATUS_UNSUPPORTED, "header", "a big-endian file is not supported");
    }
    if (version != 2 && version != 3) {
        return error_set(e, STATUS_UNSUPPORTED, "header",
                         "GGUF version %u is not supported (2 and 3 are)", version);
    }
    if (!take_u64(c, n_tensors) || !take_u64(c, n_keys)) {
        return error_set(e, STATUS_CORRUPT, "header", "the file ends inside the header");
    }
    enum status s = check_count(*n_keys, GGUF_MAX_KEYS, MIN_KEY_BYTES, left(c), "keys", e);
    if (s != STATUS_OK) return s;
    return check_count(*n_tensors, GGUF_MAX_TENSORS, MIN_TENSOR_BYTES, left(c), "tensors", e);
}

static enum status parse(struct gguf_file *f, struct error *e) {
    struct cursor c = {f->map.data, f->map.data + f->map.bytes};
    uint64_t n_tensors = 0, n_keys = 0;
    enum status s = read_header(&c, &n_tensors, &n_keys, e);
    if (s == STATUS_OK) s = read_keys(&c, f, n_keys, e);
    if (s == STATUS_OK) s = sort_keys(f, e);
    if (s != STATUS_OK) return s;

    f->tensors = calloc(n_tensors ? n_tensors : 1, sizeof *f->tensors);
    uint64_t *offsets = calloc(n_tensors ? n_tensors : 1, sizeof *offsets);
    if (!f->tensors || !offsets) {
        s = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the tensor table");
    } else {
        s = read_tensors(&c, f, offsets, n_tensors, e);
        if (s == STATUS_OK) s = place_tensors(&c, f, offsets, e);
    }
    free(offsets);
    return s;
}

enum status gguf_file_open(const char *path, struct gguf_file *f, struct error *e) {
    *f = (struct gguf_file){0};
    enum status s = map_open(path, &f->map, e);
    if (s != STATUS_OK) return s;
    if (f->map.bytes == 0) {
        s = error_set(e, STATUS_CORRUPT, "header", "the file is empty");
    } else {
        s = parse(f, e);
    }
    if (s != STATUS_OK) gguf_file_close(f);
    return s;
}

void gguf_file_close(struct gguf_file *f) {
    for (size_t i = 0; i < f->n_keys; i++) free(f->keys[i].starts);
    free(f->keys);
    free(f->by_key);
    free(f->tensors);
    map_close(&f->map);
    *f = (struct gguf_file){0};
}
