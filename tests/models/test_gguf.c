/* gguf.c: files written here byte by byte, read back; then a lie in every field of one. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/gguf.h"
#include "tests/models/gguf_writer.h"

/* Reads everything there is to read, so that a sanitizer sees every byte that is handed out. */
static uint64_t touch(struct gguf *g) {
    uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        char text[256], key[256];
        enum gguf_type type;
        const struct gguf_string name = gguf_key(g, i, &type);
        gguf_value_text(g, i, text, sizeof text);
        sum += strlen(text) + type;
        if (name.len >= sizeof key) continue;
        memcpy(key, name.data, name.len);
        key[name.len] = '\0';
        uint64_t u;
        double d;
        bool b;
        struct gguf_string s;
        size_t n;
        if (gguf_u64(g, key, &u)) sum += u;
        if (gguf_f64(g, key, &d)) sum += d > 0.5;
        if (gguf_bool(g, key, &b)) sum += b;
        if (gguf_str(g, key, &s)) {
            for (size_t k = 0; k < s.len; k++) sum += (uint8_t)s.data[k];
        }
        if (!gguf_array(g, key, &type, &n)) continue;
        for (size_t k = 0; k <= n; k++) {
            const struct gguf_string item = gguf_array_str(g, key, k);
            for (size_t c = 0; c < item.len; c++) sum += (uint8_t)item.data[c];
            sum += (uint64_t)gguf_array_i64(g, key, k);
            sum += gguf_array_f64(g, key, k) > 0.5;
        }
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        assert_ptr_equal(gguf_find_tensor(g, t->name), t);
        for (uint64_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k];
    }
    uint64_t digest[2];
    gguf_digest(g, digest);
    return sum + digest[0];
}

static void expect_refused(const void *bytes, size_t n, const char *what, int status,
                           const char *field) {
    struct gguf *g;
    struct error e = {0};
    const enum status s = open_bytes(bytes, n, &g, &e);
    if (s == STATUS_OK) {
        gguf_close(g);
        fail_msg("%s: was accepted", what);
    }
    if (s != e.status || e.message[0] == '\0' || strchr(e.message, '\n')) {
        fail_msg("%s: status %d, error {%d, %s}", what, s, e.status, e.message);
    }
    if (status >= 0 && (int)s != status) {
        fail_msg("%s: %s: %s: %s", what, status_name(s), e.field, e.message);
    }
    if (field && strcmp(e.field, field) != 0) {
        fail_msg("%s: field '%s', want '%s' (%s)", what, e.field, field, e.message);
    }
    if (!field && e.field[0] == '\0') fail_msg("%s: no field (%s)", what, e.message);
}

/* ---- the base file: where each field of interest sits ---- */

struct places {
    size_t key_count, tensor_count, version, first_key_len, alignment_type, alignment;
    size_t u32_type, flag, element_type, strings_n, string_len, floats_n, floats_element;
    size_t u32_name, floats_name;
    size_t name_len, n_dims, dim0, dim1, type, offset, second_offset, second_dim0, second_name;
    size_t end_of_infos;
};

