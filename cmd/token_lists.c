#include "cmd/token_lists.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static enum status read_item(const json_t *item, size_t i, uint32_t n_vocab, uint32_t n_max,
                             struct named_tokens *out, struct error *e) {
    const json_t *tokens = json_object_get(item, "tokens");
    const char *name = json_string_value(json_object_get(item, "name"));
    const size_t n = json_array_size(tokens);
    if (name == NULL || n == 0)
        return error_set(e, STATUS_INVALID, "tokens",
                         "item %zu is not {\"name\": text, \"tokens\": [ids]}", i);
    if (n > n_max)
        return error_set(e, STATUS_CONTEXT_LENGTH, "tokens", "%s: %zu tokens, the context has %u",
                         name, n, n_max);
    out->name = strdup(name);
    out->ids = malloc(n * sizeof *out->ids);
    if (out->name == NULL || out->ids == NULL)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for %zu tokens", n);
    for (size_t t = 0; t < n; t++) {
        const json_t *id = json_array_get(tokens, t);
        const json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= (json_int_t)n_vocab)
            return error_set(e, STATUS_INVALID, "tokens", "%s: element %zu is no token id", name,
                             t);
        out->ids[t] = (uint32_t)v;
    }
    out->n = (uint32_t)n;
    return STATUS_OK;
}

enum status token_lists_read(const char *path, uint32_t n_vocab, uint32_t n_max,
                             struct token_lists *out, struct error *e) {
    memset(out, 0, sizeof *out);
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why);
    if (!json_is_array(root)) {
        json_decref(root);
        return error_set(e, STATUS_INVALID, "tokens", "%s: %s", path,
                         root == NULL ? why.text : "not a JSON array");
    }
    enum status s = STATUS_OK;
    const size_t n = json_array_size(root);
    out->items = calloc(n > 0 ? n : 1, sizeof *out->items);
    if (out->items == NULL) s = error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    for (size_t i = 0; i < n && s == STATUS_OK; i++) {
        s = read_item(json_array_get(root, i), i, n_vocab, n_max, &out->items[i], e);
        out->n = i + 1;
    }
    json_decref(root);
    if (s != STATUS_OK) token_lists_free(out);
    return s;
}

void token_lists_free(struct token_lists *l) {
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i].name);
        free(l->items[i].ids);
    }
    free(l->items);
    memset(l, 0, sizeof *l);
}
