/* A side-car of any bytes: as it is, then with the checksums made to fit, so that what lies behind
 * them is reached; then every section by its own reader. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/learned_block.h"
#include "models/label_heads.h"
#include "models/ngram_table.h"
#include "models/shortlist.h"
#include "models/sidecar_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Layers of the smallest shape that has every kind of tensor. */
static void read_block(const void *data, size_t n) {
    static const double INV_FREQ[2] = {1, 0.1};
    struct tensor some = {0};
    struct layer_plan layers[2] = {{.n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 4,
                                    .d_ff = 8,
                                    .residual_scale = 1,
                                    .attn_norm = &some,
                                    .ffn_norm = &some,
                                    .gate = {&some, 0, 8}}};
    layers[1] = layers[0];
    const struct plan plan = {.architecture = "llama",
                              .n_layers = 2,
                              .d_model = 8,
                              .n_ropes = 1,
                              .ropes = {{ROPE_HALVES, 4, INV_FREQ, 1}},
                              .layers = layers};
    struct learned_block b;
    struct error e = {0};
    if (learned_block_view(&b, data, n, &plan, &e) != STATUS_OK) {
        if (e.message[0] == '\0') abort();
        return;
    }
    float *weights = malloc(train_tensor_offset(&b.shape, TRAIN_TENSORS) * sizeof *weights);
    if (weights == NULL) abort();
    learned_block_weights(&b, weights);
    free(weights);
}

static void read_section(const struct sidecar_section *x) {
    volatile uint64_t sum = 0;
    struct error e = {0};
    for (size_t i = 0; i < x->bytes; i++) sum += ((const uint8_t *)x->data)[i];
    read_block(x->data, x->bytes);
    struct ngram_table t;
    if (ngram_table_view(&t, x->data, x->bytes, &e) == STATUS_OK) {
        struct ngram_source source;
        struct draft_proposal p;
        ngram_source_init(&source, &t, NULL, 1000);
        for (uint32_t i = 0; i < 64; i++) {
            const uint32_t context[3] = {i, i * 7, i};
            draft_propose(&source.source, context, 3, DRAFT_MAX_TOKENS, &p);
            for (uint32_t k = 0; k < p.n; k++)
                if (p.ids[k] >= 1000 || !(p.confidence[k] > 0 && p.confidence[k] <= 1)) abort();
        }
    } else if (e.message[0] == '\0') {
        abort();
    }
    struct shortlist s;
    memset(&e, 0, sizeof e);
    if (shortlist_view(&s, x->data, x->bytes, 1000, &e) == STATUS_OK) {
        for (uint32_t i = 0; i < s.n_ids; i++)
            if (shortlist_find(&s, s.ids[i]) != i) abort();
    } else if (e.message[0] == '\0') {
        abort();
    }
    struct label_heads l;
    const struct plan plan = {.n_layers = 12, .d_model = 20};
    memset(&e, 0, sizeof e);
    if (label_heads_view(&l, x->data, x->bytes, &plan, x->key, &e) == STATUS_OK) {
        const struct task_features f = {.n = 0};
        float prior[HEADS_MAX_LABELS];
        label_heads_prior(&l, &f, prior);
    } else if (e.message[0] == '\0') {
        abort();
    }
}

static void open_bytes(const uint8_t *data, size_t n) {
    char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct sidecar *s;
    struct error e = {0};
    const enum status st = sidecar_open(path, NULL, &s, &e);
    close(fd);
    if (st != STATUS_OK) {
        if (s != NULL || e.status != st || e.message[0] == '\0' || strchr(e.message, '\n')) abort();
        return;
    }
    for (uint32_t i = 0; i < sidecar_n_sections(s); i++) {
        const struct sidecar_section *x = sidecar_section(s, i);
        if (sidecar_find(s, x->kind, x->key) != x) abort();
        read_section(x);
    }
    sidecar_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    open_bytes(data, n);
    struct sidecar_header h;
    if (n < sizeof h) return 0;
    uint8_t *fixed = malloc(n);
    if (fixed == NULL) abort();
    memcpy(fixed, data, n);
    memcpy(&h, fixed, sizeof h);
    memcpy(h.magic, SIDECAR_MAGIC, sizeof h.magic);
    h.version = SIDECAR_VERSION;
    h.file_bytes = n;
    if (h.n_sections <= (n - sizeof h) / sizeof(struct sidecar_entry)) {
        struct sidecar_entry *entries = (struct sidecar_entry *)(fixed + sizeof h);
        for (uint32_t i = 0; i < h.n_sections; i++)
            if (entries[i].offset <= n && entries[i].length <= n - entries[i].offset)
                sidecar_hash_bytes(fixed + entries[i].offset, entries[i].length, entries[i].hash);
        sidecar_hash_header(&h, entries, h.hash);
    }
    memcpy(fixed, &h, sizeof h);
    open_bytes(fixed, n);
    free(fixed);
    return 0;
}
