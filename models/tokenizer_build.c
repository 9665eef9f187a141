#include "models/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "models/unicode.h"

struct tokenizer_spec tokenizer_spec_default(enum tokenizer_kind kind) {
    return (struct tokenizer_spec){
        .kind = kind,
        .bos = TOKEN_NONE,
        .eos = TOKEN_NONE,
        .eot = TOKEN_NONE,
        .unk = TOKEN_NONE,
        .pad = TOKEN_NONE,
        .sep = TOKEN_NONE,
        .add_bos = -1,
        .add_eos = -1,
        .add_space_prefix = -1,
        .lowercase = -1,
        .strip_accents = -1,
    };
}

static void *take(struct tokenizer *t, size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (p != NULL) t->memory_bytes += (n ? n : 1) * size;
    return p;
}

static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < n * 2) slots *= 2;
    return slots;
}

/* --- the bytes a token stands for --- */

int byte_of_alphabet(uint32_t cp) {
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 256 || cp >= 256 + 68) return -1;
    uint32_t k = cp - 256; /* the k-th byte that does not stand for itself */
    if (k < 33) return (int)k;
    if (k < 33 + 34) return (int)(127 + (k - 33));
    return 173;
}

static bool starts_with(const char *text, size_t len, const char *prefix) {
    size_t n = strlen(prefix);
    return len >= n && memcmp(text, prefix, n) == 0;
}

/* How a token's text in the file becomes its bytes; never longer. `raw_wordpiece`: continuations
 * are written ##so and words plainly, and one byte longer is possible. */
static size_t token_bytes(const struct tokenizer *t, bool raw_wordpiece, const char *text,
                          size_t len, char *out) {
    size_t n = 0;
    if (t->kind == TOKENIZER_WORDPIECE && raw_wordpiece) {
        bool continued = len > 2 && starts_with(text, len, "##");
        if (!continued) out[n++] = ' ';
        memcpy(out + n, text + (continued ? 2 : 0), len - (continued ? 2 : 0));
        return n + len - (continued ? 2 : 0);
    }
    bool alphabet = t->kind == TOKENIZER_BPE && !t->pre->metaspace && !t->pre->drop_space;
    bool mark = !alphabet && !(t->kind == TOKENIZER_BPE && t->pre->drop_space);
    for (size_t pos = 0; pos < len;) {
        uint32_t cp;
        size_t bytes = utf8_decode(text + pos, len - pos, &cp);
        /* in a word piece only the first one is a mark, and alone it is itself */
        bool space =
            mark && cp == 0x2581 && (t->kind != TOKENIZER_WORDPIECE || (pos == 0 && len > bytes));
        int byte = alphabet ? byte_of_alphabet(cp) : space ? ' ' : -1;
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            memcpy(out + n, text + pos, bytes);
            n += bytes;
        }
        pos += bytes;
    }
    return n;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of a token written <0xNN>, or -1. */
