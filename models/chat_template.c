#include "models/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "models/gguf.h"
#include "models/jinja.h"
#include "models/jinja_json.h"

enum content_form { CONTENT_ANY, CONTENT_TEXT, CONTENT_PARTS };

struct chat_template {
    struct jinja_template *jinja;
    char *bos, *eos; /* NULL: undefined */
    enum content_form content;
    bool arguments_as_text;
};

/* ---- the request's values, adapted to the template ---- */

static bool is_known_role(struct jinja_value v) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (jinja_is_str(v, roles[i])) return true;
    }
    return false;
}

static struct jinja_value *field(struct jinja_value v, const char *name) {
    return v.kind == JINJA_DICT ? jinja_dict_get_n(v.u.dict, name, strlen(name)) : NULL;
}

static bool trust_roles(struct jinja_ctx *c, struct jinja_value messages) {
    if (messages.kind != JINJA_LIST) return true;
    for (uint32_t i = 0; i < messages.u.list->n; i++) {
        struct jinja_value *role = field(messages.u.list->items[i], "role");
        if (!role || !is_known_role(*role)) continue;
        if (!jinja_str(c, role->u.s->data, role->u.s->len, false, role)) return false;
    }
    return true;
}

/* Text parts as one text; left alone when there is a part of another type. */
static bool join_parts(struct jinja_ctx *c, struct jinja_value *content) {
    struct jinja_sb sb;
    const struct jinja_list *parts = content->u.list;
    jinja_sb_init(&sb, c);
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct jinja_value *text = field(parts->items[i], "text");
        const struct jinja_value *type = field(parts->items[i], "type");
        if (!text || text->kind != JINJA_STRING || !type || !jinja_is_str(*type, "text"))
            return true;
        if ((i && !jinja_sb_put(&sb, "\n", 1, true)) || !jinja_sb_str(&sb, text->u.s)) return false;
    }
    return jinja_sb_finish(&sb, content);
}

static bool wrap_text(struct jinja_ctx *c, struct jinja_value *content) {
    struct jinja_value part, list, type;
    if (!jinja_dict_new(c, &part) || !jinja_list_new(c, JINJA_LIST, 1, &list) ||
        !jinja_str(c, "text", 4, true, &type) ||
        !jinja_dict_set_cstr(c, part.u.dict, "type", type) ||
        !jinja_dict_set_cstr(c, part.u.dict, "text", *content) ||
        !jinja_list_append(c, list.u.list, part)) {
        return false;
    }
    part.from_user = list.from_user = true;
    *content = list;
    return true;
}

static bool parse_arguments(struct jinja_ctx *c, struct jinja_value calls) {
    if (calls.kind != JINJA_LIST) return true;
    for (uint32_t i = 0; i < calls.u.list->n; i++) {
        struct jinja_value *f = field(calls.u.list->items[i], "function");
        struct jinja_value *a = f ? field(*f, "arguments") : NULL;
        if (!a || a->kind != JINJA_STRING) continue;
        json_error_t ignored;
        /* What is no JSON object stays the text that the client sent. */
        const struct jinja_string *s = a->u.s;
        json_t *j = s->len && memchr(s->data, '{', s->len)
                        ? jinja_json_load(c->chore, s->data, s->len, &ignored)
                        : NULL;
        bool ok = !json_is_object(j) || jinja_from_json(c, j, true, a);
        json_decref(j);
        if (!ok) return false;
    }
    return true;
}

static bool adapt_messages(struct jinja_ctx *c, const struct chat_template *t,
                           struct jinja_value messages) {
    for (uint32_t i = 0; i < messages.u.list->n; i++) {
        struct jinja_value m = messages.u.list->items[i];
        struct jinja_value *content = field(m, "content"), *calls = field(m, "tool_calls");
        if (m.kind != JINJA_DICT) {
            return jinja_fail(c, STATUS_INVALID, "messages[%u] is not an object", i);
        }
        if (content && content->kind == JINJA_LIST && t->content == CONTENT_TEXT &&
            !join_parts(c, content)) {
            return false;
        }
        if (content && content->kind == JINJA_STRING && t->content == CONTENT_PARTS &&
            !wrap_text(c, content)) {
            return false;
        }
        if (calls && !t->arguments_as_text && !parse_arguments(c, *calls)) return false;
    }
    return true;
}

