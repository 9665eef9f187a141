/* detokenize: a JSON array of token ids on stdin to the bytes they stand for on stdout. */
#include <stdlib.h>

#include <jansson.h>

#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/buffer.h"
#include "models/detokenizer.h"
#include "models/gguf.h"

static const char NAME[] = "detokenize";

enum { MAX_INPUT_BYTES = 1 << 30 };

static enum status print_bytes(const struct buffer *b, bool as_json, struct error *e) {
    const char *text = b->data ? b->data : "";
    bool ok;
    if (as_json) {
        json_t *s = json_stringn(text, b->len);
        ok = s != NULL && json_dumpf(s, stdout, JSON_ENCODE_ANY) == 0 && putchar('\n') != EOF;
        json_decref(s);
    } else {
        ok = fwrite(text, 1, b->len, stdout) == b->len;
    }
    return ok && fflush(stdout) == 0
               ? STATUS_OK
               : error_set(e, STATUS_IO, NULL, "the output cannot be written");
}

static enum status push_array(struct detokenizer *d, const json_t *array, struct buffer *b,
                              struct error *e) {
    if (!json_is_array(array))
        return error_set(e, STATUS_INVALID, NULL, "not a JSON array of token ids");
    const json_int_t n_vocab = tokenizer_n_vocab(d->t);
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v) {
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= n_vocab)
            return error_set(e, STATUS_INVALID, NULL,
                             "entry %zu is not an id from 0 to %" JSON_INTEGER_FORMAT, i,
                             n_vocab - 1);
        detokenizer_push(d, (uint32_t)id, b);
    }
    detokenizer_flush(d, b);
    return b->full ? error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the text") : STATUS_OK;
}

/* One array; in --json-lines the text is a JSON string, where bytes that are not UTF-8 cannot be.
 */
static enum status decode_print(const struct tokenizer *t, const struct config *c, const char *json,
                                size_t len, struct error *e) {
    json_error_t why;
    json_t *array = json_loadb(json, len, 0, &why);
    if (array == NULL) return error_set(e, STATUS_INVALID, NULL, "not JSON: %s", why.text);
    struct buffer b;
    buffer_init(&b, (size_t)1 << 34);
    struct detokenizer d;
    detokenizer_init(&d, t,
                     (c->skip_special ? 0u : (unsigned)DETOKENIZE_SPECIAL) |
                         (c->json_lines ? 0u : (unsigned)DETOKENIZE_RAW));
    enum status st = push_array(&d, array, &b, e);
    if (st == STATUS_OK) st = print_bytes(&b, c->json_lines, e);
    buffer_free(&b);
    json_decref(array);
    return st;
}

static enum status whole(const struct tokenizer *t, const struct config *c, struct error *e) {
    char *text;
    size_t len;
    enum status st = usage_read_all(stdin, MAX_INPUT_BYTES, &text, &len, e);
    if (st == STATUS_OK) st = decode_print(t, c, text, len, e);
    free(text);
    return st;
}

static enum status lines(const struct tokenizer *t, const struct config *c, struct error *e) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status st = STATUS_OK;
    while (st == STATUS_OK && (n = getline(&line, &cap, stdin)) > 0)
        st = decode_print(t, c, line, (size_t)n, e);
    free(line);
    return st;
}

int cmd_detokenize(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    enum status st = gguf_open(c.positional[0], &g, &e);
    if (st != STATUS_OK) return usage_fail(NAME, &e);
    st = tokenizer_load(g, &t, &e);
    gguf_close(g);
    if (st != STATUS_OK) return usage_fail(NAME, &e);
    st = c.json_lines ? lines(t, &c, &e) : whole(t, &c, &e);
    tokenizer_free(t);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
