/* cuda_backend.h: steps on a CUDA device (core/backend.h), by the kernels of jit/kernel.h.
 *
 * Opening finds the driver and the device, checks that the kernels take the plan
 * (jit/kernel_set.h), gets the kernels of every bucket (pack, store or compiler; compiled on the
 * workers), uploads the weights repacked, and builds and instantiates all graphs: nothing of that
 * happens later. cfg->event_fd, an eventfd, is written when a step's results are there; with -1
 * poll() waits for them instead. cfg->pages names pages only: their contents are in device memory,
 * by the same ids, and page_pool_data is neither read nor written.
 *
 * A graph is one straight line of nodes for a bucket of rows (1, 2, 4, ... 64, then multiples of
 * two up to what the limits ask), a phase (decode: every span is short enough that a CTA takes one
 * key block of one row; prefill: longer spans walk their keys as tiles of rows, beside the others)
 * and whether the step has page copies or taps. It copies the step's block from pinned memory,
 * runs, copies the answers back and calls a host function. Lists of biases and bitmaps are read
 * from pinned memory where they are used, hidden states of taps are written there: both are rare,
 * and sizes vary too much for a copy of fixed length.
 *
 * Classes: ACTIVATION_INT16 and ACTIVATION_INT8 (16 bits in front of q, k and v), KV_F16; the bits
 * of a class are this backend's own, within 1e-4 of the CPU's, and the same at any batch, cut and
 * kernel.
 * Limits: sums of limits.max_biases, max_bitmaps and max_tap_rows over a step; where these are 0,
 * what the other limits allow at most, up to 16 MiB of pinned memory each.
 * Errors of opening: NOT_FOUND (no driver, no device, or no compiler for a kernel that neither pack
 * nor store has), UNSUPPORTED (the plan, a class, a chip without virtual memory management),
 * NO_MEMORY (of the device or the host), DEVICE, and the compiler's.
 * Errors of steps: submit refuses exits, carried rows, published heads, and page choices without
 * cfg.gates (UNSUPPORTED; the log names what) and lists over the limits (FULL); the step is then as
 * it was and poll gives NULL. A device error gives the step STATUS_DEVICE and every later submit
 * fails with it. drain() waits for the step in flight, which poll() then gives. An output whose
 * logits are not finite is `bad`.
 * Threads: the thread that opened it, which has the device's context current from then on.
 * Ownership: the backend's own; destroy() gives everything back.
 */
#ifndef LAC_JIT_CUDA_BACKEND_H
#define LAC_JIT_CUDA_BACKEND_H

#include "alloc/budget.h"
#include "core/backend.h"
#include "core/cuda.h"
#include "core/log.h"
#include "jit/compiler.h"
#include "jit/kernel.h"

/* Strings and objects outlive the backend. */
struct cuda_backend_options {
    const char *driver;      /* NULL: libcuda.so.1 */
    int device;              /* ordinal */
    const char *nvrtc;       /* as nvrtc_open; NULL searches */
    bool may_compile;        /* --jit on */
    const char *cache_dir;   /* of compiled kernels; NULL: none */
    const char *dump_folder; /* NULL, or where texts, PTX and cubins go */
    const char *pack_path;   /* NULL: none */
    const char *build;       /* of this program, for the kernels' keys */
    const char *nvtx;        /* a profiler's injection library, or NULL */
    bool no_graphs;          /* every kernel is launched on its own, as a range for profilers */
    const struct log *log;   /* may be NULL */
    /* A kernel was made or found; from any thread, one call at a time. May be NULL. */
    void (*compiled)(void *arg, const struct compiler_progress *p);
    void *compiled_arg;
};

struct cuda_backend_info {
    const char *device; /* the chip's name, "NVIDIA H100" */
    uint32_t cc, n_sms;
    uint32_t n_kernels, n_compiled, n_graphs;
    struct budget budget; /* what it takes of the device, line by line */
    uint64_t pinned_bytes;
    uint64_t kernel_bytes, graph_bytes; /* what the driver took for them, measured */
    /* Launches of a layer, at most, without page copies, choices and taps. */
    uint32_t decode_layer_kernels, prefill_layer_kernels;
    bool lost; /* a device error: no step will be accepted */
};

enum status cuda_backend_open(const struct backend_config *cfg,
                              const struct cuda_backend_options *o, struct backend **out,
                              struct error *e);
void cuda_backend_info(const struct backend *b, struct cuda_backend_info *out);
/* A device as the kernels' cost model sees it. */
struct kernel_device cuda_kernel_device(const struct cuda_device *d);
/* The i-th kernel that the graphs launch: hash as jit/kernel.h; false past the end. */
bool cuda_backend_kernel(const struct backend *b, uint32_t i, uint64_t *hash);

/* What opening would take, without opening: nothing is allocated, compiled or read of the weights.
 */
struct cuda_backend_plan {
    char device[128];
    uint32_t cc, n_sms, n_graphs;
    struct budget budget;      /* with n_pages KV pages of every group */
    struct memory_limit limit; /* of the device, now */
    uint64_t pinned_bytes;     /* of the host */
    uint32_t decode_layer_kernels, prefill_layer_kernels;
    uint32_t n_pages;
};
/* cfg->pages and cfg->workers are not read. n_pages 0: as many as fit beside the rest, at most
 * `most_pages`. Errors: those of cuda_backend_probe; NO_MEMORY when not one page fits. */
enum status cuda_backend_plan(const struct backend_config *cfg,
                              const struct cuda_backend_options *o, uint32_t n_pages,
                              uint32_t most_pages, struct cuda_backend_plan *out, struct error *e);

/* Whether there is a device, and one that the plan could run on in this class; opens and closes the
 * driver. Errors: those of cuda_backend_open that need no memory and no compiler. */
enum status cuda_backend_probe(const struct backend_config *cfg,
                               const struct cuda_backend_options *o, struct error *e);

#endif
