/* encoder_config.h: what the files of a sentence-transformers folder say about an encoder: its
 * shapes, how a text becomes tokens, and how the rows become one vector.
 *
 * Read are config.json (a BERT: model_type "bert", hidden_act "gelu", absolute positions),
 * modules.json (Transformer, Pooling, maybe Normalize), 1_Pooling/config.json (mean or first
 * token), sentence_bert_config.json and tokenizer_config.json (both optional). Hostile input: each
 * file has at most ENCODER_MAX_JSON_BYTES, every number is checked against the limits below; what
 * this build would compute differently is refused by name. Errors: error.field is the file, the
 * message names the key.
 */
#ifndef LAC_MODELS_ENCODER_CONFIG_H
#define LAC_MODELS_ENCODER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum {
    ENCODER_MAX_JSON_BYTES = 1 << 20,
    ENCODER_MAX_LAYERS = 64,
    ENCODER_MAX_WIDTH = 8192, /* of a row, and four times that between the two products */
    ENCODER_MAX_HEADS = 128,
    ENCODER_MAX_POSITIONS = 8192,
    ENCODER_MAX_VOCAB = 1 << 20,
    ENCODER_TOKEN_BYTES = 32,
};

struct encoder_config {
    uint32_t n_layers, n_heads, d_model, d_ff, n_vocab, n_types;
    uint32_t n_positions;
    uint32_t max_tokens; /* of a text, [CLS] and [SEP] included; at most n_positions */
    float epsilon;
    bool first_token; /* else the mean of all rows */
    bool normalise;
    int lowercase, strip_accents; /* 0, 1, -1: as the vocabulary suggests */
    char cls[ENCODER_TOKEN_BYTES], sep[ENCODER_TOKEN_BYTES], unk[ENCODER_TOKEN_BYTES];
    char pad[ENCODER_TOKEN_BYTES], mask[ENCODER_TOKEN_BYTES];
};

LAC_MUST_USE enum status encoder_config_read(const char *dir, struct encoder_config *c,
                                             struct error *e);

#endif
