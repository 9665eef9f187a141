#include "sched/candidate.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "models/task_train.h"

enum { HOLD_OUT_EVERY = 5 };
static const double MAX_FORGOTTEN = 0.01;

struct candidate_job {
    pthread_t thread;
    atomic_bool done;
    const struct task_model *old;
    struct task_set fresh, held, replay, validation;
    char *replay_path, *validation_path;
    struct candidate_result result;
};

static enum status test(const struct candidate_job *job, const struct task_set *rows,
                        struct candidate_test *t, struct error *e) {
    if (rows->n == 0) return STATUS_OK;
    const enum status st = task_test(job->old, rows, &t->old, NULL, e);
    return st == STATUS_OK ? task_test(job->result.model, rows, &t->new, NULL, e) : st;
}

static enum status hold_out(struct candidate_job *job, struct task_set *from, struct error *e) {
    enum status st = STATUS_OK;
    for (uint32_t i = 0; i < from->n && st == STATUS_OK; i++) {
        const struct task_row *row = &from->rows[i];
        struct task_set *to = i % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1 ? &job->held : &job->fresh;
        st = task_set_add(to, row->text, row->len, from->label[row->label],
                          from->source[row->source], from->lang[row->lang], true, e);
    }
    return st;
}

static enum status work(struct candidate_job *job, struct error *e) {
    struct task_train_options o = task_train_defaults();
    struct candidate_result *r = &job->result;
    enum status st = STATUS_OK;
    o.cost = TASK_ADAPT_COST;
    if (job->replay_path != NULL) st = task_set_load(&job->replay, job->replay_path, true, e);
    if (st == STATUS_OK && job->validation_path != NULL)
        st = task_set_load(&job->validation, job->validation_path, true, e);
    r->n_fresh = job->fresh.n;
    r->n_replay = job->replay.n;
    if (st == STATUS_OK)
        st = task_adapt(job->old, &job->fresh, job->replay.n > 0 ? &job->replay : NULL, &o,
                        &r->model, e);
    if (st == STATUS_OK) st = test(job, &job->held, &r->fresh, e);
    if (st == STATUS_OK) st = test(job, &job->validation, &r->old, e);
    if (st != STATUS_OK) {
        task_model_free(r->model);
        r->model = NULL;
    }
    return st;
}

static void *run(void *arg) {
    struct candidate_job *job = arg;
    const struct sched_param zero = {0};
    /* Where it is not allowed the thread competes with the others; nothing else changes. */
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &zero);
    const uint64_t start = clock_now_ns();
    job->result.status = work(job, &job->result.error);
    job->result.seconds = (double)(clock_now_ns() - start) / 1e9;
    atomic_store(&job->done, true);
    return NULL;
}

static char *copy(const char *s) {
    return s != NULL ? strdup(s) : NULL;
}

static void free_job(struct candidate_job *job) {
    task_set_free(&job->fresh);
    task_set_free(&job->held);
    task_set_free(&job->replay);
    task_set_free(&job->validation);
    free(job->replay_path);
    free(job->validation_path);
    free(job);
}

enum status candidate_start(const struct task_model *old, struct task_set *fresh,
                            struct task_set *replay, const char *replay_path,
                            const char *validation_path, struct candidate_job **out,
                            struct error *e) {
    *out = NULL;
    struct candidate_job *job = calloc(1, sizeof *job);
    enum status st = STATUS_OK;
    if (job == NULL) {
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for a candidate");
        task_set_free(replay);
    } else {
        job->old = old;
        task_set_init(&job->fresh);
        task_set_init(&job->held);
        task_set_init(&job->validation);
        task_set_use_labels(&job->fresh, old);
        task_set_use_labels(&job->held, old);
        task_set_use_labels(&job->validation, old);
        job->replay = *replay;
        job->replay_path = copy(replay_path);
        job->validation_path = copy(validation_path);
        st = hold_out(job, fresh, e);
    }
    memset(replay, 0, sizeof *replay);
    task_set_free(fresh);
    if (st == STATUS_OK && pthread_create(&job->thread, NULL, run, job) != 0)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no thread for a candidate");
    if (st == STATUS_OK)
        *out = job;
    else if (job != NULL)
        free_job(job);
    return st;
}

bool candidate_done(const struct candidate_job *job) {
    return atomic_load(&job->done);
}

void candidate_take(struct candidate_job *job, struct candidate_result *out) {
    pthread_join(job->thread, NULL);
    *out = job->result;
    free_job(job);
}

bool candidate_better(const struct candidate_result *r) {
    if (r->status != STATUS_OK || r->fresh.new.n == 0) return false;
    if (task_scores_accuracy(&r->fresh.new) <= task_scores_accuracy(&r->fresh.old)) return false;
    return r->old.new.n == 0 ||
           task_scores_macro_f1(&r->old.new) >= task_scores_macro_f1(&r->old.old) - MAX_FORGOTTEN;
}
