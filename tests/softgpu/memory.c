#include "tests/softgpu/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

/* Two levels of granules: 1 GiB, then 2 MiB. A leaf points at the range that owns the granule. */
enum { LEAVES = 512, ROOTS = (int)(MEMORY_WINDOW_BYTES >> 30), PAGE_BYTES = 4096 };

struct leaf {
    struct memory_range *_Atomic range[LEAVES];
};

struct memory_block {
    uint64_t size_bytes;
    uint8_t *host;
    uint8_t *defined;
    uint32_t references; /* the creator's and one per mapping */
};

struct reservation {
    uint64_t base, size_bytes;
    struct reservation *next;
};

struct memory {
    struct memory_config cfg;
    pthread_mutex_t lock;
    struct leaf *_Atomic roots[ROOTS];
    uint64_t next; /* first granule never given out */
    uint64_t used_bytes;
    struct memory_range **ranges; /* [n_ranges] all device ranges ever, in order of address */
    uint32_t n_ranges, cap_ranges;
    struct memory_range *_Atomic *_Atomic hosts; /* NULL-terminated; replaced whole */
    void **garbage; /* replaced `hosts` arrays: a reader may still look at them */
    uint32_t n_garbage, cap_garbage, n_hosts;
    struct reservation *reservations;
    uint64_t sequence, rng;
    struct memory_races races;
};

static uint64_t granules(uint64_t bytes) {
    return (bytes + MEMORY_GRANULE - 1) / MEMORY_GRANULE;
}

enum status memory_create(const struct memory_config *cfg, struct memory **out, struct error *e) {
    *out = NULL;
    struct memory *m = calloc(1, sizeof *m);
    if (!m) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a device");
    m->cfg = *cfg;
    m->next = MEMORY_WINDOW;
    m->rng = cfg->seed * 0x9e3779b97f4a7c15u + 1;
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return STATUS_OK;
}

static void release_shadow(struct memory_range *r) {
    if (r->pages) {
        for (uint64_t i = 0; i < 2 * ((r->size_bytes + PAGE_BYTES - 1) / PAGE_BYTES); i++)
            free(r->pages[i]);
        free(r->pages);
        r->pages = NULL;
    }
    if (r->kind == MEMORY_ALLOCATION) {
        free(r->host);
        free(r->defined);
    }
    r->host = NULL;
    r->defined = NULL;
}

static void release_block(struct memory *m, struct memory_block *b) {
    if (--b->references) return;
    m->used_bytes -= b->size_bytes;
    free(b->host);
    free(b->defined);
    free(b);
}

