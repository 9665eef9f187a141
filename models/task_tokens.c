#include "models/task_tokens.h"

#include <stdbool.h>

#include "models/unicode.h"

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

uint64_t task_hash_add(uint64_t sequence, uint64_t token_hash) {
    return mix(sequence * UINT64_C(0x9e3779b97f4a7c15) + token_hash);
}

enum char_kind { CHAR_SPACE, CHAR_BREAK, CHAR_LETTER, CHAR_DIGIT, CHAR_HAN, CHAR_SIGN };

static enum char_kind kind_of(uint32_t cp) {
    if (cp < 128) {
        const uint32_t letter = cp | 32;
        if (letter >= 'a' && letter <= 'z') return CHAR_LETTER;
        if (cp >= '0' && cp <= '9') return CHAR_DIGIT;
        if (cp == '\n' || cp == '\r') return CHAR_BREAK;
        return cp <= ' ' || cp == 127 ? CHAR_SPACE : CHAR_SIGN;
    }
    if (cp >= 0x4e00 && cp <= 0x9fff) return CHAR_HAN;
    if (unicode_is_space(cp)) return cp == 0x2028 || cp == 0x2029 ? CHAR_BREAK : CHAR_SPACE;
    if (cp >= 0xff10 && cp <= 0xff19) return CHAR_DIGIT;
    if (unicode_is_han(cp)) return CHAR_HAN;
    switch (unicode_category(cp)) {
    case UNICODE_LL:
    case UNICODE_LM:
    case UNICODE_LO:
    case UNICODE_LT:
    case UNICODE_LU:
    case UNICODE_MC:
    case UNICODE_MN:
        return CHAR_LETTER;
    case UNICODE_ND:
        return CHAR_DIGIT;
    case UNICODE_CC:
    case UNICODE_CF:
        return CHAR_SPACE;
    default:
        return CHAR_SIGN;
    }
}

/* Full-width forms and the marks of Chinese typography as the ASCII sign of the same use. */
static uint32_t plain_sign(uint32_t cp) {
    if (cp >= 0xff01 && cp <= 0xff5e) return cp - 0xfee0;
    switch (cp) {
    case 0x3002: /* ideographic full stop */
        return '.';
    case 0x3001: /* ideographic comma */
        return ',';
    case 0x201c:
    case 0x201d:
    case 0x300c:
    case 0x300d:
    case 0x300e:
    case 0x300f:
        return '"';
    case 0x2018:
    case 0x2019:
        return '\'';
    case 0x3010:
    case 0x3014:
        return '[';
    case 0x3011:
    case 0x3015:
        return ']';
    case 0x2014:
        return '-';
    default:
        return cp;
    }
}

struct reader {
    const char *text;
    size_t len, at;
    size_t max_cps, n_cps;
    uint32_t *cps;
    /* the code point at `at` */
    uint32_t cp;
    size_t cp_bytes;
    enum char_kind kind;
    bool end;
};

static void peek(struct reader *r) {
    r->end = r->at >= r->len || r->n_cps >= r->max_cps;
    if (r->end) return;
    r->cp_bytes = utf8_decode(r->text + r->at, r->len - r->at, &r->cp);
    if (r->cp == UTF8_INVALID) r->cp = UTF8_REPLACEMENT;
    r->kind = kind_of(r->cp);
}

/* Takes the code point, noted as `as`. */
static void take(struct reader *r, uint32_t as) {
    r->cps[r->n_cps++] = as;
    r->at += r->cp_bytes;
    peek(r);
}

static uint32_t lower(uint32_t cp) {
    if (cp < 128) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    return unicode_lower(cp);
}

/* The kind of the code point after the one at hand; CHAR_SPACE at the end. */
static enum char_kind kind_after(const struct reader *r) {
    const size_t at = r->at + r->cp_bytes;
    if (at >= r->len || r->n_cps + 1 >= r->max_cps) return CHAR_SPACE;
    uint32_t cp;
    utf8_decode(r->text + at, r->len - at, &cp);
    return kind_of(cp == UTF8_INVALID ? UTF8_REPLACEMENT : cp);
}

static void read_word(struct reader *r, struct task_token *t) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    bool lower_seen = false;
    if (lower(r->cp) != r->cp) t->flags |= TASK_TOKEN_UPPER;
    while (!r->end) {
        const bool apostrophe = (r->cp == '\'' || r->cp == 0x2019) && kind_after(r) == CHAR_LETTER;
        if (r->kind != CHAR_LETTER && r->kind != CHAR_DIGIT && r->cp != '_' && !apostrophe) break;
        uint32_t c = apostrophe ? '\'' : lower(r->cp);
        if (r->kind == CHAR_DIGIT || r->cp == '_') t->flags |= TASK_TOKEN_IDENTIFIER;
        if (r->kind == CHAR_LETTER && c != r->cp && lower_seen) t->flags |= TASK_TOKEN_IDENTIFIER;
        lower_seen |= r->kind == CHAR_LETTER && c == r->cp;
        h = (h ^ c) * UINT64_C(0x100000001b3);
        take(r, c);
    }
    t->kind = TASK_TOKEN_WORD;
    t->hash = mix(h);
}

static void read_number(struct reader *r, struct task_token *t) {
    uint64_t digits = 0, fraction = 0;
    while (!r->end) {
        const bool inner = (r->cp == '.' || r->cp == ',') && kind_after(r) == CHAR_DIGIT;
        if (r->kind != CHAR_DIGIT && !inner) break;
        digits += r->kind == CHAR_DIGIT;
        fraction |= r->cp == '.';
        take(r, r->kind == CHAR_DIGIT ? '0' : r->cp);
    }
    t->kind = TASK_TOKEN_NUMBER;
    t->hash = mix(UINT64_C(0x6e756d) << 8 | (digits < 5 ? digits : 5) << 1 | fraction);
}

size_t task_tokenize(const char *text, size_t len, size_t max_cps, uint32_t *cps, size_t *n_cps,
                     struct task_token *tokens) {
    struct reader r = {.text = text, .len = len, .max_cps = max_cps, .cps = cps};
    size_t n = 0;
    bool spaced = true;
    peek(&r);
    while (!r.end) {
        struct task_token t = {.start = (uint32_t)r.at, .first_cp = (uint32_t)r.n_cps};
        if (spaced) t.flags = TASK_TOKEN_SPACED;
        if (r.kind == CHAR_SPACE || r.kind == CHAR_BREAK) {
            bool broken = false;
            while (!r.end && (r.kind == CHAR_SPACE || r.kind == CHAR_BREAK)) {
                broken |= r.kind == CHAR_BREAK;
                take(&r, ' ');
            }
            spaced = true;
            if (!broken || n == 0) continue;
            t.kind = TASK_TOKEN_BREAK;
            t.hash = mix('\n');
        } else {
            spaced = false;
            if (r.kind == CHAR_LETTER) {
                read_word(&r, &t);
            } else if (r.kind == CHAR_DIGIT) {
                read_number(&r, &t);
            } else {
                const uint32_t c = r.kind == CHAR_HAN ? r.cp : plain_sign(r.cp);
                t.kind = r.kind == CHAR_HAN ? TASK_TOKEN_HAN : TASK_TOKEN_SIGN;
                t.hash = mix(c);
                take(&r, c);
            }
        }
        t.end = (uint32_t)r.at;
        t.n_cp = (uint32_t)r.n_cps - t.first_cp;
        tokens[n++] = t;
    }
    *n_cps = r.n_cps;
    return n;
}
