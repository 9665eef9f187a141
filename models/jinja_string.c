#include "models/jinja_value.h"

#include <string.h>

#include "models/jinja_internal.h"

enum { MAX_STRING_BYTES = 0x7FFFFFFF };

unsigned jinja_utf8(const char *p, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xE0) {
        *cp = (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
        return 2;
    }
    if (s[0] < 0xF0) {
        *cp = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        return 3;
    }
    *cp = (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    return 4;
}

unsigned jinja_utf8_put(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t jinja_utf8_valid(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        unsigned b = s[i];
        size_t len = b < 0x80 ? 1 : b < 0xC2 ? 0 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : b < 0xF5 ? 4 : 0;
        if (len == 0 || len > n - i) return i;
        for (size_t k = 1; k < len; k++) {
            if ((s[i + k] & 0xC0) != 0x80) return i;
        }
        if ((b == 0xE0 && s[i + 1] < 0xA0) || (b == 0xED && s[i + 1] > 0x9F) ||
            (b == 0xF0 && s[i + 1] < 0x90) || (b == 0xF4 && s[i + 1] > 0x8F)) {
            return i;
        }
        i += len;
    }
    return n;
}

uint32_t jinja_chars(struct jinja_string *s) {
    if (s->n_chars == UINT32_MAX) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->len; i++) n += (s->data[i] & 0xC0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}

/* The Unicode White_Space set and the four separators that Python adds. */
bool jinja_is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool jinja_taint_at(struct jinja_taint *t, uint32_t at) {
    while (t->i < t->s->n_spans && t->s->spans[t->i].end <= at) t->i++;
    return t->i < t->s->n_spans && t->s->spans[t->i].start <= at;
}

bool jinja_str(struct jinja_ctx *c, const char *s, size_t n, bool from_user,
               struct jinja_value *out) {
    struct jinja_sb sb;
    jinja_sb_init(&sb, c);
    return jinja_sb_put(&sb, s, n, from_user) && jinja_sb_finish(&sb, out);
}

static bool new_string(struct jinja_ctx *c, struct jinja_string s, struct jinja_value *out) {
    struct jinja_string *p = jinja_alloc(c, sizeof *p);
    if (!p) return false;
    *p = s;
    *out = (struct jinja_value){.kind = JINJA_STRING, .u.s = p};
    return true;
}

/* First span that ends behind `at`. */
static uint32_t span_from(const struct jinja_string *s, uint32_t at) {
    uint32_t lo = 0, hi = s->n_spans;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->spans[mid].end <= at) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

bool jinja_substr(struct jinja_ctx *c, const struct jinja_string *s, uint32_t from, uint32_t to,
                  struct jinja_value *out) {
    struct jinja_string r = {.data = s->data + from, .len = to - from, .n_chars = UINT32_MAX};
    if (s->n_chars == s->len) r.n_chars = r.len;
    uint32_t first = span_from(s, from), last = first;
    while (last < s->n_spans && s->spans[last].start < to) last++;
    if (last > first) {
        struct jinja_span *spans = jinja_arena_take(c, &c->spans, (last - first) * sizeof *spans);
        if (!spans) return false;
        for (uint32_t i = first; i < last; i++) {
            uint32_t a = s->spans[i].start, b = s->spans[i].end;
            spans[i - first] =
                (struct jinja_span){(a > from ? a : from) - from, (b < to ? b : to) - from};
        }
        r.spans = spans;
        r.n_spans = last - first;
    }
    return new_string(c, r, out);
}

/* Grows a block of an arena, in place when it is the newest one there. That makes a + b + c, and a
 * loop that keeps adding to one string, linear: bytes behind a string belong to nobody. */
static void *extend(struct jinja_ctx *c, struct jinja_arena *a, const void *old, size_t old_bytes,
                    size_t new_bytes) {
    if (old && old_bytes && (const char *)old + old_bytes == a->at &&
        new_bytes - old_bytes <= (size_t)(a->end - a->at)) {
        a->at += new_bytes - old_bytes;
        return (void *)(uintptr_t)old;
    }
    void *p = jinja_arena_take(c, a, new_bytes);
    if (p && old_bytes) memcpy(p, old, old_bytes);
    return p;
}

bool jinja_concat(struct jinja_ctx *c, const struct jinja_string *a, const struct jinja_string *b,
                  struct jinja_value *out) {
    if ((uint64_t)a->len + b->len > MAX_STRING_BYTES) {
        return jinja_fail(c, STATUS_TOO_LARGE, "string of more than 2 GiB");
    }
    if (!jinja_work(c, 1 + b->len / 16)) return false;
    bool in_place = a->data + a->len == c->bytes.at;
    if (!in_place && !jinja_work(c, a->len / 16)) return false;
    char *data = extend(c, &c->bytes, a->data, a->len, (size_t)a->len + b->len);
    if (!data && a->len + b->len) return false;
    if (b->len) memcpy(data + a->len, b->data, b->len);
    struct jinja_string r = {.data = data, .len = a->len + b->len, .n_chars = UINT32_MAX};
    if (a->n_chars != UINT32_MAX && b->n_chars != UINT32_MAX) r.n_chars = a->n_chars + b->n_chars;
    if (a->n_spans + b->n_spans) {
        r.n_spans = a->n_spans + b->n_spans;
        struct jinja_span *spans =
            extend(c, &c->spans, a->spans, a->n_spans * sizeof *spans, r.n_spans * sizeof *spans);
        if (!spans) return false;
        for (uint32_t i = 0; i < b->n_spans; i++) {
            spans[a->n_spans + i] =
                (struct jinja_span){b->spans[i].start + a->len, b->spans[i].end + a->len};
        }
        r.spans = spans;
    }
    return new_string(c, r, out);
}

void jinja_sb_init(struct jinja_sb *sb, struct jinja_ctx *c) {
    *sb = (struct jinja_sb){.c = c};
}

bool jinja_sb_put(struct jinja_sb *sb, const char *s, size_t n, bool from_user) {
    struct jinja_ctx *c = sb->c;
    if (!jinja_work(c, (n + 15) / 16)) return false;
    if (n == 0) return true;
    if (n > MAX_STRING_BYTES - sb->len) {
        return jinja_fail(c, STATUS_TOO_LARGE, "string of more than 2 GiB");
    }
    if (sb->len + n > sb->cap) {
        size_t cap = sb->cap + sb->cap / 2 > sb->len + n ? sb->cap + sb->cap / 2 : sb->len + n;
        char *data = extend(c, &c->bytes, sb->data, sb->cap, cap);
        if (!data) return false;
        sb->data = data;
        sb->cap = cap;
    }
    memcpy(sb->data + sb->len, s, n);
    uint32_t from = (uint32_t)sb->len;
    sb->len += n;
    if (!from_user) return true;
    if (sb->n_spans && sb->spans[sb->n_spans - 1].end == from) {
        sb->spans[sb->n_spans - 1].end = (uint32_t)sb->len;
        return true;
    }
    if (sb->n_spans == sb->cap_spans) {
        size_t cap = sb->cap_spans ? sb->cap_spans * 2 : 1;
        struct jinja_span *spans =
            extend(c, &c->spans, sb->spans, sb->cap_spans * sizeof *spans, cap * sizeof *spans);
        if (!spans) return false;
        sb->spans = spans;
        sb->cap_spans = cap;
    }
    sb->spans[sb->n_spans++] = (struct jinja_span){from, (uint32_t)sb->len};
    return true;
}

bool jinja_sb_puts(struct jinja_sb *sb, const char *s) {
    return jinja_sb_put(sb, s, strlen(s), false);
}

bool jinja_sb_sub(struct jinja_sb *sb, const struct jinja_string *s, uint32_t from, uint32_t to) {
    for (uint32_t i = span_from(s, from); from < to; i++) {
        uint32_t a = i < s->n_spans && s->spans[i].start < to ? s->spans[i].start : to;
        if (a > from) {
            if (!jinja_sb_put(sb, s->data + from, a - from, false)) return false;
            from = a;
        }
        if (from >= to) break;
        uint32_t b = s->spans[i].end < to ? s->spans[i].end : to;
        if (!jinja_sb_put(sb, s->data + from, b - from, true)) return false;
        from = b;
    }
    return true;
}

bool jinja_sb_str(struct jinja_sb *sb, const struct jinja_string *s) {
    return jinja_sb_sub(sb, s, 0, s->len);
}

bool jinja_sb_finish(struct jinja_sb *sb, struct jinja_value *out) {
    if (sb->c->failed) return false;
    /* Give back what was reserved behind the text, so that adding to it stays in place. */
    struct jinja_arena *a = &sb->c->bytes;
    if (sb->data && sb->data + sb->cap == a->at) a->at = sb->data + sb->len;
    a = &sb->c->spans;
    if (sb->spans && (char *)(sb->spans + sb->cap_spans) == a->at) {
        a->at = (char *)(sb->spans + sb->n_spans);
    }
    return new_string(sb->c,
                      (struct jinja_string){.data = sb->data ? sb->data : "",
                                            .len = (uint32_t)sb->len,
                                            .spans = sb->spans,
                                            .n_spans = (uint32_t)sb->n_spans,
                                            .n_chars = UINT32_MAX},
                      out);
}
