#include "models/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20, MAX_BRACKETS = 256 };

struct lexer {
    struct jinja_ctx *c;
    struct jinja_tokens *out;
    const char *s; /* newlines normalised, NUL behind */
    size_t n, at;
    uint32_t line;
    size_t counted; /* newlines before this byte are in `line` */
    bool line_starting;
};

static uint32_t line_of(struct lexer *l) {
    for (; l->counted < l->at; l->counted++) l->line += l->s[l->counted] == '\n';
    return l->line;
}

static bool bad(struct lexer *l, const char *why) {
    return jinja_fail(l->c, STATUS_TEMPLATE, "template line %u: %s", line_of(l), why);
}

static bool push(struct lexer *l, struct jinja_token t) {
    struct jinja_tokens *o = l->out;
    if (o->n == o->cap) {
        uint32_t cap = o->cap ? o->cap * 2 : 256;
        if (cap > MAX_TOKENS)
            return jinja_fail(l->c, STATUS_TOO_LARGE, "template has too many tokens");
        struct jinja_token *items = jinja_alloc(l->c, cap * sizeof *items);
        if (!items) return false;
        if (o->n) memcpy(items, o->items, o->n * sizeof *items);
        o->items = items;
        o->cap = cap;
    }
    t.line = line_of(l);
    o->items[o->n++] = t;
    return true;
}

/* Bytes of the whitespace character at `at`; 0 when there is none. */
static size_t space_at(const struct lexer *l, size_t at) {
    if (at >= l->n) return 0;
    uint32_t cp;
    unsigned len = jinja_utf8(l->s + at, &cp);
    return jinja_is_space(cp) ? len : 0;
}

static void skip_space(struct lexer *l) {
    for (size_t w; (w = space_at(l, l->at)) != 0;) l->at += w;
}

static bool starts(const struct lexer *l, size_t at, const char *what) {
    size_t n = strlen(what);
    return n <= l->n - at && memcmp(l->s + at, what, n) == 0;
}

/* Text [from, to) in front of a tag with this sign; `lstrip`: the tag is not a {{. */
static bool data(struct lexer *l, size_t from, size_t to, char sign, bool lstrip) {
    if (sign == '-') {
        while (to > from) {
            size_t p = to - 1;
            while (p > from && (l->s[p] & 0xC0) == 0x80) p--;
            if (!space_at(l, p)) break;
            to = p;
        }
    } else if (sign != '+' && lstrip) {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n') line--;
        if (line > from || l->line_starting) {
            size_t p = line;
            for (size_t w; p < to && (w = space_at(l, p)) != 0;) p += w;
            if (p == to) to = line;
        }
    }
    if (to == from) return true;
    return push(l, (struct jinja_token){
                       .kind = TOKEN_DATA, .text = l->s + from, .len = (uint32_t)(to - from)});
}

/* At the sign or the end mark of a tag: consumes both and the whitespace that goes with them. */
static void close_tag(struct lexer *l, char sign, bool trim_newline) {
    size_t from = l->at;
    l->at += sign ? 3 : 2;
    if (sign == '-') {
        skip_space(l);
    } else if (!sign && trim_newline && l->at < l->n && l->s[l->at] == '\n') {
        l->at++;
    }
    l->line_starting = l->at > from && l->s[l->at - 1] == '\n';
}

static char sign_at(const struct lexer *l, size_t at) {
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : '\0';
}

/* {% raw %} at `tag`: its end is found and *body is where its text starts. */
static bool is_block_named(const struct lexer *l, size_t tag, const char *name, size_t *end) {
    struct lexer k = *l;
    k.at = tag + 2;
    if (sign_at(&k, k.at)) k.at++;
    skip_space(&k);
    if (!starts(&k, k.at, name)) return false;
    k.at += strlen(name);
    skip_space(&k);
    size_t at = k.at;
    if (sign_at(&k, at)) at++;
    if (!starts(&k, at, "%}")) return false;
    *end = k.at;
    return true;
}

