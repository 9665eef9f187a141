/* laconic logits: the 20 largest logits, log-sum-exp and entropy at every position of token lists.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/engine.h"
#include "cmd/token_lists.h"
#include "cmd/usage.h"
#include "core/json_writer.h"

/* One list of tokens; positions are written as they come. */
static enum status one_list(struct engine *g, struct step *step, const uint32_t *ids, uint32_t n,
                            struct json_writer *j, double *nll_sum, struct error *e) {
    struct engine_sequence seq;
    enum status s = engine_sequence_open(g, n, &seq, e);
    if (s != STATUS_OK) return s;
    for (uint32_t at = 0; at < n && s == STATUS_OK; at += step->limits.max_rows) {
        const uint32_t left = n - at;
        const uint32_t rows = left < step->limits.max_rows ? left : step->limits.max_rows;
        step_clear(step, g->plan->n_layers);
        engine_add_span(g, step, SPAN_PREFILL, &seq, at, ids + at, rows);
        for (uint32_t r = 0; r < rows; r++)
            step_add_output(step, r)->sample.target = at + r + 1 < n ? ids[at + r + 1] : STEP_NONE;
        s = engine_run(g, step, e);
        for (uint32_t r = 0; r < rows && s == STATUS_OK; r++) {
            const struct output *o = &step->outputs[r];
            if (o->bad) {
                s = error_set(e, STATUS_BAD_NUMBER, NULL, "position %u: a logit is not finite",
                              at + r);
                break;
            }
            if (at + r + 1 < n) *nll_sum -= (double)o->logprob;
            json_write_object(j);
            json_write_key(j, "top");
            json_write_array(j);
            for (uint32_t i = 0; i < STEP_TOP && o->top[i].id != STEP_NONE; i++) {
                json_write_array(j);
                json_write_uint(j, o->top[i].id);
                json_write_float(j, o->top[i].logit);
                json_write_array_end(j);
            }
            json_write_array_end(j);
            json_write_key(j, "lse");
            json_write_float(j, o->lse);
            json_write_key(j, "entropy");
            json_write_float(j, o->entropy);
            json_write_object_end(j);
        }
    }
    engine_sequence_close(g, &seq);
    return s;
}

static enum status all_lists(struct engine *g, const struct token_lists *lists,
                             struct json_writer *j, struct error *e) {
    void *mem = NULL;
    if (posix_memalign(&mem, 64, step_footprint(&g->limits)) != 0)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    struct step *step = step_init(mem, &g->limits);
    enum status s = STATUS_OK;
    json_write_array(j);
    for (size_t i = 0; i < lists->n && s == STATUS_OK; i++) {
        const struct named_tokens *l = &lists->items[i];
        double nll_sum = 0;
        json_write_object(j);
        json_write_key(j, "name");
        json_write_string(j, l->name);
        json_write_key(j, "positions");
        json_write_array(j);
        s = one_list(g, step, l->ids, l->n, j, &nll_sum, e);
        json_write_array_end(j);
        json_write_key(j, "mean_nll");
        if (l->n > 1)
            json_write_double(j, nll_sum / (l->n - 1));
        else
            json_write_null(j);
        json_write_object_end(j);
    }
    json_write_array_end(j);
    free(mem);
    return s;
}

static enum status write_file(const char *path, const struct buffer *b, struct error *e) {
    FILE *f = fopen(path, "w");
    if (f == NULL) return error_set(e, STATUS_IO, "out", "%s cannot be written", path);
    const bool ok = fwrite(b->data, 1, b->len, f) == b->len && fputc('\n', f) != EOF;
    if (fclose(f) != 0 || !ok) return error_set(e, STATUS_IO, "out", "%s: write failed", path);
    return STATUS_OK;
}

int cmd_logits(int argc, char **argv) {
    struct config c;
    struct error e = {0};
    int exit_status;
    if (!usage_parse(&c, argc, argv, &exit_status)) return exit_status;
    const struct engine_options o = engine_defaults(&c);
    struct engine *g = NULL;
    struct token_lists lists = {0};
    struct buffer out;
    buffer_init(&out, (size_t)1 << 32);
    enum status s = engine_open(&o, &g, &e);
    if (s == STATUS_OK) s = token_lists_read(c.tokens_path, g->plan->n_vocab, g->n_ctx, &lists, &e);
    if (s == STATUS_OK) {
        struct json_writer j;
        json_write_begin(&j, &out);
        s = all_lists(g, &lists, &j, &e);
        if (s == STATUS_OK && out.full)
            s = error_set(&e, STATUS_NO_MEMORY, NULL, "no memory for the output");
    }
    if (s == STATUS_OK) s = write_file(c.out_path, &out, &e);
    buffer_free(&out);
    engine_close(g);
    token_lists_free(&lists);
    return s == STATUS_OK ? 0 : usage_fail("logits", &e);
}
