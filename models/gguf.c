#include "models/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* the hash state on the stack */
#include <xxhash.h>

#include "core/buffer.h"
#include "core/check.h"
#include "core/json_writer.h"
#include "models/gguf_file.h"

enum {
    MAX_FILES = 999,
    VALUE_TEXT_ITEMS = 16, /* elements of an array that gguf_value_text shows */
};

struct gguf {
    size_t n_files;
    struct gguf_file *files; /* [n_files]; keys are read from the first */
    size_t n_tensors;
    const struct tensor **tensors; /* all files', in file order */
    const struct tensor **by_name; /* the same, sorted */
    bool has_digest;
    uint64_t digest[2];
};

static int compare_tensors(const void *a, const void *b) {
    const struct tensor *const *x = a;
    const struct tensor *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum status index_tensors(struct gguf *g, struct error *e) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_files; i++) n += g->files[i].n_tensors;
    if (n > GGUF_MAX_TENSORS) {
        return error_set(e, STATUS_TOO_LARGE, "header", "%zu tensors, at most %d are read", n,
                         GGUF_MAX_TENSORS);
    }
    g->tensors = malloc((n ? n : 1) * sizeof *g->tensors);
    g->by_name = malloc((n ? n : 1) * sizeof *g->by_name);
    if (!g->tensors || !g->by_name) {
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the tensor table");
    }
    for (size_t i = 0; i < g->n_files; i++) {
        const struct gguf_file *f = &g->files[i];
        for (size_t t = 0; t < f->n_tensors; t++) g->tensors[g->n_tensors++] = &f->tensors[t];
    }
    memcpy(g->by_name, g->tensors, n * sizeof *g->by_name);
    qsort(g->by_name, n, sizeof *g->by_name, compare_tensors);
    for (size_t i = 1; i < n; i++) {
        const char *name = g->by_name[i]->name;
        if (strcmp(g->by_name[i - 1]->name, name) == 0) {
            return gguf_error(e, STATUS_CORRUPT, (struct gguf_string){name, strlen(name)},
                              "this tensor appears twice");
        }
    }
    return STATUS_OK;
}

/* A non-negative integer key of one file; `fallback` if it is absent. */
static bool file_u64(const struct gguf_file *f, const char *key, uint64_t fallback, uint64_t *out) {
    const struct gguf_entry *k = gguf_file_find(f, key);
    bool negative = false;
    *out = fallback;
    if (!k) return true;
    return k->type != GGUF_ARRAY && gguf_entry_integer(k, 0, out, &negative) && !negative;
}

/* Checks that the file says it is number `no` of `count`. */
static enum status check_place(const struct gguf_file *f, uint64_t no, uint64_t count,
                               struct error *e) {
    uint64_t said;
    if (!file_u64(f, "split.count", 1, &said) || said != count) {
        return error_set(e, STATUS_CORRUPT, "split.count", "not %" PRIu64 " as in the first file",
                         count);
    }
    if (!file_u64(f, "split.no", 0, &said) || said != no) {
        return error_set(e, STATUS_CORRUPT, "split.no", "not %" PRIu64 " as in the file's name",
                         no);
    }
    return STATUS_OK;
}

static enum status open_others(struct gguf *g, const char *path, uint64_t count, struct error *e) {
    char suffix[64];
    const int suffix_len = snprintf(suffix, sizeof suffix, "-00001-of-%05" PRIu64 ".gguf", count);
    const size_t path_len = strlen(path);
    const size_t stem_len = path_len - (size_t)suffix_len;
    if (path_len < (size_t)suffix_len || strcmp(path + stem_len, suffix) != 0) {
        return error_set(e, STATUS_INVALID, "split.count",
                         "the first of %" PRIu64 " files must be given, its name ending in %s",
                         count, suffix);
    }
    struct gguf_file *files = realloc(g->files, count * sizeof *files);
    char *other = malloc(path_len + 1);
    if (files) g->files = files;
    if (!files || !other) {
        free(other);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %" PRIu64 " files", count);
    }
    enum status s = STATUS_OK;
    for (uint64_t i = 1; i < count && s == STATUS_OK; i++) {
        char number[24];
        snprintf(number, sizeof number, "%05" PRIu64, i + 1);
        memcpy(other, path, path_len + 1);
        memcpy(other + stem_len + 1, number, 5);
        struct error inner = {0};
        s = gguf_file_open(other, &g->files[g->n_files], &inner);
        if (s == STATUS_OK) {
            g->n_files++;
            s = check_place(&g->files[i], i, count, &inner);
        }
        if (s != STATUS_OK) {
            (void)error_set(e, s, inner.field, "file %" PRIu64 " of %" PRIu64 ": %s", i + 1, count,
                            inner.message);
        }
    }
    free(other);
    return s;
}

static enum status open_all(struct gguf *g, const char *path, struct error *e) {
    g->files = calloc(1, sizeof *g->files);
    if (!g->files) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to open %s", path);
    enum status s = gguf_file_open(path, &g->files[0], e);
    if (s != STATUS_OK) return s;
    g->n_files = 1;

