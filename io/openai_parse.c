#include "io/openai.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "io/openai_parse.h"

const char parse_lint_limit[] = "laconic.lint takes texts of at most 32768 bytes";

bool parse_fail(struct parse *p, enum status s, const char *field, const char *message) {
    if (p->status == STATUS_OK) p->status = error_set(p->e, s, field, "%s", message);
    return false;
}

bool parse_invalid(struct parse *p, const char *field, const char *what) {
    if (p->status == STATUS_OK)
        p->status = error_set(p->e, STATUS_INVALID, field, "%s %s", field, what);
    return false;
}

bool parse_unsupported(struct parse *p, const char *field) {
    if (p->status == STATUS_OK)
        p->status =
            error_set(p->e, STATUS_UNSUPPORTED, field, "%s is not supported by this server", field);
    return false;
}

bool parse_no_memory(struct parse *p) {
    return parse_fail(p, STATUS_NO_MEMORY, NULL, "no memory to read the body");
}

json_t *parse_get(struct parse *p, const char *field) {
    json_t *v = p->status == STATUS_OK ? json_object_get(p->doc.root, field) : NULL;
    return v != NULL && json_is_null(v) ? NULL : v;
}

static bool number_in(struct parse *p, const json_t *v, const char *field, double low, double high,
                      bool low_open, double *out) {
    if (json_is_number(v)) {
        *out = json_number_value(v);
        if (*out <= high && (low_open ? *out > low : *out >= low)) return true;
    }
    char what[96];
    snprintf(what, sizeof what, "must be a number %s %g and at most %g",
             low_open ? "above" : "of at least", low, high);
    return parse_invalid(p, field, what);
}

static bool get_float(struct parse *p, const char *field, double low, double high, bool low_open,
                      float *out) {
    const json_t *v = parse_get(p, field);
    double d;
    if (v == NULL || !number_in(p, v, field, low, high, low_open, &d)) return false;
    *out = (float)d;
    /* What is above zero must stay so. */
    if (low_open && *out == 0) *out = FLT_MIN;
    return true;
}

static bool int_in(struct parse *p, const json_t *v, const char *field, int64_t low, int64_t high,
                   int64_t *out) {
    /* 16.0 is an integer to most languages that write JSON. */
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        if (*out >= low && *out <= high) return true;
    } else if (json_is_real(v)) {
        const double d = json_real_value(v);
        if (d >= (double)low && d <= (double)high && d > -9e15 && d < 9e15 &&
            d == (double)(int64_t)d) {
            *out = (int64_t)d;
            return true;
        }
    }
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %lld to %lld", (long long)low,
             (long long)high);
    return parse_invalid(p, field, what);
}

static bool get_int(struct parse *p, const char *field, int64_t low, int64_t high, int64_t *out) {
    const json_t *v = parse_get(p, field);
    return v != NULL && int_in(p, v, field, low, high, out);
}

bool parse_get_bool(struct parse *p, const char *field, bool *out) {
    const json_t *v = parse_get(p, field);
    if (v == NULL) return false;
    if (!json_is_boolean(v)) return parse_invalid(p, field, "must be true or false");
    *out = json_boolean_value(v);
    return true;
}

/* ---- what several bodies share ---- */

