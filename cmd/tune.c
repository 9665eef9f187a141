/* tune: what a deployment's answers have in common, into a side-car. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cmd/commands.h"
#include "cmd/tune.h"
#include "cmd/usage.h"
#include "core/clock.h"
#include "core/buffer.h"
#include "models/learned_block.h"
#include "models/shortlist.h"
#include "models/sidecar.h"

enum { MAX_SECTIONS = 8, RECORD_ROWS = 256 };

struct outcome {
    struct sidecar_section sections[MAX_SECTIONS];
    uint32_t n;
    struct tune_report report;
};

void tune_progress(const char *what, uint32_t done, uint32_t all) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s %u of %u%s", what, done, all, done == all ? "\r\033[K" : "");
    fflush(stderr);
}

/* What the work folder's files are a function of: the records of the taps as well. */
struct work_key {
    uint64_t answers[2];
    uint32_t n_taps, tap_layers[TUNE_MAX_TAPS];
};

static enum status make_key(const struct tune *t, struct work_key *key, struct error *e) {
    memset(key, 0, sizeof *key);
    const struct config *c = t->config;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    uint64_t digest[2];
    gguf_digest(model_gguf(t->engine->model), digest);
    const uint64_t parts[] = {digest[0],
                              digest[1],
                              t->engine->n_ctx,
                              (uint64_t)c->activations,
                              (uint64_t)c->kv,
                              c->answers_path != NULL ? 0 : c->n_predict,
                              c->answers_path != NULL ? 0 : c->tune_samples,
                              t->set.n_answers};
    XXH_errorcode rc = XXH3_128bits_reset(state);
    rc |= XXH3_128bits_update(state, parts, sizeof parts);
    for (uint32_t i = 0; i < t->set.n_answers; i++) {
        const struct tune_answer *a = &t->set.answers[i];
        const uint32_t head[2] = {a->n_prompt, a->n};
        rc |= XXH3_128bits_update(state, head, sizeof head);
        rc |= XXH3_128bits_update(state, a->ids, a->n * sizeof *a->ids);
    }
    const XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    key->answers[0] = h.low64, key->answers[1] = h.high64;
    key->n_taps = t->n_taps;
    memcpy(key->tap_layers, t->tap_layers, sizeof key->tap_layers);
    return rc == XXH_OK ? STATUS_OK : error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
}

static void remove_file(const struct tune *t, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", t->work, name);
    unlink(path);
}

/* The folder, without the files that another run left there. */
static enum status open_work(struct tune *t, struct error *e) {
    struct work_key key, old = {0};
    enum status st = make_key(t, &key, e);
    if (st != STATUS_OK) return st;
    if (mkdir(t->work, 0755) != 0 && errno != EEXIST)
        return error_set(e, STATUS_IO, "o", "%s cannot be made: %s", t->work, strerror(errno));
    char path[4096];
    snprintf(path, sizeof path, "%s/key", t->work);
    FILE *f = fopen(path, "rb");
    if (f != NULL && fread(&old, sizeof old, 1, f) != 1) memset(&old, 0, sizeof old);
    if (f != NULL) fclose(f);
    if (memcmp(&old, &key, sizeof key) == 0) return STATUS_OK;
    remove_file(t, "records");
    remove_file(t, "draft-block");
    remove_file(t, "exit-block");
    if (memcmp(old.answers, key.answers, sizeof key.answers) != 0) remove_file(t, "answers");
    f = fopen(path, "wb");
    const bool ok = f != NULL && fwrite(&key, sizeof key, 1, f) == 1;
    if ((f != NULL && fclose(f) != 0) || !ok)
        return error_set(e, STATUS_IO, "o", "%s cannot be written", path);
    return STATUS_OK;
}

static void remove_work(const struct tune *t) {
    remove_file(t, "answers");
    remove_file(t, "records");
    remove_file(t, "draft-block");
    remove_file(t, "exit-block");
    remove_file(t, "key");
    rmdir(t->work);
}

