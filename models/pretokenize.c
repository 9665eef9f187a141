#include "models/pretokenize.h"

#include <string.h>

#include "models/pretokenize_split.h"
#include "models/unicode.h"

static const uint16_t kind_of_category[UNICODE_CATEGORY_COUNT] = {
    [UNICODE_CN] = KIND_REST,
    [UNICODE_CC] = KIND_REST,
    [UNICODE_CF] = KIND_REST,
    [UNICODE_CO] = KIND_REST,
    [UNICODE_CS] = KIND_REST,
    [UNICODE_LL] = KIND_LOWER | KIND_WORD,
    [UNICODE_LM] = KIND_OTHER_LETTER | KIND_WORD,
    [UNICODE_LO] = KIND_OTHER_LETTER | KIND_WORD,
    [UNICODE_LT] = KIND_UPPER | KIND_WORD,
    [UNICODE_LU] = KIND_UPPER | KIND_WORD,
    [UNICODE_MC] = KIND_MARK | KIND_WORD,
    [UNICODE_ME] = KIND_MARK | KIND_WORD,
    [UNICODE_MN] = KIND_MARK | KIND_WORD,
    [UNICODE_ND] = KIND_NUMBER | KIND_DIGIT | KIND_WORD,
    [UNICODE_NL] = KIND_NUMBER | KIND_WORD,
    [UNICODE_NO] = KIND_NUMBER,
    [UNICODE_PC] = KIND_PUNCT | KIND_WORD,
    [UNICODE_PD] = KIND_PUNCT,
    [UNICODE_PE] = KIND_PUNCT,
    [UNICODE_PF] = KIND_PUNCT,
    [UNICODE_PI] = KIND_PUNCT,
    [UNICODE_PO] = KIND_PUNCT,
    [UNICODE_PS] = KIND_PUNCT,
    [UNICODE_SC] = KIND_SYMBOL,
    [UNICODE_SK] = KIND_SYMBOL,
    [UNICODE_SM] = KIND_SYMBOL,
    [UNICODE_SO] = KIND_SYMBOL,
    [UNICODE_ZL] = KIND_SPACE,
    [UNICODE_ZP] = KIND_SPACE,
    [UNICODE_ZS] = KIND_SPACE,
};

static unsigned kind_of(uint32_t cp) {
    enum unicode_category category = unicode_category(cp);
    if (category == UNICODE_CC && unicode_is_space(cp))
        return cp == '\n' || cp == '\r' ? KIND_SPACE | KIND_NEWLINE : KIND_SPACE;
    return kind_of_category[category];
}

enum { LOOKS_PER_PAUSE = 4096 };

/* What is left of the text of one split's piece. */
struct view {
    struct pretoken_walk *walk;
    const char *text;
    size_t end;
};

struct ch {
    uint32_t cp;
    unsigned kind; /* 0 at the end */
    size_t next;
};

static bool pause_due(struct pretoken_walk *w) {
    return ++w->looked_at % LOOKS_PER_PAUSE == 0 && w->chore != NULL;
}

/* Past the end, and once the walk's chore is cancelled, there is nothing: every loop ends. */
static struct ch char_at(const struct view *v, size_t pos) {
    struct ch c = {.next = v->end};
    if (pos >= v->end || v->walk->gone) return c;
    if (pause_due(v->walk)) v->walk->gone = chore_checkpoint(v->walk->chore);
    c.next = pos + utf8_decode(v->text + pos, v->end - pos, &c.cp);
    if (c.cp == UTF8_INVALID) c.cp = UTF8_REPLACEMENT;
    c.kind = kind_of(c.cp);
    return c;
}

static bool in_range(const uint32_t (*range)[2], size_t n, uint32_t cp) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > range[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && cp >= range[lo][0];
}

static bool in_class(const struct char_class *k, const struct ch *c) {
    if (c->kind == 0) return false;
    bool in = (c->kind & k->kinds) != 0 || in_range(k->range, k->n_ranges, c->cp);
    return in != k->exclude;
}

static size_t run_of_class(const struct view *v, size_t pos, const struct char_class *k,
                           size_t max) {
    for (size_t n = 0; n < max; n++) {
        struct ch c = char_at(v, pos);
        if (!in_class(k, &c)) break;
        pos = c.next;
    }
    return pos;
}

static size_t run_of_kinds(const struct view *v, size_t pos, unsigned kinds, size_t max) {
    for (size_t n = 0; n < max; n++) {
        struct ch c = char_at(v, pos);
        if ((c.kind & kinds) == 0) break;
        pos = c.next;
    }
    return pos;
}

static bool byte_is(const struct view *v, size_t pos, char byte) {
    return pos < v->end && v->text[pos] == byte;
}

/* --- words: every function returns where its match from pos ends, pos when there is none --- */