    uint64_t count, no;
    if (!file_u64(&g->files[0], "split.count", 1, &count) || count > MAX_FILES) {
        return error_set(e, STATUS_CORRUPT, "split.count", "not a number of files from 0 to %d",
                         MAX_FILES);
    }
    if (count > 1) {
        if (!file_u64(&g->files[0], "split.no", 0, &no) || no != 0) {
            return error_set(e, STATUS_INVALID, "split.no",
                             "not the first of %" PRIu64 " files; give the one that ends in "
                             "-00001-of-%05" PRIu64 ".gguf",
                             count, count);
        }
        s = open_others(g, path, count, e);
        if (s != STATUS_OK) return s;
    }
    s = index_tensors(g, e);
    if (s != STATUS_OK) return s;
    uint64_t total;
    if (!file_u64(&g->files[0], "split.tensors.count", g->n_tensors, &total) ||
        total != g->n_tensors) {
        return error_set(e, STATUS_CORRUPT, "split.tensors.count", "the files hold %zu tensors",
                         g->n_tensors);
    }
    return STATUS_OK;
}

enum status gguf_open(const char *path, struct gguf **out, struct error *e) {
    *out = NULL;
    struct gguf *g = calloc(1, sizeof *g);
    if (!g) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to open %s", path);
    const enum status s = open_all(g, path, e);
    if (s != STATUS_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return STATUS_OK;
}

void gguf_close(struct gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_files; i++) gguf_file_close(&g->files[i]);
    free(g->files);
    free(g->tensors);
    free(g->by_name);
    free(g);
}

static const struct gguf_entry *scalar(const struct gguf *g, const char *key) {
    const struct gguf_entry *k = gguf_file_find(&g->files[0], key);
    return k && k->type != GGUF_ARRAY ? k : NULL;
}

static struct gguf_string string_at(const uint8_t *p) {
    uint64_t len;
    memcpy(&len, p, sizeof len);
    return (struct gguf_string){(const char *)p + sizeof len, (size_t)len};
}

static double real_at(const struct gguf_entry *k, size_t i) {
    double d;
    float f;
    if ((k->type == GGUF_ARRAY ? k->element : k->type) == GGUF_F64) {
        memcpy(&d, k->value + i * sizeof d, sizeof d);
        return d;
    }
    memcpy(&f, k->value + i * sizeof f, sizeof f);
    return (double)f;
}

bool gguf_has(const struct gguf *g, const char *key) {
    return gguf_file_find(&g->files[0], key) != NULL;
}

bool gguf_u64(const struct gguf *g, const char *key, uint64_t *out) {
    const struct gguf_entry *k = scalar(g, key);
    uint64_t bits = 0;
    bool negative = false;
    const bool ok = k && gguf_entry_integer(k, 0, &bits, &negative) && !negative;
    *out = ok ? bits : 0;
    return ok;
}

bool gguf_f64(const struct gguf *g, const char *key, double *out) {
    const struct gguf_entry *k = scalar(g, key);
    uint64_t bits;
    bool negative;
    *out = 0;
    if (k == NULL) return false;
    if (k->type == GGUF_F32 || k->type == GGUF_F64) {
        *out = real_at(k, 0);
        return true;
    }
    if (!gguf_entry_integer(k, 0, &bits, &negative)) return false;
    *out = negative ? (double)(int64_t)bits : (double)bits;
    return true;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out) {
    const struct gguf_entry *k = scalar(g, key);
    const bool ok = k && k->type == GGUF_BOOL;
    *out = ok && k->value[0] != 0;
    return ok;
}

bool gguf_str(const struct gguf *g, const char *key, struct gguf_string *out) {
    const struct gguf_entry *k = scalar(g, key);
    const bool ok = k && k->type == GGUF_STRING;
    *out = ok ? string_at(k->value) : (struct gguf_string){"", 0};
    return ok;
}

static const struct gguf_entry *array(const struct gguf *g, const char *key) {
    const struct gguf_entry *k = gguf_file_find(&g->files[0], key);
    return k && k->type == GGUF_ARRAY ? k : NULL;
}

bool gguf_array(const struct gguf *g, const char *key, enum gguf_type *type, size_t *n) {
    const struct gguf_entry *k = array(g, key);
    *type = k ? k->element : GGUF_U8;
    *n = k ? k->n : 0;
    return k != NULL;
}

struct gguf_string gguf_array_str(const struct gguf *g, const char *key, size_t i) {
    const struct gguf_entry *k = array(g, key);
    if (!k || k->element != GGUF_STRING || i >= k->n) return (struct gguf_string){"", 0};
    return string_at(k->value + k->starts[i]);
}

double gguf_array_f64(const struct gguf *g, const char *key, size_t i) {
    const struct gguf_entry *k = array(g, key);
    uint64_t bits;
    bool negative;
    if (!k || i >= k->n) return 0.0;
    if (k->element == GGUF_F32 || k->element == GGUF_F64) return real_at(k, i);
    if (!gguf_entry_integer(k, i, &bits, &negative)) return 0.0;
    return negative ? (double)(int64_t)bits : (double)bits;
}

