/* laconic perplexity: mean negative log-likelihood of a text. The text's tokens are cut into
 * windows of
 * --ctx; each window starts from nothing, and every token of it but the first is scored.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/commands.h"
#include "cmd/engine.h"
#include "cmd/usage.h"
#include "core/json_writer.h"
#include "core/math.h"
#include "models/tokenizer.h"

enum { DEFAULT_WINDOW_TOKENS = 512 };

static enum status read_tokens(struct engine *g, const char *path, struct token_list *out,
                               struct error *e) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return error_set(e, STATUS_NOT_FOUND, "file", "%s cannot be opened", path);
    char *text;
    size_t len;
    enum status s = usage_read_all(f, TOKENIZER_MAX_TEXT_BYTES, &text, &len, e);
    fclose(f);
    if (s != STATUS_OK) return s;
    struct tokenizer *t;
    s = tokenizer_load(model_gguf(g->model), &t, e);
    if (s == STATUS_OK) s = tokenizer_encode(t, NULL, text, len, TOKENIZE_BOS, out, e);
    tokenizer_free(t);
    free(text);
    return s;
}

static enum status score(struct engine *g, const struct token_list *tokens, uint64_t *n_scored,
                         double *nll_sum, struct error *e) {
    void *mem = NULL;
    if (posix_memalign(&mem, 64, step_footprint(&g->limits)) != 0)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    struct step *step = step_init(mem, &g->limits);
    struct engine_sequence seq;
    enum status s = engine_sequence_open(g, g->n_ctx, &seq, e);
    for (size_t window = 0; window < tokens->n && s == STATUS_OK; window += g->n_ctx) {
        const size_t rest = tokens->n - window;
        const uint32_t n = rest < g->n_ctx ? (uint32_t)rest : g->n_ctx;
        const uint32_t *ids = tokens->ids + window;
        for (uint32_t at = 0; at < n && s == STATUS_OK; at += g->limits.max_rows) {
            const uint32_t rows = n - at < g->limits.max_rows ? n - at : g->limits.max_rows;
            step_clear(step, g->plan->n_layers);
            engine_add_span(g, step, SPAN_PREFILL, &seq, at, ids + at, rows);
            for (uint32_t r = 0; r < rows && at + r + 1 < n; r++)
                step_add_output(step, r)->sample.target = ids[at + r + 1];
            s = engine_run(g, step, e);
            for (uint32_t i = 0; i < step->n_outputs && s == STATUS_OK; i++) {
                if (step->outputs[i].bad)
                    s = error_set(e, STATUS_BAD_NUMBER, NULL, "a logit is not finite");
                *nll_sum -= (double)step->outputs[i].logprob;
                *n_scored += 1;
            }
        }
    }
    if (seq.n_pages > 0) engine_sequence_close(g, &seq);
    free(mem);
    return s;
}

static void report(bool as_json, size_t n_tokens, uint64_t n_scored, double mean) {
    const double perplexity = math_exp(mean);
    if (!as_json) {
        printf("tokens %zu, scored %llu, mean NLL %.6f, perplexity %.4f\n", n_tokens,
               (unsigned long long)n_scored, mean, perplexity);
        return;
    }
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    json_write_object(&j);
    json_write_key(&j, "tokens");
    json_write_uint(&j, n_tokens);
    json_write_key(&j, "scored");
    json_write_uint(&j, n_scored);
    json_write_key(&j, "mean_nll");
    json_write_double(&j, mean);
    json_write_key(&j, "perplexity");
    json_write_double(&j, perplexity);
    json_write_object_end(&j);
    printf("%.*s\n", (int)b.len, b.data);
    buffer_free(&b);
}

int cmd_perplexity(int argc, char **argv) {
    struct config c;
    struct error e = {0};
    int exit_status;
    if (!usage_parse(&c, argc, argv, &exit_status)) return exit_status;
    struct engine_options o = engine_defaults(&c);
    if (o.n_ctx == 0) o.n_ctx = DEFAULT_WINDOW_TOKENS;
    struct engine *g = NULL;
    struct token_list tokens = {0};
    uint64_t n_scored = 0;
    double nll_sum = 0;
    enum status s = engine_open(&o, &g, &e);
    if (s == STATUS_OK) s = read_tokens(g, c.file_path, &tokens, &e);
    if (s == STATUS_OK && tokens.n < 2)
        s = error_set(&e, STATUS_INVALID, "file", "%s has fewer than two tokens", c.file_path);
    if (s == STATUS_OK) s = score(g, &tokens, &n_scored, &nll_sum, &e);
    if (s == STATUS_OK) report(c.json, tokens.n, n_scored, nll_sum / (double)n_scored);
    token_list_free(&tokens);
    engine_close(g);
    return s == STATUS_OK ? 0 : usage_fail("perplexity", &e);
}
