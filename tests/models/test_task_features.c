/* Tokens and features of the task model: against an oracle on ASCII, invariants on random bytes,
 * the same bits on every machine, and the time that admission allows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <xxhash.h>

#include "core/rng.h"
#include "models/task_features.h"
#include "models/task_tokens.h"

static struct task_words *words;
static struct task_workspace *workspace;

static int setup(void **state) {
    (void)state;
    struct error e;
    assert_int_equal(task_words_default(&words, &e), STATUS_OK);
    assert_int_equal(task_workspace_new(&workspace, &e), STATUS_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    task_words_free(words);
    task_workspace_free(workspace);
    return 0;
}

static uint32_t draw(uint32_t a, uint32_t b, uint32_t below) {
    return (uint32_t)(rng_draw(7, a, b, RNG_TEST, 0) % below);
}

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Where the token at s[i] ends, written from the header's words. */
static size_t oracle_end(const char *s, size_t n, size_t i) {
    size_t j = i + 1;
    if (is_letter(s[i])) {
        while (j < n && (is_letter(s[j]) || is_digit(s[j]) || s[j] == '_' ||
                         (s[j] == '\'' && j + 1 < n && is_letter(s[j + 1]))))
            j++;
    } else if (is_digit(s[i])) {
        while (j < n && (is_digit(s[j]) ||
                         ((s[j] == '.' || s[j] == ',') && j + 1 < n && is_digit(s[j + 1]))))
            j++;
    }
    return j;
}

static void test_tokens_against_oracle(void **state) {
    (void)state;
    static const char alphabet[] = "abcXYZ019.,'_ \n?!(){}+-";
    for (uint32_t round = 0; round < 3000; round++) {
        char s[80];
        const size_t n = draw(round, 0, sizeof s);
        for (size_t i = 0; i < n; i++)
            s[i] = alphabet[draw(round, (uint32_t)i + 1, sizeof alphabet - 1)];
        uint32_t cps[80];
        struct task_token t[80];
        size_t n_cps, k = 0;
        const size_t n_tokens = task_tokenize(s, n, 80, cps, &n_cps, t);
        assert_int_equal(n_cps, n);
        for (size_t i = 0; i < n;) {
            if (s[i] == ' ' || s[i] == '\n') {
                int broken = 0;
                const size_t from = i;
                for (; i < n && (s[i] == ' ' || s[i] == '\n'); i++) broken |= s[i] == '\n';
                if (!broken || k == 0) continue;
                assert_true(k < n_tokens && t[k].kind == TASK_TOKEN_BREAK);
                assert_int_equal(t[k].start, from);
                k++;
                continue;
            }
            const size_t end = oracle_end(s, n, i);
            assert_true(k < n_tokens);
            assert_int_equal(t[k].start, i);
            assert_int_equal(t[k].end, end);
            i = end;
            k++;
        }
        assert_int_equal(k, n_tokens);
    }
}

static uint64_t hash_of(const char *s) {
    uint32_t cps[64];
    struct task_token t[64];
    size_t n_cps;
    assert_int_equal(task_tokenize(s, strlen(s), 64, cps, &n_cps, t), 1);
    return t[0].hash;
}

static void test_what_counts_as_equal(void **state) {
    (void)state;
    assert_true(hash_of("Python") == hash_of("PYTHON"));
    assert_true(hash_of("Äpfel") == hash_of("äpfel"));
    assert_true(hash_of("12") == hash_of("97"));
    assert_true(hash_of("12") != hash_of("123"));
    assert_true(hash_of("1.5") != hash_of("15"));
    assert_true(hash_of("？") == hash_of("?"));
    assert_true(hash_of("。") == hash_of("."));
    assert_true(hash_of("水") != hash_of("火"));
    assert_true(hash_of("don't") != hash_of("dont"));
}

static void check_invariants(const char *text, size_t len) {
    struct task_features f;
    task_features_extract(workspace, words, text, len, &f);
    assert_true(f.n <= TASK_MAX_FEATURES && f.n_chars <= TASK_MAX_CHARS);
    for (uint32_t i = 0; i < task_n_dense(); i++) assert_true(f.dense[i] >= 0 && f.dense[i] <= 1);
    assert_int_equal(f.block_start[0], 0);
    assert_int_equal(f.block_start[TASK_N_BLOCKS], f.n);
    for (int b = 0; b < TASK_N_BLOCKS; b++) {
        double squares = 0;
        assert_true(f.block_start[b] <= f.block_start[b + 1]);
        for (uint32_t k = f.block_start[b]; k < f.block_start[b + 1]; k++)
            squares += (double)f.value[k] * (double)f.value[k];
        if (f.block_start[b] < f.block_start[b + 1]) assert_true(fabs(squares - 1) < 1e-3);
    }
}

static void test_random_bytes(void **state) {
    (void)state;
    char *text = malloc(20000);
    for (uint32_t round = 0; round < 400; round++) {
        const size_t n = draw(round, 1, round % 8 == 0 ? 20000 : 600);
        for (size_t i = 0; i < n; i++) {
            const uint64_t d = rng_draw(8, round, (uint32_t)i, RNG_TEST, 0);
            /* All bytes; or short alphabets that make many equal or many different features. */
            text[i] = round % 3 == 0   ? (char)d
                      : round % 3 == 1 ? "a.?b\n "[d % 6]
                                       : (char)(32 + d % 95);
        }
        check_invariants(text, n);
    }
    check_invariants("", 0);
    free(text);
}

