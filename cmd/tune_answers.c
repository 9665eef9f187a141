/* The answers that `tune` learns from: read from logs, or generated here. */
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cmd/tune.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/json_writer.h"

enum {
    MAX_LINE_BYTES = 1 << 20,
    MAX_ANSWERS = 1 << 20,
};
#define SAMPLE_TEMPERATURE 0.7f

void tune_set_free(struct tune_set *s) {
    for (uint32_t i = 0; i < s->n_answers; i++) free(s->answers[i].ids);
    for (uint32_t i = 0; i < s->n_topics; i++) free(s->topics[i].name);
    free(s->answers);
    free(s->topics);
    memset(s, 0, sizeof *s);
}

static enum status no_memory(struct error *e) {
    return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the answers");
}

/* The number of a topic; a new one when it is new. Topics come in runs, so the last ones first. */
static enum status find_topic(struct tune_set *s, const char *name, uint32_t *out,
                              struct error *e) {
    for (uint32_t i = s->n_topics; i > 0; i--)
        if (strcmp(s->topics[i - 1].name, name) == 0) {
            *out = i - 1;
            return STATUS_OK;
        }
    if (s->n_topics == s->cap_topics) {
        const uint32_t cap = s->cap_topics > 0 ? 2 * s->cap_topics : 64;
        struct tune_topic *topics = realloc(s->topics, cap * sizeof *topics);
        if (topics == NULL) return no_memory(e);
        s->topics = topics;
        s->cap_topics = cap;
    }
    char *copy = strdup(name);
    if (copy == NULL) return no_memory(e);
    *out = s->n_topics;
    s->topics[s->n_topics++] = (struct tune_topic){.name = copy};
    return STATUS_OK;
}

/* A zeroed place for one more answer. */
static struct tune_answer *add_answer(struct tune_set *s) {
    if (s->n_answers == s->cap_answers) {
        const uint32_t cap = s->cap_answers > 0 ? 2 * s->cap_answers : 256;
        struct tune_answer *answers = realloc(s->answers, cap * sizeof *answers);
        if (answers == NULL) return NULL;
        s->answers = answers;
        s->cap_answers = cap;
    }
    s->answers[s->n_answers] = (struct tune_answer){0};
    return &s->answers[s->n_answers++];
}

struct hashed_topic {
    uint64_t hash;
    uint32_t topic;
};

static int compare_hashed(const void *a, const void *b) {
    const struct hashed_topic *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return (x->topic > y->topic) - (x->topic < y->topic);
}

enum status tune_split(struct tune_set *s, struct error *e) {
    struct hashed_topic *order = malloc((s->n_topics + 1) * sizeof *order);
    if (order == NULL) return no_memory(e);
    for (uint32_t i = 0; i < s->n_topics; i++)
        order[i] =
            (struct hashed_topic){XXH3_64bits(s->topics[i].name, strlen(s->topics[i].name)), i};
    qsort(order, s->n_topics, sizeof *order, compare_hashed);
    const uint32_t n = s->n_topics < 2 ? 0 : s->n_topics < 5 ? 1 : s->n_topics / 5;
    for (uint32_t i = 0; i < s->n_topics; i++) s->topics[order[i].topic].unseen = i < n;
    free(order);
    return STATUS_OK;
}

/* A chat of one user message as the template's input. */
static void write_chat(const char *prompt, const json_t *messages, struct buffer *out) {
    if (messages != NULL) {
        char *text = json_dumps(messages, JSON_COMPACT);
        buffer_printf(out, "{\"messages\":%s}", text != NULL ? text : "[]");
        free(text);
        return;
    }
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "messages"), json_write_array(&j), json_write_object(&j);
    json_write_key(&j, "role"), json_write_string(&j, "user");
    json_write_key(&j, "content"), json_write_string(&j, prompt);
    json_write_object_end(&j), json_write_array_end(&j), json_write_object_end(&j);
}

static enum status encode_prompt(const struct tune *t, const char *prompt, const json_t *messages,
                                 struct token_list *ids, struct error *e) {
    ids->n = 0;
    if (t->chat_template == NULL)
        return tokenizer_encode(t->tokenizer, NULL, prompt, strlen(prompt), TOKENIZE_BOS, ids, e);
    struct buffer chat;
    buffer_init(&chat, 0);
    write_chat(prompt, messages, &chat);
    const struct chat_input in = {.json = chat.data, .len = chat.len};
    struct rendered text;
    enum status st = chat_template_render(t->chat_template, &in, NULL, &text, e);
    if (st == STATUS_OK) {
        st = tokenizer_encode_spans(t->tokenizer, NULL, text.text, text.len, text.spans,
                                    text.n_spans, TOKENIZE_SPECIAL, ids, e);
        rendered_free(&text);
    }
    buffer_free(&chat);
    return st;
}

