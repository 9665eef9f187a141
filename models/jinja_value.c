#include "models/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "core/check.h"
#include "models/jinja_internal.h"

enum { CHUNK_BYTES = 32 * 1024, CHECKPOINT_STEPS = 512, INDEX_FROM = 9 };

struct jinja_chunk {
    struct jinja_chunk *next;
    size_t bytes;
    _Alignas(16) char data[];
};

struct jinja_limits jinja_default_limits(void) {
    return (struct jinja_limits){
        .memory_bytes = (size_t)256 << 20, .output_bytes = (size_t)32 << 20, .steps = 30000000};
}

void jinja_ctx_init(struct jinja_ctx *c, const struct jinja_limits *limits) {
    memset(c, 0, sizeof *c);
    c->limits = limits ? *limits : jinja_default_limits();
    CHECK(c->limits.memory_bytes <= (size_t)1 << 30);
    c->next_checkpoint = CHECKPOINT_STEPS;
}

static void arena_free(struct jinja_arena *a) {
    while (a->chunk) {
        struct jinja_chunk *next = a->chunk->next;
        free(a->chunk);
        a->chunk = next;
    }
    memset(a, 0, sizeof *a);
}

void jinja_ctx_free(struct jinja_ctx *c) {
    arena_free(&c->objects);
    arena_free(&c->bytes);
    arena_free(&c->spans);
    c->used_bytes = 0;
}