/* ---- the variables of a render ---- */

static bool set_text(struct jinja_ctx *c, struct jinja_dict *vars, const char *name,
                     const char *text) {
    struct jinja_value v;
    return !text ||
           (jinja_str(c, text, strlen(text), false, &v) && jinja_dict_set_cstr(c, vars, name, v));
}

/* A bos_token among the variables is the caller's word for the model's, not a client's text. */
static bool trust_text(struct jinja_ctx *c, struct jinja_dict *vars, const char *name) {
    struct jinja_value *v = jinja_dict_get_n(vars, name, strlen(name));
    if (!v || v->kind != JINJA_STRING) return true;
    return jinja_str(c, v->u.s->data, v->u.s->len, false, v);
}

static bool set_variables(struct jinja_ctx *c, const struct chat_template *t,
                          struct jinja_value request, struct jinja_dict *vars) {
    if (!set_text(c, vars, "bos_token", t->bos) || !set_text(c, vars, "eos_token", t->eos)) {
        return false;
    }
    for (uint32_t i = 0; i < request.u.dict->n; i++) {
        const struct jinja_entry *e = &request.u.dict->entries[i];
        if (!jinja_dict_set(c, vars, e->key, e->value)) return false;
    }
    const struct jinja_value *messages = jinja_dict_get_n(vars, "messages", 8);
    return trust_text(c, vars, "bos_token") && trust_text(c, vars, "eos_token") &&
           (!messages || trust_roles(c, *messages));
}

static bool set_chat(struct jinja_ctx *c, const struct chat_template *t, struct jinja_value request,
                     struct jinja_dict *vars, bool continues) {
    static const char *const own[] = {"messages", "tools", "documents"};
    const struct jinja_value *kwargs = field(request, "chat_template_kwargs");
    const struct jinja_value *messages = field(request, "messages");
    const struct jinja_value *generate = field(request, "add_generation_prompt");
    if (!messages || messages->kind != JINJA_LIST || messages->u.list->n == 0) {
        return jinja_fail(c, STATUS_INVALID, "messages must be a list of at least one message");
    }
    if (kwargs && kwargs->kind == JINJA_DICT) {
        for (uint32_t i = 0; i < kwargs->u.dict->n; i++) {
            const struct jinja_entry *e = &kwargs->u.dict->entries[i];
            if (!jinja_dict_set(c, vars, e->key, e->value)) return false;
        }
    } else if (kwargs && kwargs->kind != JINJA_NONE) {
        return jinja_fail(c, STATUS_INVALID, "chat_template_kwargs must be an object");
    }
    if (!set_text(c, vars, "bos_token", t->bos) || !set_text(c, vars, "eos_token", t->eos)) {
        return false;
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const struct jinja_value *v = field(request, own[i]);
        if (!jinja_dict_set_cstr(c, vars, own[i], v ? *v : jinja_none())) return false;
    }
    bool on = generate && generate->kind == JINJA_BOOL ? generate->u.b : !continues;
    return jinja_dict_set_cstr(c, vars, "add_generation_prompt", jinja_bool(on && !continues)) &&
           trust_roles(c, *messages) && adapt_messages(c, t, *messages);
}

/* ---- continue_final_message ---- */

static struct jinja_value final_text(struct jinja_value request) {
    struct jinja_value none = jinja_none();
    const struct jinja_value *messages = field(request, "messages");
    if (!messages || messages->kind != JINJA_LIST || !messages->u.list->n) return none;
    const struct jinja_value *content =
        field(messages->u.list->items[messages->u.list->n - 1], "content");
    if (content && content->kind == JINJA_LIST && content->u.list->n) {
        content = field(content->u.list->items[content->u.list->n - 1], "text");
    }
    return content && content->kind == JINJA_STRING ? *content : none;
}

/* Cuts the text behind the last place where the final message's own bytes stand. Templates may have
 * trimmed them, so the trimmed text is looked for, and the blanks behind it are kept if printed. */
