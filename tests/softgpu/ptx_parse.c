#include "tests/softgpu/ptx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/ptx_parser.h"

void parse_fail(struct ptx_parser *p, enum status s, const char *fmt, ...) {
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->status = error_set(p->error, s, NULL, "PTX line %u: %s", p->token.line, text);
    longjmp(p->out, 1);
}

void *parse_take(struct ptx_parser *p, size_t bytes) {
    void *m = bump_take(p->bump, bytes);
    if (!m) parse_fail(p, STATUS_NO_MEMORY, "no memory for %zu bytes", bytes);
    return m;
}

void *parse_grow(struct ptx_parser *p, void *items, size_t n, size_t *cap, size_t item_bytes) {
    void *m = bump_grow(p->bump, items, n, cap, item_bytes);
    if (!m) parse_fail(p, STATUS_NO_MEMORY, "no memory for %zu items", n);
    return m;
}

char *parse_string(struct ptx_parser *p, const struct ptx_token *t) {
    char *s = bump_string(p->bump, t->text, t->len);
    if (!s) parse_fail(p, STATUS_NO_MEMORY, "no memory for a name");
    return s;
}

void parse_advance(struct ptx_parser *p) {
    p->token = ptx_lexer_next(&p->lexer);
    if (p->token.kind == PTX_TOKEN_BAD) parse_fail(p, STATUS_INVALID, "not PTX");
}

bool parse_accept(struct ptx_parser *p, char punct) {
    if (!ptx_token_punct(&p->token, punct)) return false;
    parse_advance(p);
    return true;
}

void parse_expect(struct ptx_parser *p, char punct) {
    if (!parse_accept(p, punct))
        parse_fail(p, STATUS_INVALID, "expected '%c' before '%.*s'", punct,
                   (int)(p->token.len < 40 ? p->token.len : 40), p->token.text);
}

uint64_t parse_integer(struct ptx_parser *p) {
    const bool minus = parse_accept(p, '-');
    if (p->token.kind != PTX_TOKEN_INTEGER) parse_fail(p, STATUS_INVALID, "expected an integer");
    const uint64_t v = p->token.bits;
    parse_advance(p);
    return minus ? 0 - v : v;
}

static const struct {
    const char *name;
    enum ptx_type type;
    uint32_t bytes;
} type_table[] = {
    {"pred", PTX_PRED, 1},  {"b8", PTX_B8, 1},         {"u8", PTX_U8, 1},
    {"s8", PTX_S8, 1},      {"b16", PTX_B16, 2},       {"u16", PTX_U16, 2},
    {"s16", PTX_S16, 2},    {"f16", PTX_F16, 2},       {"bf16", PTX_BF16, 2},
    {"b32", PTX_B32, 4},    {"u32", PTX_U32, 4},       {"s32", PTX_S32, 4},
    {"f32", PTX_F32, 4},    {"f16x2", PTX_F16X2, 4},   {"bf16x2", PTX_BF16X2, 4},
    {"tf32", PTX_TF32, 4},  {"b64", PTX_B64, 8},       {"u64", PTX_U64, 8},
    {"s64", PTX_S64, 8},    {"f64", PTX_F64, 8},       {"f32x2", PTX_F32X2, 8},
    {"b128", PTX_B128, 16}, {"e4m3x2", PTX_E4M3X2, 2}, {"e5m2x2", PTX_E5M2X2, 2},
};

uint32_t ptx_type_bytes(enum ptx_type t) {
    for (size_t i = 0; i < sizeof type_table / sizeof *type_table; i++)
        if (type_table[i].type == t) return type_table[i].bytes;
    return 0;
}

bool parse_type(const struct ptx_token *t, enum ptx_type *out) {
    for (size_t i = 0; i < sizeof type_table / sizeof *type_table; i++) {
        if (t->kind != PTX_TOKEN_DOT || !ptx_token_is(t, type_table[i].name)) continue;
        *out = type_table[i].type;
        return true;
    }
    return false;
}

bool parse_space(const struct ptx_token *t, enum ptx_space *out) {
    static const struct {
        const char *name;
        enum ptx_space space;
    } table[] = {{"global", PTX_SPACE_GLOBAL},
                 {"shared", PTX_SPACE_SHARED},
                 {"local", PTX_SPACE_LOCAL},
                 {"const", PTX_SPACE_CONST},
                 {"param", PTX_SPACE_PARAM}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (t->kind != PTX_TOKEN_DOT || !ptx_token_is(t, table[i].name)) continue;
        *out = table[i].space;
        return true;
    }
    return false;
}

