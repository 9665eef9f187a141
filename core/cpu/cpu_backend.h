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

#endif
