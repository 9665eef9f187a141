/* The pool: every task exactly once, whatever the sizes; the hook; sleep and wake; refusal. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/rng.h"
#include "core/worker_pool.h"

struct job {
    _Atomic uint32_t count[2048];
    _Atomic uint32_t bad_worker;
    uint32_t n_workers;
    uint64_t spin_ns;
};

static void count_task(void *arg, uint32_t task, uint32_t worker) {
    struct job *j = arg;
    atomic_fetch_add(&j->count[task], 1);
    if (worker >= j->n_workers) atomic_store(&j->bad_worker, 1);
    const uint64_t until = clock_now_ns() + j->spin_ns;
    while (j->spin_ns != 0 && clock_now_ns() < until) {
    }
}

static struct worker_pool *start(uint32_t n) {
    struct worker_pool *p = NULL;
    const struct worker_pool_config cfg = {.n_workers = n};
    struct error e;
    assert_int_equal(worker_pool_start(&cfg, &p, &e), STATUS_OK);
    assert_int_equal(worker_pool_size(p), n);
    return p;
}

static void each_task_runs_once(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 5; n++) {
        struct worker_pool *p = start(n);
        for (uint32_t run = 0; run < 3000; run++) {
            static struct job j;
            const uint32_t n_tasks =
                (uint32_t)(rng_draw(7, n, run, RNG_TEST, 0) % (run % 100 == 0 ? 2048 : 9));
            for (uint32_t i = 0; i < n_tasks + 1 && i < 2048; i++) j.count[i] = 0;
            j.n_workers = n;
            worker_pool_run(p, count_task, &j, n_tasks);
            for (uint32_t i = 0; i < n_tasks; i++) assert_int_equal(j.count[i], 1);
            assert_int_equal(j.bad_worker, 0);
            /* Now and then long enough for the workers to fall asleep. */
            if (run % 500 == 0) usleep(2000);
        }
        worker_pool_stop(p);
    }
}

static void sum_plain(void *arg, uint32_t task, uint32_t worker) {
    (void)worker;
    uint32_t *cells = arg;
    cells[task] += task + cells[task + 64];
}

/* What one run wrote without atomics the next reads: a run is a barrier (ThreadSanitizer looks
 * too). */
static void a_run_is_a_barrier(void **state) {
    (void)state;
    struct worker_pool *p = start(3);
    uint32_t a[128] = {0};
    for (int run = 0; run < 2000; run++) {
        worker_pool_run(p, sum_plain, a, 64);
        memcpy(a + 64, a, 64 * sizeof *a);
        if (run % 4 == 3) memset(a + 64, 0, 64 * sizeof *a);
    }
    uint32_t x = 0, y = 0;
    for (int run = 0; run < 2000; run++) {
        x += 5 + y;
        y = run % 4 == 3 ? 0 : x;
    }
    assert_int_equal(a[5], x);
    worker_pool_stop(p);
}

static void count_hook(void *arg) {
    *(uint32_t *)arg += 1;
}

static void the_hook_is_called_between_tasks(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 2; n++) {
        struct worker_pool *p = start(n);
        static struct job j;
        memset(&j, 0, sizeof j);
        j.n_workers = n;
        j.spin_ns = 100000;
        uint32_t calls = 0;
        worker_pool_set_hook(p, count_hook, &calls, 50000);
        worker_pool_run(p, count_task, &j, 40);
        assert_true(calls >= 40 / n / 2 && calls <= 200);
        const uint32_t before = calls;
        worker_pool_set_hook(p, NULL, NULL, 0);
        worker_pool_run(p, count_task, &j, 4);
        assert_int_equal(calls, before);
        worker_pool_stop(p);
    }
}

static void a_cpu_that_is_not_there_is_refused(void **state) {
    (void)state;
    const int cpus[] = {0, 1000};
    const struct worker_pool_config cfg = {.n_workers = 2, .pin_cpus = cpus, .n_pin = 2};
    struct worker_pool *p = NULL;
    struct error e;
    assert_int_equal(worker_pool_start(&cfg, &p, &e), STATUS_INVALID);
    assert_null(p);
    assert_string_equal(e.field, "pin");
}

static void empty_task(void *arg, uint32_t task, uint32_t worker) {
    (void)arg, (void)task, (void)worker;
}

static void a_barrier_is_measured(void **state) {
    (void)state;
    struct worker_pool *p = start(2);
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 20; round++) {
        const uint64_t t0 = clock_now_ns();
        for (int i = 0; i < 1000; i++) worker_pool_run(p, empty_task, NULL, 2);
        const uint64_t t = clock_now_ns() - t0;
        if (t < best) best = t;
    }
    printf("two workers, two empty tasks: %.2f us a run\n", (double)best * 1e-6);
    worker_pool_stop(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test(a_run_is_a_barrier),
        cmocka_unit_test(the_hook_is_called_between_tasks),
        cmocka_unit_test(a_barrier_is_measured),
        cmocka_unit_test(a_cpu_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
