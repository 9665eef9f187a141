#include "core/status.h"

#include <stdio.h>

const char *status_name(enum status s) {
    static const char *const names[] = {
#define X(code, name, class) [code] = name,
        STATUS_LIST(X)
#undef X
    };
    return (unsigned)s < STATUS_COUNT ? names[s] : "unknown status";
}

enum status_class status_class_of(enum status s) {
    static const enum status_class classes[] = {
#define X(code, name, class) [code] = class,
        STATUS_LIST(X)
#undef X
    };
    return (unsigned)s < STATUS_COUNT ? classes[s] : STATUS_CLASS_NONE;
}

enum status error_set(struct error *e, enum status s, const char *field, const char *fmt, ...) {
    if (e == NULL) return s;
    e->status = s;
    snprintf(e->field, sizeof e->field, "%s", field != NULL ? field : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return s;
}
