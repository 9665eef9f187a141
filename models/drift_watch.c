#include "models/drift_watch.h"

#include <string.h>

#include "core/check.h"

static uint32_t part(uint32_t rows, uint32_t times, uint32_t of) {
    const uint32_t n = rows * times / of;
    return n > DRIFT_WATCH_MIN_ROWS ? n : DRIFT_WATCH_MIN_ROWS;
}

enum status drift_watch_open(struct drift_watch *w, const struct drift_options *o,
                             struct error *e) {
    memset(w, 0, sizeof *w);
    w->o = *o;
    w->o.n_monitors = DRIFT_WATCHES;
    for (int i = 0; i < DRIFT_WATCHES; i++) {
        struct drift_options of = w->o;
        if (i != DRIFT_WATCH_ALL) {
            of.reference_rows = part(o->reference_rows, 1, 2);
            of.window_rows = part(o->window_rows, 3, 5);
        }
        const enum status st = drift_new(&of, &w->of[i].monitor, e);
        if (st == STATUS_OK) continue;
        drift_watch_close(w);
        return st;
    }
    return STATUS_OK;
}

void drift_watch_close(struct drift_watch *w) {
    for (int i = 0; i < DRIFT_WATCHES; i++) drift_free(w->of[i].monitor);
    memset(w, 0, sizeof *w);
}

static bool add(struct drift_watch *w, int which, const struct drift_row *row) {
    struct drift_watched *k = &w->of[which];
    struct drift_result r;
    if (!drift_add(k->monitor, row, &r)) return false;
    k->last = r;
    k->compared = true;
    if (!r.alarm || k->alarmed) return false;
    k->alarmed = true;
    k->first_alarm = r;
    k->alarm_row = w->rows;
    return true;
}

bool drift_watch_add(struct drift_watch *w, const struct drift_row *row, bool chinese) {
    bool raised = add(w, DRIFT_WATCH_ALL, row);
    raised |= add(w, chinese ? DRIFT_WATCH_ZH : DRIFT_WATCH_EN, row);
    w->rows++;
    return raised;
}

bool drift_watch_alarmed(const struct drift_watch *w) {
    for (int i = 0; i < DRIFT_WATCHES; i++)
        if (w->of[i].alarmed) return true;
    return false;
}

const char *drift_watch_name(uint32_t which) {
    static const char *const names[DRIFT_WATCHES] = {"all", "en", "zh"};
    CHECK(which < DRIFT_WATCHES);
    return names[which];
}
