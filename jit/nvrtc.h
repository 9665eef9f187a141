/* nvrtc.h: NVIDIA's run-time compiler, found by dlopen: CUDA C++ text to a cubin and its PTX.
 *
 * The library is searched in this order: `path` if given (the file, or the folder that holds it,
 * and then nowhere else); what the loader finds by name; the CUDA toolkit's usual folder. 13.x is
 * taken before 12.x, anything else is refused. A compilation targets one real architecture and
 * yields both the cubin and the PTX it was made from; the PTX is what runs where the driver has no
 * use for the cubin.
 * Threads: one open library may compile from any number of threads at once; each call has its own
 * program. Every compilation takes tens of MB of heap for its time.
 * Errors: STATUS_NOT_FOUND (no library), STATUS_UNSUPPORTED (its version; an architecture it does
 * not know), STATUS_INVALID (the text does not compile: the message carries the first error line of
 * the log), STATUS_NO_MEMORY, STATUS_GONE (cancelled), STATUS_DEVICE (the compiler failed in
 * itself). Source text and options come from this program, never from a client.
 */
#ifndef LAC_JIT_NVRTC_H
#define LAC_JIT_NVRTC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct nvrtc;

enum { NVRTC_MAX_OPTIONS = 32, NVRTC_OPTION_BYTES = 1024 };

struct nvrtc_job {
    const char *source; /* NUL-terminated */
    const char *name;   /* of the kernel, for messages */
    const char
        *file_name;      /* line tables call the text /laconic/FILE_NAME.cu; NULL: as the kernel */
    const char *options; /* separated by single spaces, without the architecture; may be "" */
    uint32_t arch;       /* 90: sm_90 */
    /* Looked at now and then while compiling (12.8 and later); true stops. May be NULL. */
    const atomic_bool *cancel;
};

struct nvrtc_output {
    uint8_t *cubin;
    size_t cubin_bytes;
    char *ptx;        /* NUL-terminated */
    size_t ptx_bytes; /* with the NUL */
    char *log;        /* NUL-terminated, "" when the compiler said nothing; also after a failure */
    uint64_t compile_ns;
};

/* path: see above; NULL or "" searches. */
enum status nvrtc_open(const char *path, struct nvrtc **out, struct error *e);
void nvrtc_close(struct nvrtc *n); /* NULL: nothing */

/* "nvrtc 13.0", as it stands in artefact keys. */
const char *nvrtc_version(const struct nvrtc *n);
/* Whether it can make code for this architecture (75: sm_75). */
bool nvrtc_knows_arch(const struct nvrtc *n, uint32_t arch);

/* On failure everything in *out is zero but the log. The output is freed in either case. */
enum status nvrtc_compile(struct nvrtc *n, const struct nvrtc_job *job, struct nvrtc_output *out,
                          struct error *e);
void nvrtc_output_free(struct nvrtc_output *out);

#endif
