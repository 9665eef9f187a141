/* template: a JSON object on stdin, rendered by a chat template, to stdout. */
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "models/chat_template.h"
#include "models/gguf.h"
#include "models/jinja.h"

static const char NAME[] = "template";

enum { MAX_INPUT_BYTES = 64 << 20 };

static enum status from_gguf(const char *path, struct chat_template **out, struct error *e) {
    struct gguf *g = NULL;
    enum status st = gguf_open(path, &g, e);
    if (st != STATUS_OK) return st;
    st = chat_template_load(g, out, e);
    gguf_close(g);
    return st;
}

static enum status from_file(const char *path, struct chat_template **out, struct error *e) {
    char *text;
    size_t len;
    FILE *f = fopen(path, "rb");
    if (!f) return error_set(e, STATUS_NOT_FOUND, NULL, "%s cannot be opened", path);
    enum status st = usage_read_all(f, JINJA_MAX_TEMPLATE_BYTES, &text, &len, e);
    fclose(f);
    if (st != STATUS_OK) return st;
    st = chat_template_compile(text, len, NULL, NULL, out, e);
    free(text);
    return st;
}

static bool is_gguf(const char *path) {
    size_t n = strlen(path);
    return n >= 5 && strcmp(path + n - 5, ".gguf") == 0;
}

static enum status print(const struct chat_template *t, struct error *e) {
    struct chat_input in = {.variables = true, .now_s = (int64_t)clock_wall_s()};
    struct rendered r;
    char *json;
    enum status st = usage_read_all(stdin, MAX_INPUT_BYTES, &json, &in.len, e);
    if (st != STATUS_OK) return st;
    in.json = json;
    st = chat_template_render(t, &in, NULL, &r, e);
    if (st == STATUS_OK && (fwrite(r.text, 1, r.len, stdout) != r.len || fflush(stdout) != 0)) {
        st = error_set(e, STATUS_IO, NULL, "the output cannot be written");
    }
    rendered_free(&r);
    free(json);
    return st;
}

int cmd_template(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct chat_template *t = NULL;
    const char *path = c.positional[0];
    enum status st = is_gguf(path) ? from_gguf(path, &t, &e) : from_file(path, &t, &e);
    if (st == STATUS_OK) st = print(t, &e);
    chat_template_free(t);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
