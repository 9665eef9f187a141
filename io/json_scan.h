/* json_scan.h: the pass over a JSON text before jansson sees it. It runs on pieces of any size.
 *
 * It checks what must never reach a recursive parser or a string copy: nesting (64), the number of
 * values and of members of one object, UTF-8, escapes, lone surrogates, raw control characters. And
 * it condenses: strings of more than JSON_LONG_BYTES, and all that hold U+0000, are taken out and
 * replaced by a short one, U+0000 and a number, under which json_scan.longs says where they stand
 * in the source. So jansson's work is small whatever a prompt's size, and no source can forge a
 * reference. Everything else (syntax outside strings, numbers) is left to jansson.
 * Keys are never taken out; they may have up to JSON_KEY_BYTES.
 */
#ifndef LAC_IO_JSON_SCAN_H
#define LAC_IO_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"

enum {
    JSON_MAX_DEPTH = 64,
    JSON_MAX_VALUES = 128 * 1024,
    JSON_MAX_MEMBERS = 4096,
    JSON_LONG_BYTES = 256,
    JSON_KEY_BYTES = 1024,
    JSON_WORD_BYTES = 64, /* a number, true, false, null */
    JSON_MAX_FIELDS = 64,
};

/* A string in the source: the bytes between its quotes, escapes as sent. */
struct json_long {
    size_t at, bytes;
};

struct json_scan {
    struct buffer *out;      /* the condensed text */
    struct json_long *longs; /* general heap */
    uint32_t n_longs, cap_longs;
    /* Top-level members in order: where each begins in `out` (the first JSON_MAX_FIELDS). */
    struct {
        char name[40];
        size_t at;
    } fields[JSON_MAX_FIELDS];
    uint32_t n_fields;
    /* private */
    size_t at; /* offset of the next byte in the source */
    size_t string_at, string_out;
    uint32_t n_values, members[JSON_MAX_DEPTH + 1];
    uint64_t objects; /* bit d - 1: level d is an object */
    unsigned depth;
    uint32_t word; /* bytes of the number or word that is being read */
    uint8_t state, hex_left, utf8_left, utf8_low, utf8_high;
    uint32_t hex, surrogate;
    bool key, expect_key, taken_out, has_nul;
};

void json_scan_init(struct json_scan *s, struct buffer *out);
/* On failure the error's field names the top-level member at fault, where there is one. */
enum status json_scan_feed(struct json_scan *s, const char *bytes, size_t n, struct error *e);
enum status json_scan_end(struct json_scan *s, struct error *e);
void json_scan_free(struct json_scan *s);
/* The top-level member that covers offset `at` of the condensed text; "" if none. */
const char *json_scan_field(const struct json_scan *s, size_t at);

#endif