static struct file base_file(struct places *at) {
    static const uint64_t dims[] = {8, 2}, dims4[] = {32, 3, 1, 1};
    struct file f = {0};
    struct places none;
    if (!at) at = &none;
    at->version = 4;
    at->tensor_count = 8;
    at->key_count = 16;
    put_header(&f, 2, 6);
    at->first_key_len = f.n;
    put_key(&f, "general.architecture", GGUF_STRING);
    put_string(&f, "test");
    put_key(&f, "general.alignment", GGUF_U32);
    at->alignment_type = f.n - 4;
    at->alignment = f.n;
    put_int(&f, 32, 4);
    at->u32_name = f.n + 8;
    put_key(&f, "a.u32", GGUF_U32);
    at->u32_type = f.n - 4;
    put_int(&f, 7, 4);
    put_key(&f, "a.flag", GGUF_BOOL);
    at->flag = f.n;
    put_int(&f, 1, 1);
    put_array(&f, "a.strings", GGUF_STRING, 3);
    at->element_type = f.n - 12;
    at->strings_n = f.n - 8;
    put_string(&f, "one");
    at->string_len = f.n;
    put_string(&f, "");
    put_string(&f, "three");
    at->floats_name = f.n + 8;
    put_array(&f, "a.f32", GGUF_F32, 2);
    at->floats_element = f.n - 12;
    at->floats_n = f.n - 8;
    put_f32(&f, 0.5f);
    put_f32(&f, -2.0f);
    at->name_len = f.n;
    at->n_dims = f.n + 8 + 2;
    at->dim0 = at->n_dims + 4;
    at->dim1 = at->dim0 + 8;
    at->type = at->dim1 + 8;
    at->offset = at->type + 4;
    put_tensor(&f, "t0", 0, 0, 2, dims);
    at->second_name = f.n + 8;
    put_tensor(&f, "t1", 2, 64, 4, dims4);
    at->second_dim0 = at->second_name + 2 + 4;
    at->second_offset = f.n - 8;
    at->end_of_infos = f.n;
    pad(&f, 32);
    for (int i = 0; i < 16; i++) put_f32(&f, (float)i);
    for (int i = 0; i < 3 * 18; i++) put_int(&f, (uint64_t)i, 1);
    return f;
}

static void test_base(void **state) {
    (void)state;
    struct file f = base_file(NULL);
    struct gguf *g;
    struct error e = {0};
    assert_int_equal(open_bytes(f.bytes, f.n, &g, &e), STATUS_OK);
    uint64_t u;
    struct gguf_string s;
    bool b;
    assert_int_equal(gguf_n_keys(g), 6);
    assert_true(gguf_u64(g, "a.u32", &u) && u == 7);
    assert_true(gguf_bool(g, "a.flag", &b) && b);
    assert_true(gguf_str(g, "general.architecture", &s));
    assert_int_equal(s.len, 4);
    assert_memory_equal(s.data, "test", 4);
    assert_false(gguf_str(g, "general.architectur", &s));
    assert_false(gguf_str(g, "general.architecture2", &s));
    assert_int_equal(gguf_array_str(g, "a.strings", 2).len, 5);
    assert_int_equal(gguf_array_str(g, "a.strings", 1).len, 0);
    assert_int_equal(gguf_array_str(g, "a.strings", 3).len, 0);
    assert_int_equal(gguf_n_tensors(g), 2);
    const struct tensor *t = gguf_tensor(g, 1);
    assert_string_equal(t->name, "t1");
    assert_int_equal(t->type, TENSOR_Q4_0);
    assert_int_equal(t->n_dims, 4);
    assert_true(t->dim[0] == 32 && t->dim[1] == 3 && t->dim[2] == 1 && t->dim[3] == 1);
    assert_int_equal(t->bytes, 54);
    assert_int_equal((uintptr_t)t->data % 32, 0);
    for (int i = 0; i < 54; i++) assert_int_equal(((const uint8_t *)t->data)[i], i);
    t = gguf_find_tensor(g, "t0");
    assert_ptr_equal(t, gguf_tensor(g, 0));
    assert_int_equal(t->n_dims, 2);
    assert_true(t->dim[2] == 1 && t->dim[3] == 1);
    assert_true(((const float *)t->data)[15] == 15.0f);
    assert_null(gguf_find_tensor(g, "t"));
    assert_null(gguf_find_tensor(g, ""));
    assert_int_equal(gguf_file_bytes(g), f.n);
    (void)touch(g);
    gguf_close(g);
    gguf_close(NULL);

    f.bytes[4] = 2; /* version 2 has the same layout */
    assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK);
    gguf_close(g);
    drop(&f);
}

