/* unicode.h: UTF-8 and the Unicode properties that tokenizers ask for (version: unicode_version()).
 *
 * Tables come from models/unicode_gen.py. Code points above 0x10FFFF have category Cn and map to
 * themselves. Pure functions; any thread.
 */
#ifndef LAC_MODELS_UNICODE_H
#define LAC_MODELS_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General categories, in the order of the generated table. */
enum unicode_category {
    UNICODE_CN,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
    UNICODE_CS,
    UNICODE_LL,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_LT,
    UNICODE_LU,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_MN,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PE,
    UNICODE_PF,
    UNICODE_PI,
    UNICODE_PO,
    UNICODE_PS,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SM,
    UNICODE_SO,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_ZS,
    UNICODE_CATEGORY_COUNT
};

enum {
    UTF8_MAX_BYTES = 4,
    UTF8_REPLACEMENT = 0xFFFD,
};
/* What utf8_decode reports for a byte that starts no well-formed sequence. */
#define UTF8_INVALID UINT32_MAX

/* The code point at text[0..len), len >= 1, and its length in bytes. Anything not well-formed
 * (RFC 3629: overlong, surrogate, above 0x10FFFF, truncated) is *cp = UTF8_INVALID and 1 byte. */
size_t utf8_decode(const char *text, size_t len, uint32_t *cp);
/* Writes up to 4 bytes; returns how many. cp must be a scalar value. */
size_t utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]);

const char *unicode_version(void);
enum unicode_category unicode_category(uint32_t cp);
bool unicode_is_space(uint32_t cp); /* White_Space */
bool unicode_is_han(uint32_t cp);   /* Script=Han */
uint32_t unicode_lower(uint32_t cp);
/* The canonical decomposition of cp without its nonspacing marks: 0 to 3 code points. */
size_t unicode_base(uint32_t cp, uint32_t out[3]);

#endif