void memory_destroy(struct memory *m) {
    if (!m) return;
    if (m->races.release) m->races.release(m->races.state);
    for (uint32_t i = 0; i < m->n_ranges; i++) {
        struct memory_range *r = m->ranges[i];
        release_shadow(r);
        if (r->block && r->state == MEMORY_LIVE) release_block(m, r->block);
        free(r);
    }
    for (uint32_t i = 0; i < ROOTS; i++) free(m->roots[i]);
    for (uint32_t i = 0; i < m->n_hosts; i++) free(m->hosts[i]);
    free((void *)m->hosts);
    for (uint32_t i = 0; i < m->n_garbage; i++) free(m->garbage[i]);
    free(m->garbage);
    while (m->reservations) {
        struct reservation *next = m->reservations->next;
        free(m->reservations);
        m->reservations = next;
    }
    free(m->ranges);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

struct memory_races *memory_races(struct memory *m) {
    return &m->races;
}

uint64_t memory_total_bytes(const struct memory *m) {
    return m->cfg.size_bytes;
}

uint64_t memory_used_bytes(struct memory *m) {
    pthread_mutex_lock(&m->lock);
    const uint64_t n = m->used_bytes;
    pthread_mutex_unlock(&m->lock);
    return n;
}

static enum status unlock(struct memory *m, enum status s) {
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* 16-byte bits arrays are read a word at a time, hence the slack. */
static uint8_t *bits_for(uint64_t bytes) {
    return calloc(1, bytes / 8 + 16);
}

static bool own_granules(struct memory *m, uint64_t first, uint64_t n, struct memory_range *r) {
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t g = (first - MEMORY_WINDOW) / MEMORY_GRANULE + i;
        struct leaf *leaf = m->roots[g / LEAVES];
        if (!leaf) {
            leaf = calloc(1, sizeof *leaf);
            if (!leaf) return false;
            m->roots[g / LEAVES] = leaf;
        }
        leaf->range[g % LEAVES] = r;
    }
    return true;
}

/* Keeps m->ranges sorted: mappings may come at any address of a reservation. */
static bool insert_range(struct memory *m, struct memory_range *r) {
    if (m->n_ranges == m->cap_ranges) {
        const uint32_t cap = m->cap_ranges ? m->cap_ranges * 2 : 64;
        struct memory_range **ranges = realloc(m->ranges, cap * sizeof(*ranges));
        if (!ranges) return false;
        m->ranges = ranges;
        m->cap_ranges = cap;
    }
    uint32_t at = m->n_ranges;
    while (at > 0 && m->ranges[at - 1]->base > r->base) at--;
    memmove(m->ranges + at + 1, m->ranges + at, (m->n_ranges - at) * sizeof(*m->ranges));
    m->ranges[at] = r;
    r->index = m->n_ranges++;
    r->sequence = ++m->sequence;
    return true;
}

static struct memory_range *new_range(struct memory *m, uint64_t base, uint64_t size_bytes,
                                      enum memory_kind kind) {
    struct memory_range *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->base = base;
    r->size_bytes = size_bytes;
    r->kind = kind;
    r->readable = r->writable = true;
    if (m->cfg.track && kind != MEMORY_HOST) {
        r->pages = calloc(2 * ((size_bytes + PAGE_BYTES - 1) / PAGE_BYTES), sizeof(*r->pages));
        if (!r->pages) {
            free(r);
            return NULL;
        }
    }
    return r;
}

static bool window_left(const struct memory *m, uint64_t n_granules) {
    return n_granules < (MEMORY_WINDOW + MEMORY_WINDOW_BYTES - m->next) / MEMORY_GRANULE;
}

static enum status no_memory(struct memory *m, uint64_t size_bytes, struct error *e) {
    return unlock(m, error_set(e, STATUS_NO_MEMORY, NULL, "%llu bytes: %llu of %llu in use",
                               (unsigned long long)size_bytes, (unsigned long long)m->used_bytes,
                               (unsigned long long)m->cfg.size_bytes));
}

enum status memory_allocate(struct memory *m, uint64_t size_bytes, const char *label,
                            uint64_t *address, struct error *e) {
    *address = 0;
    if (size_bytes == 0) return error_set(e, STATUS_INVALID, NULL, "allocation of 0 bytes");
    pthread_mutex_lock(&m->lock);
    /* xorshift: 256 to 2048 bytes into the granule, an odd multiple of 256 */
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    const uint64_t skew = (2 * (m->rng >> 20 & 3) + 1) * 256;
    if (size_bytes > m->cfg.size_bytes - m->used_bytes) return no_memory(m, size_bytes, e);
    const uint64_t n = granules(size_bytes + skew);
    if (!window_left(m, n + 1)) return no_memory(m, size_bytes, e);
    struct memory_range *r = new_range(m, m->next + skew, size_bytes, MEMORY_ALLOCATION);
    if (!r) return no_memory(m, size_bytes, e);
    r->host = aligned_alloc(256, (size_bytes + 511) / 256 * 256);
    r->defined = m->cfg.track ? bits_for(size_bytes) : NULL;
    if (!r->host || (m->cfg.track && !r->defined) || !insert_range(m, r)) {
        release_shadow(r);
        free(r);
        return no_memory(m, size_bytes, e);
    }
    memset(r->host, 0xcb, size_bytes);
    if (label) strncpy(r->label, label, sizeof r->label - 1);
    if (!own_granules(m, m->next, n, r)) {
        r->state = MEMORY_FREED;
        release_shadow(r);
        return no_memory(m, size_bytes, e);
    }
    m->next += (n + 1) * MEMORY_GRANULE;
    m->used_bytes += size_bytes;
    *address = r->base;
    return unlock(m, STATUS_OK);
}

static struct memory_range *owner(const struct memory *m, uint64_t address) {
    if (address < MEMORY_WINDOW || address - MEMORY_WINDOW >= MEMORY_WINDOW_BYTES) return NULL;
    const uint64_t g = (address - MEMORY_WINDOW) / MEMORY_GRANULE;
    struct leaf *leaf = m->roots[g / LEAVES];
    return leaf ? leaf->range[g % LEAVES] : NULL;
}

static struct memory_range *host_range(const struct memory *m, uint64_t address) {
    struct memory_range *_Atomic *hosts = m->hosts;
    for (uint32_t i = 0; hosts && hosts[i]; i++)
        if (address - hosts[i]->base < hosts[i]->size_bytes) return hosts[i];
    return NULL;
}

const struct memory_range *memory_find(const struct memory *m, uint64_t address) {
    struct memory_range *r = owner(m, address);
    if (!r) return host_range(m, address);
    return r->state == MEMORY_LIVE && address - r->base < r->size_bytes ? r : NULL;
}

const struct memory_range *memory_near(const struct memory *m, uint64_t address) {
    struct memory_range *r = owner(m, address);
    if (!r) r = host_range(m, address);
    if (!r && address >= MEMORY_GRANULE) r = owner(m, address - MEMORY_GRANULE);
    return r;
}

enum status memory_free(struct memory *m, uint64_t address, struct error *e) {
    pthread_mutex_lock(&m->lock);
    struct memory_range *r = owner(m, address);
    if (!r || r->base != address || r->kind != MEMORY_ALLOCATION || r->state != MEMORY_LIVE)
        return unlock(m, error_set(e, STATUS_NOT_FOUND, NULL, "%#llx is %s",
                                   (unsigned long long)address,
                                   r && r->base == address ? "free already" : "no allocation"));
    r->state = MEMORY_FREED;
    release_shadow(r);
    m->used_bytes -= r->size_bytes;
    return unlock(m, STATUS_OK);
}

enum status memory_reserve(struct memory *m, uint64_t size_bytes, uint64_t alignment,
                           uint64_t *address, struct error *e) {
    *address = 0;
    if (size_bytes == 0 || size_bytes % MEMORY_GRANULE || size_bytes > MEMORY_WINDOW_BYTES / 2 ||
        (alignment & (alignment - 1)) || alignment > UINT64_C(1) << 40)
        return error_set(e, STATUS_INVALID, NULL, "reservation of %llu bytes aligned to %llu",
                         (unsigned long long)size_bytes, (unsigned long long)alignment);
    if (alignment < MEMORY_GRANULE) alignment = MEMORY_GRANULE;
    struct reservation *r = calloc(1, sizeof *r);
    if (!r) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a reservation");
    pthread_mutex_lock(&m->lock);
    const uint64_t base = (m->next + alignment - 1) & ~(alignment - 1);
    if (base + size_bytes + MEMORY_GRANULE > MEMORY_WINDOW + MEMORY_WINDOW_BYTES) {
        free(r);
        return no_memory(m, size_bytes, e);
    }
    *r = (struct reservation){base, size_bytes, m->reservations};
    m->reservations = r;
    m->next = base + size_bytes + MEMORY_GRANULE;
    *address = base;
    return unlock(m, STATUS_OK);
}

static bool live_in(const struct memory *m, uint64_t base, uint64_t size_bytes) {
    for (uint64_t a = base; a < base + size_bytes; a += MEMORY_GRANULE) {
        const struct memory_range *r = owner(m, a);
        if (r && r->state == MEMORY_LIVE) return true;
    }
    return false;
}

enum status memory_unreserve(struct memory *m, uint64_t address, uint64_t size_bytes,
                             struct error *e) {
    pthread_mutex_lock(&m->lock);
    struct reservation **at = &m->reservations;
    while (*at && ((*at)->base != address || (*at)->size_bytes != size_bytes)) at = &(*at)->next;
    if (!*at)
        return unlock(m, error_set(e, STATUS_NOT_FOUND, NULL, "%#llx is no reservation",
                                   (unsigned long long)address));
    if (live_in(m, address, size_bytes))
        return unlock(m, error_set(e, STATUS_INVALID, NULL, "memory is still mapped at %#llx",
                                   (unsigned long long)address));
    struct reservation *r = *at;
    *at = r->next;
    free(r);
    return unlock(m, STATUS_OK);
}

enum status memory_block_create(struct memory *m, uint64_t size_bytes, struct memory_block **out,
                                struct error *e) {
    *out = NULL;
    if (size_bytes == 0 || size_bytes % MEMORY_GRANULE)
        return error_set(e, STATUS_INVALID, NULL, "%llu bytes are no multiple of the granularity",
                         (unsigned long long)size_bytes);
    pthread_mutex_lock(&m->lock);
    if (size_bytes > m->cfg.size_bytes - m->used_bytes) return no_memory(m, size_bytes, e);
    struct memory_block *b = calloc(1, sizeof *b);
    if (!b) return no_memory(m, size_bytes, e);
    b->size_bytes = size_bytes;
    b->references = 1;
    b->host = aligned_alloc(4096, size_bytes);
    b->defined = m->cfg.track ? bits_for(size_bytes) : NULL;
    if (!b->host || (m->cfg.track && !b->defined)) {
        free(b->host);
        free(b->defined);
        free(b);
        return no_memory(m, size_bytes, e);
    }
    /* Untouched host pages cost nothing, so only what is checked is filled. */
    if (m->cfg.track) memset(b->host, 0xcb, size_bytes);
    m->used_bytes += size_bytes;
    *out = b;
    return unlock(m, STATUS_OK);
}

void memory_block_release(struct memory *m, struct memory_block *b) {
    pthread_mutex_lock(&m->lock);
    release_block(m, b);
    pthread_mutex_unlock(&m->lock);
}

uint64_t memory_block_bytes(const struct memory_block *b) {
    return b->size_bytes;
}

enum status memory_map(struct memory *m, uint64_t address, struct memory_block *b,
                       struct error *e) {
    pthread_mutex_lock(&m->lock);
    bool inside = false;
    for (const struct reservation *r = m->reservations; r; r = r->next)
        inside |= address >= r->base && b->size_bytes <= r->size_bytes &&
                  address - r->base <= r->size_bytes - b->size_bytes;
    if (!inside || address % MEMORY_GRANULE || live_in(m, address, b->size_bytes))
        return unlock(m, error_set(e, STATUS_INVALID, NULL,
                                   "%#llx + %llu bytes is not free reserved space",
                                   (unsigned long long)address, (unsigned long long)b->size_bytes));
    struct memory_range *r = new_range(m, address, b->size_bytes, MEMORY_MAPPING);
    if (!r || !insert_range(m, r)) {
        if (r) release_shadow(r);
        free(r);
        return no_memory(m, b->size_bytes, e);
    }
    r->host = b->host;
    r->defined = b->defined;
    r->block = b;
    r->readable = r->writable = false;
    strncpy(r->label, "mapping", sizeof r->label - 1);
    if (!own_granules(m, address, b->size_bytes / MEMORY_GRANULE, r)) {
        r->state = MEMORY_FREED;
        release_shadow(r);
        return no_memory(m, b->size_bytes, e);
    }
    b->references++;
    return unlock(m, STATUS_OK);
}

/* True if [address, +size) is whole live mappings; calls fn on each. */
static bool each_mapping(struct memory *m, uint64_t address, uint64_t size_bytes,
                         void (*fn)(struct memory *m, struct memory_range *r, bool a, bool b),
                         bool a, bool b) {
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t at = address; at < address + size_bytes;) {
            struct memory_range *r = owner(m, at);
            if (!r || r->state != MEMORY_LIVE || r->kind != MEMORY_MAPPING || r->base != at ||
                r->size_bytes > address + size_bytes - at)
                return false;
            at += r->size_bytes;
            if (pass) fn(m, r, a, b);
        }
    }
    return size_bytes > 0;
}

