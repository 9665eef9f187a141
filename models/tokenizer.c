#include "models/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"
#include "models/tokenizer_impl.h"
#include "models/unicode.h"

/* --- scratch --- */

enum status scratch_reserve(void **mem, size_t *cap, size_t n, size_t size) {
    if (n <= *cap) return STATUS_OK;
    size_t grown = *cap + *cap / 2 > n ? *cap + *cap / 2 : n;
    if (grown > SIZE_MAX / size) return STATUS_NO_MEMORY;
    void *p = realloc(*mem, grown * size);
    if (p == NULL) return STATUS_NO_MEMORY;
    *mem = p;
    *cap = grown;
    return STATUS_OK;
}

enum status scratch_heap_push(struct tokenizer_scratch *s, uint64_t key, uint64_t pair) {
    enum status st =
        scratch_reserve((void **)&s->heap, &s->heap_cap, s->heap_n + 1, sizeof *s->heap);
    if (st != STATUS_OK) return st;
    size_t i = s->heap_n++;
    while (i > 0 && s->heap[(i - 1) / 2].key > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = (struct heap_item){key, pair};
    return STATUS_OK;
}

struct heap_item scratch_heap_pop(struct tokenizer_scratch *s) {
    CHECK(s->heap_n > 0);
    struct heap_item top = s->heap[0], last = s->heap[--s->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_n) break;
        if (child + 1 < s->heap_n && s->heap[child + 1].key < s->heap[child].key) child++;
        if (s->heap[child].key >= last.key) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

void token_list_free(struct token_list *l) {
    if (l->scratch != NULL) {
        free(l->scratch->symbol);
        free(l->scratch->spm);
        free(l->scratch->heap);
        free(l->scratch->text);
        free(l->scratch);
    }
    free(l->ids);
    *l = (struct token_list){0};
}

/* --- look-ups --- */

uint32_t text_lookup(const struct tokenizer *t, const char *text, size_t len) {
    if (len > t->max_token_bytes) return TOKEN_NONE;
    for (size_t i = XXH3_64bits(text, len) & t->text.mask;; i = (i + 1) & t->text.mask) {
        uint32_t id = t->text.slot[i];
        if (id == TOKEN_NONE) return TOKEN_NONE;
        size_t start = t->piece_start[id];
        if (t->piece_start[id + 1] - start == len && memcmp(t->piece + start, text, len) == 0)
            return id;
    }
}

const struct merge_slot *merge_lookup(const struct merge_table *m, uint32_t left, uint32_t right) {
    for (size_t i = slot_hash((uint64_t)left << 32 | right) & m->mask;; i = (i + 1) & m->mask) {
        const struct merge_slot *s = &m->slot[i];
        if (s->left == left && s->right == right) return s;
        if (s->left == TOKEN_NONE) return NULL;
    }
}

static uint32_t trie_child(const struct special_trie *trie, uint32_t node, uint8_t byte) {
    for (size_t i = slot_hash((uint64_t)node << 8 | byte) & trie->mask;; i = (i + 1) & trie->mask) {
        const struct trie_edge *e = &trie->edge[i];
        if (e->node == TOKEN_NONE) return TOKEN_NONE;
        if (e->node == node && e->byte == byte) return e->child;
    }
}

uint32_t special_match(const struct tokenizer *t, const char *text, size_t len, bool control) {
    uint32_t node = 0, best = TOKEN_NONE;
    for (size_t i = 0; i < len; i++) {
        node = trie_child(&t->special, node, (uint8_t)text[i]);
        if (node == TOKEN_NONE) break;
        uint32_t id = t->special.token[node];
        if (id != TOKEN_NONE && (control || t->type[id] == TOKEN_USER_DEFINED)) best = id;
    }
    return best;
}

/* --- encoding --- */

enum status encoding_pause(struct encoding *en) {
    en->since_checkpoint = 0;
    return en->chore != NULL && chore_checkpoint(en->chore) ? STATUS_GONE : STATUS_OK;
}

enum status encoding_push(struct encoding *en, uint32_t id) {
    struct token_list *out = en->out;
    if (out->n == out->cap) {
        enum status st =
            scratch_reserve((void **)&out->ids, &out->cap, out->n + 64, sizeof *out->ids);
        if (st != STATUS_OK) return st;
    }
    out->ids[out->n++] = id;
    return STATUS_OK;
}

enum status encoding_push_bytes(struct encoding *en, const char *text, size_t len) {
    const struct tokenizer *t = en->t;
    bool all = true;
    for (size_t i = 0; i < len; i++) all &= t->byte_id[(unsigned char)text[i]] != TOKEN_NONE;
    if (!all) return t->unk == TOKEN_NONE ? STATUS_OK : encoding_push(en, t->unk);
    enum status st = STATUS_OK;
    for (size_t i = 0; i < len && st == STATUS_OK; i++)
        st = encoding_push(en, t->byte_id[(unsigned char)text[i]]);
    return st;
}

static enum status encode_plain(struct encoding *en, const char *text, size_t len, bool first) {
    if (len == 0) return STATUS_OK;
    switch (en->t->kind) {
    case TOKENIZER_BPE:
        return bpe_encode(en, text, len);
    case TOKENIZER_SPM:
        return spm_encode(en, text, len, first);
    case TOKENIZER_WORDPIECE:
        return wordpiece_encode(en, text, len);
    }
    return STATUS_INVALID;
}

static size_t space_at(const char *text, size_t len) {
    uint32_t cp;
    size_t bytes = utf8_decode(text, len, &cp);
    return cp != UTF8_INVALID && unicode_is_space(cp) ? bytes : 0;
}

/* Where the white space in front of text[end] starts, not before `start`. */
static size_t strip_left(const char *text, size_t start, size_t end) {
    while (end > start) {
        size_t at = end - 1;
        while (at > start && end - at < UTF8_MAX_BYTES && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        if (space_at(text + at, end - at) != end - at) break;
        end = at;
    }
    return end;
}

/* The end of the bytes from `pos` on of which none is a user's. *at is the span to look from. */
static size_t trusted_end(const struct text_span *spans, size_t n_spans, size_t *at, size_t pos) {
    while (*at < n_spans && spans[*at].end <= pos) ++*at;
    size_t end = pos;
    for (size_t i = *at; i < n_spans && !spans[i].from_user; i++) end = spans[i].end;
    return end;
}

/* Control tokens may match in [pos, trusted) only, user-defined ones anywhere. */
static uint32_t match_at(const struct tokenizer *t, const char *text, size_t len, size_t pos,
                         size_t trusted) {
    const uint32_t a = special_match(t, text + pos, trusted - pos, true);
    if (trusted == len) return a;
    const uint32_t b = special_match(t, text + pos, len - pos, false);
    if (a == TOKEN_NONE || b == TOKEN_NONE) return a == TOKEN_NONE ? b : a;
    return t->piece_start[b + 1] - t->piece_start[b] > t->piece_start[a + 1] - t->piece_start[a]
               ? b
               : a;
}

/* spans == NULL: control tokens are recognised everywhere, or nowhere. */
static enum status encode_text(struct encoding *en, const char *text, size_t len, bool control,
                               const struct text_span *spans, size_t n_spans) {
    const struct tokenizer *t = en->t;
    size_t plain = 0; /* where the text since the last special token starts */
    bool first = true;
    enum status st = STATUS_OK;
    size_t at = 0;
    for (size_t pos = 0; pos < len;) {
        uint32_t id = TOKEN_NONE;
        if (t->special.first[(unsigned char)text[pos]]) {
            size_t trusted = control ? len : pos;
            if (control && spans != NULL) trusted = trusted_end(spans, n_spans, &at, pos);
            id = match_at(t, text, len, pos, trusted);
        }
        if (id == TOKEN_NONE) {
            pos++;
            st = encoding_progress(en, 1);
            if (st != STATUS_OK) return st;
            continue;
        }
        size_t end = t->strip[id] & TOKEN_STRIP_LEFT ? strip_left(text, plain, pos) : pos;
        st = encode_plain(en, text + plain, end - plain, first);
        if (st == STATUS_OK) st = encoding_push(en, id);
        size_t token_bytes = t->piece_start[id + 1] - t->piece_start[id];
        if (st == STATUS_OK) st = encoding_progress(en, token_bytes);
        if (st != STATUS_OK) return st;
        pos += token_bytes;
        if (t->strip[id] & TOKEN_STRIP_RIGHT)
            for (size_t n; pos < len && (n = space_at(text + pos, len - pos)) > 0;) pos += n;
        plain = pos;
        first = true;
    }
    return encode_plain(en, text + plain, len - plain, first);
}

enum status tokenizer_encode_spans(const struct tokenizer *t, struct chore *c, const char *text,
                                   size_t len, const struct text_span *spans, size_t n_spans,
                                   unsigned flags, struct token_list *out, struct error *e) {
    if (len > TOKENIZER_MAX_TEXT_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "a text of %zu bytes is over the limit of %d",
                         len, TOKENIZER_MAX_TEXT_BYTES);
    const size_t n_before = out->n;
    if (out->scratch == NULL) out->scratch = calloc(1, sizeof *out->scratch);
    struct encoding en = {.t = t, .chore = c, .s = out->scratch, .out = out};
    enum status st = out->scratch == NULL ? STATUS_NO_MEMORY : STATUS_OK;
    if (st == STATUS_OK && (flags & TOKENIZE_BOS) && t->add_bos && t->bos != TOKEN_NONE)
        st = encoding_push(&en, t->bos);
    if (st == STATUS_OK)
        st = encode_text(&en, text, len, (flags & TOKENIZE_SPECIAL) != 0, spans, n_spans);
    uint32_t last = t->kind == TOKENIZER_WORDPIECE && t->sep != TOKEN_NONE ? t->sep : t->eos;
    if (st == STATUS_OK && (flags & TOKENIZE_EOS) && t->add_eos && last != TOKEN_NONE)
        st = encoding_push(&en, last);
    if (st == STATUS_OK) return STATUS_OK;
    out->n = n_before;
    return error_set(
        e, st, NULL,
        st == STATUS_GONE ? "tokenising was cancelled" : "no memory to tokenise %zu bytes", len);
}

enum status tokenizer_encode(const struct tokenizer *t, struct chore *c, const char *text,
                             size_t len, unsigned flags, struct token_list *out, struct error *e) {
    return tokenizer_encode_spans(t, c, text, len, NULL, 0, flags, out, e);
}

/* --- questions --- */

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t) {
    return t->kind;
}
const char *tokenizer_pre(const struct tokenizer *t) {
    return t->pre ? t->pre->name : "";
}
uint32_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->n_tokens;
}
size_t tokenizer_memory_bytes(const struct tokenizer *t) {
    return t->memory_bytes;
}
uint32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}
uint32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}
uint32_t tokenizer_eot(const struct tokenizer *t) {
    return t->eot;
}
uint32_t tokenizer_pad(const struct tokenizer *t) {
    return t->pad;
}
bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->add_bos;
}
bool tokenizer_adds_eos(const struct tokenizer *t) {
    return t->add_eos;
}
bool tokenizer_adds_space_prefix(const struct tokenizer *t) {
    return t->add_space_prefix;
}

bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && t->eog[id];
}

bool tokenizer_is_control(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_UNKNOWN);
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        if (t->type[id] != TOKEN_CONTROL && t->type[id] != TOKEN_USER_DEFINED &&
            t->type[id] != TOKEN_UNKNOWN)
            continue;
        size_t start = t->piece_start[id];
        if (t->piece_start[id + 1] - start == len && memcmp(t->piece + start, text, len) == 0)
            return id;
    }
    return text_lookup(t, text, len);
}

size_t tokenizer_piece(const struct tokenizer *t, uint32_t id, bool special, char *buf,
                       size_t cap) {
    if (id >= t->n_tokens || (!special && tokenizer_is_control(t, id))) return 0;
    size_t start = t->piece_start[id], len = t->piece_start[id + 1] - start;
    memcpy(buf, t->piece + start, len < cap ? len : cap);
    return len;
}
