#include "models/detokenizer.h"

#include <string.h>

#include "models/tokenizer_impl.h"

static void put_replacement(struct buffer *out) {
    buffer_append(out, "\xEF\xBF\xBD", 3);
}

static size_t sequence_bytes(uint8_t lead) {
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

/* Whether `byte` may follow what is held (RFC 3629's table: the second byte is narrower for some).
 */
static bool may_follow(const struct detokenizer *d, uint8_t byte) {
    uint8_t low = 0x80, high = 0xBF;
    if (d->n_held == 1) {
        switch (d->held[0]) {
        case 0xE0:
            low = 0xA0;
            break;
        case 0xED:
            high = 0x9F;
            break;
        case 0xF0:
            low = 0x90;
            break;
        case 0xF4:
            high = 0x8F;
            break;
        default:
            break;
        }
    }
    return byte >= low && byte <= high;
}

static void put_byte(struct detokenizer *d, uint8_t byte, struct buffer *out) {
    if (d->n_held > 0) {
        if (may_follow(d, byte)) {
            d->held[d->n_held++] = byte;
            if (d->n_held == sequence_bytes(d->held[0])) {
                buffer_append(out, d->held, d->n_held);
                d->n_held = 0;
            }
            return;
        }
        put_replacement(out);
        d->n_held = 0;
    }
    if (byte < 0x80)
        buffer_putc(out, (char)byte);
    else if (byte >= 0xC2 && byte <= 0xF4)
        d->held[d->n_held++] = byte;
    else
        put_replacement(out);
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, unsigned flags) {
    bool prefixed = (t->kind == TOKENIZER_SPM && t->add_space_prefix) ||
                    t->kind == TOKENIZER_WORDPIECE || (t->pre != NULL && t->pre->word_prefix);
    *d = (struct detokenizer){
        .t = t, .flags = flags, .strip_space = prefixed && !(flags & DETOKENIZE_CONTINUES)};
}

void detokenizer_push(struct detokenizer *d, uint32_t id, struct buffer *out) {
    const struct tokenizer *t = d->t;
    if (id >= t->n_tokens) return;
    if (!(d->flags & DETOKENIZE_SPECIAL) && tokenizer_is_control(t, id)) return;
    const char *piece = t->piece + t->piece_start[id];
    size_t len = t->piece_start[id + 1] - t->piece_start[id];
    if (len == 0) return;
    if (d->strip_space && piece[0] == ' ') {
        piece++;
        len--;
    }
    d->strip_space = false;
    if (d->flags & DETOKENIZE_RAW) {
        buffer_append(out, piece, len);
        return;
    }
    for (size_t i = 0; i < len;) {
        size_t ascii = i;
        if (d->n_held == 0)
            while (ascii < len && (uint8_t)piece[ascii] < 0x80) ascii++;
        if (ascii > i)
            buffer_append(out, piece + i, ascii - i);
        else
            put_byte(d, (uint8_t)piece[ascii++], out);
        i = ascii;
    }
}

void detokenizer_flush(struct detokenizer *d, struct buffer *out) {
    if (d->n_held > 0) put_replacement(out);
    d->n_held = 0;
    d->strip_space = false;
}

void detokenize(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                struct buffer *out) {
    struct detokenizer d;
    detokenizer_init(&d, t, flags);
    for (size_t i = 0; i < n; i++) detokenizer_push(&d, ids[i], out);
    detokenizer_flush(&d, out);
}
