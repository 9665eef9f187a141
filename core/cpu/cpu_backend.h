/* cpu_backend.h: the CPU backend (core/backend.h). `mem` is 64-byte aligned, zero or not; it holds
 * the repacked weights, so that the mapped file's pages may be given back after init. A step is
 * computed inside submit(), which allocates nothing. `between` is installed as the worker pool's
 * hook: it is called from submit() between tasks, about every 50 microseconds. Exits,
 * carried rows and heads other than the model's, and gates without cfg.gates, are refused by
 * submit() with STATUS_UNSUPPORTED; the step is then as it was and poll() returns NULL. No page is
 * both source and destination of a step's copies. ACTIVATION_INT8 keeps 16 bits in front of q, k
 * and v. Errors: STATUS_UNSUPPORTED names a tensor whose type or shape no kernel takes.
 */
#ifndef LAC_CORE_CPU_CPU_BACKEND_H
#define LAC_CORE_CPU_CPU_BACKEND_H

#include "core/backend.h"

/* Whether init would take the plan's types and shapes; reads cfg->plan only. */
enum status cpu_backend_check(const struct backend_config *cfg, struct error *e);
size_t cpu_backend_footprint(const struct backend_config *cfg);
enum status cpu_backend_init(void *mem, const struct backend_config *cfg, struct backend **out,
                             struct error *e);

/* Where the time of steps goes, phase by phase: for benchmarks. A phase is one hand-out of tasks to
 * the workers, named after its function or, for matrix products, its matrix; `step` is all of it.
 */
enum { CPU_PHASES_MAX = 32 };
struct cpu_phase {
    const char *name;
    uint64_t runs, ns;
    double weight_bytes, multiply_adds; /* of matrix products */
    /* Of its runs with the most tasks (a prefill's last layer computes one row), how many, and the
     * shortest: what the phase takes when no other process interferes. */
    uint32_t most_tasks;
    uint64_t whole_runs, least_ns;
};
struct cpu_phases {
    uint32_t n;
    struct cpu_phase of[CPU_PHASES_MAX]; /* in the order of their first run */
};
/* Adds the steps from now on to *phases, which outlives the backend or is replaced (NULL: none).
 * Between steps only. `b` is a CPU backend. Costs two clock readings a phase. */
void cpu_backend_set_phases(struct backend *b, struct cpu_phases *phases);

#endif