/* Every scalar type, as a key and as an array: which accessors take it, and what it reads as. */
static void test_types(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum gguf_type type;
        size_t bytes;
        uint64_t bits;
        bool is_u64;
        uint64_t u64;
        int64_t i64;
        const char *text;
    } cases[] = {
        {"u8", GGUF_U8, 1, 0xff, true, 255, 255, "255"},
        {"i8", GGUF_I8, 1, 0xff, false, 0, -1, "-1"},
        {"i8.max", GGUF_I8, 1, 0x7f, true, 127, 127, "127"},
        {"u16", GGUF_U16, 2, 0xfffe, true, 65534, 65534, "65534"},
        {"i16", GGUF_I16, 2, 0x8000, false, 0, -32768, "-32768"},
        {"u32", GGUF_U32, 4, 0xffffffff, true, 4294967295, 4294967295, "4294967295"},
        {"i32", GGUF_I32, 4, 0x80000000, false, 0, INT32_MIN, "-2147483648"},
        {"i32.one", GGUF_I32, 4, 1, true, 1, 1, "1"},
        {"u64", GGUF_U64, 8, UINT64_MAX, true, UINT64_MAX, INT64_MAX, "18446744073709551615"},
        {"i64", GGUF_I64, 8, UINT64_MAX, false, 0, -1, "-1"},
        {"i64.min", GGUF_I64, 8, UINT64_C(1) << 63, false, 0, INT64_MIN, "-9223372036854775808"},
        {"f32", GGUF_F32, 4, 0x3f000000, false, 0, 0, "0.5"},
        {"f64", GGUF_F64, 8, 0xbfe0000000000000, false, 0, 0, "-0.5"},
        {"bool", GGUF_BOOL, 1, 1, false, 0, 1, "true"},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    struct file f = {0};
    put_header(&f, 0, 2 * N);
    for (int i = 0; i < N; i++) {
        char key[64];
        put_key(&f, cases[i].name, cases[i].type);
        put_int(&f, cases[i].bits, cases[i].bytes);
        snprintf(key, sizeof key, "array.%s", cases[i].name);
        put_array(&f, key, cases[i].type, 3);
        put_int(&f, 0, cases[i].bytes);
        put_int(&f, cases[i].bits, cases[i].bytes);
        put_int(&f, 0, cases[i].bytes);
    }
    struct gguf *g;
    struct error e = {0};
    assert_int_equal(open_bytes(f.bytes, f.n, &g, &e), STATUS_OK);
    for (int i = 0; i < N; i++) {
        char key[64], text[64];
        uint64_t u;
        double d;
        bool b;
        size_t n;
        enum gguf_type type;
        const char *name = cases[i].name;
        const bool real = cases[i].type == GGUF_F32 || cases[i].type == GGUF_F64;
        assert_int_equal(gguf_u64(g, name, &u), cases[i].is_u64);
        assert_true(u == cases[i].u64);
        assert_int_equal(gguf_f64(g, name, &d), cases[i].type != GGUF_BOOL);
        if (!real && cases[i].type != GGUF_BOOL)
            assert_true(d == (cases[i].is_u64 ? (double)cases[i].u64 : (double)cases[i].i64));
        assert_true(gguf_has(g, name));
        assert_false(gguf_has(g, "absent"));
        if (real) assert_true(d == (cases[i].type == GGUF_F32 ? 0.5 : -0.5));
        assert_int_equal(gguf_bool(g, name, &b), cases[i].type == GGUF_BOOL);
        assert_false(gguf_array(g, name, &type, &n));
        gguf_value_text(g, (size_t)(2 * i), text, sizeof text);
        assert_string_equal(text, cases[i].text);

        snprintf(key, sizeof key, "array.%s", name);
        assert_false(gguf_u64(g, key, &u));
        assert_true(gguf_array(g, key, &type, &n));
        assert_int_equal(type, cases[i].type);
        assert_int_equal(n, 3);
        assert_int_equal(gguf_array_i64(g, key, 0), 0);
        assert_int_equal(gguf_array_i64(g, key, 1), cases[i].i64);
        assert_int_equal(gguf_array_i64(g, key, 3), 0);
        assert_int_equal(gguf_array_str(g, key, 1).len, 0);
        const double want = real                         ? d
                            : cases[i].type == GGUF_BOOL ? 0.0
                            : cases[i].type == GGUF_U64  ? 0x1p64
                                                         : (double)cases[i].i64;
        assert_true(gguf_array_f64(g, key, 1) == want);
        const uint8_t *data = gguf_array_data(g, key);
        assert_memory_equal(data + cases[i].bytes, &cases[i].bits, cases[i].bytes);
        gguf_value_text(g, (size_t)(2 * i + 1), text, sizeof text);
        assert_non_null(strstr(text, cases[i].text));
    }
    assert_null(gguf_array_data(g, "nothing"));
    gguf_close(g);
    drop(&f);
}

