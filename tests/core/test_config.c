#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/config.h"

enum { MAX_WORDS = 64 };

/* Splits `line` at spaces and parses it: the first word is the command. */
static enum status parse(struct config *c, const char *line, struct error *e) {
    static char text[4096]; /* the config points into it */
    static char *words[MAX_WORDS];
    int n = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok(text, " "); w != NULL && n < MAX_WORDS; w = strtok(NULL, " ")) {
        words[n++] = w;
    }
    assert_true(n > 0);
    memset(e, 0, sizeof *e);
    return config_parse(c, words[0], n - 1, words + 1, e);
}

static void test_defaults(void **state) {
    (void)state;
    struct config c;
    struct error e;
    assert_int_equal(parse(&c, "serve m.gguf", &e), STATUS_OK);
    assert_int_equal(c.command, CONFIG_SERVE);
    assert_string_equal(c.model, "m.gguf");
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8080);
    assert_null(c.uds);
    assert_int_equal(c.max_batch, 32);
    assert_int_equal(c.kv_mib, 0);
    assert_int_equal(c.threads, 0);
    assert_int_equal(c.io, CONFIG_IO_AUTO);
    assert_int_equal(c.activations, ACTIVATION_INT16);
    assert_int_equal(c.kv, KV_F16);
    assert_true(c.isa_auto && c.huge_pages && !c.mlock && !c.help && !c.json);
    assert_false(config_given(&c, "--port"));

    assert_int_equal(parse(&c, "run m -p x", &e), STATUS_OK);
    assert_true(c.temperature == 1.0f && c.top_p == 1.0f);
    assert_int_equal(c.n_predict, 1024);
    assert_false(c.seed_given);

    assert_int_equal(parse(&c, "bench m", &e), STATUS_OK);
    assert_int_equal(c.bench_prompt, 512);
    assert_int_equal(c.bench_gen, 128);
    assert_int_equal(c.bench_reps, 5);
    assert_int_equal(c.bench_batch.n, 3);
    assert_int_equal(c.bench_batch.values[2], 16);
    assert_int_equal(c.n_ctx, 0);

    assert_int_equal(parse(&c, "perplexity m --file f", &e), STATUS_OK);
    assert_int_equal(c.n_ctx, 512);
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_null(c.model);
}

static void test_values(void **state) {
    (void)state;
    struct config c;
    struct error e;
    assert_int_equal(parse(&c,
                           "serve --host 0.0.0.0 --port=0 m.gguf --uds /run/x --max-batch 7 "
                           "--max-queue=9 --kv-mib auto --policy exact --io epoll --threads 3 "
                           "--ctx 4096 --activations int8 --kv q8 --backend cpu --isa avx512 "
                           "--pin 0,4-6 --huge-pages off --mlock on --drafts off --numa auto "
                           "--side-car off --max-batch 8",
                           &e),
                     STATUS_OK);
    assert_string_equal(c.host, "0.0.0.0");
    assert_int_equal(c.port, 0);
    assert_string_equal(c.uds, "/run/x");
    assert_int_equal(c.max_batch, 8);
    assert_int_equal(c.max_queue, 9);
    assert_int_equal(c.io, CONFIG_IO_EPOLL);
    assert_int_equal(c.threads, 3);
    assert_int_equal(c.n_ctx, 4096);
    assert_int_equal(c.activations, ACTIVATION_INT8);
    assert_int_equal(c.kv, KV_Q8);
    assert_int_equal(c.backend, CONFIG_BACKEND_CPU);
    assert_false(c.isa_auto);
    assert_int_equal(c.isa, CPU_ISA_AVX512);
    assert_int_equal(c.pin.n, 4);
    assert_int_equal(c.pin.values[0], 0);
    assert_int_equal(c.pin.values[3], 6);
    assert_true(!c.huge_pages && c.mlock);
    assert_int_equal(c.drafts, 0);
    assert_true(config_given(&c, "--port") && config_given(&c, "--kv-mib"));

    assert_int_equal(parse(&c,
                           "run m -p hello --raw -n 5 --temp 0.25 --top-p 0.5 --top-k 40 "
                           "--seed 18446744073709551615 --stats",
                           &e),
                     STATUS_OK);
    assert_string_equal(c.prompt, "hello");
    assert_true(c.raw && c.stats && c.seed_given);
    assert_int_equal(c.n_predict, 5);
    assert_true(c.temperature == 0.25f && c.top_p == 0.5f && c.seed == UINT64_MAX);
    assert_int_equal(c.top_k, 40);

    assert_int_equal(parse(&c, "run m -p x", &e), STATUS_OK);
    assert_int_equal(c.drafts, CONFIG_DRAFTS_AUTO);
    assert_int_equal(parse(&c, "run m -p x --drafts draft-block,suffix", &e), STATUS_OK);
    assert_int_equal(c.drafts, 1u << METRIC_DRAFT_BLOCK | 1u << METRIC_DRAFT_SUFFIX);

    /* --exact wins, in whatever order. */
    assert_int_equal(
        parse(&c, "logits m --exact --activations int8 --kv q8 --tokens a --out b", &e), STATUS_OK);
    assert_int_equal(c.activations, ACTIVATION_F32);
    assert_int_equal(c.kv, KV_F32);
    assert_string_equal(c.tokens_path, "a");

    assert_int_equal(parse(&c, "inspect -- --weird-name", &e), STATUS_OK);
    assert_string_equal(c.model, "--weird-name");
}

