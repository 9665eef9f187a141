#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/check.h"
#include "jit/pack.h"
#include "jit/pack_layout.h"

struct pending {
    struct pack_table_row row;
    uint8_t *text, *cubin, *ptx;
    char compiler[ARTEFACT_COMPILER_BYTES];
};

struct pack_writer {
    struct pending *rows;
    uint32_t n_rows, room;
};

enum status pack_writer_open(struct pack_writer **out, struct error *e) {
    *out = calloc(1, sizeof **out);
    return *out != NULL ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a pack");
}

static void free_row(struct pending *p) {
    free(p->text);
    free(p->cubin);
    free(p->ptx);
}

void pack_writer_close(struct pack_writer *w) {
    if (w == NULL) return;
    for (uint32_t i = 0; i < w->n_rows; i++) free_row(&w->rows[i]);
    free(w->rows);
    free(w);
}

static uint8_t *copy(const void *data, size_t bytes) {
    uint8_t *mine = malloc(bytes);
    if (mine != NULL) memcpy(mine, data, bytes);
    return mine;
}

enum status pack_writer_add(struct pack_writer *w, const struct artefact_id *id,
                            const struct artefact *a, struct error *e) {
    CHECK(artefact_plausible(a->cubin, a->cubin_bytes, a->ptx, a->ptx_bytes));
    CHECK(a->compiler[0] != '\0');
    for (uint32_t i = 0; i < w->n_rows; i++) {
        if (memcmp(w->rows[i].row.digest, id->digest, sizeof id->digest) != 0) continue;
        return error_set(e, STATUS_INVALID, NULL, "%.100s is in the pack already", id->name);
    }
    if (w->n_rows == PACK_MAX_ROWS) {
        return error_set(e, STATUS_TOO_LARGE, NULL, "a pack holds %d kernels", PACK_MAX_ROWS);
    }
    if (w->n_rows == w->room) {
        const uint32_t room = w->room == 0 ? 64 : w->room * 2;
        struct pending *more = realloc(w->rows, room * sizeof *more);
        if (more == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a pack");
        w->rows = more;
        w->room = room;
    }
    struct pending *p = &w->rows[w->n_rows];
    *p = (struct pending){
        .row = {.digest = {id->digest[0], id->digest[1]},
                .arch = id->arch,
                .sm_count = id->sm_count,
                .text_bytes = id->text_bytes,
                .compiler_bytes = (uint32_t)strlen(a->compiler),
                .cubin_bytes = (uint32_t)a->cubin_bytes,
                .ptx_bytes = (uint32_t)a->ptx_bytes},
        .text = copy(id->text, id->text_bytes),
        .cubin = copy(a->cubin, a->cubin_bytes),
        .ptx = copy(a->ptx, a->ptx_bytes),
    };
    memcpy(p->compiler, a->compiler, p->row.compiler_bytes);
    if (p->text == NULL || p->cubin == NULL || p->ptx == NULL) {
        free_row(p);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a pack");
    }
    w->n_rows++;
    return STATUS_OK;
}

static int by_digest(const void *a, const void *b) {
    const uint64_t *x = ((const struct pending *)a)->row.digest;
    const uint64_t *y = ((const struct pending *)b)->row.digest;
    if (x[1] != y[1]) return x[1] < y[1] ? -1 : 1;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

static size_t align_up(size_t n) {
    return (n + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
}

/* Copies a part to the next aligned place of the image; returns where that is. */
static uint64_t place(uint8_t *image, size_t *at, const void *data, size_t bytes) {
    const uint64_t offset = *at;
    if (image != NULL) memcpy(image + offset, data, bytes);
    *at = align_up(*at + bytes);
    return offset;
}

/* With image NULL only the size is worked out. */
static size_t lay_out(struct pack_writer *w, uint8_t *image) {
    size_t at = align_up(sizeof(struct pack_header) + w->n_rows * sizeof(struct pack_table_row));
    for (uint32_t i = 0; i < w->n_rows; i++) {
        struct pending *p = &w->rows[i];
        struct pack_table_row *r = &p->row;
        r->text_offset = place(image, &at, p->text, r->text_bytes);
        r->compiler_offset = place(image, &at, p->compiler, r->compiler_bytes);
        r->cubin_offset = place(image, &at, p->cubin, r->cubin_bytes);
        r->ptx_offset = place(image, &at, p->ptx, r->ptx_bytes);
        if (image == NULL) continue;
        memcpy(image + sizeof(struct pack_header) + i * sizeof *r, r, sizeof *r);
    }
    return at;
}

enum status pack_writer_save(struct pack_writer *w, const char *path, struct error *e) {
    if (w->n_rows > 0) qsort(w->rows, w->n_rows, sizeof *w->rows, by_digest);
    const size_t bytes = lay_out(w, NULL);
    uint8_t *image = calloc(1, bytes);
    if (image == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a pack");
    (void)lay_out(w, image);
    struct pack_header h = {
        .version = PACK_LAYOUT_VERSION, .n_rows = w->n_rows, .file_bytes = bytes};
    memcpy(h.magic, PACK_MAGIC, sizeof h.magic);
    const XXH128_hash_t body = XXH3_128bits(image + sizeof h, bytes - sizeof h);
    h.body_checksum[0] = body.low64;
    h.body_checksum[1] = body.high64;
    h.header_checksum = XXH3_64bits(&h, offsetof(struct pack_header, header_checksum));
    memcpy(image, &h, sizeof h);
    const enum status s = artefact_publish(path, 0666, &(struct artefact_part){image, bytes}, 1, e);
    free(image);
    return s;
}
