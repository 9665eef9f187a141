/* BERT's basic tokenizer (clean, split CJK, strip accents, lower case, split punctuation), then the
 * longest token first (Devlin et al., arXiv:1810.04805, and its published code's behaviour). */
#include "models/tokenizer_impl.h"

#include <string.h>

#include "models/unicode.h"

enum {
    /* A longer word is the unknown token, as in the published tokenizer. */
    MAX_WORD_CHARS = 100,
    MAX_WORD_BYTES = 1 + MAX_WORD_CHARS * UTF8_MAX_BYTES,
};

struct word {
    char text[MAX_WORD_BYTES]; /* a space in front marks the start of a word in the vocabulary */
    size_t len, n_chars;
};

/* The blocks that the published tokenizer isolates as Chinese characters. */
static bool is_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

static bool is_punct(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    enum unicode_category c = unicode_category(cp);
    return c >= UNICODE_PC && c <= UNICODE_PS;
}

static bool is_dropped(uint32_t cp) {
    if (cp == UTF8_INVALID || cp == UTF8_REPLACEMENT) return true;
    if (cp == '\t' || cp == '\n' || cp == '\r') return false;
    enum unicode_category c = unicode_category(cp);
    return c == UNICODE_CC || c == UNICODE_CF || c == UNICODE_CO;
}

static enum status push_word(struct encoding *en, struct word *w) {
    const struct tokenizer *t = en->t;
    size_t n_before = en->out->n;
    bool whole = w->n_chars <= MAX_WORD_CHARS;
    enum status st = STATUS_OK;
    for (size_t start = 0; whole && start < w->len && st == STATUS_OK;) {
        size_t end = w->len - start > t->max_token_bytes ? start + t->max_token_bytes : w->len;
        uint32_t id = TOKEN_NONE;
        for (; end > start; end--) {
            bool boundary = end == w->len || ((unsigned char)w->text[end] & 0xC0) != 0x80;
            /* the mark of a word's start is no piece of it */
            if (!boundary || (start == 0 && end == 1)) continue;
            id = text_lookup(t, w->text + start, end - start);
            if (id != TOKEN_NONE) break;
        }
        whole = id != TOKEN_NONE;
        if (whole) st = encoding_push(en, id);
        start = end;
    }
    if (st == STATUS_OK && !whole) {
        en->out->n = n_before;
        if (t->unk != TOKEN_NONE) st = encoding_push(en, t->unk);
    }
    w->len = 0;
    w->n_chars = 0;
    return st;
}

static void word_add(struct word *w, uint32_t cp) {
    if (w->len == 0) w->text[w->len++] = ' ';
    if (w->n_chars < MAX_WORD_CHARS) w->len += utf8_encode(cp, w->text + w->len);
    w->n_chars++;
}

static enum status add_char(struct encoding *en, struct word *w, uint32_t cp) {
    enum status st = STATUS_OK;
    bool apart = is_punct(cp);
    if (apart && w->len > 0) st = push_word(en, w);
    word_add(w, cp);
    if (apart && st == STATUS_OK) st = push_word(en, w);
    return st;
}

enum status wordpiece_encode(struct encoding *en, const char *text, size_t len) {
    const struct tokenizer *t = en->t;
    struct word w = {.len = 0};
    enum status st = STATUS_OK;
    for (size_t pos = 0; pos < len && st == STATUS_OK;) {
        uint32_t cp;
        size_t bytes = utf8_decode(text + pos, len - pos, &cp);
        pos += bytes;
        st = encoding_progress(en, bytes);
        if (st != STATUS_OK) break;
        if (is_dropped(cp)) continue; /* before white space: a form feed joins what it stands in */
        if (unicode_is_space(cp)) {
            if (w.len > 0) st = push_word(en, &w);
            continue;
        }
        bool cjk = is_cjk(cp);
        if (cjk && w.len > 0) st = push_word(en, &w);
        uint32_t base[3] = {cp, 0, 0};
        size_t n = t->strip_accents ? unicode_base(cp, base) : 1;
        for (size_t i = 0; i < n && st == STATUS_OK; i++)
            st = add_char(en, &w, t->lowercase ? unicode_lower(base[i]) : base[i]);
        if (cjk && w.len > 0 && st == STATUS_OK) st = push_word(en, &w);
    }
    if (w.len > 0 && st == STATUS_OK) st = push_word(en, &w);
    return st;
}