static void test_bake(void **state) {
    (void)state;
    struct config c;
    struct error e;
    char folder[64];
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    assert_int_equal(parse(&c, "bake m --arch 80,90,120 --sms=108,132 -o x.lacp", &e), STATUS_OK);
    assert_int_equal(c.bake_arch.n, 3);
    assert_int_equal(c.bake_arch.values[2], 120);
    assert_int_equal(c.bake_sms.n, 2);
    assert_string_equal(c.out_path, "x.lacp");
    assert_true(config_cache_dir(&c, folder, sizeof folder));
    assert_string_equal(folder, "/xdg/laconic/kernels");
    assert_false(config_cache_dir(&c, folder, 20)); /* does not fit */
    assert_string_equal(folder, "");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/home-of-it", 1);
    assert_int_equal(parse(&c, "bake m --arch 90 -o x", &e), STATUS_OK);
    assert_int_equal(c.bake_sms.n, 0);
    assert_true(config_cache_dir(&c, folder, sizeof folder));
    assert_string_equal(folder, "/home-of-it/.cache/laconic/kernels");
    assert_int_equal(parse(&c, "bake m --arch 90 -o x --cache-dir d --nvrtc /n --jit-dump j", &e),
                     STATUS_OK);
    assert_true(config_cache_dir(&c, folder, sizeof folder));
    assert_string_equal(folder, "d");
    assert_string_equal(c.nvrtc, "/n");
    assert_string_equal(c.jit_dump, "j");
    assert_int_equal(parse(&c, "bake m --arch 90 -o x --cache-dir off", &e), STATUS_OK);
    assert_false(config_cache_dir(&c, folder, sizeof folder));
}

static void test_isa_names(void **state) {
    (void)state;
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        struct config c;
        struct error e;
        char line[64];
        snprintf(line, sizeof line, "bench m --isa %s", cpu_isa_name((enum cpu_isa)i));
        assert_int_equal(parse(&c, line, &e), STATUS_OK);
        assert_false(c.isa_auto);
        assert_int_equal(c.isa, i);
    }
}

static void test_help(void **state) {
    (void)state;
    struct config c;
    struct error e;
    assert_int_equal(parse(&c, "run --help", &e), STATUS_OK);
    assert_true(c.help);
    assert_int_equal(parse(&c, "logits m -h", &e), STATUS_OK);
    assert_true(c.help);
}

struct refusal {
    const char *line;
    enum status status;
    const char *field;
};

static void check_refusals(const struct refusal *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct config c, zero;
        struct error e;
        memset(&zero, 0, sizeof zero);
        const enum status s = parse(&c, list[i].line, &e);
        if (s != list[i].status || strcmp(e.field, list[i].field) != 0) {
            fail_msg("'%s': %s, field '%s', %s", list[i].line, status_name(s), e.field, e.message);
        }
        assert_memory_equal(&c, &zero, sizeof c);
        assert_true(strlen(e.message) > 10);
        assert_null(strchr(e.message, '\n'));
        if (e.field[0] != '\0') assert_non_null(strstr(e.message, e.field));
    }
}