bool jinja_fail(struct jinja_ctx *c, enum status s, const char *fmt, ...) {
    if (c->failed) return false;
    char text[sizeof c->error.message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* One line, and a cut inside a character is no text. */
    for (char *p = text; *p; p++) {
        if (*p == '\n' || *p == '\r') *p = ' ';
    }
    text[jinja_utf8_valid(text, strlen(text))] = '\0';
    c->failed = true;
    (void)error_set(&c->error, s, NULL, "%s", text);
    return false;
}

bool jinja_work(struct jinja_ctx *c, uint64_t units) {
    if (c->failed) return false;
    c->steps += units;
    if (c->steps < c->next_checkpoint) return true;
    if (c->steps > c->limits.steps) {
        return jinja_fail(c, STATUS_TOO_LARGE, "the template needs more than %llu steps",
                          (unsigned long long)c->limits.steps);
    }
    c->next_checkpoint = c->steps + CHECKPOINT_STEPS;
    if (c->chore && chore_checkpoint(c->chore)) {
        return jinja_fail(c, STATUS_GONE, "rendering was cancelled");
    }
    return true;
}

void *jinja_arena_take(struct jinja_ctx *c, struct jinja_arena *a, size_t bytes) {
    if (c->failed) return NULL;
    if (bytes <= (size_t)(a->end - a->at)) {
        void *p = a->at;
        a->at += bytes;
        return p;
    }
    /* Room behind large strings: the next concatenation then extends them where they are. */
    size_t size = bytes > CHUNK_BYTES / 4 ? bytes + bytes / 2 : CHUNK_BYTES;
    if (size > c->limits.memory_bytes || c->used_bytes > c->limits.memory_bytes - size) {
        jinja_fail(c, STATUS_TOO_LARGE, "the template needs more than %zu bytes of memory",
                   c->limits.memory_bytes);
        return NULL;
    }
    struct jinja_chunk *k = malloc(sizeof *k + size);
    if (!k) {
        jinja_fail(c, STATUS_NO_MEMORY, "no memory to render the template");
        return NULL;
    }
    c->used_bytes += size;
    k->bytes = size;
    k->next = a->chunk;
    a->chunk = k;
    a->at = k->data + bytes;
    a->end = k->data + size;
    return k->data;
}

void *jinja_alloc(struct jinja_ctx *c, size_t bytes) {
    void *p = jinja_arena_take(c, &c->objects, (bytes + 15) & ~(size_t)15);
    if (p) memset(p, 0, bytes);
    return p;
}

char *jinja_strdup(struct jinja_ctx *c, const char *s, size_t n) {
    char *p = jinja_alloc(c, n + 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

/* ---- containers ---- */

bool jinja_list_new(struct jinja_ctx *c, enum jinja_kind kind, uint32_t cap,
                    struct jinja_value *out) {
    struct jinja_list *l = jinja_alloc(c, sizeof *l);
    if (!l) return false;
    if (cap) {
        l->items = jinja_alloc(c, cap * sizeof *l->items);
        if (!l->items) return false;
        l->cap = cap;
    }
    *out = (struct jinja_value){.kind = (uint8_t)kind, .u.list = l};
    return true;
}

bool jinja_list_append(struct jinja_ctx *c, struct jinja_list *l, struct jinja_value v) {
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct jinja_value *items = jinja_alloc(c, cap * sizeof *items);
        if (!items) return false;
        if (l->n) memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return true;
}

bool jinja_dict_new(struct jinja_ctx *c, struct jinja_value *out) {
    struct jinja_dict *d = jinja_alloc(c, sizeof *d);
    if (!d) return false;
    *out = (struct jinja_value){.kind = JINJA_DICT, .u.dict = d};
    return true;
}

/* Seeded by the dict's address, so that a client cannot aim for collisions; order never depends on
 * it. Numbers that are equal hash equally. False: not hashable. */
static bool hash_value(const struct jinja_dict *d, struct jinja_value v, unsigned depth,
                       uint64_t *out) {
    uint64_t seed = (uint64_t)(uintptr_t)d;
    switch (v.kind) {
    case JINJA_UNDEFINED:
        *out = seed ^ 3;
        return true;
    case JINJA_NONE:
        *out = seed ^ 1;
        return true;
    case JINJA_STRING:
        *out = XXH3_64bits_withSeed(v.u.s->data, v.u.s->len, seed);
        return true;
    case JINJA_BOOL:
    case JINJA_INT: {
        int64_t i = jinja_as_int(v);
        *out = XXH3_64bits_withSeed(&i, sizeof i, seed);
        return true;
    }
    case JINJA_FLOAT: {
        double f = v.u.f;
        if (f >= -9e18 && f <= 9e18 && f == floor(f)) {
            int64_t i = (int64_t)f;
            *out = XXH3_64bits_withSeed(&i, sizeof i, seed);
        } else {
            *out = XXH3_64bits_withSeed(&f, sizeof f, seed);
        }
        return true;
    }
    case JINJA_TUPLE: {
        uint64_t h = seed ^ 2;
        if (depth > JINJA_MAX_NESTING) return false;
        for (uint32_t i = 0; i < v.u.list->n; i++) {
            uint64_t x;
            if (!hash_value(d, v.u.list->items[i], depth + 1, &x)) return false;
            h = h * 0x9E3779B97F4A7C15u + x;
        }
        *out = h;
        return true;
    }
    default:
        return false;
    }
}

/* Equality of two hashable values. */
static bool key_equal(struct jinja_value a, struct jinja_value b) {
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        return a.u.s->len == b.u.s->len && memcmp(a.u.s->data, b.u.s->data, a.u.s->len) == 0;
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT) {
            return jinja_as_double(a) == jinja_as_double(b);
        }
        return jinja_as_int(a) == jinja_as_int(b);
    }
    if (a.kind != b.kind) return false;
    if (a.kind == JINJA_NONE || a.kind == JINJA_UNDEFINED) return true;
    if (a.kind != JINJA_TUPLE || a.u.list->n != b.u.list->n) return false;
    for (uint32_t i = 0; i < a.u.list->n; i++) {
        if (!key_equal(a.u.list->items[i], b.u.list->items[i])) return false;
    }
    return true;
}

static struct jinja_entry *dict_find(const struct jinja_dict *d, struct jinja_value key,
                                     uint64_t hash) {
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++) {
            if (d->entries[i].hash == hash && key_equal(d->entries[i].key, key)) {
                return &d->entries[i];
            }
        }
        return NULL;
    }
    uint32_t mask = d->index_cap - 1;
    for (uint32_t at = (uint32_t)hash & mask; d->index[at]; at = (at + 1) & mask) {
        struct jinja_entry *e = &d->entries[d->index[at] - 1];
        if (e->hash == hash && key_equal(e->key, key)) return e;
    }
    return NULL;
}

static void index_all(struct jinja_dict *d) {
    memset(d->index, 0, d->index_cap * sizeof *d->index);
    uint32_t mask = d->index_cap - 1;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = (uint32_t)d->entries[i].hash & mask;
        while (d->index[at]) at = (at + 1) & mask;
        d->index[at] = i + 1;
    }
}

static bool dict_grow(struct jinja_ctx *c, struct jinja_dict *d) {
    uint32_t cap = d->cap ? d->cap * 2 : 4;
    struct jinja_entry *entries = jinja_alloc(c, cap * sizeof *entries);
    if (!entries) return false;
    if (d->n) memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    if (cap >= INDEX_FROM) {
        uint32_t *index = jinja_alloc(c, (size_t)cap * 2 * sizeof *index);
        if (!index) return false;
        d->index = index;
        d->index_cap = cap * 2;
        index_all(d);
    }
    return true;
}