static bool raw(struct lexer *l, size_t end) {
    l->at = end;
    if (l->s[end] == '+') return bad(l, "unexpected '+' at the end of raw");
    close_tag(l, sign_at(l, end), false);
    size_t from = l->at;
    for (size_t p = from; p + 1 < l->n; p++) {
        if (l->s[p] != '{' || l->s[p + 1] != '%' || !is_block_named(l, p, "endraw", &end)) continue;
        if (!data(l, from, p, sign_at(l, p + 2), true)) return false;
        l->at = end;
        close_tag(l, sign_at(l, end), true);
        return true;
    }
    return bad(l, "missing end of raw directive");
}

static bool comment(struct lexer *l, size_t from) {
    const char *end = memmem(l->s + from, l->n - from, "#}", 2);
    if (!end) return bad(l, "missing end of comment tag");
    size_t at = (size_t)(end - l->s);
    char sign = at > from ? sign_at(l, at - 1) : '\0';
    l->at = sign ? at - 1 : at;
    close_tag(l, sign, true);
    return true;
}

static bool is_name(unsigned char ch, bool first) {
    return ch == '_' || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch >= 0x80 ||
           (!first && ch >= '0' && ch <= '9');
}

static bool is_digit(char ch) {
    return ch >= '0' && ch <= '9';
}

static int hex_digit(char ch) {
    if (is_digit(ch)) return ch - '0';
    if (ch >= 'a' && ch <= 'f') return ch - 'a' + 10;
    if (ch >= 'A' && ch <= 'F') return ch - 'A' + 10;
    return -1;
}

/* `digits` hex digits at l->at. */
static bool hex(struct lexer *l, unsigned digits, uint32_t *cp) {
    *cp = 0;
    for (unsigned i = 0; i < digits; i++, l->at++) {
        int d = l->at < l->n ? hex_digit(l->s[l->at]) : -1;
        if (d < 0) return bad(l, "truncated \\x, \\u or \\U escape in a string");
        *cp = *cp << 4 | (uint32_t)d;
    }
    return true;
}

/* The escape behind a backslash at l->at - 1. */
static bool escape(struct lexer *l, struct jinja_sb *sb) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char ch = l->s[l->at++], utf8[4];
    const char *p = ch ? strchr(from, ch) : NULL;
    if (p) return jinja_sb_put(sb, &to[p - from], 1, false);
    if (ch == '\n') return true;
    uint32_t cp = 0;
    if (ch >= '0' && ch <= '7') {
        cp = (uint32_t)(ch - '0');
        for (int i = 0; i < 2 && l->s[l->at] >= '0' && l->s[l->at] <= '7'; i++) {
            cp = cp * 8 + (uint32_t)(l->s[l->at++] - '0');
        }
    } else if (ch == 'x' || ch == 'u' || ch == 'U') {
        if (!hex(l, ch == 'x' ? 2 : ch == 'u' ? 4 : 8, &cp)) return false;
        if (cp >= 0xD800 && cp < 0xDC00 && starts(l, l->at, "\\u")) {
            uint32_t low;
            l->at += 2;
            if (!hex(l, 4, &low)) return false;
            cp = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00)
                                               : 0xFFFD;
        }
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) cp = 0xFFFD;
    } else if (ch == 'N') {
        return bad(l, "\\N{...} escapes are not supported");
    } else {
        l->at--;
        return jinja_sb_put(sb, "\\", 1, false);
    }
    return jinja_sb_put(sb, utf8, jinja_utf8_put(cp, utf8), false);
}

