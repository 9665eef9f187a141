#include "jit/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "alloc/map.h"
#include "core/check.h"
#include "jit/pack_layout.h"

struct pack {
    struct map map;
    const struct pack_table_row *rows;
    uint32_t n_rows;
};

bool pack_is(const char *path) {
    char magic[sizeof PACK_MAGIC];
    FILE *f = fopen(path, "rbe");
    if (f == NULL) return false;
    const bool whole = fread(magic, 1, sizeof magic, f) == sizeof magic;
    fclose(f);
    return whole && memcmp(magic, PACK_MAGIC, sizeof magic) == 0;
}

static enum status corrupt(struct error *e, const char *path, const char *what) {
    return error_set(e, STATUS_CORRUPT, "pack", "%.120s is not a whole pack: %s", path, what);
}

static bool all_zero(const uint64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (words[i] != 0) return false;
    }
    return true;
}

/* Parts lie one behind the other in the order of the rows, so that none overlaps another and there
 * is no more to look at than the file holds. */
static bool takes(const struct pack *p, uint64_t *at, uint64_t offset, uint64_t bytes,
                  uint64_t most) {
    if (offset != *at || bytes == 0 || bytes > most || bytes > p->map.bytes - *at) return false;
    const uint64_t end = *at + bytes;
    *at = (end + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
    return *at <= p->map.bytes;
}

static int compare_digests(const uint64_t a[2], const uint64_t b[2]) {
    if (a[1] != b[1]) return a[1] < b[1] ? -1 : 1;
    return a[0] < b[0] ? -1 : a[0] > b[0];
}

static const char *check_row(const struct pack *p, uint32_t i, uint64_t *at) {
    const struct pack_table_row *r = &p->rows[i];
    const uint8_t *data = p->map.data;
    if (!takes(p, at, r->text_offset, r->text_bytes, ARTEFACT_TEXT_BYTES) ||
        !takes(p, at, r->compiler_offset, r->compiler_bytes, ARTEFACT_COMPILER_BYTES - 1) ||
        !takes(p, at, r->cubin_offset, r->cubin_bytes, ARTEFACT_CODE_BYTES) ||
        !takes(p, at, r->ptx_offset, r->ptx_bytes, ARTEFACT_CODE_BYTES)) {
        return "a row's parts are not where they should be";
    }
    if (!all_zero(r->reserved0, 3)) return "a reserved field is used";
    if (i > 0 && compare_digests(p->rows[i - 1].digest, r->digest) >= 0) {
        return "its rows are not in order";
    }
    const XXH128_hash_t digest = XXH3_128bits(data + r->text_offset, r->text_bytes);
    if (digest.low64 != r->digest[0] || digest.high64 != r->digest[1]) return "a key is wrong";
    if (!artefact_plausible(data + r->cubin_offset, r->cubin_bytes,
                            (const char *)data + r->ptx_offset, r->ptx_bytes)) {
        return "a row holds no kernel";
    }
    return NULL;
}

static enum status check(struct pack *p, const char *path, struct error *e) {
    struct pack_header h;
    if (p->map.bytes < sizeof h) return corrupt(e, path, "it is too short");
    memcpy(&h, p->map.data, sizeof h);
    if (memcmp(h.magic, PACK_MAGIC, sizeof h.magic) != 0) {
        return corrupt(e, path, "it does not begin as one");
    }
    if (XXH3_64bits(&h, offsetof(struct pack_header, header_checksum)) != h.header_checksum) {
        return corrupt(e, path, "the checksum of its header is wrong");
    }
    if (h.version != PACK_LAYOUT_VERSION) {
        return error_set(e, STATUS_UNSUPPORTED, "pack",
                         "%.120s is a pack of version %u; this build reads version %d", path,
                         h.version, PACK_LAYOUT_VERSION);
    }
    if (h.file_bytes != p->map.bytes) return corrupt(e, path, "it is cut short or has a tail");
    if (h.n_rows > PACK_MAX_ROWS ||
        h.n_rows > (p->map.bytes - sizeof h) / sizeof(struct pack_table_row)) {
        return corrupt(e, path, "it has no room for its rows");
    }
    if (h.reserved0 != 0 || !all_zero(h.reserved1, 2)) {
        return corrupt(e, path, "a reserved field is used");
    }
    const XXH128_hash_t body = XXH3_128bits(p->map.data + sizeof h, p->map.bytes - sizeof h);
    if (body.low64 != h.body_checksum[0] || body.high64 != h.body_checksum[1]) {
        return corrupt(e, path, "its checksum is wrong");
    }
    p->n_rows = h.n_rows;
    p->rows = (const struct pack_table_row *)(const void *)(p->map.data + sizeof h);
    uint64_t at = sizeof h + p->n_rows * sizeof(struct pack_table_row);
    at = (at + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
    if (at > p->map.bytes) return corrupt(e, path, "it has no room for its rows");
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const char *what = check_row(p, i, &at);
        if (what != NULL) return corrupt(e, path, what);
    }
    return at == p->map.bytes ? STATUS_OK : corrupt(e, path, "something is behind its rows");
}

enum status pack_open(const char *path, struct pack **out, struct error *e) {
    *out = NULL;
    struct pack *p = calloc(1, sizeof *p);
    if (p == NULL) return error_set(e, STATUS_NO_MEMORY, "pack", "no memory for the pack");
    enum status s = map_read(path, &p->map, e);
    if (s == STATUS_OK) s = check(p, path, e);
    if (s != STATUS_OK) {
        pack_close(p);
        return s;
    }
    *out = p;
    return STATUS_OK;
}

void pack_close(struct pack *p) {
    if (p == NULL) return;
    map_close(&p->map);
    free(p);
}

uint64_t pack_file_bytes(const struct pack *p) {
    return p->map.bytes;
}

uint32_t pack_n_rows(const struct pack *p) {
    return p->n_rows;
}

void pack_row_at(const struct pack *p, uint32_t i, struct pack_row *out) {
    CHECK(i < p->n_rows);
    const struct pack_table_row *r = &p->rows[i];
    const uint8_t *data = p->map.data;
    *out = (struct pack_row){
        .text = (const char *)data + r->text_offset,
        .text_bytes = r->text_bytes,
        .arch = r->arch,
        .sm_count = r->sm_count,
        .artefact = {.cubin = data + r->cubin_offset,
                     .cubin_bytes = r->cubin_bytes,
                     .ptx = (const char *)data + r->ptx_offset,
                     .ptx_bytes = r->ptx_bytes},
    };
    memcpy(out->artefact.compiler, data + r->compiler_offset, r->compiler_bytes);
}

void pack_targets(const struct pack *p, char *text, size_t text_bytes) {
    struct buffer b;
    buffer_init_fixed(&b, text, text_bytes - 1);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const struct pack_table_row *r = &p->rows[i];
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) {
            seen = p->rows[k].arch == r->arch && p->rows[k].sm_count == r->sm_count;
        }
        if (seen) continue;
        buffer_printf(&b, "%ssm_%u x %u SMs", b.len > 0 ? ", " : "", r->arch, r->sm_count);
        if (b.full) break;
    }
    text[b.len] = '\0';
}

