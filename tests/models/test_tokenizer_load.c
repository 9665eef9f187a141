/* Tokenizers out of GGUF files: what the keys mean, files that lie, and the default model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/detokenizer.h"
#include "models/tokenizer.h"
#include "tests/models/gguf_writer.h"
#include "tests/models/tiny_vocab.h"

struct written {
    struct file f;
    uint64_t n_keys;
};

static void key_string(struct written *w, const char *key, const char *value) {
    put_key(&w->f, key, GGUF_STRING);
    put_string(&w->f, value);
    w->n_keys++;
}
static void key_u32(struct written *w, const char *key, uint32_t value) {
    put_key(&w->f, key, GGUF_U32);
    put_int(&w->f, value, 4);
    w->n_keys++;
}
static void key_bool(struct written *w, const char *key, bool value) {
    put_key(&w->f, key, GGUF_BOOL);
    put_int(&w->f, value, 1);
    w->n_keys++;
}
static void key_strings(struct written *w, const char *key, const struct gguf_string *s, size_t n) {
    put_array(&w->f, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        put_int(&w->f, s[i].len, 8);
        put(&w->f, s[i].data, s[i].len);
    }
    w->n_keys++;
}
static void key_vocab(struct written *w, const struct tiny_vocab *v, size_t n_types,
                      size_t n_scores) {
    key_strings(w, "tokenizer.ggml.tokens", v->token, v->n);
    put_array(&w->f, "tokenizer.ggml.token_type", GGUF_I32, n_types);
    for (size_t i = 0; i < n_types; i++) put_int(&w->f, v->type[i], 4);
    put_array(&w->f, "tokenizer.ggml.scores", GGUF_F32, n_scores);
    for (size_t i = 0; i < n_scores; i++) put_f32(&w->f, v->score[i]);
    w->n_keys += 2;
}

static enum status load(struct written *w, struct tokenizer **t, struct error *e) {
    struct file whole = {0};
    put_header(&whole, 0, w->n_keys);
    put(&whole, w->f.bytes, w->f.n);
    pad(&whole, 32);
    struct gguf *g = NULL;
    *t = NULL;
    if (open_bytes(whole.bytes, whole.n, &g, e) != STATUS_OK) fail_msg("%s", e->message);
    enum status st = tokenizer_load(g, t, e);
    gguf_close(g);
    drop(&whole);
    drop(&w->f);
    w->n_keys = 0;
    return st;
}

static struct tiny_vocab vocab;

static void refused(struct written *w, enum status want, const char *field) {
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(load(w, &t, &e), want);
    assert_null(t);
    assert_string_equal(e.field, field);
    assert_true(strlen(e.message) > 0);
    assert_null(strchr(e.message, '\n'));
}

static void test_keys(void **state) {
    (void)state;
    tiny_spm(&vocab, 1, 0, false);
    uint32_t turn = tiny_special(&vocab, "<end_of_turn>", TOKEN_NORMAL, 0);
    struct written w = {0};
    key_string(&w, "tokenizer.ggml.model", "llama");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_u32(&w, "tokenizer.ggml.bos_token_id", 2);
    key_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    key_u32(&w, "tokenizer.ggml.padding_token_id", 4000000000u);
    key_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    key_bool(&w, "tokenizer.ggml.add_eos_token", true);
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(load(&w, &t, &e), STATUS_OK);
    assert_int_equal(tokenizer_kind(t), TOKENIZER_SPM);
    assert_string_equal(tokenizer_pre(t), "");
    assert_int_equal(tokenizer_n_vocab(t), vocab.n);
    assert_int_equal(tokenizer_bos(t), 2);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_int_equal(tokenizer_pad(t), TOKEN_NONE);
    assert_int_equal(tokenizer_eot(t), turn);
    assert_true(tokenizer_adds_bos(t));
    assert_true(tokenizer_adds_eos(t));
    assert_false(tokenizer_adds_space_prefix(t));
    assert_true(tokenizer_is_eog(t, 1));
    assert_true(tokenizer_is_eog(t, turn));
    assert_true(tokenizer_is_control(t, turn));
    assert_true(tokenizer_is_eog(t, 2)); /* </s> is a control token here */
    assert_false(tokenizer_is_eog(t, 0));
    tokenizer_free(t);

    /* with the calls of harmony, <|end|> ends a message and not the turn */
    tiny_bpe(&vocab, 1, 0);
    uint32_t end = tiny_special(&vocab, "<|end|>", TOKEN_CONTROL, 0);
    uint32_t ret = tiny_special(&vocab, "<|return|>", TOKEN_CONTROL, 0);
    uint32_t call = tiny_special(&vocab, "<|call|>", TOKEN_CONTROL, 0);
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_string(&w, "tokenizer.ggml.pre", "gpt-4o");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_strings(&w, "tokenizer.ggml.merges", vocab.merge, 0);
    assert_int_equal(load(&w, &t, &e), STATUS_OK);
    assert_string_equal(tokenizer_pre(t), "gpt-4o");
    assert_false(tokenizer_is_eog(t, end));
    assert_true(tokenizer_is_eog(t, ret));
    assert_true(tokenizer_is_eog(t, call));
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_false(tokenizer_adds_bos(t));
    tokenizer_free(t);
}