static void add_mass(const struct tune *t, uint32_t answer, double *mass) {
    const struct tune_answer *a = &t->set.answers[answer];
    const struct tune_record *r = tune_records(t, answer);
    for (uint32_t i = 0; i < a->n - a->n_prompt; i++)
        for (uint32_t k = 0; k < TUNE_TOP; k++)
            if (r[i].ids[k] != STEP_NONE) mass[r[i].ids[k]] += (double)r[i].probability[k];
}

/* Chosen from seen topics for the figures, then from all for the file. */
struct lists {
    uint32_t *seen, *all; /* [n] */
    uint32_t n;
};

static enum status make_shortlist(const struct tune *t, struct outcome *out,
                                  const struct lists *lists, struct error *e) {
    const uint32_t n_vocab = t->engine->plan->n_vocab;
    double *mass = calloc(n_vocab, sizeof *mass);
    enum status st = STATUS_OK;
    if (mass == NULL) st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    for (uint32_t i = 0; st == STATUS_OK && i < t->set.n_answers; i++)
        if (!t->set.topics[t->set.answers[i].topic].unseen) add_mass(t, i, mass);
    struct tune_report *r = &out->report;
    if (st == STATUS_OK)
        st = shortlist_choose(mass, n_vocab, lists->n, lists->seen, &r->mass_held, e);
    if (st == STATUS_OK) {
        const struct shortlist list = {lists->seen, lists->n, n_vocab, 0};
        uint64_t held = 0, all = 0;
        for (uint32_t i = 0; i < t->set.n_answers; i++) {
            const struct tune_answer *a = &t->set.answers[i];
            if (!t->set.topics[a->topic].unseen) continue;
            const struct tune_record *records = tune_records(t, i);
            for (uint32_t k = 0; k < a->n - a->n_prompt; k++, all++)
                held += shortlist_find(&list, records[k].ids[0]) != SHORTLIST_NONE;
            add_mass(t, i, mass);
        }
        r->coverage = all > 0 ? (double)held / (double)all : 0;
        double ignored;
        st = shortlist_choose(mass, n_vocab, lists->n, lists->all, &ignored, e);
    }
    if (st == STATUS_OK) {
        struct sidecar_section *s = &out->sections[out->n];
        void *bytes;
        st = shortlist_write(lists->all, lists->n, n_vocab, (float)r->coverage, &bytes, &s->bytes,
                             e);
        s->kind = SIDECAR_SHORTLIST;
        s->data = bytes;
        if (st == STATUS_OK) out->n++;
    }
    free(mass);
    return st;
}

/* The answers of the asked kinds as lists; *n of them. */
static struct ngram_list *collect(const struct tune *t, bool seen, bool unseen, uint32_t *n) {
    struct ngram_list *lists = malloc((t->set.n_answers + 1) * sizeof *lists);
    *n = 0;
    for (uint32_t i = 0; lists != NULL && i < t->set.n_answers; i++) {
        const struct tune_answer *a = &t->set.answers[i];
        if (t->set.topics[a->topic].unseen ? unseen : seen)
            lists[(*n)++] = (struct ngram_list){a->ids, a->n_prompt, a->n};
    }
    return lists;
}

static enum status build_ngram(const struct tune *t, bool unseen, const float *doubt, void **bytes,
                               size_t *n_bytes, struct ngram_table *table, struct error *e) {
    uint32_t n;
    struct ngram_list *lists = collect(t, true, unseen, &n);
    if (lists == NULL) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    enum status st = ngram_table_build(lists, n, (size_t)t->config->tune_ngram_kib << 10, doubt,
                                       bytes, n_bytes, e);
    free(lists);
    if (st == STATUS_OK) st = ngram_table_view(table, *bytes, *n_bytes, e);
    return st;
}