static enum status explain_missing(const struct pack *p, const struct artefact_id *id,
                                   struct error *e) {
    bool target = false;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const struct pack_table_row *r = &p->rows[i];
        if (r->arch != id->arch || r->sm_count != id->sm_count) continue;
        target = true;
        const char *name, *build, *own_build;
        size_t name_bytes, build_bytes, own_bytes;
        const char *text = (const char *)p->map.data + r->text_offset;
        if (!artefact_field(text, r->text_bytes, "kernel", &name, &name_bytes) ||
            name_bytes != strlen(id->name) || memcmp(name, id->name, name_bytes) != 0) {
            continue;
        }
        artefact_field(text, r->text_bytes, "build", &build, &build_bytes);
        artefact_field(id->text, id->text_bytes, "build", &own_build, &own_bytes);
        const bool same = build_bytes == own_bytes && memcmp(build, own_build, own_bytes) == 0;
        return error_set(e, STATUS_NOT_FOUND, "pack",
                         "the pack's %.80s was made from other text or options (build %.*s, this "
                         "is %.*s%s)",
                         id->name, (int)(build_bytes < 24 ? build_bytes : 24), build,
                         (int)(own_bytes < 24 ? own_bytes : 24), own_build, same ? " too" : "");
    }
    if (target) {
        return error_set(e, STATUS_NOT_FOUND, "pack",
                         "the pack has no %.100s for sm_%u with %u SMs: it was made for another "
                         "model or other options",
                         id->name, id->arch, id->sm_count);
    }
    char targets[100];
    pack_targets(p, targets, sizeof targets);
    return error_set(e, STATUS_NOT_FOUND, "pack",
                     "the pack is not for this chip (sm_%u with %u SMs); it is for %s", id->arch,
                     id->sm_count, targets[0] != '\0' ? targets : "none");
}

enum status pack_find(const struct pack *p, const struct artefact_id *id, struct artefact *out,
                      struct error *e) {
    *out = (struct artefact){0};
    uint32_t low = 0, high = p->n_rows;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = compare_digests(p->rows[middle].digest, id->digest);
        if (order == 0) {
            struct pack_row row;
            pack_row_at(p, middle, &row);
            if (!artefact_same(id, row.text, row.text_bytes)) break;
            *out = row.artefact;
            return STATUS_OK;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return explain_missing(p, id, e);
}
