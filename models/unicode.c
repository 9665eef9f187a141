#include "models/unicode.h"

#include "models/unicode_table.h"

size_t utf8_decode(const char *text, size_t len, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)text;
    uint32_t c = s[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    *cp = UTF8_INVALID;
    if (c < 0xC2 || c > 0xF4 || n > len) return 1;
    uint32_t v = c & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 1;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    if ((n == 3 && (v < 0x800 || (v >= 0xD800 && v < 0xE000))) ||
        (n == 4 && (v < 0x10000 || v > 0x10FFFF)))
        return 1;
    *cp = v;
    return n;
}

size_t utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)(lead[n] | cp);
    return n;
}

const char *unicode_version(void) {
    return UNICODE_VERSION;
}

enum unicode_category unicode_category(uint32_t cp) {
    if (cp > 0x10FFFF) return UNICODE_CN;
    size_t block = unicode_block_index[cp / UNICODE_BLOCK];
    return (
        enum unicode_category)unicode_block_category[block * UNICODE_BLOCK + cp % UNICODE_BLOCK];
}

bool unicode_is_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool unicode_is_han(uint32_t cp) {
    size_t lo = 0, hi = sizeof unicode_han_range / sizeof unicode_han_range[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > unicode_han_range[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof unicode_han_range / sizeof unicode_han_range[0] &&
           cp >= unicode_han_range[lo][0];
}

uint32_t unicode_lower(uint32_t cp) {
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    size_t lo = 0, hi = sizeof unicode_lower_pair / sizeof unicode_lower_pair[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (unicode_lower_pair[mid][0] == cp) return unicode_lower_pair[mid][1];
        if (unicode_lower_pair[mid][0] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return cp;
}

static size_t hangul_base(uint32_t syllable, uint32_t out[3]) {
    /* The Unicode standard, section 3.12: L, V and T counts 19, 21, 28. */
    uint32_t s = syllable - 0xAC00;
    out[0] = 0x1100 + s / (21 * 28);
    out[1] = 0x1161 + s % (21 * 28) / 28;
    out[2] = 0x11A7 + s % 28;
    return s % 28 ? 3 : 2;
}

size_t unicode_base(uint32_t cp, uint32_t out[3]) {
    out[0] = cp;
    if (cp < 0xC0) return 1;
    if (cp >= 0xAC00 && cp <= 0xD7A3) return hangul_base(cp, out);
    size_t lo = 0, hi = sizeof unicode_base_row / sizeof unicode_base_row[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (unicode_base_row[mid][0] == cp) {
            size_t n = 0;
            while (n < 3 && unicode_base_row[mid][1 + n] != 0) {
                out[n] = unicode_base_row[mid][1 + n];
                n++;
            }
            return n;
        }
        if (unicode_base_row[mid][0] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return unicode_category(cp) == UNICODE_MN ? 0 : 1;
}