static void refuse_later_fields(struct parse *p) {
    /* OpenAI's, and what other servers call fields that change an answer. */
    static const char *const refused[] = {
        "functions",         "function_call",  "audio",           "suffix",
        "prediction",        "grammar",        "guided_json",     "guided_regex",
        "guided_choice",     "guided_grammar", "json_schema",     "structured_outputs",
        "min_tokens",        "stop_token_ids", "repeat_penalty",  "n_predict",
        "chat_template",     "typical_p",      "mirostat",        "dry_multiplier",
        "allowed_token_ids", "bad_words",      "reasoning_effort"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (parse_get(p, refused[i]) != NULL) parse_unsupported(p, refused[i]);
    json_t *v = parse_get(p, "tools");
    if (v != NULL) {
        if (!json_is_array(v))
            parse_invalid(p, "tools", "must be a list");
        else if (json_array_size(v) != 0)
            parse_unsupported(p, "tools");
    }
    v = parse_get(p, "tool_choice");
    if (v != NULL && !(json_is_string(v) && (json_doc_equals(&p->doc, v, "none") ||
                                             json_doc_equals(&p->doc, v, "auto"))))
        parse_unsupported(p, "tool_choice");
    v = parse_get(p, "response_format");
    if (v != NULL) {
        const json_t *type = json_is_object(v) ? json_object_get(v, "type") : NULL;
        if (!json_is_string(type))
            parse_invalid(p, "response_format", "must be an object with a type");
        else if (!json_doc_equals(&p->doc, type, "text"))
            parse_unsupported(p, "response_format");
    }
    v = parse_get(p, "modalities");
    if (v != NULL) {
        if (!json_is_array(v)) parse_invalid(p, "modalities", "must be a list");
        for (size_t i = 0; p->status == STATUS_OK && i < json_array_size(v); i++) {
            const json_t *m = json_array_get(v, i);
            if (!json_is_string(m) || !json_doc_equals(&p->doc, m, "text"))
                parse_unsupported(p, "modalities");
        }
    }
    bool ignored;
    parse_get_bool(p, "parallel_tool_calls", &ignored);
}

static void parse_model(struct parse *p, const char *model_name) {
    const json_t *v = parse_get(p, "model");
    if (v == NULL) return;
    if (!json_is_string(v))
        parse_invalid(p, "model", "must be a string");
    else if (!json_doc_equals(&p->doc, v, "default") && !json_doc_equals(&p->doc, v, model_name))
        parse_fail(p, STATUS_NOT_FOUND, "model", "the model does not exist here; see /v1/models");
}

static void parse_max_tokens(struct parse *p) {
    int64_t old = -1, new = -1;
    const bool has_old = get_int(p, "max_tokens", 0, INT32_MAX, &old);
    const bool has_new =
        p->r->kind == REQUEST_CHAT && get_int(p, "max_completion_tokens", 0, INT32_MAX, &new);
    if (has_old && has_new && old != new)
        parse_invalid(p, "max_completion_tokens", "and max_tokens must not differ");
    if (!has_old && !has_new) return;
    p->r->max_tokens = (uint32_t)(has_new ? new : old);
    p->r->set |= REQUEST_SET_MAX_TOKENS;
}

static void add_stop(struct parse *p, const json_t *v) {
    struct request *r = p->r;
    if (p->status != STATUS_OK) return;
    if (!json_is_string(v) || r->n_stops == REQUEST_MAX_STOPS) {
        parse_invalid(p, "stop", "must be a string or a list of at most 16 strings");
        return;
    }
    struct text t;
    if (json_doc_text_bytes(&p->doc, v) > 6 * REQUEST_MAX_STOP_BYTES) {
        parse_invalid(p, "stop", "must have at most 512 bytes");
        return;
    }
    const enum status s = json_doc_text(&p->doc, v, &p->out->arena, &t, p->e);
    if (s != STATUS_OK)
        p->status = s;
    else if (t.len == 0)
        parse_invalid(p, "stop", "must not be empty");
    else if (t.len > REQUEST_MAX_STOP_BYTES)
        parse_invalid(p, "stop", "must have at most 512 bytes");
    else
        r->stops[r->n_stops++] = t;
}

static void parse_stop(struct parse *p) {
    const json_t *v = parse_get(p, "stop");
    if (v == NULL) return;
    if (!json_is_array(v)) {
        add_stop(p, v);
        return;
    }
    for (size_t i = 0; p->status == STATUS_OK && i < json_array_size(v); i++)
        add_stop(p, json_array_get(v, i));
}

static int by_id(const void *a, const void *b) {
    const uint32_t x = ((const struct logit_bias *)a)->id, y = ((const struct logit_bias *)b)->id;
    return (x > y) - (x < y);
}

/* A token id in decimal, as Python or JavaScript would print it. */
static bool id_of_key(const char *key, uint32_t *out) {
    if (key[0] < '0' || key[0] > '9' || (key[0] == '0' && key[1] != '\0')) return false;
    char *end;
    errno = 0;
    const unsigned long long id = strtoull(key, &end, 10);
    if (errno != 0 || *end != '\0' || id >= INT32_MAX) return false;
    *out = (uint32_t)id;
    return true;
}

static void parse_logit_bias(struct parse *p) {
    json_t *v = parse_get(p, "logit_bias");
    if (v == NULL) return;
    if (!json_is_object(v)) {
        parse_invalid(p, "logit_bias", "must be an object of token ids");
        return;
    }
    const size_t n = json_object_size(v);
    if (n > REQUEST_MAX_LOGIT_BIAS) {
        parse_invalid(p, "logit_bias", "must have at most 1024 entries");
        return;
    }
    if (n == 0) return;
    struct logit_bias *list = bump_take(&p->out->arena, n * sizeof *list);
    if (list == NULL) {
        parse_no_memory(p);
        return;
    }
    const char *key;
    json_t *value;
    uint32_t i = 0;
    json_object_foreach(v, key, value) {
        double bias;
        if (!id_of_key(key, &list[i].id)) {
            parse_invalid(p, "logit_bias", "must have token ids as keys");
            return;
        }
        if (!number_in(p, value, "logit_bias", -100, 100, false, &bias)) return;
        list[i++].bias = (float)bias;
    }
    qsort(list, n, sizeof *list, by_id);
    p->r->logit_bias = list;
    p->r->n_logit_bias = (uint32_t)n;
}

static void parse_logprobs(struct parse *p) {
    struct request *r = p->r;
    int64_t n;
    if (r->kind == REQUEST_COMPLETION) {
        if (get_int(p, "logprobs", 0, REQUEST_MAX_TOP_LOGPROBS, &n)) {
            r->logprobs = true;
            r->top_logprobs = (uint32_t)n;
        }
        return;
    }
    parse_get_bool(p, "logprobs", &r->logprobs);
    if (!get_int(p, "top_logprobs", 0, REQUEST_MAX_TOP_LOGPROBS, &n)) return;
    if (n > 0 && !r->logprobs) parse_invalid(p, "top_logprobs", "needs logprobs to be true");
    r->top_logprobs = (uint32_t)n;
}

static void parse_stream(struct parse *p) {
    parse_get_bool(p, "stream", &p->out->stream);
    const json_t *v = parse_get(p, "stream_options");
    if (v == NULL) return;
    if (!json_is_object(v)) {
        parse_invalid(p, "stream_options", "must be an object");
        return;
    }
    if (!p->out->stream) {
        parse_invalid(p, "stream_options", "needs stream to be true");
        return;
    }
    const json_t *usage = json_object_get(v, "include_usage");
    if (usage == NULL || json_is_null(usage)) return;
    if (!json_is_boolean(usage))
        parse_invalid(p, "stream_options.include_usage", "must be true or false");
    else
        p->out->include_usage = json_boolean_value(usage);
}

/* One of two words. */
static bool word_in(struct parse *p, const json_t *v, const char *field, const char *no,
                    const char *yes, bool *is_yes) {
    if (json_is_string(v)) {
        *is_yes = json_doc_equals(&p->doc, v, yes);
        if (*is_yes || json_doc_equals(&p->doc, v, no)) return true;
    }
    char what[64];
    snprintf(what, sizeof what, "must be \"%s\" or \"%s\"", no, yes);
    return parse_invalid(p, field, what);
}

static void parse_rollback_member(struct parse *p, const char *key, const json_t *v,
                                  struct rollback *out, bool *thresholds) {
    char field[64];
    int64_t n;
    double d;
    snprintf(field, sizeof field, "laconic.rollback.%.32s", key);
    if (strcmp(key, "rule") == 0) {
        static const char *const rules[] = {
            [ROLLBACK_OFF] = "off", [ROLLBACK_AUTO] = "auto", [ROLLBACK_FIXED] = "fixed"};
        for (unsigned k = 0; json_is_string(v) && k < sizeof rules / sizeof *rules; k++)
            if (json_doc_equals(&p->doc, v, rules[k])) {
                out->rule = (enum rollback_rule)k;
                return;
            }
        parse_invalid(p, field, "must be \"off\", \"auto\" or \"fixed\"");
    } else if (strcmp(key, "entropy_threshold") == 0) {
        *thresholds = true;
        if (number_in(p, v, field, 0, 20, false, &d)) out->entropy_threshold = (float)d;
        p->r->set |= REQUEST_SET_ENTROPY_THRESHOLD;
    } else if (strcmp(key, "similarity_threshold") == 0) {
        *thresholds = true;
        if (number_in(p, v, field, -1, 1, false, &d)) out->similarity_threshold = (float)d;
    } else if (strcmp(key, "window") == 0) {
        if (int_in(p, v, field, 1, REQUEST_MAX_HELD, &n)) out->window = (uint32_t)n;
    } else if (strcmp(key, "max") == 0) {
        if (int_in(p, v, field, 0, REQUEST_MAX_ROLLBACKS, &n)) out->max = (uint32_t)n;
    } else {
        parse_invalid(p, field, "is not known");
    }
}

/* Asked for: the calibrated rule, unless another is named. */
static void parse_rollback(struct parse *p, const json_t *v, struct rollback *out) {
    if (!json_is_object(v)) {
        parse_invalid(p, "laconic.rollback", "must be an object");
        return;
    }
    const char *key;
    json_t *member;
    bool thresholds = false;
    p->r->set |= REQUEST_SET_ROLLBACK;
    out->rule = ROLLBACK_AUTO;
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        if (p->status != STATUS_OK) return;
        if (!json_is_null(member)) parse_rollback_member(p, key, member, out, &thresholds);
    }
    if (thresholds && out->rule != ROLLBACK_FIXED)
        parse_invalid(p, "laconic.rollback", "has thresholds, which belong to rule \"fixed\"");
}

