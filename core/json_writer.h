/* json_writer.h: a JSON writer over a buffer (reading is jansson's work, in io and cmd).
 *
 * Commas are placed by the writer; nesting up to 64 is tracked in a bitmask. Strings are escaped by
 * RFC 8259; bytes that are not UTF-8 become U+FFFD. Doubles print with the fewest digits that
 * read back equal (%.9g for floats, %.17g for doubles); NaN and infinities print as null.
 */
#ifndef LAC_CORE_JSON_WRITER_H
#define LAC_CORE_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"

struct json_writer {
    struct buffer *out;
    uint64_t has_item; /* bit i: nesting level i already holds an item */
    unsigned depth;
    bool after_key;
};

void json_write_begin(struct json_writer *j, struct buffer *out);
void json_write_object(struct json_writer *j);
void json_write_object_end(struct json_writer *j);
void json_write_array(struct json_writer *j);
void json_write_array_end(struct json_writer *j);
void json_write_key(struct json_writer *j, const char *key);
void json_write_string(struct json_writer *j, const char *s);
void json_write_string_n(struct json_writer *j, const char *s, size_t n);
void json_write_int(struct json_writer *j, int64_t v);
void json_write_uint(struct json_writer *j, uint64_t v);
void json_write_float(struct json_writer *j, float v);
void json_write_double(struct json_writer *j, double v);
void json_write_bool(struct json_writer *j, bool v);
void json_write_null(struct json_writer *j);
void json_write_raw(struct json_writer *j, const char *text, size_t n); /* text is already JSON */

#endif
