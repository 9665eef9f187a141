#include "sched/explain.h"

#include <stdlib.h>
#include <string.h>

#include "core/check.h"

struct explain {
    uint32_t n_records;
    uint64_t n_kept, text_end;      /* ever; a text starts at its place modulo EXPLAIN_TEXT_BYTES */
    struct explain_record *records; /* [n_records] */
    char *texts;                    /* [EXPLAIN_TEXT_BYTES] */
};

enum status explain_open(uint32_t n_records, struct explain **out, struct error *e) {
    CHECK(n_records > 0);
    *out = NULL;
    struct explain *x = calloc(1, sizeof *x);
    if (x != NULL) {
        x->n_records = n_records;
        x->records = calloc(n_records, sizeof *x->records);
        x->texts = malloc(EXPLAIN_TEXT_BYTES);
    }
    if (x == NULL || x->records == NULL || x->texts == NULL) {
        explain_close(x);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for explanations");
    }
    *out = x;
    return STATUS_OK;
}

void explain_close(struct explain *x) {
    if (x == NULL) return;
    free(x->records);
    free(x->texts);
    free(x);
}

static void read_events(struct explain_record *r, const struct flight *f, uint32_t slot) {
    for (uint32_t i = 0; i < flight_count(f, slot); i++) {
        const struct flight_event *v = flight_at(f, slot, i);
        if (v->kind != FLIGHT_STEP_DECODE) continue;
        if (r->least_decode_ns == 0 || v->c < r->least_decode_ns) r->least_decode_ns = v->c;
    }
    r->n_kept = flight_kept(f, slot);
    for (uint32_t i = 0; i < r->n_kept; i++) {
        const struct flight_event *v = flight_kept_at(f, slot, i);
        r->kept[i] = *v;
        if (v->kind != FLIGHT_CHOICE_END || v->a >= REQUEST_MAX_CHOICES) continue;
        r->ended[v->a] = true;
        r->reasons[v->a] = (enum finish_reason)v->b;
    }
}

void explain_fill(struct explain_record *r, const struct flight *f, uint32_t slot,
                  const struct explain_what *w) {
    const struct request *q = w->request;
    *r = (struct explain_record){
        .running = true,
        .seed = w->seed,
        .temperature = q->set & REQUEST_SET_TEMPERATURE ? q->temperature : 1,
        .top_p = q->set & REQUEST_SET_TOP_P ? q->top_p : 1,
        .top_k = q->set & REQUEST_SET_TOP_K ? q->top_k : 0,
        .n_choices = q->n,
        .timings = flight_timings(f, slot),
        .decision = {.task = METRIC_TASK_NONE},
    };
    const size_t n = q->id.len < sizeof r->id - 1 ? q->id.len : sizeof r->id - 1;
    if (n > 0) memcpy(r->id, q->id.data, n);
    if (w->epoch != NULL) {
        r->decision = *w->decision;
        r->epoch = w->epoch->number;
        r->policy = w->epoch->kind;
        memcpy(r->fingerprint, w->epoch->fingerprint, sizeof r->fingerprint);
        r->n_labels = task_model_n_classes(w->epoch->model);
        for (uint32_t c = 0; c < r->n_labels; c++)
            strncpy(r->labels[c], task_model_label(w->epoch->model, c), TASK_MAX_LABEL_BYTES);
    }
    for (int k = 0; k < FLIGHT_KIND_COUNT; k++)
        r->totals[k] = flight_total(f, slot, (enum flight_kind)k);
    read_events(r, f, slot);
}

/* In one piece: what does not fit before the end of the memory starts at its beginning. */
static void keep_text(struct explain *x, struct explain_record *r, struct text text) {
    size_t n = text.len;
    if (n > EXPLAIN_TEXT_MAX) {
        n = EXPLAIN_TEXT_MAX;
        while (n > 0 && ((unsigned char)text.data[n] & 0xC0) == 0x80) n--;
    }
    const uint64_t left = EXPLAIN_TEXT_BYTES - x->text_end % EXPLAIN_TEXT_BYTES;
    if (n > left) x->text_end += left;
    r->text_at = x->text_end;
    r->text_len = (uint32_t)n;
    if (n > 0) memcpy(x->texts + x->text_end % EXPLAIN_TEXT_BYTES, text.data, n);
    x->text_end += n;
}

void explain_keep(struct explain *x, const struct flight *f, uint32_t slot,
                  const struct explain_what *w, enum metric_outcome outcome) {
    if (w->request->id.len == 0) return;
    struct explain_record *r = &x->records[x->n_kept++ % x->n_records];
    explain_fill(r, f, slot, w);
    r->running = false;
    r->outcome = outcome;
    keep_text(x, r, w->request->user_text);
}

const struct explain_record *explain_find(const struct explain *x, struct text id, uint32_t nth) {
    if (id.len == 0 || id.len >= EXPLAIN_ID_BYTES) return NULL;
    const uint64_t first = x->n_kept > x->n_records ? x->n_kept - x->n_records : 0;
    for (uint64_t i = first; i < x->n_kept; i++) {
        const struct explain_record *r = &x->records[i % x->n_records];
        if (memcmp(r->id, id.data, id.len) != 0 || r->id[id.len] != '\0') continue;
        if (nth-- == 0) return r;
    }
    return NULL;
}

struct text explain_text(const struct explain *x, const struct explain_record *r) {
    if (r->text_len == 0 || x->text_end - r->text_at > EXPLAIN_TEXT_BYTES) return (struct text){0};
    return (struct text){x->texts + r->text_at % EXPLAIN_TEXT_BYTES, r->text_len};
}

void explain_mark_labelled(struct explain *x, const struct explain_record *r) {
    CHECK(r >= x->records && r < x->records + x->n_records);
    x->records[r - x->records].labelled = true;
}
