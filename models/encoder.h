/* encoder.h: a sentence encoder: text to one vector, by a BERT (Devlin et al., arXiv:1810.04805)
 * with the rows pooled and normalised as sentence-transformers does it (Reimers and Gurevych,
 * arXiv:1908.10084).
 *
 * A model is a folder as sentence-transformers writes it: config.json, modules.json,
 * 1_Pooling/config.json, vocab.txt, model.safetensors (F32, F16 or BF16), and maybe
 * sentence_bert_config.json and tokenizer_config.json (models/encoder_config.h).
 *
 * Text is any bytes up to TOKENIZER_MAX_TEXT_BYTES; special tokens written in it are plain text.
 * What goes beyond the model's longest text is cut off at the end. Arithmetic is F32 in one fixed
 * order: the same text gives the same bits on every machine, whatever else is computed beside it.
 *
 * Errors: a folder that cannot be run is refused with one line; error.field is the file or tensor
 * at fault. Memory: the weights but the word embeddings are copied (44 MB for all-MiniLM-L6-v2); an
 * encode takes about 15 rows of d_model floats per token from the heap.
 * Threads: read-only after open; any number of threads may encode at once.
 */
#ifndef LAC_MODELS_ENCODER_H
#define LAC_MODELS_ENCODER_H

#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/cpu_features.h"
#include "core/status.h"

enum { ENCODER_MAX_VOCAB_BYTES = 32 << 20 };

struct encoder;

/* On failure *out is NULL. */
LAC_MUST_USE enum status encoder_open(const char *dir, struct encoder **out, struct error *e);
void encoder_close(struct encoder *enc); /* NULL is fine */

/* Before the first encode: another instruction set than the best one here, which it must not
 * exceed. The vectors are the same. */
void encoder_use_isa(struct encoder *enc, enum cpu_isa isa);

/* The folder's name. */
const char *encoder_name(const struct encoder *enc);
uint32_t encoder_dim(const struct encoder *enc);
/* The most tokens of a text that are read, [CLS] and [SEP] included. */
uint32_t encoder_max_tokens(const struct encoder *enc);
size_t encoder_memory_bytes(const struct encoder *enc);

/* out[encoder_dim]; *n_tokens: the tokens that were computed, [CLS] and [SEP] included. `c` (may be
 * NULL) is offered a pause every few ten microseconds of work; cancelled there, STATUS_GONE.
 * STATUS_BAD_NUMBER: the vector is not finite, or nothing but zeros. On failure `out` is zeroed. */
LAC_MUST_USE enum status encoder_encode(const struct encoder *enc, struct chore *c,
                                        const char *text, size_t len, float *out,
                                        uint32_t *n_tokens, struct error *e);

#endif
