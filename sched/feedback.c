#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "sched/feedback_state.h"

enum { ADAPT_ROWS = 200, RETRY_ROWS = 10 };

/* ---- open and close ---- */

/* Monitors and scores of a new epoch. */
static enum status begin_epoch(struct feedback *f, struct error *e) {
    const struct policy_epoch *epoch = policy_newest(f->cfg.policy);
    const uint32_t k = task_model_n_classes(epoch->model);
    struct drift_options o = drift_defaults(FEEDBACK_SERIES, k);
    if (f->cfg.drift_reference != 0) o.reference_rows = f->cfg.drift_reference;
    if (f->cfg.drift_window != 0) o.window_rows = f->cfg.drift_window;
    struct drift_options labels = drift_defaults(0, k);
    labels.reference_rows = FEEDBACK_REFERENCE_ROWS;
    labels.window_rows = FEEDBACK_WINDOW_ROWS;
    struct drift_watch watch;
    struct drift_monitor *right;
    enum status st = drift_watch_open(&watch, &o, e);
    if (st != STATUS_OK) return st;
    st = drift_new(&labels, &right, e);
    if (st != STATUS_OK) {
        drift_watch_close(&watch);
        return st;
    }
    drift_watch_close(&f->watch);
    drift_free(f->right);
    f->watch = watch;
    f->right = right;
    memset(&f->fall, 0, sizeof f->fall);
    f->falling = false;
    f->epoch = epoch->number;
    task_scores_init(&f->scores, k);
    f->n_ablated = f->right_ablated = 0;
    memset(f->right_without, 0, sizeof f->right_without);
    metric_set(f->cfg.metrics, METRIC_POLICY_EPOCH, 0, epoch->number);
    metric_set(f->cfg.metrics, METRIC_DRIFT_ALARM, 0, 0);
    return STATUS_OK;
}