static int byte_token(const char *text, size_t len) {
    if (len != 6 || !starts_with(text, len, "<0x") || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static bool is_text_token(const struct tokenizer *t, uint32_t id) {
    return t->type[id] == TOKEN_NORMAL || t->type[id] == TOKEN_UNUSED;
}

static bool is_special(const struct tokenizer *t, uint32_t id) {
    return t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_USER_DEFINED ||
           t->type[id] == TOKEN_UNKNOWN;
}

/* --- names that end a generation --- */

static bool text_is(struct gguf_string s, const char *name) {
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

static bool text_is_any(struct gguf_string s, const char *const *names) {
    for (; *names != NULL; names++)
        if (text_is(s, *names)) return true;
    return false;
}

static void mark_eog(struct tokenizer *t, const struct tokenizer_spec *spec) {
    /* Ends of turn or text whatever type the file gives them. */
    static const char *const always[] = {"<|eot_id|>",
                                         "<|im_end|>",
                                         "<|end|>",
                                         "<|return|>",
                                         "<|call|>",
                                         "<|flush|>",
                                         "<|calls|>",
                                         "<end_of_turn>",
                                         "<|endoftext|>",
                                         "<|eom_id|>",
                                         "<EOT>",
                                         "_<EOT>",
                                         "[EOT]",
                                         "<|end_of_text|>",
                                         "<end_of_utterance>",
                                         "<turn|>",
                                         "<|tool_response>",
                                         "<｜end▁of▁sentence｜>",
                                         "[e~[",
                                         NULL};
    /* Only where they are control tokens: other models use the same text for other things. */
    static const char *const if_control[] = {
        "</s>",         "<eos>",         "[EOS]",      "<|fim_pad|>", "<fim-pad>",    "<fim_pad>",
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>",  "<|file_sep|>", NULL};
    static const char *const turns[] = {"<|eot_id|>",         "<|im_end|>", "<|end|>",
                                        "<end_of_turn>",      "<EOT>",      "[EOT]",
                                        "<end_of_utterance>", NULL};
    bool has_return = false, has_call = false, has_flush = false, has_tool_response = false;
    uint32_t end = TOKEN_NONE, s_end = TOKEN_NONE;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct gguf_string s = spec->tokens[id];
        if (text_is_any(s, always)) {
            t->type[id] = TOKEN_CONTROL;
            t->eog[id] = 1;
        }
        if (t->type[id] == TOKEN_CONTROL && text_is_any(s, if_control)) t->eog[id] = 1;
        if (t->eot == TOKEN_NONE && text_is_any(s, turns)) t->eot = id;
        has_return |= text_is(s, "<|return|>");
        has_call |= text_is(s, "<|call|>") || text_is(s, "<|calls|>");
        has_flush |= text_is(s, "<|flush|>");
        has_tool_response |= text_is(s, "<|tool_response>");
        if (text_is(s, "<|end|>")) end = id;
        if (text_is(s, "</s>")) s_end = id;
    }
    /* There a message ends with <|end|>, and the turn goes on. */
    if (end != TOKEN_NONE && has_call && (has_return || has_flush)) {
        t->eog[end] = 0;
        if (t->eot == end) t->eot = TOKEN_NONE;
    }
    if (s_end != TOKEN_NONE && has_tool_response) t->eog[s_end] = 0;
    if (t->eos != TOKEN_NONE) t->eog[t->eos] = 1;
    if (t->eot != TOKEN_NONE) t->eog[t->eot] = 1;
}

/* --- tables --- */

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the tokenizer");
}

static bool wordpiece_is_raw(const struct tokenizer_spec *spec) {
    if (spec->kind != TOKENIZER_WORDPIECE) return false;
    for (size_t i = 0; i < spec->n_tokens; i++)
        if (starts_with(spec->tokens[i].data, spec->tokens[i].len, "\xE2\x96\x81")) return false;
    return true;
}

static enum status build_pieces(struct tokenizer *t, const struct tokenizer_spec *spec,
                                struct error *e) {
    bool raw = wordpiece_is_raw(spec);
    size_t total = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        if (spec->tokens[i].len > TOKENIZER_MAX_TOKEN_BYTES)
            return error_set(e, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                             "token %zu has %zu bytes, the limit is %d", i, spec->tokens[i].len,
                             TOKENIZER_MAX_TOKEN_BYTES);
        total += spec->tokens[i].len + (raw ? 1 : 0);
    }
    if (total > INT32_MAX)
        return error_set(e, STATUS_TOO_LARGE, "tokenizer.ggml.tokens",
                         "the tokens have %zu bytes in all", total);
    t->piece = take(t, total, 1);
    t->piece_start = take(t, (size_t)t->n_tokens + 1, sizeof *t->piece_start);
    if (t->piece == NULL || t->piece_start == NULL) return no_memory(e);
    size_t n = 0;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct gguf_string s = spec->tokens[id];
        t->piece_start[id] = (uint32_t)n;
        if (t->type[id] == TOKEN_BYTE) {
            int byte = byte_token(s.data, s.len);
            if (byte < 0)
                return error_set(e, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                                 "token %u is a byte token but does not read <0xNN>", id);
            t->piece[n++] = (char)byte;
        } else if (is_special(t, id)) {
            if (s.len > 0) memcpy(t->piece + n, s.data, s.len);
            n += s.len;
        } else {
            n += token_bytes(t, raw, s.data, s.len, t->piece + n);
        }
    }
    t->piece_start[t->n_tokens] = (uint32_t)n;
    return STATUS_OK;
}

static void text_insert(struct tokenizer *t, uint32_t id) {
    const char *text = t->piece + t->piece_start[id];
    size_t len = t->piece_start[id + 1] - t->piece_start[id];
    if (len == 0) return;
    if (len > t->max_token_bytes) t->max_token_bytes = len;
    if (text_lookup(t, text, len) != TOKEN_NONE) return;
    size_t i = XXH3_64bits(text, len) & t->text.mask;
    while (t->text.slot[i] != TOKEN_NONE) i = (i + 1) & t->text.mask;
    t->text.slot[i] = id;
}

