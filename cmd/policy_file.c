#include "cmd/policy_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cmd/usage.h"

enum { MAX_BYTES = 1 << 20 };

static enum status bad(struct error *e, const char *field, const char *what) {
    return error_set(e, STATUS_INVALID, field, "%s %s", field, what);
}

static enum status read_number(const json_t *v, const char *field, double least, double most,
                               bool above, double *out, struct error *e) {
    *out = json_is_number(v) ? json_number_value(v) : -1;
    if (json_is_number(v) && *out <= most && (above ? *out > least : *out >= least))
        return STATUS_OK;
    return error_set(e, STATUS_INVALID, field, "%s must be a number %s %g and at most %g", field,
                     above ? "above" : "of at least", least, most);
}

static enum status read_rows(const json_t *v, const char *field, uint32_t most, uint32_t *out,
                             struct error *e) {
    const json_int_t n = json_is_integer(v) ? json_integer_value(v) : 0;
    if (n < 20 || n > most)
        return error_set(e, STATUS_INVALID, field, "%s must be an integer from 20 to %u", field,
                         most);
    *out = (uint32_t)n;
    return STATUS_OK;
}

static enum status read_path(const json_t *v, const char *field, char **out, struct error *e) {
    if (!json_is_string(v)) return bad(e, field, "must be a string");
    *out = strdup(json_string_value(v));
    return *out != NULL ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, field, "no memory");
}

/* ---- members ---- */

static enum status read_preset(const char *task, const json_t *o, struct policy_preset *p,
                               struct error *e) {
    char field[64];
    const char *key;
    json_t *v;
    enum status st = STATUS_OK;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        double x = 0;
        snprintf(field, sizeof field, "presets.%.20s.%.20s", task, key);
        if (strcmp(key, "temperature") == 0) {
            st = read_number(v, field, 0, 2, false, &x, e);
            p->temperature = (float)x;
        } else if (strcmp(key, "top_p") == 0) {
            st = read_number(v, field, 0, 1, true, &x, e);
            p->top_p = (float)x;
        } else if (strcmp(key, "entropy_threshold") == 0) {
            st = read_number(v, field, 0, 20, false, &x, e);
            p->entropy_threshold = (float)x;
        } else {
            st = bad(e, field, "is not known");
        }
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static enum status read_presets(const json_t *o, struct policy_presets *out, struct error *e) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char field[64];
        enum metric_task task;
        struct policy_preset *p = &out->middle;
        snprintf(field, sizeof field, "presets.%.40s", key);
        if (metric_task_find(key, strlen(key), &task))
            p = &out->task[task];
        else if (strcmp(key, "middle") != 0)
            return bad(e, field, "is no task");
        if (!json_is_object(v)) return bad(e, field, "must be an object");
        const enum status st = read_preset(key, v, p, e);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static enum status read_words(const json_t *o, struct task_words **out, struct error *e) {
    char *text = json_dumps(o, JSON_COMPACT);
    if (text == NULL) return error_set(e, STATUS_NO_MEMORY, "task_words", "no memory");
    struct error why = {0};
    const enum status st = task_words_parse(text, strlen(text), out, &why);
    free(text);
    return st == STATUS_OK ? st : error_set(e, st, "task_words", "task_words: %.200s", why.message);
}

static enum status read_adapt(const json_t *o, struct policy_file *f, struct error *e) {
    const char *key;
    json_t *v;
    enum status st = STATUS_OK;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char field[64];
        snprintf(field, sizeof field, "adapt.%.40s", key);
        st = strcmp(key, "rows") == 0         ? read_rows(v, field, 4096, &f->adapt_rows, e)
             : strcmp(key, "replay") == 0     ? read_path(v, field, &f->replay_path, e)
             : strcmp(key, "validation") == 0 ? read_path(v, field, &f->validation_path, e)
                                              : bad(e, field, "is not known");
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static enum status read_drift(const json_t *o, struct policy_file *f, struct error *e) {
    const char *key;
    json_t *v;
    enum status st = STATUS_OK;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char field[64];
        snprintf(field, sizeof field, "drift.%.40s", key);
        st = strcmp(key, "reference") == 0 ? read_rows(v, field, 65536, &f->drift_reference, e)
             : strcmp(key, "window") == 0  ? read_rows(v, field, 65536, &f->drift_window, e)
                                           : bad(e, field, "is not known");
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static enum status read_member(const char *key, const json_t *v, struct policy_file *f,
                               struct error *e) {
    char field[64];
    snprintf(field, sizeof field, "%.60s", key);
    static const char *const known[] = {"presets", "task_words", "adapt", "drift"};
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(key, known[k]) != 0) k++;
    if (k == sizeof known / sizeof *known) return bad(e, field, "is not known");
    if (!json_is_object(v)) return bad(e, field, "must be an object");
    return k == 0   ? read_presets(v, &f->presets, e)
           : k == 1 ? read_words(v, &f->words, e)
           : k == 2 ? read_adapt(v, f, e)
                    : read_drift(v, f, e);
}

static enum status read_text(const char *path, const char *text, size_t len, struct policy_file *f,
                             struct error *e) {
    json_error_t where;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    enum status st = STATUS_OK;
    if (!json_is_object(root))
        st = error_set(e, STATUS_INVALID, "--config", "%s is not a JSON object: line %d: %.120s",
                       path, root == NULL ? where.line : 1, root == NULL ? where.text : "");
    const char *key;
    json_t *v;
    if (st == STATUS_OK) {
        json_object_foreach(root, key, v) {
            struct error why = {0};
            st = read_member(key, v, f, &why);
            if (st == STATUS_OK) continue;
            st = error_set(e, st, why.field, "%s: %.180s", path, why.message);
            break;
        }
    }
    json_decref(root);
    return st;
}

enum status policy_file_read(const char *path, struct policy_file *out, struct error *e) {
    *out = (struct policy_file){.presets = policy_default_presets()};
    if (path == NULL) return STATUS_OK;
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        *out = (struct policy_file){0};
        return error_set(e, STATUS_IO, "--config", "%s cannot be opened", path);
    }
    char *text = NULL;
    size_t len = 0;
    enum status st = usage_read_all(in, MAX_BYTES, &text, &len, e);
    fclose(in);
    if (st == STATUS_OK) st = read_text(path, text, len, out, e);
    free(text);
    if (st != STATUS_OK) policy_file_free(out);
    return st;
}

void policy_file_free(struct policy_file *f) {
    task_words_free(f->words);
    free(f->replay_path);
    free(f->validation_path);
    *f = (struct policy_file){0};
}
