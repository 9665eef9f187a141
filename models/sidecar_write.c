/* Writing a side-car: everything into a temporary file beside the target, then one rename. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/check.h"
#include "models/sidecar_impl.h"

static int compare_sections(const void *a, const void *b) {
    const struct sidecar_section *x = *(const struct sidecar_section *const *)a;
    const struct sidecar_section *y = *(const struct sidecar_section *const *)b;
    return sidecar_compare(x->kind, x->key, y->kind, y->key);
}

static uint64_t aligned(uint64_t at) {
    return (at + 63) & ~(uint64_t)63;
}

static bool put(FILE *f, uint64_t *at, const void *data, size_t n) {
    *at += n;
    return n == 0 || fwrite(data, 1, n, f) == n;
}

static bool put_file(FILE *f, const struct sidecar_header *h, const struct sidecar_entry *entries,
                     const struct sidecar_section *const *sorted) {
    static const uint8_t ZEROS[64];
    uint64_t at = 0;
    bool ok = put(f, &at, h, sizeof *h) && put(f, &at, entries, h->n_sections * sizeof *entries);
    for (uint32_t i = 0; ok && i < h->n_sections; i++)
        ok = put(f, &at, ZEROS, entries[i].offset - at) &&
             put(f, &at, sorted[i]->data, sorted[i]->bytes);
    return ok && fflush(f) == 0 && fsync(fileno(f)) == 0;
}

static enum status replace(const char *path, const struct sidecar_header *h,
                           const struct sidecar_entry *entries,
                           const struct sidecar_section *const *sorted, struct error *e) {
    const size_t n = strlen(path);
    char *temporary = malloc(n + sizeof ".XXXXXX");
    if (temporary == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    memcpy(temporary, path, n);
    memcpy(temporary + n, ".XXXXXX", sizeof ".XXXXXX");
    enum status st = STATUS_OK;
    const int fd = mkstemp(temporary);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (f == NULL) {
        st = error_set(e, STATUS_IO, "out", "%s cannot be written: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
    } else {
        bool ok = put_file(f, h, entries, sorted) && fchmod(fd, 0644) == 0;
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(temporary, path) != 0)
            st = error_set(e, STATUS_IO, "out", "%s cannot be written: %s", path, strerror(errno));
    }
    if (st != STATUS_OK && fd >= 0) unlink(temporary);
    free(temporary);
    return st;
}

enum status sidecar_write(const char *path, const uint64_t model[2],
                          const struct sidecar_section *sections, uint32_t n, struct error *e) {
    CHECK(n <= SIDECAR_MAX_SECTIONS);
    const struct sidecar_section **sorted = malloc((n + 1) * sizeof *sorted);
    struct sidecar_entry *entries = calloc(n + 1, sizeof *entries);
    enum status st = STATUS_OK;
    if (sorted == NULL || entries == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a side-car");
    if (st == STATUS_OK) {
        for (uint32_t i = 0; i < n; i++) sorted[i] = &sections[i];
        qsort(sorted, n, sizeof *sorted, compare_sections);
        struct sidecar_header h = {.version = SIDECAR_VERSION, .n_sections = n};
        memcpy(h.magic, SIDECAR_MAGIC, sizeof h.magic);
        memcpy(h.model, model, sizeof h.model);
        h.file_bytes = sizeof h + n * sizeof *entries;
        for (uint32_t i = 0; i < n; i++) {
            const struct sidecar_section *s = sorted[i];
            CHECK(sidecar_key_valid(s->key));
            CHECK(i == 0 || compare_sections(&sorted[i - 1], &sorted[i]) < 0);
            struct sidecar_entry *x = &entries[i];
            x->kind = s->kind, x->version = s->version;
            memcpy(x->key, s->key, strlen(s->key));
            x->offset = aligned(h.file_bytes);
            x->length = s->bytes;
            sidecar_hash_bytes(s->data, s->bytes, x->hash);
            h.file_bytes = x->offset + x->length;
        }
        sidecar_hash_header(&h, entries, h.hash);
        st = replace(path, &h, entries, sorted, e);
    }
    free(sorted);
    free(entries);
    return st;
}

static bool replaced(const struct sidecar_section *s, const uint32_t *kinds, uint32_t n_kinds,
                     const char *key) {
    for (uint32_t i = 0; i < n_kinds; i++)
        if (s->kind == kinds[i] && strcmp(s->key, key) == 0) return true;
    return false;
}

enum status sidecar_update(const char *path, const uint64_t model[2], const uint32_t *kinds,
                           uint32_t n_kinds, const char *key,
                           const struct sidecar_section *sections, uint32_t n, struct error *e) {
    struct sidecar *old = NULL;
    if (access(path, F_OK) == 0) {
        const enum status st = sidecar_open(path, model, &old, e);
        if (st != STATUS_OK) return st;
    }
    const uint32_t n_old = old != NULL ? sidecar_n_sections(old) : 0;
    struct sidecar_section *all = malloc((n_old + n + 1) * sizeof *all);
    enum status st = STATUS_OK;
    uint32_t n_all = 0;
    if (all == NULL) {
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a side-car");
    } else {
        for (uint32_t i = 0; i < n_old; i++)
            if (!replaced(sidecar_section(old, i), kinds, n_kinds, key))
                all[n_all++] = *sidecar_section(old, i);
        for (uint32_t i = 0; i < n; i++) all[n_all++] = sections[i];
        if (n_all > SIDECAR_MAX_SECTIONS)
            st = error_set(e, STATUS_TOO_LARGE, "out", "%s: more than %d sections", path,
                           SIDECAR_MAX_SECTIONS);
    }
    if (st == STATUS_OK) st = sidecar_write(path, model, all, n_all, e);
    free(all);
    sidecar_close(old);
    return st;
}
