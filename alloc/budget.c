#include "alloc/budget.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

void budget_init(struct budget *b) {
    memset(b, 0, sizeof *b);
}

void budget_add(struct budget *b, const char *name, uint64_t bytes) {
    CHECK(b->n_lines < BUDGET_MAX_LINES);
    struct budget_line *line = &b->lines[b->n_lines++];
    snprintf(line->name, sizeof line->name, "%s", name);
    line->bytes = bytes;
    if (__builtin_add_overflow(b->total_bytes, bytes, &b->total_bytes)) {
        b->total_bytes = UINT64_MAX;
    }
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* `Name:   123 kB` in a file like /proc/meminfo. */
static uint64_t read_meminfo(const char *path, const char *name) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return UINT64_MAX;
    char line[256];
    uint64_t bytes = UINT64_MAX;
    const size_t n = strlen(name);
    while (bytes == UINT64_MAX && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, name, n) != 0 || line[n] != ':') continue;
        unsigned long long kib;
        if (sscanf(line + n + 1, "%llu kB", &kib) == 1) bytes = (uint64_t)kib * 1024;
    }
    fclose(f);
    return bytes;
}

/* A file that holds one number, or "max". */
static uint64_t read_limit(const char *path) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return UINT64_MAX;
    unsigned long long v;
    const bool number = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    return number ? v : UINT64_MAX;
}

/* The limit of the group and of all its ancestors. A container may see its own group as the root of
 * the mount while /proc names it from outside, so files that are not there are passed over. */
static uint64_t walk_groups(const char *mount, const char *file, const char *group) {
    char path[PATH_MAX], at[PATH_MAX];
    snprintf(at, sizeof at, "%s", group);
    uint64_t limit = UINT64_MAX;
    for (;;) {
        const int n = snprintf(path, sizeof path, "%s%s/%s", mount, at, file);
        if (n > 0 && (size_t)n < sizeof path) limit = least(limit, read_limit(path));
        char *slash = strrchr(at, '/');
        if (slash == NULL) return limit;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (;;) {
        const size_t len = strcspn(list, ",");
        if (len == n && memcmp(list, word, n) == 0) return true;
        if (list[len] == '\0') return false;
        list += len + 1;
    }
}

/* Lines of /proc/self/cgroup: hierarchy:controllers:path; version 2 is `0::path`. */
static uint64_t read_cgroups(const char *root) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (f == NULL) return UINT64_MAX;
    uint64_t limit = UINT64_MAX;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) continue;
        *group++ = '\0';
        controllers++;
        if (strcmp(group, "/") == 0) group[0] = '\0';
        if (controllers[0] == '\0') {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup", root);
            limit = least(limit, walk_groups(path, "memory.max", group));
        } else if (has_word(controllers, "memory")) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup/memory", root);
            limit = least(limit, walk_groups(path, "memory.limit_in_bytes", group));
        }
    }
    fclose(f);
    return limit;
}

void memory_limit_read(struct memory_limit *m, const char *root) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    m->physical_bytes = read_meminfo(path, "MemTotal");
    m->available_bytes = read_meminfo(path, "MemAvailable");
    m->cgroup_bytes = read_cgroups(root);
    /* Version 1 writes "no limit" as a number near 2^63. */
    if (m->cgroup_bytes >= (uint64_t)INT64_MAX - 4095) m->cgroup_bytes = UINT64_MAX;
    m->limit_bytes = least(m->physical_bytes, m->cgroup_bytes);
}

const char *budget_format(uint64_t bytes, char text[BUDGET_TEXT_BYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double v = (double)bytes;
    while (v >= 1023.95 && unit < sizeof units / sizeof units[0] - 1) {
        v /= 1024;
        unit++;
    }
    snprintf(text, BUDGET_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", v, units[unit]);
    return text;
}

enum status budget_check(const struct budget *b, const struct memory_limit *m, struct error *e) {
    if (b->total_bytes <= m->limit_bytes) return STATUS_OK;
    const struct budget_line *largest = &b->lines[0];
    for (uint32_t i = 1; i < b->n_lines; i++) {
        if (b->lines[i].bytes > largest->bytes) largest = &b->lines[i];
    }
    char need[BUDGET_TEXT_BYTES], have[BUDGET_TEXT_BYTES], most[BUDGET_TEXT_BYTES];
    return error_set(e, STATUS_NO_MEMORY, NULL,
                     "the memory plan needs %s, and %s allows %s; the largest part is %s with %s",
                     budget_format(b->total_bytes, need),
                     m->cgroup_bytes < m->physical_bytes ? "the control group" : "the machine",
                     budget_format(m->limit_bytes, have), largest->name,
                     budget_format(largest->bytes, most));
}

void budget_print(const struct budget *b, const struct memory_limit *m, FILE *out) {
    char text[BUDGET_TEXT_BYTES];
    for (uint32_t i = 0; i < b->n_lines; i++) {
        fprintf(out, "  %-40s %12s\n", b->lines[i].name, budget_format(b->lines[i].bytes, text));
    }
    fprintf(out, "  %-40s %12s\n", "total", budget_format(b->total_bytes, text));
    if (m == NULL || m->limit_bytes == UINT64_MAX) return;
    fprintf(out, "  %-40s %12s\n",
            m->cgroup_bytes < m->physical_bytes ? "limit (control group)" : "limit (machine)",
            budget_format(m->limit_bytes, text));
}
