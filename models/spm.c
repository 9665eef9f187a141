#include "models/tokenizer_impl.h"

#include <string.h>

#include "models/unicode.h"

/* Ascending in the order in which merges are done: highest score first, then leftmost. */
static uint64_t merge_key(float score, uint32_t left) {
    uint32_t bits;
    float s = score + 0.0f; /* -0 and 0 are the same score */
    memcpy(&bits, &s, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | left;
}

static enum status heap_pair(struct encoding *en, const char *text, uint32_t left) {
    const struct spm_symbol *symbol = en->s->spm;
    if (left == TOKEN_NONE || symbol[left].next == TOKEN_NONE) return STATUS_OK;
    uint32_t right = symbol[left].next;
    uint32_t len = symbol[left].len + symbol[right].len;
    if (len > en->t->max_token_bytes) return STATUS_OK;
    uint32_t id = text_lookup(en->t, text + symbol[left].start, len);
    if (id == TOKEN_NONE) return STATUS_OK;
    return scratch_heap_push(en->s, merge_key(en->t->score[id], left), (uint64_t)len << 32 | right);
}

/* A heap item is stale unless its two symbols are still neighbours of the length it was made for.
 */
static enum status merge_word(struct encoding *en, const char *text, size_t len) {
    struct tokenizer_scratch *s = en->s;
    enum status st = scratch_reserve((void **)&s->spm, &s->spm_cap, len, sizeof *s->spm);
    uint32_t n = 0;
    for (size_t pos = 0; st == STATUS_OK && pos < len; n++) {
        uint32_t cp;
        size_t bytes = utf8_decode(text + pos, len - pos, &cp);
        s->spm[n] = (struct spm_symbol){.start = (uint32_t)pos,
                                        .len = (uint32_t)bytes,
                                        .prev = n == 0 ? TOKEN_NONE : n - 1,
                                        .next = n + 1};
        pos += bytes;
        st = encoding_progress(en, bytes);
    }
    if (st != STATUS_OK) return st;
    s->spm[n - 1].next = TOKEN_NONE;
    s->heap_n = 0;
    for (uint32_t i = 0; i < n && st == STATUS_OK; i++) {
        st = heap_pair(en, text, i);
        if (st == STATUS_OK) st = encoding_progress(en, s->spm[i].len);
    }
    while (st == STATUS_OK && s->heap_n > 0) {
        struct heap_item top = scratch_heap_pop(s);
        uint32_t left = (uint32_t)top.key, right = (uint32_t)top.pair;
        uint32_t bytes = (uint32_t)(top.pair >> 32);
        struct spm_symbol *l = &s->spm[left], *r = &s->spm[right];
        st = encoding_progress(en, 1);
        if (st != STATUS_OK) break;
        if (l->len == 0 || l->next != right || l->len + r->len != bytes) continue;
        l->len = bytes;
        l->next = r->next;
        r->len = 0;
        if (l->next != TOKEN_NONE) s->spm[l->next].prev = left;
        st = heap_pair(en, text, l->prev);
        if (st == STATUS_OK) st = heap_pair(en, text, left);
    }
    for (uint32_t i = 0; st == STATUS_OK && i != TOKEN_NONE; i = s->spm[i].next) {
        const char *at = text + s->spm[i].start;
        uint32_t id = text_lookup(en->t, at, s->spm[i].len);
        st = id != TOKEN_NONE ? encoding_push(en, id) : encoding_push_bytes(en, at, s->spm[i].len);
        if (st == STATUS_OK) st = encoding_progress(en, s->spm[i].len);
    }
    return st;
}

enum status spm_encode(struct encoding *en, const char *text, size_t len, bool first) {
    if (len == 0) return STATUS_OK;
    struct tokenizer_scratch *s = en->s;
    enum status st = scratch_reserve((void **)&s->text, &s->text_cap, len + 1, 1);
    if (st != STATUS_OK) return st;
    size_t n = 0;
    if (first && en->t->add_space_prefix) s->text[n++] = ' ';
    for (size_t i = 0; i < len && st == STATUS_OK; i++) {
        /* A text's own U+2581 is the space it stands for, as in SentencePiece. */
        bool mark = len - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        s->text[n++] = mark ? ' ' : text[i];
        if (mark) i += 2;
        st = encoding_progress(en, 1);
    }
    /* Where no token has a space behind another character, no merge crosses the start of a word. */
    for (size_t start = 0, end; start < n && st == STATUS_OK; start = end) {
        end = start + 1;
        if (en->t->words_apart)
            while (end < n && !(s->text[end] == ' ' && s->text[end - 1] != ' ')) end++;
        else
            end = n;
        st = merge_word(en, s->text + start, end - start);
    }
    return st;
}
