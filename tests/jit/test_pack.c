/* pack.c, pack_writer.c: rows come back, wrong packs say why, no damaged one is taken. */
#include "jit_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "jit/pack.h"
#include "jit/pack_layout.h"

static const char COMPILER[] = "nvrtc 13.0";
enum { N_ROWS = 12 };

/* Row i of the sample: three kernels for four targets. */
static void sample_id(struct artefact_id *id, uint32_t i) {
    static const char *const names[] = {"lac_a", "lac_b", "lac_c"};
    static const uint32_t targets[][2] = {{80, 108}, {90, 114}, {90, 132}, {120, 170}};
    make_id(id, names[i % 3], targets[i / 3][0], targets[i / 3][1], "0.1.0");
}

static void sample_artefact(struct artefact *a, uint32_t i) {
    make_artefact(a, COMPILER, i, 64 + i * 37, 2 + i * 13);
    a->compile_ns = 0; /* a pack does not depend on the speed of the machine that made it */
}

static void write_sample(const char *path, uint32_t first, uint32_t n) {
    struct pack_writer *w;
    struct error e = {0};
    assert_int_equal(pack_writer_open(&w, &e), STATUS_OK);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = (first + k * 7) % n; /* in some order */
        struct artefact_id id;
        struct artefact a;
        sample_id(&id, i);
        sample_artefact(&a, i);
        assert_int_equal(pack_writer_add(w, &id, &a, &e), STATUS_OK);
        assert_int_equal(pack_writer_add(w, &id, &a, &e), STATUS_INVALID);
        artefact_free(&a);
    }
    assert_int_equal(pack_writer_save(w, path, &e), STATUS_OK);
    pack_writer_close(w);
}

static void test_round_trip(void **state) {
    (void)state;
    char folder[64], path[128], again[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.lacp", folder);
    snprintf(again, sizeof again, "%s/b.lacp", folder);
    write_sample(path, 0, N_ROWS);
    write_sample(again, 5, N_ROWS);
    size_t bytes, again_bytes;
    uint8_t *data = file_read(path, &bytes), *same = file_read(again, &again_bytes);
    assert_int_equal(bytes, again_bytes);
    assert_memory_equal(data, same, bytes); /* the order of adding does not show */
    free(data);
    free(same);

    struct pack *p;
    struct error e = {0};
    assert_true(pack_is(path));
    assert_int_equal(pack_open(path, &p, &e), STATUS_OK);
    assert_int_equal(pack_n_rows(p), N_ROWS);
    assert_int_equal(pack_file_bytes(p), bytes);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        struct artefact_id id;
        struct artefact a, b;
        sample_id(&id, i);
        sample_artefact(&a, i);
        assert_int_equal(pack_find(p, &id, &b, &e), STATUS_OK);
        assert_artefacts_equal(&a, &b);
        assert_int_equal((uintptr_t)b.cubin % 64, 0);
        assert_null(b.memory);
        artefact_free(&b);
        artefact_free(&a);
    }
    for (uint32_t i = 0; i < N_ROWS; i++) {
        struct pack_row row;
        const char *value;
        size_t n;
        pack_row_at(p, i, &row);
        assert_true(artefact_field(row.text, row.text_bytes, "kernel", &value, &n));
        assert_int_equal(n, 5);
        assert_in_range(row.arch, 80, 120);
    }
    char targets[256];
    pack_targets(p, targets, sizeof targets);
    assert_non_null(strstr(targets, "sm_90 x 114 SMs"));
    assert_non_null(strstr(targets, "sm_120 x 170 SMs"));
    pack_targets(p, targets, 8);
    assert_true(strlen(targets) < 8);
    pack_close(p);
    pack_close(NULL);

    /* None at all is a pack too. */
    write_sample(path, 0, 0);
    assert_int_equal(pack_open(path, &p, &e), STATUS_OK);
    assert_int_equal(pack_n_rows(p), 0);
    struct artefact_id id;
    struct artefact b;
    sample_id(&id, 0);
    assert_int_equal(pack_find(p, &id, &b, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.message, "none"));
    pack_close(p);
    folder_remove(folder);
}