static void test_truncated_at_every_byte(void **state) {
    (void)state;
    struct file f = base_file(NULL);
    for (size_t n = 0; n < f.n; n++) {
        char what[32];
        snprintf(what, sizeof what, "%zu bytes", n);
        /* Under ASan a step past the end is seen: map.c poisons the rest of the page. */
        expect_refused(f.bytes, n, what, STATUS_CORRUPT, NULL);
    }
    drop(&f);
}

static void test_lies(void **state) {
    (void)state;
    struct places at;
    struct file f = base_file(&at);
    const uint64_t huge = UINT64_C(1) << 63;
    const struct {
        const char *what;
        size_t place, bytes;
        uint64_t value;
        int status; /* -1: any refusal */
        const char *field;
    } lies[] = {
        {"magic", 0, 4, 0x46554748, STATUS_CORRUPT, "header"},
        {"version 0", at.version, 4, 0, STATUS_UNSUPPORTED, "header"},
        {"version 1", at.version, 4, 1, STATUS_UNSUPPORTED, "header"},
        {"version 4", at.version, 4, 4, STATUS_UNSUPPORTED, "header"},
        {"big endian", at.version, 4, 0x03000000, STATUS_UNSUPPORTED, "header"},
        {"tensors + 1", at.tensor_count, 8, 3, STATUS_CORRUPT, NULL},
        {"tensors 2^63", at.tensor_count, 8, huge, STATUS_TOO_LARGE, "header"},
        {"tensors 65536", at.tensor_count, 8, 65536, STATUS_CORRUPT, "header"},
        {"tensors 65537", at.tensor_count, 8, 65537, STATUS_TOO_LARGE, "header"},
        {"keys + 1", at.key_count, 8, 7, STATUS_CORRUPT, NULL},
        {"keys - 1", at.key_count, 8, 5, -1, NULL},
        {"keys 65536", at.key_count, 8, 65536, STATUS_CORRUPT, "header"},
        {"keys 2^64 - 1", at.key_count, 8, UINT64_MAX, STATUS_TOO_LARGE, "header"},
        {"key of 0 bytes", at.first_key_len, 8, 0, STATUS_CORRUPT, "header"},
        {"key of 2^63 bytes", at.first_key_len, 8, huge, STATUS_CORRUPT, "header"},
        {"key of 2^64 - 1 bytes", at.first_key_len, 8, UINT64_MAX, STATUS_CORRUPT, "header"},
        {"NUL in a key", at.u32_name, 1, 0, STATUS_CORRUPT, "?.u32"},
        {"two keys alike", at.floats_name + 2, 3, 0x323375, STATUS_CORRUPT, "a.u32"},
        {"value type 13", at.u32_type, 4, 13, STATUS_CORRUPT, "a.u32"},
        {"value type 2^32 - 1", at.u32_type, 4, UINT32_MAX, STATUS_CORRUPT, "a.u32"},
        {"a number as a string", at.u32_type, 4, GGUF_STRING, STATUS_CORRUPT, "a.u32"},
        {"boolean 2", at.flag, 1, 2, STATUS_CORRUPT, "a.flag"},
        {"alignment 0", at.alignment, 4, 0, STATUS_CORRUPT, "general.alignment"},
        {"alignment 1", at.alignment, 4, 1, STATUS_CORRUPT, "general.alignment"},
        {"alignment 24", at.alignment, 4, 24, STATUS_CORRUPT, "general.alignment"},
        {"alignment 33", at.alignment, 4, 33, STATUS_CORRUPT, "general.alignment"},
        {"alignment 2^31", at.alignment, 4, UINT64_C(1) << 31, STATUS_CORRUPT, "general.alignment"},
        {"alignment 2^30", at.alignment, 4, 1 << 30, STATUS_CORRUPT, "t0"},
        {"alignment 128", at.alignment, 4, 128, STATUS_CORRUPT, NULL},
        {"alignment as a float", at.alignment_type, 4, GGUF_F32, STATUS_CORRUPT,
         "general.alignment"},
        {"alignment negative", at.alignment_type, 8, GGUF_I32 | UINT64_C(0xffffffe0) << 32,
         STATUS_CORRUPT, "general.alignment"},
        {"element type 13", at.element_type, 4, 13, STATUS_CORRUPT, "a.strings"},
        {"arrays in an array", at.element_type, 4, GGUF_ARRAY, STATUS_UNSUPPORTED, "a.strings"},
        {"2^63 strings", at.strings_n, 8, huge, STATUS_CORRUPT, "a.strings"},
        {"2^61 strings", at.strings_n, 8, UINT64_C(1) << 61, STATUS_CORRUPT, "a.strings"},
        {"strings + 1", at.strings_n, 8, 4, -1, NULL},
        {"string of 2^63 bytes", at.string_len, 8, huge, STATUS_CORRUPT, "a.strings"},
        {"string past the end", at.string_len, 8, f.n, STATUS_CORRUPT, "a.strings"},
        {"2^63 floats", at.floats_n, 8, huge, STATUS_CORRUPT, "a.f32"},
        {"2^62 floats", at.floats_n, 8, UINT64_C(1) << 62, STATUS_CORRUPT, "a.f32"},
        {"2^64 - 1 floats", at.floats_n, 8, UINT64_MAX, STATUS_CORRUPT, "a.f32"},
        {"booleans of 63", at.floats_element, 4, GGUF_BOOL, -1, NULL},
        {"tensor name of 0 bytes", at.name_len, 8, 0, STATUS_CORRUPT, "header"},
        {"tensor name of 64 bytes", at.name_len, 8, 64, STATUS_CORRUPT, NULL},
        {"tensor name of 2^63 bytes", at.name_len, 8, huge, STATUS_CORRUPT, "header"},
        {"NUL in a tensor name", at.name_len + 9, 1, 0, STATUS_CORRUPT, "t?"},
        {"two tensors alike", at.second_name + 1, 1, '0', STATUS_CORRUPT, "t0"},
        {"0 dims", at.n_dims, 4, 0, STATUS_CORRUPT, "t0"},
        {"5 dims", at.n_dims, 4, 5, STATUS_CORRUPT, "t0"},
        {"2^32 - 1 dims", at.n_dims, 4, UINT32_MAX, STATUS_CORRUPT, "t0"},
        {"1 dim of 2", at.n_dims, 4, 1, -1, NULL},
        {"dim 0", at.dim0, 8, 0, STATUS_CORRUPT, "t0"},
        {"dim 2^63", at.dim0, 8, huge, STATUS_CORRUPT, "t0"},
        {"dim 2^64 - 1", at.dim0, 8, UINT64_MAX, STATUS_CORRUPT, "t0"},
        {"8 x 2^61 x 4 bytes", at.dim1, 8, UINT64_C(1) << 61, STATUS_CORRUPT, "t0"},
        {"8 x 2^59 x 4 bytes = 2^64", at.dim1, 8, UINT64_C(1) << 59, STATUS_CORRUPT, "t0"},
        {"8 x (2^59 + 1): wraps small", at.dim1, 8, (UINT64_C(1) << 59) + 1, STATUS_CORRUPT, "t0"},
        {"dim past the end", at.dim1, 8, 100, STATUS_CORRUPT, "t0"},
        {"half a block", at.second_dim0, 8, 48, STATUS_CORRUPT, "t1"},
        {"rows of 2^64 - 32", at.second_dim0, 8, UINT64_MAX - 31, STATUS_CORRUPT, "t1"},
        {"type Q4_2", at.type, 4, 4, STATUS_UNSUPPORTED, "t0"},
        {"type 2^32 - 1", at.type, 4, UINT32_MAX, STATUS_UNSUPPORTED, "t0"},
        {"type Q4_K of 8 weights", at.type, 4, 12, STATUS_CORRUPT, "t0"},
        {"offset not aligned", at.second_offset, 8, 65, STATUS_CORRUPT, "t1"},
        {"offset past the end", at.second_offset, 8, 128, STATUS_CORRUPT, "t1"},
        {"offset 2^63", at.second_offset, 8, huge, STATUS_CORRUPT, "t1"},
        {"offset 2^64 - 32", at.second_offset, 8, UINT64_MAX - 31, STATUS_CORRUPT, "t1"},
        {"tensors overlap", at.second_offset, 8, 32, STATUS_CORRUPT, "t1"},
        {"tensors in one place", at.second_offset, 8, 0, STATUS_CORRUPT, NULL},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        uint8_t saved[8];
        memcpy(saved, f.bytes + lies[i].place, lies[i].bytes);
        memcpy(f.bytes + lies[i].place, &lies[i].value, lies[i].bytes);
        expect_refused(f.bytes, f.n, lies[i].what, lies[i].status, lies[i].field);
        memcpy(f.bytes + lies[i].place, saved, lies[i].bytes);
    }
    struct gguf *g;
    struct error e = {0};
    assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK); /* all lies taken back */
    gguf_close(g);

    /* An offset that only the alignment forbids. */
    const uint64_t beside = 72;
    put_int(&f, 0, 8);
    memcpy(f.bytes + at.second_offset, &beside, sizeof beside);
    assert_int_equal(open_bytes(f.bytes, f.n, &g, &e), STATUS_CORRUPT);
    assert_string_equal(e.field, "t1");
    assert_non_null(strstr(e.message, "alignment"));
    drop(&f);
}