static void test_strips(void **state) {
    (void)state;
    tiny_bpe(&vocab, 1, 0);
    uint32_t m = tiny_special(&vocab, "<m>", TOKEN_CONTROL, 0);
    char json[256];
    snprintf(json, sizeof json,
             "{\"added_tokens\": [{\"id\": %u, \"lstrip\": true, \"rstrip\": false}, {\"id\": -1, "
             "\"lstrip\": true}, {\"id\": 123456, \"lstrip\": true}, 7]}",
             m);
    struct written w = {0};
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_strings(&w, "tokenizer.ggml.merges", vocab.merge, 0);
    key_string(&w, "tokenizer.huggingface.json", json);
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(load(&w, &t, &e), STATUS_OK);
    struct token_list out = {0};
    assert_int_equal(tokenizer_encode(t, NULL, "a <m> b", 7, TOKENIZE_SPECIAL, &out, &e),
                     STATUS_OK);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.ids[1], m);
    assert_int_equal(out.ids[2], ' ');
    token_list_free(&out);
    tokenizer_free(t);

    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_strings(&w, "tokenizer.ggml.merges", vocab.merge, 0);
    key_string(&w, "tokenizer.huggingface.json", "{\"added_tokens\": [");
    refused(&w, STATUS_CORRUPT, "tokenizer.huggingface.json");
}

static void test_refusals(void **state) {
    (void)state;
    struct written w = {0};
    refused(&w, STATUS_NOT_FOUND, "tokenizer.ggml.model");
    key_string(&w, "tokenizer.ggml.model", "rwkv");
    refused(&w, STATUS_UNSUPPORTED, "tokenizer.ggml.model");
    key_string(&w, "tokenizer.ggml.model", "llama");
    refused(&w, STATUS_CORRUPT, "tokenizer.ggml.tokens");

    tiny_spm(&vocab, 1, 20, false);
    key_string(&w, "tokenizer.ggml.model", "llama");
    key_vocab(&w, &vocab, vocab.n - 1, vocab.n);
    refused(&w, STATUS_CORRUPT, "tokenizer.ggml.token_type");
    key_string(&w, "tokenizer.ggml.model", "llama");
    key_vocab(&w, &vocab, vocab.n, 1);
    refused(&w, STATUS_CORRUPT, "tokenizer.ggml.scores");
    static const char *const bytes[] = {"<0xZZ>", "<0x4>", "", "<0x411>", "(0x41)"};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        tiny_spm(&vocab, 1, 20, false);
        tiny_special(&vocab, bytes[i], TOKEN_BYTE, 0);
        key_string(&w, "tokenizer.ggml.model", "llama");
        key_vocab(&w, &vocab, vocab.n, vocab.n);
        refused(&w, STATUS_CORRUPT, "tokenizer.ggml.tokens");
    }

    tiny_bpe(&vocab, 1, 10);
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    refused(&w, STATUS_CORRUPT, "tokenizer.ggml.merges");
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_string(&w, "tokenizer.ggml.pre", "never-heard-of");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_strings(&w, "tokenizer.ggml.merges", vocab.merge, vocab.n_merges);
    refused(&w, STATUS_UNSUPPORTED, "tokenizer.ggml.pre");
    static const char *const merges[] = {"", " ", "a", "ab", " a"};
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        struct gguf_string m = {merges[i], strlen(merges[i])};
        key_string(&w, "tokenizer.ggml.model", "gpt2");
        key_vocab(&w, &vocab, vocab.n, vocab.n);
        key_strings(&w, "tokenizer.ggml.merges", &m, 1);
        refused(&w, STATUS_CORRUPT, "tokenizer.ggml.merges");
    }
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    put_array(&w.f, "tokenizer.ggml.tokens", GGUF_U32, 2);
    put_int(&w.f, 1, 8);
    w.n_keys++;
    refused(&w, STATUS_CORRUPT, "tokenizer.ggml.tokens");
}

