/* tiny_encoder.h: writes a small encoder of random weights into a folder, and computes it in
 * float64 the plain way. For tests; include after cmocka.h.
 */
#ifndef LAC_TESTS_MODELS_TINY_ENCODER_H
#define LAC_TESTS_MODELS_TINY_ENCODER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/rng.h"
#include "core/tensor.h"

enum { TINY_D = 64, TINY_HEADS = 2, TINY_FF = 112, TINY_LAYERS = 2, TINY_POSITIONS = 48 };
enum { TINY_MOST = 40, TINY_VOCAB = 30, TINY_CLS = 2, TINY_SEP = 3, TINY_WORD = 5 };
enum { TINY_TENSORS = 5 + 16 * TINY_LAYERS };

struct tiny_tensor {
    char name[96];
    uint32_t rows, columns; /* rows 0: a vector */
    float *w;
};
struct tiny_encoder {
    char dir[64];
    struct tiny_tensor t[TINY_TENSORS];
    uint32_t n;
};

static inline const float *tiny_find(const struct tiny_encoder *m, const char *name) {
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0) return m->t[i].w;
    fail_msg("no %s", name);
    return NULL;
}

static inline void tiny_write(const struct tiny_encoder *m, const char *file, const void *bytes,
                              size_t n) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", m->dir, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static inline void tiny_text(const struct tiny_encoder *m, const char *file, const char *text) {
    tiny_write(m, file, text, strlen(text));
}

static inline float tiny_uniform(uint64_t seed, uint32_t a, uint32_t b) {
    return (float)((double)(rng_draw(seed, a, b, RNG_SEED, 0) >> 11) * 0x1p-52 - 1);
}

static inline void tiny_add(struct tiny_encoder *m, uint64_t seed, const char *name, uint32_t rows,
                            uint32_t columns, float centre, float spread) {
    struct tiny_tensor *t = &m->t[m->n];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->columns = columns;
    const uint32_t n = (rows ? rows : 1) * columns;
    t->w = malloc(n * sizeof *t->w);
    assert_non_null(t->w);
    for (uint32_t i = 0; i < n; i++) t->w[i] = centre + spread * tiny_uniform(seed, m->n, i);
    m->n++;
}

