#include "models/tokenizer_impl.h"

#include <string.h>

#include "models/unicode.h"

/* Up to this many symbols the pair to merge next is found by looking at all of them. */
enum { SHORT_SYMBOLS = 48 };

struct short_piece {
    uint32_t id[SHORT_SYMBOLS];
    const struct merge_slot *merge[SHORT_SYMBOLS]; /* of (i, i + 1); NULL: none */
    size_t n;
};

static enum status merge_short(struct encoding *en, struct short_piece *p) {
    const struct tokenizer *t = en->t;
    for (size_t i = 0; i + 1 < p->n; i++)
        p->merge[i] = merge_lookup(&t->merge, p->id[i], p->id[i + 1]);
    while (p->n > 1) {
        size_t best = 0;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < p->n; i++) {
            if (p->merge[i] != NULL && p->merge[i]->rank < rank) {
                rank = p->merge[i]->rank;
                best = i;
            }
        }
        if (rank == UINT32_MAX) break;
        p->id[best] = p->merge[best]->result;
        p->n--;
        for (size_t i = best + 1; i < p->n; i++) {
            p->id[i] = p->id[i + 1];
            p->merge[i] = p->merge[i + 1];
        }
        if (best > 0) p->merge[best - 1] = merge_lookup(&t->merge, p->id[best - 1], p->id[best]);
        if (best + 1 < p->n) p->merge[best] = merge_lookup(&t->merge, p->id[best], p->id[best + 1]);
    }
    for (size_t i = 0; i < p->n; i++) {
        enum status st = encoding_push(en, p->id[i]);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

static enum status heap_pair(struct encoding *en, uint32_t left) {
    struct symbol *symbol = en->s->symbol;
    if (left == TOKEN_NONE || symbol[left].next == TOKEN_NONE) return STATUS_OK;
    uint32_t a = symbol[left].id, b = symbol[symbol[left].next].id;
    const struct merge_slot *m = merge_lookup(&en->t->merge, a, b);
    if (m == NULL) return STATUS_OK;
    return scratch_heap_push(en->s, (uint64_t)m->rank << 32 | left, (uint64_t)a << 32 | b);
}

/* The same merges in the same order, with a heap: n log n. A heap item is stale when the symbols it
 * speaks of are no longer there; a merged-away symbol has no id, so it matches nothing. */
static enum status merge_long(struct encoding *en, size_t n) {
    struct symbol *symbol = en->s->symbol;
    enum status st = STATUS_OK;
    en->s->heap_n = 0;
    for (size_t i = 0; i < n && st == STATUS_OK; i++) {
        symbol[i].prev = i == 0 ? TOKEN_NONE : (uint32_t)i - 1;
        symbol[i].next = i + 1 == n ? TOKEN_NONE : (uint32_t)i + 1;
        st = heap_pair(en, (uint32_t)i);
        if (st == STATUS_OK) st = encoding_progress(en, 1);
    }
    while (st == STATUS_OK && en->s->heap_n > 0) {
        struct heap_item top = scratch_heap_pop(en->s);
        uint32_t left = (uint32_t)top.key, a = (uint32_t)(top.pair >> 32), b = (uint32_t)top.pair;
        st = encoding_progress(en, 1);
        if (st != STATUS_OK) break;
        if (symbol[left].id != a || symbol[left].next == TOKEN_NONE) continue;
        uint32_t right = symbol[left].next;
        if (symbol[right].id != b) continue;
        symbol[left].id = merge_lookup(&en->t->merge, a, b)->result;
        symbol[left].next = symbol[right].next;
        symbol[right].id = TOKEN_NONE;
        if (symbol[left].next != TOKEN_NONE) symbol[symbol[left].next].prev = left;
        st = heap_pair(en, symbol[left].prev);
        if (st == STATUS_OK) st = heap_pair(en, left);
    }
    for (uint32_t i = n ? 0 : TOKEN_NONE; st == STATUS_OK && i != TOKEN_NONE; i = symbol[i].next) {
        st = encoding_push(en, symbol[i].id);
        if (st == STATUS_OK) st = encoding_progress(en, 1);
    }
    return st;
}

/* The symbols that merging starts from, for the character or byte at text[0..len); *bytes is its
 * length. A byte without a token is left out, as in the published tokenizers, and its neighbours
 * are then neighbours. */
static size_t first_symbols(const struct tokenizer *t, const char *text, size_t len,
                            uint32_t id[UTF8_MAX_BYTES], size_t *bytes) {
    *bytes = 1;
    if (t->pre->metaspace || t->pre->drop_space) {
        uint32_t cp;
        *bytes = utf8_decode(text, len, &cp);
        id[0] = cp == UTF8_INVALID ? TOKEN_NONE : text_lookup(t, text, *bytes);
        if (id[0] != TOKEN_NONE) return 1;
    }
    size_t n = 0;
    for (size_t i = 0; i < *bytes; i++) {
        id[n] = t->byte_id[(unsigned char)text[i]];
        if (id[n] != TOKEN_NONE) n++;
    }
    return n;
}

static enum status encode_piece(struct encoding *en, const char *text, size_t len) {
    const struct tokenizer *t = en->t;
    enum status st = encoding_progress(en, len < CHECKPOINT_BYTES ? len : CHECKPOINT_BYTES);
    if (st != STATUS_OK) return st;
    /* A run of newlines that is a token stays whole where merges do not cross lines. */
    if (t->pre->whole_word_first || (t->pre->metaspace && text[0] == '\n')) {
        uint32_t id = text_lookup(t, text, len);
        if (id != TOKEN_NONE) return encoding_push(en, id);
    }
    const bool is_short = len <= SHORT_SYMBOLS;
    struct short_piece p;
    struct tokenizer_scratch *s = en->s;
    if (!is_short)
        st = scratch_reserve((void **)&s->symbol, &s->symbol_cap, len, sizeof *s->symbol);
    size_t n = 0;
    for (size_t pos = 0, bytes; pos < len && st == STATUS_OK; pos += bytes) {
        uint32_t id[UTF8_MAX_BYTES];
        size_t got = first_symbols(t, text + pos, len - pos, id, &bytes);
        for (size_t i = 0; i < got; i++, n++) {
            if (is_short)
                p.id[n] = id[i];
            else
                s->symbol[n].id = id[i];
        }
        if (!is_short) st = encoding_progress(en, bytes);
    }
    if (st != STATUS_OK) return st;
    p.n = n;
    if (is_short) return merge_short(en, &p);
    return merge_long(en, n);
}

/* U+2581 in a text reads as the space it stands for; with word_prefix each line begins with one. */
static enum status to_metaspace(struct encoding *en, const char **text, size_t *len) {
    struct tokenizer_scratch *s = en->s;
    enum status st = scratch_reserve((void **)&s->text, &s->text_cap, *len * 2 + 1, 1);
    if (st != STATUS_OK) return st;
    size_t n = 0;
    bool line_start = true;
    for (size_t i = 0; i < *len && st == STATUS_OK; i++) {
        bool mark = *len - i >= 3 && memcmp(*text + i, "\xE2\x96\x81", 3) == 0;
        char c = mark ? ' ' : (*text)[i];
        if (en->t->pre->word_prefix && line_start && c != ' ' && c != '\n') s->text[n++] = ' ';
        s->text[n++] = c;
        line_start = c == '\n';
        if (mark) i += 2;
        st = encoding_progress(en, 1);
    }
    *text = s->text;
    *len = n;
    return st;
}

static enum status to_lower(struct encoding *en, const char **text, size_t *len) {
    struct tokenizer_scratch *s = en->s;
    enum status st = scratch_reserve((void **)&s->text, &s->text_cap, *len * 2 + 4, 1);
    if (st != STATUS_OK) return st;
    size_t n = 0;
    for (size_t pos = 0; pos < *len && st == STATUS_OK;) {
        uint32_t cp;
        size_t bytes = utf8_decode(*text + pos, *len - pos, &cp);
        if (cp == UTF8_INVALID)
            s->text[n++] = (*text)[pos];
        else
            n += utf8_encode(unicode_lower(cp), s->text + n);
        pos += bytes;
        st = encoding_progress(en, bytes);
    }
    *text = s->text;
    *len = n;
    return st;
}

enum status bpe_encode(struct encoding *en, const char *text, size_t len) {
    const struct pretokenizer *pre = en->t->pre;
    enum status st = STATUS_OK;
    if (pre->metaspace) st = to_metaspace(en, &text, &len);
    if (pre->drop_space && en->t->lowercase) st = to_lower(en, &text, &len);
    if (st != STATUS_OK) return st;
    struct pretoken_walk walk;
    pretoken_walk_init(&walk, pre, en->chore, text, len);
    size_t start, end;
    while (pretoken_walk_next(&walk, &start, &end)) {
        if (pre->drop_space) {
            uint32_t cp;
            (void)utf8_decode(text + start, end - start, &cp);
            if (unicode_is_space(cp)) continue;
        }
        st = encode_piece(en, text + start, end - start);
        if (st != STATUS_OK) return st;
    }
    return walk.gone ? STATUS_GONE : STATUS_OK;
}
