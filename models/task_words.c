#include "models/task_words.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/json_writer.h"
#include "models/task_tokens.h"
#include "models/task_words_table.h"

static const struct {
    const char *name, *words;
} TABLE[] = {
#define X(name, words) {name, words},
    TASK_WORDS_LIST(X)
#undef X
};

enum { N_CATEGORIES = sizeof TABLE / sizeof TABLE[0], SLOTS = 4 * TASK_MAX_PHRASES };
_Static_assert(sizeof TABLE / sizeof TABLE[0] <= TASK_MAX_CATEGORIES, "a list has one bit");

struct task_words {
    json_t *lists; /* {name: [phrase, ...]} for every list, in the table's order */
    uint32_t n_phrases;
    /* Open addressing; a hash of 0 is a free slot. */
    uint64_t hash[SLOTS];
    uint32_t mask[SLOTS];
};

uint32_t task_words_n_categories(void) {
    return N_CATEGORIES;
}

const char *task_words_category(uint32_t i) {
    return i < N_CATEGORIES ? TABLE[i].name : NULL;
}

uint32_t task_words_find(const struct task_words *w, uint64_t hash) {
    for (size_t i = hash % SLOTS; w->hash[i] != 0; i = (i + 1) % SLOTS)
        if (w->hash[i] == hash) return w->mask[i];
    return 0;
}

static enum status add_phrase(struct task_words *w, uint32_t category, const char *text, size_t len,
                              struct error *e) {
    enum { MAX_CPS = 256 };
    uint32_t cps[MAX_CPS];
    struct task_token tokens[MAX_CPS];
    size_t n_cps;
    const size_t n = task_tokenize(text, len, MAX_CPS, cps, &n_cps, tokens);
    if (n == 0 || n > TASK_PHRASE_TOKENS || n_cps == MAX_CPS)
        return error_set(e, STATUS_INVALID, TABLE[category].name,
                         "'%.60s' in the list '%s' has %zu tokens; 1 to %d are allowed", text,
                         TABLE[category].name, n, TASK_PHRASE_TOKENS);
    if (w->n_phrases == TASK_MAX_PHRASES)
        return error_set(e, STATUS_TOO_LARGE, TABLE[category].name,
                         "the word lists hold over %d phrases", TASK_MAX_PHRASES);
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) hash = task_hash_add(hash, tokens[i].hash);
    size_t i = hash % SLOTS;
    while (w->hash[i] != 0 && w->hash[i] != hash) i = (i + 1) % SLOTS;
    w->hash[i] = hash;
    w->mask[i] |= 1u << category;
    w->n_phrases++;
    return STATUS_OK;
}

static json_t *split(const char *words) {
    json_t *list = json_array();
    while (list != NULL && *words != '\0') {
        const size_t n = strcspn(words, "|");
        json_array_append_new(list, json_stringn(words, n));
        words += n + (words[n] == '|');
    }
    return list;
}

static enum status fill(struct task_words *w, json_t *given, struct error *e) {
    w->lists = json_object();
    for (uint32_t c = 0; c < N_CATEGORIES; c++) {
        json_t *list = given ? json_object_get(given, TABLE[c].name) : NULL;
        list = list ? json_incref(list) : split(TABLE[c].words);
        if (list == NULL || json_object_set(w->lists, TABLE[c].name, list) != 0) {
            json_decref(list);
            return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the word lists");
        }
        json_decref(list);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *word = json_array_get(list, i);
            const enum status st =
                add_phrase(w, c, json_string_value(word), json_string_length(word), e);
            if (st != STATUS_OK) return st;
        }
    }
    return STATUS_OK;
}

static enum status make(json_t *given, struct task_words **out, struct error *e) {
    *out = NULL;
    struct task_words *w = calloc(1, sizeof *w);
    if (w == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the word lists");
    const enum status st = fill(w, given, e);
    if (st != STATUS_OK) {
        task_words_free(w);
        return st;
    }
    *out = w;
    return STATUS_OK;
}

enum status task_words_default(struct task_words **out, struct error *e) {
    return make(NULL, out, e);
}

static int category_of(const char *name) {
    for (int c = 0; c < N_CATEGORIES; c++)
        if (strcmp(TABLE[c].name, name) == 0) return c;
    return -1;
}

/* Everything in the file must be known and of its type: a list that is misspelt would be ignored
 * without a word. */
static enum status check_lists(json_t *given, struct error *e) {
    const char *name;
    json_t *list;
    if (!json_is_object(given))
        return error_set(e, STATUS_INVALID, NULL, "word lists are one JSON object of lists");
    json_object_foreach(given, name, list) {
        if (category_of(name) < 0)
            return error_set(e, STATUS_INVALID, NULL, "there is no word list '%.60s'", name);
        if (!json_is_array(list))
            return error_set(e, STATUS_INVALID, name, "the word list '%s' is not an array", name);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!json_is_string(json_array_get(list, i)))
                return error_set(e, STATUS_INVALID, name,
                                 "the word list '%s' holds no string at %zu", name, i);
    }
    return STATUS_OK;
}

enum status task_words_parse(const char *json, size_t bytes, struct task_words **out,
                             struct error *e) {
    *out = NULL;
    if (bytes > TASK_MAX_WORDS_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the word lists are over %d bytes",
                         TASK_MAX_WORDS_BYTES);
    json_error_t why;
    json_t *given = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &why);
    if (given == NULL)
        return error_set(e, STATUS_INVALID, NULL, "the word lists are not JSON: %s (line %d)",
                         why.text, why.line);
    enum status st = check_lists(given, e);
    if (st == STATUS_OK) st = make(given, out, e);
    json_decref(given);
    return st;
}

void task_words_free(struct task_words *w) {
    if (w == NULL) return;
    json_decref(w->lists);
    free(w);
}

void task_words_write(const struct task_words *w, struct buffer *out) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    for (uint32_t c = 0; c < N_CATEGORIES; c++) {
        const json_t *list = json_object_get(w->lists, TABLE[c].name);
        json_write_key(&j, TABLE[c].name);
        json_write_array(&j);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *word = json_array_get(list, i);
            json_write_string_n(&j, json_string_value(word), json_string_length(word));
        }
        json_write_array_end(&j);
    }
    json_write_object_end(&j);
}
