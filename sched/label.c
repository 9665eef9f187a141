#include "sched/label.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/math.h"
#include "models/task_words.h"
#include "sched/prepare.h"
#include "sched/sequence.h"

void label_free(struct label_job *j) {
    if (j == NULL) return;
    token_list_free(&j->answers);
    free(j);
}

/* The struct and its arrays are one block. */
static struct label_job *job_new(uint32_t n) {
    const size_t each = sizeof(double) + 3 * sizeof(float) + 2 * sizeof(uint32_t);
    struct label_job *j = calloc(1, sizeof *j + n * each);
    if (j == NULL) return NULL;
    j->n = n;
    j->score = (double *)(void *)(j + 1);
    j->prior = (float *)(void *)(j->score + n);
    j->probability = j->prior + n;
    j->told = j->probability + n;
    j->order = (uint32_t *)(void *)(j->told + n);
    j->end = j->order + n;
    return j;
}

static const struct label_set *find_set(const struct prepare_model *m, const struct request *r,
                                        const struct label_job *j) {
    struct text sorted[REQUEST_MAX_LABELS];
    if (m->labels == NULL) return NULL;
    for (uint32_t i = 0; i < j->n; i++) sorted[i] = r->labels[j->order[i]];
    return label_sets_find(m->labels, sorted, j->n);
}

static enum status look_at_text(const struct prepare_model *m, const struct request *r,
                                struct label_job *j, struct error *e) {
    struct task_workspace *w;
    struct task_features f;
    const enum status st = task_workspace_new(&w, e);
    if (st != STATUS_OK) return st;
    task_features_extract(w, m->labels->words, r->prompt.data, r->prompt.len, &f);
    label_heads_prior(&j->set->heads, &f, j->prior);
    task_workspace_free(w);
    return STATUS_OK;
}

static enum status prepare_head(struct chore *c, const struct prepare_model *m,
                                const struct request *r, struct token_list *tokens,
                                struct label_job *j, struct error *e) {
    uint32_t most = j->set->heads.max_tokens;
    if (most > m->n_ctx) most = m->n_ctx;
    const enum status st = label_head_tokens(m->tokenizer, c, r->prompt.data, r->prompt.len, most,
                                             tokens, &j->first_token, e);
    return st == STATUS_OK ? look_at_text(m, r, j, e) : st;
}

static enum status prepare_answers(struct chore *c, const struct prepare_model *m,
                                   const struct request *r, struct label_job *j, struct error *e) {
    for (uint32_t i = 0; i < j->n; i++) {
        if (i % 16 == 0 && chore_checkpoint(c)) return STATUS_GONE;
        const size_t before = j->answers.n;
        const enum status st = label_answer_tokens(m->tokenizer, m->chat_template,
                                                   &r->labels[j->order[i]], &j->answers, e);
        if (st != STATUS_OK) return st;
        const uint32_t n = (uint32_t)(j->answers.n - before);
        if (n == 0 || n > m->max_label_tokens)
            return error_set(e, STATUS_TOO_LARGE, "laconic.labels",
                             "laconic.labels[%u] has %u tokens; this server scores 1 to %u",
                             j->order[i], n, m->max_label_tokens);
        if (n > j->longest) j->longest = n;
        j->end[i] = (uint32_t)j->answers.n;
    }
    return STATUS_OK;
}

static enum status prepare_question(struct chore *c, const struct prepare_model *m,
                                    const struct request *r, struct token_list *tokens,
                                    struct label_job *j, struct error *e) {
    enum status st = prepare_answers(c, m, r, j, e);
    if (st == STATUS_OK)
        st = label_question_tokens(m->tokenizer, m->chat_template, c, r->labels, j->order, j->n,
                                   &r->prompt, tokens, e);
    if (st != STATUS_OK) return st;
    CHECK(tokens->n >= 2); /* the question's own words */
    /* The last token is run with every label. */
    const size_t all = tokens->n - 1 + j->longest;
    const uint64_t pages = all <= m->n_ctx ? pages_for((uint32_t)all) : 0;
    if (all > m->n_ctx || pages > m->n_pages)
        return error_set(e, STATUS_CONTEXT_LENGTH, "laconic.labels",
                         "text and labels have %zu tokens; this model's context holds %u", all,
                         all > m->n_ctx ? m->n_ctx : m->n_pages * KV_PAGE_TOKENS);
    return STATUS_OK;
}

enum status label_prepare(struct chore *c, const struct prepare_model *m, const struct request *r,
                          struct token_list *tokens, struct label_job **out, struct error *e) {
    *out = NULL;
    struct label_job *j = job_new(r->n_labels);
    if (j == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the labels");
    enum status st = STATUS_OK;
    if (!label_sort(r->labels, r->n_labels, j->order))
        st = error_set(e, STATUS_INVALID, "laconic.labels", "laconic.labels must be distinct");
    if (st == STATUS_OK) {
        j->set = find_set(m, r, j);
        st = j->set != NULL ? prepare_head(c, m, r, tokens, j, e)
                            : prepare_question(c, m, r, tokens, j, e);
    }
    if (st == STATUS_OK)
        *out = j;
    else
        label_free(j);
    return st;
}

bool label_scored(struct label_job *j, uint32_t i, double score) {
    CHECK(i < j->n && j->n_scored < j->n);
    j->score[i] = score;
    return ++j->n_scored == j->n;
}

static void share_out(struct label_job *j) {
    double most = j->score[0], mass = 0;
    for (uint32_t i = 1; i < j->n; i++) most = j->score[i] > most ? j->score[i] : most;
    for (uint32_t i = 0; i < j->n; i++) mass += math_exp(j->score[i] - most);
    for (uint32_t i = 0; i < j->n; i++)
        j->probability[i] = (float)(math_exp(j->score[i] - most) / mass);
}

uint32_t label_winner(struct label_job *j) {
    uint32_t best = 0;
    if (j->set == NULL) share_out(j);
    for (uint32_t i = 0; i < j->n; i++) {
        j->told[j->order[i]] = j->probability[i];
        if (j->probability[i] > j->probability[best]) best = i;
    }
    return j->order[best];
}