enum laconic_key {
    DEADLINE_MS,
    ON_DEADLINE,
    PRIORITY,
    PENALTY_SCOPE,
    EXPLAIN,
    TASK_TYPE,
    GATE,
    LABELS,
    LINT,
    ROLLBACK,
    REGULATE,
    N_NOW
};
static const char *const laconic_now[N_NOW] = {
    "deadline_ms", "on_deadline", "priority", "penalty_scope", "explain", "task_type",
    "gate",        "labels",      "lint",     "rollback",      "regulate"};
static const char *const laconic_later[] = {"exit", "exit_risk", "beam_width", "thinking_budget",
                                            "documents"};

/* "off", "auto", or {"budget": "safe", "fast" or a number of pages}. */
static void parse_gate(struct parse *p, const json_t *v) {
    struct request *r = p->r;
    const json_t *budget = json_object_get(v, "budget"); /* NULL when v is no object */
    const char *key;
    json_t *member;
    int64_t n;
    bool second;
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        char field[64];
        snprintf(field, sizeof field, "laconic.gate.%.40s", key);
        if (strcmp(key, "budget") != 0) parse_invalid(p, field, "is not known");
    }
    if (p->status != STATUS_OK) return;
    if (!json_is_object(v)) {
        if (!word_in(p, v, "laconic.gate", "off", "auto", &second)) return;
        r->gate = second ? REQUEST_GATE_AUTO : REQUEST_GATE_OFF;
    } else if (json_is_number(budget)) {
        if (!int_in(p, budget, "laconic.gate.budget", 1, REQUEST_MAX_GATE_PAGES, &n)) return;
        r->gate = REQUEST_GATE_PAGES;
        r->gate_pages = (uint32_t)n;
    } else if (json_is_string(budget) && json_doc_equals(&p->doc, budget, "safe")) {
        r->gate = REQUEST_GATE_SAFE;
    } else if (json_is_string(budget) && json_doc_equals(&p->doc, budget, "fast")) {
        r->gate = REQUEST_GATE_FAST;
    } else {
        parse_invalid(p, "laconic.gate.budget", "must be \"safe\", \"fast\" or a number of pages");
        return;
    }
    r->set |= REQUEST_SET_GATE;
}