/* Names with control characters, newlines and escapes cannot spoil the error line. */
static void test_error_is_one_printable_line(void **state) {
    (void)state;
    struct file f = {0};
    put_header(&f, 0, 1);
    put_key(&f,
            "evil\n\x1b[31m\x80 key that goes on and on beyond what the field of an error holds",
            13);
    put_int(&f, 0, 8);
    struct gguf *g;
    struct error e = {0};
    assert_int_equal(open_bytes(f.bytes, f.n, &g, &e), STATUS_CORRUPT);
    assert_memory_equal(e.field, "evil??[31m? key", 15);
    for (const char *c = e.field; *c; c++) assert_in_range(*c, 0x20, 0x7e);
    assert_int_equal(strlen(e.field), sizeof e.field - 1);
    drop(&f);
}

/* Bytes changed, copied and removed at random: whatever opens can be read to the end. */
static void test_random_damage(void **state) {
    (void)state;
    struct file f = base_file(NULL);
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint64_t r = rng_draw(22, 0, i, RNG_TEST, 0);
        uint8_t *copy = malloc(f.n);
        memcpy(copy, f.bytes, f.n);
        size_t n = f.n;
        for (uint32_t k = 0; k <= r % 3; k++) {
            const uint64_t w = rng_draw(22, 1 + k, i, RNG_TEST, 0);
            const size_t place = (size_t)(w >> 16) % n;
            switch (w % 4) {
            case 0:
                copy[place] = (uint8_t)(w >> 8);
                break;
            case 1:
                copy[place] ^= (uint8_t)(1u << (w >> 8 & 7));
                break;
            case 2: {
                const uint64_t value = UINT64_MAX >> (w >> 8 & 63);
                memcpy(copy + place, &value, n - place < 8 ? n - place : 8);
                break;
            }
            default:
                memmove(copy + place, copy + place + 1, n - place - 1);
                n--;
                break;
            }
        }
        struct gguf *g;
        struct error e = {0};
        if (open_bytes(copy, n, &g, &e) == STATUS_OK) {
            (void)touch(g);
            gguf_close(g);
            accepted++;
        } else {
            assert_true(e.message[0] != '\0' && !strchr(e.message, '\n'));
        }
        free(copy);
    }
    assert_in_range(accepted, 1000, 19000);
    drop(&f);
}

