#include "models/label_heads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"

#define MAGIC 0x4c42414cu /* "LABL" */
enum { VERSION = 1 };

struct header {
    uint32_t magic, version, template, n_labels, n_heads, d_model, n_layers, n_buckets;
    uint32_t max_tokens, n_rows;
    float accuracy, accuracy_low, mean_layer, first_share;
    float text_accuracy, state_accuracy, full_accuracy, early_differs;
    uint8_t zero[56];
};
struct entry {
    uint32_t layer;
    float scale, prior_scale, threshold;
    uint8_t zero[16];
};
_Static_assert(sizeof(struct header) == 128 && sizeof(struct entry) == 32, "sizes of the format");

/* Where the parts begin. */
struct layout {
    size_t entries, ends, text, text_bias, text_scale, text_weight, bias, weight, bytes;
};

static size_t after(size_t at, size_t bytes) {
    return (at + bytes + 63) & ~(size_t)63;
}

static struct layout lay_out(const struct header *h, size_t label_bytes) {
    const size_t k = h->n_labels;
    struct layout l = {.entries = sizeof *h};
    l.ends = after(l.entries, h->n_heads * sizeof(struct entry));
    l.text = after(l.ends, k * sizeof(uint32_t));
    l.text_bias = after(l.text, label_bytes);
    l.text_scale = after(l.text_bias, k * sizeof(float));
    l.text_weight = after(l.text_scale, k * sizeof(float));
    l.bias = after(l.text_weight, (size_t)h->n_buckets * k);
    l.weight = after(l.bias, h->n_heads * k * sizeof(float));
    l.bytes = after(l.weight, h->n_heads * k * h->d_model * sizeof(float));
    return l;
}

void label_heads_key(const struct text *labels, uint32_t n, char key[LABEL_KEY_BYTES]) {
    static const char hex[] = "0123456789abcdef";
    /* A digest of digests: no label can pretend to be two. */
    XXH128_canonical_t parts[HEADS_MAX_LABELS + 1], all;
    CHECK(n <= HEADS_MAX_LABELS);
    XXH128_canonicalFromHash(&parts[0], XXH3_128bits_withSeed("template", 8, LABEL_TEMPLATE));
    for (uint32_t i = 0; i < n; i++)
        XXH128_canonicalFromHash(&parts[i + 1], XXH3_128bits(labels[i].data, labels[i].len));
    XXH128_canonicalFromHash(&all, XXH3_128bits(parts, (n + 1) * sizeof *parts));
    for (uint32_t i = 0; i < 16; i++) {
        key[2 * i] = hex[all.digest[i] >> 4];
        key[2 * i + 1] = hex[all.digest[i] & 15];
    }
    key[32] = '\0';
}

struct text label_heads_label(const struct label_heads *h, uint32_t i) {
    const uint32_t first = i > 0 ? h->label_end[i - 1] : 0;
    return (struct text){h->label_text + first, h->label_end[i] - first};
}

static enum status corrupt(struct error *e, const char *what) {
    return error_set(e, STATUS_CORRUPT, "label-heads", "label heads: %s", what);
}

