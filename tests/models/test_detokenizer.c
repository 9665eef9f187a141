/* Streaming against decoding all bytes at once, with an oracle of its own for broken UTF-8; the way
 * there and back for any bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/detokenizer.h"
#include "models/unicode.h"
#include "tests/models/tiny_vocab.h"

static struct tiny_vocab vocab;

static struct tokenizer *build(enum tokenizer_kind kind) {
    struct tokenizer_spec spec = tiny_spec(&vocab, kind, kind == TOKENIZER_BPE ? "gpt-2" : "");
    spec.unk = kind == TOKENIZER_SPM ? 0 : TOKEN_NONE;
    struct tokenizer *t;
    assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
    return t;
}

/* Whether some sequence starts with these bytes: by trying to complete them. */
static bool is_prefix(const unsigned char *p, size_t n) {
    static const unsigned char more[] = {0x80, 0x90, 0xA0, 0xBF};
    unsigned char text[4] = {0};
    memcpy(text, p, n);
    for (unsigned k = 0; k < 64; k++) {
        for (size_t i = n; i < 4; i++) text[i] = more[k >> (2 * (i - 1)) & 3];
        for (size_t len = n; len <= 4; len++) {
            uint32_t cp;
            if (utf8_decode((char *)text, len, &cp) == len && cp != UTF8_INVALID && len >= n)
                return true;
        }
    }
    return false;
}

static void replace_oracle(const unsigned char *p, size_t n, struct buffer *out) {
    for (size_t pos = 0; pos < n;) {
        uint32_t cp;
        size_t len = utf8_decode((const char *)p + pos, n - pos, &cp);
        if (cp != UTF8_INVALID) {
            buffer_append(out, p + pos, len);
        } else {
            buffer_append(out, "\xEF\xBF\xBD", 3);
            while (len < 3 && pos + len < n && is_prefix(p + pos, len + 1)) len++;
            if (!is_prefix(p + pos, 1)) len = 1;
        }
        pos += len;
    }
}

static void expect_equal(const struct buffer *a, const struct buffer *b, uint64_t seed) {
    if (a->len != b->len || memcmp(a->data, b->data, a->len) != 0)
        fail_msg("seed %llu: \"%.*s\" is not \"%.*s\"", (unsigned long long)seed, (int)a->len,
                 a->data, (int)b->len, b->data);
}

static void test_stream_is_whole(void **state) {
    (void)state;
    tiny_bpe(&vocab, 1, 60);
    struct tokenizer *t = build(TOKENIZER_BPE);
    struct buffer whole, stream, want, bytes;
    buffer_init(&whole, 0);
    buffer_init(&stream, 0);
    buffer_init(&want, 0);
    buffer_init(&bytes, 0);
    /* bytes that make and break sequences, and their neighbours */
    static const uint8_t edge[] = {0x00, 'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                   0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                   0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    for (uint64_t seed = 0; seed < 30000; seed++) {
        uint32_t ids[24];
        size_t n = 1 + rng_draw(seed, 0, 0, RNG_TEST, 0) % 24;
        for (size_t i = 0; i < n; i++) {
            uint64_t r = rng_draw(seed, 0, 1 + (uint32_t)i, RNG_TEST, 0);
            ids[i] = r % 5 == 0 ? 256 + (uint32_t)(r / 8 % 60) : edge[r / 8 % sizeof edge];
        }
        buffer_clear(&whole);
        buffer_clear(&stream);
        buffer_clear(&want);
        buffer_clear(&bytes);
        detokenize(t, ids, n, 0, &whole);
        struct detokenizer d;
        detokenizer_init(&d, t, 0);
        for (size_t i = 0; i < n; i++) {
            char piece[64];
            buffer_append(&bytes, piece, tokenizer_piece(t, ids[i], false, piece, sizeof piece));
            detokenizer_push(&d, ids[i], &stream);
            /* what is out is always complete */
            for (size_t pos = 0; pos < stream.len;) {
                uint32_t cp;
                pos += utf8_decode(stream.data + pos, stream.len - pos, &cp);
                assert_int_not_equal(cp, UTF8_INVALID);
            }
            /* and nothing is held longer than it must be */
            assert_true(d.n_held == 0 || is_prefix(d.held, d.n_held));
        }
        detokenizer_flush(&d, &stream);
        replace_oracle((const unsigned char *)bytes.data, bytes.len, &want);
        expect_equal(&stream, &want, seed);
        expect_equal(&whole, &want, seed);
    }
    buffer_free(&whole);
    buffer_free(&stream);
    buffer_free(&want);
    buffer_free(&bytes);
    tokenizer_free(t);
}