static void test_long_strings(void **state) {
    (void)state;
    enum { BYTES = 10 * 1024 * 1024 };
    char *text = malloc(BYTES + 1);
    for (int i = 0; i < BYTES; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    text[BYTES] = '\0';
    struct file f = {0};
    put_header(&f, 0, 2);
    put_key(&f, "long", GGUF_STRING);
    put_string(&f, text);
    put_array(&f, "longs", GGUF_STRING, 2);
    put_string(&f, "x");
    put_string(&f, text);
    struct gguf *g;
    struct gguf_string s;
    assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK);
    assert_true(gguf_str(g, "long", &s));
    assert_int_equal(s.len, BYTES);
    assert_memory_equal(s.data, text, BYTES);
    assert_int_equal(gguf_array_str(g, "longs", 1).len, BYTES);
    for (size_t cap = 1; cap < 40; cap++) {
        char cut[64];
        memset(cut, '#', sizeof cut);
        gguf_value_text(g, 0, cut, cap);
        assert_true(strlen(cut) < cap);
        assert_int_equal(cut[cap], '#');
        /* A quote, then whole characters of two bytes. */
        if (cut[0]) assert_int_equal((strlen(cut) - 1) % 2, 0);
        if (cap > 3) assert_true(strlen(cut) + 2 >= cap);
    }
    gguf_close(g);
    drop(&f);
    free(text);
}

