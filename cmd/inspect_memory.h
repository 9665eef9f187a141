/* inspect_memory.h: whether a model's plan runs here, and the memory it takes, on the host and on a
 * CUDA device if there is one, without loading it.
 *
 * Errors: the backend's refusal of a shape or type (STATUS_UNSUPPORTED names the tensor or the
 * layer), those of starting a worker pool; *out is zeroed then.
 */
#ifndef LAC_CMD_INSPECT_MEMORY_H
#define LAC_CMD_INSPECT_MEMORY_H

#include "core/config.h"
#include "core/plan.h"
#include "core/status.h"
#include "jit/cuda_backend.h"

struct inspect_memory {
    uint32_t n_ctx, batch;
    uint64_t backend_bytes;     /* packed weights and scratch of `serve` at this batch */
    uint64_t step_bytes;        /* the arrays of one step */
    uint64_t kv_sequence_bytes; /* one full context in the chosen format */
    uint64_t kv_batch_bytes;    /* `batch` full contexts */
    uint64_t serve_kv_bytes;    /* what `serve` takes: --kv-mib, or its own choice */
    uint64_t serve_bytes; /* backend, step, serve_kv_bytes, bounds of its keys, heads of blocks */
    /* The first CUDA device, if there is one: what `serve` takes of it, or why it does not. */
    bool has_device, on_device;
    struct cuda_backend_plan device;
    struct error why;
};

enum status inspect_memory(const struct config *c, const struct plan *p, struct inspect_memory *out,
                           struct error *e) LAC_MUST_USE;

#endif
