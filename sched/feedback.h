/* feedback.h: how well the task model does on live traffic, and what follows from it.
 *
 * Every classified request is a row of the drift monitors (models/drift_watch.h: confidence, norm
 * of the features, share of unseen terms, classes; all rows and each language), which start anew
 * with each policy epoch. Feedback names a request by its answer's id and says which task it was
 * (`label`, once for each request), whether the answer was of use (`accepted`), or both. Labels
 * give the confusion matrix, the accuracy and its fall (p < 0.01 against the epoch's first labels),
 * and the accuracy that would be lost or won without each feature; they are those of requests that
 * the newest epoch classified. Labelled texts are kept, the newest FEEDBACK_ROWS, as rows to learn
 * from.
 *
 * When drift and falling accuracy meet, and as many rows with a label have come since the alarm as
 * `adapt_rows`, a candidate is trained and tested (sched/candidate.h). It waits for
 * feedback_promote, or, under auto_promote, is published at once if it is the better one.
 *
 * Memory: bounded; texts are taken from the general heap as feedback comes.
 * Threads: the loop thread only.
 */
#ifndef LAC_SCHED_FEEDBACK_H
#define LAC_SCHED_FEEDBACK_H

#include "core/json_writer.h"
#include "core/log.h"
#include "sched/candidate.h"
#include "sched/explain.h"
#include "sched/policy.h"

enum { FEEDBACK_ROWS = 4096, FEEDBACK_REFERENCE_ROWS = 100, FEEDBACK_WINDOW_ROWS = 50 };

struct feedback_config {
    struct policy *policy;
    struct explain *explain;
    struct metrics *metrics;
    const struct log *log;                     /* NULL: silent */
    uint32_t drift_reference, drift_window;    /* rows; 0: 300 and 100 */
    uint32_t adapt_rows;                       /* 0: 200 */
    const char *replay_path, *validation_path; /* rows of before; may be NULL; outlive it */
    bool auto_promote;
};

struct feedback;

LAC_MUST_USE enum status feedback_open(const struct feedback_config *cfg, struct feedback **out,
                                       struct error *e);
/* Waits for a candidate in training. */
void feedback_close(struct feedback *f); /* NULL: nothing */

/* A request was classified by that epoch. */
void feedback_served(struct feedback *f, const struct policy_epoch *epoch,
                     const struct task_verdict *v);

/* STATUS_NOT_FOUND (field id): not among the newest requests. STATUS_INVALID: neither label nor
 * accepted, a label that the task model does not have, or one for a request that has one. Writes
 * what was made of it, as a JSON object. */
LAC_MUST_USE enum status feedback_take(struct feedback *f, const struct request_feedback *in,
                                       struct json_writer *j, struct error *e);

/* The label heads of this set run at full depth from now on: a new epoch, of the same task model,
 * so that what was counted stays. */
LAC_MUST_USE enum status feedback_full_depth(struct feedback *f, uint32_t label_set,
                                             struct error *e);

/* Looks after a candidate in training; cheap. */
void feedback_tick(struct feedback *f);

/* Publishes the candidate. STATUS_NOT_FOUND: there is none. */
LAC_MUST_USE enum status feedback_promote(struct feedback *f, struct error *e);
/* Publishes the model that was replaced last. STATUS_NOT_FOUND: none was. */
LAC_MUST_USE enum status feedback_revert(struct feedback *f, struct error *e);

/* The policy as it stands, and all of the above, as a JSON object, about 6 KB. */
void feedback_write(const struct feedback *f, struct json_writer *j);

#endif
