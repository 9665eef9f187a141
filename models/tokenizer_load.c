#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <jansson.h>

#include "models/tokenizer.h"

/* What is read out of the file before the tokenizer is built. */
struct reading {
    struct gguf_string *tokens, *merges;
    float *scores;
    uint8_t *types, *strips;
};

static void reading_free(struct reading *r) {
    free(r->tokens);
    free(r->merges);
    free(r->scores);
    free(r->types);
    free(r->strips);
}

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to read the vocabulary");
}

static bool is(struct gguf_string s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* *list is NULL and *n 0 where the key is absent. */
static enum status read_strings(const struct gguf *g, const char *key, size_t limit,
                                struct gguf_string **list, size_t *n, struct error *e) {
    enum gguf_type type;
    *n = 0;
    if (!gguf_array(g, key, &type, n)) return STATUS_OK;
    if (type != GGUF_STRING || *n > limit)
        return error_set(e, STATUS_CORRUPT, key, "%zu entries of type %d, at most %zu strings fit",
                         *n, (int)type, limit);
    *list = calloc(*n ? *n : 1, sizeof **list);
    if (*list == NULL) return no_memory(e);
    for (size_t i = 0; i < *n; i++) (*list)[i] = gguf_array_str(g, key, i);
    return STATUS_OK;
}

static enum status check_numbers(const struct gguf *g, const char *key, size_t n_tokens,
                                 bool *present, struct error *e) {
    enum gguf_type type;
    size_t n;
    *present = gguf_array(g, key, &type, &n);
    if (!*present) return STATUS_OK;
    bool number = type != GGUF_STRING && type != GGUF_ARRAY;
    if (!number || n < n_tokens)
        return error_set(e, STATUS_CORRUPT, key, "%zu entries for %zu tokens", n, n_tokens);
    return STATUS_OK;
}

static enum status read_numbers(const struct gguf *g, size_t n, struct reading *r,
                                struct error *e) {
    static const char scores[] = "tokenizer.ggml.scores", types[] = "tokenizer.ggml.token_type";
    bool present;
    enum status st = check_numbers(g, scores, n, &present, e);
    if (st != STATUS_OK) return st;
    if (present) {
        r->scores = calloc(n ? n : 1, sizeof *r->scores);
        if (r->scores == NULL) return no_memory(e);
        for (size_t i = 0; i < n; i++) r->scores[i] = (float)gguf_array_f64(g, scores, i);
    }
    st = check_numbers(g, types, n, &present, e);
    if (st != STATUS_OK || !present) return st;
    r->types = calloc(n ? n : 1, 1);
    if (r->types == NULL) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        double type = gguf_array_f64(g, types, i);
        r->types[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_UNUSED;
    }
    return STATUS_OK;
}

static bool has_word(struct gguf_string s, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.len; i++)
        if (strncasecmp(s.data + i, word, n) == 0) return true;
    return false;
}

/* The GGUF keys say nothing of lstrip and rstrip. A file may carry the whole tokenizer.json, which
 * does; for Phi-3, whose files do not, it is known that white space behind its control tokens is
 * theirs. */
static enum status read_strips(const struct gguf *g, size_t n, struct reading *r, struct error *e) {
    struct gguf_string text;
    r->strips = calloc(n ? n : 1, 1);
    if (r->strips == NULL) return no_memory(e);
    if (gguf_str(g, "general.name", &text) && (has_word(text, "phi-3") || has_word(text, "phi3"))) {
        for (size_t i = 0; i < n; i++) {
            bool begins = is(r->tokens[i], "<s>") || is(r->tokens[i], "<|endoftext|>");
            if (r->types && r->types[i] == TOKEN_CONTROL && !begins)
                r->strips[i] = TOKEN_STRIP_RIGHT;
        }
    }
    if (!gguf_str(g, "tokenizer.huggingface.json", &text)) return STATUS_OK;
    json_error_t why;
    json_t *root = json_loadb(text.data, text.len, 0, &why);
    if (root == NULL)
        return error_set(e, STATUS_CORRUPT, "tokenizer.huggingface.json", "line %d: %s", why.line,
                         why.text);
    json_t *added;
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, added) {
        json_int_t id = json_integer_value(json_object_get(added, "id"));
        if (id < 0 || (uint64_t)id >= n || !json_is_integer(json_object_get(added, "id"))) continue;
        unsigned strip = 0;
        if (json_is_true(json_object_get(added, "lstrip"))) strip |= TOKEN_STRIP_LEFT;
        if (json_is_true(json_object_get(added, "rstrip"))) strip |= TOKEN_STRIP_RIGHT;
        r->strips[id] = (uint8_t)strip;
    }
    json_decref(root);
    return STATUS_OK;
}

static uint32_t read_id(const struct gguf *g, const char *key) {
    uint64_t id;
    return gguf_u64(g, key, &id) && id < TOKEN_NONE ? (uint32_t)id : TOKEN_NONE;
}

