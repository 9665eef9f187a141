/* Any bytes as text: the first chooses vocabulary and flags, the rest is encoded and decoded again.
 * BPE and SentencePiece must give back every byte; what streaming releases must be UTF-8. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "models/detokenizer.h"
#include "models/pretokenize.h"
#include "models/tokenizer.h"
#include "models/unicode.h"
#include "tests/models/tiny_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_TOKENIZERS = 160 };

struct fixture {
    struct tokenizer *t[MAX_TOKENIZERS];
    size_t n;
};

static void add(struct fixture *f, const struct tiny_vocab *v, enum tokenizer_kind kind,
                const char *pre) {
    struct tokenizer_spec spec = tiny_spec(v, kind, pre);
    spec.unk = kind == TOKENIZER_BPE ? TOKEN_NONE : 0;
    CHECK(f->n < MAX_TOKENIZERS);
    CHECK(tokenizer_build(&spec, &f->t[f->n], NULL) == STATUS_OK);
    f->n++;
}

/* Made at the first input and kept: the process is the fuzzer's. */
static const struct fixture *fixture(void) {
    static struct fixture f;
    static struct tiny_vocab v;
    if (f.n > 0) return &f;
    tiny_bpe(&v, 11, 120);
    tiny_special(&v, "<|end|>", TOKEN_CONTROL, TOKEN_STRIP_LEFT | TOKEN_STRIP_RIGHT);
    tiny_special(&v, "<|a|>", TOKEN_USER_DEFINED, 0);
    for (size_t i = 0; pretokenizer_row(i) != NULL; i++) {
        const struct pretokenizer *p = pretokenizer_row(i);
        if (!p->metaspace && !p->drop_space) add(&f, &v, TOKENIZER_BPE, p->name);
    }
    tiny_spm(&v, 11, 200, true);
    add(&f, &v, TOKENIZER_SPM, "");
    add(&f, &v, TOKENIZER_BPE, "gemma4"); /* no merges, but its way through the text */
    add(&f, &v, TOKENIZER_BPE, "mmbert");
    add(&f, &v, TOKENIZER_BPE, "whitespace");
    tiny_spm(&v, 12, 200, false);
    add(&f, &v, TOKENIZER_SPM, "");
    add(&f, &v, TOKENIZER_WORDPIECE, "");
    return &f;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    const struct fixture *f = fixture();
    const struct tokenizer *t = f->t[data[0] % f->n];
    const unsigned flags = data[1] & 7u;
    const char *text = (const char *)data + 2;
    n -= 2;
    struct token_list ids = {0};
    struct buffer out;
    buffer_init(&out, 0);
    CHECK(tokenizer_encode(t, NULL, text, n, flags, &ids, NULL) == STATUS_OK);
    for (size_t i = 0; i < ids.n; i++) {
        CHECK(ids.ids[i] < tokenizer_n_vocab(t));
        if (!flags)
            CHECK(tokenizer_kind(t) == TOKENIZER_WORDPIECE || !tokenizer_is_control(t, ids.ids[i]));
    }
    detokenize(t, ids.ids, ids.n, DETOKENIZE_RAW, &out);
    bool lossless = tokenizer_kind(t) == TOKENIZER_BPE && tokenizer_bos(t) == TOKEN_NONE;
    for (size_t i = 0; i < n; i++) lossless &= data[2 + i] != 0xE2; /* U+2581 is a space to some */
    const char *pre = tokenizer_pre(t);
    lossless &=
        strcmp(pre, "mmbert") != 0 && strcmp(pre, "whitespace") != 0 && strcmp(pre, "gemma4") != 0;
    if (flags == 0 && lossless) CHECK(out.len == n && (n == 0 || memcmp(out.data, text, n) == 0));
    buffer_clear(&out);
    detokenize(t, ids.ids, ids.n, DETOKENIZE_SPECIAL, &out);
    for (size_t pos = 0; pos < out.len;) {
        uint32_t cp;
        pos += utf8_decode(out.data + pos, out.len - pos, &cp);
        CHECK(cp != UTF8_INVALID);
    }
    buffer_free(&out);
    token_list_free(&ids);
    return 0;
}
