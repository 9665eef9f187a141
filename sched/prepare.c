#include "sched/prepare.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "models/chat_template.h"
#include "models/detokenizer.h"
#include "models/prompt_lint.h"
#include "sched/draw.h"
#include "sched/embed.h"
#include "sched/label.h"
#include "sched/sequence.h"

enum { CHECK_EVERY_TOKENS = 4096 };

uint64_t prepare_pages(uint32_t n_prompt, uint32_t max_tokens, uint32_t n) {
    const uint64_t one = pages_for(n_prompt + max_tokens), shared = n_prompt / KV_PAGE_TOKENS;
    return n * one - (n - 1) * shared;
}

uint32_t prepare_prefill(const struct request *r, uint32_t n_prompt, uint32_t max_tokens) {
    if (max_tokens > 0) return n_prompt;
    /* The last token's score comes from the row before it. */
    return r->echo && r->logprobs ? n_prompt - 1 : 0;
}

static const char *prompt_field(const struct request *r) {
    return r->kind == REQUEST_CHAT ? "messages" : "prompt";
}

static enum status copy_ids(struct chore *c, const struct prepare_model *m, const struct request *r,
                            const char *field, struct token_list *out, struct error *e) {
    out->ids = malloc((r->n_ids + 1) * sizeof *out->ids);
    if (out->ids == NULL)
        return error_set(e, STATUS_NO_MEMORY, field, "out of memory for %zu tokens", r->n_ids);
    out->cap = r->n_ids + 1;
    for (size_t i = 0; i < r->n_ids; i++) {
        if (i % CHECK_EVERY_TOKENS == 0 && chore_checkpoint(c)) return STATUS_GONE;
        if (r->ids[i] >= m->n_vocab)
            return error_set(e, STATUS_INVALID, field, "token id %u is not below %u", r->ids[i],
                             m->n_vocab);
        out->ids[out->n++] = r->ids[i];
    }
    return STATUS_OK;
}