/* One element of an initialiser into v at *offset. */
static void initial_value(struct ptx_parser *p, struct ptx_variable *v, enum ptx_type type,
                          uint8_t *bytes, uint64_t *offset, size_t *cap_fixups) {
    const uint32_t size = ptx_type_bytes(type);
    if (*offset + size > v->size_bytes) parse_fail(p, STATUS_INVALID, "too many initial values");
    uint64_t bits = 0;
    const bool minus = parse_accept(p, '-');
    const struct ptx_token t = p->token;
    if (t.kind == PTX_TOKEN_INTEGER) {
        bits = minus ? 0 - t.bits : t.bits;
        parse_advance(p);
    } else if (t.kind == PTX_TOKEN_FLOAT32 || t.kind == PTX_TOKEN_FLOAT64) {
        double d;
        memcpy(&d, &t.bits, sizeof d);
        if (t.kind == PTX_TOKEN_FLOAT32) {
            float f;
            const uint32_t low = (uint32_t)t.bits;
            memcpy(&f, &low, sizeof f);
            d = (double)f;
        }
        if (minus) d = -d;
        if (type == PTX_F32) {
            const float f = (float)d;
            uint32_t low;
            memcpy(&low, &f, sizeof low);
            bits = low;
        } else {
            memcpy(&bits, &d, sizeof bits);
        }
        parse_advance(p);
    } else if (t.kind == PTX_TOKEN_NAME && !minus && size == 8) {
        bool generic = ptx_token_is(&t, "generic");
        if (generic) {
            parse_advance(p);
            parse_expect(p, '(');
        }
        uint32_t found = UINT32_MAX;
        for (uint32_t i = 0; i < p->module->n_variables; i++)
            if (ptx_token_is(&p->token, p->module->variables[i].name)) found = i;
        if (found == UINT32_MAX)
            parse_fail(p, STATUS_INVALID, "unknown variable %.*s in an initialiser",
                       (int)p->token.len, p->token.text);
        parse_advance(p);
        if (generic) parse_expect(p, ')');
        if (parse_accept(p, '+')) bits = parse_integer(p);
        v->fixups = parse_grow(p, v->fixups, v->n_fixups, cap_fixups, sizeof *v->fixups);
        v->fixups[v->n_fixups++] = (struct ptx_fixup){(uint32_t)*offset, found};
    } else {
        parse_fail(p, STATUS_INVALID, "an initial value of a kind that is not known here");
    }
    memcpy(bytes + *offset, &bits, size);
    *offset += size;
}

static void initial_list(struct ptx_parser *p, struct ptx_variable *v, enum ptx_type type,
                         uint8_t *bytes, uint64_t *offset, size_t *cap_fixups, int depth) {
    if (depth > PTX_MAX_DEPTH) parse_fail(p, STATUS_TOO_LARGE, "initialiser nested too deep");
    if (!parse_accept(p, '{')) {
        initial_value(p, v, type, bytes, offset, cap_fixups);
        return;
    }
    if (parse_accept(p, '}')) return;
    do initial_list(p, v, type, bytes, offset, cap_fixups, depth + 1);
    while (parse_accept(p, ','));
    parse_expect(p, '}');
}