static bool cut_behind(struct jinja_ctx *c, struct jinja_value final, struct jinja_string **text) {
    struct jinja_value core, cut;
    uint32_t cp;
    if (final.kind != JINJA_STRING) {
        return jinja_fail(c, STATUS_INVALID,
                          "continue_final_message needs a final message with text");
    }
    const struct jinja_string *f = final.u.s, *s = *text;
    uint32_t from = 0, to = f->len;
    for (unsigned n; from < to; from += n) {
        n = jinja_utf8(f->data + from, &cp);
        if (!jinja_is_space(cp)) break;
    }
    while (to > from) {
        uint32_t p = to - 1;
        while ((f->data[p] & 0xC0) == 0x80) p--;
        jinja_utf8(f->data + p, &cp);
        if (!jinja_is_space(cp)) break;
        to = p;
    }
    if (!jinja_substr(c, f, from, to, &core)) return false;
    const struct jinja_string *k = core.u.s;
    if (k->len == 0) {
        return jinja_fail(c, STATUS_INVALID,
                          "continue_final_message needs a final message with text");
    }
    /* Only at ends of the client's text; from the back, each candidate compared once. */
    for (uint32_t i = s->n_spans; i-- > 0;) {
        uint32_t a = s->spans[i].start, b = s->spans[i].end;
        for (uint32_t end = b; end >= a + k->len && b - end <= f->len; end--) {
            if (!jinja_work(c, 1)) return false;
            if (memcmp(s->data + end - k->len, k->data, k->len) != 0) continue;
            uint32_t blanks = f->len - to;
            if (blanks <= s->len - end && memcmp(s->data + end, f->data + to, blanks) == 0) {
                end += blanks;
            }
            if (!jinja_substr(c, s, 0, end, &cut)) return false;
            *text = cut.u.s;
            return true;
        }
    }
    return jinja_fail(c, STATUS_INVALID,
                      "the template does not print the final message, which "
                      "therefore cannot be continued");
}

/* ---- results ---- */

static enum status export_text(const struct jinja_string *s, struct rendered *out,
                               struct error *e) {
    struct text_span *spans = malloc((2 * (size_t)s->n_spans + 1) * sizeof *spans);
    char *text = malloc((size_t)s->len + 1);
    size_t n = 0;
    uint32_t at = 0;
    if (!spans || !text) {
        free(spans);
        free(text);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the prompt");
    }
    for (uint32_t i = 0; i < s->n_spans; i++) {
        struct jinja_span u = s->spans[i];
        if (u.start > at) spans[n++] = (struct text_span){at, u.start, false};
        if (n && spans[n - 1].from_user) {
            spans[n - 1].end = u.end; /* touching ranges are one */
        } else {
            spans[n++] = (struct text_span){u.start, u.end, true};
        }
        at = u.end;
    }
    if (at < s->len) spans[n++] = (struct text_span){at, s->len, false};
    memcpy(text, s->data, s->len);
    text[s->len] = '\0';
    *out = (struct rendered){.text = text, .len = s->len, .spans = spans, .n_spans = n};
    return STATUS_OK;
}

void rendered_free(struct rendered *r) {
    free(r->text);
    free(r->spans);
    *r = (struct rendered){0};
}

static enum status render_with(const struct chat_template *t, const struct chat_input *in,
                               struct jinja_ctx *c, struct rendered *out, struct error *e) {
    struct jinja_value request, vars;
    struct jinja_string *text;
    bool ok =
        jinja_from_json_text(c, in->json, in->len, true, &request) && jinja_dict_new(c, &vars);
    if (ok && request.kind != JINJA_DICT) {
        ok = jinja_fail(c, STATUS_INVALID, "the input must be a JSON object");
    }
    const struct jinja_value *f = ok ? field(request, "continue_final_message") : NULL;
    bool continues = !in->variables && f && jinja_truth(*f);
    ok = ok && (in->variables ? set_variables(c, t, request, vars.u.dict)
                              : set_chat(c, t, request, vars.u.dict, continues));
    if (!ok) return error_set(e, c->error.status, "messages", "%s", c->error.message);
    enum status s = jinja_render(t->jinja, c, vars, &text, e);
    if (s != STATUS_OK) return error_set(e, s, "messages", "%s", c->error.message);
    if (continues && !cut_behind(c, final_text(request), &text)) {
        return error_set(e, c->error.status, "messages", "%s", c->error.message);
    }
    return export_text(text, out, e);
}

enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct chore *chore, struct rendered *out, struct error *e) {
    struct jinja_ctx c;
    *out = (struct rendered){0};
    jinja_ctx_init(&c, in->limits);
    c.chore = chore;
    c.now_s = in->now_s;
    enum status s = render_with(t, in, &c, out, e);
    jinja_ctx_free(&c);
    return s;
}

/* ---- probes ---- */

/* Whether the probe renders and its needle is in the text, and `not_there` (may be NULL) is not. */
static bool probe(const struct chat_template *t, const char *json, const char *not_there) {
    struct jinja_limits limits = {
        .memory_bytes = 8 << 20, .output_bytes = 1 << 20, .steps = 200000};
    struct chat_input in = {.json = json, .len = strlen(json), .limits = &limits};
    struct rendered r;
    if (chat_template_render(t, &in, NULL, &r, NULL) != STATUS_OK) return false;
    bool yes = strstr(r.text, "PROBE") && !(not_there && strstr(r.text, not_there));
    rendered_free(&r);
    return yes;
}

static void find_forms(struct chat_template *t) {
    bool text = probe(t, "{\"messages\":[{\"role\":\"user\",\"content\":\"PROBE\"}]}", NULL);
    bool parts = probe(t,
                       "{\"messages\":[{\"role\":\"user\",\"content\":"
                       "[{\"type\":\"text\",\"text\":\"PROBE\"}]}]}",
                       "type");
    t->content = text && !parts ? CONTENT_TEXT : parts && !text ? CONTENT_PARTS : CONTENT_ANY;
#define CALL(arguments)                                                                            \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","               \
    "\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":"   \
    "{\"name\":\"f\",\"arguments\":" arguments "}}]},{\"role\":\"tool\",\"tool_call_id\":"         \
    "\"call00001\",\"name\":\"f\",\"content\":\"ok\"}]}"
    bool object = probe(t, CALL("{\"PROBE\":1}"), NULL);
    t->arguments_as_text = true; /* else the next probe's text would be parsed */
    t->arguments_as_text = !object && probe(t, CALL("\"{\\\"PROBE\\\":1}\""), NULL);
#undef CALL
}

enum status chat_template_compile(const char *text, size_t len, const char *bos, const char *eos,
                                  struct chat_template **out, struct error *e) {
    *out = NULL;
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the template");
    enum status s = jinja_compile(text, len, &t->jinja, e);
    if (s == STATUS_OK) {
        t->bos = bos ? strdup(bos) : NULL;
        t->eos = eos ? strdup(eos) : NULL;
        if ((bos && !t->bos) || (eos && !t->eos)) {
            s = error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the template");
        }
    }
    if (s != STATUS_OK) {
        chat_template_free(t);
        return s;
    }
    find_forms(t);
    *out = t;
    return STATUS_OK;
}

/* The text of the token that an id key names, for the caller to free; NULL when there is none. */
static char *token_text(const struct gguf *g, const char *key) {
    uint64_t id;
    size_t n;
    enum gguf_type type;
    if (!gguf_u64(g, key, &id) || !gguf_array(g, "tokenizer.ggml.tokens", &type, &n)) return NULL;
    if (type != GGUF_STRING || id >= n) return NULL;
    struct gguf_string s = gguf_array_str(g, "tokenizer.ggml.tokens", (size_t)id);
    return strndup(s.data, s.len);
}

enum status chat_template_load(const struct gguf *g, struct chat_template **out, struct error *e) {
    struct gguf_string text;
    *out = NULL;
    if (!gguf_str(g, "tokenizer.chat_template", &text)) {
        return error_set(e, STATUS_NOT_FOUND, NULL, "the model has no chat template");
    }
    char *bos = token_text(g, "tokenizer.ggml.bos_token_id");
    char *eos = token_text(g, "tokenizer.ggml.eos_token_id");
    enum status s = chat_template_compile(text.data, text.len, bos, eos, out, e);
    free(bos);
    free(eos);
    return s;
}

void chat_template_free(struct chat_template *t) {
    if (!t) return;
    jinja_free(t->jinja);
    free(t->bos);
    free(t->eos);
    free(t);
}
