/* drift_watch.h: three drift monitors side by side: all rows, and those of each language, so that a
 * shift within a language is told from a shift of the mix. A language's monitor has half of the
 * reference and three fifths of the window, at least DRIFT_WATCH_MIN_ROWS; the monitors share the
 * allowed false alarms. See models/drift.h for tests, errors and limits.
 */
#ifndef LAC_MODELS_DRIFT_WATCH_H
#define LAC_MODELS_DRIFT_WATCH_H

#include "models/drift.h"

enum {
    DRIFT_WATCH_ALL,
    DRIFT_WATCH_EN,
    DRIFT_WATCH_ZH,
    DRIFT_WATCHES,
    DRIFT_WATCH_MIN_ROWS = 20,
};

struct drift_watched {
    struct drift_monitor *monitor;
    bool compared, alarmed;
    struct drift_result last, first_alarm;
    uint64_t alarm_row; /* counted over all rows, from 0 */
};

struct drift_watch {
    struct drift_options o; /* n_monitors is DRIFT_WATCHES */
    struct drift_watched of[DRIFT_WATCHES];
    uint64_t rows;
};

/* On failure *w is zeroed. */
LAC_MUST_USE enum status drift_watch_open(struct drift_watch *w, const struct drift_options *o,
                                          struct error *e);
void drift_watch_close(struct drift_watch *w); /* a zeroed one is fine */

/* True if this row raised a monitor's first alarm. */
bool drift_watch_add(struct drift_watch *w, const struct drift_row *row, bool chinese);

bool drift_watch_alarmed(const struct drift_watch *w);
const char *drift_watch_name(uint32_t which);

#endif
