#include "models/shortlist.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"

#define MAGIC 0x54524853u /* "SHRT" */
enum { VERSION = 1 };

struct header {
    uint32_t magic, version, n_ids, n_vocab;
    float coverage;
    uint8_t zero[44];
};
_Static_assert(sizeof(struct header) == 64, "the header is 64 bytes");

enum status shortlist_view(struct shortlist *s, const void *bytes, size_t n, uint32_t n_vocab,
                           struct error *e) {
    memset(s, 0, sizeof *s);
    struct header h;
    if (n < sizeof h) return error_set(e, STATUS_CORRUPT, "shortlist", "shortlist: too short");
    memcpy(&h, bytes, sizeof h);
    if (h.magic != MAGIC) return error_set(e, STATUS_CORRUPT, "shortlist", "shortlist: not one");
    if (h.version != VERSION)
        return error_set(e, STATUS_UNSUPPORTED, "shortlist",
                         "shortlist: version %u is not this build's", h.version);
    if (h.n_vocab != n_vocab)
        return error_set(e, STATUS_INVALID, "shortlist",
                         "shortlist: made for a vocabulary of %u, this one has %u", h.n_vocab,
                         n_vocab);
    if (h.n_ids == 0 || h.n_ids > n_vocab || (n - sizeof h) / sizeof(uint32_t) != h.n_ids ||
        n % sizeof(uint32_t) != 0 || !(h.coverage >= 0 && h.coverage <= 1))
        return error_set(e, STATUS_CORRUPT, "shortlist", "shortlist: %u ids in %zu bytes", h.n_ids,
                         n);
    const uint32_t *ids = (const uint32_t *)((const uint8_t *)bytes + sizeof h);
    for (uint32_t i = 0; i < h.n_ids; i++)
        if (ids[i] >= n_vocab || (i > 0 && ids[i] <= ids[i - 1]))
            return error_set(e, STATUS_CORRUPT, "shortlist", "shortlist: id %u is out of order", i);
    *s = (struct shortlist){ids, h.n_ids, n_vocab, h.coverage};
    return STATUS_OK;
}

uint32_t shortlist_find(const struct shortlist *s, uint32_t id) {
    uint32_t lo = 0, hi = s->n_ids;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (s->ids[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n_ids && s->ids[lo] == id ? lo : SHORTLIST_NONE;
}

struct ranked {
    double mass;
    uint32_t id;
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->mass != y->mass) return x->mass > y->mass ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int compare_ids(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

enum status shortlist_choose(const double *mass, uint32_t n_vocab, uint32_t n_ids, uint32_t *ids,
                             double *held, struct error *e) {
    CHECK(n_ids <= n_vocab);
    struct ranked *ranked = malloc((n_vocab + 1) * sizeof *ranked);
    *held = 0;
    if (ranked == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a shortlist");
    double all = 0, sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        ranked[i] = (struct ranked){mass[i], i};
        all += mass[i];
    }
    qsort(ranked, n_vocab, sizeof *ranked, compare_ranked);
    for (uint32_t i = 0; i < n_ids; i++) {
        ids[i] = ranked[i].id;
        sum += ranked[i].mass;
    }
    free(ranked);
    qsort(ids, n_ids, sizeof *ids, compare_ids);
    *held = all > 0 ? sum / all : 0;
    return STATUS_OK;
}

enum status shortlist_write(const uint32_t *ids, uint32_t n_ids, uint32_t n_vocab, float coverage,
                            void **out, size_t *n_bytes, struct error *e) {
    *n_bytes = sizeof(struct header) + n_ids * sizeof *ids;
    *out = malloc(*n_bytes);
    if (*out == NULL) {
        *n_bytes = 0;
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a shortlist");
    }
    const struct header h = {.magic = MAGIC,
                             .version = VERSION,
                             .n_ids = n_ids,
                             .n_vocab = n_vocab,
                             .coverage = coverage};
    memcpy(*out, &h, sizeof h);
    memcpy((uint8_t *)*out + sizeof h, ids, n_ids * sizeof *ids);
    return STATUS_OK;
}
