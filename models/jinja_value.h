/* jinja_value.h: the values a template computes with, and the memory they live in.
 *
 * A context (struct jinja_ctx) is one render: an arena with a limit, a count of work done, the
 * first error. Values are small and copied; what they point to lives in the arena until
 * jinja_ctx_free(). Semantics are Python's where a template can see them: 1 == 1.0 == True, dicts
 * keep insertion order, strings are indexed by code point (and stored as valid UTF-8, never longer
 * than 2 GiB).
 *
 * Provenance: a string carries the byte ranges that came from the request; scalars and containers
 * carry one flag, which their printed form inherits. Text without a range is the template's own.
 *
 * Errors: a function that returns bool or a pointer fails with false or NULL after recording the
 * reason in the context (jinja_fail keeps the first one); nothing recovers from an error, so
 * callers only unwind. Limits (memory, work, nesting) are such errors. A cancelled chore is
 * STATUS_GONE. Threads: a context belongs to one render. Values compiled into a template are shared
 * and never written.
 */
#ifndef LAC_MODELS_JINJA_VALUE_H
#define LAC_MODELS_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/chore.h"
#include "core/status.h"

enum jinja_kind {
    JINJA_ABSENT, /* an argument that was not given; never seen by a template */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_VIEW,      /* dict.keys(), values(), items(): a sized list that is not indexable */
    JINJA_GENERATOR, /* what map, select, items ... give: iterated once, always true, no length */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_RANGE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION, /* range, namespace, ... by id */
    JINJA_METHOD,   /* a value and the method taken from it */
    JINJA_CYCLER,
    JINJA_JOINER,
};

/* Byte range of a string that came from the request; ranges are ordered and do not overlap. */
struct jinja_span {
    uint32_t start, end;
};

struct jinja_string {
    const char *data; /* UTF-8, not NUL-terminated */
    const struct jinja_span *spans;
    uint32_t len; /* bytes */
    uint32_t n_spans;
    uint32_t n_chars; /* code points; UINT32_MAX until somebody asked */
};

struct jinja_list;
struct jinja_dict;
struct jinja_loop;
struct jinja_macro;
struct jinja_range {
    int64_t start, stop, step, n;
};

struct jinja_value {
    uint8_t kind;
    bool from_user;
    uint16_t id; /* JINJA_FUNCTION */
    union {
        bool b;
        int64_t i;
        double f;
        struct jinja_string *s;
        struct jinja_list *list; /* LIST, TUPLE, VIEW, GENERATOR, CYCLER, JOINER */
        struct jinja_dict *dict; /* DICT, NAMESPACE */
        struct jinja_range *range;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        struct jinja_method *method;
        const char *why; /* UNDEFINED: the message a use of it raises */
    } u;
};

enum jinja_view { JINJA_VIEW_KEYS, JINJA_VIEW_VALUES, JINJA_VIEW_ITEMS };

struct jinja_list {
    struct jinja_value *items;
    uint32_t n, cap;
    uint32_t at; /* GENERATOR: items handed out; CYCLER and JOINER: the position */
    enum jinja_view view;
    bool group; /* TUPLE made by groupby: has .grouper and .list */
};

struct jinja_entry {
    struct jinja_value key, value;
    uint64_t hash;
};

struct jinja_dict {
    struct jinja_entry *entries; /* in insertion order */
    uint32_t *index;             /* open addressing, entry + 1; NULL while small */
    uint32_t n, cap, index_cap;
};

struct jinja_method {
    struct jinja_value self;
    uint16_t id;
};

struct jinja_limits {
    size_t memory_bytes; /* arena of one render (at most 1 GiB) */
    size_t output_bytes; /* of the rendered text */
    uint64_t steps;      /* work: about one per expression node, loop turn or 16 bytes moved */
};

/* 256 MiB, 32 MiB, 30 million (about a second). */
struct jinja_limits jinja_default_limits(void);

struct jinja_arena {
    struct jinja_chunk *chunk;
    char *at, *end;
};

struct jinja_ctx {
    struct jinja_arena objects, bytes, spans;
    size_t used_bytes;
    struct jinja_limits limits;
    uint64_t steps;
    uint64_t next_checkpoint;
    struct chore *chore;
    int64_t now_s; /* what strftime_now sees: seconds since 1970, printed as UTC */
    bool failed;
    struct error error;
};

enum { JINJA_MAX_NESTING = 100 }; /* of data: JSON values, repr, tojson, comparison */

void jinja_ctx_init(struct jinja_ctx *c, const struct jinja_limits *limits);
void jinja_ctx_free(struct jinja_ctx *c);

/* Records the first error; always returns false. */
bool jinja_fail(struct jinja_ctx *c, enum status s, const char *fmt, ...) LAC_PRINTF(3, 4);
/* Counts work, yields to the chore; false when over the limit or cancelled. */
bool jinja_work(struct jinja_ctx *c, uint64_t units);

/* 16-byte aligned, zeroed; NULL when over the limit. */
void *jinja_alloc(struct jinja_ctx *c, size_t bytes);
/* The copied bytes, NUL-terminated. */
char *jinja_strdup(struct jinja_ctx *c, const char *s, size_t n);

