/* chore.c: budgets, cancelling, many at once, and slices on different threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/chore.h"
#include "core/clock.h"
#include "core/rng.h"

static const uint64_t FOREVER = UINT64_MAX;

static void *new_memory(void) {
    void *mem = NULL;
    if (posix_memalign(&mem, 16, chore_footprint()) != 0) abort();
    return mem;
}

static void spin_ns(uint64_t ns) {
    const uint64_t end = clock_now_ns() + ns;
    while (clock_now_ns() < end) {
    }
}

struct work {
    uint32_t steps;
    uint32_t done;
    uint64_t step_ns;
    uint64_t sum;
    bool saw_cancel;
};

static uint64_t mix(uint64_t sum, uint32_t step) {
    return (sum ^ step) * 0x9e3779b97f4a7c15u + 1;
}

static uint64_t expected_sum(uint32_t steps) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < steps; i++) sum = mix(sum, i);
    return sum;
}

static void work(struct chore *c, void *arg) {
    struct work *w = arg;
    uint64_t sum = 0; /* lives on the chore's stack across slices */
    for (uint32_t i = 0; i < w->steps; i++) {
        if (w->step_ns) spin_ns(w->step_ns);
        sum = mix(sum, i);
        w->done++;
        if (chore_checkpoint(c)) {
            w->saw_cancel = true;
            return;
        }
    }
    w->sum = sum;
}

static void test_one_slice(void **state) {
    (void)state;
    struct work w = {.steps = 1000};
    void *mem = new_memory();
    struct chore *c = chore_init(mem, work, &w);
    assert_false(chore_done(c));
    assert_true(chore_run(c, FOREVER));
    assert_true(chore_done(c));
    assert_true(chore_run(c, FOREVER)); /* again: still done, nothing runs */
    assert_int_equal(w.done, 1000);
    assert_true(w.sum == expected_sum(1000));
    free(mem);
}

static void test_without_a_chore(void **state) {
    (void)state;
    struct work w = {.steps = 1000};
    work(NULL, &w);
    assert_true(w.sum == expected_sum(1000));
    assert_false(w.saw_cancel);
}

static void test_zero_budget_runs_one_step(void **state) {
    (void)state;
    struct work w = {.steps = 50};
    void *mem = new_memory();
    struct chore *c = chore_init(mem, work, &w);
    for (uint32_t i = 1; i <= 50; i++) {
        assert_false(chore_run(c, 0));
        assert_int_equal(w.done, i);
    }
    assert_true(chore_run(c, 0));
    assert_true(w.sum == expected_sum(50));
    free(mem);
}

/* Steps of 20 us in slices of 200 us. A slice never ends early, and on a machine that is not
 * preempted ends at most a step late: the median must show that even on a busy one. */
static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_budget(void **state) {
    (void)state;
    enum { BUDGET_NS = 200000, STEP_NS = 20000, STEPS = 1000 };
    static uint64_t slices[STEPS];
    struct work w = {.steps = STEPS, .step_ns = STEP_NS};
    void *mem = new_memory();
    struct chore *c = chore_init(mem, work, &w);
    size_t n = 0;
    for (bool done = false; !done; n++) {
        assert_in_range(n, 0, STEPS - 1);
        const uint64_t start = clock_now_ns();
        done = chore_run(c, BUDGET_NS);
        slices[n] = clock_now_ns() - start;
        if (!done) assert_true(slices[n] >= BUDGET_NS);
    }
    assert_in_range(n, 10, STEPS);
    qsort(slices, n, sizeof slices[0], compare_u64);
    assert_in_range(slices[n / 2], BUDGET_NS, 2 * BUDGET_NS);
    assert_true(w.sum == expected_sum(STEPS));
    free(mem);
}

static void test_cancel(void **state) {
    (void)state;
    struct work w = {.steps = 1000};
    void *mem = new_memory();
    struct chore *c = chore_init(mem, work, &w);
    for (int i = 0; i < 10; i++) assert_false(chore_run(c, 0));
    chore_cancel(c);
    assert_true(chore_run(c, 0));
    assert_true(w.saw_cancel);
    assert_int_equal(w.done, 10);

    /* Before its first slice: the function still runs, and sees it at its first checkpoint. */
    memset(&w, 0, sizeof w);
    w.steps = 1000;
    c = chore_init(mem, work, &w);
    chore_cancel(c);
    assert_true(chore_run(c, FOREVER));
    assert_true(w.saw_cancel);
    assert_int_equal(w.done, 1);
    free(mem);
}

static void test_abandon(void **state) {
    (void)state;
    struct work w = {.steps = 1000};
    void *mem = new_memory();
    for (int i = 0; i < 20; i++) {
        struct chore *c = chore_init(mem, work, &w);
        assert_false(chore_run(c, 0));
        assert_false(chore_run(c, 0));
        chore_cancel(c); /* so that TSan's fiber is given back; the memory is then used again */
        assert_true(chore_run(c, 0));
    }
    struct chore *c = chore_init(mem, work, &w);
    assert_false(chore_run(c, 0));
    free(mem);
}