static size_t match_contraction(const struct view *v, size_t pos, bool any_case) {
    if (!byte_is(v, pos, '\'')) return pos;
    uint32_t cp[2] = {0, 0};
    size_t end[2] = {pos + 1, pos + 1};
    for (size_t i = 0; i < 2; i++) {
        struct ch c = char_at(v, i == 0 ? pos + 1 : end[0]);
        end[i] = c.next;
        cp[i] = any_case && c.cp == 0x17F ? 's' : any_case ? unicode_lower(c.cp) : c.cp;
    }
    if (cp[0] == 's' || cp[0] == 't' || cp[0] == 'm' || cp[0] == 'd') return end[0];
    bool two = (cp[0] == 'r' && cp[1] == 'e') || (cp[0] == 'v' && cp[1] == 'e') ||
               (cp[0] == 'l' && cp[1] == 'l');
    return two ? end[1] : pos;
}

static size_t match_ascii_punct_word(const struct view *v, size_t pos) {
    unsigned char c = (unsigned char)v->text[pos];
    bool punct =
        c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
    if (!punct) return pos;
    size_t end = pos + 1;
    while (end < v->end && (v->text[end] | 32) >= 'a' && (v->text[end] | 32) <= 'z') end++;
    return end > pos + 1 ? end : pos;
}

static size_t match_letters_spaced(const struct view *v, size_t pos) {
    for (;;) {
        struct ch c = char_at(v, pos);
        size_t next = c.next;
        if (c.cp == ' ' && c.kind != 0) {
            c = char_at(v, next);
            next = c.next;
        }
        if ((c.kind & KIND_LETTER) == 0) return pos;
        pos = run_of_kinds(v, next, KIND_MARK, SIZE_MAX);
    }
}

/* U*L+ (`lower_needed`) or U+L*, where X (no case, marks) is in both. U*, being greedy, takes all
 * of U and X; if no Ll follows it gives back as much as puts an X first into L+. */
static size_t match_letters_cased(const struct words *w, const struct view *v, size_t pos,
                                  bool lower_needed) {
    const unsigned x = KIND_OTHER_LETTER | KIND_MARK;
    size_t end = pos, behind_last_x = pos;
    struct ch c;
    for (c = char_at(v, end); c.kind & (KIND_UPPER | x); c = char_at(v, end)) {
        if ((c.kind & x) && w->han_first && unicode_is_han(c.cp)) break;
        end = c.next;
        if (c.kind & x) behind_last_x = end;
    }
    if (!lower_needed) return end; /* reached only where no L follows */
    if ((c.kind & KIND_LOWER) == 0) return behind_last_x;
    for (; c.kind & (KIND_LOWER | x); c = char_at(v, end)) {
        if ((c.kind & x) && w->han_first && unicode_is_han(c.cp)) break;
        end = c.next;
    }
    return end;
}

static size_t match_letters(const struct words *w, const struct view *v, size_t pos,
                            const struct ch *first) {
    bool prefixed = w->prefix == 0 ? first->cp == ' ' : (first->kind & w->prefix) == 0;
    size_t end;
    switch (w->letters) {
    case LETTERS_RUN:
        if (prefixed) {
            end = run_of_kinds(v, first->next, w->letters_kinds, SIZE_MAX);
            if (end > first->next) return end;
        }
        return run_of_kinds(v, pos, w->letters_kinds, SIZE_MAX);
    case LETTERS_SPACED:
        /* The word itself cannot begin with a space. */
        if (prefixed && (char_at(v, first->next).kind & KIND_LETTER))
            return match_letters_spaced(v, first->next);
        return first->kind & KIND_LETTER ? match_letters_spaced(v, pos) : pos;
    case LETTERS_CASED:
        break;
    }
    for (int lower = 1; lower >= 0; lower--) {
        if (prefixed) {
            end = match_letters_cased(w, v, first->next, lower);
            if (end > first->next) return end;
        }
        end = match_letters_cased(w, v, pos, lower);
        if (end > pos) return end;
    }
    return pos;
}

static size_t match_punct(const struct words *w, const struct view *v, size_t pos,
                          const struct ch *first) {
    size_t end = first->cp == ' ' ? first->next : pos;
    size_t marks = run_of_kinds(v, end, w->punct, SIZE_MAX);
    if (marks == end) return pos;
    end = marks;
    size_t max = w->tail == PUNCT_TAIL_NONE ? 0 : w->tail == PUNCT_TAIL_ONE ? 1 : SIZE_MAX;
    bool slash = w->tail == PUNCT_TAIL_NEWLINES_SLASH || w->tail == PUNCT_TAIL_ONE;
    for (size_t n = 0; n < max; n++) {
        if (!byte_is(v, end, '\r') && !byte_is(v, end, '\n') && !(slash && byte_is(v, end, '/')))
            break;
        end++;
    }
    return end;
}

