/* token_lists.h: the input of `laconic logits`: a JSON file [{"name": text, "tokens": [ids]}, ...].
 * Other keys are ignored.
 */
#ifndef LAC_CMD_TOKEN_LISTS_H
#define LAC_CMD_TOKEN_LISTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct named_tokens {
    char *name;
    uint32_t *ids;
    uint32_t n; /* >= 1 */
};
struct token_lists {
    struct named_tokens *items;
    size_t n;
};

/* Refuses ids that are not below n_vocab, empty lists and lists over n_max tokens. On failure *out
 * is zeroed. */
enum status token_lists_read(const char *path, uint32_t n_vocab, uint32_t n_max,
                             struct token_lists *out, struct error *e);
void token_lists_free(struct token_lists *l);

#endif