static void test_many_keys_and_tensors(void **state) {
    (void)state;
    enum { N = 65536 };
    static const uint64_t dims[] = {8};
    for (uint32_t extra = 0; extra < 2; extra++) {
        struct file f = {0};
        put_header(&f, N, N + extra);
        for (uint32_t i = 0; i < N + extra; i++) {
            char key[32];
            snprintf(key, sizeof key, "k%" PRIu32, i * 2654435761u);
            put_key(&f, key, GGUF_U32);
            put_int(&f, i, 4);
        }
        for (uint32_t i = 0; i < N; i++) {
            char name[32];
            snprintf(name, sizeof name, "t%" PRIu32, i * 2654435761u);
            put_tensor(&f, name, 0, (uint64_t)(N - 1 - i) * 32, 1, dims); /* in falling order */
        }
        pad(&f, 32);
        for (uint32_t i = 0; i < N * 8; i++) put_int(&f, i, 4);
        if (extra) {
            expect_refused(f.bytes, f.n, "65,537 keys", STATUS_TOO_LARGE, "header");
            drop(&f);
            continue;
        }
        struct gguf *g;
        struct error e = {0};
        assert_int_equal(open_bytes(f.bytes, f.n, &g, &e), STATUS_OK);
        for (uint32_t i = 0; i < N; i += 97) {
            char name[32];
            uint64_t u;
            snprintf(name, sizeof name, "k%" PRIu32, i * 2654435761u);
            assert_true(gguf_u64(g, name, &u) && u == i);
            name[0] = 't';
            assert_ptr_equal(gguf_find_tensor(g, name), gguf_tensor(g, i));
        }
        gguf_close(g);
        drop(&f);
    }
}

/* The digest covers tensors and nothing else. */
static void test_digest(void **state) {
    (void)state;
    struct places at;
    struct file f = base_file(&at);
    uint64_t first[2], other[2];
    struct gguf *g;
    assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK);
    gguf_digest(g, first);
    gguf_digest(g, other); /* from the cache */
    assert_memory_equal(first, other, sizeof first);
    gguf_close(g);

    const struct {
        size_t place;
        bool changes;
    } cases[] = {
        {at.u32_type + 4, false}, {at.end_of_infos, false}, {at.name_len + 8, true},
        {f.n - 1, true},          {f.n - 60, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f.bytes[cases[i].place] ^= 1;
        assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK);
        gguf_digest(g, other);
        assert_int_equal(memcmp(first, other, sizeof first) != 0, cases[i].changes);
        gguf_close(g);
        f.bytes[cases[i].place] ^= 1;
    }
    put_int(&f, 99, 8); /* bytes behind the last tensor */
    assert_int_equal(open_bytes(f.bytes, f.n, &g, NULL), STATUS_OK);
    gguf_digest(g, other);
    assert_memory_equal(first, other, sizeof first);
    gguf_close(g);
    drop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_truncated_at_every_byte),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_error_is_one_printable_line),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_many_keys_and_tensors),
        cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