int64_t gguf_array_i64(const struct gguf *g, const char *key, size_t i) {
    const struct gguf_entry *k = array(g, key);
    uint64_t bits;
    bool negative;
    if (!k || i >= k->n) return 0;
    if (k->element == GGUF_BOOL) return k->value[i];
    if (!gguf_entry_integer(k, i, &bits, &negative)) return 0;
    if (!negative && bits > INT64_MAX) return INT64_MAX;
    return (int64_t)bits;
}

const void *gguf_array_data(const struct gguf *g, const char *key) {
    const struct gguf_entry *k = array(g, key);
    return k && k->element != GGUF_STRING ? k->value : NULL;
}

size_t gguf_n_keys(const struct gguf *g) {
    return g->files[0].n_keys;
}

struct gguf_string gguf_key(const struct gguf *g, size_t i, enum gguf_type *type) {
    CHECK(i < g->files[0].n_keys);
    const struct gguf_entry *k = &g->files[0].keys[i];
    if (type) *type = k->type;
    return k->key;
}

static void write_element(struct json_writer *j, const struct gguf_entry *k, size_t i, size_t cap) {
    const enum gguf_type type = k->type == GGUF_ARRAY ? k->element : k->type;
    uint64_t bits;
    bool negative;
    if (type == GGUF_STRING) {
        const struct gguf_string s = string_at(k->value + (k->starts ? k->starts[i] : 0));
        json_write_string_n(j, s.data, s.len < cap ? s.len : cap);
    } else if (type == GGUF_F32) {
        json_write_float(j, (float)real_at(k, i));
    } else if (type == GGUF_F64) {
        json_write_double(j, real_at(k, i));
    } else if (type == GGUF_BOOL) {
        json_write_bool(j, k->value[i] != 0);
    } else if (gguf_entry_integer(k, i, &bits, &negative)) {
        if (negative) {
            json_write_int(j, (int64_t)bits);
        } else {
            json_write_uint(j, bits);
        }
    }
}

/* The longest start of the n bytes, at most `cap`, that does not cut a UTF-8 character. */
static size_t cut_utf8(const char *text, size_t n, size_t cap) {
    if (n <= cap) return n;
    while (cap > 0 && ((unsigned char)text[cap] & 0xc0u) == 0x80u) cap--;
    return cap;
}

void gguf_value_text(const struct gguf *g, size_t i, char *text, size_t cap) {
    CHECK(i < g->files[0].n_keys);
    if (cap == 0) return;
    text[0] = '\0';
    const struct gguf_entry *k = &g->files[0].keys[i];
    struct buffer out;
    buffer_init(&out, 0);
    struct json_writer j;
    json_write_begin(&j, &out);
    if (k->type == GGUF_ARRAY) {
        const size_t shown = k->n < VALUE_TEXT_ITEMS ? k->n : VALUE_TEXT_ITEMS;
        json_write_array(&j);
        for (size_t n = 0; n < shown; n++) write_element(&j, k, n, cap);
        json_write_array_end(&j);
        if (shown < k->n) {
            out.len--; /* the closing bracket */
            buffer_printf(&out, ", and %zu more]", k->n - shown);
        }
    } else {
        write_element(&j, k, 0, cap);
    }
    const size_t n = cut_utf8(out.data, out.len, cap - 1);
    if (n) memcpy(text, out.data, n);
    text[n] = '\0';
    buffer_free(&out);
}

size_t gguf_n_tensors(const struct gguf *g) {
    return g->n_tensors;
}

const struct tensor *gguf_tensor(const struct gguf *g, size_t i) {
    CHECK(i < g->n_tensors);
    return g->tensors[i];
}

const struct tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int order = strcmp(name, g->by_name[mid]->name);
        if (order == 0) return g->by_name[mid];
        if (order < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

uint64_t gguf_file_bytes(const struct gguf *g) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->n_files; i++) bytes += g->files[i].map.bytes;
    return bytes;
}

void gguf_digest(struct gguf *g, uint64_t out[2]) {
    if (!g->has_digest) {
        XXH3_state_t state;
        XXH3_INITSTATE(&state);
        XXH_errorcode rc = XXH3_128bits_reset(&state);
        for (size_t i = 0; i < g->n_files; i++) {
            const struct gguf_file *f = &g->files[i];
            rc |= XXH3_128bits_update(&state, f->infos, f->infos_bytes);
            rc |= XXH3_128bits_update(&state, f->data, f->data_bytes);
        }
        CHECK(rc == XXH_OK);
        const XXH128_hash_t h = XXH3_128bits_digest(&state);
        g->digest[0] = h.low64;
        g->digest[1] = h.high64;
        g->has_digest = true;
    }
    out[0] = g->digest[0];
    out[1] = g->digest[1];
}
