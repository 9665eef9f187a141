/* feedback_state.h: the inside of feedback, shared by feedback.c and feedback_write.c. */
#ifndef LAC_SCHED_FEEDBACK_STATE_H
#define LAC_SCHED_FEEDBACK_STATE_H

#include "models/drift_watch.h"
#include "models/task_units.h"
#include "sched/feedback.h"

enum { FEEDBACK_SERIES = 3 };

/* A text whose task a client told. */
struct feedback_row {
    char *text;
    uint32_t len;
    uint64_t number; /* of the labels, from 0 */
    char label[TASK_MAX_LABEL_BYTES + 1];
    bool chinese;
};

struct feedback {
    struct feedback_config cfg;
    uint32_t epoch; /* that the numbers below are of */
    struct drift_watch watch;
    struct drift_monitor *right; /* of labelled rows, for the fall of accuracy */
    struct drift_result fall;    /* its newest comparison */
    bool falling;
    uint64_t labels_at_alarm;
    struct task_scores scores;
    struct task_workspace *workspace;
    uint32_t n_ablated, right_ablated; /* labelled rows whose text was there; told right */
    uint32_t right_without[TASK_UNITS_MAX];
    uint64_t n_taken, n_labels; /* ever */
    uint64_t accepted[METRIC_TASK_COUNT], refused[METRIC_TASK_COUNT];
    struct feedback_row rows[FEEDBACK_ROWS]; /* ring by number */
    struct candidate_job *job;
    const struct policy_epoch *job_epoch; /* pinned */
    bool has_result;                      /* of the newest candidate */
    struct candidate_result result;       /* model NULL: published, or it failed */
    uint32_t result_epoch;                /* it was made from */
};

#endif