/* Where the run of white space around pos ends, looking at each character once however often it is
 * asked; the level's `run` is then where the last newline in it ends. */
static size_t space_run(struct pretoken_walk *w, size_t level, const struct view *v, size_t pos) {
    if (pos < w->level[level].run_end) return w->level[level].run_end;
    size_t newline = 0;
    for (;;) {
        struct ch c = char_at(v, pos);
        if ((c.kind & KIND_SPACE) == 0) break;
        pos = c.next;
        if (c.kind & KIND_NEWLINE) newline = pos;
    }
    w->level[level].run = newline;
    w->level[level].run_end = pos;
    return pos;
}

static size_t match_space(struct pretoken_walk *walk, size_t level, const struct words *w,
                          const struct view *v, size_t pos) {
    size_t end = space_run(walk, level, v, pos);
    size_t newline = walk->level[level].run;
    if (w->newlines && newline > pos) return newline;
    if (w->single_newline && (byte_is(v, pos, '\n') || byte_is(v, pos, '\r'))) return pos + 1;
    /* What is left of the run, less one character if something follows it. */
    size_t limit = end, last = end;
    if (end < v->end) {
        do last--;
        while (last > pos && ((unsigned char)v->text[last] & 0xC0) == 0x80);
        limit = last;
    }
    if (limit == pos) return char_at(v, pos).next;
    if (!w->space_cascade) return limit;
    for (size_t n = 512; n > 1; n /= 2) {
        size_t stop = pos, taken = 0;
        for (; taken < n && stop < limit; taken++) stop = char_at(v, stop).next;
        if (taken == n) return stop;
    }
    return char_at(v, pos).next;
}

static size_t match_words(struct pretoken_walk *walk, size_t level, const struct words *w,
                          const struct view *v, size_t pos) {
    struct ch first = char_at(v, pos);
    size_t end;
    if (w->han_first && unicode_is_han(first.cp)) {
        end = first.next;
        for (struct ch c = char_at(v, end); c.kind && unicode_is_han(c.cp); c = char_at(v, end))
            end = c.next;
        return end;
    }
    if (w->contraction == CONTRACTION_EXACT || w->contraction == CONTRACTION_ANY_CASE) {
        end = match_contraction(v, pos, w->contraction == CONTRACTION_ANY_CASE);
        if (end > pos) return end;
    }
    if (w->ascii_punct_word) {
        end = match_ascii_punct_word(v, pos);
        if (end > pos) return end;
    }
    end = match_letters(w, v, pos, &first);
    if (end > pos)
        return w->contraction == CONTRACTION_SUFFIX ? match_contraction(v, end, true) : end;
    if (w->max_digits > 0) {
        size_t digits = w->digits_space && first.cp == ' ' ? first.next : pos;
        end = run_of_kinds(v, digits, KIND_NUMBER, w->max_digits);
        if (end > digits) return end;
    }
    end = match_punct(w, v, pos, &first);
    if (end > pos) return end;
    return first.kind & KIND_SPACE ? match_space(walk, level, w, v, pos) : pos;
}

/* --- the other splits --- */

/* How many characters of the class follow each other from pos on, each looked at once. */
static size_t run_length(struct pretoken_walk *w, size_t level, const struct view *v,
                         const struct char_class *k, size_t pos) {
    size_t n = 0;
    if (pos < w->level[level].run_end) {
        n = w->level[level].run;
        for (size_t at = w->level[level].run_pos; at < pos; n--) at = char_at(v, at).next;
    } else {
        size_t end = pos;
        for (struct ch c = char_at(v, end); in_class(k, &c); c = char_at(v, end)) {
            end = c.next;
            n++;
        }
        w->level[level].run_end = end;
    }
    w->level[level].run_pos = pos;
    w->level[level].run = n;
    return n;
}

static size_t match_digit_group(struct pretoken_walk *w, size_t level,
                                const struct pretokenizer_split *s, const struct view *v,
                                size_t pos) {
    size_t n = run_length(w, level, v, &s->class[0], pos);
    if (n == 0) return pos;
    if (s->boundary && (char_at(v, w->level[level].run_end).kind & KIND_WORD)) return pos;
    return run_of_class(v, pos, &s->class[0], n % 3 ? n % 3 : 3);
}

static size_t match_literal(const struct view *v, size_t pos, const char *literal) {
    size_t n = strlen(literal);
    return v->end - pos >= n && memcmp(v->text + pos, literal, n) == 0 ? pos + n : pos;
}

static size_t match_sentinel(const struct view *v, size_t pos) {
    size_t end = match_literal(v, pos, "<sentinel:");
    if (end == pos) return pos;
    size_t digits = end;
    while (end < v->end && v->text[end] >= '0' && v->text[end] <= '9') end++;
    return end > digits && byte_is(v, end, '>') ? end + 1 : pos;
}

