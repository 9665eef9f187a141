#include "core/log.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "core/check.h"

static const char *const level_names[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn",
    [LOG_ERROR] = "error", [LOG_OFF] = "off",
};

const char *log_level_name(enum log_level level) {
    CHECK((unsigned)level <= LOG_OFF);
    return level_names[level];
}

bool log_level_parse(const char *name, enum log_level *out) {
    for (unsigned i = 0; i <= LOG_OFF; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    *out = LOG_INFO;
    return false;
}

/* Copies text behind line[at], control characters escaped, cut so that "..." and a newline fit. */
static size_t append_escaped(char *line, size_t at, const char *text) {
    static const char hex[] = "0123456789abcdef";
    const size_t end = LOG_LINE_BYTES - 4;
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        const bool control = c < 0x20 || c == 0x7f;
        if (at + (control ? 4 : 1) > end) {
            memcpy(line + at, "...", 3);
            return at + 3;
        }
        if (control) {
            line[at++] = '\\';
            line[at++] = 'x';
            line[at++] = hex[c >> 4];
            line[at++] = hex[c & 15];
        } else {
            line[at++] = (char)c;
        }
    }
    return at;
}

void log_write(const struct log *l, enum log_level level, const char *fmt, ...) {
    if (!l || !l->out || level < l->level || level >= LOG_OFF) return;
    char text[LOG_LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    char line[LOG_LINE_BYTES];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03dZ %s ", (int)(now.tv_nsec / 1000000),
                          level_names[level]);
    n = append_escaped(line, n, text);
    line[n++] = '\n';
    (void)fwrite(line, 1, n, l->out);
    (void)fflush(l->out);
}
