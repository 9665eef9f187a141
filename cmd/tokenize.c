/* tokenize: text on stdin to one JSON array of token ids on stdout. */
#include <stdlib.h>

#include <jansson.h>

#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/buffer.h"
#include "models/gguf.h"
#include "models/tokenizer.h"

static const char NAME[] = "tokenize";

static enum status print_ids(const struct token_list *ids, struct error *e) {
    struct buffer b;
    buffer_init(&b, (size_t)1 << 34);
    buffer_putc(&b, '[');
    for (size_t i = 0; i < ids->n; i++) buffer_printf(&b, i ? ", %u" : "%u", ids->ids[i]);
    buffer_puts(&b, "]\n");
    const bool ok = !b.full && fwrite(b.data, 1, b.len, stdout) == b.len && fflush(stdout) == 0;
    buffer_free(&b);
    return ok ? STATUS_OK : error_set(e, STATUS_IO, NULL, "the output cannot be written");
}

static enum status encode_print(const struct tokenizer *t, unsigned flags, const char *text,
                                size_t len, struct token_list *ids, struct error *e) {
    ids->n = 0;
    enum status st = tokenizer_encode(t, NULL, text, len, flags, ids, e);
    return st == STATUS_OK ? print_ids(ids, e) : st;
}

static enum status whole(const struct tokenizer *t, unsigned flags, struct token_list *ids,
                         struct error *e) {
    char *text;
    size_t len;
    enum status st = usage_read_all(stdin, TOKENIZER_MAX_TEXT_BYTES, &text, &len, e);
    if (st == STATUS_OK) st = usage_check_utf8("the input", text, len, e);
    if (st == STATUS_OK) st = encode_print(t, flags, text, len, ids, e);
    free(text);
    return st;
}

static enum status lines(const struct tokenizer *t, unsigned flags, struct token_list *ids,
                         struct error *e) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status st = STATUS_OK;
    while (st == STATUS_OK && (n = getline(&line, &cap, stdin)) > 0) {
        json_error_t why;
        json_t *v = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        st = json_is_string(v)
                 ? encode_print(t, flags, json_string_value(v), json_string_length(v), ids, e)
                 : error_set(e, STATUS_INVALID, NULL, "not a JSON string: %s",
                             v ? "a value of another type" : why.text);
        json_decref(v);
    }
    free(line);
    return st;
}

int cmd_tokenize(int argc, char **argv) {
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
    const unsigned flags =
        (c.special ? TOKENIZE_SPECIAL : 0u) | (c.bos ? (unsigned)TOKENIZE_BOS | TOKENIZE_EOS : 0u);
    struct token_list ids = {0};
    st = c.json_lines ? lines(t, flags, &ids, &e) : whole(t, flags, &ids, &e);
    token_list_free(&ids);
    tokenizer_free(t);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
