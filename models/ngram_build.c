/* The exact build of an n-gram table from whole answers, order by order. */
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/ngram_table_impl.h"

/* Lines are filled to this share of their entries when memory allows: fuller ones lose entries. */
#define FILL 0.7
/* A longer context is left out when the shorter one is at least this sure of the same token. */
#define AS_SURE 0.9f

struct seen {
    uint64_t hash, shorter;
    uint32_t token;
};

struct context {
    uint64_t hash;
    uint32_t token, count, total;
    float confidence; /* what a look-up gives in the end: its own, or the shorter one's */
};

struct entry {
    uint64_t hash;
    uint32_t token, count, total;
};

struct entries {
    struct entry *items;
    size_t n, cap;
};

static int compare_seen(const void *a, const void *b) {
    const struct seen *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int compare_entry(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    if (x->total != y->total) return x->total < y->total ? -1 : 1;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

static int compare_context(const void *a, const void *b) {
    const struct context *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* Every (context of o tokens, follower) of the lists. */
static size_t collect(const struct ngram_list *lists, uint32_t n_lists, uint32_t order,
                      struct seen *out) {
    size_t n = 0;
    for (uint32_t l = 0; l < n_lists; l++) {
        const uint32_t first = lists[l].first > order ? lists[l].first : order;
        for (uint32_t i = first; i < lists[l].n; i++) {
            uint64_t h = NGRAM_HASH_START, shorter = 0;
            for (uint32_t o = 1; o <= order; o++) {
                shorter = h;
                h = ngram_hash(h, lists[l].ids[i - o]);
            }
            out[n++] = (struct seen){h, shorter, lists[l].ids[i]};
        }
    }
    return n;
}

static bool add_entry(struct entries *a, const struct context *c) {
    if (a->n == a->cap) {
        const size_t cap = a->cap > 0 ? 2 * a->cap : 4096;
        struct entry *items = realloc(a->items, cap * sizeof *items);
        if (items == NULL) return false;
        a->items = items;
        a->cap = cap;
    }
    a->items[a->n++] = (struct entry){c->hash, c->token, c->count, c->total};
    return true;
}

/* The contexts of one order from its sorted occurrences, into contexts[] (ascending by hash), and
 * those that add something into `keep`. */
static bool one_order(const struct seen *seen, size_t n_seen, const struct context *shorter,
                      size_t n_shorter, float doubt, struct context *contexts, size_t *n_contexts,
                      struct entries *keep) {
    *n_contexts = 0;
    for (size_t i = 0; i < n_seen;) {
        struct context c = {.hash = seen[i].hash};
        const uint64_t shorter_hash = seen[i].shorter;
        while (i < n_seen && seen[i].hash == c.hash) {
            const uint32_t token = seen[i].token;
            uint32_t n = 0;
            while (i < n_seen && seen[i].hash == c.hash && seen[i].token == token) i++, n++;
            c.total += n;
            if (n > c.count) c.count = n, c.token = token;
        }
        c.confidence = (float)c.count / ((float)c.total + doubt);
        const struct context want = {.hash = shorter_hash};
        const struct context *s =
            n_shorter > 0 ? bsearch(&want, shorter, n_shorter, sizeof want, compare_context) : NULL;
        if (s != NULL && s->token == c.token && s->confidence >= AS_SURE * c.confidence)
            c.confidence = s->confidence;
        else if (!add_entry(keep, &c))
            return false;
        contexts[(*n_contexts)++] = c;
    }
    return true;
}

static void place(const struct entries *a, struct ngram_line *lines, uint32_t n_lines) {
    for (size_t i = 0; i < a->n; i++) {
        const struct entry *x = &a->items[i];
        struct ngram_line *line = &lines[ngram_line_of(x->hash, n_lines)];
        const uint32_t tag = ngram_tag(x->hash);
        for (uint32_t w = 0; w < NGRAM_WAYS; w++) {
            if (line->tag[w] == tag) break;
            if (line->tag[w] != 0) continue;
            uint32_t count = x->count, total = x->total;
            while (total > UINT16_MAX) total /= 2, count /= 2;
            line->tag[w] = tag;
            line->token[w] = x->token;
            line->count[w] = (uint16_t)(count > 0 ? count : 1);
            line->total[w] = (uint16_t)total;
            break;
        }
    }
}

enum status ngram_table_build(const struct ngram_list *lists, uint32_t n_lists, size_t max_bytes,
                              const float doubt[NGRAM_ORDERS], void **out, size_t *n_bytes,
                              struct error *e) {
    CHECK(max_bytes >= 2 * NGRAM_LINE_BYTES);
    *out = NULL;
    *n_bytes = 0;
    struct ngram_header header;
    ngram_header_write(&header, 0, 0, doubt);
    size_t n_tokens = 0;
    for (uint32_t l = 0; l < n_lists; l++) n_tokens += lists[l].n - lists[l].first;
    if (n_tokens > NGRAM_BUILD_MAX_TOKENS)
        return error_set(e, STATUS_TOO_LARGE, "answers", "%zu tokens of answers: at most %d",
                         n_tokens, NGRAM_BUILD_MAX_TOKENS);
    struct seen *seen = malloc((n_tokens + 1) * sizeof *seen);
    struct context *contexts[2] = {malloc((n_tokens + 1) * sizeof **contexts),
                                   malloc((n_tokens + 1) * sizeof **contexts)};
    struct entries keep = {0};
    size_t n_shorter = 0;
    bool ok = seen != NULL && contexts[0] != NULL && contexts[1] != NULL;
    for (uint32_t o = 1; o <= NGRAM_ORDERS && ok; o++) {
        const size_t n_seen = collect(lists, n_lists, o, seen);
        qsort(seen, n_seen, sizeof *seen, compare_seen);
        size_t n = 0;
        ok = one_order(seen, n_seen, contexts[o & 1], n_shorter, header.doubt[o - 1],
                       contexts[1 - (o & 1)], &n, &keep);
        n_shorter = n;
    }
    if (ok) {
        if (keep.n > 0) qsort(keep.items, keep.n, sizeof *keep.items, compare_entry);
        const size_t room = max_bytes / NGRAM_LINE_BYTES - 1;
        const size_t wanted = (size_t)((double)keep.n / (NGRAM_WAYS * FILL)) + 1;
        const uint32_t n_lines = (uint32_t)(wanted < room ? wanted : room);
        *n_bytes = ngram_table_bytes(n_lines);
        *out = aligned_alloc(NGRAM_LINE_BYTES, *n_bytes);
        ok = *out != NULL;
        if (ok) {
            memset(*out, 0, *n_bytes);
            ngram_header_write(*out, n_lines, n_tokens, header.doubt);
            place(&keep, (struct ngram_line *)((uint8_t *)*out + NGRAM_LINE_BYTES), n_lines);
        }
    }
    free(seen);
    free(contexts[0]);
    free(contexts[1]);
    free(keep.items);
    if (ok) return STATUS_OK;
    *n_bytes = 0;
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for an n-gram table of %zu tokens",
                     n_tokens);
}

void ngram_table_fit_doubt(const struct ngram_table *t, const struct ngram_list *lists,
                           uint32_t n_lists, float doubt[NGRAM_ORDERS]) {
    enum { STEPS = 40, LEAST_HITS = 32 };
    double right[NGRAM_ORDERS] = {0}, expected[NGRAM_ORDERS][STEPS] = {0};
    uint64_t hits[NGRAM_ORDERS] = {0};
    double tried[STEPS];
    tried[0] = 0.02;
    for (int i = 1; i < STEPS; i++) tried[i] = tried[i - 1] * 1.3;
    for (uint32_t l = 0; l < n_lists; l++) {
        for (uint32_t i = lists[l].first; i < lists[l].n; i++) {
            const struct ngram_hit h = ngram_table_find(t, lists[l].ids, i, NGRAM_ORDERS);
            if (h.order == 0) continue;
            const uint32_t o = h.order - 1;
            hits[o]++;
            right[o] += h.token == lists[l].ids[i];
            for (int k = 0; k < STEPS; k++) expected[o][k] += h.count / (h.total + tried[k]);
        }
    }
    for (uint32_t o = 0; o < NGRAM_ORDERS; o++) {
        doubt[o] = t->doubt[o];
        if (hits[o] < LEAST_HITS) continue;
        int best = 0;
        for (int k = 1; k < STEPS; k++) {
            const double off = expected[o][k] - right[o], best_off = expected[o][best] - right[o];
            if (off * off < best_off * best_off) best = k;
        }
        doubt[o] = (float)tried[best];
    }
}
