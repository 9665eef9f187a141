#include "models/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/map.h"
#include "alloc/region.h"
#include "core/check.h"
#include "models/encoder_config.h"
#include "models/encoder_kernels.h"
#include "models/safetensors.h"
#include "models/tokenizer.h"

enum {
    NAME_BYTES = 128,
    /* Products between two looks at the clock, per lane: a few microseconds of vector code. */
    WORK_BETWEEN_CHECKPOINTS = 8192,
};

/* A product: n_out outputs of n_in inputs, in panels of sixteen outputs. */
struct linear {
    float *panels; /* [n_out / 16][n_in][16] */
    float *bias;   /* [n_out] */
    uint32_t n_in, n_out;
};

struct norm {
    float *weight, *bias; /* [d_model] */
};

struct layer {
    struct linear query, key, value, output, up, down;
    struct norm attention_norm, output_norm;
};

struct encoder {
    struct encoder_config cfg;
    char name[NAME_BYTES];
    struct tokenizer *tokenizer;
    struct safetensors *file;
    const struct encoder_kernels *kernels;
    const struct safetensors_tensor *words; /* [n_vocab, d_model], in the map */
    struct region region;
    float *next; /* free part of the region, while loading */
    float *positions;
    float *type; /* of the first segment, which is all there is */
    struct norm input_norm;
    struct layer *layers;
};

/* ---- vocabulary ---- */

static uint32_t find_token(const struct gguf_string *tokens, size_t n, const char *text) {
    const size_t len = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (tokens[i].len == len && memcmp(tokens[i].data, text, len) == 0) return (uint32_t)i;
    return TOKEN_NONE;
}

static enum status build_tokenizer(struct encoder *enc, const struct gguf_string *tokens, size_t n,
                                   struct error *e) {
    const struct encoder_config *cfg = &enc->cfg;
    const char *const special[] = {cfg->cls, cfg->sep, cfg->unk, cfg->pad, cfg->mask};
    uint32_t ids[5];
    uint8_t *types = malloc(n);
    if (types == NULL) return error_set(e, STATUS_NO_MEMORY, "vocab.txt", "no memory");
    memset(types, TOKEN_NORMAL, n);
    for (int i = 0; i < 5; i++) {
        ids[i] = find_token(tokens, n, special[i]);
        if (ids[i] != TOKEN_NONE) types[ids[i]] = TOKEN_CONTROL;
        if (ids[i] == TOKEN_NONE && i < 3) {
            free(types);
            return error_set(e, STATUS_CORRUPT, "vocab.txt", "there is no token %s", special[i]);
        }
    }
    struct tokenizer_spec spec = tokenizer_spec_default(TOKENIZER_WORDPIECE);
    spec.n_tokens = n;
    spec.tokens = tokens;
    spec.types = types;
    spec.bos = ids[0];
    spec.sep = spec.eos = ids[1];
    spec.unk = ids[2];
    spec.pad = ids[3];
    spec.lowercase = cfg->lowercase;
    spec.strip_accents = cfg->strip_accents;
    const enum status st = tokenizer_build(&spec, &enc->tokenizer, e);
    free(types);
    return st;
}

/* One token a line. */
static enum status read_vocabulary(struct encoder *enc, const struct map *m, struct error *e) {
    const char *text = (const char *)m->data, *end = text + m->bytes;
    size_t n = 0;
    struct gguf_string *tokens = malloc(enc->cfg.n_vocab * sizeof *tokens);
    if (tokens == NULL) return error_set(e, STATUS_NO_MEMORY, "vocab.txt", "no memory");
    enum status st = STATUS_OK;
    while (text < end && st == STATUS_OK) {
        const char *line = memchr(text, '\n', (size_t)(end - text));
        if (line == NULL) line = end;
        size_t len = (size_t)(line - text);
        if (len > 0 && text[len - 1] == '\r') len--;
        if (n == enc->cfg.n_vocab)
            st = error_set(e, STATUS_CORRUPT, "vocab.txt",
                           "more lines than the %u of vocab_size in config.json", enc->cfg.n_vocab);
        else
            tokens[n++] = (struct gguf_string){text, len};
        text = line < end ? line + 1 : end;
    }
    if (st == STATUS_OK && n == 0) st = error_set(e, STATUS_CORRUPT, "vocab.txt", "empty");
    if (st == STATUS_OK) st = build_tokenizer(enc, tokens, n, e);
    free(tokens);
    return st;
}

