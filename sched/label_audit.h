/* label_audit.h: the audits (sched/audit.h) of the side-car's sets of label heads, and what follows
 * when one is refuted: a new policy epoch in which that set answers at full depth, a line in the
 * log, and laconic_exit_off.
 *
 * What a set promises is the share that `tune` measured (struct label_figures, early_differs), or
 * LABEL_AUDIT_LEAST where that is less: audits could not tell it from three times as much in useful
 * time, and traffic is never quite what was measured. One that was not measured is not audited.
 * sched_open makes it, slots count into it. Memory: one array, taken by open. Threads: the loop
 * thread only.
 */
#ifndef LAC_SCHED_LABEL_AUDIT_H
#define LAC_SCHED_LABEL_AUDIT_H

#include "core/log.h"
#include "core/metric.h"
#include "models/label_heads.h"
#include "sched/audit.h"

#define LABEL_AUDIT_LEAST 0.01

struct feedback;
struct policy;

struct label_audits {
    const struct label_sets *labels;
    struct audit *sets; /* [labels->n], or NULL: nobody is audited */
    bool refuted;       /* a set was, since label_audits_settle */
    uint32_t n_full_depth;
};

/* labels or policy NULL: nobody is audited. STATUS_UNSUPPORTED: more sets than an epoch can name.
 */
LAC_MUST_USE enum status label_audits_open(struct label_audits *a, const struct label_sets *labels,
                                           const struct policy *policy, struct error *e);
void label_audits_close(struct label_audits *a); /* of zeros: nothing */

static inline uint32_t label_audits_index(const struct label_audits *a,
                                          const struct label_set *set) {
    return (uint32_t)(set - a->labels->sets);
}

/* After a step: publishes what its audits refuted. log may be NULL. */
void label_audits_settle(struct label_audits *a, const struct policy *policy, struct feedback *f,
                         struct metrics *m, const struct log *log);

#endif
