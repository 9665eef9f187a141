/* A pack of any bytes. The first byte says what is made right first, without which nothing behind
 * it would ever be reached: bit 0 the checksums and the size, bit 1 the digests of the rows' keys
 * and their order. The rest is the file. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "jit/pack.h"
#include "jit/pack_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int by_digest(const void *a, const void *b) {
    const uint64_t *x = ((const struct pack_table_row *)a)->digest;
    const uint64_t *y = ((const struct pack_table_row *)b)->digest;
    if (x[1] != y[1]) return x[1] < y[1] ? -1 : 1;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* Moves a part to the next aligned place of the new file, if both lie inside. */
static void move(const uint8_t *from, uint8_t *to, size_t n, uint64_t *offset, uint64_t bytes,
                 size_t *at) {
    if (*offset > n || bytes > n - *offset || *at > n || bytes > n - *at) return;
    memcpy(to + *at, from + *offset, bytes);
    *offset = *at;
    *at = (*at + bytes + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
}

/* Digests of the texts, rows in their order, and parts in the order of the rows. */
static void set_digests(uint8_t *file, size_t n) {
    struct pack_header h;
    if (n < sizeof h) return;
    memcpy(&h, file, sizeof h);
    const size_t room = (n - sizeof h) / sizeof(struct pack_table_row);
    const size_t n_rows = h.n_rows < room ? h.n_rows : room;
    struct pack_table_row *rows = calloc(n_rows + 1, sizeof *rows);
    uint8_t *moved = calloc(1, n);
    if (rows == NULL || moved == NULL) abort();
    memcpy(rows, file + sizeof h, n_rows * sizeof *rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (rows[i].text_offset > n || rows[i].text_bytes > n - rows[i].text_offset) continue;
        const XXH128_hash_t d = XXH3_128bits(file + rows[i].text_offset, rows[i].text_bytes);
        rows[i].digest[0] = d.low64;
        rows[i].digest[1] = d.high64;
    }
    qsort(rows, n_rows, sizeof *rows, by_digest);
    size_t at =
        (sizeof h + n_rows * sizeof *rows + PACK_ALIGNMENT - 1) / PACK_ALIGNMENT * PACK_ALIGNMENT;
    for (size_t i = 0; i < n_rows; i++) {
        struct pack_table_row *r = &rows[i];
        move(file, moved, n, &r->text_offset, r->text_bytes, &at);
        move(file, moved, n, &r->compiler_offset, r->compiler_bytes, &at);
        move(file, moved, n, &r->cubin_offset, r->cubin_bytes, &at);
        move(file, moved, n, &r->ptx_offset, r->ptx_bytes, &at);
    }
    memcpy(moved, &h, sizeof h);
    memcpy(moved + sizeof h, rows, n_rows * sizeof *rows);
    memcpy(file, moved, n);
    free(moved);
    free(rows);
}

static void seal(uint8_t *file, size_t n) {
    struct pack_header h;
    if (n < sizeof h) return;
    memcpy(&h, file, sizeof h);
    h.file_bytes = n;
    const XXH128_hash_t body = XXH3_128bits(file + sizeof h, n - sizeof h);
    h.body_checksum[0] = body.low64;
    h.body_checksum[1] = body.high64;
    h.header_checksum = XXH3_64bits(&h, offsetof(struct pack_header, header_checksum));
    memcpy(file, &h, sizeof h);
}

static uint64_t touch(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}

static void use(const struct pack *p) {
    volatile uint64_t sum = 0;
    char targets[200];
    pack_targets(p, targets, sizeof targets);
    for (uint32_t i = 0; i < pack_n_rows(p); i++) {
        struct pack_row row;
        pack_row_at(p, i, &row);
        sum += touch(row.text, row.text_bytes) + strlen(row.artefact.compiler);
        sum += touch(row.artefact.cubin, row.artefact.cubin_bytes);
        sum += strlen(row.artefact.ptx);
        if (strlen(row.artefact.ptx) + 1 != row.artefact.ptx_bytes) abort();
        const char *value;
        size_t value_bytes;
        if (artefact_field(row.text, row.text_bytes, "build", &value, &value_bytes)) {
            sum += touch(value, value_bytes);
        }
        /* A row is found by its own text. */
        static struct artefact_id id;
        struct artefact found;
        memset(&id, 0, sizeof id);
        memcpy(id.text, row.text, row.text_bytes);
        id.text_bytes = (uint32_t)row.text_bytes;
        const XXH128_hash_t digest = XXH3_128bits(row.text, row.text_bytes);
        id.digest[0] = digest.low64;
        id.digest[1] = digest.high64;
        struct error e = {0};
        if (pack_find(p, &id, &found, &e) != STATUS_OK) abort();
        if (found.cubin != row.artefact.cubin) abort();
        id.digest[0]++;
        id.arch = row.arch;
        id.sm_count = row.sm_count;
        if (pack_find(p, &id, &found, &e) == STATUS_OK || e.message[0] == '\0') abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    uint8_t *file = malloc(n);
    if (file == NULL) abort();
    memcpy(file, data + 1, n - 1);
    if (data[0] & 2) set_digests(file, n - 1);
    if (data[0] & 1) seal(file, n - 1);
    char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, file, n - 1) != (ssize_t)(n - 1)) abort();
    free(file);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct pack *p;
    struct error e = {0};
    const enum status s = pack_open(path, &p, &e);
    close(fd);
    if (s != STATUS_OK) {
        if (e.status != s || e.message[0] == '\0' || strchr(e.message, '\n')) abort();
        return 0;
    }
    use(p);
    pack_close(p);
    return 0;
}
