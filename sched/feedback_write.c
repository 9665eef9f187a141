#include "sched/feedback_state.h"

static void write_uint(struct json_writer *j, const char *key, uint64_t v) {
    json_write_key(j, key);
    json_write_uint(j, v);
}

static void write_double(struct json_writer *j, const char *key, double v) {
    json_write_key(j, key);
    json_write_double(j, v);
}

static void write_bool(struct json_writer *j, const char *key, bool v) {
    json_write_key(j, key);
    json_write_bool(j, v);
}

static void write_presets(const struct policy_epoch *epoch, struct json_writer *j) {
    json_write_key(j, "presets");
    json_write_object(j);
    for (int t = 0; t <= METRIC_TASK_NONE; t++) {
        const struct policy_preset *p =
            t == METRIC_TASK_NONE ? &epoch->presets.middle : &epoch->presets.task[t];
        json_write_key(j, t == METRIC_TASK_NONE ? "middle" : metric_task_name((enum metric_task)t));
        json_write_object(j);
        json_write_key(j, "temperature");
        json_write_float(j, p->temperature);
        json_write_key(j, "top_p");
        json_write_float(j, p->top_p);
        json_write_key(j, "entropy_threshold");
        json_write_float(j, p->entropy_threshold);
        json_write_object_end(j);
    }
    json_write_object_end(j);
}

static void write_scores(struct json_writer *j, const struct task_scores *s) {
    json_write_object(j);
    write_uint(j, "rows", s->n);
    if (s->n > 0) {
        write_double(j, "accuracy", task_scores_accuracy(s));
        write_double(j, "macro_f1", task_scores_macro_f1(s));
        write_double(j, "ece", task_scores_ece(s));
        write_uint(j, "abstained", s->abstained);
        json_write_key(j, "confusion");
        json_write_array(j);
        for (uint32_t t = 0; t < s->n_classes; t++) {
            json_write_array(j);
            for (uint32_t a = 0; a < s->n_classes; a++) json_write_uint(j, s->confusion[t][a]);
            json_write_array_end(j);
        }
        json_write_array_end(j);
    }
    json_write_object_end(j);
}

static void write_ablation(const struct feedback *f, struct json_writer *j) {
    json_write_key(j, "accuracy_lost_without");
    json_write_object(j);
    for (uint32_t u = 0; u < task_units() && f->n_ablated > 0; u++) {
        if (f->right_without[u] == f->right_ablated) continue;
        write_double(j, task_unit_name(u),
                     ((double)f->right_ablated - (double)f->right_without[u]) / f->n_ablated);
    }
    json_write_object_end(j);
}

static void write_feedback(const struct feedback *f, struct json_writer *j) {
    json_write_key(j, "feedback");
    json_write_object(j);
    write_uint(j, "taken", f->n_taken);
    write_uint(j, "labels", f->n_labels);
    json_write_key(j, "of_this_epoch");
    write_scores(j, &f->scores);
    write_bool(j, "falling", f->falling);
    if (f->fall.labelled_now > 0) {
        write_double(j, "accuracy_before", f->fall.accuracy_before);
        write_double(j, "accuracy_now", f->fall.accuracy_now);
        write_double(j, "accuracy_p", f->fall.accuracy_p);
    }
    write_ablation(f, j);
    json_write_key(j, "accepted");
    json_write_object(j);
    for (int t = 0; t < METRIC_TASK_COUNT; t++) {
        if (f->accepted[t] + f->refused[t] == 0) continue;
        json_write_key(j, metric_task_name((enum metric_task)t));
        json_write_object(j);
        write_uint(j, "yes", f->accepted[t]);
        write_uint(j, "no", f->refused[t]);
        json_write_object_end(j);
    }
    json_write_object_end(j);
    json_write_object_end(j);
}

static const char *series_name(uint32_t s) {
    static const char *const names[FEEDBACK_SERIES] = {"confidence", "feature_norm", "unseen"};
    return s < FEEDBACK_SERIES ? names[s] : "classes";
}