static void test_there_and_back(void **state) {
    (void)state;
    struct token_list ids = {0};
    struct buffer back;
    buffer_init(&back, 0);
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0)
            tiny_bpe(&vocab, 2, 60);
        else
            tiny_spm(&vocab, 2, 100, true);
        struct tokenizer *t = build(kind == 0 ? TOKENIZER_BPE : TOKENIZER_SPM);
        for (uint64_t seed = 0; seed < 4000; seed++) {
            char text[64];
            size_t len = 1 + rng_draw(seed, 1, 0, RNG_TEST, 0) % sizeof text;
            for (size_t i = 0; i < len; i++) {
                uint64_t r = rng_draw(seed, 1, 1 + (uint32_t)i, RNG_TEST, 0);
                text[i] = r % 2 ? " abcd"[r / 2 % 5] : (char)(r / 2);
            }
            ids.n = 0;
            assert_int_equal(tokenizer_encode(t, NULL, text, len, 0, &ids, NULL), STATUS_OK);
            buffer_clear(&back);
            detokenize(t, ids.ids, ids.n, DETOKENIZE_RAW, &back);
            assert_int_equal(back.len, len);
            assert_memory_equal(back.data, text, len);
        }
        tokenizer_free(t);
    }
    buffer_free(&back);
    token_list_free(&ids);
}

static void expect_text(const struct tokenizer *t, unsigned flags, const uint32_t *ids, size_t n,
                        const char *want) {
    struct buffer out;
    buffer_init(&out, 0);
    detokenize(t, ids, n, flags, &out);
    assert_string_equal(buffer_cstr(&out), want);
    buffer_free(&out);
}

static void test_spaces_and_special(void **state) {
    (void)state;
    tiny_spm(&vocab, 1, 0, false);
    uint32_t word = tiny_add(&vocab, "▁ab", 5, TOKEN_NORMAL, 0);
    uint32_t spaces = tiny_add(&vocab, "▁▁", 6, TOKEN_NORMAL, 0);
    struct tokenizer *t = build(TOKENIZER_SPM);
    expect_text(t, 0, (uint32_t[]){word, word}, 2, "ab ab");
    expect_text(t, DETOKENIZE_CONTINUES, (uint32_t[]){word, word}, 2, " ab ab");
    expect_text(t, 0, (uint32_t[]){1, word, 2}, 3, "ab");
    expect_text(t, DETOKENIZE_SPECIAL, (uint32_t[]){1, word, 2}, 3, "<s> ab</s>");
    expect_text(t, 0, (uint32_t[]){spaces, word}, 2, "  ab");
    expect_text(t, 0, (uint32_t[]){3 + 0xE4, 3 + 0xB8, 3 + 0xAD, 3 + '!'}, 4, "中!");
    expect_text(t, 0, (uint32_t[]){3 + 0xE4, 3 + 0xB8}, 2, "\xEF\xBF\xBD");
    expect_text(t, 0, (uint32_t[]){UINT32_MAX, word, 99999}, 3, "ab");
    tokenizer_free(t);
    struct tokenizer_spec spec = tiny_spec(&vocab, TOKENIZER_SPM, "");
    spec.add_space_prefix = 0;
    assert_int_equal(tokenizer_build(&spec, &t, NULL), STATUS_OK);
    expect_text(t, 0, (uint32_t[]){word}, 1, " ab");
    tokenizer_free(t);
}

static void test_fixed_buffer(void **state) {
    (void)state;
    tiny_bpe(&vocab, 1, 0);
    struct tokenizer *t = build(TOKENIZER_BPE);
    char mem[4];
    struct buffer out;
    buffer_init_fixed(&out, mem, sizeof mem);
    struct detokenizer d;
    detokenizer_init(&d, t, 0);
    for (uint32_t i = 0; i < 5; i++) detokenizer_push(&d, 'a' + i, &out);
    assert_true(out.full);
    assert_memory_equal(mem, "abcd", 4);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_is_whole),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_spaces_and_special),
        cmocka_unit_test(test_fixed_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