static enum status make_ngram(const struct tune *t, struct outcome *out, struct error *e) {
    void *bytes;
    size_t n_bytes;
    struct ngram_table table;
    float doubt[NGRAM_ORDERS];
    enum status st = build_ngram(t, false, NULL, &bytes, &n_bytes, &table, e);
    if (st != STATUS_OK) return st;
    uint32_t n;
    struct ngram_list *unseen = collect(t, false, true, &n);
    if (unseen == NULL) {
        free(bytes);
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    }
    ngram_table_fit_doubt(&table, unseen, n, doubt);
    free(unseen);
    memcpy(table.doubt, doubt, sizeof doubt);
    struct tune_report *r = &out->report;
    st = tune_score_drafts(t, &table, false, &r->ngram, e);
    if (st == STATUS_OK) st = tune_score_drafts(t, NULL, true, &r->lookup, e);
    if (st == STATUS_OK) st = tune_score_drafts(t, &table, true, &r->both, e);
    free(bytes);
    if (st == STATUS_OK) st = build_ngram(t, true, doubt, &bytes, &n_bytes, &table, e);
    if (st != STATUS_OK) return st;
    r->ngram_bytes = n_bytes;
    out->sections[out->n++] =
        (struct sidecar_section){.kind = SIDECAR_NGRAM, .data = bytes, .bytes = n_bytes};
    return STATUS_OK;
}

static enum status add_block(struct tune *t, struct outcome *out, const struct tune_block *spec,
                             uint32_t kind, const struct lists *lists,
                             struct tune_block_score *score, struct error *e) {
    const struct shortlist seen = {lists->seen, lists->n, t->engine->plan->n_vocab, 0};
    void *bytes;
    size_t n;
    const enum status st =
        tune_train_block(t, spec, lists->all, lists->n, &seen, &bytes, &n, score, e);
    if (st == STATUS_OK)
        out->sections[out->n++] = (struct sidecar_section){.kind = kind, .data = bytes, .bytes = n};
    return st;
}

static enum status make_blocks(struct tune *t, struct outcome *out, const struct lists *lists,
                               struct error *e) {
    const uint32_t n_layers = t->engine->plan->n_layers, exit_layer = t->config->tune_exit_layer;
    const struct tune_block draft = {"draft-block", true, 0, n_layers, n_layers - 1};
    const struct tune_block exit = {"exit-block", false, t->n_taps - 1, exit_layer, exit_layer};
    enum status st = STATUS_OK;
    if (t->config->tune_draft_block)
        st = add_block(t, out, &draft, SIDECAR_DRAFT_BLOCK, lists, &out->report.draft_block, e);
    if (st == STATUS_OK && exit_layer > 0)
        st = add_block(t, out, &exit, SIDECAR_EXIT_BLOCKS, lists, &out->report.exit_block, e);
    return st;
}

/* Where states are kept; refuses what could not be trained before any work is done. */
static enum status choose_taps(struct tune *t, struct error *e) {
    const struct plan *p = t->engine->plan;
    const uint32_t exit_layer = t->config->tune_exit_layer;
    struct train_shape shape;
    enum status st = STATUS_OK;
    if (exit_layer >= p->n_layers)
        return error_set(e, STATUS_INVALID, "exit-layer", "--exit-layer: the model has %u layers",
                         p->n_layers);
    if (t->config->tune_draft_block) {
        st = learned_block_shape(p, p->n_layers - 1, 2, &shape, e);
        t->tap_layers[t->n_taps++] = p->n_layers;
    }
    if (st == STATUS_OK && exit_layer > 0) {
        st = learned_block_shape(p, exit_layer, 1, &shape, e);
        t->tap_layers[t->n_taps++] = exit_layer - 1;
    }
    return st;
}

