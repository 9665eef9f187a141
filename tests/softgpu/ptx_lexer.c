#include "tests/softgpu/ptx_lexer.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
static bool is_word(char c) {
    return is_letter(c) || is_digit(c);
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* False: a comment that does not end. */
static bool skip_blank(struct ptx_lexer *l) {
    while (l->at < l->end) {
        const char c = *l->at;
        const char next = l->end - l->at > 1 ? l->at[1] : 0;
        if (c == '\n') {
            l->line++;
            l->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == 0) {
            l->at++;
        } else if ((c == '/' && next == '/') || c == '#') {
            while (l->at < l->end && *l->at != '\n') l->at++;
        } else if (c == '/' && next == '*') {
            l->at += 2;
            while (l->end - l->at > 1 && !(l->at[0] == '*' && l->at[1] == '/')) {
                if (*l->at == '\n') l->line++;
                l->at++;
            }
            if (l->end - l->at < 2) return false;
            l->at += 2;
        } else {
            break;
        }
    }
    return true;
}

static void decimal_float(struct ptx_lexer *l, struct ptx_token *t) {
    char copy[64];
    size_t n = 0;
    const char *p = l->at;
    while (p < l->end && n < sizeof copy - 1) {
        const bool exponent_sign = (*p == '+' || *p == '-') && n && (p[-1] == 'e' || p[-1] == 'E');
        if (!is_digit(*p) && *p != '.' && *p != 'e' && *p != 'E' && !exponent_sign) break;
        copy[n++] = *p++;
    }
    copy[n] = 0;
    char *stop;
    const double d = strtod(copy, &stop);
    if (*stop || n == 0) {
        t->kind = PTX_TOKEN_BAD;
        return;
    }
    memcpy(&t->bits, &d, sizeof d);
    t->kind = PTX_TOKEN_FLOAT64;
    l->at = p;
}

static void number(struct ptx_lexer *l, struct ptx_token *t) {
    const char *p = l->at;
    const char second = l->end - p > 1 ? p[1] : 0;
    unsigned base = 10, digits = 0;
    t->kind = PTX_TOKEN_INTEGER;
    if (*p == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
        const bool single = second == 'f' || second == 'F';
        base = 16;
        t->kind = single ? PTX_TOKEN_FLOAT32 : PTX_TOKEN_FLOAT64;
        p += 2;
        while (p < l->end && hex_digit(*p) >= 0 && digits < (single ? 8u : 16u)) {
            t->bits = t->bits << 4 | (uint64_t)hex_digit(*p++);
            digits++;
        }
        if (digits != (single ? 8u : 16u)) t->kind = PTX_TOKEN_BAD;
        l->at = p;
        return;
    }
    if (*p == '0' && (second == 'x' || second == 'X')) {
        base = 16;
        p += 2;
    } else if (*p == '0' && (second == 'b' || second == 'B')) {
        base = 2;
        p += 2;
    } else {
        const char *q = p;
        while (q < l->end && is_digit(*q)) q++;
        if (q < l->end && (*q == '.' || *q == 'e' || *q == 'E')) {
            decimal_float(l, t);
            return;
        }
        if (*p == '0') base = 8;
    }
    for (; p < l->end; p++, digits++) {
        const int d = hex_digit(*p);
        if (d < 0 || (unsigned)d >= base) break;
        if (t->bits > (UINT64_MAX - (unsigned)d) / base) {
            t->kind = PTX_TOKEN_BAD;
            return;
        }
        t->bits = t->bits * base + (unsigned)d;
    }
    if (!digits) t->kind = PTX_TOKEN_BAD;
    if (p < l->end && (*p == 'U' || *p == 'u')) p++;
    l->at = p;
}

struct ptx_token ptx_lexer_next(struct ptx_lexer *l) {
    struct ptx_token t = {.kind = PTX_TOKEN_BAD};
    const bool whole = skip_blank(l);
    t.text = l->at;
    t.line = l->line;
    if (!whole) return t;
    if (l->at == l->end) {
        t.kind = PTX_TOKEN_END;
        return t;
    }
    const char c = *l->at;
    if (is_letter(c)) {
        while (l->at < l->end && is_word(*l->at)) l->at++;
        t.kind = PTX_TOKEN_NAME;
    } else if (is_digit(c)) {
        number(l, &t);
    } else if (c == '.' && l->end - l->at > 1 && is_word(l->at[1])) {
        t.text = ++l->at;
        while (l->at < l->end) {
            if (is_word(*l->at)) {
                l->at++;
            } else if (l->end - l->at > 2 && l->at[0] == ':' && l->at[1] == ':' &&
                       is_word(l->at[2])) {
                l->at += 2;
            } else {
                break;
            }
        }
        t.kind = PTX_TOKEN_DOT;
    } else if (c == '"') {
        t.text = ++l->at;
        while (l->at < l->end && *l->at != '"' && *l->at != '\n') l->at++;
        if (l->at == l->end || *l->at != '"') return t;
        t.kind = PTX_TOKEN_STRING;
        t.len = (size_t)(l->at - t.text);
        l->at++;
        return t;
    } else if (memchr("{}[]()<>,;:@!|+-=*~", c, 19)) {
        l->at++;
        t.kind = PTX_TOKEN_PUNCT;
    }
    t.len = (size_t)(l->at - t.text);
    return t;
}

bool ptx_token_is(const struct ptx_token *t, const char *word) {
    return (t->kind == PTX_TOKEN_NAME || t->kind == PTX_TOKEN_DOT) && t->len == strlen(word) &&
           !memcmp(t->text, word, t->len);
}

bool ptx_token_punct(const struct ptx_token *t, char c) {
    return t->kind == PTX_TOKEN_PUNCT && t->text[0] == c;
}