bool jinja_dict_set(struct jinja_ctx *c, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value v) {
    uint64_t hash;
    if (!hash_value(d, key, 0, &hash)) {
        return jinja_fail(c, STATUS_TEMPLATE, "unhashable type: '%s'", jinja_type_name(key));
    }
    struct jinja_entry *e = dict_find(d, key, hash);
    if (e) {
        e->value = v;
        return true;
    }
    if (d->n == d->cap && !dict_grow(c, d)) return false;
    d->entries[d->n++] = (struct jinja_entry){.key = key, .value = v, .hash = hash};
    if (d->index) {
        uint32_t mask = d->index_cap - 1, at = (uint32_t)hash & mask;
        while (d->index[at]) at = (at + 1) & mask;
        d->index[at] = d->n;
    }
    return true;
}

bool jinja_dict_set_cstr(struct jinja_ctx *c, struct jinja_dict *d, const char *key,
                         struct jinja_value v) {
    struct jinja_value k;
    return jinja_str(c, key, strlen(key), false, &k) && jinja_dict_set(c, d, k, v);
}

struct jinja_value *jinja_dict_get(const struct jinja_dict *d, struct jinja_value key) {
    uint64_t hash;
    if (!hash_value(d, key, 0, &hash)) return NULL;
    struct jinja_entry *e = dict_find(d, key, hash);
    return e ? &e->value : NULL;
}

struct jinja_value *jinja_dict_get_n(const struct jinja_dict *d, const char *key, size_t n) {
    struct jinja_string s = {.data = key, .len = (uint32_t)n};
    return jinja_dict_get(d, (struct jinja_value){.kind = JINJA_STRING, .u.s = &s});
}

void jinja_dict_remove(struct jinja_dict *d, const struct jinja_value *value_slot) {
    for (uint32_t i = 0; i < d->n; i++) {
        if (&d->entries[i].value != value_slot) continue;
        memmove(&d->entries[i], &d->entries[i + 1], (d->n - i - 1) * sizeof *d->entries);
        d->n--;
        if (d->index) index_all(d);
        return;
    }
}

/* ---- what Python says of values ---- */

const char *jinja_type_name(struct jinja_value v) {
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    switch ((enum jinja_kind)v.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
        return "Undefined";
    case JINJA_NONE:
        return "NoneType";
    case JINJA_BOOL:
        return "bool";
    case JINJA_INT:
        return "int";
    case JINJA_FLOAT:
        return "float";
    case JINJA_STRING:
        return "str";
    case JINJA_LIST:
        return "list";
    case JINJA_TUPLE:
        return "tuple";
    case JINJA_VIEW:
        return views[v.u.list->view];
    case JINJA_GENERATOR:
        return "generator";
    case JINJA_DICT:
        return "dict";
    case JINJA_NAMESPACE:
        return "Namespace";
    case JINJA_RANGE:
        return "range";
    case JINJA_LOOP:
        return "LoopContext";
    case JINJA_MACRO:
        return "Macro";
    case JINJA_FUNCTION:
        return "function";
    case JINJA_METHOD:
        return "builtin_function_or_method";
    case JINJA_CYCLER:
        return "Cycler";
    case JINJA_JOINER:
        return "Joiner";
    }
    return "object";
}

bool jinja_truth(struct jinja_value v) {
    switch ((enum jinja_kind)v.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.u.b;
    case JINJA_INT:
        return v.u.i != 0;
    case JINJA_FLOAT:
        return v.u.f != 0;
    case JINJA_STRING:
        return v.u.s->len != 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
        return v.u.list->n != 0;
    case JINJA_DICT:
        return v.u.dict->n != 0;
    case JINJA_RANGE:
        return v.u.range->n != 0;
    default:
        return true;
    }
}

bool jinja_is_number(struct jinja_value v) {
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_FLOAT;
}

int64_t jinja_as_int(struct jinja_value v) {
    return v.kind == JINJA_BOOL ? v.u.b : v.u.i;
}

double jinja_as_double(struct jinja_value v) {
    return v.kind == JINJA_FLOAT ? v.u.f : (double)jinja_as_int(v);
}

bool jinja_is_str(struct jinja_value v, const char *text) {
    size_t n = strlen(text);
    return v.kind == JINJA_STRING && v.u.s->len == n && memcmp(v.u.s->data, text, n) == 0;
}

