/* safetensors.c: files written here and read back; then a lie in every field, and every truncation.
 */
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
#include "core/tensor.h"
#include "models/safetensors.h"

static enum status open_bytes(const void *bytes, size_t n, struct safetensors **out,
                              struct error *e) {
    char path[64];
    const int fd = memfd_create("safetensors", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out = (struct safetensors *)(uintptr_t)1;
    const enum status st = safetensors_open(path, out, e);
    close(fd);
    return st;
}

/* The header's length as told, the header, n_data bytes of data. */
static enum status open_file(uint64_t told, const char *header, size_t n_data,
                             struct safetensors **out, struct error *e) {
    const size_t n = strlen(header);
    uint8_t *file = calloc(8 + n + n_data, 1);
    assert_non_null(file);
    for (size_t i = 0; i < 8; i++) file[i] = (uint8_t)(told >> 8 * i);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < n_data; i++) file[8 + n + i] = (uint8_t)(i * 7);
    const enum status st = open_bytes(file, 8 + n + n_data, out, e);
    free(file);
    return st;
}

static void expect_refused(const char *header, size_t n_data, enum status status,
                           const char *field) {
    struct safetensors *s;
    struct error e = {0};
    const enum status st = open_file(strlen(header), header, n_data, &s, &e);
    if (st != status || strcmp(e.field, field) != 0)
        fail_msg("%.80s: %s, field %s (%s)", header, status_name(st), e.field, e.message);
    assert_null(s);
    assert_true(e.message[0] != '\0' && strchr(e.message, '\n') == NULL);
}

static void test_reads(void **state) {
    (void)state;
    const char *header =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
        "\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[28,30]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[30,38]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[38,38]}}   ";
    struct safetensors *s;
    struct error e = {0};
    assert_int_equal(open_file(strlen(header), header, 38, &s, &e), STATUS_OK);
    assert_int_equal(safetensors_n_tensors(s), 5);
    assert_string_equal(safetensors_tensor(s, 0)->name, "a");
    const struct safetensors_tensor *t = safetensors_find(s, "b.weight");
    assert_true(t->type == SAFETENSORS_F32 && t->n_dims == 2 && t->dim[0] == 2 && t->dim[1] == 3 &&
                t->n == 6 && t->bytes == 24);
    assert_null(safetensors_find(s, "b.weigh"));
    assert_null(safetensors_find(s, "__metadata__"));
    uint8_t raw[4];
    float want, got[2];
    for (unsigned i = 0; i < 4; i++) raw[i] = (uint8_t)((4 + 4 * 4 + i) * 7);
    memcpy(&want, raw, sizeof want);
    safetensors_read_f32(t, 4, 1, got);
    assert_memory_equal(got, &want, sizeof want);
    safetensors_read_f32(safetensors_find(s, "a"), 0, 2, got);
    assert_true(got[1] == f16_to_f32((uint16_t)(14 | 21 << 8)));
    safetensors_read_f32(safetensors_find(s, "scalar"), 0, 1, got);
    assert_true(got[0] == bf16_to_f32((uint16_t)(28 * 7 | (29 * 7 & 255) << 8)));
    assert_false(safetensors_is_float(safetensors_find(s, "ids")->type));
    assert_int_equal(safetensors_find(s, "none")->n, 0);
    safetensors_close(s);
    safetensors_close(NULL);

    assert_int_equal(open_file(2, "{}", 0, &s, &e), STATUS_OK);
    assert_int_equal(safetensors_n_tensors(s), 0);
    safetensors_close(s);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_lies(void **state) {
    (void)state;
    static const char *const of_the_tensor[] = {
        T("\"F31\"", "[2]", "[0,8]"),
        T("7", "[2]", "[0,8]"),
        T("null", "[2]", "[0,8]"),
        T("\"F32\"", "[3]", "[0,8]"),
        T("\"F32\"", "[2.0]", "[0,8]"),
        T("\"F32\"", "[-2]", "[0,8]"),
        T("\"F32\"", "[\"2\"]", "[0,8]"),
        T("\"F32\"", "2", "[0,8]"),
        T("\"F32\"", "{}", "[0,8]"),
        T("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"),
        T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), /* 2^64 elements */
        T("\"F32\"", "[9223372036854775807,2]", "[0,8]"), /* one bit too many */
        T("\"F32\"", "[4611686018427387904]", "[0,0]"),   /* 2^64 bytes */
        T("\"F32\"", "[4611686018427387906]", "[0,8]"),   /* 2^64 + 8 bytes */
        T("\"F32\"", "[2]", "[0]"),
        T("\"F32\"", "[2]", "[0,8,8]"),
        T("\"F32\"", "[2]", "[-8,0]"),
        T("\"F32\"", "[2]", "[0.0,8]"),
        T("\"F32\"", "[2]", "[8,0]"),
        T("\"F32\"", "[2]", "[0,9]"),
        T("\"F32\"", "[2]", "[4,12]"),
        T("\"F32\"", "[2]", "[9223372036854775800,9223372036854775807]"),
        T("\"F32\"", "[2]", "null"),
        T("\"F32\"", "[1]", "[4,8]"), /* a gap in front */
        "{\"t\":[]}",
        "{\"t\":{}}",
    };
    for (size_t i = 0; i < sizeof of_the_tensor / sizeof *of_the_tensor; i++)
        expect_refused(of_the_tensor[i], 8, STATUS_CORRUPT, "t");
    static const char *const of_the_header[] = {
        "[]",
        "",
        "{",
        "{}}",
        "{}\x01",
        "nonsense",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,9223372036854775808]}}",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"shape\":[8]}}",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"t\":{}}",
        "{\"\\u0000\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
        "{}",                        /* bytes of no tensor */
        T("\"U8\"", "[7]", "[0,7]"), /* the last of them */
    };
    for (size_t i = 0; i < sizeof of_the_header / sizeof *of_the_header; i++)
        expect_refused(of_the_header[i], 8, STATUS_CORRUPT, "header");
    expect_refused("{\"__metadata__\":[]}", 0, STATUS_CORRUPT, "__metadata__");
    expect_refused("{\"__metadata__\":{\"a\":1}}", 0, STATUS_CORRUPT, "__metadata__");
    expect_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
                   8, STATUS_CORRUPT, "b"); /* overlap */
    expect_refused("{\"\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8,
                   STATUS_CORRUPT, "");
}