/* A start or an end that is no token would silently be left out of every prompt. */
static enum status check_ids(const struct gguf *g, size_t n_tokens, struct error *e) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const uint32_t id = read_id(g, keys[i]);
        double number;
        if (gguf_has(g, keys[i]) && !gguf_f64(g, keys[i], &number))
            return error_set(e, STATUS_CORRUPT, keys[i], "%s is not a number", keys[i]);
        if (id != TOKEN_NONE && id >= n_tokens)
            return error_set(e, STATUS_CORRUPT, keys[i], "%u is outside the vocabulary of %zu", id,
                             n_tokens);
    }
    static const char *const choices[] = {
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.normalizer.lowercase",
        "tokenizer.ggml.normalizer.strip_accents"};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        bool yes;
        if (gguf_has(g, choices[i]) && !gguf_bool(g, choices[i], &yes))
            return error_set(e, STATUS_CORRUPT, choices[i], "%s is neither true nor false",
                             choices[i]);
    }
    return STATUS_OK;
}

static int read_choice(const struct gguf *g, const char *key) {
    bool b;
    return gguf_bool(g, key, &b) ? b : -1;
}

static enum status read_kind(const struct gguf *g, struct tokenizer_spec *spec, struct error *e) {
    static const char key[] = "tokenizer.ggml.model";
    struct gguf_string model;
    if (!gguf_str(g, key, &model))
        return error_set(e, STATUS_NOT_FOUND, key, "the file has no tokenizer (%s is missing)",
                         key);
    enum tokenizer_kind kind = TOKENIZER_BPE;
    struct gguf_string pre = {0};
    (void)gguf_str(g, "tokenizer.ggml.pre", &pre);
    if (is(model, "llama")) {
        kind = TOKENIZER_SPM;
    } else if (is(model, "bert")) {
        kind = TOKENIZER_WORDPIECE;
    } else if (is(model, "gemma4")) {
        pre = (struct gguf_string){"gemma4", 6};
    } else if (is(model, "whitespace")) {
        pre = (struct gguf_string){"whitespace", 10};
    } else if (!is(model, "gpt2")) {
        return error_set(e, STATUS_UNSUPPORTED, key,
                         "unknown tokenizer \"%.*s\" (known: gpt2, llama, bert)",
                         (int)(model.len < 64 ? model.len : 64), model.data);
    }
    *spec = tokenizer_spec_default(kind);
    spec->pre = pre;
    return STATUS_OK;
}

static void read_choices(const struct gguf *g, struct tokenizer_spec *spec) {
    spec->bos = read_id(g, "tokenizer.ggml.bos_token_id");
    spec->eos = read_id(g, "tokenizer.ggml.eos_token_id");
    spec->eot = read_id(g, "tokenizer.ggml.eot_token_id");
    spec->unk = read_id(g, "tokenizer.ggml.unknown_token_id");
    spec->pad = read_id(g, "tokenizer.ggml.padding_token_id");
    spec->sep = read_id(g, "tokenizer.ggml.seperator_token_id"); /* so spelt in the format */
    if (spec->sep == TOKEN_NONE) spec->sep = read_id(g, "tokenizer.ggml.separator_token_id");
    if (spec->kind == TOKENIZER_WORDPIECE && spec->bos == TOKEN_NONE)
        spec->bos = read_id(g, "tokenizer.ggml.cls_token_id");
    /* What a file that leaves them out means by it (llama.cpp's defaults for the kind). */
    if (spec->kind == TOKENIZER_SPM) {
        if (spec->bos == TOKEN_NONE) spec->bos = 1;
        if (spec->eos == TOKEN_NONE) spec->eos = 2;
        if (spec->unk == TOKEN_NONE) spec->unk = 0;
    }
    spec->add_bos = read_choice(g, "tokenizer.ggml.add_bos_token");
    spec->add_eos = read_choice(g, "tokenizer.ggml.add_eos_token");
    spec->add_space_prefix = read_choice(g, "tokenizer.ggml.add_space_prefix");
    spec->lowercase = read_choice(g, "tokenizer.ggml.normalizer.lowercase");
    spec->strip_accents = read_choice(g, "tokenizer.ggml.normalizer.strip_accents");
}

enum status tokenizer_load(const struct gguf *g, struct tokenizer **out, struct error *e) {
    *out = NULL;
    struct tokenizer_spec spec;
    struct reading r = {0};
    enum status st = read_kind(g, &spec, e);
    if (st != STATUS_OK) return st;
    read_choices(g, &spec);
    st = read_strings(g, "tokenizer.ggml.tokens", TOKENIZER_MAX_TOKENS, &r.tokens, &spec.n_tokens,
                      e);
    if (st == STATUS_OK && spec.kind == TOKENIZER_BPE)
        st = read_strings(g, "tokenizer.ggml.merges", 4 * (size_t)TOKENIZER_MAX_TOKENS, &r.merges,
                          &spec.n_merges, e);
    if (st == STATUS_OK && spec.kind == TOKENIZER_BPE && r.merges == NULL)
        st = error_set(e, STATUS_CORRUPT, "tokenizer.ggml.merges",
                       "a byte pair vocabulary without tokenizer.ggml.merges");
    if (st == STATUS_OK) st = check_ids(g, spec.n_tokens, e);
    if (st == STATUS_OK) st = read_numbers(g, spec.n_tokens, &r, e);
    if (st == STATUS_OK) st = read_strips(g, spec.n_tokens, &r, e);
    if (st == STATUS_OK) {
        spec.tokens = r.tokens;
        spec.merges = r.merges;
        spec.scores = r.scores;
        spec.types = r.types;
        spec.strips = r.strips;
        st = tokenizer_build(&spec, out, e);
    }
    reading_free(&r);
    return st;
}