/* The four ways of being the wrong pack, each by name. */
static void test_wrong(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.lacp", folder);
    write_sample(path, 0, N_ROWS);
    struct pack *p;
    struct error e = {0};
    assert_int_equal(pack_open(path, &p, &e), STATUS_OK);
    struct artefact_id id;
    struct artefact b;
    static const struct {
        const char *name;
        uint32_t arch, sm_count;
        const char *build, *word;
    } cases[] = {
        {"lac_a", 89, 58, "0.1.0", "not for this chip (sm_89 with 58 SMs)"},
        {"lac_a", 90, 108, "0.1.0", "sm_90 x 132 SMs"},
        {"lac_z", 90, 132, "0.1.0", "no lac_z for sm_90 with 132 SMs"},
        {"lac_a", 90, 132, "0.2.0", "build 0.1.0, this is 0.2.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_id(&id, cases[i].name, cases[i].arch, cases[i].sm_count, cases[i].build);
        assert_int_equal(pack_find(p, &id, &b, &e), STATUS_NOT_FOUND);
        assert_null(b.cubin);
        if (strstr(e.message, cases[i].word) == NULL) fail_msg("%zu: %s", i, e.message);
    }
    pack_close(p);

    assert_int_equal(pack_open("/nowhere/x.lacp", &p, &e), STATUS_NOT_FOUND);
    assert_null(p);
    assert_false(pack_is("/nowhere/x.lacp"));
    assert_int_equal(pack_open(folder, &p, &e), STATUS_INVALID);
    file_write(path, "GGUF", 4);
    assert_false(pack_is(path));
    assert_int_equal(pack_open(path, &p, &e), STATUS_CORRUPT);
    assert_non_null(strstr(e.message, path));
    folder_remove(folder);
}

static void expect_refusal(const char *path, const uint8_t *data, size_t bytes, const char *what,
                           size_t at) {
    struct pack *p;
    struct error e = {0};
    file_write(path, data, bytes);
    const enum status s = pack_open(path, &p, &e);
    if (s == STATUS_OK) fail_msg("%s at %zu was taken", what, at);
    assert_true(s == STATUS_CORRUPT || s == STATUS_UNSUPPORTED);
    assert_null(p);
    assert_true(e.message[0] != '\0' && strchr(e.message, '\n') == NULL);
}

static void test_damaged(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.lacp", folder);
    write_sample(path, 0, 3);
    size_t bytes;
    uint8_t *data = file_read(path, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t kept = data[i];
        data[i] ^= (uint8_t)(1u << i % 8);
        expect_refusal(path, data, bytes, "a flipped bit", i);
        data[i] = kept;
    }
    for (size_t n = 0; n < bytes; n++) expect_refusal(path, data, n, "a cut", n);
    uint8_t *longer = calloc(1, bytes + 64);
    memcpy(longer, data, bytes);
    expect_refusal(path, longer, bytes + 64, "a tail", bytes);
    free(longer);
    free(data);
    folder_remove(folder);
}

static void reseal(uint8_t *data, size_t bytes) {
    struct pack_header h;
    if (bytes < sizeof h) return;
    memcpy(&h, data, sizeof h);
    const XXH128_hash_t body = XXH3_128bits(data + sizeof h, bytes - sizeof h);
    h.body_checksum[0] = body.low64;
    h.body_checksum[1] = body.high64;
    h.header_checksum = XXH3_64bits(&h, offsetof(struct pack_header, header_checksum));
    memcpy(data, &h, sizeof h);
}

/* Made to pass the checksums: every field of header and table set to awkward values. */
static void test_hostile(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.lacp", folder);
    write_sample(path, 0, 3);
    size_t bytes;
    uint8_t *data = file_read(path, &bytes), *bad = malloc(bytes);
    const size_t table = sizeof(struct pack_header) + 3 * sizeof(struct pack_table_row);
    static const uint64_t values[] = {
        0, 1, 63, 64, 4096, 1u << 20, UINT32_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 63};
    int n_taken = 0;
    for (size_t at = 0; at + 4 <= table; at += 4) {
        for (size_t v = 0; v < 2 * sizeof values / sizeof values[0]; v++) {
            memcpy(bad, data, bytes);
            memcpy(bad + at, &values[v / 2], v % 2 == 0 || at + 8 > table ? 4 : 8);
            reseal(bad, bytes);
            file_write(path, bad, bytes);
            struct pack *p;
            struct error e = {0};
            if (pack_open(path, &p, &e) != STATUS_OK) {
                assert_true(e.message[0] != '\0');
                continue;
            }
            /* Only the target and sizes that end in the same 64 bytes may differ; or nothing
             * did. */
            const size_t in_row = (at - sizeof(struct pack_header)) % sizeof(struct pack_table_row);
            const bool harmless = at >= sizeof(struct pack_header) &&
                                  ((in_row >= 16 && in_row < 24) || (in_row >= 56 && in_row < 72));
            if (!harmless && memcmp(bad + 64, data + 64, bytes - 64) != 0) {
                fail_msg("value %zu at %zu was taken", v, at);
            }
            n_taken++;
            for (uint32_t i = 0; i < pack_n_rows(p); i++) {
                struct pack_row row;
                pack_row_at(p, i, &row);
                assert_true(row.artefact.cubin + row.artefact.cubin_bytes != NULL);
            }
            pack_close(p);
        }
    }
    assert_true(n_taken > 0);
    /* Two rows alike. */
    memcpy(bad, data, bytes);
    memcpy(bad + 64 + 96, bad + 64, 96);
    reseal(bad, bytes);
    expect_refusal(path, bad, bytes, "a double row", 0);
    /* A cubin that is none, PTX with a NUL in its middle or none at its end. */
    struct pack_table_row r;
    memcpy(&r, data + 64, sizeof r);
    memcpy(bad, data, bytes);
    bad[r.cubin_offset] = 'x';
    reseal(bad, bytes);
    expect_refusal(path, bad, bytes, "no ELF", 0);
    memcpy(&r, data + 64 + 96, sizeof r);
    memcpy(bad, data, bytes);
    bad[r.ptx_offset + r.ptx_bytes - 1] = 'x';
    reseal(bad, bytes);
    expect_refusal(path, bad, bytes, "no NUL", 0);
    memcpy(bad, data, bytes);
    bad[r.ptx_offset] = 0;
    reseal(bad, bytes);
    if (r.ptx_bytes > 2) expect_refusal(path, bad, bytes, "NUL inside", 0);
    free(bad);
    free(data);
    folder_remove(folder);
}

/* The old pack stays when the new one cannot be written. */
static void test_full(void **state) {
    (void)state;
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.lacp", folder);
    write_sample(path, 0, 3);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit limit = {10000, 10000};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
        struct pack_writer *w;
        struct artefact_id id;
        struct artefact a;
        struct error e = {0};
        sample_id(&id, 0);
        make_artefact(&a, COMPILER, 0, 50000, 100);
        if (pack_writer_open(&w, &e) != STATUS_OK) _exit(3);
        if (pack_writer_add(w, &id, &a, &e) != STATUS_OK) _exit(4);
        const enum status s = pack_writer_save(w, path, &e);
        artefact_free(&a);
        pack_writer_close(w);
        _exit(s == STATUS_FULL && strstr(e.message, path) != NULL ? 0 : 5);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(folder_count(folder, "", NULL), 1);
    struct pack *p;
    struct error e = {0};
    assert_int_equal(pack_open(path, &p, &e), STATUS_OK);
    assert_int_equal(pack_n_rows(p), 3);
    pack_close(p);

    struct pack_writer *w;
    assert_int_equal(pack_writer_open(&w, &e), STATUS_OK);
    assert_int_equal(pack_writer_save(w, "/nowhere/at/all.lacp", &e), STATUS_IO);
    pack_writer_close(w);
    pack_writer_close(NULL);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_damaged),    cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
