/* pack.h: NAME.lacp, compiled kernels for given architectures and SM counts in one file, so that a
 * machine without a compiler can run a model.
 *
 * Layout, little endian: a header of 64 bytes {magic "LACP", version, rows, file size, checksum of
 * everything behind the header, checksum of the header}; the table, a row of 96 bytes each {digest
 * of the key's text, architecture, SM count, and offset and size of the text, the
 * compiler's name, the cubin and the PTX}, ascending by digest; then those, each aligned to 64. The
 * same rows give the same bytes, whatever the order they were added in.
 *
 * A row is found by the full text of its key (artefact.h), the digest only leads to it. A pack made
 * by another build, for another chip or another model has no row for the key: STATUS_NOT_FOUND, and
 * the message says which of these it is.
 * Hostile input: every size and offset is checked and every byte is under a checksum when the pack
 * is opened; a damaged or truncated one is refused as a whole (STATUS_CORRUPT), another version is
 * STATUS_UNSUPPORTED. What the code itself does is not judged: a pack is as trusted as a program.
 * Limits: PACK_MAX_ROWS rows; sizes as in artefact.h. Ownership: what pack_find gives belongs to
 * the pack. Threads: an open pack is read-only.
 */
#ifndef LAC_JIT_PACK_H
#define LAC_JIT_PACK_H

#include "core/buffer.h"
#include "core/status.h"
#include "jit/artefact.h"

struct pack;

enum { PACK_MAX_ROWS = 65536 };

struct pack_row {
    const char *text; /* of the key, not NUL-terminated */
    size_t text_bytes;
    uint32_t arch, sm_count;
    struct artefact artefact;
};

/* Whether the file at `path` says that it is a pack; false if it cannot be read. */
bool pack_is(const char *path);

enum status pack_open(const char *path, struct pack **out, struct error *e);
void pack_close(struct pack *p); /* NULL: nothing */

uint64_t pack_file_bytes(const struct pack *p);
uint32_t pack_n_rows(const struct pack *p);
void pack_row_at(const struct pack *p, uint32_t i, struct pack_row *out);

enum status pack_find(const struct pack *p, const struct artefact_id *id, struct artefact *out,
                      struct error *e);
/* "sm_80 x 108 SMs, sm_90 x 132 SMs": what it was made for, cut to the buffer. */
void pack_targets(const struct pack *p, char *text, size_t text_bytes);

/* Writing: rows are copied as they are added; saved by temporary file and rename. A key that is
 * already there is STATUS_INVALID. */
struct pack_writer;
enum status pack_writer_open(struct pack_writer **out, struct error *e);
enum status pack_writer_add(struct pack_writer *w, const struct artefact_id *id,
                            const struct artefact *a, struct error *e);
enum status pack_writer_save(struct pack_writer *w, const char *path, struct error *e);
void pack_writer_close(struct pack_writer *w); /* NULL: nothing */

#endif
