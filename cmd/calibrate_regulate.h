/* calibrate_regulate.h: `laconic calibrate --regulate`: a head that says temperature and top_p of
 * each token (models/regulation.h), from preferred texts: lines {"prompt", "answer"} (the answer's
 * tokens behind the prompt in the chat template) or {"text"} (all of its tokens but the first).
 *
 * Texts are split by their number: of 20, 12 to learn from, 3 to stop by, 5 kept apart. On the last
 * the head is held against every fixed pair of the grid, the best of which is chosen on those very
 * texts; unless the head is better by a 95 % interval over texts, nothing is written and the
 * command fails.
 */
#ifndef LAC_CMD_CALIBRATE_REGULATE_H
#define LAC_CMD_CALIBRATE_REGULATE_H

#include "core/config.h"

/* The exit status. */
int calibrate_regulate(const struct config *config);

#endif