static void count_set(const struct tune *t, struct tune_report *r) {
    for (uint32_t i = 0; i < t->set.n_answers; i++) {
        const struct tune_answer *a = &t->set.answers[i];
        const bool unseen = t->set.topics[a->topic].unseen;
        *(unseen ? &r->n_unseen : &r->n_seen) += 1;
        *(unseen ? &r->unseen_tokens : &r->seen_tokens) += a->n - a->n_prompt;
    }
    for (uint32_t i = 0; i < t->set.n_topics; i++)
        *(t->set.topics[i].unseen ? &r->n_unseen_topics : &r->n_seen_topics) += 1;
}

static enum status write_sections(const struct tune *t, struct outcome *out, struct error *e) {
    static const uint32_t KINDS[] = {SIDECAR_SHORTLIST, SIDECAR_NGRAM, SIDECAR_DRAFT_BLOCK,
                                     SIDECAR_EXIT_BLOCKS, SIDECAR_REPORT};
    struct buffer text;
    buffer_init(&text, 0);
    tune_report_json(t, &out->report, false, &text);
    out->sections[out->n++] =
        (struct sidecar_section){.kind = SIDECAR_REPORT, .data = text.data, .bytes = text.len};
    for (uint32_t i = 0; i < out->n; i++) {
        out->sections[i].version = sidecar_kind_version(out->sections[i].kind);
        snprintf(out->sections[i].key, sizeof out->sections[i].key, "%s", t->config->traffic);
    }
    uint64_t model[2];
    gguf_digest(model_gguf(t->engine->model), model);
    const enum status st =
        sidecar_update(t->config->out_path, model, KINDS, sizeof KINDS / sizeof *KINDS,
                       t->config->traffic, out->sections, out->n, e);
    out->n--; /* the report's bytes are the buffer's */
    buffer_free(&text);
    return st;
}

/* A file that could not be written in the end is refused before the work is done. */
static enum status check_output(const struct tune *t, struct error *e) {
    if (access(t->config->out_path, F_OK) != 0) return STATUS_OK;
    uint64_t model[2];
    gguf_digest(model_gguf(t->engine->model), model);
    struct sidecar *old;
    const enum status st = sidecar_open(t->config->out_path, model, &old, e);
    sidecar_close(old);
    return st;
}

static enum status learn(struct tune *t, struct outcome *out, struct error *e) {
    const uint64_t t0 = clock_now_ns();
    const uint32_t n_vocab = t->engine->plan->n_vocab;
    const uint32_t n_ids =
        t->config->tune_shortlist < n_vocab ? t->config->tune_shortlist : n_vocab;
    enum status st =
        t->config->answers_path != NULL ? tune_read_answers(t, e) : tune_read_prompts(t, e);
    if (st == STATUS_OK) st = open_work(t, e);
    if (st == STATUS_OK && t->config->answers_path == NULL) st = tune_generate(t, e);
    if (st == STATUS_OK) st = tune_split(&t->set, e);
    if (st != STATUS_OK) return st;
    const uint64_t t1 = clock_now_ns();
    st = tune_record_all(t, e);
    const uint64_t t2 = clock_now_ns();
    if (st == STATUS_OK) count_set(t, &out->report);
    const struct lists lists = {malloc(n_ids * sizeof(uint32_t)), malloc(n_ids * sizeof(uint32_t)),
                                n_ids};
    if (st == STATUS_OK && (lists.seen == NULL || lists.all == NULL))
        st = error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    if (st == STATUS_OK) st = make_shortlist(t, out, &lists, e);
    if (st == STATUS_OK) st = make_ngram(t, out, e);
    if (st == STATUS_OK) st = make_blocks(t, out, &lists, e);
    free(lists.seen);
    free(lists.all);
    const uint64_t t3 = clock_now_ns();
    out->report.answers_s = (double)(t1 - t0) * 1e-9;
    out->report.records_s = (double)(t2 - t1) * 1e-9;
    out->report.learn_s = (double)(t3 - t2) * 1e-9;
    if (st == STATUS_OK) st = write_sections(t, out, e);
    return st;
}

