#include "sched/gate_marks.h"

#include <stdlib.h>
#include <string.h>

#include "core/plan.h"

static const char ANCHOR[] = "<ANCHOR:", ANCHOR_END[] = "</ANCHOR>", RECALL[] = "<RECALL>";
static const char DEFAULT_WORDS[] = "病史\n既往\n上次\npreviously\nlast time\nmedical history\n";

enum { CHECK_EVERY_BYTES = 64 << 10, CHECK_EVERY_TOKENS = 4096, NONE = -1 };

/* ---- trigger words ---- */

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}
static bool is_word_byte(char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9');
}

enum status gate_words_parse(struct gate_words *w, const char *text, size_t len, struct error *e) {
    memset(w, 0, sizeof *w);
    if (len > GATE_MAX_WORDS_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the trigger words are over %d bytes",
                         GATE_MAX_WORDS_BYTES);
    w->words = calloc(GATE_MAX_WORDS, sizeof *w->words);
    if (w->words == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : len - at;
        const char *line = text + at;
        at += n + 1;
        while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\r' || line[n - 1] == '\t')) n--;
        while (n > 0 && (*line == ' ' || *line == '\t')) line++, n--;
        if (n == 0) continue;
        if (n >= GATE_MAX_WORD_BYTES || w->n == GATE_MAX_WORDS || memchr(line, '\0', n) != NULL) {
            gate_words_free(w);
            return error_set(e, STATUS_INVALID, NULL,
                             "trigger words are at most %d lines of at most %d bytes each",
                             GATE_MAX_WORDS, GATE_MAX_WORD_BYTES - 1);
        }
        char *word = w->words[w->n++];
        for (size_t i = 0; i < n; i++) word[i] = lower(line[i]);
        const unsigned char first = (unsigned char)word[0];
        w->first[first / 64] |= UINT64_C(1) << first % 64;
    }
    return STATUS_OK;
}

enum status gate_words_default(struct gate_words *w, struct error *e) {
    return gate_words_parse(w, DEFAULT_WORDS, strlen(DEFAULT_WORDS), e);
}

void gate_words_free(struct gate_words *w) {
    free(w->words);
    memset(w, 0, sizeof *w);
}

static bool word_at(const char *word, const char *text, size_t at, size_t end, size_t start) {
    size_t n = 0;
    for (; word[n] != '\0'; n++)
        if (at + n == end || lower(text[at + n]) != word[n]) return false;
    if (is_word_byte(word[0]) && at > start && is_word_byte(text[at - 1])) return false;
    return !is_word_byte(word[n - 1]) || at + n == end || !is_word_byte(text[at + n]);
}

static bool any_word_at(const struct gate_words *w, const char *text, size_t at, size_t end,
                        size_t start) {
    const unsigned char first = (unsigned char)lower(text[at]);
    if ((w->first[first / 64] >> first % 64 & 1) == 0) return false;
    for (uint32_t i = 0; i < w->n; i++)
        if (word_at(w->words[i], text, at, end, start)) return true;
    return false;
}

/* ---- markers ---- */

struct mark {
    uint32_t start, end; /* bytes of the text as it came */
    int32_t partner;     /* index of the other end of a pair; NONE: alone */
    bool recall;
};

struct mark_list {
    struct mark *marks;
    uint32_t n, cap;
    int32_t open; /* the last beginning that has no end yet; its partner is the one before it */
};

static bool starts_with(const char *text, size_t len, const char *what) {
    const size_t n = strlen(what);
    return len >= n && memcmp(text, what, n) == 0;
}

/* Length of the marker at text[0 .. len), 0 if there is none. */
static size_t mark_length(const char *text, size_t len) {
    if (starts_with(text, len, RECALL)) return sizeof RECALL - 1;
    if (starts_with(text, len, ANCHOR_END)) return sizeof ANCHOR_END - 1;
    if (!starts_with(text, len, ANCHOR)) return 0;
    size_t n = sizeof ANCHOR - 1;
    const size_t name = n;
    while (n < len && n - name <= GATE_NAME_BYTES && (unsigned char)text[n] >= ' ' &&
           text[n] != '<' && text[n] != '>')
        n++;
    return n < len && text[n] == '>' && n > name && n - name <= GATE_NAME_BYTES ? n + 1 : 0;
}

static bool add_mark(struct mark_list *l, const char *text, size_t at, size_t n) {
    if (l->n == l->cap) {
        const uint32_t cap = l->cap > 0 ? 2 * l->cap : 16;
        struct mark *marks = realloc(l->marks, cap * sizeof *marks);
        if (marks == NULL) return false;
        l->marks = marks;
        l->cap = cap;
    }
    struct mark *m = &l->marks[l->n];
    *m = (struct mark){.start = (uint32_t)at, .end = (uint32_t)(at + n), .partner = NONE};
    if (text[at + 1] == 'R') {
        m->recall = true;
    } else if (text[at + 1] == 'A') {
        m->partner = l->open;
        l->open = (int32_t)l->n;
    } else if (l->open != NONE) {
        struct mark *begin = &l->marks[l->open];
        const int32_t outer = begin->partner;
        begin->partner = (int32_t)l->n;
        m->partner = l->open;
        l->open = outer;
    } else {
        return true; /* an end of nothing */
    }
    l->n++;
    return true;
}