/* One line of a log. Lines without an answer are not answers and are passed over. */
static enum status read_line(struct tune *t, const char *path, uint32_t line, const char *text,
                             struct token_list *ids, struct error *e) {
    json_error_t why;
    json_t *item = json_loads(text, 0, &why);
    const char *answer = json_string_value(json_object_get(item, "answer"));
    const char *prompt = json_string_value(json_object_get(item, "prompt"));
    const json_t *messages = json_object_get(item, "messages");
    const char *topic = json_string_value(json_object_get(item, "topic"));
    const char *finish = json_string_value(json_object_get(item, "finish_reason"));
    enum status st = STATUS_OK;
    if (!json_is_object(item) || (prompt == NULL && !json_is_array(messages)) || answer == NULL)
        st = error_set(e, STATUS_INVALID, "answers",
                       "%s, line %u: not {\"prompt\" or \"messages\", \"answer\"}", path, line);
    if (st == STATUS_OK && prompt == NULL && t->chat_template == NULL)
        st =
            error_set(e, STATUS_INVALID, "answers",
                      "%s, line %u: messages need a chat template, the model has none", path, line);
    if (st == STATUS_OK) st = encode_prompt(t, prompt, messages, ids, e);
    const size_t n_prompt = ids->n;
    if (st == STATUS_OK)
        st = tokenizer_encode(t->tokenizer, NULL, answer, strlen(answer), 0, ids, e);
    size_t n = ids->n;
    uint32_t end = tokenizer_eot(t->tokenizer);
    if (end == TOKEN_NONE) end = tokenizer_eos(t->tokenizer);
    const bool ends = end != TOKEN_NONE && (finish == NULL || strcmp(finish, "stop") == 0);
    if (st == STATUS_OK) {
        if (n_prompt == 0 || n == n_prompt || n + ends > t->engine->n_ctx) {
            t->set.n_left_out++;
        } else {
            struct tune_answer *a = add_answer(&t->set);
            uint32_t *copy = malloc((n + 1) * sizeof *copy);
            if (a == NULL || copy == NULL) {
                free(copy);
                st = no_memory(e);
            } else {
                memcpy(copy, ids->ids, n * sizeof *copy);
                if (ends) copy[n++] = end;
                a->ids = copy;
                a->n_prompt = (uint32_t)n_prompt;
                a->n = (uint32_t)n;
                char *all =
                    topic == NULL && prompt == NULL ? json_dumps(messages, JSON_COMPACT) : NULL;
                st = find_topic(&t->set,
                                topic != NULL    ? topic
                                : prompt != NULL ? prompt
                                                 : all,
                                &a->topic, e);
                free(all);
            }
        }
    }
    json_decref(item);
    return st;
}

/* Calls `each` with every line that is not empty, without its newline. */
typedef enum status line_fn(struct tune *t, const char *path, uint32_t line, const char *text,
                            struct token_list *ids, struct error *e);
static enum status each_line(struct tune *t, const char *path, line_fn *each, struct error *e) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return error_set(e, STATUS_NOT_FOUND, "answers", "%s cannot be read", path);
    char *text = NULL;
    size_t cap = 0;
    struct token_list ids = {0};
    enum status st = STATUS_OK;
    ssize_t n;
    for (uint32_t line = 1; st == STATUS_OK && (n = getline(&text, &cap, f)) >= 0; line++) {
        while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) text[--n] = '\0';
        if (n > MAX_LINE_BYTES || t->set.n_answers >= MAX_ANSWERS)
            st = error_set(e, STATUS_TOO_LARGE, "answers",
                           "%s, line %u: a line over 1 MiB, or over %d answers", path, line,
                           MAX_ANSWERS);
        else if (n > 0 && text[0] != '#')
            st = each(t, path, line, text, &ids, e);
    }
    token_list_free(&ids);
    free(text);
    fclose(f);
    return st;
}

static int is_log(const struct dirent *d) {
    const size_t n = strlen(d->d_name);
    return n > 6 && strcmp(d->d_name + n - 6, ".jsonl") == 0;
}

