/* stop.h: finds stop strings in a stream of bytes, however the bytes are cut.
 *
 * The text ends at the first byte with which any stop string is complete; if several are complete
 * with it, the longest counts. What a stop string could still swallow is held back: the longest end
 * of the text so far that begins some stop string. So the answer depends on the text alone, never
 * on token boundaries, and no byte of a stop string that comes true is ever shown. Matching is
 * Knuth-Morris-Pratt per stop string: O(1) amortised per byte and stop string.
 *
 * A set is shared by the choices of a request; each choice has its own state.
 */
#ifndef LAC_SCHED_STOP_H
#define LAC_SCHED_STOP_H

#include <stdint.h>

#include "core/request.h"

struct stop_set {
    uint32_t n;
    uint16_t len[REQUEST_MAX_STOPS];
    char bytes[REQUEST_MAX_STOPS][REQUEST_MAX_STOP_BYTES];
    /* fail[s][i]: length of the longest proper border of the first i + 1 bytes */
    uint16_t fail[REQUEST_MAX_STOPS][REQUEST_MAX_STOP_BYTES];
};

struct stop_state {
    uint16_t matched[REQUEST_MAX_STOPS];
};

/* Empty strings are left out; longer than REQUEST_MAX_STOP_BYTES is a CHECK (io refuses them). */
void stop_set_init(struct stop_set *set, const struct text *stops, uint32_t n);
void stop_start(struct stop_state *st);

/* Takes one byte. Returns the length of the stop string that it completes, or 0. `*held` is the
 * number of bytes at the end of the text, this one included, that must not be shown yet. */
uint32_t stop_push(const struct stop_set *set, struct stop_state *st, char byte, uint32_t *held);

#endif