static void parse_label(struct parse *p, size_t i, const json_t *v, struct text *out) {
    char field[40];
    snprintf(field, sizeof field, "laconic.labels[%zu]", i);
    const size_t most = 6 * (size_t)REQUEST_MAX_LABEL_BYTES;
    if (!json_is_string(v) || json_doc_text_bytes(&p->doc, v) > most) {
        parse_invalid(p, field, "must be a string of 1 to 128 bytes");
        return;
    }
    const enum status s = json_doc_text(&p->doc, v, &p->out->arena, out, p->e);
    if (s != STATUS_OK)
        p->status = s;
    else if (out->len == 0 || out->len > REQUEST_MAX_LABEL_BYTES ||
             memchr(out->data, 0, out->len) != NULL)
        parse_invalid(p, field, "must be a string of 1 to 128 bytes, none of them U+0000");
}

static void parse_labels(struct parse *p, const json_t *v) {
    const size_t n = json_array_size(v);
    if (!json_is_array(v) || n == 0 || n > REQUEST_MAX_LABELS) {
        parse_invalid(p, "laconic.labels", "must be a list of 1 to 256 strings");
        return;
    }
    struct text *labels = bump_take(&p->out->arena, n * sizeof *labels);
    p->out->label_probability = bump_take(&p->out->arena, n * sizeof(float));
    if (labels == NULL || p->out->label_probability == NULL) {
        parse_no_memory(p);
        return;
    }
    for (size_t i = 0; p->status == STATUS_OK && i < n; i++)
        parse_label(p, i, json_array_get(v, i), &labels[i]);
    p->r->labels = labels;
    p->r->n_labels = (uint32_t)n;
}

