/* One pass of the full model over every answer, kept in a file that the rest is a function of. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "cmd/tune.h"
#include "core/check.h"
#include "core/math.h"
#include "core/tensor.h"

/* Per answer: records [n - n_prompt], states F16 per tap [n - 1, d_model], XXH3-64 of all that. */
static uint64_t answer_bytes(const struct tune *t, const struct tune_answer *a) {
    const uint64_t states =
        (uint64_t)(a->n - 1) * t->engine->plan->d_model * sizeof(uint16_t) * t->n_taps;
    return (uint64_t)(a->n - a->n_prompt) * sizeof(struct tune_record) + (states + 7) / 8 * 8 +
           sizeof(uint64_t);
}

const struct tune_record *tune_records(const struct tune *t, uint32_t answer) {
    return (const struct tune_record *)(t->records.data + t->record_offsets[answer]);
}

const uint16_t *tune_states(const struct tune *t, uint32_t answer, uint32_t tap) {
    const struct tune_answer *a = &t->set.answers[answer];
    CHECK(tap < t->n_taps);
    const uint8_t *states = t->records.data + t->record_offsets[answer] +
                            (size_t)(a->n - a->n_prompt) * sizeof(struct tune_record);
    return (const uint16_t *)states + (size_t)tap * (a->n - 1) * t->engine->plan->d_model;
}

static void keep_output(const struct output *o, struct tune_record *r) {
    for (uint32_t k = 0; k < TUNE_TOP; k++) {
        r->ids[k] = o->top[k].id;
        r->probability[k] = o->top[k].id != STEP_NONE ? math_expf(o->top[k].logit - o->lse) : 0;
    }
}

/* Computes one answer into bytes[answer_bytes - 8]. states: scratch [n_taps][max_rows, d_model]. */
static enum status record_one(struct tune *t, uint32_t index, uint8_t *bytes, float *states,
                              struct error *e) {
    const struct tune_answer *a = &t->set.answers[index];
    const uint32_t d = t->engine->plan->d_model, n = a->n - 1;
    struct tune_record *records = (struct tune_record *)bytes;
    uint16_t *kept = (uint16_t *)(records + (a->n - a->n_prompt));
    struct engine_sequence seq;
    enum status st = engine_sequence_open(t->engine, n, &seq, e);
    if (st != STATUS_OK) return st;
    const uint32_t max_rows = t->step->limits.max_rows;
    for (uint32_t at = 0, rows; st == STATUS_OK && at < n; at += rows) {
        rows = n - at < max_rows ? n - at : max_rows;
        step_clear(t->step, t->engine->plan->n_layers);
        engine_add_span(t->engine, t->step, SPAN_PREFILL, &seq, at, a->ids + at, rows);
        for (uint32_t r = 0; r < rows; r++)
            if (at + r + 1 >= a->n_prompt) step_add_output(t->step, r);
        for (uint32_t k = 0; k < t->n_taps; k++)
            t->step->taps[t->step->n_taps++] =
                (struct tap){.layer = t->tap_layers[k],
                             .n_rows = rows,
                             .mode = TAP_KEEP,
                             .out = states + (size_t)k * max_rows * d};
        st = engine_run(t->engine, t->step, e);
        for (uint32_t o = 0; st == STATUS_OK && o < t->step->n_outputs; o++) {
            const struct output *out = &t->step->outputs[o];
            if (out->bad)
                st = error_set(e, STATUS_BAD_NUMBER, NULL, "answer %u: a logit is not finite",
                               index);
            else
                keep_output(out, &records[at + out->row + 1 - a->n_prompt]);
        }
        for (uint32_t k = 0; st == STATUS_OK && k < t->n_taps; k++) {
            const float *from = states + (size_t)k * max_rows * d;
            uint16_t *to = kept + ((size_t)k * n + at) * d;
            for (size_t i = 0; i < (size_t)rows * d; i++) to[i] = f32_to_f16(from[i]);
        }
    }
    engine_sequence_close(t->engine, &seq);
    return st;
}

/* How many answers the file holds whole; the rest of it is cut off. */
static enum status resume(struct tune *t, FILE *f, uint8_t *bytes, uint32_t *n_done,
                          struct error *e) {
    uint32_t i = 0;
    for (; i < t->set.n_answers; i++) {
        const size_t n = answer_bytes(t, &t->set.answers[i]);
        uint64_t hash;
        if (fread(bytes, 1, n, f) != n) break;
        memcpy(&hash, bytes + n - sizeof hash, sizeof hash);
        if (hash != XXH3_64bits_withSeed(bytes, n - sizeof hash, i)) break;
    }
    *n_done = i;
    if (fflush(f) != 0 || ftruncate(fileno(f), (off_t)t->record_offsets[i]) != 0 ||
        fseek(f, 0, SEEK_END) != 0)
        return error_set(e, STATUS_IO, "o", "%s: the records cannot be written", t->work);
    return STATUS_OK;
}

static enum status record_missing(struct tune *t, FILE *f, uint8_t *bytes, float *states,
                                  struct error *e) {
    uint32_t n_done = 0;
    enum status st = resume(t, f, bytes, &n_done, e);
    for (uint32_t i = n_done; st == STATUS_OK && i < t->set.n_answers; i++) {
        const size_t n = answer_bytes(t, &t->set.answers[i]);
        memset(bytes, 0, n);
        st = record_one(t, i, bytes, states, e);
        if (st != STATUS_OK) break;
        const uint64_t hash = XXH3_64bits_withSeed(bytes, n - sizeof hash, i);
        memcpy(bytes + n - sizeof hash, &hash, sizeof hash);
        if (fwrite(bytes, 1, n, f) != n || fflush(f) != 0)
            st = error_set(e, STATUS_IO, "o", "%s: the records cannot be written", t->work);
        tune_progress("records", i + 1, t->set.n_answers);
    }
    return st;
}

enum status tune_record_all(struct tune *t, struct error *e) {
    t->record_offsets = malloc((t->set.n_answers + 1) * sizeof *t->record_offsets);
    if (t->record_offsets == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    uint64_t at = 0, longest = 0;
    for (uint32_t i = 0; i < t->set.n_answers; i++) {
        const uint64_t n = answer_bytes(t, &t->set.answers[i]);
        t->record_offsets[i] = at;
        at += n;
        if (n > longest) longest = n;
    }
    t->record_offsets[t->set.n_answers] = at;
    char path[4096];
    snprintf(path, sizeof path, "%s/records", t->work);
    const size_t state_floats =
        (size_t)t->n_taps * t->step->limits.max_rows * t->engine->plan->d_model;
    uint8_t *bytes = malloc(longest);
    float *states = malloc((state_floats + 1) * sizeof *states);
    FILE *f = fopen(path, "ab+");
    enum status st = STATUS_OK;
    if (bytes == NULL || states == NULL)
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %llu bytes of records",
                       (unsigned long long)longest);
    else if (f == NULL)
        st = error_set(e, STATUS_IO, "o", "%s cannot be written", path);
    if (st == STATUS_OK) {
        rewind(f);
        st = record_missing(t, f, bytes, states, e);
    }
    if (f != NULL && fclose(f) != 0 && st == STATUS_OK)
        st = error_set(e, STATUS_IO, "o", "%s cannot be written", path);
    free(bytes);
    free(states);
    if (st == STATUS_OK) st = map_open(path, &t->records, e);
    if (st == STATUS_OK && t->records.bytes != at)
        st = error_set(e, STATUS_CORRUPT, "o", "%s changed while it was read", path);
    return st;
}
