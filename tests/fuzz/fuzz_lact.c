/* A task model of any bytes, and the built-in one with changes under a right checksum: each input
 * is a list of {position, byte} and a length, so that the fuzzer reaches what lies behind the
 * checksum. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "models/task_default.h"
#include "models/task_model_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { HEADER_BYTES = 64, EDIT_BYTES = 4 };

static void check(const uint8_t *bytes, size_t n) {
    struct error e = {0};
    struct task_model *m;
    if (task_model_read(bytes, n, &m, &e) != STATUS_OK) {
        if (m != NULL || e.message[0] == '\0' || strchr(e.message, '\n')) abort();
        return;
    }
    struct task_workspace *w;
    struct task_verdict v;
    if (task_workspace_new(&w, &e) != STATUS_OK) abort();
    task_model_classify(m, w, "How many 3s? 请问", 18, &v);
    if (v.class >= task_model_n_classes(m) || !(v.confidence >= 0 && v.confidence <= 1)) abort();
    if (m->head.dim > 0) {
        float *hidden = calloc(m->head.dim, sizeof *hidden);
        if (hidden == NULL) abort();
        (void)task_model_refine(m, hidden, &v);
        free(hidden);
    }
    task_workspace_free(w);
    task_model_free(m);
}

static void seal(uint8_t *bytes, size_t n) {
    XXH128_canonical_t c;
    const uint64_t size = n;
    memcpy(bytes + 8, &size, 8);
    XXH128_canonicalFromHash(&c, XXH3_128bits(bytes + HEADER_BYTES, n - HEADER_BYTES));
    memcpy(bytes + 16, c.digest, 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    check(data, n);
    size_t size;
    const void *embedded = task_model_default_bytes(&size);
    uint8_t *bytes = malloc(size);
    if (bytes == NULL) abort();
    memcpy(bytes, embedded, size);
    size_t kept = size;
    if (n >= 4 && data[0] & 1) {
        const size_t cut = (size_t)data[1] | (size_t)data[2] << 8 | (size_t)data[3] << 16;
        kept = HEADER_BYTES + cut % (size - HEADER_BYTES);
    }
    for (size_t i = 4; i + EDIT_BYTES <= n; i += EDIT_BYTES) {
        const size_t at = (size_t)data[i] | (size_t)data[i + 1] << 8 | (size_t)data[i + 2] << 16;
        bytes[at % size] = data[i + 3];
    }
    seal(bytes, kept);
    check(bytes, kept);
    free(bytes);
    return 0;
}