/* The template usually writes the bos token itself; a second one would be a different prompt. */
static enum status put_bos(const struct tokenizer *t, struct token_list *l, struct error *e) {
    const uint32_t bos = tokenizer_bos(t);
    if (!tokenizer_adds_bos(t) || bos == TOKEN_NONE || (l->n > 0 && l->ids[0] == bos))
        return STATUS_OK;
    if (l->n == l->cap) {
        uint32_t *ids = realloc(l->ids, (l->cap + 1) * sizeof *ids);
        if (ids == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
        l->ids = ids;
        l->cap++;
    }
    memmove(l->ids + 1, l->ids, l->n * sizeof *l->ids);
    l->ids[0] = bos;
    l->n++;
    return STATUS_OK;
}

/* Which pages of the prompt of `len` bytes the marks are about. */
static enum status keep_marks(struct chore *c, const struct prepare_model *m,
                              const struct gate_marks *marks, size_t len, struct prepared *p,
                              struct error *e) {
    struct gate_prompt *g = &p->gate;
    g->recall = marks->recall;
    g->trigger = marks->trigger;
    g->n_anchors = marks->n_anchors;
    /* A prompt that is too long is refused in a moment. */
    if (marks->n_anchors == 0 || p->tokens.n > m->n_ctx) return STATUS_OK;
    g->pages = malloc((p->tokens.n / KV_PAGE_TOKENS + 1) * sizeof *g->pages);
    if (g->pages == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
    return gate_marks_pages(marks, m->tokenizer, p->tokens.ids, (uint32_t)p->tokens.n, len, c,
                            g->pages, &g->n_pages);
}

static enum status chat_tokens(struct chore *c, const struct prepare_model *m,
                               const struct request *r, struct prepared *p, struct error *e) {
    struct token_list *out = &p->tokens;
    if (m->chat_template == NULL)
        return error_set(e, STATUS_UNSUPPORTED, "messages", "this model has no chat template");
    const struct chat_input in = {
        .json = r->chat_json.data, .len = r->chat_json.len, .now_s = (int64_t)clock_wall_s()};
    struct rendered prompt;
    enum status st = chat_template_render(m->chat_template, &in, c, &prompt, e);
    if (st != STATUS_OK) return st;
    struct gate_marks marks = {0};
    if (gate_reads_marks(m->gate, r))
        st = gate_marks_take(prompt.text, &prompt.len, prompt.spans, &prompt.n_spans,
                             &m->gate->words, c, &marks, e);
    if (st == STATUS_OK)
        st = tokenizer_encode_spans(m->tokenizer, c, prompt.text, prompt.len, prompt.spans,
                                    prompt.n_spans, TOKENIZE_SPECIAL, out, e);
    const size_t len = prompt.len, n = out->n;
    if (st == STATUS_OK && r->rollback.rule != ROLLBACK_OFF)
        p->user = user_tokens(m->tokenizer, out->ids, n, prompt.len, prompt.spans, prompt.n_spans);
    rendered_free(&prompt);
    if (st == STATUS_OK) st = put_bos(m->tokenizer, out, e);
    if (st == STATUS_OK && out->n > n) p->user.first++, p->user.end++;
    if (st == STATUS_OK) st = keep_marks(c, m, &marks, len, p, e);
    gate_marks_free(&marks);
    return st;
}

/* A completion's prompt: all of it is the client's text. */
static enum status text_tokens(struct chore *c, const struct prepare_model *m,
                               const struct request *r, struct prepared *p, struct error *e) {
    if (!gate_reads_marks(m->gate, r))
        return tokenizer_encode(m->tokenizer, c, r->prompt.data, r->prompt.len, TOKENIZE_BOS,
                                &p->tokens, e);
    struct gate_marks marks = {0};
    size_t len = r->prompt.len;
    char *text = malloc(len + 1);
    if (text == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
    memcpy(text, r->prompt.data, len);
    enum status st = gate_marks_take(text, &len, NULL, NULL, &m->gate->words, c, &marks, e);
    if (st == STATUS_OK)
        st = tokenizer_encode(m->tokenizer, c, text, len, TOKENIZE_BOS, &p->tokens, e);
    free(text);
    if (st == STATUS_OK) st = keep_marks(c, m, &marks, len, p, e);
    gate_marks_free(&marks);
    return st;
}

/* A prompt of no tokens begins where the model's texts begin. */
static enum status never_empty(const struct prepare_model *m, const struct request *r,
                               struct token_list *l, struct error *e) {
    if (l->n > 0) return STATUS_OK;
    uint32_t id = tokenizer_bos(m->tokenizer);
    if (id == TOKEN_NONE) id = tokenizer_eos(m->tokenizer);
    if (id == TOKEN_NONE || id >= m->n_vocab)
        return error_set(e, STATUS_INVALID, prompt_field(r),
                         "the prompt is empty and this model has no token to start from");
    if (l->cap == 0) {
        l->ids = malloc(sizeof *l->ids);
        if (l->ids == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
        l->cap = 1;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

static enum status check_context(const struct prepare_model *m, const struct request *r,
                                 struct prepared *p, struct error *e) {
    uint32_t wanted =
        r->kind == REQUEST_CHAT ? REQUEST_DEFAULT_CHAT_TOKENS : REQUEST_DEFAULT_COMPLETION_TOKENS;
    if (r->set & REQUEST_SET_MAX_TOKENS) wanted = r->max_tokens;
    const size_t most = wanted > 0 ? m->n_ctx - 1 : m->n_ctx;
    if (p->tokens.n > most)
        return error_set(e, STATUS_CONTEXT_LENGTH, prompt_field(r),
                         "the prompt has %zu tokens; this model's context holds %u, the answer "
                         "included",
                         p->tokens.n, m->n_ctx);
    const uint32_t n_prompt = (uint32_t)p->tokens.n;
    p->max_tokens = wanted < m->n_ctx - n_prompt ? wanted : m->n_ctx - n_prompt;
    if (prepare_prefill(r, n_prompt, p->max_tokens) == 0) return STATUS_OK;
    const uint64_t pages = prepare_pages(n_prompt, p->max_tokens, r->n);
    if (pages > m->n_pages)
        return error_set(
            e, STATUS_TOO_LARGE, "max_tokens",
            "prompt and %u answers of up to %u tokens need %llu KV pages of %d tokens; "
            "this server has %u",
            r->n, p->max_tokens, (unsigned long long)pages, KV_PAGE_TOKENS, m->n_pages);
    return STATUS_OK;
}

static enum status check_request(const struct prepare_model *m, const struct request *r,
                                 struct error *e) {
    if (r->n == 0 || r->n > m->max_choices)
        return error_set(e, STATUS_INVALID, "n", "n is %u; this server runs at most %u at once",
                         r->n, m->max_choices);
    if (r->rollback.rule == ROLLBACK_AUTO && !m->calibrated)
        return error_set(e, STATUS_UNSUPPORTED, "laconic.rollback.rule",
                         "laconic.rollback.rule auto needs a calibrated monitor in the side-car "
                         "(laconic calibrate --monitor)");
    if (r->regulate && !m->regulates)
        return error_set(e, STATUS_UNSUPPORTED, "laconic.regulate",
                         "laconic.regulate needs a regulation head in the side-car (laconic "
                         "calibrate --regulate), and the CPU backend");
    for (uint32_t i = 0; i < r->n_logit_bias; i++)
        if (r->logit_bias[i].id >= m->n_vocab)
            return error_set(e, STATUS_INVALID, "logit_bias", "token id %u is not below %u",
                             r->logit_bias[i].id, m->n_vocab);
    const enum request_gate gate = gate_mode(m->gate, r);
    if (gate != REQUEST_GATE_OFF && gate != REQUEST_GATE_AUTO && !m->gate->bounds)
        return error_set(e, STATUS_UNSUPPORTED, "laconic.gate",
                         "this server keeps no bounds of KV pages: it attends to all of them");
    return STATUS_OK;
}

static enum status find_distinct(struct chore *c, const struct prepare_model *m,
                                 const struct request *r, struct prepared *p, struct error *e) {
    if (!draw_wants_prompt_ids(r)) return STATUS_OK;
    uint64_t *bitmap = calloc((m->n_vocab + 63) / 64, sizeof *bitmap);
    p->distinct = malloc(p->tokens.n * sizeof *p->distinct);
    enum status st = STATUS_OK;
    if (bitmap == NULL || p->distinct == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
    for (size_t i = 0; i < p->tokens.n && st == STATUS_OK; i++) {
        if (i % CHECK_EVERY_TOKENS == 0 && chore_checkpoint(c)) st = STATUS_GONE;
        bitmap[p->tokens.ids[i] / 64] |= UINT64_C(1) << p->tokens.ids[i] % 64;
    }
    if (st == STATUS_OK) p->n_distinct = draw_distinct(bitmap, m->n_vocab, p->distinct);
    free(bitmap);
    return st;
}

static enum status prepare_prompt(struct chore *c, const struct prepare_model *m,
                                  const struct request *r, struct prepared *p, struct error *e) {
    enum status st = check_request(m, r, e);
    if (st != STATUS_OK) return st;
    if (r->kind == REQUEST_CHAT)
        st = chat_tokens(c, m, r, p, e);
    else if (r->ids != NULL)
        st = copy_ids(c, m, r, "prompt", &p->tokens, e);
    else
        st = text_tokens(c, m, r, p, e);
    if (st == STATUS_OK) st = never_empty(m, r, &p->tokens, e);
    if (r->kind != REQUEST_CHAT) p->user = (struct token_range){0, (uint32_t)p->tokens.n};
    if (p->user.first == 0 && p->user.end > 0) p->user.first = 1;
    if (st == STATUS_OK) st = check_context(m, r, p, e);
    if (st == STATUS_OK) st = find_distinct(c, m, r, p, e);
    return st;
}

static enum status lint(struct chore *c, const struct prepare_model *m, const struct request *r,
                        struct buffer *out, struct error *e) {
    struct lint_options o = lint_defaults();
    struct lint_report report;
    struct json_writer j;
    o.encoder = m->encoder;
    o.chore = c;
    if (r->user_text.len == 0)
        return error_set(e, STATUS_INVALID, "laconic.lint", "there is no text of a user to lint");
    const enum status st = prompt_lint(r->user_text.data, r->user_text.len, &o, &report, e);
    if (st != STATUS_OK) return st;
    buffer_init(out, 0);
    json_write_begin(&j, out);
    prompt_lint_write(&j, r->user_text.data, &report, LINT_SPAN_BYTES);
    return out->full ? error_set(e, STATUS_NO_MEMORY, NULL, "out of memory") : STATUS_OK;
}

/* What is decided of the text alone. */
static enum status judge(struct chore *c, const struct prepare *w, struct prepared *p,
                         struct error *e) {
    const struct request *r = w->request;
    if (w->epoch != NULL) {
        if (chore_checkpoint(c)) return STATUS_GONE; /* it cannot yield inside */
        policy_decide(w->model->policy, w->epoch, r, &p->decision);
    }
    return r->lint ? lint(c, w->model, r, &p->lint, e) : STATUS_OK;
}

static enum status run_detokenize(struct chore *c, const struct prepare_model *m,
                                  const struct request *r, struct prepared *p, struct error *e) {
    enum status st = copy_ids(c, m, r, "tokens", &p->tokens, e);
    if (st != STATUS_OK) return st;
    buffer_init(&p->text, 0);
    struct detokenizer d;
    detokenizer_init(&d, m->tokenizer, DETOKENIZE_SPECIAL);
    for (size_t i = 0; i < p->tokens.n; i++) {
        if (i % 256 == 0 && chore_checkpoint(c)) return STATUS_GONE;
        detokenizer_push(&d, p->tokens.ids[i], &p->text);
    }
    detokenizer_flush(&d, &p->text);
    if (!p->text.full) return STATUS_OK;
    /* It stopped growing below its limit: no fault of the client's. */
    if (p->text.cap < p->text.cap_limit_bytes)
        return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory for the text");
    return error_set(e, STATUS_TOO_LARGE, "tokens", "the text is too long");
}

/* All texts one behind the other, each as a prompt of its own. */
static enum status prepare_texts(struct chore *c, const struct prepare_model *m,
                                 const struct request *r, struct prepared *p, struct error *e) {
    if (r->dimensions != 0 && r->dimensions != m->d_model)
        return error_set(e, STATUS_INVALID, "dimensions", "this model's vectors have %u",
                         m->d_model);
    p->ends = malloc(r->n_inputs * sizeof *p->ends);
    if (p->ends == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "out of memory");
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        const size_t before = p->tokens.n;
        const enum status st = tokenizer_encode(m->tokenizer, c, r->inputs[i].data,
                                                r->inputs[i].len, TOKENIZE_BOS, &p->tokens, e);
        if (st != STATUS_OK) return st;
        const size_t n = p->tokens.n - before;
        const uint64_t pages = n <= m->n_ctx ? pages_for((uint32_t)n) : 0;
        if (n == 0) return error_set(e, STATUS_INVALID, "input", "text %u has no tokens", i);
        if (n > m->n_ctx || pages > m->n_pages)
            return error_set(e, STATUS_CONTEXT_LENGTH, "input",
                             "text %u has %zu tokens; this model's context holds %u", i, n,
                             n > m->n_ctx ? m->n_ctx : m->n_pages * KV_PAGE_TOKENS);
        if (p->tokens.n > UINT32_MAX)
            return error_set(e, STATUS_TOO_LARGE, "input", "the texts are too long");
        p->ends[i] = (uint32_t)p->tokens.n;
    }
    return STATUS_OK;
}

/* Frees here, on a worker, what the loop thread has no use for: after a large text it is much. */
static void give_back(struct prepared *p) {
    const struct token_list kept = {.ids = p->tokens.ids, .n = p->tokens.n, .cap = p->tokens.cap};
    p->tokens.ids = NULL;
    token_list_free(&p->tokens);
    p->tokens = kept;
    if (p->status == STATUS_OK) return;
    const enum status st = p->status;
    const struct error e = p->error;
    prepared_free(p);
    p->status = st;
    p->error = e;
}

void prepare_run(struct chore *c, void *arg) {
    struct prepare *w = arg;
    const struct request *r = w->request;
    struct prepared *p = &w->out;
    enum status st;
    if (r->kind == REQUEST_EMBEDDING && r->by_model) {
        st = prepare_texts(c, w->model, r, p, &p->error);
    } else if (r->kind == REQUEST_EMBEDDING) {
        st = embed_run(c, w->embed, &p->error);
    } else if (r->kind == REQUEST_TOKENIZE) {
        const unsigned flags =
            (r->special ? TOKENIZE_SPECIAL : 0u) | (r->add_bos ? TOKENIZE_BOS : 0u);
        st = tokenizer_encode(w->model->tokenizer, c, r->prompt.data, r->prompt.len, flags,
                              &p->tokens, &p->error);
    } else if (r->kind == REQUEST_DETOKENIZE) {
        st = run_detokenize(c, w->model, r, p, &p->error);
    } else if (r->n_labels > 0) {
        st = label_prepare(c, w->model, r, &p->tokens, &p->label, &p->error);
    } else {
        st = prepare_prompt(c, w->model, r, p, &p->error);
        if (st == STATUS_OK) st = judge(c, w, p, &p->error);
    }
    p->status = st;
    give_back(p);
}

void prepared_free(struct prepared *p) {
    token_list_free(&p->tokens);
    if (p->text.data != NULL) buffer_free(&p->text);
    if (p->lint.data != NULL) buffer_free(&p->lint);
    free(p->distinct);
    free(p->ends);
    free(p->gate.pages);
    label_free(p->label);
    memset(p, 0, sizeof *p);
}
