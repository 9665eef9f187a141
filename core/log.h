/* log.h: one line per event to a stream, usually stderr.
 *
 * A line is `2026-01-31T12:00:00.000Z level text`, at most LOG_LINE_BYTES (longer text is cut and
 * ends in "..."); control characters in the text are printed as \xNN, so that nothing a client
 * sends can forge a line. A line is written in one piece; writing errors are ignored. The context
 * is passed: NULL, or a level below the context's, prints nothing and costs a comparison. Threads:
 * any; the stream's own lock keeps lines whole.
 */
#ifndef LAC_CORE_LOG_H
#define LAC_CORE_LOG_H

#include <stdbool.h>
#include <stdio.h>

#include "core/status.h"

enum { LOG_LINE_BYTES = 1024 };

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_OFF };

struct log {
    FILE *out; /* not owned */
    enum log_level level;
};

void log_write(const struct log *l, enum log_level level, const char *fmt, ...) LAC_PRINTF(3, 4);

const char *log_level_name(enum log_level level);
/* "debug", "info", "warn", "error", "off"; false (and *out LOG_INFO) for anything else. */
bool log_level_parse(const char *name, enum log_level *out);

#endif
