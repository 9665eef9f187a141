/* A safetensors file of any bytes: opened through a memfd, then every element read. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct safetensors *s;
    struct error e = {0};
    const enum status st = safetensors_open(path, &s, &e);
    close(fd);
    if (st != STATUS_OK) {
        /* A refusal is one line and says so. */
        if (e.status != st || e.message[0] == '\0' || strchr(e.message, '\n') || s) abort();
        return 0;
    }
    volatile uint64_t sum = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct safetensors_tensor *t = safetensors_tensor(s, i);
        if (safetensors_find(s, t->name) != t) abort();
        for (uint64_t k = 0; k < t->bytes; k++) sum += t->data[k];
        bytes += t->bytes;
        float out[64];
        for (uint64_t k = 0; safetensors_is_float(t->type) && k < t->n; k += 64)
            safetensors_read_f32(t, k, t->n - k < 64 ? (size_t)(t->n - k) : 64, out);
    }
    if (bytes > n) abort();
    safetensors_close(s);
    return 0;
}