static void test_bad_usage(void **state) {
    (void)state;
    static const struct refusal list[] = {
        {"dance m", STATUS_INVALID, ""},
        {"serve", STATUS_INVALID, ""},
        {"serve m extra", STATUS_INVALID, ""},
        {"serve m --port", STATUS_INVALID, "--port"},
        {"serve m --port 80x", STATUS_INVALID, "--port"},
        {"serve m --port -1", STATUS_INVALID, "--port"},
        {"serve m --port +1", STATUS_INVALID, "--port"},
        {"serve m --port 0x50", STATUS_INVALID, "--port"},
        {"serve m --port=", STATUS_INVALID, "--port"},
        {"serve m --port 65536", STATUS_INVALID, "--port"},
        {"serve m --port 99999999999999999999999", STATUS_INVALID, "--port"},
        {"serve m --port auto", STATUS_INVALID, "--port"},
        {"serve m --max-batch 0", STATUS_INVALID, "--max-batch"},
        {"serve m --ports 80", STATUS_INVALID, "--ports"},
        {"serve m --por 80", STATUS_INVALID, "--por"},
        {"serve m -p hello", STATUS_INVALID, "-p"},
        {"serve m --json", STATUS_INVALID, "--json"},
        {"serve m --io kqueue", STATUS_INVALID, "--io"},
        {"serve m --huge-pages yes", STATUS_INVALID, "--huge-pages"},
        {"serve m --policy exac", STATUS_INVALID, "--policy"},
        {"serve m --pin 3-1", STATUS_INVALID, "--pin"},
        {"serve m --pin 1,,2", STATUS_INVALID, "--pin"},
        {"serve m --pin 1,", STATUS_INVALID, "--pin"},
        {"serve m --pin 0-256", STATUS_INVALID, "--pin"},
        {"serve m --pin 0-100,200-400", STATUS_INVALID, "--pin"},
        {"serve m --pin 1-2-3", STATUS_INVALID, "--pin"},
        {"bench m --batch 0", STATUS_INVALID, "--batch"},
        {"bench m --batch 1,4,", STATUS_INVALID, "--batch"},
        {"bench m --json=yes", STATUS_INVALID, "--json"},
        {"run m", STATUS_INVALID, "-p"},
        {"run m -p x --temp nan", STATUS_INVALID, "--temp"},
        {"run m -p x --temp inf", STATUS_INVALID, "--temp"},
        {"run m -p x --temp 1.0.0", STATUS_INVALID, "--temp"},
        {"run m -p x --temp 0x1p-1", STATUS_INVALID, "--temp"},
        {"run m -p x --temp 2.01", STATUS_INVALID, "--temp"},
        {"run m -p x --temp -0.5", STATUS_INVALID, "--temp"},
        {"run m -p x --temp 1e999", STATUS_INVALID, "--temp"},
        {"run m -p x --top-p 1.5", STATUS_INVALID, "--top-p"},
        {"run m -p x --seed -1", STATUS_INVALID, "--seed"},
        {"run m -p x --seed 18446744073709551616", STATUS_INVALID, "--seed"},
        {"run m -p x --exact", STATUS_INVALID, "--exact"},
        {"logits m --tokens f", STATUS_INVALID, "--out"},
        {"perplexity m", STATUS_INVALID, "--file"},
        {"perplexity m --file f --ctx auto", STATUS_INVALID, "--ctx"},
        {"perplexity m --file f --ctx 1", STATUS_INVALID, "--ctx"},
        {"serve m --ctx 1", STATUS_INVALID, "--ctx"},
        {"serve m --max-queue 0", STATUS_INVALID, "--max-queue"},
        {"bake m -o x", STATUS_INVALID, "--arch"},
        {"bake m --arch 90", STATUS_INVALID, "-o"},
        {"bake m --arch 60 -o x", STATUS_INVALID, "--arch"},
        {"bake m --arch 90 -o x --sms 0", STATUS_INVALID, "--sms"},
        {"serve m --policy lax", STATUS_INVALID, "--policy"},
        {"run m -p x --policy adaptive", STATUS_INVALID, "--policy"},
        {"run m -p x --task-type poetry", STATUS_INVALID, "--task-type"},
        {"explain http://x", STATUS_INVALID, ""},
        {"policy", STATUS_INVALID, ""},
        {"bake m --arch 90 -o x --pack y", STATUS_INVALID, "--pack"},
    };
    check_refusals(list, sizeof list / sizeof list[0]);
}

static void test_not_in_this_build(void **state) {
    (void)state;
    static const struct refusal list[] = {
        {"serve m --tls-cert x", STATUS_UNSUPPORTED, "--tls-cert"},
        {"serve m --tls-key=x", STATUS_UNSUPPORTED, "--tls-key"},
        {"serve m --api-key-file x", STATUS_UNSUPPORTED, "--api-key-file"},
        {"serve m --journal x", STATUS_UNSUPPORTED, "--journal"},
        {"serve m --activations bf16", STATUS_UNSUPPORTED, "--activations"},
        {"bench m --graphs no", STATUS_INVALID, "--graphs"},
        {"logits m --side-car f.lacs", STATUS_UNSUPPORTED, "--side-car"},
        {"serve m --drafts ngram,exit", STATUS_INVALID, "--drafts"},
        {"serve m --drafts ngram,", STATUS_INVALID, "--drafts"},
        {"serve m --drafts ngram,off", STATUS_INVALID, "--drafts"},
        {"serve m --drafts auto,ngram", STATUS_INVALID, "--drafts"},
        {"serve m --numa 1", STATUS_UNSUPPORTED, "--numa"},
        {"bundle m", STATUS_UNSUPPORTED, ""},
        {"canary", STATUS_UNSUPPORTED, ""},
    };
    check_refusals(list, sizeof list / sizeof list[0]);
}

