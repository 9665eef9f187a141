/* The chore that prepares a request: what it says when memory ends. */
#include <sys/resource.h>
#include <unistd.h>

#include "fake.h"
#include "sched/prepare.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITISED true
#else
#define SANITISED false
#endif
enum { MANY_TOKENS = 4 << 20 };

static struct prepared prepare(const struct tokenizer *t, const struct request *r) {
    static const struct gate_config no_gate;
    const struct prepare_model model = {.tokenizer = t,
                                        .n_vocab = FAKE_VOCAB,
                                        .n_ctx = 64,
                                        .max_choices = 1,
                                        .n_pages = 64,
                                        .gate = &no_gate};
    struct prepare work = {.model = &model, .request = r};
    void *mem = aligned_alloc(64, (chore_footprint() + 63) & ~(size_t)63);
    assert_non_null(mem);
    struct chore *c = chore_init(mem, prepare_run, &work);
    while (!chore_run(c, UINT64_MAX / 2)) {
    }
    free(mem);
    return work.out;
}

static size_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory that ends is the server's fault: never answered as a text that is too long (400). */
static void test_no_memory_for_a_text(void **state) {
    (void)state;
    if (SANITISED) {
        puts("skip: a sanitizer's allocator does not return when addresses end");
        return;
    }
    struct tokenizer *t = fake_tokenizer();
    uint32_t *ids = malloc(MANY_TOKENS * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < MANY_TOKENS; i++) ids[i] = 265; /* a piece of two bytes or more */
    const struct request r = {.kind = REQUEST_DETOKENIZE, .ids = ids, .n_ids = MANY_TOKENS, .n = 1};
    /* The ids are copied; the text then finds no room to double. */
    struct rlimit was;
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    const struct rlimit now = {.rlim_cur = mapped_bytes() + MANY_TOKENS * sizeof *ids + (6 << 20),
                               .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &now), 0);
    struct prepared p = prepare(t, &r);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_int_equal(p.status, STATUS_NO_MEMORY);
    assert_string_equal(p.error.message, "out of memory for the text");
    prepared_free(&p);

    p = prepare(t, &r);
    assert_int_equal(p.status, STATUS_OK);
    assert_true(p.text.len >= 2 * (size_t)MANY_TOKENS);
    prepared_free(&p);
    free(ids);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_for_a_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
