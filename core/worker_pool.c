#include "core/worker_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"

enum {
    MAX_WORKERS = 256,
    TASK_BITS = 24,
    /* A decode step has a phase every few microseconds and the loop thread needs some tens between
     * two steps: spinning that long keeps the barriers short, sleeping after it keeps the CPU free.
     */
    SPIN_NS = 50000,
    SPINS_PER_CLOCK = 64,
};

struct worker {
    struct worker_pool *pool;
    uint32_t index;
    int cpu; /* -1: not pinned */
    pthread_t thread;
};

struct worker_pool {
    /* n_tasks in the high half, the next task in the low half. Taking a task and learning which run
     * it belongs to are one atomic add, so a worker that was preempted on the way in cannot mix two
     * runs up, and nobody waits for it. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t n_done;
    _Alignas(64) _Atomic uint32_t epoch; /* futex */
    _Atomic uint32_t n_sleeping;
    _Atomic bool stop;
    worker_fn *fn;
    void *arg;
    uint32_t n_workers;
    void (*hook)(void *arg);
    void *hook_arg;
    uint64_t hook_interval_ns, hook_last_ns;
    struct worker workers[];
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MAX_WORKERS, NULL, NULL, 0);
}

static bool has_task(const struct worker_pool *p) {
    const uint64_t t = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    return (uint32_t)t < (uint32_t)(t >> 32);
}

/* One task if there is one. A valid ticket keeps its run open, so fn and arg stay what they are. */
static bool run_one(struct worker_pool *p, uint32_t worker) {
    const uint64_t t = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acq_rel);
    const uint32_t task = (uint32_t)t;
    if (task >= (uint32_t)(t >> 32)) return false;
    p->fn(p->arg, task, worker);
    atomic_fetch_add_explicit(&p->n_done, 1, memory_order_release);
    return true;
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct worker_pool *p = w->pool;
    uint64_t idle_since_ns = 0;
    unsigned spins = 0;
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        /* Looking first keeps the counter's cache line with the caller while there is no work. */
        if (has_task(p) && run_one(p, w->index)) {
            idle_since_ns = 0;
            continue;
        }
        cpu_relax();
        if (++spins % SPINS_PER_CLOCK != 0) continue;
        const uint64_t now = clock_now_ns();
        if (idle_since_ns == 0) idle_since_ns = now;
        if (now - idle_since_ns < SPIN_NS) continue;
        const uint32_t seen = atomic_load(&p->epoch);
        atomic_fetch_add(&p->n_sleeping, 1);
        if (!has_task(p) && !atomic_load(&p->stop)) futex_wait(&p->epoch, seen);
        atomic_fetch_sub(&p->n_sleeping, 1);
        idle_since_ns = 0;
    }
    return NULL;
}

static bool pin(pthread_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET((size_t)cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

enum status worker_pool_start(const struct worker_pool_config *cfg, struct worker_pool **out,
                              struct error *e) {
    CHECK(cfg->n_workers >= 1 && cfg->n_workers <= MAX_WORKERS);
    *out = NULL;
    const size_t bytes = sizeof(struct worker_pool) + cfg->n_workers * sizeof(struct worker);
    struct worker_pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (p == NULL) return error_set(e, STATUS_NO_MEMORY, "threads", "no memory for the workers");
    memset(p, 0, bytes);
    p->n_workers = 1;
    worker_pool_set_hook(p, cfg->hook, cfg->hook_arg, cfg->hook_interval_ns);
    for (uint32_t i = 0; i < cfg->n_workers; i++) {
        const bool pinned = cfg->pin_cpus != NULL && i < cfg->n_pin;
        const int cpu = pinned ? cfg->pin_cpus[i] : -1;
        p->workers[i] = (struct worker){.pool = p, .index = i, .cpu = cpu};
        if (i == 0) {
            p->workers[0].thread = pthread_self();
        } else {
            const int rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
            if (rc != 0) {
                worker_pool_stop(p);
                return error_set(e, STATUS_NO_MEMORY, "threads", "cannot start worker %u: %s", i,
                                 strerror(rc));
            }
            p->n_workers = i + 1;
        }
        if (pinned && !pin(p->workers[i].thread, cpu)) {
            worker_pool_stop(p);
            return error_set(e, STATUS_INVALID, "pin", "cannot run on CPU %d", cpu);
        }
    }
    *out = p;
    return STATUS_OK;
}

void worker_pool_stop(struct worker_pool *p) {
    if (p == NULL) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->epoch, 1);
    futex_wake_all(&p->epoch);
    for (uint32_t i = 1; i < p->n_workers; i++) pthread_join(p->workers[i].thread, NULL);
    free(p);
}

uint32_t worker_pool_size(const struct worker_pool *p) {
    return p->n_workers;
}

void worker_pool_set_hook(struct worker_pool *p, void (*hook)(void *arg), void *hook_arg,
                          uint64_t hook_interval_ns) {
    p->hook = hook;
    p->hook_arg = hook_arg;
    p->hook_interval_ns = hook_interval_ns;
    p->hook_last_ns = 0;
}

static void maybe_hook(struct worker_pool *p) {
    if (p->hook == NULL) return;
    const uint64_t now = clock_now_ns();
    if (now - p->hook_last_ns < p->hook_interval_ns) return;
    p->hook(p->hook_arg);
    p->hook_last_ns = clock_now_ns();
}

void worker_pool_run(struct worker_pool *p, worker_fn *fn, void *arg, uint32_t n_tasks) {
    CHECK(n_tasks < 1u << TASK_BITS);
    if (p->n_workers == 1 || n_tasks <= 1) {
        for (uint32_t i = 0; i < n_tasks; i++) {
            fn(arg, i, 0);
            maybe_hook(p);
        }
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    /* Sequentially consistent against the sleepers' count: either we see the sleeper or it sees the
     * tasks. */
    atomic_store(&p->ticket, (uint64_t)n_tasks << 32);
    if (atomic_load(&p->n_sleeping) > 0) {
        atomic_fetch_add(&p->epoch, 1);
        futex_wake_all(&p->epoch);
    }
    while (run_one(p, 0)) maybe_hook(p);
    const uint64_t waiting_since_ns = clock_now_ns();
    for (unsigned spins = 1; atomic_load_explicit(&p->n_done, memory_order_acquire) != n_tasks;
         spins++) {
        cpu_relax();
        if (spins % SPINS_PER_CLOCK != 0) continue;
        maybe_hook(p);
        /* Somebody else may hold the CPU that the last task needs: ours. */
        if (clock_now_ns() - waiting_since_ns > SPIN_NS) sched_yield();
    }
}