static bool string(struct lexer *l) {
    char quote = l->s[l->at];
    struct jinja_sb sb;
    struct jinja_value v;
    jinja_sb_init(&sb, l->c);
    l->at++;
    for (;;) {
        size_t from = l->at;
        while (l->at < l->n && l->s[l->at] != quote && l->s[l->at] != '\\') l->at++;
        if (l->at >= l->n) return bad(l, "string without an end");
        if (!jinja_sb_put(&sb, l->s + from, l->at - from, false)) return false;
        if (l->s[l->at++] == quote) break;
        if (l->at >= l->n) return bad(l, "string without an end");
        if (!escape(l, &sb)) return false;
    }
    if (!jinja_sb_finish(&sb, &v)) return false;
    return push(l,
                (struct jinja_token){.kind = TOKEN_STRING, .text = v.u.s->data, .len = v.u.s->len});
}

/* Digits with single underscores between them; returns where they end. */
static size_t digits(const struct lexer *l, size_t at) {
    while (at < l->n &&
           (is_digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->n && is_digit(l->s[at + 1])))) {
        at++;
    }
    return at;
}

static bool number(struct lexer *l) {
    char text[64];
    size_t from = l->at, end = digits(l, from), n = 0;
    bool is_float = false;
    unsigned base = 10;
    if (from == 0 || l->s[from - 1] != '.') {
        if (end + 1 < l->n && l->s[end] == '.' && is_digit(l->s[end + 1])) {
            end = digits(l, end + 1);
            is_float = true;
        }
        size_t e = end + 1;
        if (end < l->n && (l->s[end] == 'e' || l->s[end] == 'E')) {
            if (e < l->n && (l->s[e] == '+' || l->s[e] == '-')) e++;
            if (e < l->n && is_digit(l->s[e])) {
                end = digits(l, e);
                is_float = true;
            }
        }
    }
    if (!is_float && l->s[from] == '0' && end == from + 1) {
        char b = (char)(l->s[end] | 0x20);
        base = b == 'x' ? 16 : b == 'o' ? 8 : b == 'b' ? 2 : 10;
        size_t p = end + 1;
        if (base != 10) {
            if (l->s[p] == '_') p++;
            size_t first = p;
            for (int d; p < l->n; p++) {
                d = hex_digit(l->s[p]);
                if (l->s[p] != '_' && (d < 0 || (unsigned)d >= base)) break;
            }
            if (p == first) return bad(l, "bad number");
            from = end + 1;
            end = p;
        }
    } else if (!is_float && l->s[from] == '0') {
        while (end > from + 1 && strspn(l->s + from, "0_") < end - from) end--;
    }
    for (size_t i = from; i < end; i++) {
        if (l->s[i] == '_') continue;
        if (n + 1 >= sizeof text) return bad(l, "number with too many digits");
        text[n++] = l->s[i];
    }
    text[n] = '\0';
    struct jinja_token t = {.kind = is_float ? TOKEN_FLOAT : TOKEN_INT};
    if (is_float) {
        t.f = strtod(text, NULL);
    } else {
        for (size_t i = 0; i < n; i++) {
            if (__builtin_mul_overflow(t.i, (int64_t)base, &t.i) ||
                __builtin_add_overflow(t.i, (int64_t)hex_digit(text[i]), &t.i)) {
                return bad(l, "integer of more than 64 bits");
            }
        }
    }
    l->at = end;
    return push(l, t);
}

static bool operator(struct lexer *l, char *brackets, unsigned *depth) {
    static const char two[][3] = {"==", "!=", ">=", "<=", "//", "**"};
    struct jinja_token t = {.kind = TOKEN_OP};
    char ch = l->s[l->at];
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (!starts(l, l->at, two[i])) continue;
        memcpy(t.op, two[i], 3);
        l->at += 2;
        return push(l, t);
    }
    if (!ch || !strchr("+-/*%~[](){}<>=.:|,;", ch)) return bad(l, "unexpected character");
    if (strchr("([{", ch)) {
        if (*depth == MAX_BRACKETS) return jinja_fail(l->c, STATUS_TOO_LARGE, "too many brackets");
        brackets[(*depth)++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
    } else if (strchr(")]}", ch)) {
        if (*depth == 0 || brackets[*depth - 1] != ch) return bad(l, "unexpected closing bracket");
        (*depth)--;
    }
    t.op[0] = ch;
    l->at++;
    return push(l, t);
}