enum status feedback_open(const struct feedback_config *cfg, struct feedback **out,
                          struct error *e) {
    *out = NULL;
    struct feedback *f = calloc(1, sizeof *f);
    if (f == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for feedback");
    f->cfg = *cfg;
    if (f->cfg.adapt_rows == 0) f->cfg.adapt_rows = ADAPT_ROWS;
    CHECK(f->cfg.adapt_rows <= FEEDBACK_ROWS);
    enum status st = begin_epoch(f, e);
    if (st == STATUS_OK) st = task_workspace_new(&f->workspace, e);
    if (st == STATUS_OK)
        *out = f;
    else
        feedback_close(f);
    return st;
}

static void end_job(struct feedback *f) {
    task_model_free(f->result.model);
    f->has_result = true;
    f->result_epoch = f->job_epoch->number;
    candidate_take(f->job, &f->result);
    policy_unpin(f->cfg.policy, f->job_epoch);
    f->job = NULL;
    f->job_epoch = NULL;
}

void feedback_close(struct feedback *f) {
    if (f == NULL) return;
    if (f->job != NULL) end_job(f);
    task_model_free(f->result.model);
    for (uint32_t i = 0; i < FEEDBACK_ROWS; i++) free(f->rows[i].text);
    drift_watch_close(&f->watch);
    drift_free(f->right);
    task_workspace_free(f->workspace);
    free(f);
}

/* ---- candidates ---- */

static enum status add_row(struct task_set *to, const struct feedback_row *row, struct error *e) {
    return task_set_add(to, row->text, row->len, row->label, "feedback", row->chinese ? "zh" : "en",
                        true, e);
}

/* Fresh rows: the newest since the alarm. Older ones are replayed. */
static enum status gather(const struct feedback *f, struct task_set *fresh, struct task_set *replay,
                          struct error *e) {
    enum status st = STATUS_OK;
    const uint64_t first = f->n_labels > FEEDBACK_ROWS ? f->n_labels - FEEDBACK_ROWS : 0;
    for (uint64_t n = first; n < f->n_labels && st == STATUS_OK; n++) {
        const struct feedback_row *row = &f->rows[n % FEEDBACK_ROWS];
        if (row->text == NULL) continue;
        st = add_row(n >= f->labels_at_alarm ? fresh : replay, row, e);
        /* A label that this epoch's model does not have is of no use to it. */
        if (st == STATUS_INVALID) st = STATUS_OK;
    }
    return st;
}

static void start_candidate(struct feedback *f) {
    struct error e = {0};
    struct task_set fresh, replay;
    const struct policy_epoch *epoch = policy_pin(f->cfg.policy);
    task_set_init(&fresh);
    task_set_init(&replay);
    task_set_use_labels(&fresh, epoch->model);
    task_set_use_labels(&replay, epoch->model);
    enum status st = gather(f, &fresh, &replay, &e);
    if (st == STATUS_OK && fresh.n >= f->cfg.adapt_rows)
        st = candidate_start(epoch->model, &fresh, &replay, f->cfg.replay_path,
                             f->cfg.validation_path, &f->job, &e);
    task_set_free(&fresh);
    task_set_free(&replay);
    if (f->job != NULL) {
        f->job_epoch = epoch;
        log_write(f->cfg.log, LOG_WARN,
                  "task policy: prompts have moved and accuracy falls (%.3f, was %.3f): training "
                  "a candidate",
                  f->fall.accuracy_now, f->fall.accuracy_before);
        return;
    }
    policy_unpin(f->cfg.policy, epoch);
    if (st != STATUS_OK)
        log_write(f->cfg.log, LOG_ERROR, "task policy: no candidate: %s", e.message);
}

/* One candidate for each epoch: a second would learn from the same. */
static void consider_candidate(struct feedback *f) {
    if (f->job != NULL || !f->falling || !drift_watch_alarmed(&f->watch)) return;
    if (f->has_result && f->result_epoch == f->epoch) return;
    const uint64_t fresh = f->n_labels - f->labels_at_alarm;
    /* Some of them may have lost their texts; then it takes more, and is not tried each time. */
    if (fresh >= f->cfg.adapt_rows && (fresh - f->cfg.adapt_rows) % RETRY_ROWS == 0)
        start_candidate(f);
}

static enum status publish(struct feedback *f, struct error *e) {
    struct task_model *m = f->result.model;
    f->result.model = NULL;
    enum status st = policy_publish(f->cfg.policy, m, e);
    return st == STATUS_OK ? begin_epoch(f, e) : st;
}

enum status feedback_promote(struct feedback *f, struct error *e) {
    if (f->result.model == NULL)
        return error_set(e, STATUS_NOT_FOUND, NULL, "there is no candidate to promote");
    const enum status st = publish(f, e);
    if (st == STATUS_OK)
        log_write(f->cfg.log, LOG_WARN, "task policy: candidate promoted, epoch %u", f->epoch);
    return st;
}

enum status feedback_revert(struct feedback *f, struct error *e) {
    enum status st = policy_revert(f->cfg.policy, e);
    if (st == STATUS_OK) st = begin_epoch(f, e);
    if (st == STATUS_OK)
        log_write(f->cfg.log, LOG_WARN, "task policy: reverted, epoch %u", f->epoch);
    return st;
}

enum status feedback_full_depth(struct feedback *f, uint32_t label_set, struct error *e) {
    const enum status st = policy_full_depth(f->cfg.policy, label_set, e);
    if (st != STATUS_OK) return st;
    const uint32_t epoch = policy_newest(f->cfg.policy)->number;
    if (f->result_epoch == f->epoch) f->result_epoch = epoch;
    f->epoch = epoch;
    metric_set(f->cfg.metrics, METRIC_POLICY_EPOCH, 0, epoch);
    return STATUS_OK;
}

void feedback_tick(struct feedback *f) {
    if (f->job == NULL || !candidate_done(f->job)) return;
    end_job(f);
    const struct candidate_result *r = &f->result;
    struct error e = {0};
    if (r->status != STATUS_OK) {
        log_write(f->cfg.log, LOG_ERROR, "task policy: no candidate: %s", r->error.message);
        return;
    }
    const bool better = candidate_better(r);
    log_write(f->cfg.log, LOG_WARN,
              "task policy: a candidate of %u rows after %.1f s: accuracy on held-out fresh rows "
              "%.3f (now %.3f), macro-F1 on old rows %.3f (now %.3f): %s",
              r->n_fresh, r->seconds, task_scores_accuracy(&r->fresh.new),
              task_scores_accuracy(&r->fresh.old), task_scores_macro_f1(&r->old.new),
              task_scores_macro_f1(&r->old.old),
              !better               ? "not better"
              : f->cfg.auto_promote ? "better, promoted"
                                    : "better, waits for laconic policy --promote");
    if (better && f->cfg.auto_promote && feedback_promote(f, &e) != STATUS_OK)
        log_write(f->cfg.log, LOG_ERROR, "task policy: not promoted: %s", e.message);
}

/* ---- what was served ---- */

void feedback_served(struct feedback *f, const struct policy_epoch *epoch,
                     const struct task_verdict *v) {
    if (epoch->number != f->epoch) return;
    const struct drift_row row = {
        .class = v->class, .value = {v->confidence, v->norm, v->unseen}, .right = DRIFT_UNKNOWN};
    const bool alarmed = drift_watch_alarmed(&f->watch);
    const bool raised = drift_watch_add(&f->watch, &row, v->han > 0.3f);
    const struct drift_watched *all = &f->watch.of[DRIFT_WATCH_ALL];
    if (all->compared) metric_set(f->cfg.metrics, METRIC_DRIFT_P, 0, all->last.p_least);
    if (!raised || alarmed) return;
    f->labels_at_alarm = f->n_labels;
    metric_set(f->cfg.metrics, METRIC_DRIFT_ALARM, 0, 1);
    log_write(f->cfg.log, LOG_WARN,
              "task policy: prompts have moved since epoch %u began (after %llu rows); label some "
              "by POST /v1/feedback",
              f->epoch, (unsigned long long)f->watch.rows);
}

/* ---- feedback ---- */

static void ablate(struct feedback *f, const struct task_model *m, struct text text, uint32_t truth,
                   bool right) {
    uint32_t answer[TASK_UNITS_MAX];
    struct task_features features;
    task_features_extract(f->workspace, task_model_words(m), text.data, text.len, &features);
    task_units_without(m, &features, answer);
    f->n_ablated++;
    f->right_ablated += right;
    for (uint32_t u = 0; u < task_units(); u++) f->right_without[u] += answer[u] == truth;
}

static void keep_row(struct feedback *f, struct text text, const char *label, bool chinese) {
    struct feedback_row *row = &f->rows[f->n_labels % FEEDBACK_ROWS];
    free(row->text);
    *row = (struct feedback_row){.number = f->n_labels, .chinese = chinese};
    f->n_labels++;
    row->text = text.len > 0 ? malloc(text.len) : NULL;
    if (row->text == NULL) return;
    memcpy(row->text, text.data, text.len);
    row->len = (uint32_t)text.len;
    memcpy(row->label, label, strlen(label) + 1);
}

static void count_label(struct feedback *f, const struct explain_record *r, uint32_t truth) {
    const struct policy_epoch *epoch = policy_newest(f->cfg.policy);
    const struct task_verdict *v = &r->decision.verdict;
    const struct text text = explain_text(f->cfg.explain, r);
    keep_row(f, text, task_model_label(epoch->model, truth), v->han > 0.3f);
    if (!r->decision.classified || r->epoch != f->epoch) return;
    const bool right = v->class == truth;
    task_scores_add(&f->scores, truth, v->probability, task_model_abstain_below(epoch->model));
    metric_set(f->cfg.metrics, METRIC_TASK_ACCURACY, 0, task_scores_accuracy(&f->scores));
    if (text.len > 0) ablate(f, epoch->model, text, truth, right);
    const struct drift_row row = {.class = v->class, .right = right ? DRIFT_RIGHT : DRIFT_WRONG};
    if (drift_add(f->right, &row, &f->fall)) f->falling = f->fall.falling;
    consider_candidate(f);
}

static enum status bad_label(const struct task_model *m, struct error *e) {
    char names[160] = "";
    for (uint32_t c = 0, at = 0; c < task_model_n_classes(m) && at < sizeof names - 40; c++)
        at += (uint32_t)snprintf(names + at, sizeof names - at, "%s%s", c > 0 ? ", " : "",
                                 task_model_label(m, c));
    return error_set(e, STATUS_INVALID, "label", "label must be one of the task model's: %s",
                     names);
}

enum status feedback_take(struct feedback *f, const struct request_feedback *in,
                          struct json_writer *j, struct error *e) {
    const struct task_model *m = policy_newest(f->cfg.policy)->model;
    int truth = -1;
    if (in->label.len == 0 && !in->has_accepted)
        return error_set(e, STATUS_INVALID, "label", "label or accepted must be given");
    if (in->label.len > 0) {
        char label[TASK_MAX_LABEL_BYTES + 1];
        if (in->label.len >= sizeof label) return bad_label(m, e);
        memcpy(label, in->label.data, in->label.len);
        label[in->label.len] = '\0';
        truth = task_model_class(m, label);
        if (truth < 0) return bad_label(m, e);
    }
    const struct explain_record *r = explain_find(f->cfg.explain, in->id, 0);
    if (r == NULL)
        return error_set(e, STATUS_NOT_FOUND, "id", "no request of that id is among the newest %d",
                         EXPLAIN_RECORDS);
    if (truth >= 0 && r->labelled)
        return error_set(e, STATUS_INVALID, "label", "that request has its label already");
    f->n_taken++;
    metric_add(f->cfg.metrics, METRIC_FEEDBACK, 0, 1);
    if (in->has_accepted) (in->accepted ? f->accepted : f->refused)[r->decision.task]++;
    if (truth >= 0) {
        explain_mark_labelled(f->cfg.explain, r);
        count_label(f, r, (uint32_t)truth);
    }
    json_write_object(j);
    json_write_key(j, "id");
    json_write_string_n(j, in->id.data, in->id.len);
    json_write_key(j, "task_type");
    json_write_string(j, metric_task_name(r->decision.task));
    if (truth >= 0) {
        json_write_key(j, "label");
        json_write_string(j, task_model_label(m, (uint32_t)truth));
        if (r->decision.classified) {
            json_write_key(j, "likeliest");
            json_write_string(j, r->labels[r->decision.verdict.class]);
        }
    }
    json_write_key(j, "labels");
    json_write_uint(j, f->n_labels);
    json_write_object_end(j);
    return STATUS_OK;
}
