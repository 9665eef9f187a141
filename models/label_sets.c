#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "models/label_heads.h"
#include "models/sidecar.h"
#include "models/task_words.h"

static enum status add_set(struct label_sets *l, const struct sidecar_section *section,
                           const struct plan *p, struct error *e) {
    struct label_set *s = &l->sets[l->n];
    const enum status st =
        label_heads_view(&s->heads, section->data, section->bytes, p, section->key, e);
    if (st != STATUS_OK) return st;
    memcpy(s->key, section->key, LABEL_KEY_BYTES);
    s->first_head = l->heads.n_labels;
    memcpy(l->list + l->heads.n_labels, s->heads.heads, s->heads.n_heads * sizeof *l->list);
    l->heads.n_labels += s->heads.n_heads;
    l->digest = XXH3_64bits_withSeed(section->data, section->bytes, l->digest);
    l->n++;
    return STATUS_OK;
}

enum status label_sets_open(const struct sidecar *sidecar, const struct plan *p,
                            struct label_sets *out, struct error *e) {
    memset(out, 0, sizeof *out);
    uint32_t n = 0;
    for (uint32_t i = 0; i < sidecar_n_sections(sidecar); i++)
        n += sidecar_section(sidecar, i)->kind == SIDECAR_LABEL_HEADS;
    if (n == 0) return STATUS_OK;
    out->sets = calloc(n, sizeof *out->sets);
    out->list = calloc((size_t)n * LABEL_MAX_HEADS, sizeof *out->list);
    enum status st = STATUS_OK;
    if (out->sets == NULL || out->list == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for label heads");
    if (st == STATUS_OK) st = task_words_default(&out->words, e);
    for (uint32_t i = 0; st == STATUS_OK && i < sidecar_n_sections(sidecar); i++)
        if (sidecar_section(sidecar, i)->kind == SIDECAR_LABEL_HEADS)
            st = add_set(out, sidecar_section(sidecar, i), p, e);
    out->heads.labels = out->list;
    out->heads.d_model = p->d_model;
    if (st != STATUS_OK) label_sets_close(out);
    return st;
}

void label_sets_close(struct label_sets *l) {
    task_words_free(l->words);
    free(l->sets);
    free(l->list);
    memset(l, 0, sizeof *l);
}

const struct label_set *label_sets_find(const struct label_sets *l, const struct text *labels,
                                        uint32_t n) {
    char key[LABEL_KEY_BYTES];
    label_heads_key(labels, n, key);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct label_heads *h = &l->sets[i].heads;
        if (strcmp(l->sets[i].key, key) != 0 || h->n_labels != n) continue;
        uint32_t same = 0;
        while (same < n) {
            const struct text t = label_heads_label(h, same);
            if (t.len != labels[same].len || memcmp(t.data, labels[same].data, t.len) != 0) break;
            same++;
        }
        if (same == n) return &l->sets[i];
    }
    return NULL;
}