static void write_watched(struct json_writer *j, const struct drift_watched *w) {
    const struct drift_result *r = &w->last;
    json_write_object(j);
    write_bool(j, "alarm", w->alarmed);
    if (w->alarmed) {
        write_uint(j, "alarm_row", w->alarm_row);
        json_write_key(j, "alarm_by");
        json_write_string(j, series_name((uint32_t)w->first_alarm.alarm_by));
    }
    for (uint32_t s = 0; s < FEEDBACK_SERIES; s++) {
        json_write_key(j, series_name(s));
        json_write_object(j);
        write_double(j, "ks", r->ks[s]);
        write_double(j, "p", r->ks_p[s]);
        write_double(j, "mean_before", r->mean_before[s]);
        write_double(j, "mean_now", r->mean_now[s]);
        json_write_object_end(j);
    }
    write_double(j, "psi", r->psi);
    write_double(j, "psi_p", r->psi_p);
    json_write_object_end(j);
}

static void write_drift(const struct feedback *f, struct json_writer *j) {
    json_write_key(j, "drift");
    json_write_object(j);
    write_uint(j, "rows", f->watch.rows);
    write_bool(j, "alarm", drift_watch_alarmed(&f->watch));
    for (uint32_t i = 0; i < DRIFT_WATCHES; i++) {
        if (!f->watch.of[i].compared) continue;
        json_write_key(j, drift_watch_name(i));
        write_watched(j, &f->watch.of[i]);
    }
    json_write_object_end(j);
}

static void write_test(struct json_writer *j, const char *key, const struct candidate_test *t) {
    if (t->new.n == 0) return;
    json_write_key(j, key);
    json_write_object(j);
    json_write_key(j, "now");
    write_scores(j, &t->old);
    json_write_key(j, "candidate");
    write_scores(j, &t->new);
    json_write_object_end(j);
}

static void write_candidate(const struct feedback *f, struct json_writer *j) {
    json_write_key(j, "candidate");
    if (f->job != NULL) {
        json_write_object(j);
        json_write_key(j, "state");
        json_write_string(j, "training");
        json_write_object_end(j);
        return;
    }
    if (!f->has_result) {
        json_write_null(j);
        return;
    }
    const struct candidate_result *r = &f->result;
    json_write_object(j);
    json_write_key(j, "state");
    json_write_string(j, r->status != STATUS_OK ? "failed"
                         : r->model != NULL     ? "waits"
                                                : "promoted");
    write_uint(j, "from_epoch", f->result_epoch);
    if (r->status != STATUS_OK) {
        json_write_key(j, "error");
        json_write_string(j, r->error.message);
    } else {
        write_bool(j, "better", candidate_better(r));
        write_uint(j, "fresh_rows", r->n_fresh);
        write_uint(j, "replayed_rows", r->n_replay);
        write_double(j, "seconds", r->seconds);
        write_test(j, "on_fresh_rows", &r->fresh);
        write_test(j, "on_old_rows", &r->old);
    }
    json_write_object_end(j);
}

void feedback_write(const struct feedback *f, struct json_writer *j) {
    const struct policy_epoch *epoch = policy_newest(f->cfg.policy);
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)epoch->model_digest);
    json_write_object(j);
    write_uint(j, "epoch", epoch->number);
    json_write_key(j, "policy");
    json_write_string(j, policy_kind_name(epoch->kind));
    json_write_key(j, "system_fingerprint");
    json_write_string(j, epoch->fingerprint);
    json_write_key(j, "task_model");
    json_write_object(j);
    json_write_key(j, "digest");
    json_write_string(j, digest);
    json_write_key(j, "labels");
    json_write_array(j);
    for (uint32_t c = 0; c < task_model_n_classes(epoch->model); c++)
        json_write_string(j, task_model_label(epoch->model, c));
    json_write_array_end(j);
    json_write_object_end(j);
    write_bool(j, "can_revert", policy_can_revert(f->cfg.policy));
    write_presets(epoch, j);
    write_feedback(f, j);
    write_drift(f, j);
    write_candidate(f, j);
    json_write_object_end(j);
}
