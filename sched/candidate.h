/* candidate.h: a task model for traffic that has moved, trained beside the serving in one
 * SCHED_IDLE thread: the old model corrected by labelled rows, then tested, in the shadow, on rows
 * held out of them and on the old validation set.
 *
 * Rows: every fifth of `fresh` is held out, the rest is learnt, with `replay` beside it, so that
 * what was known before is not forgotten. Files may hold more labels than the model: that is an
 * error of theirs, and the candidate's.
 * Threads: start, done and take from one thread. The old model must outlive the job.
 */
#ifndef LAC_SCHED_CANDIDATE_H
#define LAC_SCHED_CANDIDATE_H

#include <stdbool.h>

#include "models/task_score.h"
#include "models/task_set.h"

struct candidate_job;

struct candidate_test {
    struct task_scores old, new;
};

struct candidate_result {
    enum status status; /* of training and tests; `model` is NULL unless OK */
    struct error error;
    struct task_model *model;
    uint32_t n_fresh, n_replay;       /* learnt from */
    struct candidate_test fresh, old; /* held-out fresh rows; the old validation set (n 0: none) */
    double seconds;
};

/* Fresh and replay rows are taken over (zeroed), also on failure. Files may be NULL. */
LAC_MUST_USE enum status candidate_start(const struct task_model *old, struct task_set *fresh,
                                         struct task_set *replay, const char *replay_path,
                                         const char *validation_path, struct candidate_job **out,
                                         struct error *e);
bool candidate_done(const struct candidate_job *job);
/* Waits for the end if need be; frees the job. The model becomes the caller's. */
void candidate_take(struct candidate_job *job, struct candidate_result *out);
/* Is the new model the better one: on fresh rows more accurate, and on the old ones at most a
 * point of macro-F1 worse? */
bool candidate_better(const struct candidate_result *r);

#endif