enum status tune_read_answers(struct tune *t, struct error *e) {
    const char *dir = t->config->answers_path;
    struct dirent **names = NULL;
    const int n = scandir(dir, &names, is_log, alphasort);
    if (n < 0) return error_set(e, STATUS_NOT_FOUND, "answers", "%s cannot be read", dir);
    enum status st = STATUS_OK;
    for (int i = 0; i < n; i++) {
        char path[4096];
        const int len = snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (st == STATUS_OK && (len < 0 || (size_t)len >= sizeof path))
            st = error_set(e, STATUS_TOO_LARGE, "answers", "%s: the path is too long", dir);
        if (st == STATUS_OK) st = each_line(t, path, read_line, e);
        free(names[i]);
    }
    free(names);
    if (st == STATUS_OK && t->set.n_answers == 0)
        st = error_set(e, STATUS_NOT_FOUND, "answers", "%s holds no answers (*.jsonl)", dir);
    return st;
}

/* A prompt becomes `samples` answers that have only their prompt yet. */
static enum status read_prompt(struct tune *t, const char *path, uint32_t line, const char *text,
                               struct token_list *ids, struct error *e) {
    (void)path, (void)line;
    const char *tab = strchr(text, '\t');
    const char *prompt = tab != NULL ? tab + 1 : text;
    char *topic = tab != NULL ? strndup(text, (size_t)(tab - text)) : strdup(text);
    if (topic == NULL) return no_memory(e);
    enum status st = encode_prompt(t, prompt, NULL, ids, e);
    const uint32_t room = t->config->n_predict;
    if (st == STATUS_OK && (ids->n == 0 || ids->n + room > t->engine->n_ctx)) {
        t->set.n_left_out++;
        free(topic);
        return STATUS_OK;
    }
    for (uint32_t i = 0; st == STATUS_OK && i < t->config->tune_samples; i++) {
        struct tune_answer *a = add_answer(&t->set);
        uint32_t *copy = malloc((ids->n + room) * sizeof *copy);
        if (a == NULL || copy == NULL) {
            free(copy);
            st = no_memory(e);
            break;
        }
        memcpy(copy, ids->ids, ids->n * sizeof *copy);
        a->ids = copy;
        a->n_prompt = a->n = (uint32_t)ids->n;
        st = find_topic(&t->set, topic, &a->topic, e);
    }
    free(topic);
    return st;
}

/* Finished answers in the order in which they were finished: {index, tokens, ids, hash of these}.
 */
static FILE *open_finished(struct tune *t, bool *done, uint32_t *n_done, struct error *e) {
    char path[4096];
    snprintf(path, sizeof path, "%s/answers", t->work);
    FILE *f = fopen(path, "ab+");
    if (f == NULL) {
        error_set(e, STATUS_IO, "o", "%s cannot be written", path);
        return NULL;
    }
    rewind(f);
    long good = 0;
    uint32_t head[2], *ids = malloc((t->config->n_predict + 2) * sizeof *ids);
    while (ids != NULL && fread(head, sizeof head, 1, f) == 1) {
        uint64_t hash;
        if (head[0] >= t->set.n_answers || head[1] > t->config->n_predict || done[head[0]]) break;
        if (fread(ids, sizeof *ids, head[1], f) != head[1] || fread(&hash, 8, 1, f) != 1) break;
        if (hash != XXH3_64bits_withSeed(ids, head[1] * sizeof *ids, head[0])) break;
        struct tune_answer *a = &t->set.answers[head[0]];
        memcpy(a->ids + a->n_prompt, ids, head[1] * sizeof *ids);
        a->n = a->n_prompt + head[1];
        done[head[0]] = true;
        ++*n_done;
        good = ftell(f);
    }
    free(ids);
    /* A record that the interruption tore goes. */
    if (good < 0 || fflush(f) != 0 || ftruncate(fileno(f), good) != 0 ||
        fseek(f, 0, SEEK_END) != 0) {
        error_set(e, STATUS_IO, "o", "%s cannot be written", path);
        fclose(f);
        return NULL;
    }
    return f;
}

static bool write_finished(FILE *f, const struct tune_answer *a, uint32_t index) {
    const uint32_t head[2] = {index, a->n - a->n_prompt};
    const uint32_t *ids = a->ids + a->n_prompt;
    const uint64_t hash = XXH3_64bits_withSeed(ids, head[1] * sizeof *ids, index);
    return fwrite(head, sizeof head, 1, f) == 1 &&
           fwrite(ids, sizeof *ids, head[1], f) == head[1] &&
           fwrite(&hash, sizeof hash, 1, f) == 1 && fflush(f) == 0;
}

struct place {
    uint32_t answer; /* STEP_NONE: free */
    uint32_t computed;
    struct engine_sequence sequence;
};

