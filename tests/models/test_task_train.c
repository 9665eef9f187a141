/* Training: rows and their refusals, the same file twice, validation that can tell a leak from a
 * skill, adaptation; with LONG=1 and the shared data, the default model is made again. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/task_default.h"
#include "models/task_model_impl.h"
#include "models/task_train.h"

static uint32_t draw(uint32_t a, uint32_t b, uint32_t below) {
    return (uint32_t)(rng_draw(31, a, b, RNG_TEST, 0) % below);
}

static void add(struct task_set *s, const char *text, const char *label, const char *source) {
    struct error e;
    assert_int_equal(task_set_add(s, text, strlen(text), label, source, "en", false, &e),
                     STATUS_OK);
}

/* Three labels, four sources. The first word tells the label everywhere; a second word tells it in
 * every source too, but another one in each: learnt from seen sources, worthless in unseen ones. */
static void make_rows(struct task_set *s, uint32_t n, bool first_word_tells) {
    static const char *const verbs[3] = {"fetch", "compose", "compute"};
    static const char *const labels[3] = {"lookup", "prose", "sums"};
    task_set_init(s);
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t label = draw(r, 0, 3), source = draw(r, 1, 4);
        char text[200], name[16];
        snprintf(text, sizeof text, "%s the w%u of k%u and w%u near w%u",
                 verbs[first_word_tells ? label : draw(r, 2, 3)], draw(r, 3, 200),
                 10 * source + label, draw(r, 4, 200), draw(r, 5, 200));
        snprintf(name, sizeof name, "source%u:x", source);
        add(s, text, labels[label], name);
    }
}

static struct task_words *default_words(void) {
    struct task_words *w;
    struct error e;
    assert_int_equal(task_words_default(&w, &e), STATUS_OK);
    return w;
}

static void test_validation(void **state) {
    (void)state;
    struct task_words *w = default_words();
    struct task_report *r = calloc(1, sizeof *r);
    struct error e;
    for (int tells = 0; tells < 2; tells++) {
        struct task_set s;
        struct task_model *m;
        make_rows(&s, 600, tells);
        struct task_train_options o = task_train_defaults();
        o.epochs = 10;
        assert_int_equal(task_train(&s, w, &o, &m, r, &e), STATUS_OK);
        assert_int_equal(r->seen.n, 600);
        assert_int_equal(r->unseen.n, 600);
        assert_int_equal(r->n_sources, 4);
        print_message("first word %s: seen %.3f, unseen %.3f\n", tells ? "tells" : "does not tell",
                      task_scores_accuracy(&r->seen), task_scores_accuracy(&r->unseen));
        assert_true(task_scores_accuracy(&r->seen) > 0.95);
        if (tells)
            assert_true(task_scores_accuracy(&r->unseen) > 0.9);
        else
            assert_true(task_scores_accuracy(&r->unseen) < 0.5);
        uint32_t n = 0;
        for (uint32_t k = 0; k < s.n_sources; k++) n += r->unseen_source[k].n;
        assert_int_equal(n, 600);
        assert_true(r->n_units > 20);
        task_report_free(r);
        task_model_free(m);
        task_set_free(&s);
    }
    free(r);
    task_words_free(w);
}

static void test_synthetic_rows_are_not_tested(void **state) {
    (void)state;
    struct task_words *w = default_words();
    struct task_report *r = calloc(1, sizeof *r);
    struct task_set s;
    struct task_model *m;
    struct error e;
    make_rows(&s, 90, true);
    for (int i = 0; i < 30; i++) add(&s, "fetch anything", "lookup", TASK_SYNTHETIC ":x");
    struct task_train_options o = task_train_defaults();
    o.epochs = 4;
    assert_int_equal(task_train(&s, w, &o, &m, r, &e), STATUS_OK);
    assert_int_equal(r->seen.n, 90);
    assert_int_equal(r->unseen.n, 90);
    task_report_free(r);
    free(r);
    task_model_free(m);
    task_set_free(&s);
    task_words_free(w);
}

static void train_bytes(const struct task_set *s, uint64_t seed, struct buffer *b) {
    struct task_words *w = default_words();
    struct task_train_options o = task_train_defaults();
    struct task_model *m;
    struct error e;
    o.epochs = 4;
    o.seed = seed;
    assert_int_equal(task_train(s, w, &o, &m, NULL, &e), STATUS_OK);
    assert_int_equal(task_model_write(m, b, &e), STATUS_OK);
    task_model_free(m);
    task_words_free(w);
}

static void test_same_file_twice(void **state) {
    (void)state;
    struct task_set s;
    struct buffer a, b, c;
    buffer_init(&a, 0);
    buffer_init(&b, 0);
    buffer_init(&c, 0);
    make_rows(&s, 120, true);
    train_bytes(&s, 1, &a);
    train_bytes(&s, 1, &b);
    train_bytes(&s, 2, &c);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    assert_true(a.len != c.len || memcmp(a.data, c.data, a.len) != 0);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&c);
    task_set_free(&s);
}