static enum status open_engine(struct tune *t, struct error *e) {
    const struct config *c = t->config;
    struct engine_options o = engine_defaults(c);
    o.n_slots = c->tune_batch;
    o.n_pages = c->tune_batch * ((c->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1);
    o.limits = (struct step_limits){.max_spans = c->tune_batch,
                                    .max_rows = RECORD_ROWS,
                                    .max_outputs = RECORD_ROWS,
                                    .max_taps = TUNE_MAX_TAPS,
                                    .max_tap_rows = TUNE_MAX_TAPS * RECORD_ROWS,
                                    .max_profiles = 1};
    enum status st = engine_open(&o, &t->engine, e);
    if (st != STATUS_OK) return st;
    const struct gguf *g = model_gguf(t->engine->model);
    st = tokenizer_load(g, &t->tokenizer, e);
    if (st != STATUS_OK) return st;
    st = chat_template_load(g, &t->chat_template, e);
    if (st == STATUS_NOT_FOUND) st = STATUS_OK; /* prompts are continued as they stand */
    if (st != STATUS_OK) return st;
    if (posix_memalign(&t->step_memory, 64, step_footprint(&t->engine->limits)) != 0)
        return error_set(e, STATUS_NO_MEMORY, NULL, "no memory");
    t->step = step_init(t->step_memory, &t->engine->limits);
    return STATUS_OK;
}

static void close_tune(struct tune *t) {
    map_close(&t->records);
    free(t->record_offsets);
    tune_set_free(&t->set);
    free(t->step_memory);
    chat_template_free(t->chat_template);
    tokenizer_free(t->tokenizer);
    engine_close(t->engine);
    free(t->work);
}

static enum status check_options(const struct config *c, struct error *e) {
    if ((c->answers_path != NULL) + (c->prompts_path != NULL) + (c->labels_path != NULL) != 1)
        return error_set(e, STATUS_INVALID, "answers",
                         "either --answers, --prompts or --labels is wanted");
    if ((c->traffic == NULL) != (c->labels_path != NULL))
        return error_set(e, STATUS_INVALID, "traffic", "--traffic is %s",
                         c->traffic == NULL ? "wanted" : "not for --labels");
    if (c->traffic != NULL && !sidecar_key_valid(c->traffic))
        return error_set(e, STATUS_INVALID, "traffic",
                         "--traffic takes 1 to %d of A-Z a-z 0-9 . _ - :", SIDECAR_KEY_BYTES - 1);
    if (strlen(c->out_path) > 3000)
        return error_set(e, STATUS_TOO_LARGE, "o", "-o: the path is too long");
    return STATUS_OK;
}

int cmd_tune(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    if (check_options(&c, &e) != STATUS_OK) {
        usage_fail("tune", &e);
        return 2;
    }
    if (c.labels_path != NULL) return tune_labels(&c, &e) == STATUS_OK ? 0 : usage_fail("tune", &e);
    struct tune t = {.config = &c};
    struct outcome out = {0};
    enum status st = STATUS_OK;
    if (asprintf(&t.work, "%s.work", c.out_path) < 0) {
        t.work = NULL;
        st = error_set(&e, STATUS_NO_MEMORY, NULL, "no memory");
    }
    if (st == STATUS_OK) st = open_engine(&t, &e);
    if (st == STATUS_OK) st = choose_taps(&t, &e);
    if (st == STATUS_OK) st = check_output(&t, &e);
    if (st == STATUS_OK) st = learn(&t, &out, &e);
    if (st == STATUS_OK) {
        if (c.json) {
            struct buffer text;
            buffer_init(&text, 0);
            tune_report_json(&t, &out.report, true, &text);
            fwrite(text.data, 1, text.len, stdout);
            buffer_free(&text);
        } else {
            tune_report_print(&t, &out.report);
        }
        remove_work(&t);
    }
    for (uint32_t i = 0; i < out.n; i++) free((void *)(uintptr_t)out.sections[i].data);
    close_tune(&t);
    return st == STATUS_OK ? 0 : usage_fail("tune", &e);
}
