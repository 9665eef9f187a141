/* gguf.c on models split over several files, honest and lying. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/models/gguf_writer.h"

enum { PARTS = 3 };
static char folder[] = "/tmp/laconic-gguf-XXXXXX";

static void part_path(char path[128], int part) {
    snprintf(path, 128, "%s/m-%05d-of-%05d.gguf", folder, part + 1, PARTS);
}

struct split_lie {
    int no_of_part[PARTS], count_of_part[PARTS], total, missing;
    bool same_tensor;
};

static const struct split_lie honest = {{0, 1, 2}, {PARTS, PARTS, PARTS}, PARTS, -1, false};

static void write_parts(const struct split_lie *l) {
    static const uint64_t dims[] = {8};
    for (int part = 0; part < PARTS; part++) {
        struct file f = {0};
        char path[128], name[16];
        put_header(&f, 1, part == 0 ? 4 : 3);
        put_key(&f, "split.no", GGUF_U16);
        put_int(&f, (uint64_t)l->no_of_part[part], 2);
        put_key(&f, "split.count", GGUF_U16);
        put_int(&f, (uint64_t)l->count_of_part[part], 2);
        put_key(&f, "split.tensors.count", GGUF_I32);
        put_int(&f, (uint64_t)l->total, 4);
        if (part == 0) {
            put_key(&f, "general.architecture", GGUF_STRING);
            put_string(&f, "test");
        }
        snprintf(name, sizeof name, "t%d", l->same_tensor && part == 2 ? 1 : part);
        put_tensor(&f, name, 0, 0, 1, dims);
        pad(&f, 32);
        for (int i = 0; i < 8; i++) put_f32(&f, (float)(10 * part + i));
        part_path(path, part);
        (void)unlink(path);
        if (part != l->missing) {
            FILE *out = fopen(path, "wb");
            assert_non_null(out);
            assert_int_equal(fwrite(f.bytes, 1, f.n, out), f.n);
            assert_int_equal(fclose(out), 0);
        }
        drop(&f);
    }
}

static void test_split(void **state) {
    (void)state;
    char path[128];
    struct gguf *g;
    struct error e = {0};
    write_parts(&honest);
    part_path(path, 0);
    assert_int_equal(gguf_open(path, &g, &e), STATUS_OK);
    assert_int_equal(gguf_n_tensors(g), PARTS);
    for (int part = 0; part < PARTS; part++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", part);
        const struct tensor *t = gguf_find_tensor(g, name);
        assert_ptr_equal(t, gguf_tensor(g, (size_t)part));
        assert_true(((const float *)t->data)[7] == (float)(10 * part + 7));
    }
    gguf_close(g);

    part_path(path, 1); /* not the first */
    assert_int_equal(gguf_open(path, &g, &e), STATUS_INVALID);
    assert_string_equal(e.field, "split.no");
    assert_null(g);

    char renamed[128];
    part_path(path, 0);
    snprintf(renamed, sizeof renamed, "%s/other.gguf", folder);
    assert_int_equal(rename(path, renamed), 0);
    assert_int_equal(gguf_open(renamed, &g, &e), STATUS_INVALID);
    assert_string_equal(e.field, "split.count");
    assert_int_equal(unlink(renamed), 0);
}

static void test_split_lies(void **state) {
    (void)state;
    struct {
        const char *field;
        struct split_lie lie;
    } cases[8];
    size_t n = 0;
    for (; n < 8; n++) cases[n].lie = honest;
    n = 0;
    cases[n].lie.no_of_part[1] = 2, cases[n++].field = "split.no";
    cases[n].lie.no_of_part[0] = 1, cases[n++].field = "split.no";
    cases[n].lie.count_of_part[2] = 4, cases[n++].field = "split.count";
    cases[n].lie.count_of_part[0] = 65535, cases[n++].field = "split.count";
    cases[n].lie.count_of_part[0] = 2, cases[n++].field = "split.count"; /* not the name's */
    cases[n].lie.total = 4, cases[n++].field = "split.tensors.count";
    cases[n].lie.same_tensor = true, cases[n++].field = "t1";
    cases[n].lie.missing = 2, cases[n++].field = "";
    for (size_t i = 0; i < n; i++) {
        char path[128];
        struct gguf *g;
        struct error e = {0};
        write_parts(&cases[i].lie);
        part_path(path, 0);
        const enum status s = gguf_open(path, &g, &e);
        assert_int_not_equal(s, STATUS_OK);
        assert_null(g);
        assert_string_equal(e.field, cases[i].field);
        if (cases[i].lie.missing == 2) {
            assert_int_equal(s, STATUS_NOT_FOUND);
            assert_non_null(strstr(e.message, "m-00003-of-00003.gguf"));
        }
    }
}

static void test_paths(void **state) {
    (void)state;
    struct gguf *g;
    struct error e = {0};
    assert_int_equal(gguf_open("/nowhere.gguf", &g, &e), STATUS_NOT_FOUND);
    assert_null(g);
    assert_int_equal(gguf_open(folder, &g, &e), STATUS_INVALID);
    assert_int_equal(gguf_open("/dev/null", &g, &e), STATUS_INVALID);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) {
    (void)state;
    for (int part = 0; part < PARTS; part++) {
        char path[128];
        part_path(path, part);
        (void)unlink(path);
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_lies),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
