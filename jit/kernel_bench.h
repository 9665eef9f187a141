/* kernel_bench.h: one kernel alone, on made-up data: for a profiler, and for its rate.
 *
 * Inputs are what the kernel reads in a step of n_rows sequences that all stand at position `depth`
 * (walking attention: of one sequence, its last rows), of plausible values; what it computes is of
 * no use. What is read once a step (weights, KV) is laid out several times and taken in turn, so
 * that a cache larger than one of them does not help.
 * A run launches the kernel `launches` times, as the nodes of one graph or on the stream, with its
 * range (name, bytes, FLOPs) when `nvtx` listens, `reps` times over; times are of the device's
 * events. The software device has no clock: then the first run is all, and `timed` is false.
 * Errors: NO_MEMORY, DEVICE; everything is given back. Threads: the one with the context.
 */
#ifndef LAC_JIT_KERNEL_BENCH_H
#define LAC_JIT_KERNEL_BENCH_H

#include "core/cuda.h"
#include "core/nvtx.h"
#include "jit/kernel.h"
#include "jit/kernel_set.h"

enum { KERNEL_BENCH_LAUNCHES = 20 };

struct kernel_bench {
    const struct cuda *cuda;
    struct cu_context *context;
    struct cu_stream *stream;
    const struct kernel_device *chip;
    const struct nvtx *nvtx;
    struct cu_function *function;
    const struct kernel_use *use; /* n_rows: the rows of a launch */
    uint32_t depth, launches, reps;
    bool graphs;
};

struct kernel_bench_result {
    uint64_t bytes, flops; /* that a launch must move and do, at least */
    uint32_t grid, block, shared_bytes, registers;
    uint32_t n_launches;
    bool timed;
    double min_us, median_us; /* of a launch */
    double host_us;           /* of the calling thread, a launch */
};

enum status kernel_bench_run(const struct kernel_bench *k, struct kernel_bench_result *out,
                             struct error *e);

/* Whether the device's events tell the time. */
enum status kernel_bench_clock(const struct kernel_bench *k, bool *has_clock, struct error *e);
/* Bytes a second, read and written together, of the device's own copies of 256 MiB; not without
 * a clock. */
enum status kernel_bench_copy(const struct kernel_bench *k, double *bytes_per_s, struct error *e);

#endif
