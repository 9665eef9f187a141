/* A GGUF file of any bytes: opened through a memfd, then every key, element and tensor byte read.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t touch_key(const struct gguf *g, size_t i) {
    char text[128], key[256];
    enum gguf_type type;
    const struct gguf_string name = gguf_key(g, i, &type);
    gguf_value_text(g, i, text, sizeof text);
    uint64_t sum = strlen(text);
    if (name.len >= sizeof key) return sum;
    memcpy(key, name.data, name.len);
    key[name.len] = '\0';

    uint64_t u;
    double d;
    bool b;
    struct gguf_string s;
    size_t count;
    if (gguf_u64(g, key, &u)) sum += u;
    if (gguf_f64(g, key, &d)) sum += d > 0;
    if (gguf_bool(g, key, &b)) sum += b;
    if (gguf_str(g, key, &s)) {
        for (size_t k = 0; k < s.len; k++) sum += (uint8_t)s.data[k];
    }
    if (!gguf_array(g, key, &type, &count)) return sum;
    for (size_t k = 0; k <= count; k++) {
        const struct gguf_string item = gguf_array_str(g, key, k);
        for (size_t c = 0; c < item.len; c++) sum += (uint8_t)item.data[c];
        sum += (uint64_t)gguf_array_i64(g, key, k);
        sum += gguf_array_f64(g, key, k) > 0;
    }
    return sum;
}

static void touch_tensor(const struct gguf *g, size_t i) {
    const struct tensor *t = gguf_tensor(g, i);
    if (gguf_find_tensor(g, t->name) != t) abort();
    const struct tensor_format *f = tensor_format(t->type);
    float weights[256];
    for (uint64_t at = 0; at < t->bytes; at += f->block_bytes) {
        tensor_dequantise(t->type, (const uint8_t *)t->data + at, weights, f->block_weights);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct gguf *g;
    struct error e = {0};
    const enum status s = gguf_open(path, &g, &e);
    close(fd);
    if (s != STATUS_OK) {
        /* A refusal is one line and says so. */
        if (e.status != s || e.message[0] == '\0' || strchr(e.message, '\n')) abort();
        return 0;
    }
    volatile uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_keys(g); i++) sum += touch_key(g, i);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) touch_tensor(g, i);
    uint64_t digest[2];
    gguf_digest(g, digest);
    gguf_close(g);
    return 0;
}
