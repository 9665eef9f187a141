#include "sched/encode.h"

#include <math.h>
#include <string.h>

#include "core/check.h"
#include "core/plan.h"

size_t encode_footprint(uint32_t d_model) {
    return 2 * (size_t)d_model * sizeof(float);
}

void encode_init(struct encode *c, void *mem, uint32_t d_model) {
    memset(c, 0, sizeof *c);
    c->d_model = d_model;
    c->total = mem;
    c->partial = c->total + d_model;
}

static void empty(struct encode *c) {
    memset(c->total, 0, c->d_model * sizeof *c->total);
    memset(c->partial, 0, c->d_model * sizeof *c->partial);
}

void encode_start(struct encode *c, const uint32_t *ids, const uint32_t *ends, uint32_t n_texts) {
    c->ids = ids;
    c->ends = ends;
    c->n_texts = n_texts;
    c->text = 0;
    empty(c);
}

const uint32_t *encode_text(const struct encode *c, uint32_t *n) {
    const uint32_t first = c->text > 0 ? c->ends[c->text - 1] : 0;
    *n = c->ends[c->text] - first;
    return c->ids + first;
}

uint32_t encode_pages(uint32_t first, uint32_t n) {
    CHECK(n > 0);
    return (first + n - 1) / KV_PAGE_TOKENS - first / KV_PAGE_TOKENS + 1;
}

void encode_before(const struct encode *c, uint32_t first, uint32_t n, float *sums) {
    memset(sums, 0, (size_t)encode_pages(first, n) * c->d_model * sizeof *sums);
    memcpy(sums, c->partial, c->d_model * sizeof *sums);
}

void encode_after(struct encode *c, uint32_t first, uint32_t n, const float *sums) {
    const uint32_t end = first + n, d = c->d_model, pages = encode_pages(first, n);
    const uint32_t whole = end % KV_PAGE_TOKENS == 0 ? pages : pages - 1;
    for (uint32_t p = 0; p < whole; p++)
        for (uint32_t i = 0; i < d; i++) c->total[i] += sums[(size_t)p * d + i];
    if (whole < pages)
        memcpy(c->partial, sums + (size_t)whole * d, d * sizeof *sums);
    else
        memset(c->partial, 0, d * sizeof *c->partial);
}

bool encode_finish(struct encode *c) {
    double square = 0;
    for (uint32_t i = 0; i < c->d_model; i++) {
        c->total[i] += c->partial[i];
        square += (double)c->total[i] * (double)c->total[i];
    }
    if (!isfinite(square) || !(square > 0)) return false;
    const double scale = 1 / sqrt(square);
    for (uint32_t i = 0; i < c->d_model; i++) c->total[i] = (float)((double)c->total[i] * scale);
    return true;
}

bool encode_next(struct encode *c) {
    empty(c);
    if (c->text + 1 >= c->n_texts) return false;
    c->text++;
    return true;
}
