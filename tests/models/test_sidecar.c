/* sidecar.c, sidecar_write.c, shortlist.c: round trips, replacing, then a lie in every byte of the
 * header and the table, with the checksums made to fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/shortlist.h"
#include "models/sidecar_impl.h"

static const uint64_t MODEL[2] = {0x1122334455667788u, 0x99aabbccddeeff00u};

struct folder {
    char path[64], file[96];
};

static int make_folder(void **state) {
    struct folder *f = calloc(1, sizeof *f);
    snprintf(f->path, sizeof f->path, "/tmp/lac-sidecar-XXXXXX");
    if (f == NULL || mkdtemp(f->path) == NULL) return -1;
    snprintf(f->file, sizeof f->file, "%s/a.lacs", f->path);
    *state = f;
    return 0;
}

static int remove_folder(void **state) {
    struct folder *f = *state;
    unlink(f->file);
    const int rc = rmdir(f->path); /* fails when a temporary file was left */
    free(f);
    return rc;
}

static struct sidecar_section section(uint32_t kind, const char *key, const void *data, size_t n) {
    struct sidecar_section s = {.kind = kind, .version = 1, .data = data, .bytes = n};
    snprintf(s.key, sizeof s.key, "%s", key);
    return s;
}

static uint8_t *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint8_t *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static enum status open_bytes(const uint8_t *bytes, size_t n, struct sidecar **out,
                              struct error *e) {
    char path[64];
    const int fd = memfd_create("sidecar", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const enum status st = sidecar_open(path, MODEL, out, e);
    close(fd);
    return st;
}

static void test_round_trip(void **state) {
    const struct folder *f = *state;
    uint8_t blob[1000];
    for (size_t i = 0; i < sizeof blob; i++) blob[i] = (uint8_t)rng_draw(1, 0, (uint32_t)i, 3, 0);
    const struct sidecar_section sections[] = {
        section(SIDECAR_NGRAM, "bank", blob, 1000), section(SIDECAR_SHORTLIST, "general", blob, 1),
        section(SIDECAR_SHORTLIST, "bank", blob + 5, 64), section(4711, "x", blob, 0)};
    struct error e = {0};
    assert_int_equal(sidecar_write(f->file, MODEL, sections, 4, &e), STATUS_OK);
    struct sidecar *s;
    assert_int_equal(sidecar_open(f->file, MODEL, &s, &e), STATUS_OK);
    assert_true(sidecar_is(f->file) && !sidecar_is("/dev/null") && !sidecar_is("/nowhere"));
    assert_int_equal(sidecar_n_sections(s), 4);
    uint64_t model[2];
    sidecar_model(s, model);
    assert_memory_equal(model, MODEL, sizeof model);
    for (int i = 0; i < 4; i++) {
        const struct sidecar_section *x = sidecar_find(s, sections[i].kind, sections[i].key);
        assert_non_null(x);
        assert_int_equal(x->bytes, sections[i].bytes);
        assert_memory_equal(x->data, sections[i].data, x->bytes);
        assert_int_equal((uintptr_t)x->data % 64, 0);
    }
    assert_string_equal(sidecar_find(s, SIDECAR_SHORTLIST, NULL)->key, "bank");
    assert_null(sidecar_find(s, SIDECAR_ROUTER, NULL));
    assert_null(sidecar_find(s, SIDECAR_NGRAM, "general"));
    assert_null(sidecar_kind_name(4711));
    assert_string_equal(sidecar_kind_name(SIDECAR_DRAFT_BLOCK), "draft-block");
    sidecar_close(s);

    /* The order in which they are given does not matter. */
    size_t n, m;
    uint8_t *a = read_file(f->file, &n);
    struct sidecar_section turned[4];
    for (int i = 0; i < 4; i++) turned[i] = sections[3 - i];
    assert_int_equal(sidecar_write(f->file, MODEL, turned, 4, &e), STATUS_OK);
    uint8_t *b = read_file(f->file, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

static void test_replaces_its_own(void **state) {
    const struct folder *f = *state;
    struct error e = {0};
    unlink(f->file);
    const struct sidecar_section first[] = {section(SIDECAR_NGRAM, "bank", "one", 3),
                                            section(SIDECAR_ROUTER, "bank", "two", 3),
                                            section(SIDECAR_NGRAM, "desk", "three", 5)};
    const uint32_t kinds[] = {SIDECAR_NGRAM, SIDECAR_SHORTLIST};
    assert_int_equal(sidecar_update(f->file, MODEL, kinds, 2, "bank", first, 3, &e), STATUS_OK);
    const struct sidecar_section second[] = {section(SIDECAR_SHORTLIST, "bank", "four", 4)};
    assert_int_equal(sidecar_update(f->file, MODEL, kinds, 2, "bank", second, 1, &e), STATUS_OK);
    struct sidecar *s;
    assert_int_equal(sidecar_open(f->file, MODEL, &s, &e), STATUS_OK);
    assert_int_equal(sidecar_n_sections(s), 3);
    assert_null(sidecar_find(s, SIDECAR_NGRAM, "bank"));
    assert_memory_equal(sidecar_find(s, SIDECAR_ROUTER, "bank")->data, "two", 3);
    assert_memory_equal(sidecar_find(s, SIDECAR_NGRAM, "desk")->data, "three", 5);
    assert_memory_equal(sidecar_find(s, SIDECAR_SHORTLIST, "bank")->data, "four", 4);
    sidecar_close(s);

    /* Another model's file is refused and left as it is. */
    const uint64_t other[2] = {1, 2};
    size_t n, m;
    uint8_t *before = read_file(f->file, &n);
    assert_int_equal(sidecar_update(f->file, other, kinds, 2, "bank", second, 1, &e),
                     STATUS_INVALID);
    assert_int_equal(sidecar_open(f->file, other, &s, &e), STATUS_INVALID);
    assert_null(s);
    assert_string_equal(e.field, "model");
    assert_int_equal(sidecar_open(f->file, NULL, &s, &e), STATUS_OK);
    sidecar_close(s);
    uint8_t *after = read_file(f->file, &m);
    assert_true(n == m && memcmp(before, after, n) == 0);
    free(before);
    free(after);
    assert_int_equal(sidecar_write("/nowhere/x.lacs", MODEL, second, 1, &e), STATUS_IO);
    assert_int_equal(sidecar_open("/nowhere/x.lacs", MODEL, &s, &e), STATUS_NOT_FOUND);
}

static void fix_hash(uint8_t *bytes) {
    struct sidecar_header h;
    memcpy(&h, bytes, sizeof h);
    sidecar_hash_header(&h, (const struct sidecar_entry *)(bytes + sizeof h), h.hash);
    memcpy(bytes, &h, sizeof h);
}

static void test_lies(void **state) {
    const struct folder *f = *state;
    struct error e = {0};
    uint8_t blob[200];
    memset(blob, 7, sizeof blob);
    const struct sidecar_section sections[] = {section(SIDECAR_SHORTLIST, "bank", blob, 100),
                                               section(SIDECAR_NGRAM, "bank", blob, 200),
                                               section(999, "later", blob, 30)};
    assert_int_equal(sidecar_write(f->file, MODEL, sections, 3, &e), STATUS_OK);
    size_t n;
    uint8_t *bytes = read_file(f->file, &n);
    struct sidecar *s;
    const size_t head = sizeof(struct sidecar_header), table = 3 * sizeof(struct sidecar_entry);

    /* A flipped bit anywhere but in the padding is found. */
    uint32_t refused = 0;
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= 0x10;
        memset(&e, 0, sizeof e);
        const enum status st = open_bytes(bytes, n, &s, &e);
        if (st != STATUS_OK) {
            refused++;
            assert_true(s == NULL && e.message[0] != '\0' && strchr(e.message, '\n') == NULL);
        } else {
            sidecar_close(s);
        }
        bytes[i] ^= 0x10;
        if (i < head + table) assert_true(st != STATUS_OK);
    }
    assert_int_equal(refused, head + table + 100 + 200 + 30);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(open_bytes(bytes, cut, &s, &e), STATUS_CORRUPT);
    }

    /* The same with header and table hashed again: offsets, lengths, kinds, keys, counts. */
    for (uint32_t i = 0; i < 4000; i++) {
        uint8_t *lie = malloc(n);
        assert_non_null(lie);
        memcpy(lie, bytes, n);
        const uint64_t r = rng_draw(2, 0, i, RNG_TEST, 0);
        const size_t at = i < head + table ? i : (size_t)(r >> 32) % (head + table);
        lie[at] = (uint8_t)r;
        if (r >> 16 & 1) lie[(r >> 40) % (head + table)] = (uint8_t)(r >> 8);
        struct sidecar_header h;
        memcpy(&h, lie, sizeof h);
        if (h.n_sections <= 3) fix_hash(lie);
        if (open_bytes(lie, n, &s, &e) == STATUS_OK) {
            for (uint32_t k = 0; k < sidecar_n_sections(s); k++) {
                const struct sidecar_section *x = sidecar_section(s, k);
                const uint8_t *data = x->data;
                for (size_t b = 0; b < x->bytes; b++) assert_true(data[b] == 7);
            }
            sidecar_close(s);
        }
        free(lie);
    }

    /* A newer version of a known kind is refused, of an unknown one skipped. */
    struct sidecar_section newer[] = {sections[0], sections[2]};
    newer[1].version = 9;
    assert_int_equal(sidecar_write(f->file, MODEL, newer, 2, &e), STATUS_OK);
    assert_int_equal(sidecar_open(f->file, MODEL, &s, &e), STATUS_OK);
    sidecar_close(s);
    newer[0].version = 2;
    assert_int_equal(sidecar_write(f->file, MODEL, newer, 2, &e), STATUS_OK);
    assert_int_equal(sidecar_open(f->file, MODEL, &s, &e), STATUS_UNSUPPORTED);
    free(bytes);
}

static void test_keys(void **state) {
    (void)state;
    assert_true(sidecar_key_valid("bank") && sidecar_key_valid("a.b_c-D:9"));
    assert_false(sidecar_key_valid("") || sidecar_key_valid("a b") || sidecar_key_valid("a/b"));
    assert_true(sidecar_key_valid("012345678901234567890123456789012345678"));
    assert_false(sidecar_key_valid("0123456789012345678901234567890123456789"));
}

static void test_shortlist(void **state) {
    (void)state;
    double mass[50] = {0};
    mass[7] = 3, mass[9] = 5, mass[40] = 3, mass[0] = 1;
    uint32_t ids[6];
    double held;
    struct error e = {0};
    assert_int_equal(shortlist_choose(mass, 50, 2, ids, &held, &e), STATUS_OK);
    assert_true(ids[0] == 7 && ids[1] == 9 && held > 0.666 && held < 0.667);
    assert_int_equal(shortlist_choose(mass, 50, 6, ids, &held, &e), STATUS_OK);
    const uint32_t want[] = {0, 1, 2, 7, 9, 40};
    assert_memory_equal(ids, want, sizeof want);
    assert_true(held == 1);

    void *bytes;
    size_t n;
    struct shortlist s;
    assert_int_equal(shortlist_write(ids, 6, 50, 0.5f, &bytes, &n, &e), STATUS_OK);
    assert_int_equal(shortlist_view(&s, bytes, n, 50, &e), STATUS_OK);
    assert_true(s.n_ids == 6 && s.coverage == 0.5f);
    for (uint32_t id = 0; id < 60; id++) {
        const uint32_t rank = shortlist_find(&s, id);
        uint32_t expected = SHORTLIST_NONE;
        for (uint32_t i = 0; i < 6; i++)
            if (want[i] == id) expected = i;
        assert_int_equal(rank, expected);
    }
    assert_int_equal(shortlist_view(&s, bytes, n, 51, &e), STATUS_INVALID);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(shortlist_view(&s, bytes, cut, 50, &e), STATUS_CORRUPT);
    uint32_t *in = (uint32_t *)((uint8_t *)bytes + 64);
    in[5] = 50;
    assert_int_equal(shortlist_view(&s, bytes, n, 50, &e), STATUS_CORRUPT);
    in[5] = 9;
    assert_int_equal(shortlist_view(&s, bytes, n, 50, &e), STATUS_CORRUPT);
    assert_null(s.ids);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_replaces_its_own),
        cmocka_unit_test(test_lies),       cmocka_unit_test(test_keys),
        cmocka_unit_test(test_shortlist),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