static void unmap_one(struct memory *m, struct memory_range *r, bool a, bool b) {
    (void)a;
    (void)b;
    r->state = MEMORY_FREED;
    release_shadow(r);
    release_block(m, r->block);
    r->block = NULL;
}

static void set_access_one(struct memory *m, struct memory_range *r, bool a, bool b) {
    (void)m;
    r->readable = a;
    r->writable = b;
}

enum status memory_unmap(struct memory *m, uint64_t address, uint64_t size_bytes, struct error *e) {
    pthread_mutex_lock(&m->lock);
    if (!each_mapping(m, address, size_bytes, unmap_one, false, false))
        return unlock(m, error_set(e, STATUS_NOT_FOUND, NULL, "%#llx is not whole mappings",
                                   (unsigned long long)address));
    return unlock(m, STATUS_OK);
}

enum status memory_set_access(struct memory *m, uint64_t address, uint64_t size_bytes,
                              bool readable, bool writable, struct error *e) {
    pthread_mutex_lock(&m->lock);
    if (!each_mapping(m, address, size_bytes, set_access_one, readable, writable))
        return unlock(m, error_set(e, STATUS_NOT_FOUND, NULL, "%#llx is not whole mappings",
                                   (unsigned long long)address));
    return unlock(m, STATUS_OK);
}

