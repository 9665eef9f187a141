/* worker_pool.h: the compute threads. Worker 0 is the caller (the loop thread); the others wait.
 *
 * worker_pool_run() hands out tasks 0 .. n_tasks-1 by an atomic counter, and returns when all are
 * done. Which worker runs a task is not fixed, so a task's result must not depend on it.
 * Between its own tasks, and while it waits for the last ones, worker 0 calls the hook when more
 * than `hook_interval_ns` have passed since it last did.
 * Waiting workers spin briefly, then sleep on a futex; a preempted worker delays only its own task.
 * `worker` in [0, n_workers) indexes per-worker scratch. One run at a time; not reentrant. A run of
 * one task, or a pool of one worker, computes in the calling thread and wakes nobody. Limits:
 * n_workers <= 256, n_tasks < 2^24. Errors: STATUS_INVALID (a CPU that cannot be pinned to),
 * STATUS_NO_MEMORY (no thread).
 */
#ifndef LAC_CORE_WORKER_POOL_H
#define LAC_CORE_WORKER_POOL_H

#include <stdint.h>

#include "core/status.h"

struct worker_pool;
typedef void worker_fn(void *arg, uint32_t task, uint32_t worker);

struct worker_pool_config {
    uint32_t n_workers;  /* >= 1, including the caller */
    const int *pin_cpus; /* [n_pin] CPU of worker i, or NULL; the caller is pinned too */
    uint32_t n_pin;
    void (*hook)(void *arg);
    void *hook_arg;
    uint64_t hook_interval_ns;
};

enum status worker_pool_start(const struct worker_pool_config *cfg, struct worker_pool **out,
                              struct error *e);
void worker_pool_stop(struct worker_pool *p);
uint32_t worker_pool_size(const struct worker_pool *p);
void worker_pool_run(struct worker_pool *p, worker_fn *fn, void *arg, uint32_t n_tasks);
/* Replaces the hook (NULL: none). Between runs only. The CPU backend installs `between` so. */
void worker_pool_set_hook(struct worker_pool *p, void (*hook)(void *arg), void *hook_arg,
                          uint64_t hook_interval_ns);

#endif