void parse_variable(struct ptx_parser *p, enum ptx_space space, bool external, bool parameter,
                    struct ptx_variable *out) {
    struct ptx_variable v = {.space = space, .external = external, .line = p->token.line};
    enum ptx_type type = PTX_NONE;
    uint32_t vector = 1;
    while (p->token.kind == PTX_TOKEN_DOT) {
        const struct ptx_token t = p->token;
        parse_advance(p);
        if (ptx_token_is(&t, "align")) {
            v.align_bytes = (uint32_t)parse_integer(p);
            if (v.align_bytes == 0 || v.align_bytes > 4096 || (v.align_bytes & (v.align_bytes - 1)))
                parse_fail(p, STATUS_INVALID, "alignment is no power of two up to 4096");
        } else if (ptx_token_is(&t, "v2")) {
            vector = 2;
        } else if (ptx_token_is(&t, "v4")) {
            vector = 4;
        } else if (ptx_token_is(&t, "attribute")) {
            while (!parse_accept(p, ')')) parse_advance(p);
        } else if (ptx_token_is(&t, "ptr") || ptx_token_is(&t, "global") ||
                   ptx_token_is(&t, "const") || ptx_token_is(&t, "shared") ||
                   ptx_token_is(&t, "local") || ptx_token_is(&t, "unified")) {
            /* hints about a pointer parameter; its .align is the pointee's */
            if (ptx_token_is(&t, "ptr")) {
                while (p->token.kind == PTX_TOKEN_DOT) {
                    const bool align = ptx_token_is(&p->token, "align");
                    parse_advance(p);
                    if (align) (void)parse_integer(p);
                }
            }
        } else if (!parse_type(&t, &type)) {
            parse_fail(p, STATUS_INVALID, "unknown attribute .%.*s of a variable", (int)t.len,
                       t.text);
        }
    }
    if (type == PTX_NONE || p->token.kind != PTX_TOKEN_NAME)
        parse_fail(p, STATUS_INVALID, "a variable needs a type and a name");
    v.name = parse_string(p, &p->token);
    parse_advance(p);
    const uint32_t element = ptx_type_bytes(type) * vector;
    uint64_t count = 1;
    while (parse_accept(p, '[')) {
        const uint64_t n = ptx_token_punct(&p->token, ']') ? 0 : parse_integer(p);
        if (n > (UINT64_C(1) << 40) || count > (UINT64_C(1) << 40))
            parse_fail(p, STATUS_TOO_LARGE, "array too large");
        count *= n;
        parse_expect(p, ']');
    }
    v.size_bytes = count * element;
    if (v.size_bytes > UINT64_C(1) << 40) parse_fail(p, STATUS_TOO_LARGE, "array too large");
    if (!v.align_bytes) v.align_bytes = element;
    if (!parameter) {
        if (parse_accept(p, '=')) {
            if (v.size_bytes > PTX_MAX_TEXT_BYTES)
                parse_fail(p, STATUS_TOO_LARGE, "initialised array too large");
            uint8_t *bytes = parse_take(p, v.size_bytes + 8);
            uint64_t offset = 0;
            size_t cap_fixups = 0;
            initial_list(p, &v, type, bytes, &offset, &cap_fixups, 0);
            v.initial = bytes;
        }
        parse_expect(p, ';');
    }
    *out = v;
}

void parse_loc(struct ptx_parser *p) {
    p->source_file = (uint32_t)parse_integer(p);
    p->source_line = (uint32_t)parse_integer(p);
    (void)parse_integer(p);
    while (parse_accept(p, ',')) {
        const bool at = ptx_token_is(&p->token, "inlined_at");
        parse_advance(p);
        if (at) {
            (void)parse_integer(p);
            (void)parse_integer(p);
            (void)parse_integer(p);
        } else {
            parse_advance(p); /* function_name label */
            if (parse_accept(p, '+')) (void)parse_integer(p);
        }
    }
}

void parse_file(struct ptx_parser *p) {
    const uint64_t index = parse_integer(p);
    if (index > 65535)
        parse_fail(p, STATUS_TOO_LARGE, "file index %llu", (unsigned long long)index);
    if (p->token.kind != PTX_TOKEN_STRING) parse_fail(p, STATUS_INVALID, ".file needs a name");
    char *name = parse_string(p, &p->token);
    parse_advance(p);
    while (parse_accept(p, ',')) (void)parse_integer(p);
    while (p->module->n_files <= index) {
        p->module->files = parse_grow(p, p->module->files, p->module->n_files, &p->cap_files,
                                      sizeof *p->module->files);
        p->module->files[p->module->n_files++] = NULL;
    }
    p->module->files[index] = name;
}

void parse_section(struct ptx_parser *p) {
    while (!ptx_token_punct(&p->token, '{')) {
        if (p->token.kind == PTX_TOKEN_END) parse_fail(p, STATUS_INVALID, "section without body");
        parse_advance(p);
    }
    while (!parse_accept(p, '}')) {
        if (p->token.kind == PTX_TOKEN_END) parse_fail(p, STATUS_INVALID, "section without end");
        parse_advance(p);
    }
}

void parse_pragma(struct ptx_parser *p) {
    while (!parse_accept(p, ';')) {
        if (p->token.kind == PTX_TOKEN_END) parse_fail(p, STATUS_INVALID, "pragma without end");
        parse_advance(p);
    }
}

