#include "sched/stop.h"

#include <string.h>

#include "core/check.h"

static uint16_t advance(const char *pattern, const uint16_t *fail, uint16_t matched, char byte) {
    while (matched > 0 && pattern[matched] != byte) matched = fail[matched - 1];
    return pattern[matched] == byte ? (uint16_t)(matched + 1) : 0;
}

void stop_set_init(struct stop_set *set, const struct text *stops, uint32_t n) {
    set->n = 0;
    CHECK(n <= REQUEST_MAX_STOPS);
    for (uint32_t i = 0; i < n; i++) {
        if (stops[i].len == 0) continue;
        CHECK(stops[i].len <= REQUEST_MAX_STOP_BYTES);
        const uint32_t s = set->n++;
        const uint16_t len = (uint16_t)stops[i].len;
        set->len[s] = len;
        memcpy(set->bytes[s], stops[i].data, len);
        set->fail[s][0] = 0;
        for (uint16_t k = 1; k < len; k++)
            set->fail[s][k] =
                advance(set->bytes[s], set->fail[s], set->fail[s][k - 1], set->bytes[s][k]);
    }
}

void stop_start(struct stop_state *st) {
    memset(st, 0, sizeof *st);
}

uint32_t stop_push(const struct stop_set *set, struct stop_state *st, char byte, uint32_t *held) {
    uint32_t complete = 0;
    *held = 0;
    for (uint32_t s = 0; s < set->n; s++) {
        const uint16_t m = advance(set->bytes[s], set->fail[s], st->matched[s], byte);
        if (m == set->len[s]) {
            if (m > complete) complete = m;
            /* The text ends here; the state is not used again, but stays in bounds. */
            st->matched[s] = set->fail[s][m - 1];
        } else {
            st->matched[s] = m;
            if (m > *held) *held = m;
        }
    }
    return complete;
}
