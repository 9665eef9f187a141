#include "core/flight.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/check.h"

struct slot {
    struct flight_total totals[FLIGHT_KIND_COUNT];
    uint64_t n_recorded; /* since the clear */
    uint64_t last_ns;
    uint32_t n_kept;
    struct flight_event kept[FLIGHT_MAX_KEPT];
};

struct flight {
    uint32_t n_slots, n_events;
    struct slot *slots;          /* [n_slots] */
    struct flight_event *events; /* [n_slots][n_events] */
};

enum { ALIGN = 64 };

static size_t round_up(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

size_t flight_footprint(uint32_t n_slots, uint32_t n_events) {
    return round_up(sizeof(struct flight)) + round_up(n_slots * sizeof(struct slot)) +
           (size_t)n_slots * n_events * sizeof(struct flight_event);
}

struct flight *flight_init(void *mem, uint32_t n_slots, uint32_t n_events) {
    CHECK((uintptr_t)mem % ALIGN == 0);
    CHECK(n_slots > 0 && n_events > 0 && (n_events & (n_events - 1)) == 0);
    uint8_t *at = mem;
    struct flight *f = (struct flight *)at;
    at += round_up(sizeof *f);
    f->n_slots = n_slots;
    f->n_events = n_events;
    f->slots = (struct slot *)at;
    at += round_up(n_slots * sizeof(struct slot));
    f->events = (struct flight_event *)at;
    memset(f->slots, 0, n_slots * sizeof(struct slot));
    return f;
}

static struct slot *slot_of(const struct flight *f, uint32_t slot) {
    CHECK(slot < f->n_slots);
    return &f->slots[slot];
}

void flight_clear(struct flight *f, uint32_t slot) {
    memset(slot_of(f, slot), 0, sizeof(struct slot));
}

static struct flight_event *event_at(const struct flight *f, uint32_t slot, uint64_t number) {
    return &f->events[(size_t)slot * f->n_events + (number & (f->n_events - 1))];
}

static bool is_kept(enum flight_kind kind) {
    return kind == FLIGHT_TASK || kind == FLIGHT_ROLLBACK || kind == FLIGHT_DEADLINE ||
           kind == FLIGHT_GATE_POLICY || kind == FLIGHT_BREAKER || kind == FLIGHT_REGULATED ||
           kind == FLIGHT_LABEL || kind == FLIGHT_CHOICE_END;
}

enum { NO_SIMILARITY = INT16_MIN };

uint64_t flight_rollback_pack(struct flight_rollback r) {
    const float entropy = r.entropy > 0 ? (r.entropy < 65 ? r.entropy : 65) : 0;
    const float cosine = r.similarity > 1 ? 1 : r.similarity < -1 ? -1 : r.similarity;
    const int16_t similarity = isnan(r.similarity) ? NO_SIMILARITY : (int16_t)lrintf(cosine * 1000);
    return r.position | (uint64_t)lrintf(entropy * 1000) << 32 |
           (uint64_t)(uint16_t)similarity << 48;
}

struct flight_rollback flight_rollback_of(uint64_t c) {
    const int16_t similarity = (int16_t)(c >> 48);
    return (struct flight_rollback){
        .position = (uint32_t)c,
        .entropy = (float)(uint16_t)(c >> 32) / 1000,
        .similarity = similarity == NO_SIMILARITY ? NAN : (float)similarity / 1000,
    };
}

void flight_record(struct flight *f, uint32_t slot, uint64_t t_ns, enum flight_kind kind,
                   uint16_t a, uint32_t b, uint64_t c) {
    struct slot *s = slot_of(f, slot);
    CHECK((unsigned)kind < FLIGHT_KIND_COUNT);
    *event_at(f, slot, s->n_recorded) =
        (struct flight_event){.t_ns = t_ns, .kind = (uint16_t)kind, .a = a, .b = b, .c = c};
    s->n_recorded++;
    s->last_ns = t_ns;
    struct flight_total *total = &s->totals[kind];
    if (total->n == 0) total->first_ns = t_ns;
    total->n++;
    total->last_ns = t_ns;
    total->sum_b += b;
    total->sum_c += c;
    if (is_kept(kind) && s->n_kept < FLIGHT_MAX_KEPT)
        s->kept[s->n_kept++] = *event_at(f, slot, s->n_recorded - 1);
}

uint32_t flight_count(const struct flight *f, uint32_t slot) {
    const uint64_t n = slot_of(f, slot)->n_recorded;
    return n < f->n_events ? (uint32_t)n : f->n_events;
}

uint64_t flight_dropped(const struct flight *f, uint32_t slot) {
    return slot_of(f, slot)->n_recorded - flight_count(f, slot);
}

const struct flight_event *flight_at(const struct flight *f, uint32_t slot, uint32_t i) {
    CHECK(i < flight_count(f, slot));
    return event_at(f, slot, flight_dropped(f, slot) + i);
}

uint32_t flight_kept(const struct flight *f, uint32_t slot) {
    return slot_of(f, slot)->n_kept;
}

const struct flight_event *flight_kept_at(const struct flight *f, uint32_t slot, uint32_t i) {
    CHECK(i < flight_kept(f, slot));
    return &slot_of(f, slot)->kept[i];
}

struct flight_total flight_total(const struct flight *f, uint32_t slot, enum flight_kind kind) {
    CHECK((unsigned)kind < FLIGHT_KIND_COUNT);
    return slot_of(f, slot)->totals[kind];
}

/* From one moment to another; 0 when either is missing (0) or they are the wrong way round. */
static uint64_t between(uint64_t from_ns, uint64_t to_ns) {
    return from_ns != 0 && to_ns > from_ns ? to_ns - from_ns : 0;
}

struct flight_timings flight_timings(const struct flight *f, uint32_t slot) {
    const struct slot *s = slot_of(f, slot);
    const struct flight_total *t = s->totals;
    uint64_t end_ns = s->last_ns;
    if (t[FLIGHT_FINISH].n != 0)
        end_ns = t[FLIGHT_FINISH].first_ns;
    else if (t[FLIGHT_ABORT].n != 0)
        end_ns = t[FLIGHT_ABORT].first_ns;
    else if (t[FLIGHT_FAIL].n != 0)
        end_ns = t[FLIGHT_FAIL].first_ns;

    const uint64_t received_ns = t[FLIGHT_RECEIVED].first_ns;
    const uint64_t admitted_ns = t[FLIGHT_ADMITTED].first_ns;
    const uint64_t first_token_ns = t[FLIGHT_FIRST_TOKEN].first_ns;
    const uint64_t tokenise_ns = between(t[FLIGHT_QUEUED].first_ns, t[FLIGHT_TOKENISED].first_ns);
    const uint64_t waited_ns = between(received_ns, admitted_ns);
    return (struct flight_timings){
        .tokenise_ns = tokenise_ns,
        .queue_ns = waited_ns > tokenise_ns ? waited_ns - tokenise_ns : 0,
        .prefill_ns = between(admitted_ns, first_token_ns),
        .ttft_ns = between(received_ns, first_token_ns),
        .decode_ns = between(first_token_ns, end_ns),
        .total_ns = between(received_ns, end_ns),
        .n_steps = t[FLIGHT_STEP_PREFILL].n + t[FLIGHT_STEP_DECODE].n + t[FLIGHT_STEP_VERIFY].n,
        .prompt_tokens = t[FLIGHT_TOKENISED].sum_b,
        .prefix_hit_tokens = t[FLIGHT_PREFIX_HIT].sum_b,
        .tokens = t[FLIGHT_TOKEN].n,
    };
}

const char *flight_kind_name(enum flight_kind kind) {
    static const char *const names[] = {
#define X(code, name) [code] = name,
        FLIGHT_LIST(X)
#undef X
    };
    return (unsigned)kind < FLIGHT_KIND_COUNT ? names[kind] : "unknown";
}