static enum status build_text(struct tokenizer *t, struct error *e) {
    size_t slots = slots_for(t->n_tokens);
    t->text.mask = slots - 1;
    t->text.slot = take(t, slots, sizeof *t->text.slot);
    if (t->text.slot == NULL) return no_memory(e);
    memset(t->text.slot, 0xFF, slots * sizeof *t->text.slot);
    for (size_t i = 0; i < 256; i++) t->byte_id[i] = TOKEN_NONE;
    t->words_apart = true;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        const char *p = t->piece + t->piece_start[id];
        size_t len = t->piece_start[id + 1] - t->piece_start[id];
        if (t->type[id] == TOKEN_BYTE) {
            if (t->byte_id[(unsigned char)p[0]] == TOKEN_NONE) t->byte_id[(unsigned char)p[0]] = id;
            continue;
        }
        if (!is_text_token(t, id)) continue;
        text_insert(t, id);
        for (size_t i = 1; i < len; i++)
            if (p[i] == ' ' && p[i - 1] != ' ') t->words_apart = false;
    }
    /* Behind the normal ones, because merges may lead through them; never the control tokens. */
    for (uint32_t id = 0; id < t->n_tokens; id++)
        if (t->type[id] == TOKEN_USER_DEFINED && t->kind == TOKENIZER_BPE) text_insert(t, id);
    if (t->kind == TOKENIZER_BPE && !t->pre->metaspace && !t->pre->drop_space) {
        for (unsigned b = 0; b < 256; b++) {
            char c = (char)b;
            uint32_t id = text_lookup(t, &c, 1);
            if (id != TOKEN_NONE) t->byte_id[b] = id;
        }
    }
    return STATUS_OK;
}

static enum status build_merges(struct tokenizer *t, const struct tokenizer_spec *spec,
                                struct error *e) {
    size_t slots = slots_for(spec->n_merges), longest = 0;
    for (size_t i = 0; i < spec->n_merges; i++)
        if (spec->merges[i].len > longest) longest = spec->merges[i].len;
    t->merge.mask = slots - 1;
    t->merge.slot = take(t, slots, sizeof *t->merge.slot);
    char *pair = malloc(longest + 1);
    if (t->merge.slot == NULL || pair == NULL) {
        free(pair);
        return no_memory(e);
    }
    for (size_t i = 0; i < slots; i++) t->merge.slot[i].left = TOKEN_NONE;
    for (size_t rank = 0; rank < spec->n_merges; rank++) {
        struct gguf_string s = spec->merges[rank];
        const char *gap = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
        if (gap == NULL) {
            free(pair);
            return error_set(e, STATUS_CORRUPT, "tokenizer.ggml.merges",
                             "merge %zu is not two tokens with a space between", rank);
        }
        size_t left_len = (size_t)(gap - s.data);
        size_t a = token_bytes(t, false, s.data, left_len, pair);
        size_t b = token_bytes(t, false, gap + 1, s.len - left_len - 1, pair + a);
        uint32_t left = text_lookup(t, pair, a), right = text_lookup(t, pair + a, b);
        uint32_t result = text_lookup(t, pair, a + b);
        /* A merge of or into something that is no token can never be output. */
        if (left == TOKEN_NONE || right == TOKEN_NONE || result == TOKEN_NONE) continue;
        if (merge_lookup(&t->merge, left, right) != NULL) continue;
        size_t at = slot_hash((uint64_t)left << 32 | right) & t->merge.mask;
        while (t->merge.slot[at].left != TOKEN_NONE) at = (at + 1) & t->merge.mask;
        t->merge.slot[at] = (struct merge_slot){left, right, (uint32_t)rank, result};
    }
    free(pair);
    return STATUS_OK;
}

static uint32_t trie_step(struct special_trie *trie, uint32_t node, uint8_t byte) {
    size_t i = slot_hash((uint64_t)node << 8 | byte) & trie->mask;
    for (; trie->edge[i].node != TOKEN_NONE; i = (i + 1) & trie->mask)
        if (trie->edge[i].node == node && trie->edge[i].byte == byte) return trie->edge[i].child;
    trie->edge[i] = (struct trie_edge){node, trie->n_nodes, byte};
    trie->token[trie->n_nodes] = TOKEN_NONE;
    return trie->n_nodes++;
}

static enum status build_special(struct tokenizer *t, struct error *e) {
    size_t bytes = 0;
    for (uint32_t id = 0; id < t->n_tokens; id++)
        if (is_special(t, id)) bytes += t->piece_start[id + 1] - t->piece_start[id];
    size_t slots = slots_for(bytes);
    struct special_trie *trie = &t->special;
    trie->mask = slots - 1;
    trie->edge = take(t, slots, sizeof *trie->edge);
    trie->token = take(t, bytes + 1, sizeof *trie->token);
    if (trie->edge == NULL || trie->token == NULL) return no_memory(e);
    for (size_t i = 0; i < slots; i++) trie->edge[i].node = TOKEN_NONE;
    trie->token[0] = TOKEN_NONE;
    trie->n_nodes = 1;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        size_t start = t->piece_start[id], end = t->piece_start[id + 1];
        if (!is_special(t, id) || start == end) continue;
        uint32_t node = 0;
        for (size_t i = start; i < end; i++) node = trie_step(trie, node, (uint8_t)t->piece[i]);
        if (trie->token[node] == TOKEN_NONE) trie->token[node] = id;
        trie->first[(unsigned char)t->piece[start]] = true;
    }
    return STATUS_OK;
}

