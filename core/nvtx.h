/* nvtx.h: named ranges with numbers, for NVIDIA's profilers (NVTX 3), by dlopen only.
 *
 * A profiler names its library in NVTX_INJECTION64_PATH (core/config.c reads it); nvtx_open loads
 * it and attaches by NVTX's injection protocol. Without one, libnvtx3interop.so.1 (CUDA 13) or
 * libnvToolsExt.so.1 (before) is tried, which find tools by themselves. Without any of them, or
 * with a library that is none, ranges cost one load and a branch and do nothing.
 * A range carries bytes moved and floating point operations. Where the tool takes structured
 * payloads they arrive as two fields, "bytes" and "flops"; else bytes are the payload and the
 * operations stand behind the name.
 * Structures and identifiers are our own declarations, from NVTX's documentation and headers
 * (github.com/NVIDIA/NVTX, release 3).
 *
 * State: the caller's struct nvtx, which does not move and outlives every range of it. The
 * injection protocol passes no context, so one struct nvtx at a time can attach to an injected
 * library; a second open while one is attached gets STATUS_FULL. Threads: push and pop from any
 * thread once opened; ranges nest per thread.
 */
#ifndef LAC_CORE_NVTX_H
#define LAC_CORE_NVTX_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

struct nvtx_event;  /* nvtxEventAttributes_t */
struct nvtx_domain; /* the tool's */
struct nvtx_schema; /* nvtxPayloadSchemaAttr_t */

enum { NVTX_MODULES = 7, NVTX_ENTRIES = 17, NVTX_EXTENSION_SLOTS = 63, NVTX_NAME_BYTES = 160 };

typedef void nvtx_function(void);

struct nvtx {
    void *library;
    struct nvtx_domain *domain;
    int (*push)(struct nvtx_domain *, const struct nvtx_event *); /* NULL: nobody listens */
    int (*pop)(struct nvtx_domain *);
    uint64_t schema; /* of the payload {bytes, flops}; 0: the tool takes no structures */
    bool attached;   /* by the injection protocol */
    /* Where the tool puts its functions: by module and entry, and of the payload extension. */
    nvtx_function *functions[NVTX_MODULES][NVTX_ENTRIES];
    nvtx_function **tables[NVTX_MODULES][NVTX_ENTRIES];
    intptr_t extension[NVTX_EXTENSION_SLOTS];
};

/* injection: a library's path, or NULL. domain: the name that the profiler shows. Errors: NOT_FOUND
 * (an injection that cannot be loaded), INVALID (it is no NVTX tool, or refuses), FULL; then *n is
 * as after a NULL injection without libraries: no-ops. */
enum status nvtx_open(struct nvtx *n, const char *injection, const char *domain, struct error *e);
void nvtx_close(struct nvtx *n);

/* What nvtx_push does when somebody listens. */
void nvtx_push_event(const struct nvtx *n, const char *name, uint64_t bytes, uint64_t flops);

/* name: UTF-8, cut to NVTX_NAME_BYTES - 1; read before the call returns. */
static inline void nvtx_push(const struct nvtx *n, const char *name, uint64_t bytes,
                             uint64_t flops) {
    if (__builtin_expect(n->push != NULL, 0)) nvtx_push_event(n, name, bytes, flops);
}
static inline void nvtx_pop(const struct nvtx *n) {
    if (__builtin_expect(n->push != NULL, 0)) (void)n->pop(n->domain);
}

#endif
