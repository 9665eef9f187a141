#include "sched/explain_request.h"

#include <string.h>

static bool named(const struct request *r, struct text id) {
    return r->id.len == id.len && memcmp(r->id.data, id.data, id.len) == 0;
}

static uint32_t write_running(const struct slots *t, struct text id, struct json_writer *j) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->cfg.max_batch; i++) {
        const struct slot *s = &t->slots[i];
        if (!slot_running(s) || s->epoch == NULL || !named(s->request, id)) continue;
        const struct explain_what what = slot_explanation(s);
        struct explain_record r;
        explain_fill(&r, t->cfg.flight, s->index, &what);
        explain_write(j, &r);
        n++;
    }
    return n;
}

enum status explain_request(const struct explain *x, const struct slots *slots, struct text id,
                            struct buffer *out, struct error *e) {
    struct json_writer j;
    const struct explain_record *r;
    const size_t before = out->len;
    uint32_t n = 0;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "id");
    json_write_string_n(&j, id.data, id.len);
    json_write_key(&j, "prompts");
    json_write_array(&j);
    for (; (r = explain_find(x, id, n)) != NULL; n++) explain_write(&j, r);
    if (id.len > 0) n += write_running(slots, id, &j);
    json_write_array_end(&j);
    json_write_object_end(&j);
    if (n > 0) return STATUS_OK;
    out->len = before;
    return error_set(e, STATUS_NOT_FOUND, "id",
                     "no request of that id has started and is among the newest %d",
                     EXPLAIN_RECORDS);
}