static enum status path_of(const char *dir, const char *file, char path[4096], struct error *e) {
    const int n = snprintf(path, 4096, "%s/%s", dir, file);
    return n > 0 && n < 4096 ? STATUS_OK
                             : error_set(e, STATUS_INVALID, file, "the folder's path is too long");
}

static enum status open_vocabulary(struct encoder *enc, const char *dir, struct error *e) {
    char path[4096];
    struct map m;
    enum status st = path_of(dir, "vocab.txt", path, e);
    if (st == STATUS_OK) st = map_open(path, &m, e);
    if (st != STATUS_OK) return st;
    if (m.bytes > ENCODER_MAX_VOCAB_BYTES)
        st = error_set(e, STATUS_TOO_LARGE, "vocab.txt", "%zu bytes, at most %d are read", m.bytes,
                       ENCODER_MAX_VOCAB_BYTES);
    else
        st = read_vocabulary(enc, &m, e);
    map_close(&m);
    return st;
}

/* ---- weights ---- */

static float *take(struct encoder *enc, size_t n) {
    float *p = enc->next;
    enc->next += n;
    CHECK((const char *)enc->next <= (const char *)enc->region.data + enc->region.bytes);
    return p;
}

/* By its name, with or without "bert." in front; [n_rows, n_columns], or [n_columns] if n_rows is
 * 0. */
static enum status find(const struct encoder *enc, const char *name, uint64_t n_rows,
                        uint64_t n_columns, const struct safetensors_tensor **out,
                        struct error *e) {
    char prefixed[160];
    snprintf(prefixed, sizeof prefixed, "bert.%s", name);
    const struct safetensors_tensor *t = safetensors_find(enc->file, name);
    if (t == NULL) t = safetensors_find(enc->file, prefixed);
    *out = t;
    if (t == NULL) return error_set(e, STATUS_CORRUPT, name, "this tensor is missing");
    if (!safetensors_is_float(t->type))
        return error_set(e, STATUS_UNSUPPORTED, name, "the type %s is not supported",
                         safetensors_type_name(t->type));
    const bool fits = n_rows == 0 ? t->n_dims == 1 && t->dim[0] == n_columns
                                  : t->n_dims == 2 && t->dim[0] == n_rows && t->dim[1] == n_columns;
    if (!fits)
        return error_set(e, STATUS_CORRUPT, name,
                         "the shape is not the one that config.json's numbers make");
    return STATUS_OK;
}

static enum status load_vector(struct encoder *enc, const char *name, uint64_t n_rows,
                               uint32_t n_columns, float **out, struct error *e) {
    const struct safetensors_tensor *t;
    const enum status st = find(enc, name, n_rows, n_columns, &t, e);
    if (st != STATUS_OK) return st;
    *out = take(enc, t->n);
    safetensors_read_f32(t, 0, t->n, *out);
    return STATUS_OK;
}

static enum status load_norm(struct encoder *enc, const char *name, struct norm *out,
                             struct error *e) {
    char part[128];
    snprintf(part, sizeof part, "%s.weight", name);
    enum status st = load_vector(enc, part, 0, enc->cfg.d_model, &out->weight, e);
    snprintf(part, sizeof part, "%s.bias", name);
    if (st == STATUS_OK) st = load_vector(enc, part, 0, enc->cfg.d_model, &out->bias, e);
    return st;
}