/* Beginnings that stay without an end. */
static void drop_open(struct mark_list *l) {
    while (l->open != NONE) {
        struct mark *m = &l->marks[l->open];
        l->open = m->partner;
        m->partner = NONE;
    }
}

static enum status scan(const char *text, size_t start, size_t end, const struct gate_words *words,
                        struct chore *c, struct mark_list *l, struct gate_marks *out) {
    size_t looked = start;
    for (size_t at = start; at < end;) {
        if (at - looked >= CHECK_EVERY_BYTES) {
            looked = at;
            if (chore_checkpoint(c)) return STATUS_GONE;
        }
        const size_t n = text[at] == '<' ? mark_length(text + at, end - at) : 0;
        if (n > 0 && !add_mark(l, text, at, n)) return STATUS_NO_MEMORY;
        if (n == 0 && !out->trigger) out->trigger = any_word_at(words, text, at, end, start);
        at += n > 0 ? n : 1;
    }
    drop_open(l);
    return STATUS_OK;
}

/* Closes the gaps that the markers leave, in text and spans. */
static void take_out(char *text, size_t *len, struct text_span *spans, size_t *n_spans,
                     struct mark_list *l, struct gate_marks *out) {
    size_t to = 0, from = 0, s = 0, kept = 0;
    for (uint32_t i = 0; i <= l->n; i++) {
        const size_t stop = i < l->n ? l->marks[i].start : *len;
        /* Spans that end before the marker; one that holds it ends further on. */
        for (; spans != NULL && s < *n_spans && spans[s].end <= stop; s++) {
            struct text_span span = spans[s];
            span.end = (uint32_t)(to + (span.end - from));
            span.start = kept > 0 ? spans[kept - 1].end : 0;
            if (span.end == span.start) continue;
            if (kept > 0 && spans[kept - 1].from_user == span.from_user)
                spans[kept - 1].end = span.end;
            else
                spans[kept++] = span;
        }
        memmove(text + to, text + from, stop - from);
        to += stop - from;
        if (i == l->n) break;
        const struct mark *m = &l->marks[i];
        from = m->start;
        if (!m->recall && m->partner == NONE) continue; /* plain text after all */
        from = m->end;
        out->recall |= m->recall;
        if (m->recall) continue;
        if ((uint32_t)m->partner > i) {
            /* Its end's mark names the anchor from now on (no mark behind it is as low). */
            out->anchors[out->n_anchors].start = (uint32_t)to;
            l->marks[m->partner].partner = (int32_t)out->n_anchors++;
        } else {
            out->anchors[m->partner].end = (uint32_t)to;
        }
    }
    *len = to;
    if (spans != NULL) *n_spans = kept;
}

enum status gate_marks_take(char *text, size_t *len, struct text_span *spans, size_t *n_spans,
                            const struct gate_words *words, struct chore *c, struct gate_marks *out,
                            struct error *e) {
    memset(out, 0, sizeof *out);
    struct mark_list l = {.open = NONE};
    enum status st = STATUS_OK;
    if (spans == NULL) st = scan(text, 0, *len, words, c, &l, out);
    for (size_t i = 0; spans != NULL && i < *n_spans && st == STATUS_OK; i++)
        if (spans[i].from_user) st = scan(text, spans[i].start, spans[i].end, words, c, &l, out);
    if (st == STATUS_OK && l.n > 0) {
        out->anchors = malloc(l.n * sizeof *out->anchors);
        if (out->anchors == NULL)
            st = STATUS_NO_MEMORY;
        else
            take_out(text, len, spans, n_spans, &l, out);
    }
    free(l.marks);
    if (st == STATUS_NO_MEMORY) return error_set(e, st, NULL, "no memory for the markers");
    return st;
}

void gate_marks_free(struct gate_marks *m) {
    free(m->anchors);
    memset(m, 0, sizeof *m);
}

static size_t piece_bytes(const struct tokenizer *t, uint32_t id) {
    char none;
    return tokenizer_piece(t, id, true, &none, 0);
}

enum status gate_marks_pages(const struct gate_marks *m, const struct tokenizer *t,
                             const uint32_t *ids, uint32_t n, size_t len, struct chore *c,
                             uint32_t *pages, uint32_t *n_pages) {
    *n_pages = 0;
    if (m->n_anchors == 0) return STATUS_OK;
    size_t all = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % CHECK_EVERY_TOKENS == 0 && chore_checkpoint(c)) return STATUS_GONE;
        all += piece_bytes(t, ids[i]);
    }
    /* What the tokens say beyond the text stands in front of it. */
    size_t at = 0, front = all > len ? all - len : 0;
    uint32_t a = 0, reach = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % CHECK_EVERY_TOKENS == 0 && chore_checkpoint(c)) return STATUS_GONE;
        const size_t start = at > front ? at - front : 0;
        at += piece_bytes(t, ids[i]);
        const size_t end = at > front ? at - front : 0;
        /* `reach`: where the anchors that have begun end; they nest, or follow each other. */
        for (; a < m->n_anchors && m->anchors[a].start < end; a++)
            if (m->anchors[a].end > reach && m->anchors[a].end > m->anchors[a].start)
                reach = m->anchors[a].end;
        if (reach <= start || end == start) continue;
        const uint32_t page = i / KV_PAGE_TOKENS;
        if (*n_pages == 0 || pages[*n_pages - 1] != page) pages[(*n_pages)++] = page;
    }
    return STATUS_OK;
}
