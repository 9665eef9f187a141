/* labels.c: spans that are only classified: after a layer with a head, is the message's mean state
 * enough? core/heads.c is the reference of what is computed here. */
#include <math.h>
#include <string.h>

#include "core/check.h"
#include "core/cpu/cpu_state.h"

enum status labels_publish(struct cpu_backend *b, uint64_t epoch, const struct heads *heads,
                           struct error *e) {
    const struct plan *p = b->cfg.plan;
    struct cpu_epoch *place = NULL;
    CHECK(epoch != 0 && labels_heads(b, epoch) == NULL);
    for (uint32_t i = 0; i < CPU_EPOCHS && place == NULL; i++)
        if (b->epochs[i].epoch == 0) place = &b->epochs[i];
    if (place == NULL)
        return error_set(e, STATUS_NO_MEMORY, "heads", "%d epochs are in use", CPU_EPOCHS);
    if (heads->d_model != p->d_model)
        return error_set(e, STATUS_UNSUPPORTED, "heads", "heads for states of %u, not of %u",
                         heads->d_model, p->d_model);
    for (uint32_t i = 0; i < heads->n_labels; i++) {
        const struct label_head *h = &heads->labels[i];
        if (h->layer == 0 || h->layer > p->n_layers || h->n_labels > HEADS_MAX_LABELS)
            return error_set(e, STATUS_UNSUPPORTED, "heads",
                             "a head of %u labels after layer %u of %u", h->n_labels, h->layer,
                             p->n_layers);
    }
    *place = (struct cpu_epoch){epoch, heads};
    return STATUS_OK;
}

void labels_retire(struct cpu_backend *b, uint64_t epoch) {
    for (uint32_t i = 0; i < CPU_EPOCHS; i++)
        if (b->epochs[i].epoch == epoch) b->epochs[i] = (struct cpu_epoch){0};
}

const struct heads *labels_heads(const struct cpu_backend *b, uint64_t epoch) {
    for (uint32_t i = 0; i < CPU_EPOCHS; i++)
        if (epoch != 0 && b->epochs[i].epoch == epoch) return b->epochs[i].heads;
    return NULL;
}

static const struct exit_policy *policy_of(const struct cpu_backend *b,
                                           const struct label_look *look) {
    return &b->step->exits[b->step->spans[look->span].exit];
}

static bool decides(const struct cpu_backend *b, const struct span *span, uint32_t layer) {
    return b->step->profiles[span->profile].decision_points[layer / 64] >> layer % 64 & 1;
}

/* The heads that a look names must be there: one per decision point, of its layer. */
static void check_look(const struct cpu_backend *b, const struct label_look *look) {
    const struct step *s = b->step;
    const struct heads *heads = labels_heads(b, s->epoch);
    CHECK(look->span < s->n_spans && heads != NULL && look->probability != NULL);
    const struct span *span = &s->spans[look->span];
    CHECK(span->exit < s->n_exits);
    CHECK(look->first_row >= span->first_row &&
          look->first_row + look->n_rows <= span->first_row + span->n_tokens);
    uint32_t at = policy_of(b, look)->head;
    for (uint32_t l = 0; l < b->cfg.plan->n_layers; l++) {
        if (!decides(b, span, l)) continue;
        CHECK(at < heads->n_labels && heads->labels[at].layer == l + 1);
        CHECK(heads->labels[at].n_labels == heads->labels[policy_of(b, look)->head].n_labels);
        at++;
    }
    const uint32_t last = at - 1;
    CHECK(at > policy_of(b, look)->head && at - policy_of(b, look)->head <= 32);
    CHECK(heads->labels[last].layer == b->last_layer[span->profile] + 1);
}

void labels_prepare(struct cpu_backend *b) {
    const struct step *s = b->step;
    CHECK(s->n_looks <= b->cfg.limits.max_looks);
    memset(b->span_left, 0, s->n_spans * sizeof *b->span_left);
    for (uint32_t i = 0; i < s->n_looks; i++) {
        struct label_look *look = &s->looks[i];
        check_look(b, look);
        memset(b->needed + look->first_row, 1, look->n_rows);
        memset(b->look_sum + (size_t)i * HEADS_MAX_LABELS, 0,
               HEADS_MAX_LABELS * sizeof *b->look_sum);
        b->look_rank[i] = 0;
        look->early = false;
        look->last_label = STEP_NONE;
    }
}

/* What the last head says of a span that has its answer already. */
static uint32_t last_label(const struct label_head *head, const float *sum, const float *prior) {
    float p[HEADS_MAX_LABELS];
    if (isnan(label_head_probabilities(head, sum, prior, p))) return STEP_NONE;
    uint32_t best = 0;
    for (uint32_t c = 1; c < head->n_labels; c++)
        if (p[c] > p[best]) best = c;
    return best;
}

static void look_task(void *arg, uint32_t task, uint32_t worker) {
    struct cpu_backend *b = arg;
    const struct plan *p = b->cfg.plan;
    const uint32_t d = p->d_model, layer = b->look_layer;
    struct label_look *look = &b->step->looks[task];
    const struct span *span = &b->step->spans[look->span];
    if (b->span_left[look->span] || !decides(b, span, layer)) return;
    const struct exit_policy *policy = policy_of(b, look);
    const uint32_t rank = b->look_rank[task]++;
    const struct label_head *head = &labels_heads(b, b->step->epoch)->labels[policy->head + rank];
    float *mean = scratch_of(b, worker), *row = mean + d;
    float *sum = b->look_sum + (size_t)task * HEADS_MAX_LABELS;
    memset(mean, 0, d * sizeof *mean);
    for (uint32_t r = look->first_row; r < look->first_row + look->n_rows; r++) {
        b->vec->rms_norm(b->x + (size_t)r * d, b->ones, d, p->norm_epsilon, row);
        b->vec->add_scaled(mean, row, 1, d);
    }
    heads_mean_finish(mean, look->n_rows, d);
    label_head_add(head, mean, d, b->vec->dot, sum);
    const bool last = layer == b->last_layer[span->profile];
    if (look->early) { /* audited */
        if (last) look->last_label = last_label(head, sum, look->prior);
        b->span_left[look->span] = last;
        return;
    }
    const float confidence = label_head_probabilities(head, sum, look->prior, look->probability);
    look->layer = (uint16_t)(layer + 1);
    look->bad = isnan(confidence) != 0;
    look->early = !last && !look->bad && confidence >= policy->threshold[rank];
    if (look->bad || last || (look->early && !look->audit)) b->span_left[look->span] = 1;
}

void labels_run(struct cpu_backend *b, uint32_t layer) {
    bool any = false;
    for (uint32_t i = 0; i < b->step->n_looks && !any; i++) {
        const uint32_t span = b->step->looks[i].span;
        any = !b->span_left[span] && decides(b, &b->step->spans[span], layer);
    }
    if (!any) return;
    b->look_layer = layer;
    phase(b, look_task, b->step->n_looks);
}
