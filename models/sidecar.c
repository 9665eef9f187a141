#include "models/sidecar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the hash state on the stack */
#include <xxhash.h>

#include "alloc/map.h"
#include "core/check.h"
#include "models/sidecar_impl.h"

struct sidecar {
    struct map map;
    bool mapped; /* else the bytes are the caller's */
    uint64_t model[2];
    uint32_t n_sections;
    struct sidecar_section sections[];
};

static const struct {
    uint32_t kind, version;
    const char *name;
} KINDS[] = {
#define X(code, number, name, version) {number, version, name},
    SIDECAR_KIND_LIST(X)
#undef X
};

const char *sidecar_kind_name(uint32_t kind) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (KINDS[i].kind == kind) return KINDS[i].name;
    return NULL;
}

uint32_t sidecar_kind_version(uint32_t kind) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (KINDS[i].kind == kind) return KINDS[i].version;
    return 0;
}

bool sidecar_key_valid(const char *key) {
    const size_t n = strnlen(key, SIDECAR_KEY_BYTES);
    if (n == 0 || n == SIDECAR_KEY_BYTES) return false;
    for (size_t i = 0; i < n; i++) {
        const char c = key[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-' || c == ':'))
            return false;
    }
    return true;
}

int sidecar_compare(uint32_t kind_a, const char *key_a, uint32_t kind_b, const char *key_b) {
    if (kind_a != kind_b) return kind_a < kind_b ? -1 : 1;
    return strncmp(key_a, key_b, SIDECAR_KEY_BYTES);
}

void sidecar_hash_header(const struct sidecar_header *h, const struct sidecar_entry *entries,
                         uint64_t hash[2]) {
    struct sidecar_header zeroed = *h;
    zeroed.hash[0] = zeroed.hash[1] = 0;
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH_errorcode rc = XXH3_128bits_reset(&state);
    rc |= XXH3_128bits_update(&state, &zeroed, sizeof zeroed);
    rc |= XXH3_128bits_update(&state, entries, h->n_sections * sizeof *entries);
    CHECK(rc == XXH_OK);
    const XXH128_hash_t x = XXH3_128bits_digest(&state);
    hash[0] = x.low64, hash[1] = x.high64;
}

void sidecar_hash_bytes(const void *data, size_t n, uint64_t hash[2]) {
    const XXH128_hash_t x = XXH3_128bits(data, n);
    hash[0] = x.low64, hash[1] = x.high64;
}

static enum status check_section(const struct map *m, const struct sidecar_entry *entry, uint32_t i,
                                 uint64_t *end, struct sidecar_section *out, struct error *e) {
    char field[24];
    snprintf(field, sizeof field, "section %u", i);
    if (memchr(entry->key, '\0', sizeof entry->key) == NULL || !sidecar_key_valid(entry->key))
        return error_set(e, STATUS_CORRUPT, field, "side-car: section %u has no valid key", i);
    for (size_t k = strlen(entry->key); k < sizeof entry->key; k++)
        if (entry->key[k] != '\0')
            return error_set(e, STATUS_CORRUPT, field, "side-car: section %u has no valid key", i);
    if (entry->offset % 64 != 0 || entry->offset < *end || entry->offset > m->bytes ||
        entry->length > m->bytes - entry->offset)
        return error_set(e, STATUS_CORRUPT, field,
                         "side-car: section %u lies outside the file or over another", i);
    *end = entry->offset + entry->length;
    const uint32_t known = sidecar_kind_version(entry->kind);
    if (known != 0 && (entry->version == 0 || entry->version > known))
        return error_set(e, STATUS_UNSUPPORTED, field,
                         "side-car: section %s %s has version %u, this build reads %u",
                         sidecar_kind_name(entry->kind), entry->key, entry->version, known);
    uint64_t hash[2];
    sidecar_hash_bytes(m->data + entry->offset, entry->length, hash);
    if (hash[0] != entry->hash[0] || hash[1] != entry->hash[1])
        return error_set(e, STATUS_CORRUPT, field,
                         "side-car: the checksum of section %u (%s) does not hold", i, entry->key);
    *out = (struct sidecar_section){.kind = entry->kind,
                                    .version = entry->version,
                                    .data = m->data + entry->offset,
                                    .bytes = entry->length};
    memcpy(out->key, entry->key, sizeof out->key);
    return STATUS_OK;
}

static enum status check_header(const struct map *m, struct sidecar_header *h,
                                const struct sidecar_entry **entries, struct error *e) {
    if (m->bytes < sizeof *h)
        return error_set(e, STATUS_CORRUPT, "header", "side-car: %zu bytes are too few", m->bytes);
    memcpy(h, m->data, sizeof *h);
    if (memcmp(h->magic, SIDECAR_MAGIC, sizeof h->magic) != 0)
        return error_set(e, STATUS_CORRUPT, "header", "not a side-car file");
    if (h->version != SIDECAR_VERSION)
        return error_set(e, STATUS_UNSUPPORTED, "header",
                         "side-car: format version %u, this build reads %d", h->version,
                         SIDECAR_VERSION);
    if (h->n_sections > SIDECAR_MAX_SECTIONS ||
        h->n_sections * sizeof(struct sidecar_entry) > m->bytes - sizeof *h)
        return error_set(e, STATUS_CORRUPT, "header", "side-car: %u sections in %zu bytes",
                         h->n_sections, m->bytes);
    if (h->file_bytes != m->bytes)
        return error_set(e, STATUS_CORRUPT, "header", "side-car: %zu bytes, written as %llu",
                         m->bytes, (unsigned long long)h->file_bytes);
    *entries = (const struct sidecar_entry *)(m->data + sizeof *h);
    uint64_t hash[2];
    sidecar_hash_header(h, *entries, hash);
    if (hash[0] != h->hash[0] || hash[1] != h->hash[1])
        return error_set(e, STATUS_CORRUPT, "header",
                         "side-car: the checksum of the section table does not hold");
    return STATUS_OK;
}

enum status sidecar_open_bytes(const void *data, size_t n, const uint64_t model[2],
                               struct sidecar **out, struct error *e) {
    *out = NULL;
    CHECK(((uintptr_t)data & 63) == 0);
    const struct map m = {data, n};
    struct sidecar_header h;
    const struct sidecar_entry *entries = NULL;
    struct sidecar *s = NULL;
    enum status st = check_header(&m, &h, &entries, e);
    if (st == STATUS_OK && model != NULL && (h.model[0] != model[0] || h.model[1] != model[1]))
        st = error_set(e, STATUS_INVALID, "model", "side-car: made for another model");
    if (st == STATUS_OK) {
        s = calloc(1, sizeof *s + h.n_sections * sizeof *s->sections);
        if (s == NULL) st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a side-car");
    }
    uint64_t end = sizeof h + (uint64_t)h.n_sections * sizeof *entries;
    for (uint32_t i = 0; st == STATUS_OK && i < h.n_sections; i++) {
        st = check_section(&m, &entries[i], i, &end, &s->sections[i], e);
        if (st == STATUS_OK && i > 0 &&
            sidecar_compare(entries[i - 1].kind, entries[i - 1].key, entries[i].kind,
                            entries[i].key) >= 0)
            st = error_set(e, STATUS_CORRUPT, "header", "side-car: sections are not in order");
    }
    if (st != STATUS_OK) {
        free(s);
        return st;
    }
    s->map = m;
    s->n_sections = h.n_sections;
    memcpy(s->model, h.model, sizeof s->model);
    *out = s;
    return STATUS_OK;
}

enum status sidecar_open(const char *path, const uint64_t model[2], struct sidecar **out,
                         struct error *e) {
    *out = NULL;
    struct map m;
    enum status st = map_read(path, &m, e);
    if (st == STATUS_OK) st = sidecar_open_bytes(m.data, m.bytes, model, out, e);
    if (st != STATUS_OK)
        map_close(&m);
    else
        (*out)->mapped = true;
    return st;
}

void sidecar_close(struct sidecar *s) {
    if (s == NULL) return;
    if (s->mapped) map_close(&s->map);
    free(s);
}

bool sidecar_is(const char *path) {
    char magic[sizeof SIDECAR_MAGIC - 1] = {0};
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    const size_t n = fread(magic, 1, sizeof magic, f);
    fclose(f);
    return n == sizeof magic && memcmp(magic, SIDECAR_MAGIC, sizeof magic) == 0;
}

void sidecar_model(const struct sidecar *s, uint64_t model[2]) {
    memcpy(model, s->model, sizeof s->model);
}

size_t sidecar_file_bytes(const struct sidecar *s) {
    return s->map.bytes;
}

uint32_t sidecar_n_sections(const struct sidecar *s) {
    return s->n_sections;
}

const struct sidecar_section *sidecar_section(const struct sidecar *s, uint32_t i) {
    CHECK(i < s->n_sections);
    return &s->sections[i];
}

const struct sidecar_section *sidecar_find(const struct sidecar *s, uint32_t kind,
                                           const char *key) {
    for (uint32_t i = 0; i < s->n_sections; i++)
        if (s->sections[i].kind == kind && (key == NULL || strcmp(s->sections[i].key, key) == 0))
            return &s->sections[i];
    return NULL;
}
