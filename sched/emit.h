/* emit.h: from committed tokens of one choice to what its client sees: whole UTF-8 sequences, no
 * byte of a stop string that comes true or still may, and logprobs beside the text they belong to.
 *
 * A token's logprob goes out with the delta that shows its last byte (a token without text goes out
 * with whatever was shown before it). A token of which a stop string leaves nothing is not
 * reported. At most EMIT_HELD_TOKENS tokens wait for their text; if a model draws more while a stop
 * string is half complete, the oldest are reported before it is decided.
 *
 * Memory: the caller's, emit_footprint() bytes, 8-aligned; nothing allocates afterwards.
 */
#ifndef LAC_SCHED_EMIT_H
#define LAC_SCHED_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/request.h"
#include "models/detokenizer.h"
#include "sched/answer.h"
#include "sched/stop.h"

enum {
    EMIT_HELD_TOKENS = REQUEST_MAX_STOP_BYTES + 64,
    EMIT_TEXT_BYTES = 4096, /* text held back or gathered for one delta */
    EMIT_DELTA_TOKENS = 16, /* logprobs in one delta */
};

/* Scratch for deltas with logprobs, one for all choices. */
struct emit_scratch {
    const struct tokenizer *tokenizer;
    size_t piece_bytes; /* longest token */
    char *pieces;       /* [EMIT_DELTA_TOKENS][STEP_TOP + 1][piece_bytes] */
    struct buffer text; /* fixed; what one token adds */
    struct token_logprob lps[EMIT_DELTA_TOKENS];
};

enum status emit_scratch_open(struct emit_scratch *s, const struct tokenizer *t, struct error *e);
void emit_scratch_close(struct emit_scratch *s);

struct emit_token {
    uint64_t start, end; /* bytes of text before it, and with it */
    uint32_t id, n_top;
    float logprob, lse, entropy, similarity;
    struct top_logit top[STEP_TOP];
};

struct emit {
    struct detokenizer detokenizer;
    const struct stop_set *stops;
    struct stop_state stop;
    bool logprobs, explain;
    uint32_t n_top, choice;
    uint32_t n_text, n_held;        /* bytes in `text`; the last n_held of them are held back */
    uint64_t n_seen;                /* bytes of text so far, shown or not */
    uint32_t first_token, n_tokens; /* ring */
    struct emit_token *tokens;      /* [EMIT_HELD_TOKENS] */
    char *text;                     /* [EMIT_TEXT_BYTES] */
};

size_t emit_footprint(void);
void emit_init(struct emit *m, void *mem);
/* `stops` outlives the choice. */
void emit_start(struct emit *m, const struct tokenizer *t, const struct request *r, uint32_t choice,
                const struct stop_set *stops);

/* A token of an echoed prompt: shown as it is, stop strings not looked for. `o` is the output that
 * scored it; NULL: no logprob (reported as NaN). */
void emit_prompt(struct emit *m, struct emit_scratch *s, struct answer *a, uint32_t id,
                 const struct output *o);
/* A committed token. Returns true when a stop string is complete: everything before it has been
 * shown, and the choice is over. */
bool emit_token(struct emit *m, struct emit_scratch *s, struct answer *a, const struct output *o);
/* The choice ends without a stop string: shows what was held back, but not a character whose last
 * bytes were still to come. Returns true if that completed a stop string after all. */
bool emit_end(struct emit *m, struct emit_scratch *s, struct answer *a);

#endif