static enum status load_linear(struct encoder *enc, uint32_t layer, const char *name, uint32_t n_in,
                               uint32_t n_out, struct linear *out, struct error *e) {
    char part[128];
    const struct safetensors_tensor *t;
    *out = (struct linear){.n_in = n_in, .n_out = n_out};
    snprintf(part, sizeof part, "encoder.layer.%u.%s.bias", layer, name);
    enum status st = load_vector(enc, part, 0, n_out, &out->bias, e);
    snprintf(part, sizeof part, "encoder.layer.%u.%s.weight", layer, name);
    if (st == STATUS_OK) st = find(enc, part, n_out, n_in, &t, e);
    if (st != STATUS_OK) return st;
    out->panels = take(enc, t->n);
    float *row = malloc(n_in * sizeof *row);
    if (row == NULL) return error_set(e, STATUS_NO_MEMORY, part, "no memory");
    for (uint32_t o = 0; o < n_out; o++) {
        safetensors_read_f32(t, (uint64_t)o * n_in, n_in, row);
        float *panel = out->panels + (size_t)(o / ENCODER_LANES) * n_in * ENCODER_LANES;
        for (uint32_t k = 0; k < n_in; k++)
            panel[(size_t)k * ENCODER_LANES + o % ENCODER_LANES] = row[k];
    }
    free(row);
    return STATUS_OK;
}

static enum status load_layer(struct encoder *enc, uint32_t i, struct error *e) {
    struct layer *l = &enc->layers[i];
    const uint32_t d = enc->cfg.d_model, ff = enc->cfg.d_ff;
    char name[96];
    enum status st = load_linear(enc, i, "attention.self.query", d, d, &l->query, e);
    if (st == STATUS_OK) st = load_linear(enc, i, "attention.self.key", d, d, &l->key, e);
    if (st == STATUS_OK) st = load_linear(enc, i, "attention.self.value", d, d, &l->value, e);
    if (st == STATUS_OK) st = load_linear(enc, i, "attention.output.dense", d, d, &l->output, e);
    if (st == STATUS_OK) st = load_linear(enc, i, "intermediate.dense", d, ff, &l->up, e);
    if (st == STATUS_OK) st = load_linear(enc, i, "output.dense", ff, d, &l->down, e);
    snprintf(name, sizeof name, "encoder.layer.%u.attention.output.LayerNorm", i);
    if (st == STATUS_OK) st = load_norm(enc, name, &l->attention_norm, e);
    snprintf(name, sizeof name, "encoder.layer.%u.output.LayerNorm", i);
    if (st == STATUS_OK) st = load_norm(enc, name, &l->output_norm, e);
    return st;
}

