/* jit_test.h: folders, keys and made-up kernels for the tests of jit/. */
#ifndef LAC_TESTS_JIT_TEST_H
#define LAC_TESTS_JIT_TEST_H

#include <dirent.h>
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

#include "core/log.h"
#include "jit/artefact.h"

/* An empty folder of this test's own; the path is in `out`. */
static inline void folder_make(char out[64]) {
    /* In memory where possible: disks are slow at files rewritten thousands of times. */
    const char *where = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(out, 64, "%s/laconic-jit-XXXXXX", where);
    assert_non_null(mkdtemp(out));
}

static inline void folder_remove(const char *folder) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* Files in the folder whose name ends so; the last one's path is in `path` if that is not NULL. */
static inline int folder_count(const char *folder, const char *tail, char *path) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        const size_t len = strlen(entry->d_name), t = strlen(tail);
        if (len < t || strcmp(entry->d_name + len - t, tail) != 0) continue;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        n++;
        if (path != NULL) snprintf(path, 512, "%s/%s", folder, entry->d_name);
    }
    closedir(d);
    return n;
}

static inline uint8_t *file_read(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    data[*bytes] = 0;
    fclose(f);
    return data;
}

static inline void file_write(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* What was logged, and how often a word occurs in it. */
struct log_capture {
    struct log log;
    char *text;
    size_t bytes;
};

static inline void log_capture_open(struct log_capture *l) {
    l->text = NULL;
    l->log = (struct log){.out = open_memstream(&l->text, &l->bytes), .level = LOG_DEBUG};
    assert_non_null(l->log.out);
}

static inline int log_capture_count(struct log_capture *l, const char *word) {
    fflush(l->log.out);
    int n = 0;
    for (const char *at = l->text; at != NULL && (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

static inline void log_capture_close(struct log_capture *l) {
    fclose(l->log.out);
    free(l->text);
}

static inline void make_id(struct artefact_id *id, const char *name, uint32_t arch,
                           uint32_t sm_count, const char *build) {
    const struct artefact_key key = {
        .name = name,
        .build = build,
        .source = "kernel text",
        .spec = "gemv format=Q4_1 n=576 k=1536",
        .options = "--std=c++17",
        .arch = arch,
        .sm_count = sm_count,
    };
    artefact_identify(&key, id);
}

/* Bytes that look like a kernel and depend on `seed`; freed with artefact_free. */
static inline void make_artefact(struct artefact *a, const char *compiler, unsigned seed,
                                 size_t cubin_bytes, size_t ptx_bytes) {
    uint8_t *memory = malloc(cubin_bytes + ptx_bytes);
    assert_non_null(memory);
    for (size_t i = 0; i < cubin_bytes; i++) memory[i] = (uint8_t)(i * 31 + seed * 7 + i / 251);
    memcpy(memory, "\177ELF", 4);
    for (size_t i = 0; i < ptx_bytes; i++)
        memory[cubin_bytes + i] = (uint8_t)('a' + (i * 11 + seed) % 26);
    memory[cubin_bytes + ptx_bytes - 1] = 0;
    *a = (struct artefact){
        .compile_ns = 1000 + seed,
        .cubin = memory,
        .cubin_bytes = cubin_bytes,
        .ptx = (const char *)memory + cubin_bytes,
        .ptx_bytes = ptx_bytes,
        .memory = memory,
    };
    snprintf(a->compiler, sizeof a->compiler, "%s", compiler);
}

static inline void assert_artefacts_equal(const struct artefact *a, const struct artefact *b) {
    assert_string_equal(a->compiler, b->compiler);
    assert_int_equal(a->compile_ns, b->compile_ns);
    assert_int_equal(a->cubin_bytes, b->cubin_bytes);
    assert_int_equal(a->ptx_bytes, b->ptx_bytes);
    assert_memory_equal(a->cubin, b->cubin, a->cubin_bytes);
    assert_memory_equal(a->ptx, b->ptx, a->ptx_bytes);
}

/* Where the tests' NVRTC is: LAC_NVRTC, else NULL for the usual search. */
static inline const char *nvrtc_path(void) {
    return getenv("LAC_NVRTC");
}

#endif