/* A deep stack, filled and checked: CHORE_STACK_BYTES are there. */
static uint64_t deep(struct chore *c, uint32_t depth) {
    volatile uint8_t frame[1024];
    for (size_t i = 0; i < sizeof frame; i++) frame[i] = (uint8_t)(depth + i);
    (void)chore_checkpoint(c);
    uint64_t sum = depth == 0 ? 0 : deep(c, depth - 1);
    for (size_t i = 0; i < sizeof frame; i++) sum += frame[i] == (uint8_t)(depth + i);
    return sum;
}

static void deep_work(struct chore *c, void *arg) {
    *(uint64_t *)arg = deep(c, 99);
}

static void test_deep_stack(void **state) {
    (void)state;
    uint64_t sum = 0;
    void *mem = new_memory();
    struct chore *c = chore_init(mem, deep_work, &sum);
    while (!chore_run(c, 0)) {
    }
    assert_true(sum == 100 * 1024);
    free(mem);
}

static void outer_work(struct chore *c, void *arg) {
    struct work *w = arg;
    void *mem = new_memory();
    struct chore *inner = chore_init(mem, work, w);
    while (!chore_run(inner, 0)) (void)chore_checkpoint(c);
    free(mem);
}

static void test_chore_inside_a_chore(void **state) {
    (void)state;
    struct work w = {.steps = 100};
    void *mem = new_memory();
    struct chore *c = chore_init(mem, outer_work, &w);
    while (!chore_run(c, 0)) {
    }
    assert_true(w.sum == expected_sum(100));
    free(mem);
}

/* Thousands of chores in all, 256 alive at a time, resumed in random order. */
static void test_thousands(void **state) {
    (void)state;
    enum { ALIVE = 256, TOTAL = 4000 };
    static struct work works[ALIVE];
    static struct chore *chores[ALIVE];
    static void *mem[ALIVE];
    uint32_t started = 0, finished = 0, i = 0;
    for (uint32_t n = 0; n < ALIVE; n++) mem[n] = new_memory();
    while (finished < TOTAL) {
        const uint32_t n = (uint32_t)rng_draw(3, 0, i++, RNG_TEST, 0) % ALIVE;
        if (!chores[n]) {
            if (started == TOTAL) continue;
            works[n] = (struct work){.steps = 1 + started++ % 13};
            chores[n] = chore_init(mem[n], work, &works[n]);
        }
        if (!chore_run(chores[n], 0)) continue;
        assert_true(works[n].sum == expected_sum(works[n].steps));
        assert_int_equal(works[n].done, works[n].steps);
        chores[n] = NULL;
        finished++;
    }
    for (uint32_t n = 0; n < ALIVE; n++) free(mem[n]);
}

/* Four threads take chores from one queue, run one slice, and put them back at the end. */
enum { POOL_CHORES = 64, POOL_THREADS = 4 };
struct pool {
    pthread_mutex_t lock;
    struct chore *queue[POOL_CHORES];
    uint32_t head, n;
    uint32_t running;
    uint64_t switches;
};

static void *pool_thread(void *arg) {
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (p->n > 0 || p->running > 0) {
        if (p->n == 0) {
            pthread_mutex_unlock(&p->lock);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        struct chore *c = p->queue[p->head];
        p->head = (p->head + 1) % POOL_CHORES;
        p->n--;
        p->running++;
        p->switches++;
        pthread_mutex_unlock(&p->lock);
        const bool done = chore_run(c, 0);
        pthread_mutex_lock(&p->lock);
        p->running--;
        if (!done) p->queue[(p->head + p->n++) % POOL_CHORES] = c;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void test_migration(void **state) {
    (void)state;
    static struct work works[POOL_CHORES];
    static void *mem[POOL_CHORES];
    static struct pool p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[POOL_THREADS];
    uint64_t steps = 0;
    for (uint32_t i = 0; i < POOL_CHORES; i++) {
        works[i] = (struct work){.steps = 50 + i};
        steps += works[i].steps;
        mem[i] = new_memory();
        p.queue[p.n++] = chore_init(mem[i], work, &works[i]);
    }
    for (int i = 0; i < POOL_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, pool_thread, &p), 0);
    }
    for (int i = 0; i < POOL_THREADS; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < POOL_CHORES; i++) {
        assert_true(works[i].sum == expected_sum(works[i].steps));
        free(mem[i]);
    }
    assert_true(p.switches == steps + POOL_CHORES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_slice),
        cmocka_unit_test(test_without_a_chore),
        cmocka_unit_test(test_zero_budget_runs_one_step),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_abandon),
        cmocka_unit_test(test_deep_stack),
        cmocka_unit_test(test_chore_inside_a_chore),
        cmocka_unit_test(test_thousands),
        cmocka_unit_test(test_migration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
