/* tiny_vocab.h: small vocabularies made up in memory, for tests and the fuzzer. Every text is in
 * one fixed arena; running out of it aborts.
 */
#ifndef LAC_TESTS_MODELS_TINY_VOCAB_H
#define LAC_TESTS_MODELS_TINY_VOCAB_H

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/rng.h"
#include "models/tokenizer.h"
#include "models/unicode.h"

enum { TINY_MAX_TOKENS = 2048, TINY_MAX_MERGES = 1024, TINY_ARENA_BYTES = 1 << 18 };

struct tiny_vocab {
    struct gguf_string token[TINY_MAX_TOKENS];
    uint8_t type[TINY_MAX_TOKENS], strip[TINY_MAX_TOKENS];
    float score[TINY_MAX_TOKENS];
    size_t n;
    struct gguf_string merge[TINY_MAX_MERGES];
    size_t n_merges;
    char arena[TINY_ARENA_BYTES];
    size_t used;
};

static inline struct gguf_string tiny_text(struct tiny_vocab *v, const char *text, size_t len) {
    CHECK(v->used + len <= TINY_ARENA_BYTES);
    struct gguf_string s = {v->arena + v->used, len};
    memcpy(v->arena + v->used, text, len);
    v->used += len;
    return s;
}

static inline uint32_t tiny_add(struct tiny_vocab *v, const char *text, size_t len, uint8_t type,
                                float score) {
    CHECK(v->n < TINY_MAX_TOKENS);
    v->token[v->n] = tiny_text(v, text, len);
    v->type[v->n] = type;
    v->score[v->n] = score;
    return (uint32_t)v->n++;
}

static inline uint32_t tiny_special(struct tiny_vocab *v, const char *text, uint8_t type,
                                    uint8_t strip) {
    uint32_t id = tiny_add(v, text, strlen(text), type, 0);
    v->strip[id] = strip;
    return id;
}

static inline bool tiny_has(const struct tiny_vocab *v, const char *text, size_t len) {
    for (size_t i = 0; i < v->n; i++)
        if (v->token[i].len == len && memcmp(v->token[i].data, text, len) == 0) return true;
    return false;
}

/* A merge and the token it makes, unless there is one that reads so. */
static inline void tiny_merge(struct tiny_vocab *v, struct gguf_string a, struct gguf_string b) {
    char text[256];
    CHECK(a.len + b.len + 1 <= sizeof text && v->n_merges < TINY_MAX_MERGES);
    memcpy(text, a.data, a.len);
    memcpy(text + a.len, b.data, b.len);
    if (tiny_has(v, text, a.len + b.len)) return;
    tiny_add(v, text, a.len + b.len, TOKEN_NORMAL, 0);
    memcpy(text, a.data, a.len);
    text[a.len] = ' ';
    memcpy(text + a.len + 1, b.data, b.len);
    v->merge[v->n_merges++] = tiny_text(v, text, a.len + b.len + 1);
}

/* The 256 bytes in GPT-2's alphabet (byte b is token b), then merges of random tokens among those
 * that begin with the letters a to d or the space. */
static inline void tiny_bpe(struct tiny_vocab *v, uint64_t seed, size_t n_merges) {
    memset(v, 0, sizeof *v);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char text[4];
        size_t len = utf8_encode(self ? b : next++, text);
        tiny_add(v, text, len, TOKEN_NORMAL, 0);
    }
    static const unsigned char start[] = {'a', 'b', 'c', 'd', ' '};
    uint32_t at = 0;
    for (size_t tries = 0; v->n_merges < n_merges && tries < 20 * n_merges; tries++) {
        struct gguf_string side[2];
        for (int k = 0; k < 2; k++) {
            uint64_t pick = rng_draw(seed, 0, at++, RNG_TEST, 0) % (5 + v->n_merges);
            side[k] = pick < 5 ? v->token[start[pick]] : v->token[256 + (pick - 5)];
        }
        if (side[0].len + side[1].len < 24) tiny_merge(v, side[0], side[1]);
    }
}

/* Unknown, begin, end, the 256 byte tokens, the characters a to e, é, 中 and U+2581, and random
 * strings of them with few different scores, so that ties are many. `inner`: also such as have
 * U+2581 behind a letter. */
static inline void tiny_spm(struct tiny_vocab *v, uint64_t seed, size_t n_words, bool inner) {
    memset(v, 0, sizeof *v);
    tiny_special(v, "<unk>", TOKEN_UNKNOWN, 0);
    tiny_special(v, "<s>", TOKEN_CONTROL, 0);
    tiny_special(v, "</s>", TOKEN_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        tiny_special(v, text, TOKEN_BYTE, 0);
    }
    static const char *const letter[] = {"a", "b", "c", "d", "e", "é", "中", "▁"};
    for (size_t i = 0; i < 8; i++) tiny_add(v, letter[i], strlen(letter[i]), TOKEN_NORMAL, -1000);
    uint32_t at = 0;
    for (size_t i = 0; i < n_words; i++) {
        char text[64];
        size_t len = 0, n = 2 + rng_draw(seed, 0, at++, RNG_TEST, 0) % 4;
        for (size_t k = 0; k < n; k++) {
            const char *l = letter[rng_draw(seed, 0, at++, RNG_TEST, 0) % 8];
            if (k > 0 && !inner && l == letter[7]) l = letter[0];
            memcpy(text + len, l, strlen(l));
            len += strlen(l);
        }
        float score = -(float)(rng_draw(seed, 0, at++, RNG_TEST, 0) % 12);
        if (!tiny_has(v, text, len)) tiny_add(v, text, len, TOKEN_NORMAL, score);
    }
}

static inline struct tokenizer_spec tiny_spec(const struct tiny_vocab *v, enum tokenizer_kind kind,
                                              const char *pre) {
    struct tokenizer_spec s = tokenizer_spec_default(kind);
    s.pre = (struct gguf_string){pre, strlen(pre)};
    s.n_tokens = v->n;
    s.tokens = v->token;
    s.types = v->type;
    s.strips = v->strip;
    s.scores = v->score;
    s.n_merges = v->n_merges;
    s.merges = v->merge;
    return s;
}

#endif
