/* calibrate_monitor_rule.h: rule `auto` of the rollback monitor, fitted to draws of normal answers
 * and of answers with a planted drift (cmd/calibrate_monitor.h says how).
 */
#ifndef LAC_CMD_CALIBRATE_MONITOR_RULE_H
#define LAC_CMD_CALIBRATE_MONITOR_RULE_H

#include "sched/monitor.h"

enum { MONITOR_CAUGHT_WITHIN = 24 /* draws */, MONITOR_CLEAR_TOKENS = 12 };

/* A draw as the monitor saw it. */
struct monitor_draw_record {
    float features[MONITOR_FEATURES], surprise;
    bool has_cosine;
};

/* Draws of one text; `drift`: the draw of its first spliced token, or UINT32_MAX. */
struct monitor_text {
    struct monitor_draw_record *draws;
    uint32_t n, drift;
    bool hot;          /* drawn at MONITOR_HOT */
    uint32_t half;     /* 0, 1: of the prompts */
    bool fixed_caught; /* the published rule triggered (behind the splice, in time) */
};

/* Each half of the prompts judged by what was fitted on the other. */
struct monitor_scores {
    uint32_t n_normal, n_drifts;
    double false_alarms, caught, median_delay; /* shares; draws */
    double false_alarms_hot, caught_hot;       /* of those drawn at MONITOR_HOT */
    double held; /* share of normal draws after which some token waits */
    double fixed_false_alarms, fixed_caught; /* the published rule's */
};

/* Fills in weights, thresholds, hold, surprise and clear_tokens. STATUS_INVALID when there are too
 * few draws. */
enum status monitor_rule_fit(const struct monitor_text *texts, uint32_t n, struct monitor_rule *r,
                             struct monitor_scores *out, struct error *e) LAC_MUST_USE;

#endif
