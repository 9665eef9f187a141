#include "cmd/task_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/usage.h"
#include "models/task_default.h"

enum status task_files_words(const struct config *c, struct task_words **out, struct error *e) {
    *out = NULL;
    if (c->task_words == NULL) return task_words_default(out, e);
    FILE *f = fopen(c->task_words, "rb");
    if (f == NULL) return error_set(e, STATUS_IO, NULL, "%s cannot be opened", c->task_words);
    char *text = NULL;
    size_t len = 0;
    enum status st = usage_read_all(f, TASK_MAX_WORDS_BYTES, &text, &len, e);
    fclose(f);
    if (st == STATUS_OK) st = task_words_parse(text, len, out, e);
    free(text);
    return st;
}

enum status task_files_model(const struct config *c, struct task_model **out, struct error *e) {
    enum status st =
        c->task_model ? task_model_open(c->task_model, out, e) : task_model_default(out, e);
    if (st != STATUS_OK || c->task_words == NULL) return st;
    struct task_words *words;
    st = task_files_words(c, &words, e);
    if (st == STATUS_OK) {
        task_model_set_words(*out, words);
    } else {
        task_model_free(*out);
        *out = NULL;
    }
    return st;
}

void task_files_scores(struct json_writer *j, const struct task_scores *s) {
    json_write_object(j);
    json_write_key(j, "rows");
    json_write_uint(j, s->n);
    json_write_key(j, "accuracy");
    json_write_double(j, task_scores_accuracy(s));
    json_write_key(j, "macro_f1");
    json_write_double(j, task_scores_macro_f1(s));
    json_write_key(j, "ece");
    json_write_double(j, task_scores_ece(s));
    json_write_key(j, "abstained");
    json_write_uint(j, s->abstained);
    json_write_key(j, "confusion");
    json_write_array(j);
    for (uint32_t t = 0; t < s->n_classes; t++) {
        json_write_array(j);
        for (uint32_t a = 0; a < s->n_classes; a++) json_write_uint(j, s->confusion[t][a]);
        json_write_array_end(j);
    }
    json_write_array_end(j);
    json_write_object_end(j);
}

enum status task_files_print(struct buffer *b, struct error *e) {
    buffer_putc(b, '\n');
    const bool ok = !b->full && fwrite(b->data, 1, b->len, stdout) == b->len && fflush(stdout) == 0;
    buffer_free(b);
    return ok ? STATUS_OK : error_set(e, STATUS_IO, NULL, "the output cannot be written");
}
