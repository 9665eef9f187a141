/* artefact.h: a compiled kernel and what it was compiled from.
 *
 * A key names everything that can change a kernel's code except the compiler: the program's
 * version, the kernel's text, its spec, the options, the architecture and the SM count. Its text
 * form is one "field value" line each, in a fixed order, the kernel's text as its digest; this text
 * is compared in full wherever an artefact is looked up, the digest only finds it. An artefact is
 * the cubin, the PTX it was made from and the compiler's name.
 * Ownership: a key's strings stay the caller's, an id is a value. An artefact's bytes are its own
 * when `memory` is set (artefact_free gives them back), else those of the pack it came from.
 * Limits: names are [a-z0-9_]{1,127}, spec and options one line; a key breaks them only by a
 * programmer's error, which CHECKs.
 */
#ifndef LAC_JIT_ARTEFACT_H
#define LAC_JIT_ARTEFACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    ARTEFACT_NAME_BYTES = 128, /* with the NUL */
    ARTEFACT_COMPILER_BYTES = 32,
    ARTEFACT_TEXT_BYTES = 4096,     /* most of a key's text */
    ARTEFACT_CODE_BYTES = 64 << 20, /* most of a cubin, most of a PTX */
};

struct artefact_key {
    const char *name;    /* of the kernel: lac_gemv_q4_1_576_1536_sm90 */
    const char *build;   /* of this program */
    const char *source;  /* the kernel's text */
    const char *spec;    /* shapes, format, configuration */
    const char *options; /* of the compiler */
    uint32_t arch, sm_count;
};

struct artefact_id {
    char name[ARTEFACT_NAME_BYTES];
    uint32_t arch, sm_count;
    char text[ARTEFACT_TEXT_BYTES]; /* not NUL-terminated */
    uint32_t text_bytes;
    uint64_t digest[2]; /* XXH3-128 of the text */
};

struct artefact {
    char compiler[ARTEFACT_COMPILER_BYTES]; /* "nvrtc 13.0" */
    uint64_t compile_ns;
    const uint8_t *cubin;
    size_t cubin_bytes;
    const char *ptx;
    size_t ptx_bytes; /* with the NUL at its end */
    void *memory;
};

void artefact_identify(const struct artefact_key *key, struct artefact_id *id);
bool artefact_same(const struct artefact_id *id, const void *text, size_t text_bytes);

/* The value of a line of a key's text; false if there is none. It points into the text. */
bool artefact_field(const char *text, size_t text_bytes, const char *field, const char **value,
                    size_t *value_bytes);

/* Whether the bytes could be a kernel's: sizes within limits, an ELF header, PTX that is text and
 * ends in its only NUL. What else they hold is the driver's to judge. */
bool artefact_plausible(const uint8_t *cubin, size_t cubin_bytes, const char *ptx,
                        size_t ptx_bytes);

void artefact_free(struct artefact *a); /* of a zeroed artefact: nothing */

/* Writes `bytes` under `path` by way of a temporary file beside it, which is synced and renamed:
 * readers see the old file, the new one, or none. `mode` as for open(). The parts are written one
 * behind the other. Errors: STATUS_FULL (no space, quota or size limit), STATUS_IO; the temporary
 * file is removed. */
struct artefact_part {
    const void *data;
    size_t bytes;
};
enum status artefact_publish(const char *path, unsigned mode, const struct artefact_part *parts,
                             size_t n_parts, struct error *e);

#endif
