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

#include "alloc/budget.h"

static const uint64_t gib = (uint64_t)1 << 30;

static void put(const char *root, const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char *make_root(char *root) {
    strcpy(root, "/tmp/lac-budget-XXXXXX");
    assert_non_null(mkdtemp(root));
    put(root, "proc/meminfo",
        "MemTotal:        8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n");
    return root;
}

static void drop(const char *root) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

static void test_no_group(void **state) {
    (void)state;
    char root[64];
    make_root(root);
    struct memory_limit m;
    memory_limit_read(&m, root);
    assert_true(m.physical_bytes == 8 * gib && m.available_bytes == 4 * gib);
    assert_true(m.cgroup_bytes == UINT64_MAX && m.limit_bytes == 8 * gib);
    drop(root);

    memory_limit_read(&m, "/nonexistent");
    assert_true(m.limit_bytes == UINT64_MAX);
    memory_limit_read(&m, "");
    assert_true(m.physical_bytes > (uint64_t)64 << 20 && m.limit_bytes <= m.physical_bytes);
}

static void test_version_2(void **state) {
    (void)state;
    char root[64];
    make_root(root);
    struct memory_limit m;
    put(root, "proc/self/cgroup", "0::/a/b\n");
    put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(root, "sys/fs/cgroup/a/memory.max", "2147483648\n"); /* the parent's limit counts */
    memory_limit_read(&m, root);
    assert_true(m.cgroup_bytes == 2 * gib && m.limit_bytes == 2 * gib);
    put(root, "sys/fs/cgroup/a/b/memory.max", "1073741824\n");
    memory_limit_read(&m, root);
    assert_true(m.limit_bytes == gib);
    /* In a container's own name space. */
    put(root, "proc/self/cgroup", "0::/\n");
    put(root, "sys/fs/cgroup/memory.max", "3221225472\n");
    memory_limit_read(&m, root);
    assert_true(m.limit_bytes == 3 * gib);
    /* A group above the machine's memory is no limit. */
    put(root, "sys/fs/cgroup/memory.max", "99999999999999\n");
    memory_limit_read(&m, root);
    assert_true(m.limit_bytes == 8 * gib);
    drop(root);
}

static void test_version_1(void **state) {
    (void)state;
    char root[64];
    make_root(root);
    struct memory_limit m;
    put(root, "proc/self/cgroup",
        "12:cpu,cpuacct:/x\n7:hugetlb,memory:/outside/name\n1:name=systemd:/y\nbroken line\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    memory_limit_read(&m, root);
    assert_true(m.cgroup_bytes == UINT64_MAX && m.limit_bytes == 8 * gib);
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
    memory_limit_read(&m, root);
    assert_true(m.limit_bytes == gib / 2);
    drop(root);
}

static void test_plan(void **state) {
    (void)state;
    const struct memory_limit m = {.physical_bytes = 8 * gib,
                                   .available_bytes = gib,
                                   .cgroup_bytes = UINT64_MAX,
                                   .limit_bytes = 8 * gib};
    struct budget b;
    struct error e = {0};
    budget_init(&b);
    assert_int_equal(budget_check(&b, &m, &e), STATUS_OK);
    budget_add(&b, "weights", gib);
    budget_add(&b, "KV pages", 7 * gib);
    assert_true(b.total_bytes == 8 * gib);
    assert_int_equal(budget_check(&b, &m, &e), STATUS_OK);
    budget_add(&b, "step", 1);
    assert_int_equal(budget_check(&b, &m, &e), STATUS_NO_MEMORY);
    assert_non_null(strstr(e.message, "KV pages with 7.0 GiB"));
    assert_non_null(strstr(e.message, "the machine allows 8.0 GiB"));
    budget_add(&b, "too much", UINT64_MAX);
    assert_true(b.total_bytes == UINT64_MAX);
    assert_int_equal(budget_check(&b, &m, NULL), STATUS_NO_MEMORY);

    char text[2048] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    budget_print(&b, &m, f);
    fclose(f);
    assert_non_null(strstr(text, "weights"));
    assert_non_null(strstr(text, "7.0 GiB"));
    assert_non_null(strstr(text, "limit (machine)"));
}

static void test_format(void **state) {
    (void)state;
    char text[BUDGET_TEXT_BYTES];
    assert_string_equal(budget_format(0, text), "0 B");
    assert_string_equal(budget_format(1023, text), "1023 B");
    assert_string_equal(budget_format(1024, text), "1.0 KiB");
    assert_string_equal(budget_format(1536, text), "1.5 KiB");
    assert_string_equal(budget_format(gib - 1, text), "1.0 GiB");
    assert_string_equal(budget_format(UINT64_MAX, text), "16.0 EiB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_group),  cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_version_1), cmocka_unit_test(test_plan),
        cmocka_unit_test(test_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
