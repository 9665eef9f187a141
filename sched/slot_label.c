/* slot_label.c: the part of a slot's life that a request with labels has to itself. */
#include <string.h>

#include <xxhash.h>

#include "core/check.h"
#include "sched/label_audit.h"
#include "sched/policy.h"
#include "sched/slot_impl.h"

bool slot_take_label_memory(struct slots *t, struct slot *s, const struct slot_start *w) {
    const struct prepared *p = w->prepared;
    struct label_job *j = p->label;
    const uint32_t n = (uint32_t)p->tokens.n;
    s->label = j;
    s->n_prompt = n;
    s->score_prompt = false;
    s->n_cached = s->n_reserved = s->max_tokens = 0;
    if (j->set != NULL) {
        if (!slot_reserve(t->cfg.kv, pages_for(n))) return false;
        s->n_reserved = pages_for(n);
        slot_take_choices(t, s, 1);
        sequence_start(&slot_choice(t, s, 0)->sequence, p->tokens.ids, n);
        s->n_prefill = n;
        return true;
    }
    /* The question but for its last token; each lane has room for the longest label behind it. */
    uint32_t lanes = j->n < LABEL_LANES ? j->n : LABEL_LANES;
    if (lanes > t->n_choices_free) lanes = t->n_choices_free;
    s->n_prefill = n - 1;
    s->max_tokens = 1;
    for (; lanes > 0; lanes /= 2) {
        const uint64_t pages = prepare_pages(n - 1, j->longest, lanes);
        if (pages > UINT32_MAX || !slot_reserve(t->cfg.kv, (uint32_t)pages)) continue;
        s->n_reserved = (uint32_t)pages;
        break;
    }
    if (lanes == 0) return false;
    slot_take_choices(t, s, lanes);
    struct sequence *q = &slot_choice(t, s, 0)->sequence;
    sequence_start(q, p->tokens.ids, n - 1);
    s->n_cached = sequence_adopt_prefix(q, t->cfg.kv, s->n_prefill - 1);
    slot_unreserve(t->cfg.kv, s->n_cached / KV_PAGE_TOKENS);
    s->n_reserved -= s->n_cached / KV_PAGE_TOKENS;
    j->next = j->n_scored = 0;
    return true;
}

static void finish(struct slots *t, struct slot *s, uint64_t now) {
    if (s->answer->silent) {
        slot_abort(t, s, now);
        return;
    }
    const uint32_t label = label_winner(s->label);
    const struct text *text = &s->request->labels[label];
    if (s->first_token_ns == 0) s->first_token_ns = now;
    metric_time(t->cfg.metrics, METRIC_TIME_TO_FIRST_TOKEN, 0, now - s->request->received_ns);
    answer_delta(s->answer, 0, text->data, text->len, NULL, 0);
    slot_record(t, s, now, FLIGHT_LABEL, s->exit_layer, label,
                (uint64_t)((double)s->label->told[label] * 1e6));
    slot_record(t, s, now, FLIGHT_CHOICE_END, 0, (uint32_t)FINISH_STOP, 0);
    answer_finish(s->answer, 0, FINISH_STOP);
    if (s->answer->silent) { /* the client left inside a call */
        slot_abort(t, s, now);
        return;
    }
    slot_record(t, s, now, FLIGHT_FINISH, 0, 0, 0);
    slot_finish_labelled(t, s, label, now);
}

static void not_a_number(struct slots *t, struct slot *s, uint64_t now) {
    struct error e;
    (void)error_set(&e, STATUS_BAD_NUMBER, NULL, "the model's output is not a number");
    slot_fail(t, s, &e, now);
}

static uint32_t set_of(const struct slots *t, const struct slot *s) {
    return label_audits_index(t->cfg.audits, s->label->set);
}

bool slot_look_full_depth(const struct slots *t, const struct slot *s) {
    return s->epoch != NULL && policy_is_full_depth(s->epoch, set_of(t, s));
}

/* All texts of a client with one seed would be audited, or none: the text is part of the draw. */
bool slot_look_audited(struct slots *t, const struct slot *s) {
    if (t->cfg.audits->sets == NULL || slot_look_full_depth(t, s)) return false;
    const uint32_t *tokens = slot_choice(t, s, 0)->sequence.tokens;
    const uint64_t text = XXH3_64bits(tokens, s->n_prompt * sizeof *tokens);
    return audit_wanted(&t->cfg.audits->sets[set_of(t, s)], s->seed ^ text, 0);
}

static void audit_look(struct slots *t, struct slot *s, const struct label_look *look,
                       uint64_t now) {
    if (!look->early || !look->audit || look->last_label == STEP_NONE) return;
    const float *p = s->label->probability;
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->label->n; i++)
        if (p[i] > p[best]) best = i;
    const bool differed = look->last_label != best;
    slot_record(t, s, now, FLIGHT_AUDIT, 0, differed, 0);
    metric_add(t->cfg.metrics, METRIC_AUDIT,
               metric_audit(METRIC_AUDIT_LABEL, slot_task(s),
                            differed ? METRIC_AUDIT_DIFFERED : METRIC_AUDIT_AGREED),
               1);
    t->cfg.audits->refuted |= audit_add(&t->cfg.audits->sets[set_of(t, s)], differed);
}

void slot_look_done(struct slots *t, struct slot *s, const struct label_look *look, uint64_t now) {
    CHECK(look != NULL);
    if (look->bad) {
        not_a_number(t, s, now);
        return;
    }
    s->exit_layer = look->layer;
    metric_layer(t->cfg.metrics, METRIC_EXIT_LAYER, 0, look->layer);
    audit_look(t, s, look, now);
    finish(t, s, now);
}

void slot_question_done(struct slots *t, struct slot *s) {
    struct sequence *q = &slot_choice(t, s, 0)->sequence;
    for (uint32_t c = 1; c < s->n_choices; c++)
        sequence_fork(&slot_choice(t, s, c)->sequence, q, t->cfg.kv);
    s->phase = SLOT_SCORE;
}

uint32_t slot_score_rows(const struct slot *s) {
    uint32_t n = 0;
    if (s->label->next < s->label->n) (void)label_answer(s->label, s->label->next, &n);
    return n;
}

void slot_score_begin(struct slots *t, struct slot *s, uint32_t c, const uint32_t **targets) {
    struct choice *k = slot_choice(t, s, c);
    uint32_t n;
    k->label = s->label->next++;
    *targets = label_answer(s->label, k->label, &n);
    /* The question's last token, then the label's but for its last. */
    sequence_append(&k->sequence, s->label_last_token);
    for (uint32_t i = 0; i + 1 < n; i++) sequence_append(&k->sequence, (*targets)[i]);
}

void slot_score_done(struct slots *t, struct slot *s, uint32_t c, const struct output *outputs,
                     uint32_t n_outputs, uint64_t now) {
    struct choice *k = slot_choice(t, s, c);
    double score = 0;
    for (uint32_t i = 0; i < n_outputs; i++) {
        if (outputs[i].bad) {
            not_a_number(t, s, now);
            return;
        }
        score += (double)outputs[i].logprob;
    }
    sequence_cut(&k->sequence, s->n_prefill);
    if (label_scored(s->label, k->label, score)) finish(t, s, now);
}