static bool stop_soon(void *context, const char *phase, uint32_t done, uint32_t total) {
    (void)phase;
    assert_true(done <= total);
    return ++*(int *)context < 3;
}

static void test_refusals(void **state) {
    (void)state;
    struct task_words *w = default_words();
    struct task_train_options o = task_train_defaults();
    struct task_set s;
    struct task_model *m;
    struct error e;
    task_set_init(&s);
    assert_int_equal(task_train(&s, w, &o, &m, NULL, &e), STATUS_INVALID);
    add(&s, "a", "one", NULL);
    assert_int_equal(task_train(&s, w, &o, &m, NULL, &e), STATUS_INVALID);
    assert_null(m);
    static const char *const labels[] = {"", "With Space", "UPPER",
                                         "a-label-that-goes-on-for-much-too-long-a-time"};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(task_set_add(&s, "a", 1, labels[i], NULL, NULL, false, &e),
                         STATUS_INVALID);
    for (int i = 0; i < 5; i++) {
        char label[16];
        snprintf(label, sizeof label, "l%d", i);
        add(&s, "a", label, NULL);
    }
    assert_int_equal(task_set_add(&s, "a", 1, "seventh", NULL, NULL, false, &e), STATUS_INVALID);
    task_set_free(&s);

    make_rows(&s, 60, true);
    int calls = 0;
    o.progress = stop_soon;
    o.context = &calls;
    assert_int_equal(task_train(&s, w, &o, &m, NULL, &e), STATUS_GONE);
    assert_null(m);
    task_set_free(&s);
    task_words_free(w);
}

static void test_rows_in_files(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum status status;
    } cases[] = {
        {"{\"text\":\"a\",\"label\":\"x\"}\n\n{\"prompt\":\"b\",\"label\":\"y\"}\n", STATUS_OK},
        {"{\"text\":\"a\"}\n", STATUS_INVALID},
        {"{\"text\":1,\"label\":\"x\"}\n", STATUS_INVALID},
        {"[]\n", STATUS_INVALID},
        {"nonsense\n", STATUS_INVALID},
        {"{\"text\":\"a\",\"label\":\"x\"}\n{", STATUS_INVALID},
    };
    char path[] = "/tmp/lac_rows_XXXXXX";
    const int fd = mkstemp(path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct task_set s;
        struct error e = {0};
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_true(pwrite(fd, cases[i].text, strlen(cases[i].text), 0) > 0);
        task_set_init(&s);
        assert_int_equal(task_set_load(&s, path, false, &e), cases[i].status);
        if (cases[i].status != STATUS_OK) assert_non_null(strstr(e.message, path));
        if (i == 0) assert_true(s.n == 2 && s.n_labels == 2);
        task_set_free(&s);
    }
    close(fd);
    unlink(path);
}

/* "ledger" rows belong to lookup now; the rest must stay. */
static void test_adaptation(void **state) {
    (void)state;
    struct task_words *w = default_words();
    struct task_train_options o = task_train_defaults();
    struct task_set rows, fresh, later;
    struct task_model *old, *new;
    struct task_scores a, b;
    struct error e;
    make_rows(&rows, 600, true);
    assert_int_equal(task_train(&rows, w, &o, &old, NULL, &e), STATUS_OK);
    struct task_set *const sets[2] = {&fresh, &later};
    for (int k = 0; k < 2; k++) {
        task_set_init(sets[k]);
        task_set_use_labels(sets[k], old);
        for (uint32_t r = 0; r < 200; r++) {
            char text[100];
            snprintf(text, sizeof text, "compute ledger v%u for w%u", draw(r, 60 + (uint32_t)k, 90),
                     draw(r, 70 + (uint32_t)k, 200));
            add(sets[k], text, "lookup", "new");
        }
    }
    o.cost = TASK_ADAPT_COST;
    assert_int_equal(task_adapt(old, &fresh, &rows, &o, &new, &e), STATUS_OK);
    assert_int_equal(task_test(old, &later, &a, NULL, &e), STATUS_OK);
    assert_int_equal(task_test(new, &later, &b, NULL, &e), STATUS_OK);
    assert_true(task_scores_accuracy(&a) < 0.3 && task_scores_accuracy(&b) > 0.95);
    assert_int_equal(task_test(old, &rows, &a, NULL, &e), STATUS_OK);
    assert_int_equal(task_test(new, &rows, &b, NULL, &e), STATUS_OK);
    assert_true(task_scores_macro_f1(&b) > task_scores_macro_f1(&a) - 0.01);
    task_model_free(old);
    task_model_free(new);
    task_set_free(&rows);
    task_set_free(&fresh);
    task_set_free(&later);
    task_words_free(w);
}

