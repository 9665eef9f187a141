#include "sched/label_audit.h"

#include <stdlib.h>

#include "sched/feedback.h"
#include "sched/policy.h"

enum status label_audits_open(struct label_audits *a, const struct label_sets *labels,
                              const struct policy *policy, struct error *e) {
    *a = (struct label_audits){.labels = labels};
    if (labels == NULL || policy == NULL) return STATUS_OK;
    if (labels->n > POLICY_MAX_LABEL_SETS)
        return error_set(e, STATUS_UNSUPPORTED, "side-car", "%u sets of label heads; at most %d",
                         labels->n, POLICY_MAX_LABEL_SETS);
    a->sets = calloc(labels->n, sizeof *a->sets);
    if (a->sets == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for audits");
    for (uint32_t i = 0; i < labels->n; i++) {
        const double measured = (double)labels->sets[i].heads.figures.early_differs;
        const bool raise = measured > 0 && measured < LABEL_AUDIT_LEAST;
        audit_init(&a->sets[i], raise ? LABEL_AUDIT_LEAST : measured);
    }
    return STATUS_OK;
}

void label_audits_close(struct label_audits *a) {
    free(a->sets);
    *a = (struct label_audits){0};
}

static void switch_off(struct label_audits *a, uint32_t set, const struct policy *policy,
                       struct feedback *f, struct metrics *m, const struct log *log) {
    struct error e = {0};
    const struct audit *x = &a->sets[set];
    if (feedback_full_depth(f, set, &e) != STATUS_OK) {
        a->refuted = true; /* the next step tries again */
        log_write(log, LOG_ERROR, "label heads: not switched to full depth: %s", e.message);
        return;
    }
    metric_set(m, METRIC_EXIT_OFF, 0, ++a->n_full_depth);
    log_write(log, LOG_WARN,
              "label heads %s answer at full depth from epoch %u on: %llu of %llu audited early "
              "answers differed, at most %.1f %% were promised",
              a->labels->sets[set].key, policy_newest(policy)->number,
              (unsigned long long)x->n_differed, (unsigned long long)x->n, 100 * x->epsilon);
}

void label_audits_settle(struct label_audits *a, const struct policy *policy, struct feedback *f,
                         struct metrics *m, const struct log *log) {
    if (!a->refuted) return;
    a->refuted = false;
    for (uint32_t i = 0; i < a->labels->n; i++)
        if (a->sets[i].off && !policy_is_full_depth(policy_newest(policy), i))
            switch_off(a, i, policy, f, m, log);
}