static void parse_task_type(struct parse *p, const char *field, const json_t *v) {
    struct request *r = p->r;
    if (json_is_string(v) && json_doc_equals(&p->doc, v, "auto")) return;
    for (int t = 0; t < METRIC_TASK_NONE && json_is_string(v); t++) {
        if (!json_doc_equals(&p->doc, v, metric_task_name((enum metric_task)t))) continue;
        r->task_type = (enum metric_task)t;
        r->set |= REQUEST_SET_TASK_TYPE;
        return;
    }
    parse_invalid(p, field, "must be auto, deterministic, open, reasoning, code, classify or qa");
}

static void parse_laconic_member(struct parse *p, const char *key, const json_t *v) {
    struct request *r = p->r;
    char field[64];
    snprintf(field, sizeof field, "laconic.%.48s", key);
    unsigned k = 0;
    while (k < N_NOW && strcmp(key, laconic_now[k]) != 0) k++;
    if (k < N_NOW && json_is_null(v)) return;
    int64_t n;
    bool yes;
    switch ((enum laconic_key)k) {
    case DEADLINE_MS:
        if (int_in(p, v, field, 1, INT64_C(1) << 40, &n)) r->deadline_ms = (uint64_t)n;
        break;
    case ON_DEADLINE:
        if (word_in(p, v, field, "truncate", "fail", &yes))
            r->on_deadline = yes ? ON_DEADLINE_FAIL : ON_DEADLINE_TRUNCATE;
        break;
    case PRIORITY:
        if (int_in(p, v, field, INT32_MIN, INT32_MAX, &n)) r->priority = (int32_t)n;
        break;
    case PENALTY_SCOPE:
        if (word_in(p, v, field, "openai", "llamacpp", &yes))
            r->penalty_scope = yes ? PENALTY_SCOPE_LLAMACPP : PENALTY_SCOPE_OPENAI;
        break;
    case EXPLAIN:
        if (json_is_boolean(v))
            r->explain = json_boolean_value(v);
        else
            parse_invalid(p, field, "must be true or false");
        break;
    case TASK_TYPE:
        parse_task_type(p, field, v);
        break;
    case LINT:
        if (json_is_boolean(v))
            r->lint = json_boolean_value(v);
        else
            parse_invalid(p, field, "must be true or false");
        break;
    case GATE:
        parse_gate(p, v);
        break;
    case LABELS:
        parse_labels(p, v);
        break;
    case ROLLBACK:
        parse_rollback(p, v, &r->rollback);
        break;
    case REGULATE:
        if (json_is_boolean(v))
            r->regulate = json_boolean_value(v);
        else
            parse_invalid(p, field, "must be true or false");
        break;
    case N_NOW:
        for (size_t i = 0; i < sizeof laconic_later / sizeof *laconic_later; i++)
            if (strcmp(key, laconic_later[i]) == 0) parse_unsupported(p, field);
        parse_invalid(p, field, "is not known");
        break;
    }
}

static void parse_laconic(struct parse *p) {
    json_t *v = parse_get(p, "laconic");
    if (v == NULL) return;
    if (!json_is_object(v)) {
        parse_invalid(p, "laconic", "must be an object");
        return;
    }
    const char *key;
    json_t *member;
    json_object_foreach(v, key, member) {
        if (p->status != STATUS_OK) return;
        parse_laconic_member(p, key, member);
    }
}

static void parse_seed(struct parse *p) {
    int64_t seed;
    if (get_int(p, "seed", INT64_MIN, INT64_MAX, &seed)) {
        p->r->seed = (uint64_t)seed;
        p->r->set |= REQUEST_SET_SEED;
    }
}