static size_t match_image_token(const struct view *v, size_t pos) {
    size_t end = match_literal(v, pos, "IMGIMG");
    if (end == pos) return pos;
    size_t letters = end;
    while (end < v->end && end - letters < 4 && v->text[end] >= 'A' && v->text[end] <= 'I') end++;
    return end > letters && byte_is(v, end, 'Z') ? end + 1 : pos;
}

static size_t match_indent(const struct view *v, size_t pos) {
    if (byte_is(v, pos, '\t') || byte_is(v, pos, '\n')) return pos + 1;
    size_t end = match_literal(v, pos, "    ");
    return end > pos ? end : match_literal(v, pos, "  ");
}

static size_t match_spaced_run(const struct pretokenizer_split *s, const struct view *v,
                               size_t pos) {
    struct ch first = char_at(v, pos);
    bool space = s->plain_space ? first.cp == ' ' : (first.kind & KIND_SPACE) != 0;
    if (space) {
        size_t end = run_of_class(v, first.next, &s->class[0], SIZE_MAX);
        if (end > first.next) return end;
    }
    return run_of_class(v, pos, &s->class[0], SIZE_MAX);
}

static size_t match(struct pretoken_walk *w, size_t level, const struct view *v, size_t pos) {
    const struct pretokenizer_split *s = &w->p->split[level];
    struct ch c;
    size_t end;
    switch (s->kind) {
    case SPLIT_WORDS:
        return match_words(w, level, s->words, v, pos);
    case SPLIT_RUN:
        c = char_at(v, pos);
        for (size_t i = 0; i < s->n_classes; i++) {
            if (in_class(&s->class[i], &c))
                return run_of_class(v, c.next, &s->class[i], s -> max - 1);
        }
        return pos;
    case SPLIT_SPACED_RUN:
        return match_spaced_run(s, v, pos);
    case SPLIT_EXACT:
        end = pos;
        for (size_t n = 0; n < s->max; n++) {
            c = char_at(v, end);
            if (!in_class(&s->class[0], &c)) return pos;
            end = c.next;
        }
        return end;
    case SPLIT_TRAILING_SPACE:
        end = space_run(w, level, v, pos);
        return end == v->end ? end : pos;
    case SPLIT_DIGIT_GROUPS:
        return match_digit_group(w, level, s, v, pos);
    case SPLIT_SENTINEL:
        return match_sentinel(v, pos);
    case SPLIT_IMAGE_TOKEN:
        return match_image_token(v, pos);
    case SPLIT_INDENT:
        return match_indent(v, pos);
    case SPLIT_BEFORE:
    case SPLIT_BEFORE_DIGIT_GROUPS:
        break;
    }
    return pos;
}

/* The splits that match nothing but a place between two characters. */
static bool starts_piece(struct pretoken_walk *w, size_t level, const struct view *v, size_t pos) {
    const struct pretokenizer_split *s = &w->p->split[level];
    struct ch c = char_at(v, pos);
    if (s->kind == SPLIT_BEFORE) return in_class(&s->class[0], &c);
    if (s->kind != SPLIT_BEFORE_DIGIT_GROUPS || !in_class(&s->class[0], &c)) return false;
    return run_length(w, level, v, &s->class[0], pos) % 3 == 0;
}

static size_t piece_end(struct pretoken_walk *w, size_t level, size_t pos) {
    struct view v = {.walk = w, .text = w->text, .end = w->level[level].end};
    size_t end = match(w, level, &v, pos);
    if (end > pos) return end;
    for (end = char_at(&v, pos).next; end < v.end; end = char_at(&v, end).next) {
        if (match(w, level, &v, end) > end || starts_piece(w, level, &v, end)) break;
    }
    return end;
}

void pretoken_walk_init(struct pretoken_walk *w, const struct pretokenizer *p, struct chore *c,
                        const char *text, size_t len) {
    *w = (struct pretoken_walk){.p = p, .text = text, .chore = c};
    w->level[0].end = len;
}

bool pretoken_walk_next(struct pretoken_walk *w, size_t *start, size_t *end) {
    const size_t last = w->p->n_splits - 1;
    size_t level = last;
    while (w->level[level].pos == w->level[level].end) {
        if (level == 0) return false;
        level--;
    }
    for (;; level++) {
        size_t pos = w->level[level].pos;
        size_t stop = piece_end(w, level, pos);
        if (w->gone) return false;
        w->level[level].pos = stop;
        if (level == last) {
            *start = pos;
            *end = stop;
            return true;
        }
        w->level[level + 1].pos = pos;
        w->level[level + 1].end = stop;
    }
}