/* The list of host ranges is replaced, never changed, so that lookups need no lock. */
static bool replace_hosts(struct memory *m, struct memory_range *add, uint32_t drop) {
    struct memory_range *_Atomic *fresh = calloc(m->n_hosts + 2, sizeof(*fresh));
    if (m->n_garbage == m->cap_garbage) {
        const uint32_t cap = m->cap_garbage ? m->cap_garbage * 2 : 16;
        void **garbage = realloc(m->garbage, cap * sizeof *garbage);
        if (garbage) {
            m->garbage = garbage;
            m->cap_garbage = cap;
        }
    }
    if (!fresh || m->n_garbage == m->cap_garbage) {
        free((void *)fresh);
        return false;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_hosts; i++)
        if (i != drop) fresh[n++] = m->hosts[i];
    if (add) fresh[n++] = add;
    m->garbage[m->n_garbage++] = (void *)m->hosts;
    m->hosts = fresh;
    m->n_hosts = n;
    return true;
}

enum status memory_host_register(struct memory *m, void *host, uint64_t size_bytes,
                                 struct error *e) {
    const uint64_t base = (uintptr_t)host;
    if (!host || size_bytes == 0)
        return error_set(e, STATUS_INVALID, NULL, "host range of %llu bytes",
                         (unsigned long long)size_bytes);
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_hosts; i++)
        if (base < m->hosts[i]->base + m->hosts[i]->size_bytes &&
            m->hosts[i]->base < base + size_bytes)
            return unlock(m, error_set(e, STATUS_INVALID, NULL, "host range overlaps another"));
    struct memory_range *r = new_range(m, base, size_bytes, MEMORY_HOST);
    if (!r || !replace_hosts(m, r, UINT32_MAX)) {
        free(r);
        return no_memory(m, size_bytes, e);
    }
    r->host = host;
    r->index = UINT32_MAX;
    r->sequence = ++m->sequence;
    strncpy(r->label, "host", sizeof r->label - 1);
    return unlock(m, STATUS_OK);
}