static bool is_seq(struct jinja_value v) {
    return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}

static bool equal(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, unsigned depth,
                  bool *out) {
    *out = false;
    if (depth > JINJA_MAX_NESTING) {
        return jinja_fail(c, STATUS_TOO_LARGE, "values nested too deeply to compare");
    }
    if (!jinja_work(c, 1)) return false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = key_equal(a, b);
        return true;
    }
    if (a.kind != b.kind) return true;
    switch ((enum jinja_kind)a.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = true;
        return true;
    case JINJA_STRING:
        *out = key_equal(a, b);
        return jinja_work(c, a.u.s->len / 256);
    case JINJA_LIST:
    case JINJA_TUPLE:
        if (a.u.list->n != b.u.list->n) return true;
        for (uint32_t i = 0; i < a.u.list->n; i++) {
            if (!equal(c, a.u.list->items[i], b.u.list->items[i], depth + 1, out)) return false;
            if (!*out) return true;
        }
        *out = true;
        return true;
    case JINJA_DICT:
        if (a.u.dict->n != b.u.dict->n) return true;
        for (uint32_t i = 0; i < a.u.dict->n; i++) {
            struct jinja_entry *e = &a.u.dict->entries[i];
            struct jinja_value *v = jinja_dict_get(b.u.dict, e->key);
            if (!v) return true;
            if (!equal(c, e->value, *v, depth + 1, out)) return false;
            if (!*out) return true;
        }
        *out = true;
        return true;
    case JINJA_RANGE: {
        struct jinja_range *x = a.u.range, *y = b.u.range;
        *out = x->n == y->n &&
               (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
        return true;
    }
    case JINJA_FUNCTION:
        *out = a.id == b.id;
        return true;
    default:
        *out = a.u.list == b.u.list;
        return true;
    }
}

bool jinja_equal(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, bool *out) {
    return equal(c, a, b, 0, out);
}

static bool compare(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, const char *op,
                    unsigned depth, int *out) {
    if (depth > JINJA_MAX_NESTING) {
        return jinja_fail(c, STATUS_TOO_LARGE, "values nested too deeply to compare");
    }
    if (!jinja_work(c, 1)) return false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT) {
            double x = jinja_as_double(a), y = jinja_as_double(b);
            /* Unordered pairs compare false whatever the operator: 2 stands for that. */
            *out = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
        } else {
            int64_t x = jinja_as_int(a), y = jinja_as_int(b);
            *out = x < y ? -1 : x > y;
        }
        return true;
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        uint32_t n = a.u.s->len < b.u.s->len ? a.u.s->len : b.u.s->len;
        int r = n ? memcmp(a.u.s->data, b.u.s->data, n) : 0;
        if (r == 0) r = a.u.s->len < b.u.s->len ? -1 : a.u.s->len > b.u.s->len;
        *out = r < 0 ? -1 : r > 0;
        return jinja_work(c, n / 256);
    }
    if (is_seq(a) && a.kind == b.kind) {
        struct jinja_list *x = a.u.list, *y = b.u.list;
        for (uint32_t i = 0; i < x->n && i < y->n; i++) {
            bool same;
            if (!equal(c, x->items[i], y->items[i], depth + 1, &same)) return false;
            if (!same) return compare(c, x->items[i], y->items[i], op, depth + 1, out);
        }
        *out = x->n < y->n ? -1 : x->n > y->n;
        return true;
    }
    if (a.kind == JINJA_UNDEFINED) return jinja_fail(c, STATUS_TEMPLATE, "%s", a.u.why);
    if (b.kind == JINJA_UNDEFINED) return jinja_fail(c, STATUS_TEMPLATE, "%s", b.u.why);
    return jinja_fail(c, STATUS_TEMPLATE, "'%s' not supported between instances of '%s' and '%s'",
                      op, jinja_type_name(a), jinja_type_name(b));
}

bool jinja_compare(struct jinja_ctx *c, struct jinja_value a, struct jinja_value b, const char *op,
                   int *out) {
    return compare(c, a, b, op, 0, out);
}

