/* map.c: contents, refusals, advice, warm-up. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/map.h"

static char folder[] = "/tmp/laconic-map-XXXXXX";
static char path[128];

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static uint8_t byte_at(size_t i) {
    return (uint8_t)(i * 31 + i / 4096);
}

static void write_file(size_t bytes) {
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++) fputc(byte_at(i), file);
    assert_int_equal(fclose(file), 0);
}

static void test_contents(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4095, 4096, 4097, 5 * 1024 * 1024 + 17};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct map m;
        struct error e = {0};
        write_file(sizes[s]);
        assert_int_equal(map_open(path, &m, &e), STATUS_OK);
        assert_int_equal(m.bytes, sizes[s]);
        for (unsigned advice = MAP_ADVICE_NORMAL; advice <= MAP_ADVICE_DONTNEED; advice++) {
            map_advise(&m, sizes[s] / 2, sizes[s] - sizes[s] / 2, (enum map_advice)advice);
            map_advise(&m, sizes[s], 0, (enum map_advice)advice);
        }
        for (size_t i = 0; i < sizes[s]; i++) {
            if (m.data[i] != byte_at(i)) fail_msg("byte %zu of %zu differs", i, sizes[s]);
        }
        /* The map outlives the name. */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(m.data[sizes[s] - 1], byte_at(sizes[s] - 1));
        map_close(&m);
        assert_null(m.data);
        map_close(&m);
    }
}

static void test_refusals(void **state) {
    (void)state;
    struct map m = {(const uint8_t *)"x", 1};
    struct error e = {0};
    assert_int_equal(map_open("/nowhere/at/all", &m, &e), STATUS_NOT_FOUND);
    assert_null(m.data);
    assert_int_equal(m.bytes, 0);
    assert_non_null(strstr(e.message, "/nowhere/at/all"));
    assert_int_equal(map_open(folder, &m, &e), STATUS_INVALID);
    assert_int_equal(map_open("/dev/null", &m, &e), STATUS_INVALID);
    assert_int_equal(map_open("/nowhere", &m, NULL), STATUS_NOT_FOUND);

    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(map_open(path, &m, &e), STATUS_INVALID); /* and does not wait for a writer */
    assert_int_equal(unlink(path), 0);
}

static void test_empty(void **state) {
    (void)state;
    struct map m;
    struct error e = {0};
    write_file(0);
    assert_int_equal(map_open(path, &m, &e), STATUS_OK);
    assert_null(m.data);
    assert_int_equal(m.bytes, 0);
    map_advise(&m, 0, 0, MAP_ADVICE_WILLNEED);
    assert_int_equal(map_populate(&m, NULL, NULL, &e), STATUS_OK);
    map_close(&m);
    assert_int_equal(unlink(path), 0);
}

struct seen {
    size_t calls, last, stop_after;
};

static bool on_progress(void *context, size_t done_bytes, size_t total_bytes) {
    struct seen *s = context;
    assert_true(done_bytes > s->last && done_bytes <= total_bytes);
    s->last = done_bytes;
    return ++s->calls != s->stop_after;
}

static void test_populate(void **state) {
    (void)state;
    struct map m;
    struct error e = {0};
    const size_t bytes = 9 * 1024 * 1024 + 5;
    write_file(bytes);
    assert_int_equal(map_open(path, &m, &e), STATUS_OK);
    struct seen seen = {0};
    assert_int_equal(map_populate(&m, on_progress, &seen, &e), STATUS_OK);
    assert_int_equal(seen.last, bytes);
    assert_in_range(seen.calls, 2, 100);
    struct seen stopping = {.stop_after = 1};
    assert_int_equal(map_populate(&m, on_progress, &stopping, &e), STATUS_GONE);
    assert_int_equal(stopping.calls, 1);
    assert_int_equal(map_populate(&m, NULL, NULL, NULL), STATUS_OK);
    map_close(&m);

    /* A file that shrank since it was mapped is an error where the kernel can tell, not a fault. */
    assert_int_equal(map_open(path, &m, &e), STATUS_OK);
    assert_int_equal(truncate(path, 4096), 0);
    FILE *probe = fopen("/proc/sys/kernel/osrelease", "re");
    int major = 0, minor = 0;
    if (probe && fscanf(probe, "%d.%d", &major, &minor) == 2 && major * 100 + minor >= 514) {
        assert_int_equal(map_populate(&m, NULL, NULL, &e), STATUS_IO);
    }
    if (probe) fclose(probe);
    map_close(&m);
    assert_int_equal(unlink(path), 0);
}

/* A copy stays what it was, whatever becomes of the file. */
static void test_read(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4096, 100001};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct map m;
        struct error e = {0};
        write_file(sizes[s]);
        assert_int_equal(map_read(path, &m, &e), STATUS_OK);
        assert_int_equal(m.bytes, sizes[s]);
        assert_int_equal(truncate(path, 0), 0);
        for (size_t i = 0; i < sizes[s]; i++)
            if (m.data[i] != byte_at(i)) fail_msg("byte %zu of %zu differs", i, sizes[s]);
        map_close(&m);
        assert_null(m.data);
    }
    struct map m;
    struct error e = {0};
    assert_int_equal(map_read(path, &m, &e), STATUS_OK); /* empty by now */
    assert_null(m.data);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(map_read(path, &m, &e), STATUS_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_empty),    cmocka_unit_test(test_populate),
        cmocka_unit_test(test_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
