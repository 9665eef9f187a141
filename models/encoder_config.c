#include "models/encoder_config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "alloc/map.h"
#include "models/encoder_kernels.h"

/* One file being read. The first failure is kept; what follows it does nothing. */
struct source {
    const char *file;
    json_t *root;
    struct error *e;
    enum status status;
};

static void refuse(struct source *s, enum status st, const char *key, const char *what) {
    if (s->status == STATUS_OK) s->status = error_set(s->e, st, s->file, "%s %s", key, what);
}

static json_t *get(const struct source *s, const char *key) {
    json_t *v = s->status == STATUS_OK ? json_object_get(s->root, key) : NULL;
    return v != NULL && json_is_null(v) ? NULL : v;
}

/* The JSON text of a file; root NULL without a failure: the file is not there and need not be. */
static enum status open_source(struct source *s, const char *dir, const char *file, bool must,
                               bool list, struct error *e) {
    *s = (struct source){.file = file, .e = e};
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path)
        return s->status = error_set(e, STATUS_INVALID, file, "the folder's path is too long");
    if (!must && access(path, F_OK) != 0) return STATUS_OK;
    struct map m;
    s->status = map_open(path, &m, e);
    if (s->status != STATUS_OK) return s->status;
    json_error_t why;
    if (m.bytes > ENCODER_MAX_JSON_BYTES)
        s->status = error_set(e, STATUS_TOO_LARGE, file, "%zu bytes, at most %d are read", m.bytes,
                              ENCODER_MAX_JSON_BYTES);
    else if (m.bytes == 0 || (s->root = json_loadb((const char *)m.data, m.bytes,
                                                   JSON_REJECT_DUPLICATES, &why)) == NULL)
        s->status = error_set(e, STATUS_CORRUPT, file, "not JSON that can be read");
    else if (list ? !json_is_array(s->root) : !json_is_object(s->root))
        s->status = error_set(e, STATUS_CORRUPT, file, "not a JSON %s", list ? "list" : "object");
    map_close(&m);
    return s->status;
}

static void close_source(struct source *s) {
    json_decref(s->root);
    s->root = NULL;
}

static uint32_t number(struct source *s, const char *key, uint32_t least, uint32_t most,
                       int64_t otherwise) {
    const json_t *v = get(s, key);
    int64_t n = otherwise;
    if (v != NULL && !json_is_integer(v)) n = -1;
    if (json_is_integer(v)) n = json_integer_value(v);
    if (n >= (int64_t)least && n <= (int64_t)most) return (uint32_t)n;
    char what[80];
    snprintf(what, sizeof what, "must be a whole number from %u to %u", least, most);
    refuse(s, STATUS_CORRUPT, key, what);
    return least;
}

/* 0, 1, or `otherwise` where the key is absent. */
static int flag(struct source *s, const char *key, int otherwise) {
    const json_t *v = get(s, key);
    if (v == NULL) return otherwise;
    if (!json_is_boolean(v)) refuse(s, STATUS_CORRUPT, key, "must be true or false");
    return json_is_true(v) ? 1 : 0;
}