bool jinja_contains(struct jinja_ctx *c, struct jinja_value b, struct jinja_value a, bool *out) {
    *out = false;
    switch ((enum jinja_kind)b.kind) {
    case JINJA_STRING:
        if (a.kind != JINJA_STRING) {
            return jinja_fail(c, STATUS_TEMPLATE,
                              "'in <string>' requires string as left operand, not %s",
                              jinja_type_name(a));
        }
        *out = a.u.s->len == 0 ||
               (b.u.s->len && memmem(b.u.s->data, b.u.s->len, a.u.s->data, a.u.s->len) != NULL);
        return jinja_work(c, 1 + (b.u.s->len + (uint64_t)a.u.s->len) / 64);
    case JINJA_DICT: {
        uint64_t ignored;
        if (!hash_value(b.u.dict, a, 0, &ignored)) {
            return jinja_fail(c, STATUS_TEMPLATE, "unhashable type: '%s'", jinja_type_name(a));
        }
        *out = jinja_dict_get(b.u.dict, a) != NULL;
        return true;
    }
    default: {
        struct jinja_list *l;
        if (b.kind != JINJA_UNDEFINED &&
            (b.kind < JINJA_LIST || b.kind > JINJA_RANGE || b.kind == JINJA_NAMESPACE)) {
            return jinja_fail(c, STATUS_TEMPLATE, "argument of type '%s' is not iterable",
                              jinja_type_name(b));
        }
        if (!jinja_iterate(c, b, &l)) return false;
        for (uint32_t i = 0; i < l->n && !*out; i++) {
            if (!equal(c, l->items[i], a, 0, out)) return false;
        }
        return true;
    }
    }
}

bool jinja_length(struct jinja_ctx *c, struct jinja_value v, int64_t *out) {
    switch ((enum jinja_kind)v.kind) {
    case JINJA_UNDEFINED:
        *out = 0;
        return true;
    case JINJA_STRING:
        *out = jinja_chars(v.u.s);
        return jinja_work(c, v.u.s->len / 64);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
        *out = v.u.list->n;
        return true;
    case JINJA_DICT:
        *out = v.u.dict->n;
        return true;
    case JINJA_RANGE:
        *out = v.u.range->n;
        return true;
    default:
        return jinja_fail(c, STATUS_TEMPLATE, "object of type '%s' has no len()",
                          jinja_type_name(v));
    }
}

bool jinja_iterate(struct jinja_ctx *c, struct jinja_value v, struct jinja_list **out) {
    struct jinja_value fresh;
    switch ((enum jinja_kind)v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
        *out = v.u.list;
        return true;
    case JINJA_UNDEFINED:
        if (!jinja_list_new(c, JINJA_LIST, 0, &fresh)) return false;
        *out = fresh.u.list;
        return true;
    case JINJA_GENERATOR: {
        struct jinja_list *l = v.u.list;
        if (!jinja_list_new(c, JINJA_LIST, 0, &fresh)) return false;
        if (l->n) fresh.u.list->items = l->items + l->at;
        fresh.u.list->n = fresh.u.list->cap = l->n - l->at;
        l->at = l->n;
        *out = fresh.u.list;
        return true;
    }
    case JINJA_DICT:
        if (!jinja_list_new(c, JINJA_LIST, v.u.dict->n, &fresh)) return false;
        for (uint32_t i = 0; i < v.u.dict->n; i++) {
            fresh.u.list->items[i] = v.u.dict->entries[i].key;
        }
        fresh.u.list->n = v.u.dict->n;
        *out = fresh.u.list;
        return jinja_work(c, v.u.dict->n);
    case JINJA_STRING: {
        const struct jinja_string *s = v.u.s;
        uint32_t n = jinja_chars(v.u.s), at = 0;
        if (!jinja_list_new(c, JINJA_LIST, n, &fresh)) return false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t cp, next = at + jinja_utf8(s->data + at, &cp);
            if (!jinja_substr(c, s, at, next, &fresh.u.list->items[i]) || !jinja_work(c, 1)) {
                return false;
            }
            at = next;
        }
        fresh.u.list->n = n;
        *out = fresh.u.list;
        return true;
    }
    case JINJA_RANGE: {
        const struct jinja_range *r = v.u.range;
        if (r->n > 10000000)
            return jinja_fail(c, STATUS_TOO_LARGE, "range of more than 10,000,000");
        if (!jinja_list_new(c, JINJA_LIST, (uint32_t)r->n, &fresh)) return false;
        for (int64_t i = 0; i < r->n; i++) {
            fresh.u.list->items[i] = jinja_int(r->start + i * r->step);
        }
        fresh.u.list->n = (uint32_t)r->n;
        *out = fresh.u.list;
        return jinja_work(c, (uint64_t)r->n / 4);
    }
    default:
        return jinja_fail(c, STATUS_TEMPLATE, "'%s' object is not iterable", jinja_type_name(v));
    }
}
