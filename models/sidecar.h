/* sidecar.h: the file beside a model that holds what was learnt for it (NAME.lacs).
 *
 * Format, little endian: a header of 64 bytes {magic "LACSIDE1", version u32, n_sections u32, model
 * XXH3-128 (low u64, high u64), file bytes u64, XXH3-128 of the header with this field zero and of
 * the section table, zero u64}; the table, 80 bytes a section {kind u32, version u32, key char[40]
 * NUL-padded, offset u64, length u64, XXH3-128 of the section}; then the sections, each at a
 * multiple of 64, zeros between. Sections ascend by (kind, key), which is unique.
 * The key names what the section was made for: a traffic domain, a digest of labels.
 *
 * Refusals, never a guess: another model's (STATUS_INVALID, unless the caller asks for no model),
 * a newer format or a newer version of a known kind (STATUS_UNSUPPORTED), a checksum or size that
 * does not hold (STATUS_CORRUPT; every section is checked at open, known or not). Unknown kinds are
 * kept and skipped. At most SIDECAR_MAX_SECTIONS sections.
 *
 * Writing replaces: a temporary file beside the target, fsync, rename. A command's update keeps the
 * other sections as they are. The same sections give the same bytes.
 *
 * Ownership: an open side-car owns its map; section data point into it (64-byte aligned) until
 * sidecar_close. Threads: read-only after open.
 */
#ifndef LAC_MODELS_SIDECAR_H
#define LAC_MODELS_SIDECAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* X(code, number, name, version) */
#define SIDECAR_KIND_LIST(X)                                                                       \
    X(SHORTLIST, 1, "shortlist", 1)                                                                \
    X(NGRAM, 2, "ngram", 1)                                                                        \
    X(DRAFT_BLOCK, 3, "draft-block", 1)                                                            \
    X(EXIT_BLOCKS, 4, "exit-blocks", 1)                                                            \
    X(LABEL_HEADS, 5, "label-heads", 1)                                                            \
    X(ROUTER, 6, "router", 1)                                                                      \
    X(PROFILES, 7, "profiles", 1)                                                                  \
    X(GATE, 8, "gate", 2)                                                                          \
    X(REGULATION, 9, "regulation", 1)                                                              \
    X(MONITOR, 10, "monitor", 1)                                                                   \
    X(CALIBRATION, 11, "calibration", 1)                                                           \
    X(REPORT, 12, "report", 1)

enum sidecar_kind {
#define X(code, number, name, version) SIDECAR_##code = number,
    SIDECAR_KIND_LIST(X)
#undef X
};

enum {
    SIDECAR_VERSION = 1,
    SIDECAR_MAX_SECTIONS = 4096,
    SIDECAR_KEY_BYTES = 40, /* with a NUL: at most 39 characters */
};

struct sidecar_section {
    uint32_t kind, version;
    char key[SIDECAR_KEY_BYTES]; /* printable ASCII without spaces, at least one character */
    const void *data;
    size_t bytes;
};

struct sidecar;

/* "shortlist"; NULL for a kind this build does not know. */
const char *sidecar_kind_name(uint32_t kind);
/* The version this build writes and the newest it reads; 0 for unknown kinds. */
uint32_t sidecar_kind_version(uint32_t kind);
/* 1 to 39 of A-Z a-z 0-9 . _ - : */
bool sidecar_key_valid(const char *key);

/* model: the digest it must be made for (gguf_digest), or NULL: any. On failure *out is NULL. */
enum status sidecar_open(const char *path, const uint64_t model[2], struct sidecar **out,
                         struct error *e) LAC_MUST_USE;
/* The same from bytes in memory (64-byte aligned) that outlive it. */
enum status sidecar_open_bytes(const void *data, size_t n, const uint64_t model[2],
                               struct sidecar **out, struct error *e) LAC_MUST_USE;
void sidecar_close(struct sidecar *s); /* NULL: nothing */
/* Whether the file begins like a side-car; false too when it cannot be read. */
bool sidecar_is(const char *path);

void sidecar_model(const struct sidecar *s, uint64_t model[2]);
size_t sidecar_file_bytes(const struct sidecar *s);
uint32_t sidecar_n_sections(const struct sidecar *s);
const struct sidecar_section *sidecar_section(const struct sidecar *s, uint32_t i);
/* NULL when there is none. key NULL: the first of that kind. */
const struct sidecar_section *sidecar_find(const struct sidecar *s, uint32_t kind, const char *key);

/* Writes a file with these sections (any order; CHECKs kinds, keys, uniqueness). STATUS_IO leaves
 * what was at `path`. */
enum status sidecar_write(const char *path, const uint64_t model[2],
                          const struct sidecar_section *sections, uint32_t n,
                          struct error *e) LAC_MUST_USE;
/* The same, with the sections of an existing file at `path` that are not of (one of the n_kinds
 * kinds, key). A file of another model or a damaged one is refused and left alone. */
enum status sidecar_update(const char *path, const uint64_t model[2], const uint32_t *kinds,
                           uint32_t n_kinds, const char *key,
                           const struct sidecar_section *sections, uint32_t n,
                           struct error *e) LAC_MUST_USE;

#endif