enum status memory_host_unregister(struct memory *m, void *host, struct error *e) {
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_hosts; i++) {
        struct memory_range *r = m->hosts[i];
        if (r->base != (uintptr_t)host) continue;
        if (!replace_hosts(m, NULL, i)) return no_memory(m, 0, e);
        free(r);
        return unlock(m, STATUS_OK);
    }
    return unlock(m, error_set(e, STATUS_NOT_FOUND, NULL, "host range is not registered"));
}

void memory_each(struct memory *m, void (*fn)(void *arg, const struct memory_range *r), void *arg) {
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_ranges; i++)
        if (m->ranges[i]->state == MEMORY_LIVE) fn(arg, m->ranges[i]);
    for (uint32_t i = 0; i < m->n_hosts; i++) fn(arg, m->hosts[i]);
    pthread_mutex_unlock(&m->lock);
}

static void bits_set(uint8_t *bits, uint64_t first, uint64_t n, bool value) {
    for (; n && first % 8; first++, n--)
        bits[first / 8] = (uint8_t)(value ? bits[first / 8] | 1u << first % 8
                                          : bits[first / 8] & ~(1u << first % 8));
    memset(bits + first / 8, value ? 0xff : 0, n / 8);
    first += n / 8 * 8;
    for (n %= 8; n; first++, n--)
        bits[first / 8] = (uint8_t)(value ? bits[first / 8] | 1u << first % 8
                                          : bits[first / 8] & ~(1u << first % 8));
}

static bool bit_get(const uint8_t *bits, uint64_t i) {
    return bits[i / 8] >> i % 8 & 1;
}

/* Every byte of [address, +size) live? */
static enum status check_span(struct memory *m, uint64_t address, uint64_t size_bytes,
                              struct error *e) {
    for (uint64_t at = address, left = size_bytes; left;) {
        const struct memory_range *r = memory_find(m, at);
        if (!r)
            return error_set(e, STATUS_NOT_FOUND, NULL,
                             "%#llx (of %llu bytes at %#llx) is no device memory",
                             (unsigned long long)at, (unsigned long long)size_bytes,
                             (unsigned long long)address);
        const uint64_t room = r->base + r->size_bytes - at;
        const uint64_t n = left < room ? left : room;
        at += n;
        left -= n;
    }
    return STATUS_OK;
}

