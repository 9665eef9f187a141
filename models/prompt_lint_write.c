#include "models/prompt_lint.h"

static size_t cut(const char *text, size_t n, size_t most) {
    if (n <= most) return n;
    while (most > 0 && ((unsigned char)text[most] & 0xC0) == 0x80) most--;
    return most;
}

static void write_span(struct json_writer *j, const char *key, const char *text, uint32_t start,
                       uint32_t end, size_t most) {
    json_write_key(j, key);
    json_write_object(j);
    json_write_key(j, "start");
    json_write_uint(j, start);
    json_write_key(j, "end");
    json_write_uint(j, end);
    json_write_key(j, "text");
    json_write_string_n(j, text + start, cut(text + start, end - start, most));
    json_write_object_end(j);
}

static void write_finding(struct json_writer *j, const char *text, const struct lint_finding *f,
                          size_t most) {
    json_write_object(j);
    json_write_key(j, "kind");
    json_write_string(j, lint_kind_name(f->kind));
    json_write_key(j, "level");
    json_write_string(j, f->warning ? "warning" : "hint");
    write_span(j, "span", text, f->start, f->end, most);
    if (f->other_end > 0) write_span(j, "other", text, f->other_start, f->other_end, most);
    if (f->kind == LINT_CONFLICT) {
        json_write_key(j, "cosine");
        json_write_float(j, f->score);
    }
    json_write_key(j, "suggestion");
    json_write_string(j, f->suggestion);
    json_write_object_end(j);
}

void prompt_lint_write(struct json_writer *j, const char *text, const struct lint_report *r,
                       size_t most) {
    json_write_object(j);
    json_write_key(j, "contradiction_score");
    if (r->embedded)
        json_write_double(j, r->contradiction_score);
    else
        json_write_null(j);
    json_write_key(j, "ambiguity_ratio");
    json_write_double(j, r->ambiguity_ratio);
    json_write_key(j, "constraint_density");
    json_write_double(j, r->constraint_density);
    json_write_key(j, "instructions");
    json_write_uint(j, r->n_instructions);
    json_write_key(j, "anchors");
    json_write_uint(j, r->n_anchors);
    json_write_key(j, "warns");
    json_write_bool(j, r->warns);
    json_write_key(j, "findings");
    json_write_array(j);
    for (uint32_t i = 0; i < r->n_findings; i++) write_finding(j, text, &r->findings[i], most);
    json_write_array_end(j);
    json_write_object_end(j);
}