static void parse_sampling(struct parse *p) {
    struct request *r = p->r;
    int64_t n;
    if (get_float(p, "temperature", 0, 2, false, &r->temperature))
        r->set |= REQUEST_SET_TEMPERATURE;
    if (get_float(p, "top_p", 0, 1, true, &r->top_p)) r->set |= REQUEST_SET_TOP_P;
    if (get_float(p, "min_p", 0, 1, false, &r->min_p)) r->set |= REQUEST_SET_MIN_P;
    if (get_int(p, "top_k", -1, INT32_MAX, &n)) {
        r->top_k = n > 0 ? (uint32_t)n : 0; /* -1 is "off" to other servers */
        r->set |= REQUEST_SET_TOP_K;
    }
    if (get_float(p, "repetition_penalty", 0, 10, true, &r->repetition_penalty))
        r->set |= REQUEST_SET_REPETITION;
    if (get_float(p, "presence_penalty", -2, 2, false, &r->presence_penalty))
        r->set |= REQUEST_SET_PRESENCE;
    if (get_float(p, "frequency_penalty", -2, 2, false, &r->frequency_penalty))
        r->set |= REQUEST_SET_FREQUENCY;
    if (get_int(p, "n", 1, REQUEST_MAX_CHOICES, &n)) r->n = (uint32_t)n;
    if (get_int(p, "best_of", 1, REQUEST_MAX_CHOICES, &n)) {
        if (n < (int64_t)r->n)
            parse_invalid(p, "best_of", "must be at least n");
        else if (n > (int64_t)r->n)
            parse_unsupported(p, "best_of");
    }
    parse_get_bool(p, "ignore_eos", &r->ignore_eos);
    const json_t *user = parse_get(p, "user");
    if (user != NULL && !json_is_string(user)) parse_invalid(p, "user", "must be a string");
}

/* A classified text has one answer, whose tokens nobody draws. */
static void check_with_labels(struct parse *p) {
    const struct request *r = p->r;
    if (p->status != STATUS_OK || r->n_labels == 0) return;
    if (r->n > 1)
        parse_invalid(p, "n", "must be 1 with laconic.labels");
    else if (r->logprobs)
        parse_invalid(p, "logprobs", "cannot be asked for with laconic.labels");
    else if (r->echo)
        parse_invalid(p, "echo", "cannot be asked for with laconic.labels");
    else if (p->out->n_prompts > 1)
        parse_invalid(p, "prompt", "must be one text with laconic.labels");
    else if (r->kind == REQUEST_COMPLETION && p->out->prompts[0].ids != NULL)
        parse_invalid(p, "prompt", "must be text with laconic.labels");
}

/* ---- prompts ---- */

static bool take_ids(struct parse *p, const char *field, const json_t *list,
                     struct openai_prompt *out) {
    const size_t n = json_array_size(list);
    uint32_t *ids = bump_take(&p->out->arena, (n + 1) * sizeof *ids);
    if (ids == NULL) return parse_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return parse_invalid(p, field, "must have only token ids in a list of token ids");
        ids[i] = (uint32_t)json_integer_value(v);
        if (i % 512 == 511 && json_doc_yield(&p->doc) != STATUS_OK)
            return parse_fail(p, STATUS_GONE, NULL, "cancelled");
    }
    out->ids = ids;
    out->n_ids = n;
    return true;
}

static bool take_prompt(struct parse *p, const json_t *v, struct openai_prompt *out) {
    if (json_is_array(v)) {
        if (json_array_size(v) == 0) return parse_invalid(p, "prompt", "must not be empty");
        return take_ids(p, "prompt", v, out);
    }
    if (!json_is_string(v))
        return parse_invalid(p, "prompt", "must be text, token ids, or a list of either");
    const enum status s = json_doc_text(&p->doc, v, &p->out->arena, &out->text, p->e);
    if (s != STATUS_OK) p->status = s;
    return s == STATUS_OK;
}

