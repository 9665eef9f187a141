/* How phases of matrix products are cut into tasks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu/cpu_state.h"

enum { MAX_PANELS = 512, MAX_ROWS = 300 };

struct rig {
    struct cpu_backend backend;
    struct matmul_job jobs[4];
    struct packed_matrix m[4];
};

static struct rig *rig_make(uint32_t n_workers, uint32_t n_jobs, const uint32_t *n, uint32_t k,
                            const uint32_t *rows) {
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->backend.n_workers = n_workers;
    r->backend.jobs = r->jobs;
    products_begin(&r->backend);
    for (uint32_t i = 0; i < n_jobs; i++) {
        packed_matrix_init(&r->m[i], TENSOR_Q4_1, n[i], k, r);
        products_add(&r->backend, INPUT_FFN, &r->m[i], NULL, NULL, rows[i], NULL, NULL, n[i]);
    }
    return r;
}

static uint64_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Every panel of every row is some task's, and no other's. */
static void test_tasks_cover_once(void **state) {
    (void)state;
    static uint8_t seen[4][MAX_ROWS][MAX_PANELS];
    uint64_t rng = 5;
    for (int round = 0; round < 200; round++) {
        const uint32_t n_jobs = 1 + (uint32_t)(random_next(&rng) % 4);
        const uint32_t n_workers = 1 + (uint32_t)(random_next(&rng) % 9);
        const uint32_t k = 32 * (1 + (uint32_t)(random_next(&rng) % 64));
        uint32_t n[4], rows[4];
        for (uint32_t i = 0; i < n_jobs; i++) {
            n[i] = 1 + (uint32_t)(random_next(&rng) % (16 * MAX_PANELS - 1));
            rows[i] = 1 + (uint32_t)(random_next(&rng) % (round % 2 ? MAX_ROWS - 1 : 20));
        }
        struct rig *r = rig_make(n_workers, n_jobs, n, k, rows);
        memset(seen, 0, sizeof seen);
        const uint32_t n_tasks = products_cut(&r->backend, n_jobs);
        for (uint32_t task = 0, i = 0; task < n_tasks; task++) {
            while (i + 1 < n_jobs && task >= r->jobs[i + 1].first_task) i++;
            const struct job_range range = job_range(&r->jobs[i], task);
            assert_true(range.row0 < range.row1 && range.row1 <= rows[i]);
            assert_true(range.panel0 < range.panel1 && range.panel1 <= r->m[i].n_panels);
            for (uint32_t row = range.row0; row < range.row1; row++)
                for (uint32_t p = range.panel0; p < range.panel1; p++)
                    assert_int_equal(seen[i][row][p]++, 0);
        }
        for (uint32_t i = 0; i < n_jobs; i++)
            for (uint32_t row = 0; row < rows[i]; row++)
                for (uint32_t p = 0; p < r->m[i].n_panels; p++)
                    assert_int_equal(seen[i][row][p], 1);
        free(r);
    }
}

/* Handed out in order to whoever is free, the phases of the default model leave no worker waiting
 * for more than a tenth of the phase. */
static void test_workers_end_together(void **state) {
    (void)state;
    static const struct {
        uint32_t n_jobs, n[3], k;
    } phases[] = {{3, {576, 192, 192}, 576}, {1, {576}, 576}, {1, {576}, 1536}, {1, {49152}, 576}};
    static const uint32_t all_rows[] = {1, 4, 16, 32, 256};
    for (uint32_t n_workers = 2; n_workers <= 4; n_workers *= 2) {
        for (unsigned i = 0; i < sizeof phases / sizeof phases[0]; i++) {
            for (unsigned j = 0; j < sizeof all_rows / sizeof all_rows[0]; j++) {
                const uint32_t rows[3] = {all_rows[j], all_rows[j], all_rows[j]};
                struct rig *r =
                    rig_make(n_workers, phases[i].n_jobs, phases[i].n, phases[i].k, rows);
                const uint32_t n_tasks = products_cut(&r->backend, phases[i].n_jobs);
                uint64_t busy[4] = {0}, all = 0, last = 0;
                for (uint32_t task = 0, job = 0; task < n_tasks; task++) {
                    while (job + 1 < phases[i].n_jobs && task >= r->jobs[job + 1].first_task) job++;
                    const struct job_range range = job_range(&r->jobs[job], task);
                    const uint64_t cost =
                        (uint64_t)(range.row1 - range.row0) * (range.panel1 - range.panel0);
                    uint32_t idle = 0;
                    for (uint32_t w = 1; w < n_workers; w++)
                        if (busy[w] < busy[idle]) idle = w;
                    busy[idle] += cost;
                    all += cost;
                    if (busy[idle] > last) last = busy[idle];
                }
                assert_true(10 * last * n_workers <= 11 * all);
                free(r);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_cover_once),
        cmocka_unit_test(test_workers_end_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
