/* gguf_writer.h: writes GGUF files field by field, for tests. Nothing is checked, so lies are easy.
 * Include after cmocka.h.
 */
#ifndef LAC_TESTS_MODELS_GGUF_WRITER_H
#define LAC_TESTS_MODELS_GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/gguf.h"

struct file {
    uint8_t *bytes;
    size_t n, cap;
};

static inline void put(struct file *f, const void *bytes, size_t n) {
    if (f->n + n > f->cap) {
        f->cap = 2 * (f->n + n) + 256;
        f->bytes = realloc(f->bytes, f->cap);
        assert_non_null(f->bytes);
    }
    if (n) memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

/* The low `bytes` bytes of v. */
static inline void put_int(struct file *f, uint64_t v, size_t bytes) {
    put(f, &v, bytes);
}
static inline void put_f32(struct file *f, float v) {
    put(f, &v, sizeof v);
}

static inline void put_string(struct file *f, const char *s) {
    put_int(f, strlen(s), 8);
    put(f, s, strlen(s));
}

static inline void put_key(struct file *f, const char *key, enum gguf_type type) {
    put_string(f, key);
    put_int(f, type, 4);
}

static inline void put_array(struct file *f, const char *key, enum gguf_type element, uint64_t n) {
    put_key(f, key, GGUF_ARRAY);
    put_int(f, element, 4);
    put_int(f, n, 8);
}

static inline void put_header(struct file *f, uint64_t n_tensors, uint64_t n_keys) {
    put(f, "GGUF", 4);
    put_int(f, 3, 4);
    put_int(f, n_tensors, 8);
    put_int(f, n_keys, 8);
}

static inline void put_tensor(struct file *f, const char *name, uint32_t type, uint64_t offset,
                              uint32_t n_dims, const uint64_t *dims) {
    put_string(f, name);
    put_int(f, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) put_int(f, dims[d], 8);
    put_int(f, type, 4);
    put_int(f, offset, 8);
}

static inline void pad(struct file *f, size_t alignment) {
    while (f->n % alignment) put_int(f, 0, 1);
}

static inline void drop(struct file *f) {
    free(f->bytes);
    *f = (struct file){0};
}

/* Opens n bytes as a file of their own. */
static inline enum status open_bytes(const void *bytes, size_t n, struct gguf **g,
                                     struct error *e) {
    char path[64];
    const int fd = memfd_create("gguf", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t done = 0; done < n;) {
        const ssize_t w = write(fd, (const uint8_t *)bytes + done, n - done);
        assert_true(w > 0);
        done += (size_t)w;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const enum status s = gguf_open(path, g, e);
    close(fd);
    assert_int_equal(*g == NULL, s != STATUS_OK);
    return s;
}

#endif