static void parse_prompts(struct parse *p) {
    struct openai_request *out = p->out;
    const json_t *v = parse_get(p, "prompt");
    if (p->status != STATUS_OK) return;
    const bool list =
        json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0));
    const size_t n = list ? json_array_size(v) : 1;
    if (v == NULL) {
        parse_invalid(p, "prompt", "must be given");
        return;
    }
    if (n * p->r->n > OPENAI_MAX_CHOICES) {
        parse_invalid(p, "prompt", "and n together ask for more than 128 choices");
        return;
    }
    out->prompts = bump_take(&out->arena, n * sizeof *out->prompts);
    if (out->prompts == NULL) {
        parse_no_memory(p);
        return;
    }
    memset(out->prompts, 0, n * sizeof *out->prompts);
    for (size_t i = 0; i < n; i++)
        if (!take_prompt(p, list ? json_array_get(v, i) : v, &out->prompts[i])) return;
    out->n_prompts = (uint32_t)n;
    if (p->r->lint && n > 1) parse_invalid(p, "laconic.lint", "takes one prompt");
    if (p->r->lint && out->prompts[0].text.len > REQUEST_LINT_BYTES)
        parse_fail(p, STATUS_TOO_LARGE, "laconic.lint", parse_lint_limit);
    if (n > 1 && !(p->r->set & REQUEST_SET_SEED)) {
        if (getrandom(&p->r->seed, sizeof p->r->seed, 0) != (ssize_t)sizeof p->r->seed)
            parse_fail(p, STATUS_IO, NULL, "no random numbers from the system");
        p->r->seed >>= 11; /* exact in every client's numbers */
        p->r->set |= REQUEST_SET_SEED;
    }
}

static void parse_tokenize(struct parse *p) {
    struct openai_request *out = p->out;
    const char *field =
        parse_get(p, "content") != NULL || parse_get(p, "prompt") == NULL ? "content" : "prompt";
    const json_t *v = parse_get(p, field);
    if (p->status != STATUS_OK) return;
    if (!json_is_string(v)) {
        parse_invalid(p, field, "must be a string");
        return;
    }
    const enum status s = json_doc_text(&p->doc, v, &out->arena, &out->base.prompt, p->e);
    if (s != STATUS_OK) p->status = s;
    parse_get_bool(p, "add_special", &out->base.add_bos);
    parse_get_bool(p, "parse_special", &out->base.special);
}

static void parse_detokenize(struct parse *p) {
    const json_t *v = parse_get(p, "tokens");
    if (p->status != STATUS_OK) return;
    struct openai_prompt ids = {0};
    if (!json_is_array(v))
        parse_invalid(p, "tokens", "must be a list of token ids");
    else if (take_ids(p, "tokens", v, &ids)) {
        p->r->ids = ids.ids;
        p->r->n_ids = ids.n_ids;
    }
}

enum status openai_parse(struct openai_request *r, enum request_kind kind, const struct body *body,
                         const char *model_name, struct chore *chore, struct error *e) {
    memset(r, 0, sizeof *r);
    r->base.kind = kind;
    r->base.n = 1;
    r->base.temperature = 1;
    r->base.top_p = 1;
    r->base.repetition_penalty = 1;
    r->base.rollback = (struct rollback)ROLLBACK_DEFAULT;
    struct error why = {0};
    struct parse p = {.out = r, .r = &r->base, .e = &why};
    p.status = json_doc_read(&p.doc, body, chore, &why);
    if (p.status == STATUS_OK) {
        parse_model(&p, model_name);
        if (kind == REQUEST_CHAT || kind == REQUEST_COMPLETION) {
            refuse_later_fields(&p);
            parse_laconic(&p);
            parse_sampling(&p);
            parse_seed(&p);
            parse_max_tokens(&p);
            parse_stop(&p);
            parse_logit_bias(&p);
            parse_logprobs(&p);
            parse_stream(&p);
        }
        switch (kind) {
        case REQUEST_CHAT:
            parse_chat(&p);
            break;
        case REQUEST_COMPLETION:
            parse_get_bool(&p, "echo", &r->base.echo);
            parse_prompts(&p);
            break;
        case REQUEST_TOKENIZE:
            parse_tokenize(&p);
            break;
        case REQUEST_DETOKENIZE:
            parse_detokenize(&p);
            break;
        case REQUEST_EMBEDDING: /* io/embeddings.h reads it */
            parse_fail(&p, STATUS_UNSUPPORTED, NULL, "embeddings are not served here");
            break;
        }
    }
    check_with_labels(&p);
    json_doc_free(&p.doc);
    if (r->n_prompts == 0) r->n_prompts = 1;
    if (p.status != STATUS_OK && e != NULL) *e = why;
    return p.status;
}

void openai_request_free(struct openai_request *r) {
    bump_free(&r->arena);
    buffer_free(&r->chat);
    memset(r, 0, sizeof *r);
}