static bool is_text(const json_t *v, const char *text) {
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static void must_be(struct source *s, const char *key, const char *value, bool optional) {
    const json_t *v = get(s, key);
    if (s->status != STATUS_OK || (v == NULL && optional) || is_text(v, value)) return;
    char what[64];
    snprintf(what, sizeof what, "is not \"%s\"", value);
    refuse(s, STATUS_UNSUPPORTED, key, what);
}

static enum status read_shapes(const char *dir, struct encoder_config *c, struct error *e) {
    struct source s;
    if (open_source(&s, dir, "config.json", true, false, e) != STATUS_OK) {
        close_source(&s);
        return s.status;
    }
    must_be(&s, "model_type", "bert", false);
    must_be(&s, "hidden_act", "gelu", true);
    must_be(&s, "position_embedding_type", "absolute", true);
    c->n_layers = number(&s, "num_hidden_layers", 1, ENCODER_MAX_LAYERS, -1);
    c->n_heads = number(&s, "num_attention_heads", 1, ENCODER_MAX_HEADS, -1);
    c->d_model = number(&s, "hidden_size", ENCODER_LANES, ENCODER_MAX_WIDTH, -1);
    c->d_ff = number(&s, "intermediate_size", ENCODER_LANES, 4 * ENCODER_MAX_WIDTH, -1);
    c->n_vocab = number(&s, "vocab_size", 1, ENCODER_MAX_VOCAB, -1);
    c->n_types = number(&s, "type_vocab_size", 1, 16, 2);
    c->n_positions = number(&s, "max_position_embeddings", 4, ENCODER_MAX_POSITIONS, -1);
    if (c->d_model % (c->n_heads * ENCODER_LANES) != 0)
        refuse(&s, STATUS_UNSUPPORTED, "hidden_size", "is not a multiple of 16 for each head");
    if (c->d_ff % ENCODER_LANES != 0)
        refuse(&s, STATUS_UNSUPPORTED, "intermediate_size", "is not a multiple of 16");
    const json_t *epsilon = get(&s, "layer_norm_eps");
    const double eps = epsilon == NULL           ? 1e-12
                       : json_is_number(epsilon) ? json_number_value(epsilon)
                                                 : -1;
    if (!(eps >= 0 && eps <= 1)) refuse(&s, STATUS_CORRUPT, "layer_norm_eps", "is not in [0, 1]");
    c->epsilon = (float)eps;
    close_source(&s);
    return s.status;
}

/* The last word of "sentence_transformers.models.Pooling". */
static const char *module_kind(const json_t *module) {
    const json_t *type = json_object_get(module, "type");
    const char *text = json_is_string(type) ? json_string_value(type) : "";
    const char *dot = strrchr(text, '.');
    return dot != NULL ? dot + 1 : text;
}

static enum status read_modules(const char *dir, struct encoder_config *c, struct error *e) {
    static const char *const kinds[] = {"Transformer", "Pooling", "Normalize"};
    struct source s;
    if (open_source(&s, dir, "modules.json", true, true, e) != STATUS_OK) {
        close_source(&s);
        return s.status;
    }
    const size_t n = json_array_size(s.root);
    bool fits = n == 2 || n == 3;
    for (size_t i = 0; i < n && fits; i++)
        fits = strcmp(module_kind(json_array_get(s.root, i)), kinds[i]) == 0;
    if (!fits)
        s.status = error_set(e, STATUS_UNSUPPORTED, s.file,
                             "the modules are not Transformer, Pooling and maybe Normalize");
    else if (!is_text(json_object_get(json_array_get(s.root, 0), "path"), "") ||
             !is_text(json_object_get(json_array_get(s.root, 1), "path"), "1_Pooling"))
        s.status = error_set(e, STATUS_UNSUPPORTED, s.file,
                             "the modules are not in the folder itself and in 1_Pooling");
    c->normalise = n == 3;
    close_source(&s);
    return s.status;
}

static enum status read_pooling(const char *dir, struct encoder_config *c, struct error *e) {
    static const char *const others[] = {
        "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"};
    struct source s;
    if (open_source(&s, dir, "1_Pooling/config.json", true, false, e) != STATUS_OK) {
        close_source(&s);
        return s.status;
    }
    const bool mean = flag(&s, "pooling_mode_mean_tokens", 0);
    c->first_token = flag(&s, "pooling_mode_cls_token", 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (flag(&s, others[i], 0)) refuse(&s, STATUS_UNSUPPORTED, others[i], "is not supported");
    if (mean == c->first_token)
        refuse(&s, STATUS_UNSUPPORTED, "pooling_mode_mean_tokens",
               "or pooling_mode_cls_token must be true, and only one of them");
    if (number(&s, "word_embedding_dimension", 1, UINT32_MAX, c->d_model) != c->d_model)
        refuse(&s, STATUS_CORRUPT, "word_embedding_dimension", "differs from hidden_size");
    close_source(&s);
    return s.status;
}

static enum status read_lengths(const char *dir, struct encoder_config *c, struct error *e) {
    struct source s;
    (void)open_source(&s, dir, "sentence_bert_config.json", false, false, e);
    c->max_tokens = c->n_positions;
    if (s.root != NULL) {
        c->max_tokens = number(&s, "max_seq_length", 3, UINT32_MAX, c->n_positions);
        if (c->max_tokens > c->n_positions) c->max_tokens = c->n_positions;
        if (flag(&s, "do_lower_case", 0)) c->lowercase = 1;
    }
    close_source(&s);
    return s.status;
}

/* A token's text, or an object that holds it as `content`. */
static void token(struct source *s, const char *key, const char *otherwise,
                  char out[ENCODER_TOKEN_BYTES]) {
    const json_t *v = get(s, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    const char *text = v == NULL ? otherwise : json_is_string(v) ? json_string_value(v) : "";
    const size_t n = strlen(text);
    if (n == 0 || n >= ENCODER_TOKEN_BYTES)
        refuse(s, STATUS_CORRUPT, key, "is not a text of 1 to 31 bytes");
    else
        memcpy(out, text, n + 1);
}

static enum status read_tokenizer(const char *dir, struct encoder_config *c, struct error *e) {
    struct source s;
    if (open_source(&s, dir, "tokenizer_config.json", false, false, e) != STATUS_OK) {
        close_source(&s);
        return s.status;
    }
    /* Absent, they are what BertTokenizer's own defaults are. */
    const int lower = flag(&s, "do_lower_case", s.root != NULL ? 1 : -1);
    if (c->lowercase < 0) c->lowercase = lower;
    c->strip_accents = flag(&s, "strip_accents", lower);
    if (!flag(&s, "tokenize_chinese_chars", 1))
        refuse(&s, STATUS_UNSUPPORTED, "tokenize_chinese_chars", "must not be false");
    if (!flag(&s, "do_basic_tokenize", 1))
        refuse(&s, STATUS_UNSUPPORTED, "do_basic_tokenize", "must not be false");
    token(&s, "cls_token", "[CLS]", c->cls);
    token(&s, "sep_token", "[SEP]", c->sep);
    token(&s, "unk_token", "[UNK]", c->unk);
    token(&s, "pad_token", "[PAD]", c->pad);
    token(&s, "mask_token", "[MASK]", c->mask);
    close_source(&s);
    return s.status;
}

enum status encoder_config_read(const char *dir, struct encoder_config *c, struct error *e) {
    *c = (struct encoder_config){.lowercase = -1, .strip_accents = -1};
    enum status st = read_shapes(dir, c, e);
    if (st == STATUS_OK) st = read_modules(dir, c, e);
    if (st == STATUS_OK) st = read_pooling(dir, c, e);
    if (st == STATUS_OK) st = read_lengths(dir, c, e);
    if (st == STATUS_OK) st = read_tokenizer(dir, c, e);
    if (st != STATUS_OK) *c = (struct encoder_config){0};
    return st;
}