static inline void tiny_make(struct tiny_encoder *m, uint64_t seed) {
    static const struct {
        const char *name;
        uint32_t rows, columns;
        float centre, spread;
    } parts[] = {
        {"attention.self.query.weight", TINY_D, TINY_D, 0, 0.4f},
        {"attention.self.query.bias", 0, TINY_D, 0, 0.4f},
        {"attention.self.key.weight", TINY_D, TINY_D, 0, 0.4f},
        {"attention.self.key.bias", 0, TINY_D, 0, 0.4f},
        {"attention.self.value.weight", TINY_D, TINY_D, 0, 0.4f},
        {"attention.self.value.bias", 0, TINY_D, 0, 0.4f},
        {"attention.output.dense.weight", TINY_D, TINY_D, 0, 0.4f},
        {"attention.output.dense.bias", 0, TINY_D, 0, 0.4f},
        {"attention.output.LayerNorm.weight", 0, TINY_D, 1, 0.5f},
        {"attention.output.LayerNorm.bias", 0, TINY_D, 0, 0.5f},
        {"intermediate.dense.weight", TINY_FF, TINY_D, 0, 0.4f},
        {"intermediate.dense.bias", 0, TINY_FF, 0, 0.4f},
        {"output.dense.weight", TINY_D, TINY_FF, 0, 0.4f},
        {"output.dense.bias", 0, TINY_D, 0, 0.4f},
        {"output.LayerNorm.weight", 0, TINY_D, 1, 0.5f},
        {"output.LayerNorm.bias", 0, TINY_D, 0, 0.5f},
    };
    memset(m, 0, sizeof *m);
    strcpy(m->dir, "/tmp/laconic-encoder-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    char path[160];
    snprintf(path, sizeof path, "%s/1_Pooling", m->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    tiny_add(m, seed, "embeddings.word_embeddings.weight", TINY_VOCAB, TINY_D, 0, 1);
    tiny_add(m, seed, "embeddings.position_embeddings.weight", TINY_POSITIONS, TINY_D, 0, 1);
    tiny_add(m, seed, "embeddings.token_type_embeddings.weight", 2, TINY_D, 0, 1);
    tiny_add(m, seed, "embeddings.LayerNorm.weight", 0, TINY_D, 1, 0.5f);
    tiny_add(m, seed, "embeddings.LayerNorm.bias", 0, TINY_D, 0, 0.5f);
    for (uint32_t l = 0; l < TINY_LAYERS; l++) {
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[96];
            snprintf(name, sizeof name, "encoder.layer.%u.%s", l, parts[i].name);
            tiny_add(m, seed, name, parts[i].rows, parts[i].columns, parts[i].centre,
                     parts[i].spread);
        }
    }
}

/* The weights in `type` (F32, F16 or BF16), which rounds m's own to what was written. */
static inline void tiny_weights(struct tiny_encoder *m, const char *type, const char *prefix) {
    char header[16384];
    size_t at = 0, n_header = 0;
    const size_t size = strcmp(type, "F32") == 0 ? 4 : 2;
    uint8_t *data = calloc(1, 4 << 20);
    assert_non_null(data);
    header[n_header++] = '{';
    for (uint32_t i = 0; i < m->n; i++) {
        struct tiny_tensor *t = &m->t[i];
        const uint32_t n = (t->rows ? t->rows : 1) * t->columns;
        char shape[32];
        if (t->rows)
            snprintf(shape, sizeof shape, "%u,%u", t->rows, t->columns);
        else
            snprintf(shape, sizeof shape, "%u", t->columns);
        n_header += (size_t)snprintf(
            header + n_header, sizeof header - n_header,
            "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
            i > 0 ? "," : "", prefix, t->name, type, shape, at, at + n * size);
        for (uint32_t k = 0; k < n; k++, at += size) {
            uint16_t half;
            uint32_t bits;
            memcpy(&bits, &t->w[k], sizeof bits);
            if (strcmp(type, "F16") == 0) {
                half = f32_to_f16(t->w[k]);
                t->w[k] = f16_to_f32(half);
            } else {
                half = (uint16_t)(bits >> 16);
                if (size == 2) t->w[k] = bf16_to_f32(half);
            }
            memcpy(data + at, size == 4 ? (const void *)&t->w[k] : (const void *)&half, size);
        }
    }
    assert_true(n_header + 1 < sizeof header && at <= 4 << 20);
    header[n_header++] = '}';
    uint8_t *file = calloc(1, 8 + n_header + at);
    assert_non_null(file);
    for (size_t i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    memcpy(file + 8, header, n_header);
    memcpy(file + 8 + n_header, data, at);
    tiny_write(m, "model.safetensors", file, 8 + n_header + at);
    free(file);
    free(data);
}

#define TINY_CONFIG                                                                                \
    "{\"model_type\":\"bert\",\"hidden_act\":\"gelu\",\"num_hidden_layers\":2,"                    \
    "\"num_attention_heads\":2,\"hidden_size\":64,\"intermediate_size\":112,\"vocab_size\":30,"    \
    "\"type_vocab_size\":2,\"max_position_embeddings\":48,\"layer_norm_eps\":1e-12}"
#define TINY_MODULES                                                                               \
    "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"                      \
    "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"},"                  \
    "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}]"
#define TINY_POOLING "{\"word_embedding_dimension\":64,\"pooling_mode_mean_tokens\":true}"

/* Everything but the weights. Token i >= TINY_WORD is the word a, b, ... */
static inline void tiny_folder(const struct tiny_encoder *m) {
    char vocab[512] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = TINY_WORD; i < TINY_VOCAB; i++) {
        const char line[3] = {(char)('a' + i - TINY_WORD), '\n', '\0'};
        strcat(vocab, line);
    }
    tiny_text(m, "vocab.txt", vocab);
    tiny_text(m, "config.json", TINY_CONFIG);
    tiny_text(m, "modules.json", TINY_MODULES);
    tiny_text(m, "1_Pooling/config.json", TINY_POOLING);
    tiny_text(m, "sentence_bert_config.json", "{\"max_seq_length\":40,\"do_lower_case\":false}");
    tiny_text(m, "tokenizer_config.json", "{\"do_lower_case\":true,\"strip_accents\":null}");
}

static inline void tiny_free(struct tiny_encoder *m) {
    static const char *const files[] = {"vocab.txt",
                                        "config.json",
                                        "modules.json",
                                        "1_Pooling/config.json",
                                        "sentence_bert_config.json",
                                        "tokenizer_config.json",
                                        "model.safetensors"};
    char path[160];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", m->dir, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/1_Pooling", m->dir);
    rmdir(path);
    rmdir(m->dir);
    for (uint32_t i = 0; i < m->n; i++) free(m->t[i].w);
}

/* ---- the reference ---- */

static inline void ref_linear(const struct tiny_encoder *m, const char *name, const double *x,
                              uint32_t n, uint32_t n_in, uint32_t n_out, double *y) {
    char part[128];
    snprintf(part, sizeof part, "%s.weight", name);
    const float *w = tiny_find(m, part);
    snprintf(part, sizeof part, "%s.bias", name);
    const float *b = tiny_find(m, part);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t o = 0; o < n_out; o++) {
            double sum = (double)b[o];
            for (uint32_t k = 0; k < n_in; k++) sum += x[r * n_in + k] * (double)w[o * n_in + k];
            y[r * n_out + o] = sum;
        }
}