static void test_scores(void **state) {
    (void)state;
    struct task_scores s;
    task_scores_init(&s, 3);
    static const float p[3][3] = {{0.8f, 0.1f, 0.1f}, {0.2f, 0.6f, 0.2f}, {0.4f, 0.3f, 0.3f}};
    task_scores_add(&s, 0, p[0], 0.5f);
    task_scores_add(&s, 0, p[1], 0.5f);
    task_scores_add(&s, 1, p[1], 0.5f);
    task_scores_add(&s, 1, p[2], 0.5f);
    /* Label 0: 1 of 2, answered twice; label 1: 1 of 2, answered twice. */
    assert_true(fabs(task_scores_accuracy(&s) - 0.5) < 1e-12);
    assert_true(fabs(task_scores_macro_f1(&s) - 0.5) < 1e-12);
    assert_true(s.abstained == 1 && s.abstained_right == 0);
    /* Bins of 0.8 (1 of 1), 0.6 (1 of 2) and 0.4 (0 of 1). */
    assert_true(fabs(task_scores_ece(&s) - (0.2 + 0.2 + 0.4) / 4) < 1e-6);
}

/* ---- the default model again ---- */

static void load_shared(struct task_set *s, const char *root, const char *name) {
    struct error e = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (task_set_load(s, path, s->n_labels > 0 && s->n == 0, &e) != STATUS_OK)
        fail_msg("%s", e.message);
}

static void test_default_model_again(void **state) {
    (void)state;
    const char *root = getenv("LAC_SHARED") ? getenv("LAC_SHARED") : "../shared";
    const char *run = getenv("LONG");
    char path[512];
    snprintf(path, sizeof path, "%s/data/tasks/train.jsonl", root);
    if (run == NULL || strcmp(run, "1") != 0 || access(path, R_OK) != 0) {
        print_message("skip: LONG=1 and ../shared make the default task model again\n");
        return;
    }
    char folder[] = "/tmp/lac_seeds_XXXXXX", command[1400];
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "python3 assets/make_task_seeds.py > %s/a.jsonl && python3 assets/make_task_seeds.py "
             "--passages %s/data/qa/extractive.jsonl > %s/b.jsonl",
             folder, root, folder);
    assert_int_equal(system(command), 0);
    struct task_set s;
    struct task_model *m, *built_in;
    struct task_words *w = default_words();
    struct task_report *r = calloc(1, sizeof *r);
    struct error e;
    task_set_init(&s);
    load_shared(&s, root, "data/tasks/train.jsonl");
    load_shared(&s, root, "data/tasks/extra_train_zh_reasoning.jsonl");
    load_shared(&s, folder, "a.jsonl");
    load_shared(&s, folder, "b.jsonl");
    const struct task_train_options o = task_train_defaults();
    assert_int_equal(task_train(&s, w, &o, &m, r, &e), STATUS_OK);
    print_message("seen %.4f (ECE %.4f), unseen %.4f (ECE %.4f)\n", task_scores_accuracy(&r->seen),
                  task_scores_ece(&r->seen), task_scores_accuracy(&r->unseen),
                  task_scores_ece(&r->unseen));
    assert_true(task_scores_accuracy(&r->seen) >= 0.97);
    assert_true(task_scores_accuracy(&r->unseen) >= 0.88);
    assert_true(task_scores_ece(&r->seen) <= 0.05 && task_scores_ece(&r->unseen) <= 0.05);
    /* The same bytes as the committed file, but for its notes and its head (which wants the model).
     */
    struct buffer made, committed;
    assert_int_equal(task_model_default(&built_in, &e), STATUS_OK);
    built_in->head.dim = 0;
    task_model_set_notes(built_in, "");
    buffer_init(&made, 0);
    buffer_init(&committed, 0);
    assert_int_equal(task_model_write(m, &made, &e), STATUS_OK);
    assert_int_equal(task_model_write(built_in, &committed, &e), STATUS_OK);
    assert_int_equal(made.len, committed.len);
    assert_memory_equal(made.data, committed.data, made.len);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    buffer_free(&made);
    buffer_free(&committed);
    task_model_free(m);
    task_model_free(built_in);
    task_report_free(r);
    free(r);
    task_set_free(&s);
    task_words_free(w);
}

static void test_shared_calibration_rows(void **state) {
    (void)state;
    const char *root = getenv("LAC_SHARED") ? getenv("LAC_SHARED") : "../shared";
    char path[512];
    snprintf(path, sizeof path, "%s/data/prompts/calibration.jsonl", root);
    if (access(path, R_OK) != 0) {
        print_message("skip: ../shared/data/prompts is not here\n");
        return;
    }
    struct task_set s;
    struct task_model *m;
    struct task_scores all;
    struct error e;
    assert_int_equal(task_model_default(&m, &e), STATUS_OK);
    task_set_init(&s);
    task_set_use_labels(&s, m);
    load_shared(&s, root, "data/prompts/calibration.jsonl");
    assert_int_equal(task_test(m, &s, &all, NULL, &e), STATUS_OK);
    print_message("calibration.jsonl: accuracy %.4f, ECE %.4f\n", task_scores_accuracy(&all),
                  task_scores_ece(&all));
    assert_true(task_scores_accuracy(&all) >= 0.97 && task_scores_ece(&all) <= 0.05);
    task_set_free(&s);
    task_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_synthetic_rows_are_not_tested),
        cmocka_unit_test(test_same_file_twice),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_rows_in_files),
        cmocka_unit_test(test_adaptation),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_shared_calibration_rows),
        cmocka_unit_test(test_default_model_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