static struct ptx_param *parse_params(struct ptx_parser *p, uint32_t *n, uint32_t *bytes) {
    struct ptx_param *params = NULL;
    size_t cap = 0;
    uint64_t at = 0;
    *n = 0;
    if (!parse_accept(p, ')')) {
        do {
            if (ptx_token_is(&p->token, "reg"))
                parse_fail(p, STATUS_UNSUPPORTED, ".reg parameters");
            if (!ptx_token_is(&p->token, "param")) parse_fail(p, STATUS_INVALID, "expected .param");
            parse_advance(p);
            struct ptx_variable v;
            parse_variable(p, PTX_SPACE_PARAM, false, true, &v);
            at = (at + v.align_bytes - 1) / v.align_bytes * v.align_bytes;
            if (at + v.size_bytes > 32764) parse_fail(p, STATUS_TOO_LARGE, "parameters too large");
            params = parse_grow(p, params, *n, &cap, sizeof *params);
            params[(*n)++] =
                (struct ptx_param){v.name, (uint32_t)v.size_bytes, v.align_bytes, (uint32_t)at};
            at += v.size_bytes;
        } while (parse_accept(p, ','));
        parse_expect(p, ')');
    }
    if (bytes) *bytes = (uint32_t)at;
    return params;
}

static void parse_triple(struct ptx_parser *p, uint32_t out[3]) {
    out[0] = (uint32_t)parse_integer(p);
    out[1] = out[2] = 1;
    for (int i = 1; i < 3 && parse_accept(p, ','); i++) out[i] = (uint32_t)parse_integer(p);
}

static void parse_function(struct ptx_parser *p, bool kernel) {
    struct ptx_function f = {.kernel = kernel, .line = p->token.line};
    while (p->token.kind == PTX_TOKEN_DOT) parse_advance(p); /* .attribute-like words */
    if (!kernel && parse_accept(p, '(')) f.returns = parse_params(p, &f.n_returns, NULL);
    if (p->token.kind != PTX_TOKEN_NAME) parse_fail(p, STATUS_INVALID, "a function needs a name");
    f.name = parse_string(p, &p->token);
    parse_advance(p);
    if (parse_accept(p, '(')) f.params = parse_params(p, &f.n_params, &f.params_bytes);
    while (p->token.kind == PTX_TOKEN_DOT) {
        const struct ptx_token t = p->token;
        parse_advance(p);
        uint32_t unused[3];
        if (ptx_token_is(&t, "maxntid"))
            parse_triple(p, f.maxntid);
        else if (ptx_token_is(&t, "reqntid"))
            parse_triple(p, f.reqntid);
        else if (ptx_token_is(&t, "reqnctapercluster"))
            parse_triple(p, f.cluster);
        else if (ptx_token_is(&t, "minnctapersm"))
            f.minnctapersm = (uint32_t)parse_integer(p);
        else if (ptx_token_is(&t, "maxnreg"))
            f.maxnreg = (uint32_t)parse_integer(p);
        else if (ptx_token_is(&t, "maxclusterrank"))
            parse_triple(p, unused);
        else if (ptx_token_is(&t, "pragma"))
            parse_pragma(p);
        else if (!ptx_token_is(&t, "noreturn") && !ptx_token_is(&t, "explicitcluster") &&
                 !ptx_token_is(&t, "blocksareclusters"))
            parse_fail(p, STATUS_INVALID, "unknown directive .%.*s", (int)t.len, t.text);
    }
    /* A prototype that was seen before is filled in place, so that its index stays. */
    struct ptx_module *m = p->module;
    uint32_t at = m->n_functions;
    for (uint32_t i = 0; i < m->n_functions; i++)
        if (!strcmp(m->functions[i].name, f.name)) at = i;
    if (at < m->n_functions && m->functions[at].defined && !ptx_token_punct(&p->token, ';'))
        parse_fail(p, STATUS_INVALID, "%s is defined twice", f.name);
    if (at == m->n_functions) {
        m->functions =
            parse_grow(p, m->functions, m->n_functions, &p->cap_functions, sizeof *m->functions);
        m->n_functions++;
    } else if (m->functions[at].defined) {
        parse_expect(p, ';');
        return;
    }
    m->functions[at] = f;
    p->function = &m->functions[at];
    if (parse_accept(p, ';')) return;
    parse_expect(p, '{');
    parse_body(p);
    p->function->defined = true;
}