static inline void ref_norm(const struct tiny_encoder *m, const char *name, double *x, uint32_t n) {
    char part[128];
    snprintf(part, sizeof part, "%s.weight", name);
    const float *w = tiny_find(m, part);
    snprintf(part, sizeof part, "%s.bias", name);
    const float *b = tiny_find(m, part);
    for (uint32_t r = 0; r < n; r++) {
        double *row = x + r * TINY_D, mean = 0, variance = 0;
        for (int i = 0; i < TINY_D; i++) mean += row[i] / TINY_D;
        for (int i = 0; i < TINY_D; i++) variance += (row[i] - mean) * (row[i] - mean) / TINY_D;
        for (int i = 0; i < TINY_D; i++)
            row[i] = (row[i] - mean) / sqrt(variance + 1e-12) * (double)w[i] + (double)b[i];
    }
}

static inline void ref_attention(const double *q, const double *k, const double *v, uint32_t n,
                                 double *out) {
    enum { HEAD = TINY_D / TINY_HEADS };
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < TINY_HEADS; h++) {
            double score[TINY_POSITIONS], sum = 0;
            for (uint32_t t = 0; t < n; t++) {
                double s = 0;
                for (uint32_t i = 0; i < HEAD; i++)
                    s += q[r * TINY_D + h * HEAD + i] * k[t * TINY_D + h * HEAD + i];
                sum += score[t] = exp(s / sqrt(HEAD));
            }
            for (uint32_t i = 0; i < HEAD; i++) {
                double y = 0;
                for (uint32_t t = 0; t < n; t++) y += score[t] / sum * v[t * TINY_D + h * HEAD + i];
                out[r * TINY_D + h * HEAD + i] = y;
            }
        }
}

static inline void ref_layer(const struct tiny_encoder *m, uint32_t l, double *x, uint32_t n) {
    static const char *const qkv[3] = {"query", "key", "value"};
    double *y = calloc((size_t)n * (4 * TINY_D + TINY_FF), sizeof *y);
    assert_non_null(y);
    double *part[4] = {y, y + n * TINY_D, y + 2 * n * TINY_D, y + 3 * n * TINY_D};
    double *wide = y + 4 * n * TINY_D;
    char name[96];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "encoder.layer.%u.attention.self.%s", l, qkv[i]);
        ref_linear(m, name, x, n, TINY_D, TINY_D, part[i]);
    }
    ref_attention(part[0], part[1], part[2], n, part[3]);
    snprintf(name, sizeof name, "encoder.layer.%u.attention.output.dense", l);
    ref_linear(m, name, part[3], n, TINY_D, TINY_D, part[0]);
    for (uint32_t i = 0; i < n * TINY_D; i++) x[i] += part[0][i];
    snprintf(name, sizeof name, "encoder.layer.%u.attention.output.LayerNorm", l);
    ref_norm(m, name, x, n);
    snprintf(name, sizeof name, "encoder.layer.%u.intermediate.dense", l);
    ref_linear(m, name, x, n, TINY_D, TINY_FF, wide);
    for (uint32_t i = 0; i < n * TINY_FF; i++) wide[i] *= 0.5 * erfc(-wide[i] / sqrt(2));
    snprintf(name, sizeof name, "encoder.layer.%u.output.dense", l);
    ref_linear(m, name, wide, n, TINY_FF, TINY_D, part[0]);
    for (uint32_t i = 0; i < n * TINY_D; i++) x[i] += part[0][i];
    snprintf(name, sizeof name, "encoder.layer.%u.output.LayerNorm", l);
    ref_norm(m, name, x, n);
    free(y);
}

static inline void ref_encode(const struct tiny_encoder *m, const uint32_t *ids, uint32_t n,
                              bool first_token, bool normalise, double out[TINY_D]) {
    const float *word = tiny_find(m, "embeddings.word_embeddings.weight");
    const float *position = tiny_find(m, "embeddings.position_embeddings.weight");
    const float *type = tiny_find(m, "embeddings.token_type_embeddings.weight");
    double x[TINY_POSITIONS * TINY_D], squares = 0;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < TINY_D; i++)
            x[r * TINY_D + i] = (double)word[ids[r] * TINY_D + i] +
                                (double)position[r * TINY_D + i] + (double)type[i];
    ref_norm(m, "embeddings.LayerNorm", x, n);
    for (uint32_t l = 0; l < TINY_LAYERS; l++) ref_layer(m, l, x, n);
    for (uint32_t i = 0; i < TINY_D; i++) {
        out[i] = 0;
        for (uint32_t r = 0; r < (first_token ? 1 : n); r++)
            out[i] += x[r * TINY_D + i] / (first_token ? 1 : n);
        squares += out[i] * out[i];
    }
    for (uint32_t i = 0; i < TINY_D && normalise; i++) out[i] /= sqrt(squares);
}

#endif
