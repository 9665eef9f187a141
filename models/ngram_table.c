#include "models/ngram_table.h"

#include <string.h>

#include "core/check.h"
#include "models/ngram_table_impl.h"

static const float DEFAULT_DOUBT[NGRAM_ORDERS] = {1.5f, 1.0f, 0.7f, 0.55f, 0.45f, 0.4f};

uint64_t ngram_hash(uint64_t shorter, uint32_t id) {
    uint64_t h = (shorter ^ id) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

uint32_t ngram_tag(uint64_t hash) {
    const uint32_t tag = (uint32_t)hash;
    return tag != 0 ? tag : 1;
}

uint32_t ngram_line_of(uint64_t hash, uint32_t n_lines) {
    return (uint32_t)((hash >> 32) * n_lines >> 32);
}

/* hashes[o - 1] of the last o tokens; returns how many orders there are. */
static uint32_t hash_context(const uint32_t *context, uint32_t n, uint32_t max_order,
                             uint64_t hashes[NGRAM_ORDERS]) {
    const uint32_t orders = n < max_order ? n : max_order;
    uint64_t h = NGRAM_HASH_START;
    for (uint32_t o = 0; o < orders; o++) hashes[o] = h = ngram_hash(h, context[n - 1 - o]);
    return orders;
}

size_t ngram_table_bytes(uint32_t n_lines) {
    return ((size_t)n_lines + 1) * NGRAM_LINE_BYTES;
}

void ngram_header_write(void *mem, uint32_t n_lines, uint64_t n_learned_tokens,
                        const float *doubt) {
    struct ngram_header *h = mem;
    *h = (struct ngram_header){.magic = NGRAM_MAGIC,
                               .version = NGRAM_VERSION,
                               .n_lines = n_lines,
                               .orders = NGRAM_ORDERS,
                               .n_learned_tokens = n_learned_tokens};
    memcpy(h->doubt, doubt != NULL ? doubt : DEFAULT_DOUBT, sizeof h->doubt);
}

void ngram_table_init(struct ngram_table *t, void *mem, uint32_t n_lines) {
    CHECK(((uintptr_t)mem & 63) == 0 && n_lines >= 1);
    memset(mem, 0, ngram_table_bytes(n_lines));
    ngram_header_write(mem, n_lines, 0, NULL);
    struct ngram_line *lines = (struct ngram_line *)((uint8_t *)mem + NGRAM_LINE_BYTES);
    *t = (struct ngram_table){.lines = lines, .writable = lines, .n_lines = n_lines};
    memcpy(t->doubt, DEFAULT_DOUBT, sizeof t->doubt);
}

enum status ngram_table_view(struct ngram_table *t, const void *bytes, size_t n, struct error *e) {
    memset(t, 0, sizeof *t);
    CHECK(((uintptr_t)bytes & 63) == 0);
    struct ngram_header h;
    if (n < 2 * NGRAM_LINE_BYTES)
        return error_set(e, STATUS_CORRUPT, "ngram", "n-gram table: %zu bytes are too few", n);
    memcpy(&h, bytes, sizeof h);
    if (h.magic != NGRAM_MAGIC)
        return error_set(e, STATUS_CORRUPT, "ngram", "n-gram table: not one");
    if (h.version != NGRAM_VERSION || h.orders != NGRAM_ORDERS)
        return error_set(e, STATUS_UNSUPPORTED, "ngram",
                         "n-gram table: version %u with %u orders is not this build's", h.version,
                         h.orders);
    if (h.n_lines == 0 || ngram_table_bytes(h.n_lines) != n)
        return error_set(e, STATUS_CORRUPT, "ngram", "n-gram table: %u lines in %zu bytes",
                         h.n_lines, n);
    for (int o = 0; o < NGRAM_ORDERS; o++)
        if (!(h.doubt[o] > 0 && h.doubt[o] < 1e6f))
            return error_set(e, STATUS_CORRUPT, "ngram", "n-gram table: a doubt out of range");
    t->lines = (const struct ngram_line *)((const uint8_t *)bytes + NGRAM_LINE_BYTES);
    t->n_lines = h.n_lines;
    t->n_learned_tokens = h.n_learned_tokens;
    memcpy(t->doubt, h.doubt, sizeof t->doubt);
    return STATUS_OK;
}

static void count(struct ngram_line *line, uint32_t tag, uint32_t token) {
    uint32_t least = 0;
    for (uint32_t w = 0; w < NGRAM_WAYS; w++) {
        if (line->tag[w] == tag) {
            if (line->total[w] == UINT16_MAX) line->total[w] /= 2, line->count[w] /= 2;
            line->total[w]++;
            if (line->token[w] == token)
                line->count[w]++;
            else if (line->count[w] > 1)
                line->count[w]--;
            else
                line->token[w] = token, line->count[w] = 1;
            return;
        }
        if (line->tag[least] == 0) continue;
        if (line->tag[w] == 0 || line->total[w] < line->total[least]) least = w;
    }
    line->tag[least] = tag;
    line->token[least] = token;
    line->count[least] = line->total[least] = 1;
}

void ngram_table_learn(struct ngram_table *t, const uint32_t *ids, uint32_t first, uint32_t n) {
    CHECK(t->writable != NULL);
    for (uint32_t i = first; i < n; i++) {
        uint64_t hashes[NGRAM_ORDERS];
        const uint32_t orders = hash_context(ids, i, NGRAM_ORDERS, hashes);
        for (uint32_t o = 0; o < orders; o++)
            count(&t->writable[ngram_line_of(hashes[o], t->n_lines)], ngram_tag(hashes[o]), ids[i]);
        t->n_learned_tokens++;
    }
}

static bool look(const struct ngram_table *t, uint64_t hash, uint32_t order,
                 struct ngram_hit *hit) {
    const struct ngram_line *line = &t->lines[ngram_line_of(hash, t->n_lines)];
    const uint32_t tag = ngram_tag(hash);
    for (uint32_t w = 0; w < NGRAM_WAYS; w++) {
        if (line->tag[w] != tag) continue;
        const uint32_t total = line->total[w] > 0 ? line->total[w] : 1;
        const uint32_t n = line->count[w] == 0      ? 1
                           : line->count[w] < total ? line->count[w]
                                                    : total;
        *hit = (struct ngram_hit){line->token[w], order, n, total,
                                  (float)n / ((float)total + t->doubt[order - 1])};
        return true;
    }
    return false;
}

static void prefetch(const struct ngram_table *t, const uint64_t *hashes, uint32_t orders) {
    for (uint32_t o = 0; o < orders; o++)
        __builtin_prefetch(&t->lines[ngram_line_of(hashes[o], t->n_lines)]);
}

struct ngram_hit ngram_table_find(const struct ngram_table *t, const uint32_t *context,
                                  uint32_t n_context, uint32_t max_order) {
    uint64_t hashes[NGRAM_ORDERS];
    struct ngram_hit hit = {0};
    CHECK(max_order <= NGRAM_ORDERS);
    const uint32_t orders = hash_context(context, n_context, max_order, hashes);
    prefetch(t, hashes, orders);
    for (uint32_t o = orders; o > 0; o--)
        if (look(t, hashes[o - 1], o, &hit)) break;
    return hit;
}

static void source_propose(const struct draft_source *base, const uint32_t *context,
                           uint32_t n_context, uint32_t max, struct draft_proposal *out) {
    const struct ngram_source *s = (const struct ngram_source *)base;
    uint32_t tail[NGRAM_ORDERS + DRAFT_MAX_TOKENS];
    uint32_t n = n_context < NGRAM_ORDERS ? n_context : NGRAM_ORDERS;
    if (n > 0) memcpy(tail, context + n_context - n, n * sizeof *tail);
    if (max > DRAFT_MAX_TOKENS) max = DRAFT_MAX_TOKENS;
    memset(out, 0, sizeof *out);
    while (out->n < max) {
        uint64_t hashes[NGRAM_ORDERS];
        const uint32_t orders = hash_context(tail, n, NGRAM_ORDERS, hashes);
        if (s->deployment != NULL) prefetch(s->deployment, hashes, orders);
        if (s->tenant != NULL) prefetch(s->tenant, hashes, orders);
        struct ngram_hit hit = {0};
        for (uint32_t o = orders; o > 0; o--) {
            if (s->tenant != NULL && look(s->tenant, hashes[o - 1], o, &hit)) break;
            if (s->deployment != NULL && look(s->deployment, hashes[o - 1], o, &hit)) break;
        }
        if (hit.order == 0 || hit.token >= s->n_vocab) return;
        out->ids[out->n] = hit.token;
        out->confidence[out->n++] = hit.confidence;
        tail[n++] = hit.token;
    }
}

static const struct draft_source_ops OPS = {"ngram", source_propose, NULL, NULL};

void ngram_source_init(struct ngram_source *s, const struct ngram_table *deployment,
                       const struct ngram_table *tenant, uint32_t n_vocab) {
    *s = (struct ngram_source){{&OPS}, deployment, tenant, n_vocab};
}

struct ngram_tenants {
    uint32_t n, n_lines;
    uint64_t clock;
    struct tenant {
        uint64_t key, used; /* used 0: free */
        struct ngram_table table;
        void *mem;
    } tenants[];
};

static size_t tenants_bytes(uint32_t n) {
    const size_t bytes = sizeof(struct ngram_tenants) + n * sizeof(struct tenant);
    return (bytes + 63) & ~(size_t)63;
}

size_t ngram_tenants_footprint(uint32_t n_tenants, uint32_t n_lines) {
    return tenants_bytes(n_tenants) + n_tenants * ngram_table_bytes(n_lines);
}

struct ngram_tenants *ngram_tenants_init(void *mem, uint32_t n_tenants, uint32_t n_lines) {
    CHECK(((uintptr_t)mem & 63) == 0 && n_tenants >= 1 && n_lines >= 1);
    struct ngram_tenants *t = mem;
    memset(t, 0, tenants_bytes(n_tenants));
    t->n = n_tenants;
    t->n_lines = n_lines;
    for (uint32_t i = 0; i < n_tenants; i++)
        t->tenants[i].mem =
            (uint8_t *)mem + tenants_bytes(n_tenants) + i * ngram_table_bytes(n_lines);
    return t;
}

struct ngram_table *ngram_tenants_find(struct ngram_tenants *t, uint64_t tenant, bool create) {
    struct tenant *oldest = &t->tenants[0];
    for (uint32_t i = 0; i < t->n; i++) {
        struct tenant *x = &t->tenants[i];
        if (x->used != 0 && x->key == tenant) {
            if (create) x->used = ++t->clock;
            return &x->table;
        }
        if (x->used < oldest->used) oldest = x;
    }
    if (!create) return NULL;
    oldest->key = tenant;
    oldest->used = ++t->clock;
    ngram_table_init(&oldest->table, oldest->mem, t->n_lines);
    return &oldest->table;
}