/* The piece of [at, +left) that lies in one range. */
static struct memory_range *piece(struct memory *m, uint64_t at, uint64_t left, uint64_t *n) {
    struct memory_range *r = owner(m, at);
    if (!r) r = host_range(m, at);
    CHECK(r != NULL);
    const uint64_t room = r->base + r->size_bytes - at;
    *n = left < room ? left : room;
    return r;
}

enum status memory_write(struct memory *m, uint64_t to, const void *from, uint64_t size_bytes,
                         struct error *e) {
    pthread_mutex_lock(&m->lock);
    enum status s = check_span(m, to, size_bytes, e);
    for (uint64_t done = 0, n; s == STATUS_OK && done < size_bytes; done += n) {
        struct memory_range *r = piece(m, to + done, size_bytes - done, &n);
        memcpy(r->host + (to + done - r->base), (const uint8_t *)from + done, n);
        if (r->defined) bits_set(r->defined, to + done - r->base, n, true);
    }
    return unlock(m, s);
}

enum status memory_read(struct memory *m, void *to, uint64_t from, uint64_t size_bytes,
                        uint64_t *undefined_bytes, struct error *e) {
    uint64_t undefined = 0;
    pthread_mutex_lock(&m->lock);
    enum status s = check_span(m, from, size_bytes, e);
    for (uint64_t done = 0, n; s == STATUS_OK && done < size_bytes; done += n) {
        const struct memory_range *r = piece(m, from + done, size_bytes - done, &n);
        const uint64_t at = from + done - r->base;
        memcpy((uint8_t *)to + done, r->host + at, n);
        for (uint64_t i = 0; r->defined && i < n; i++) undefined += !bit_get(r->defined, at + i);
    }
    if (undefined_bytes) *undefined_bytes = undefined;
    return unlock(m, s);
}

enum status memory_copy(struct memory *m, uint64_t to, uint64_t from, uint64_t size_bytes,
                        struct error *e) {
    pthread_mutex_lock(&m->lock);
    enum status s = check_span(m, to, size_bytes, e);
    if (s == STATUS_OK) s = check_span(m, from, size_bytes, e);
    for (uint64_t done = 0, n, k; s == STATUS_OK && done < size_bytes; done += n) {
        struct memory_range *a = piece(m, to + done, size_bytes - done, &k);
        const struct memory_range *b = piece(m, from + done, k, &n);
        const uint64_t at = to + done - a->base, source = from + done - b->base;
        memmove(a->host + at, b->host + source, n);
        if (!a->defined) continue;
        if (!b->defined)
            bits_set(a->defined, at, n, true);
        else
            for (uint64_t i = 0; i < n; i++)
                bits_set(a->defined, at + i, 1, bit_get(b->defined, source + i));
    }
    return unlock(m, s);
}

enum status memory_fill(struct memory *m, uint64_t to, uint32_t value, uint32_t width_bytes,
                        uint64_t count, struct error *e) {
    CHECK(width_bytes == 1 || width_bytes == 2 || width_bytes == 4);
    if (to % width_bytes)
        return error_set(e, STATUS_INVALID, NULL, "fill of %#llx is misaligned",
                         (unsigned long long)to);
    if (count > MEMORY_WINDOW_BYTES) return error_set(e, STATUS_NOT_FOUND, NULL, "fill too long");
    const uint64_t size_bytes = count * width_bytes;
    pthread_mutex_lock(&m->lock);
    enum status s = check_span(m, to, size_bytes, e);
    for (uint64_t done = 0, n; s == STATUS_OK && done < size_bytes; done += n) {
        struct memory_range *r = piece(m, to + done, size_bytes - done, &n);
        uint8_t *p = r->host + (to + done - r->base);
        for (uint64_t i = 0; i < n; i++) p[i] = (uint8_t)(value >> 8 * ((done + i) % width_bytes));
        if (r->defined) bits_set(r->defined, to + done - r->base, n, true);
    }
    return unlock(m, s);
}

enum status memory_set_defined(struct memory *m, uint64_t address, uint64_t size_bytes,
                               bool defined, struct error *e) {
    pthread_mutex_lock(&m->lock);
    enum status s = check_span(m, address, size_bytes, e);
    for (uint64_t done = 0, n; s == STATUS_OK && done < size_bytes; done += n) {
        struct memory_range *r = piece(m, address + done, size_bytes - done, &n);
        if (r->defined) bits_set(r->defined, address + done - r->base, n, defined);
    }
    return unlock(m, s);
}