/* Tokens that are odd but harmless: empty, twice the same, not UTF-8, merges of what is no token.
 */
static void test_odd_vocabularies(void **state) {
    (void)state;
    tiny_bpe(&vocab, 1, 20);
    tiny_add(&vocab, "", 0, TOKEN_NORMAL, 0);
    tiny_add(&vocab, "", 0, TOKEN_CONTROL, 0);
    tiny_add(&vocab, "a", 1, TOKEN_NORMAL, 0);
    tiny_add(&vocab, "\xFF\xFE", 2, TOKEN_NORMAL, 0);
    tiny_add(&vocab, "zz", 2, 77, 0);
    vocab.merge[vocab.n_merges++] = tiny_text(&vocab, "x nothing", 9);
    vocab.merge[vocab.n_merges++] = tiny_text(&vocab, "a b c", 5);
    struct written w = {0};
    key_string(&w, "tokenizer.ggml.model", "gpt2");
    key_vocab(&w, &vocab, vocab.n, vocab.n);
    key_strings(&w, "tokenizer.ggml.merges", vocab.merge, vocab.n_merges);
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(load(&w, &t, &e), STATUS_OK);
    struct token_list out = {0};
    assert_int_equal(tokenizer_encode(t, NULL, "xyz\xFF", 4, 0, &out, &e), STATUS_OK);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.ids[3], 0xFF);
    token_list_free(&out);
    tokenizer_free(t);
}

static void test_default_model(void **state) {
    (void)state;
    const char *path = getenv("LAC_MODEL");
    if (path == NULL) {
        printf("skip: LAC_MODEL is not set\n");
        skip();
    }
    struct gguf *g;
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(gguf_open(path, &g, &e), STATUS_OK);
    assert_int_equal(tokenizer_load(g, &t, &e), STATUS_OK);
    gguf_close(g); /* nothing of the file is kept */
    assert_string_equal(tokenizer_pre(t), "smollm");
    assert_int_equal(tokenizer_n_vocab(t), 49152);
    assert_true(tokenizer_is_eog(t, 2));
    assert_int_equal(tokenizer_find(t, "<|im_end|>", 10), 2);
    struct token_list ids = {0};
    const char text[] = "<|im_start|>user\nHello, wörld 123!<|im_end|>\n";
    assert_int_equal(tokenizer_encode(t, NULL, text, sizeof text - 1, TOKENIZE_SPECIAL, &ids, &e),
                     STATUS_OK);
    assert_int_equal(ids.ids[0], 1);
    struct buffer back;
    buffer_init(&back, 0);
    detokenize(t, ids.ids, ids.n, DETOKENIZE_SPECIAL, &back);
    assert_string_equal(buffer_cstr(&back), text);
    buffer_free(&back);
    token_list_free(&ids);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),          cmocka_unit_test(test_strips),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_odd_vocabularies),
        cmocka_unit_test(test_default_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
