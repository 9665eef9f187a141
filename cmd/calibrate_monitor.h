/* calibrate_monitor.h: `laconic calibrate --monitor`: the rollback monitor's means and rule
 * (sched/monitor.h), learnt on answers of the model itself.
 *
 * Steps: the prompts (JSON lines with "prompt" or "text") are answered as requests
 * draw, a quarter each at temperature 0.2 and top_p 0.8, 0.5 and 0.9, 0.8 and 0.95 (the presets), 1
 * and 1 (what the API gives who asks for nothing): normal answers.
 * Each is then read again with the beginning of another prompt's answer spliced in at a place of
 * its own choice: a planted drift. The states' mean is that of all users' and answers' tokens; the
 * score is a logistic regression on draws 4 to 24 behind a splice against the draws of normal
 * answers; the threshold is what 2 % of the normal answers reach,
 * those at temperature 1 counted apart. What is reported is measured on
 * the half of the prompts that the score was not fitted on; the published rule is measured on all
 * of them.
 *
 * A function of model, prompts and options. Returns the command's exit status.
 */
#ifndef LAC_CMD_CALIBRATE_MONITOR_H
#define LAC_CMD_CALIBRATE_MONITOR_H

#include "core/config.h"

int calibrate_monitor(const struct config *c);

#endif