/* Inside {{ or {%, up to and with its end. */
static bool expression(struct lexer *l, bool block) {
    const char *mark = block ? "%}" : "}}";
    char brackets[MAX_BRACKETS];
    unsigned depth = 0;
    for (;;) {
        skip_space(l);
        if (l->at >= l->n) return bad(l, block ? "'{%' without '%}'" : "'{{' without '}}'");
        char sign = sign_at(l, l->at), ch = l->s[l->at];
        if (sign == '+' && !block) sign = '\0';
        if (depth == 0 && starts(l, l->at + (sign ? 1 : 0), mark)) {
            struct jinja_token t = {.kind = block ? TOKEN_BLOCK_END : TOKEN_VAR_END};
            if (!push(l, t)) return false;
            close_tag(l, sign, block);
            return true;
        }
        bool ok;
        if (is_digit(ch)) {
            ok = number(l);
        } else if (is_name((unsigned char)ch, true)) {
            size_t from = l->at;
            while (l->at < l->n && is_name((unsigned char)l->s[l->at], false)) l->at++;
            ok = push(l, (struct jinja_token){.kind = TOKEN_NAME,
                                              .text = l->s + from,
                                              .len = (uint32_t)(l->at - from)});
        } else if (ch == '"' || ch == '\'') {
            ok = string(l);
        } else {
            ok = operator(l, brackets, &depth);
        }
        if (!ok) return false;
    }
}

static bool normalise(struct lexer *l, const char *text, size_t len) {
    char *s = jinja_alloc(l->c, len + 4);
    if (!s) return false;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r') {
            if (i + 1 < len && text[i + 1] == '\n') i++;
            s[n++] = '\n';
        } else {
            s[n++] = text[i];
        }
    }
    if (n && s[n - 1] == '\n') s[--n] = '\0';
    l->s = s;
    l->n = n;
    return true;
}

bool jinja_lex(struct jinja_ctx *c, const char *text, size_t len, struct jinja_tokens *out) {
    struct lexer l = {.c = c, .out = out, .line = 1, .line_starting = true};
    *out = (struct jinja_tokens){0};
    if (jinja_utf8_valid(text, len) != len) {
        return jinja_fail(c, STATUS_TEMPLATE, "template is not UTF-8");
    }
    if (!normalise(&l, text, len)) return false;
    while (l.at < l.n) {
        size_t from = l.at, tag = from;
        for (;; tag++) {
            const char *p = memchr(l.s + tag, '{', l.n - tag);
            tag = p ? (size_t)(p - l.s) : l.n;
            if (tag + 1 >= l.n) tag = l.n;
            if (tag == l.n || strchr("{%#", l.s[tag + 1])) break;
        }
        if (tag < l.n && l.s[tag + 1] == '\0') return bad(&l, "unexpected NUL");
        if (tag == l.n) {
            if (!data(&l, from, l.n, '\0', false)) return false;
            l.at = l.n;
            break;
        }
        char kind = l.s[tag + 1], sign = sign_at(&l, tag + 2);
        if (!data(&l, from, tag, sign, kind != '{')) return false;
        l.at = tag + 2 + (sign ? 1 : 0);
        l.line_starting = false;
        size_t end;
        bool ok;
        if (kind == '#') {
            ok = comment(&l, l.at);
        } else if (kind == '%' && is_block_named(&l, tag, "raw", &end)) {
            ok = raw(&l, end);
        } else {
            struct jinja_token t = {.kind = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_VAR_BEGIN};
            ok = push(&l, t) && expression(&l, kind == '%');
        }
        if (!ok) return false;
    }
    return push(&l, (struct jinja_token){.kind = TOKEN_EOF});
}