static void parse_target(struct ptx_parser *p) {
    for (bool first = true; first || parse_accept(p, ','); first = false) {
        const struct ptx_token t = p->token;
        if (t.kind != PTX_TOKEN_NAME) parse_fail(p, STATUS_INVALID, "expected a target");
        if (t.len > 3 && !memcmp(t.text, "sm_", 3)) {
            uint32_t n = 0;
            size_t i = 3;
            for (; i < t.len && i < 7 && t.text[i] >= '0' && t.text[i] <= '9'; i++)
                n = n * 10 + (uint32_t)(t.text[i] - '0');
            p->module->target = n;
            p->module->target_suffix = i < t.len ? t.text[i] : 0;
        }
        parse_advance(p);
    }
}

static void parse_version(struct ptx_parser *p) {
    unsigned major = 0, minor = 0;
    char text[16] = {0};
    memcpy(text, p->token.text, p->token.len < 15 ? p->token.len : 15);
    if (sscanf(text, "%u.%u", &major, &minor) != 2) parse_fail(p, STATUS_INVALID, "bad version");
    p->module->version_major = major;
    p->module->version_minor = minor;
    parse_advance(p);
}

static void parse_module(struct ptx_parser *p) {
    struct ptx_module *m = p->module;
    bool external = false;
    parse_advance(p);
    while (p->token.kind != PTX_TOKEN_END) {
        if (parse_accept(p, ';')) continue;
        if (p->token.kind != PTX_TOKEN_DOT)
            parse_fail(p, STATUS_INVALID, "expected a directive, not '%.*s'",
                       (int)(p->token.len < 40 ? p->token.len : 40), p->token.text);
        const struct ptx_token t = p->token;
        enum ptx_space space;
        parse_advance(p);
        if (ptx_token_is(&t, "version"))
            parse_version(p);
        else if (ptx_token_is(&t, "target"))
            parse_target(p);
        else if (ptx_token_is(&t, "address_size")) {
            if (parse_integer(p) != 64) parse_fail(p, STATUS_UNSUPPORTED, "address size");
        } else if (ptx_token_is(&t, "visible") || ptx_token_is(&t, "weak") ||
                   ptx_token_is(&t, "common")) {
            continue;
        } else if (ptx_token_is(&t, "extern")) {
            external = true;
            continue;
        } else if (ptx_token_is(&t, "file"))
            parse_file(p);
        else if (ptx_token_is(&t, "section"))
            parse_section(p);
        else if (ptx_token_is(&t, "pragma"))
            parse_pragma(p);
        else if (ptx_token_is(&t, "loc"))
            parse_loc(p);
        else if (ptx_token_is(&t, "entry"))
            parse_function(p, true);
        else if (ptx_token_is(&t, "func"))
            parse_function(p, false);
        else if (parse_space(&t, &space)) {
            m->variables = parse_grow(p, m->variables, m->n_variables, &p->cap_variables,
                                      sizeof *m->variables);
            parse_variable(p, space, external, false, &m->variables[m->n_variables]);
            m->n_variables++;
        } else {
            parse_fail(p, STATUS_INVALID, "unknown directive .%.*s", (int)t.len, t.text);
        }
        external = false;
    }
    if (!m->version_major || !m->target) parse_fail(p, STATUS_INVALID, "no .version or no .target");
}

enum status ptx_parse(const char *text, size_t text_bytes, struct ptx_module **out,
                      struct error *e) {
    *out = NULL;
    if (text_bytes > PTX_MAX_TEXT_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "PTX of %zu bytes", text_bytes);
    struct ptx_parser *p = calloc(1, sizeof *p);
    struct bump *bump = calloc(1, sizeof *bump);
    if (!p || !bump) {
        free(p);
        free(bump);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory to parse PTX");
    }
    p->bump = bump;
    p->error = e;
    p->lexer = (struct ptx_lexer){text, text + text_bytes, 1};
    p->token.line = 1;
    if (setjmp(p->out) == 0) {
        p->module = parse_take(p, sizeof *p->module);
        p->module->memory = bump;
        parse_module(p);
        *out = p->module;
        free(p);
        return STATUS_OK;
    }
    const enum status s = p->status;
    free(p);
    bump_free(bump);
    free(bump);
    return s;
}

void ptx_free(struct ptx_module *m) {
    if (!m) return;
    struct bump *bump = m->memory;
    bump_free(bump);
    free(bump);
}

const struct ptx_function *ptx_find_kernel(const struct ptx_module *m, const char *name) {
    for (uint32_t i = 0; i < m->n_functions; i++)
        if (m->functions[i].kernel && m->functions[i].defined &&
            !strcmp(m->functions[i].name, name))
            return &m->functions[i];
    return NULL;
}