enum { TEXT_BYTES = 64 * 1024 };

static char *printed(void (*print)(FILE *, const char *), const char *command) {
    char *text = calloc(1, TEXT_BYTES);
    assert_non_null(text);
    FILE *f = fmemopen(text, TEXT_BYTES, "w");
    assert_non_null(f);
    print(f, command);
    assert_int_equal(fclose(f), 0);
    assert_true(strlen(text) < TEXT_BYTES - 2);
    return text;
}

static void markdown(FILE *out, const char *command) {
    (void)command;
    config_print_markdown(out);
}

/* Every option that a help text shows is accepted or refused as "not in this build", has words that
 * explain it, and stands in the reference. */
static void test_help_is_whole(void **state) {
    (void)state;
    static const char *const commands[] = {
#define X(code, name, words, least, most, help) name,
        CONFIG_COMMAND_LIST(X)
#undef X
    };
    char *reference = printed(markdown, NULL);
    char *overview = printed(config_print_help, NULL);
    assert_non_null(strstr(overview, "canary"));
    int options = 0;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        assert_non_null(strstr(overview, commands[i]));
        char *text = printed(config_print_help, commands[i]);
        assert_null(strstr(text, "(null)"));
        char section[64];
        snprintf(section, sizeof section, "## laconic %s ", commands[i]);
        const char *rows = strstr(reference, section);
        assert_non_null(rows);
        for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            if (strlen(line) > 100) fail_msg("%s: too wide: %s", commands[i], line);
            if (strncmp(line, "  -", 3) != 0 || strstr(line, "--help") != NULL) continue;
            char name[64], row[80];
            assert_int_equal(sscanf(line, " %63s", name), 1);
            snprintf(row, sizeof row, "| `%s", name);
            assert_non_null(strstr(rows, row));
            options++;
        }
        free(text);
    }
    assert_true(options > 70);
    for (char *line = strtok(reference, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "| `", 3) != 0) continue;
        const char *help = strrchr(line, '|') - 2; /* the last cell is not empty */
        assert_true(*help != '|');
    }
    free(reference);
    free(overview);
}

static void test_no_color(void **state) {
    (void)state;
    struct config c;
    struct error e;
    unsetenv("NO_COLOR");
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_false(c.no_color);
    setenv("NO_COLOR", "", 1);
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_false(c.no_color);
    setenv("NO_COLOR", "1", 1);
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_true(c.no_color);
}

static void test_nvtx(void **state) {
    (void)state;
    struct config c;
    struct error e;
    unsetenv("NVTX_INJECTION64_PATH");
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_null(c.nvtx_injection);
    setenv("NVTX_INJECTION64_PATH", "/opt/tool.so", 1);
    assert_int_equal(parse(&c, "doctor", &e), STATUS_OK);
    assert_string_equal(c.nvtx_injection, "/opt/tool.so");
    unsetenv("NVTX_INJECTION64_PATH");
}

/* Random words made of real pieces: never a crash; a failure always says something and zeroes. */
static void test_random_words(void **state) {
    (void)state;
    static char *pieces[] = {"--port", "--port=1", "8080",  "m.gguf",    "-n",      "--",
                             "--pin",  "1-3",      "on",    "off",       "auto",    "-",
                             "",       "=",        "--=",   "--kv=q8",   "--json",  "--temp",
                             "0.5",    "-p",       "x",     "--batch=2", "--exact", "--isa",
                             "avx2",   "---",      "--ctx", "7",         "--mlock", "-h"};
    static const char *const commands[] = {"serve", "run", "bench", "tokenize", "doctor", "logits"};
    srand(7);
    for (int i = 0; i < 200000; i++) {
        char *words[8];
        const int n = rand() % 8;
        for (int k = 0; k < n; k++) {
            words[k] = pieces[(size_t)rand() % (sizeof pieces / sizeof pieces[0])];
        }
        struct config c;
        struct error e = {0};
        const enum status s = config_parse(&c, commands[rand() % 6], n, words, &e);
        if (s == STATUS_OK) continue;
        assert_true(s == STATUS_INVALID || s == STATUS_UNSUPPORTED);
        assert_true(e.message[0] != '\0');
        assert_int_equal(c.n_positional, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_bake),
        cmocka_unit_test(test_isa_names),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_bad_usage),
        cmocka_unit_test(test_not_in_this_build),
        cmocka_unit_test(test_help_is_whole),
        cmocka_unit_test(test_no_color),
        cmocka_unit_test(test_nvtx),
        cmocka_unit_test(test_random_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