static bool has_upper_case(const struct tokenizer *t) {
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        if (t->type[id] != TOKEN_NORMAL) continue;
        size_t len = t->piece_start[id + 1] - t->piece_start[id];
        const char *p = t->piece + t->piece_start[id];
        /* [UNK] and its like are not always marked as control tokens. */
        if (memchr(p, '[', len) != NULL) continue;
        for (size_t i = 0; i < len; i++)
            if (p[i] >= 'A' && p[i] <= 'Z') return true;
    }
    return false;
}

static bool choice(int wanted, bool otherwise) {
    return wanted < 0 ? otherwise : wanted != 0;
}

static enum status build_tables(struct tokenizer *t, const struct tokenizer_spec *spec,
                                struct error *e) {
    t->type = take(t, t->n_tokens, 1);
    t->strip = take(t, t->n_tokens, 1);
    t->eog = take(t, t->n_tokens, 1);
    if (t->kind == TOKENIZER_SPM) t->score = take(t, t->n_tokens, sizeof *t->score);
    if (t->type == NULL || t->strip == NULL || t->eog == NULL ||
        (t->kind == TOKENIZER_SPM && t->score == NULL))
        return no_memory(e);
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        t->type[id] = spec->types ? spec->types[id] : TOKEN_NORMAL;
        if (t->type[id] < TOKEN_NORMAL || t->type[id] > TOKEN_BYTE) t->type[id] = TOKEN_UNUSED;
        if (spec->strips) t->strip[id] = spec->strips[id];
        if (t->score && spec->scores) t->score[id] = spec->scores[id];
    }
    mark_eog(t, spec);
    enum status st = build_pieces(t, spec, e);
    if (st == STATUS_OK) st = build_text(t, e);
    if (st == STATUS_OK) st = build_merges(t, spec, e);
    if (st == STATUS_OK) st = build_special(t, e);
    return st;
}

enum status tokenizer_build(const struct tokenizer_spec *spec, struct tokenizer **out,
                            struct error *e) {
    *out = NULL;
    if (spec->n_tokens == 0 || spec->n_tokens > TOKENIZER_MAX_TOKENS)
        return error_set(e, STATUS_CORRUPT, "tokenizer.ggml.tokens",
                         "a vocabulary of %zu tokens (1 to %d are possible)", spec->n_tokens,
                         TOKENIZER_MAX_TOKENS);
    if (spec->n_merges > 4 * (size_t)TOKENIZER_MAX_TOKENS)
        return error_set(e, STATUS_CORRUPT, "tokenizer.ggml.merges", "%zu merges", spec->n_merges);
    const struct pretokenizer *pre = NULL;
    if (spec->kind == TOKENIZER_BPE) {
        struct gguf_string name = spec->pre;
        if (name.len == 0) name = (struct gguf_string){"default", 7};
        pre = pretokenizer_find(name.data, name.len);
        if (pre == NULL)
            return error_set(e, STATUS_UNSUPPORTED, "tokenizer.ggml.pre",
                             "unknown pre-tokenizer \"%.*s\"", (int)(name.len < 64 ? name.len : 64),
                             name.data);
    }
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return no_memory(e);
    t->memory_bytes = sizeof *t;
    t->kind = spec->kind;
    t->pre = pre;
    t->n_tokens = (uint32_t)spec->n_tokens;
    /* An id outside the vocabulary is as good as none. */
#define ID(name) t->name = spec->name < t->n_tokens ? spec->name : TOKEN_NONE
    ID(bos), ID(eos), ID(eot), ID(unk), ID(pad), ID(sep);
#undef ID
    bool bos_default = pre ? pre->add_bos : true;
    t->add_bos = choice(spec->add_bos, bos_default);
    t->add_eos = choice(spec->add_eos, spec->kind == TOKENIZER_WORDPIECE);
    t->add_space_prefix = choice(spec->add_space_prefix, spec->kind == TOKENIZER_SPM);
    enum status st = build_tables(t, spec, e);
    if (st != STATUS_OK) {
        tokenizer_free(t);
        return st;
    }
    bool fold = t->kind == TOKENIZER_WORDPIECE && !has_upper_case(t);
    t->lowercase = choice(spec->lowercase, fold);
    t->strip_accents = choice(spec->strip_accents, t->lowercase);
    *out = t;
    return STATUS_OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (t == NULL) return;
    free(t->piece);
    free(t->piece_start);
    free(t->type);
    free(t->strip);
    free(t->eog);
    free(t->score);
    free(t->text.slot);
    free(t->merge.slot);
    free(t->special.edge);
    free(t->special.token);
    free(t);
}
