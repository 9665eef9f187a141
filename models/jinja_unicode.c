#include "models/jinja_internal.h"
#include "models/unicode.h"

static const struct upper_run {
    uint32_t first, last, step;
    int32_t delta;
} upper_runs[] = {
#include "models/jinja_upper_table.h"
};

uint32_t jinja_upper_cp(uint32_t cp) {
    if (cp < 128) return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
    size_t lo = 0, hi = sizeof upper_runs / sizeof *upper_runs;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (upper_runs[mid].last < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == sizeof upper_runs / sizeof *upper_runs) return cp;
    const struct upper_run *r = &upper_runs[lo];
    if (cp < r->first || (cp - r->first) % r->step) return cp;
    return (uint32_t)((int64_t)cp + r->delta);
}

uint32_t jinja_lower_cp(uint32_t cp) {
    if (cp < 128) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    return unicode_lower(cp);
}

bool jinja_is_alpha(uint32_t cp) {
    if (cp < 128) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    enum unicode_category k = unicode_category(cp);
    return k >= UNICODE_LL && k <= UNICODE_LU;
}

/* str.isprintable: what repr() does not escape. */
bool jinja_is_printable(uint32_t cp) {
    if (cp < 127) return cp >= 32;
    enum unicode_category k = unicode_category(cp);
    return k > UNICODE_CS && k < UNICODE_ZL;
}
