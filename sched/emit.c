#include "sched/emit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

enum status emit_scratch_open(struct emit_scratch *s, const struct tokenizer *t, struct error *e) {
    memset(s, 0, sizeof *s);
    s->tokenizer = t;
    for (uint32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        char none[1];
        const size_t n = tokenizer_piece(t, id, true, none, 0);
        if (n > s->piece_bytes) s->piece_bytes = n;
    }
    const size_t text_bytes = 3 * s->piece_bytes + 16;
    s->pieces = malloc(EMIT_DELTA_TOKENS * (STEP_TOP + 1) * (s->piece_bytes + 1));
    char *text = malloc(text_bytes);
    if (s->pieces == NULL || text == NULL) {
        free(text);
        return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for the text of tokens");
    }
    buffer_init_fixed(&s->text, text, text_bytes);
    return STATUS_OK;
}

void emit_scratch_close(struct emit_scratch *s) {
    free(s->pieces);
    free(s->text.data);
    memset(s, 0, sizeof *s);
}

size_t emit_footprint(void) {
    return EMIT_HELD_TOKENS * sizeof(struct emit_token) + EMIT_TEXT_BYTES;
}

void emit_init(struct emit *m, void *mem) {
    memset(m, 0, sizeof *m);
    m->tokens = mem;
    m->text = (char *)(m->tokens + EMIT_HELD_TOKENS);
}

void emit_start(struct emit *m, const struct tokenizer *t, const struct request *r, uint32_t choice,
                const struct stop_set *stops) {
    /* A completion goes on behind its prompt; an echo or a turn of a chat is a text of its own. */
    const bool continues = r->kind == REQUEST_COMPLETION && !r->echo;
    detokenizer_init(&m->detokenizer, t, continues ? DETOKENIZE_CONTINUES : 0);
    m->stops = stops;
    stop_start(&m->stop);
    m->logprobs = r->logprobs;
    m->explain = r->explain;
    m->n_top = r->top_logprobs < STEP_TOP ? r->top_logprobs : STEP_TOP;
    m->choice = choice;
    m->n_text = m->n_held = 0;
    m->n_seen = 0;
    m->first_token = m->n_tokens = 0;
}

static const char *piece(struct emit_scratch *s, uint32_t place, uint32_t id, uint32_t *n) {
    char *buf = s->pieces + place * (s->piece_bytes + 1);
    *n = (uint32_t)tokenizer_piece(s->tokenizer, id, true, buf, s->piece_bytes);
    return buf;
}

static void report(struct emit_scratch *s, uint32_t i, const struct emit_token *t) {
    struct token_logprob *lp = &s->lps[i];
    lp->id = t->id;
    lp->logprob = t->logprob;
    lp->entropy = t->entropy;
    lp->similarity = t->similarity;
    lp->bytes = piece(s, i * (STEP_TOP + 1), t->id, &lp->n_bytes);
    lp->n_top = t->n_top;
    for (uint32_t k = 0; k < t->n_top; k++) {
        lp->top[k].id = t->top[k].id;
        lp->top[k].logprob = t->top[k].logit - t->lse;
        lp->top[k].bytes = piece(s, i * (STEP_TOP + 1) + 1 + k, t->top[k].id, &lp->top[k].n_bytes);
    }
}

/* Shows what is not held back. `all`: the text is over, so every token that began is reported. */
static void deliver(struct emit *m, struct emit_scratch *s, struct answer *a, bool all) {
    const uint32_t n = m->n_text - m->n_held;
    const uint64_t shown = m->n_seen - m->n_held;
    const char *text = m->text;
    uint32_t left = n, n_lps = 0;
    while (m->n_tokens > 0) {
        const struct emit_token *t = &m->tokens[m->first_token];
        if (t->end > shown && !(all && t->start < shown)) break;
        report(s, n_lps++, t);
        m->first_token = (m->first_token + 1) % EMIT_HELD_TOKENS;
        m->n_tokens--;
        if (n_lps == EMIT_DELTA_TOKENS) {
            answer_delta(a, m->choice, text, left, s->lps, n_lps);
            left = n_lps = 0;
        }
    }
    if (left > 0 || n_lps > 0) answer_delta(a, m->choice, text, left, s->lps, n_lps);
    memmove(m->text, m->text + n, m->n_held);
    m->n_text = m->n_held;
}

/* Appends the scratch's text; true when a stop string is complete (the text then ends before it).
 */
static bool append(struct emit *m, struct emit_scratch *s, struct answer *a, bool look) {
    const char *bytes = s->text.data;
    CHECK(!s->text.full);
    for (size_t i = 0; i < s->text.len; i++) {
        if (m->n_text == EMIT_TEXT_BYTES) deliver(m, s, a, false);
        m->text[m->n_text++] = bytes[i];
        m->n_seen++;
        if (!look) continue;
        const uint32_t complete = stop_push(m->stops, &m->stop, bytes[i], &m->n_held);
        if (complete == 0) continue;
        CHECK(complete <= m->n_text);
        m->n_text -= complete;
        m->n_seen -= complete;
        m->n_held = 0;
        return true;
    }
    return false;
}

static struct emit_token *hold_token(struct emit *m, struct emit_scratch *s, struct answer *a,
                                     uint32_t id) {
    if (m->n_tokens == EMIT_HELD_TOKENS) {
        report(s, 0, &m->tokens[m->first_token]);
        answer_delta(a, m->choice, m->text, 0, s->lps, 1);
        m->first_token = (m->first_token + 1) % EMIT_HELD_TOKENS;
        m->n_tokens--;
    }
    struct emit_token *t = &m->tokens[(m->first_token + m->n_tokens++) % EMIT_HELD_TOKENS];
    t->id = id;
    t->start = m->n_seen;
    t->end = UINT64_MAX;
    t->logprob = t->entropy = t->similarity = NAN;
    t->n_top = 0;
    return t;
}

static void score(struct emit_token *t, const struct output *o, uint32_t n_top, bool explain) {
    t->logprob = o->logprob;
    t->lse = o->lse;
    t->n_top = n_top;
    memcpy(t->top, o->top, n_top * sizeof *t->top);
    if (!explain) return;
    t->entropy = o->entropy;
    t->similarity = o->cosine;
}

static bool push(struct emit *m, struct emit_scratch *s, struct answer *a, uint32_t id,
                 const struct output *o, bool look) {
    struct emit_token *t = NULL;
    if (m->logprobs) {
        t = hold_token(m, s, a, id);
        if (o != NULL) score(t, o, m->n_top, m->explain);
    }
    buffer_clear(&s->text);
    detokenizer_push(&m->detokenizer, id, &s->text);
    const bool stopped = append(m, s, a, look);
    if (t != NULL && !stopped) t->end = m->n_seen;
    deliver(m, s, a, stopped);
    return stopped;
}

void emit_prompt(struct emit *m, struct emit_scratch *s, struct answer *a, uint32_t id,
                 const struct output *o) {
    push(m, s, a, id, o, false);
}

bool emit_token(struct emit *m, struct emit_scratch *s, struct answer *a, const struct output *o) {
    return push(m, s, a, o->token, o, true);
}

bool emit_end(struct emit *m, struct emit_scratch *s, struct answer *a) {
    /* Bytes of a character that the last token left open are not text: the answer is a prefix of
     * what it would have been, not that with U+FFFD at its end. Their tokens' logprobs carry them.
     */
    buffer_clear(&s->text);
    const bool stopped = append(m, s, a, true);
    m->n_held = 0;
    deliver(m, s, a, true);
    return stopped;
}