static bool all_finite(const float *x, size_t n) {
    bool finite = true;
    for (size_t i = 0; i < n; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

static bool is_share(float x) {
    return x >= 0 && x <= 1;
}

static enum status check_header(const struct header *h, const struct plan *p, struct error *e) {
    if (h->magic != MAGIC) return corrupt(e, "not such a section");
    if (h->version != VERSION || h->template != LABEL_TEMPLATE)
        return error_set(e, STATUS_UNSUPPORTED, "label-heads",
                         "label heads: version %u for template %u is not this build's", h->version,
                         h->template);
    if (h->d_model != p->d_model || h->n_layers != p->n_layers)
        return error_set(e, STATUS_INVALID, "label-heads",
                         "label heads: made for %u layers of %u, this model has %u of %u",
                         h->n_layers, h->d_model, p->n_layers, p->d_model);
    if (h->n_labels < 2 || h->n_labels > HEADS_MAX_LABELS || h->n_heads < 1 ||
        h->n_heads > LABEL_MAX_HEADS || h->n_buckets == 0 || h->n_buckets > LABEL_MAX_BUCKETS ||
        (h->n_buckets & (h->n_buckets - 1)) != 0 || h->max_tokens < 2 ||
        h->max_tokens > LABEL_MAX_TOKENS)
        return corrupt(e, "a header out of range");
    if (!is_share(h->accuracy) || !is_share(h->accuracy_low) || !is_share(h->first_share) ||
        !is_share(h->text_accuracy) || !is_share(h->state_accuracy) ||
        !is_share(h->full_accuracy) || !(h->early_differs >= 0 && h->early_differs < 1) ||
        !(h->mean_layer >= 0 && h->mean_layer <= (float)h->n_layers))
        return corrupt(e, "figures out of range");
    return STATUS_OK;
}

static enum status view_labels(struct label_heads *h, const char *key, struct error *e) {
    struct text labels[HEADS_MAX_LABELS];
    uint32_t order[HEADS_MAX_LABELS];
    for (uint32_t i = 0; i < h->n_labels; i++) labels[i] = label_heads_label(h, i);
    if (!label_sort(labels, h->n_labels, order)) return corrupt(e, "two labels are equal");
    for (uint32_t i = 0; i < h->n_labels; i++)
        if (order[i] != i) return corrupt(e, "labels out of order");
    char want[LABEL_KEY_BYTES];
    label_heads_key(labels, h->n_labels, want);
    if (strcmp(want, key) != 0) return corrupt(e, "the key is not that of the labels");
    return STATUS_OK;
}

enum status label_heads_view(struct label_heads *out, const void *bytes, size_t n,
                             const struct plan *p, const char *key, struct error *e) {
    memset(out, 0, sizeof *out);
    CHECK(((uintptr_t)bytes & 63) == 0);
    struct header h;
    if (n < sizeof h) return corrupt(e, "too short");
    memcpy(&h, bytes, sizeof h);
    enum status st = check_header(&h, p, e);
    if (st != STATUS_OK) return st;
    const uint8_t *at = bytes;
    struct layout l = lay_out(&h, 0);
    if (n < l.text) return corrupt(e, "too short");
    struct label_heads r = {.n_labels = h.n_labels,
                            .n_heads = h.n_heads,
                            .d_model = h.d_model,
                            .max_tokens = h.max_tokens,
                            .n_buckets = h.n_buckets};
    r.label_end = (const uint32_t *)(const void *)(at + l.ends);
    uint32_t end = 0;
    for (uint32_t i = 0; i < h.n_labels; i++) {
        if (r.label_end[i] <= end || r.label_end[i] - end > REQUEST_MAX_LABEL_BYTES)
            return corrupt(e, "a label's length");
        end = r.label_end[i];
    }
    l = lay_out(&h, end);
    if (n != l.bytes) return corrupt(e, "not as long as its counts say");
    r.label_text = (const char *)at + l.text;
    r.text_bias = (const float *)(const void *)(at + l.text_bias);
    r.text_scale = (const float *)(const void *)(at + l.text_scale);
    r.text_weight = (const int8_t *)at + l.text_weight;
    const float *bias = (const float *)(const void *)(at + l.bias);
    const float *weight = (const float *)(const void *)(at + l.weight);
    const size_t k = h.n_labels;
    if (!all_finite(r.text_bias, k) || !all_finite(r.text_scale, k) ||
        !all_finite(bias, h.n_heads * k) || !all_finite(weight, h.n_heads * k * h.d_model))
        return corrupt(e, "a number that is not finite");
    const struct entry *entries = (const struct entry *)(const void *)(at + l.entries);
    for (uint32_t i = 0; i < h.n_heads; i++) {
        const struct entry *x = &entries[i];
        if (x->layer <= (i > 0 ? entries[i - 1].layer : 0) || x->layer > h.n_layers ||
            !isfinite(x->scale) || !isfinite(x->prior_scale) || !isfinite(x->threshold))
            return corrupt(e, "a head out of range");
        r.threshold[i] = x->threshold;
        r.heads[i] = (struct label_head){.layer = x->layer,
                                         .n_labels = h.n_labels,
                                         .scale = x->scale,
                                         .prior_scale = x->prior_scale,
                                         .weight = weight + i * k * h.d_model,
                                         .bias = bias + i * k};
    }
    r.figures = (struct label_figures){h.n_rows,         h.accuracy,      h.accuracy_low,
                                       h.mean_layer,     h.first_share,   h.text_accuracy,
                                       h.state_accuracy, h.full_accuracy, h.early_differs};
    st = view_labels(&r, key, e);
    if (st == STATUS_OK) *out = r;
    return st;
}

enum status label_heads_write(const struct label_heads *s, uint32_t n_layers, void **out,
                              size_t *n_bytes, struct error *e) {
    const struct label_figures *f = &s->figures;
    const struct header h = {.magic = MAGIC,
                             .version = VERSION,
                             .template = LABEL_TEMPLATE,
                             .n_labels = s->n_labels,
                             .n_heads = s->n_heads,
                             .d_model = s->d_model,
                             .n_layers = n_layers,
                             .n_buckets = s->n_buckets,
                             .max_tokens = s->max_tokens,
                             .n_rows = f->n_rows,
                             .accuracy = f->accuracy,
                             .accuracy_low = f->accuracy_low,
                             .mean_layer = f->mean_layer,
                             .first_share = f->first_share,
                             .text_accuracy = f->text_accuracy,
                             .state_accuracy = f->state_accuracy,
                             .full_accuracy = f->full_accuracy,
                             .early_differs = f->early_differs};
    const size_t k = s->n_labels, label_bytes = s->label_end[k - 1];
    const struct layout l = lay_out(&h, label_bytes);
    *out = NULL;
    *n_bytes = 0;
    void *mem = NULL;
    if (posix_memalign(&mem, 64, l.bytes) != 0)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for label heads");
    uint8_t *at = mem;
    memset(at, 0, l.bytes);
    memcpy(at, &h, sizeof h);
    memcpy(at + l.ends, s->label_end, k * sizeof *s->label_end);
    memcpy(at + l.text, s->label_text, label_bytes);
    memcpy(at + l.text_bias, s->text_bias, k * sizeof *s->text_bias);
    memcpy(at + l.text_scale, s->text_scale, k * sizeof *s->text_scale);
    memcpy(at + l.text_weight, s->text_weight, s->n_buckets * k);
    for (uint32_t i = 0; i < s->n_heads; i++) {
        const struct label_head *x = &s->heads[i];
        const struct entry entry = {.layer = x->layer,
                                    .scale = x->scale,
                                    .prior_scale = x->prior_scale,
                                    .threshold = s->threshold[i]};
        memcpy(at + l.entries + i * sizeof entry, &entry, sizeof entry);
        memcpy(at + l.bias + i * k * sizeof(float), x->bias, k * sizeof(float));
        memcpy(at + l.weight + i * k * s->d_model * sizeof(float), x->weight,
               k * s->d_model * sizeof(float));
    }
    *out = mem;
    *n_bytes = l.bytes;
    return STATUS_OK;
}

void label_heads_prior(const struct label_heads *h, const struct task_features *f, float *prior) {
    const uint32_t k = h->n_labels;
    float sum[HEADS_MAX_LABELS] = {0};
    for (uint32_t j = 0; j < f->block_start[TASK_CHARACTERS + 1]; j++) {
        const int8_t *w = h->text_weight + (size_t)label_bucket(h->n_buckets, f->index[j]) * k;
        for (uint32_t c = 0; c < k; c++) sum[c] += f->value[j] * (float)w[c];
    }
    for (uint32_t c = 0; c < k; c++) prior[c] = h->text_bias[c] + h->text_scale[c] * sum[c];
}