/* Constructors. Strings: `n` bytes are copied; they must be valid UTF-8. */
static inline struct jinja_value jinja_none(void) {
    return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool b) {
    return (struct jinja_value){.kind = JINJA_BOOL, .u.b = b};
}
static inline struct jinja_value jinja_int(int64_t i) {
    return (struct jinja_value){.kind = JINJA_INT, .u.i = i};
}
static inline struct jinja_value jinja_float(double f) {
    return (struct jinja_value){.kind = JINJA_FLOAT, .u.f = f};
}
static inline struct jinja_value jinja_undefined(const char *why) {
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .u.why = why};
}
bool jinja_str(struct jinja_ctx *c, const char *s, size_t n, bool from_user,
               struct jinja_value *out);
bool jinja_list_new(struct jinja_ctx *c, enum jinja_kind kind, uint32_t cap,
                    struct jinja_value *out);
bool jinja_dict_new(struct jinja_ctx *c, struct jinja_value *out);

bool jinja_list_append(struct jinja_ctx *c, struct jinja_list *l, struct jinja_value v);
/* Dicts: keys are compared as Python does; an unhashable key is an error. */
bool jinja_dict_set(struct jinja_ctx *c, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value v);
bool jinja_dict_set_cstr(struct jinja_ctx *c, struct jinja_dict *d, const char *key,
                         struct jinja_value v);
/* NULL when absent or the key cannot be hashed (which is then not an error). */
struct jinja_value *jinja_dict_get(const struct jinja_dict *d, struct jinja_value key);
struct jinja_value *jinja_dict_get_n(const struct jinja_dict *d, const char *key, size_t n);
void jinja_dict_remove(struct jinja_dict *d, const struct jinja_value *value_slot);

/* The Python name of the type: "str", "dict", ... */
const char *jinja_type_name(struct jinja_value v);
bool jinja_truth(struct jinja_value v);
bool jinja_is_number(struct jinja_value v); /* int, float or bool */
double jinja_as_double(struct jinja_value v);
int64_t jinja_as_int(struct jinja_value v); /* bool or int */
bool jinja_is_str(struct jinja_value v, const char *text);
bool jinja_equal(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, bool *out);
/* Three-way order of numbers, strings, lists and tuples; other pairs fail as in Python, naming
 * `op`. */
bool jinja_compare(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, const char *op,
                   int *out);
/* `a in b`. */
bool jinja_contains(struct jinja_ctx *c, struct jinja_value b, struct jinja_value a, bool *out);
/* len(); an error for what has none. */
bool jinja_length(struct jinja_ctx *c, struct jinja_value v, int64_t *out);
/* Every item of an iterable as a list: the value's own one where possible (do not change it), which
 * uses up a generator. Undefined iterates as empty. */
bool jinja_iterate(struct jinja_ctx *c, struct jinja_value v, struct jinja_list **out);

/* ---- strings ---- */

uint32_t jinja_chars(struct jinja_string *s);
/* Bytes of a code point at p (input is valid UTF-8), and its value. */
unsigned jinja_utf8(const char *p, uint32_t *cp);
unsigned jinja_utf8_put(uint32_t cp, char out[4]);
/* Length of the longest valid UTF-8 prefix. */
size_t jinja_utf8_valid(const char *s, size_t n);
bool jinja_is_space(uint32_t cp); /* str.isspace */

bool jinja_substr(struct jinja_ctx *c, const struct jinja_string *s, uint32_t from, uint32_t to,
                  struct jinja_value *out);
bool jinja_concat(struct jinja_ctx *c, const struct jinja_string *a, const struct jinja_string *b,
                  struct jinja_value *out);

/* A string being written. Failure is sticky and in the context. */
struct jinja_sb {
    struct jinja_ctx *c;
    char *data;
    struct jinja_span *spans;
    size_t len, cap;
    size_t n_spans, cap_spans;
};

void jinja_sb_init(struct jinja_sb *sb, struct jinja_ctx *c);
bool jinja_sb_put(struct jinja_sb *sb, const char *s, size_t n, bool from_user);
bool jinja_sb_puts(struct jinja_sb *sb, const char *s);
/* Bytes [from, to) of s with their provenance. */
bool jinja_sb_sub(struct jinja_sb *sb, const struct jinja_string *s, uint32_t from, uint32_t to);
bool jinja_sb_str(struct jinja_sb *sb, const struct jinja_string *s);
bool jinja_sb_value(struct jinja_sb *sb, struct jinja_value v); /* str(v) */
bool jinja_sb_finish(struct jinja_sb *sb, struct jinja_value *out);

/* Walks the provenance of a string from front to back. */
struct jinja_taint {
    const struct jinja_string *s;
    uint32_t i;
};
/* Whether byte `at` is from the request; `at` must not decrease between calls. */
bool jinja_taint_at(struct jinja_taint *t, uint32_t at);

/* ---- printing (jinja_format.c) ---- */

bool jinja_to_string(struct jinja_ctx *c, struct jinja_value v, struct jinja_value *out);
bool jinja_repr(struct jinja_sb *sb, struct jinja_value v);
/* Python's repr of a double; returns the length, text is NUL-terminated. */
int jinja_float_repr(double f, char out[40]);
struct jinja_json_style {
    struct jinja_value indent; /* none, int or string */
    struct jinja_value separators;
    bool ensure_ascii, sort_keys;
};
/* Python's json.dumps. */
bool jinja_to_json(struct jinja_sb *sb, struct jinja_value v, const struct jinja_json_style *style);
/* s % args, and s.format(...). */
bool jinja_percent(struct jinja_ctx *c, const struct jinja_string *s, struct jinja_value args,
                   struct jinja_value *out);

#endif