static void test_lengths(void **state) {
    (void)state;
    static const uint64_t lies[] = {
        0, 1, 3, 1000, 1u << 31, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 7};
    struct safetensors *s;
    struct error e = {0};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        assert_int_equal(open_file(lies[i], "{}", 0, &s, &e), STATUS_CORRUPT);
        assert_string_equal(e.field, "header");
    }
    /* A header over the limit is refused before it is parsed, whatever it says. */
    const size_t big = SAFETENSORS_MAX_HEADER_BYTES + 1;
    char *header = malloc(big + 1);
    assert_non_null(header);
    memset(header, ' ', big);
    memcpy(header, "{}", 2);
    header[big] = '\0';
    assert_int_equal(open_file(big, header, 0, &s, &e), STATUS_TOO_LARGE);
    /* And at the limit, nested as deep as it goes. */
    memset(header, '[', big - 1);
    header[big - 1] = '\0';
    assert_int_equal(open_file(big - 1, header, 0, &s, &e), STATUS_CORRUPT);
    free(header);
    assert_int_equal(safetensors_open("/nonexistent.safetensors", &s, &e), STATUS_NOT_FOUND);
}

static void test_truncations_and_flips(void **state) {
    (void)state;
    const char *header = "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]}}";
    const size_t n_header = strlen(header), n = 8 + n_header + 20;
    uint8_t *file = calloc(n, 1);
    assert_non_null(file);
    file[0] = (uint8_t)n_header;
    assert_true(n_header < 256);
    memcpy(file + 8, header, n_header);
    struct safetensors *s;
    struct error e = {0};
    for (size_t cut = 0; cut < n; cut++) {
        const enum status st = open_bytes(file, cut, &s, &e);
        if (st == STATUS_OK) fail_msg("cut to %zu bytes and taken", cut);
    }
    assert_int_equal(open_bytes(file, n, &s, &e), STATUS_OK);
    safetensors_close(s);
    /* Any flipped bits: refused, or every byte that is handed out can be read. */
    const uint64_t seed = 11;
    for (uint32_t i = 0; i < 4000; i++) {
        const uint64_t r = rng_draw(seed, i, 0, 0, 0);
        const size_t at = (size_t)(r % (8 + n_header));
        const uint8_t was = file[at];
        file[at] = (uint8_t)(was ^ (1u << (r >> 32) % 8));
        if (open_bytes(file, n, &s, &e) == STATUS_OK) {
            for (size_t k = 0; k < safetensors_n_tensors(s); k++) {
                const struct safetensors_tensor *t = safetensors_tensor(s, k);
                float out[64];
                assert_true(t->n <= 64 || !safetensors_is_float(t->type));
                if (safetensors_is_float(t->type)) safetensors_read_f32(t, 0, t->n, out);
            }
            safetensors_close(s);
        }
        file[at] = was;
    }
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_truncations_and_flips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