static enum status load_weights(struct encoder *enc, struct error *e) {
    const struct encoder_config *c = &enc->cfg;
    const uint64_t d = c->d_model, ff = c->d_ff;
    /* The limits keep this below 2^42. */
    const uint64_t of_layer = 4 * (d * d + d) + 2 * d * ff + ff + d + 4 * d;
    const uint64_t floats = of_layer * c->n_layers + (c->n_positions + c->n_types + 2) * d;
    /* Copies of what the file holds, so the file must be as large: numbers alone take no memory. */
    uint64_t in_file = 0;
    for (size_t i = 0; i < safetensors_n_tensors(enc->file); i++)
        in_file += safetensors_tensor(enc->file, i)->n;
    if (floats > in_file)
        return error_set(e, STATUS_CORRUPT, "model.safetensors",
                         "fewer weights than config.json's numbers make");
    enc->layers = calloc(c->n_layers, sizeof *enc->layers);
    if (enc->layers == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    enum status st =
        region_take(&enc->region, "encoder", floats * sizeof(float), 0, true, false, e);
    if (st != STATUS_OK) return st;
    enc->next = enc->region.data;
    st = find(enc, "embeddings.word_embeddings.weight", c->n_vocab, d, &enc->words, e);
    if (st == STATUS_OK)
        st = load_vector(enc, "embeddings.position_embeddings.weight", c->n_positions, c->d_model,
                         &enc->positions, e);
    if (st == STATUS_OK)
        st = load_vector(enc, "embeddings.token_type_embeddings.weight", c->n_types, c->d_model,
                         &enc->type, e);
    if (st == STATUS_OK) st = load_norm(enc, "embeddings.LayerNorm", &enc->input_norm, e);
    for (uint32_t i = 0; i < c->n_layers && st == STATUS_OK; i++) st = load_layer(enc, i, e);
    return st;
}

/* ---- open and close ---- */

static void take_name(struct encoder *enc, const char *dir) {
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/') start--;
    size_t n = end - start;
    if (n >= sizeof enc->name) n = sizeof enc->name - 1;
    memcpy(enc->name, dir + start, n);
}

enum status encoder_open(const char *dir, struct encoder **out, struct error *e) {
    *out = NULL;
    struct encoder *enc = calloc(1, sizeof *enc);
    if (enc == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to open %s", dir);
    struct cpu_features features;
    cpu_features_detect(&features);
    enc->kernels = encoder_kernels_for(cpu_isa_best(&features));
    take_name(enc, dir);
    char path[4096];
    enum status st = encoder_config_read(dir, &enc->cfg, e);
    if (st == STATUS_OK) st = open_vocabulary(enc, dir, e);
    if (st == STATUS_OK) st = path_of(dir, "model.safetensors", path, e);
    if (st == STATUS_OK) st = safetensors_open(path, &enc->file, e);
    if (st == STATUS_OK) st = load_weights(enc, e);
    if (st != STATUS_OK) {
        encoder_close(enc);
        return st;
    }
    *out = enc;
    return STATUS_OK;
}

void encoder_close(struct encoder *enc) {
    if (enc == NULL) return;
    tokenizer_free(enc->tokenizer);
    safetensors_close(enc->file);
    region_free(&enc->region);
    free(enc->layers);
    free(enc);
}

void encoder_use_isa(struct encoder *enc, enum cpu_isa isa) {
    enc->kernels = encoder_kernels_for(isa);
}

const char *encoder_name(const struct encoder *enc) {
    return enc->name;
}

uint32_t encoder_dim(const struct encoder *enc) {
    return enc->cfg.d_model;
}

uint32_t encoder_max_tokens(const struct encoder *enc) {
    return enc->cfg.max_tokens;
}

size_t encoder_memory_bytes(const struct encoder *enc) {
    return enc->region.bytes + tokenizer_memory_bytes(enc->tokenizer) +
           enc->cfg.n_layers * sizeof *enc->layers;
}

/* ---- one text ---- */

struct pass {
    const struct encoder *enc;
    struct chore *chore;
    uint32_t n; /* tokens */
    uint32_t n_padded;
    float *x, *q, *k, *v, *context; /* [n, d_model] */
    float *wide;                    /* [n, d_ff] */
    float *keys;                    /* of one head: [n_padded / 16][head_dim][16] */
    float *scores;                  /* [rows at once, n_padded] */
};

/* y = x w + b; false when cancelled. A panel of weights stays in the first cache for all rows. */
static bool multiply(const struct pass *p, const struct linear *w, const float *x, float *y) {
    const struct encoder_kernels *f = p->enc->kernels;
    uint32_t rows = WORK_BETWEEN_CHECKPOINTS / w->n_in / f->rows_at_once * f->rows_at_once;
    if (rows == 0) rows = f->rows_at_once;
    for (uint32_t o = 0; o < w->n_out; o += ENCODER_LANES) {
        for (uint32_t r = 0; r < p->n; r += rows) {
            const uint32_t n = p->n - r < rows ? p->n - r : rows;
            f->matmul(x + (size_t)r * w->n_in, w->n_in, w->panels + (size_t)o * w->n_in,
                      ENCODER_LANES, w->bias + o, y + (size_t)r * w->n_out + o, w->n_out, n,
                      w->n_in);
            if (chore_checkpoint(p->chore)) return false;
        }
    }
    return true;
}

/* The keys of a head as panels, so that the scores of sixteen positions are sixteen lanes. */
static void turn_keys(const struct pass *p, uint32_t offset, uint32_t head_dim) {
    const uint32_t d = p->enc->cfg.d_model;
    for (uint32_t t = 0; t < p->n; t++) {
        const float *key = p->k + (size_t)t * d + offset;
        float *panel = p->keys + (size_t)(t / ENCODER_LANES) * head_dim * ENCODER_LANES;
        for (uint32_t i = 0; i < head_dim; i++)
            panel[(size_t)i * ENCODER_LANES + t % ENCODER_LANES] = key[i];
    }
}

static bool attend_head(const struct pass *p, uint32_t head) {
    const struct encoder_kernels *f = p->enc->kernels;
    const uint32_t d = p->enc->cfg.d_model, head_dim = d / p->enc->cfg.n_heads;
    const uint32_t offset = head * head_dim;
    const float scale = 1.0f / __builtin_sqrtf((float)head_dim);
    turn_keys(p, offset, head_dim);
    for (uint32_t r = 0; r < p->n; r += f->rows_at_once) {
        const uint32_t n = p->n - r < f->rows_at_once ? p->n - r : f->rows_at_once;
        for (uint32_t t = 0; t < p->n_padded; t += ENCODER_LANES)
            f->matmul(p->q + (size_t)r * d + offset, d, p->keys + (size_t)t * head_dim,
                      ENCODER_LANES, NULL, p->scores + t, p->n_padded, n, head_dim);
        for (uint32_t i = 0; i < n; i++)
            f->softmax(p->scores + (size_t)i * p->n_padded, p->n, scale);
        for (uint32_t i = 0; i < head_dim; i += ENCODER_LANES)
            f->matmul(p->scores, p->n_padded, p->v + offset + i, d, NULL,
                      p->context + (size_t)r * d + offset + i, d, n, p->n);
        if (chore_checkpoint(p->chore)) return false;
    }
    return true;
}

static bool add_norm_rows(const struct pass *p, const float *add, const struct norm *w) {
    const struct encoder_config *c = &p->enc->cfg;
    for (uint32_t r = 0; r < p->n; r++) {
        p->enc->kernels->add_norm(p->x + (size_t)r * c->d_model, add + (size_t)r * c->d_model,
                                  w->weight, w->bias, c->d_model, c->epsilon);
        if (r % 16 == 15 && chore_checkpoint(p->chore)) return false;
    }
    return true;
}

static bool run_layer(const struct pass *p, const struct layer *l) {
    const struct encoder_config *c = &p->enc->cfg;
    if (!multiply(p, &l->query, p->x, p->q) || !multiply(p, &l->key, p->x, p->k) ||
        !multiply(p, &l->value, p->x, p->v))
        return false;
    for (uint32_t h = 0; h < c->n_heads; h++)
        if (!attend_head(p, h)) return false;
    if (!multiply(p, &l->output, p->context, p->q) || !add_norm_rows(p, p->q, &l->attention_norm) ||
        !multiply(p, &l->up, p->x, p->wide))
        return false;
    for (uint32_t r = 0; r < p->n; r++) {
        p->enc->kernels->gelu(p->wide + (size_t)r * c->d_ff, c->d_ff);
        if (r % 8 == 7 && chore_checkpoint(p->chore)) return false;
    }
    return multiply(p, &l->down, p->wide, p->q) && add_norm_rows(p, p->q, &l->output_norm);
}

static bool embed_tokens(const struct pass *p, const uint32_t *ids) {
    const struct encoder *enc = p->enc;
    const uint32_t d = enc->cfg.d_model;
    for (uint32_t r = 0; r < p->n; r++) {
        float *x = p->x + (size_t)r * d, *add = p->q + (size_t)r * d;
        safetensors_read_f32(enc->words, (uint64_t)ids[r] * d, d, x);
        for (uint32_t i = 0; i < d; i++) add[i] = enc->positions[(size_t)r * d + i] + enc->type[i];
        if (chore_checkpoint(p->chore)) return false;
    }
    return add_norm_rows(p, p->q, &enc->input_norm);
}

static enum status pool(const struct pass *p, float *out, struct error *e) {
    const struct encoder_config *c = &p->enc->cfg;
    const uint32_t d = c->d_model, n = c->first_token ? 1 : p->n;
    memcpy(out, p->x, d * sizeof *out);
    for (uint32_t r = 1; r < n; r++)
        for (uint32_t i = 0; i < d; i++) out[i] = out[i] + p->x[(size_t)r * d + i];
    double squares = 0;
    for (uint32_t i = 0; i < d; i++) {
        out[i] = out[i] / (float)n;
        squares = squares + (double)out[i] * (double)out[i];
    }
    if (!isfinite(squares) || squares == 0) {
        memset(out, 0, d * sizeof *out);
        return error_set(e, STATUS_BAD_NUMBER, NULL, "the encoder's vector is not finite or zero");
    }
    const double length = c->normalise ? sqrt(squares) : 1;
    for (uint32_t i = 0; i < d; i++) out[i] = (float)((double)out[i] / length);
    return STATUS_OK;
}

static size_t padded(size_t floats) {
    return (floats + ENCODER_LANES - 1) / ENCODER_LANES * ENCODER_LANES;
}

static enum status run(const struct encoder *enc, struct chore *chore, const uint32_t *ids,
                       uint32_t n, float *out, struct error *e) {
    const struct encoder_config *c = &enc->cfg;
    const size_t row = (size_t)n * c->d_model, n_padded = padded(n);
    const size_t head_dim = c->d_model / c->n_heads;
    const size_t floats =
        5 * row + (size_t)n * c->d_ff + n_padded * head_dim + n_padded * enc->kernels->rows_at_once;
    float *memory = aligned_alloc(64, padded(floats) * sizeof *memory);
    if (memory == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to encode %u tokens", n);
    struct pass p = {.enc = enc, .chore = chore, .n = n, .n_padded = (uint32_t)n_padded};
    p.x = memory;
    p.q = p.x + row;
    p.k = p.q + row;
    p.v = p.k + row;
    p.context = p.v + row;
    p.wide = p.context + row;
    p.keys = p.wide + (size_t)n * c->d_ff;
    p.scores = p.keys + n_padded * head_dim;
    /* The lanes behind the last key are multiplied like the others, and their scores dropped. */
    memset(p.keys, 0, n_padded * head_dim * sizeof *p.keys);
    bool done = embed_tokens(&p, ids);
    for (uint32_t i = 0; i < c->n_layers && done; i++) done = run_layer(&p, &enc->layers[i]);
    const enum status st = done ? pool(&p, out, e) : error_set(e, STATUS_GONE, NULL, "cancelled");
    free(memory);
    return st;
}

enum status encoder_encode(const struct encoder *enc, struct chore *c, const char *text, size_t len,
                           float *out, uint32_t *n_tokens, struct error *e) {
    memset(out, 0, enc->cfg.d_model * sizeof *out);
    *n_tokens = 0;
    struct token_list l = {0};
    enum status st =
        tokenizer_encode(enc->tokenizer, c, text, len, TOKENIZE_BOS | TOKENIZE_EOS, &l, e);
    if (st == STATUS_OK && l.n > enc->cfg.max_tokens) {
        l.ids[enc->cfg.max_tokens - 1] = l.ids[l.n - 1];
        l.n = enc->cfg.max_tokens;
    }
    if (st == STATUS_OK) st = run(enc, c, l.ids, (uint32_t)l.n, out, e);
    if (st == STATUS_OK) *n_tokens = (uint32_t)l.n;
    token_list_free(&l);
    return st;
}
