/* policy.h: policy epochs: what may change an answer beyond what its request says, and the task of
 * each prompt.
 *
 * An epoch is one immutable set: the policy, the presets, the task model, and which sets of label
 * heads run at full depth because their audits said so (sched/audit.h). Epochs are numbered from
 * 1; a request pins the newest when it is submitted and keeps it to its end, whatever is published
 * meanwhile. The fingerprint names all of an epoch that can change an answer, so that equal sets
 * have equal fingerprints, in another process too: under `exact` with the built-in presets it is
 * that of the build, model and numerics alone.
 *
 * The task of a prompt: the client's word (laconic.task_type), else the task model's, from the last
 * user message. Presets (DESIGN.md 5) fill the fields that the client left unset: under `adaptive`
 * for every request, under `exact` only where the client named the task; regulation, where a
 * request asks for it, takes their place. A prompt whose task is not
 * clear (the model abstains, knows the task by a name of its own, or there is no text) takes the
 * middle preset. The rollback monitor, where it was calibrated, watches every answer under
 * `adaptive`, unless the request says otherwise.
 *
 * Threads: policy_decide any, up to n_workspaces at once; all else the loop thread. Nothing here
 * allocates but open, publish and revert.
 */
#ifndef LAC_SCHED_POLICY_H
#define LAC_SCHED_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/metric.h"
#include "core/request.h"
#include "core/status.h"
#include "models/task_model.h"

enum { POLICY_MAX_WORKSPACES = 32, POLICY_FINGERPRINT_BYTES = 32, POLICY_MAX_LABEL_SETS = 128 };

enum policy_kind { POLICY_EXACT, POLICY_ADAPTIVE };

struct policy_preset {
    float temperature;       /* 0 .. 2; 0: no sampling */
    float top_p;             /* above 0, at most 1 */
    float entropy_threshold; /* nats, 0 .. 20: of rollback rule `fixed` */
};

struct policy_presets {
    struct policy_preset task[METRIC_TASK_NONE];
    struct policy_preset middle;
};

struct policy_epoch {
    uint32_t number;
    enum policy_kind kind;
    struct policy_presets presets;
    const struct task_model *model;
    enum metric_task task_of[TASK_MAX_CLASSES]; /* of the model's classes; NONE: another name */
    uint64_t model_digest;
    uint64_t
        full_depth[POLICY_MAX_LABEL_SETS / 64]; /* bit i: set i of label heads never ends early */
    char fingerprint[POLICY_FINGERPRINT_BYTES];
};

enum policy_by { POLICY_BY_NOBODY, POLICY_BY_CLIENT, POLICY_BY_MODEL };

/* What was decided for a request, and why. */
struct policy_decision {
    enum metric_task task; /* METRIC_TASK_NONE: not clear */
    enum policy_by by;
    bool classified; /* the model was asked: `verdict` is there */
    struct task_verdict verdict;
    uint64_t classify_ns;
    uint32_t set; /* request fields that the preset filled: bits of enum request_field */
    float temperature, top_p, entropy_threshold; /* those it filled */
};

struct policy_config {
    enum policy_kind kind;
    struct policy_presets presets;
    uint64_t identity;     /* of build, model and numerics */
    uint32_t n_workspaces; /* of policy_decide, 1 .. POLICY_MAX_WORKSPACES; 1 MB each */
};

struct policy;

struct policy_presets policy_default_presets(void);

/* Publishes epoch 1. The model is taken over, also on failure. */
LAC_MUST_USE enum status policy_open(const struct policy_config *cfg, struct task_model *model,
                                     struct policy **out, struct error *e);
/* No epoch may be pinned. */
void policy_close(struct policy *p); /* NULL: nothing */

const struct policy_epoch *policy_newest(const struct policy *p);
/* The newest, which stays until it is unpinned. */
const struct policy_epoch *policy_pin(struct policy *p);
void policy_unpin(struct policy *p, const struct policy_epoch *epoch);

/* A new epoch with this model, which is taken over, also on failure; then nothing has changed. */
LAC_MUST_USE enum status policy_publish(struct policy *p, struct task_model *model,
                                        struct error *e);
/* A new epoch with the model that the newest one replaced. STATUS_NOT_FOUND: it replaced none. */
LAC_MUST_USE enum status policy_revert(struct policy *p, struct error *e);
bool policy_can_revert(const struct policy *p);
/* A new epoch in which that set of label heads runs at full depth; it stays so in all that follow.
 */
LAC_MUST_USE enum status policy_full_depth(struct policy *p, uint32_t label_set, struct error *e);
static inline bool policy_is_full_depth(const struct policy_epoch *epoch, uint32_t label_set) {
    return epoch->full_depth[label_set / 64] >> label_set % 64 & 1;
}

/* Before the request is prepared: under `adaptive` the rollback monitor watches answers that nobody
 * spoke of, where it was calibrated. */
void policy_watch(const struct policy_epoch *epoch, bool calibrated, struct request *r);
/* The task of the request's prompt. r: CHAT or COMPLETION. */
void policy_decide(struct policy *p, const struct policy_epoch *epoch, const struct request *r,
                   struct policy_decision *out);
/* Fills the unset fields of *r that the preset names, and notes them in *d. */
void policy_apply(const struct policy_epoch *epoch, struct policy_decision *d, struct request *r);

const char *policy_kind_name(enum policy_kind kind);
const char *policy_by_name(enum policy_by by);

#endif