/* Adds what a place has to compute next; false when the step has no rows left for it. */
static void add_place(struct tune *t, struct place *p, uint32_t slot) {
    struct tune_answer *a = &t->set.answers[p->answer];
    const uint32_t room = t->step->limits.max_rows - t->step->n_rows;
    const uint32_t left = a->n - p->computed, rows = left < room ? left : room;
    if (rows == 0) return;
    engine_add_span(t->engine, t->step, left == 1 ? SPAN_DECODE : SPAN_PREFILL, &p->sequence,
                    p->computed, a->ids + p->computed, rows)
        ->slot = slot;
    p->computed += rows;
    if (p->computed < a->n) return;
    struct sample_spec *sample = &step_add_output(t->step, t->step->n_rows - 1)->sample;
    const uint32_t choice = p->answer % t->config->tune_samples;
    sample->seed = p->answer / t->config->tune_samples;
    sample->choice = choice;
    sample->temperature = choice > 0 ? SAMPLE_TEMPERATURE : 0;
}

static enum status one_step(struct tune *t, struct place *places, uint32_t n_places, FILE *f,
                            uint32_t *n_done, struct error *e) {
    uint32_t owner[256];
    step_clear(t->step, t->engine->plan->n_layers);
    for (uint32_t i = 0; i < n_places; i++) {
        if (places[i].answer == STEP_NONE) continue;
        const uint32_t before = t->step->n_outputs;
        add_place(t, &places[i], i);
        if (t->step->n_outputs > before) owner[before] = i;
    }
    enum status st = engine_run(t->engine, t->step, e);
    for (uint32_t o = 0; st == STATUS_OK && o < t->step->n_outputs; o++) {
        struct place *p = &places[owner[o]];
        struct tune_answer *a = &t->set.answers[p->answer];
        if (t->step->outputs[o].bad)
            return error_set(e, STATUS_BAD_NUMBER, NULL, "answer %u: a logit is not finite",
                             p->answer);
        const uint32_t id = t->step->outputs[o].token;
        a->ids[a->n++] = id;
        if (!tokenizer_is_eog(t->tokenizer, id) && a->n - a->n_prompt < t->config->n_predict)
            continue;
        if (!write_finished(f, a, p->answer))
            return error_set(e, STATUS_IO, "o", "%s: the answers cannot be written", t->work);
        engine_sequence_close(t->engine, &p->sequence);
        p->answer = STEP_NONE;
        ++*n_done;
    }
    return st;
}

enum status tune_read_prompts(struct tune *t, struct error *e) {
    const enum status st = each_line(t, t->config->prompts_path, read_prompt, e);
    if (st == STATUS_OK && t->set.n_answers == 0)
        return error_set(e, STATUS_NOT_FOUND, "prompts", "%s holds no prompts that fit",
                         t->config->prompts_path);
    return st;
}

enum status tune_generate(struct tune *t, struct error *e) {
    enum status st = STATUS_OK;
    const uint32_t n_places = t->config->tune_batch;
    CHECK(n_places <= 256);
    bool *done = calloc(t->set.n_answers, sizeof *done);
    struct place *places = calloc(n_places, sizeof *places);
    if (done == NULL || places == NULL) {
        free(done);
        free(places);
        return no_memory(e);
    }
    for (uint32_t i = 0; i < n_places; i++) places[i].answer = STEP_NONE;
    uint32_t n_done = 0, next = 0;
    FILE *f = open_finished(t, done, &n_done, e);
    if (f == NULL) st = e->status;
    while (st == STATUS_OK && n_done < t->set.n_answers) {
        for (uint32_t i = 0; st == STATUS_OK && i < n_places; i++) {
            if (places[i].answer != STEP_NONE) continue;
            while (next < t->set.n_answers && done[next]) next++;
            if (next == t->set.n_answers) break;
            places[i].answer = next++;
            places[i].computed = 0;
            st = engine_sequence_open(t->engine,
                                      t->set.answers[places[i].answer].n + t->config->n_predict,
                                      &places[i].sequence, e);
            if (st != STATUS_OK) places[i].answer = STEP_NONE;
        }
        if (st == STATUS_OK) st = one_step(t, places, n_places, f, &n_done, e);
        tune_progress("answers", n_done, t->set.n_answers);
    }
    for (uint32_t i = 0; i < n_places; i++)
        if (places[i].answer != STEP_NONE) engine_sequence_close(t->engine, &places[i].sequence);
    if (f != NULL) fclose(f);
    free(places);
    free(done);
    return st;
}