/* Only the first 2,000 characters are read, wherever their bytes end. */
static void test_length_limit(void **state) {
    (void)state;
    char text[3 * 2100 + 1];
    for (int i = 0; i < 2100; i++) memcpy(text + 3 * i, i % 7 ? "水" : "火", 3);
    struct task_features a, b;
    float first[TASK_MAX_DENSE];
    task_features_extract(workspace, words, text, 3 * 2000, &a);
    memcpy(first, a.dense, sizeof first);
    const uint32_t n = a.n;
    task_features_extract(workspace, words, text, 3 * 2100, &b);
    assert_int_equal(n, b.n);
    assert_memory_equal(first, b.dense, sizeof first);
    assert_int_equal(b.n_chars, TASK_MAX_CHARS);
}

static void test_word_lists(void **state) {
    (void)state;
    struct error e;
    struct task_words *w;
    static const char *const bad[] = {"[]",
                                      "{\"nonsense\": []}",
                                      "{\"steps\": 1}",
                                      "{\"steps\": [1]}",
                                      "{\"steps\": [\"\"]}",
                                      "{\"steps\": [\"a b c d e f g\"]}",
                                      "{",
                                      "{\"steps\":[],\"steps\":[]}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(task_words_parse(bad[i], strlen(bad[i]), &w, &e), STATUS_INVALID);
        assert_null(w);
        assert_true(e.message[0] != '\0');
    }
    static const char mine[] = "{\"steps\": [\"zunächst mal\"], \"code\": []}";
    assert_int_equal(task_words_parse(mine, sizeof mine - 1, &w, &e), STATUS_OK);
    struct task_features f;
    task_features_extract(workspace, w, "Zunächst mal: python", 21, &f);
    for (uint32_t i = 0; i < task_n_dense(); i++) {
        if (strcmp(task_dense_name(i), "steps-any") == 0) assert_true(f.dense[i] == 1);
        if (strcmp(task_dense_name(i), "code-any") == 0) assert_true(f.dense[i] == 0);
        if (strcmp(task_dense_name(i), "languages-any") == 0) assert_true(f.dense[i] == 1);
    }
    struct buffer out;
    struct task_words *again;
    buffer_init(&out, 0);
    task_words_write(w, &out);
    assert_int_equal(task_words_parse(out.data, out.len, &again, &e), STATUS_OK);
    struct buffer second;
    buffer_init(&second, 0);
    task_words_write(again, &second);
    assert_int_equal(out.len, second.len);
    assert_memory_equal(out.data, second.data, out.len);
    buffer_free(&out);
    buffer_free(&second);
    task_words_free(again);
    task_words_free(w);
}

/* The digest was computed once; another compiler, instruction set or libm must not change it. */
static void test_same_bits_everywhere(void **state) {
    (void)state;
    static const char *const texts[] = {
        "Write a Python function that reverses a list.",
        "小明有 12 个苹果，吃了3.5个，还剩多少个？",
        "How many apples? How MANY apples?! 1,024 + 7",
        "def f(x):\n    return snake_case + camelCase\n",
        "Ça va — déjà vu “quoted” … \xff\xfe",
    };
    XXH3_state_t *h = XXH3_createState();
    XXH3_64bits_reset(h);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct task_features f;
        task_features_extract(workspace, words, texts[i], strlen(texts[i]), &f);
        XXH3_64bits_update(h, f.dense, sizeof f.dense);
        XXH3_64bits_update(h, f.index, f.n * sizeof f.index[0]);
        XXH3_64bits_update(h, f.value, f.n * sizeof f.value[0]);
        XXH3_64bits_update(h, f.terms, f.n_terms * sizeof f.terms[0]);
        XXH3_64bits_update(h, &f.norm, sizeof f.norm);
    }
    const uint64_t digest = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    assert_true(digest == UINT64_C(0x4b49ea1e7f56530c));
}

/* Of this thread alone: what others do on the machine does not count. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_ns(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_fast_enough(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    enum { RUNS = 400 };
    static const char *const sentences[] = {"How do I sort 3 lists, (a, b) in Python? ",
                                            "请问北京有什么好玩的景点？价格是多少？"};
    for (int k = 0; k < 2; k++) {
        char text[8000];
        size_t n = 0;
        while (n + 60 < sizeof text) {
            memcpy(text + n, sentences[k], strlen(sentences[k]));
            n += strlen(sentences[k]);
        }
        uint64_t ns[RUNS];
        for (int i = 0; i < RUNS; i++) {
            struct task_features f;
            const uint64_t start = cpu_ns();
            task_features_extract(workspace, words, text, n, &f);
            ns[i] = cpu_ns() - start;
        }
        qsort(ns, RUNS, sizeof ns[0], by_ns);
        print_message("2,000 characters: median %.0f us, p99 %.0f us\n", (double)ns[RUNS / 2] / 1e3,
                      (double)ns[RUNS * 99 / 100] / 1e3);
        assert_true(ns[RUNS * 99 / 100] < 1000000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_against_oracle),
        cmocka_unit_test(test_what_counts_as_equal),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_length_limit),
        cmocka_unit_test(test_word_lists),
        cmocka_unit_test(test_same_bits_everywhere),
        cmocka_unit_test(test_fast_enough),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
