/* A record as JSON, and what it says of time that need not have been spent. Each saving is told
 * alone, as if all else stayed the same; they do not add up. */
#include <string.h>

#include "sched/explain.h"
#include "sched/sequence.h"

static double ms(double ns) {
    return (double)(uint64_t)(ns / 1000) / 1000;
}

static void write_string(struct json_writer *j, const char *key, const char *s) {
    json_write_key(j, key);
    json_write_string(j, s);
}

static void write_uint(struct json_writer *j, const char *key, uint64_t v) {
    json_write_key(j, key);
    json_write_uint(j, v);
}

static void write_ms(struct json_writer *j, const char *key, double ns) {
    json_write_key(j, key);
    json_write_double(j, ms(ns));
}

static void write_float(struct json_writer *j, const char *key, float v) {
    json_write_key(j, key);
    json_write_float(j, v);
}

/* ---- the task ---- */

static void write_task(struct json_writer *j, const struct explain_record *r) {
    const struct policy_decision *d = &r->decision;
    const struct task_verdict *v = &d->verdict;
    json_write_key(j, "task");
    json_write_object(j);
    write_string(j, "type", metric_task_name(d->task));
    write_string(j, "by", policy_by_name(d->by));
    if (d->classified) {
        write_string(j, "likeliest", r->labels[v->class]);
        json_write_key(j, "abstained");
        json_write_bool(j, v->abstained);
        write_float(j, "probability", v->confidence);
        json_write_key(j, "probabilities");
        json_write_object(j);
        for (uint32_t c = 0; c < r->n_labels; c++) write_float(j, r->labels[c], v->probability[c]);
        json_write_object_end(j);
        write_float(j, "unseen", v->unseen);
        json_write_key(j, "reasons");
        json_write_array(j);
        for (uint32_t i = 0; i < TASK_N_REASONS && v->reasons[i].feature != NULL; i++) {
            json_write_object(j);
            write_string(j, "feature", v->reasons[i].feature);
            write_float(j, "score", v->reasons[i].score);
            json_write_object_end(j);
        }
        json_write_array_end(j);
        write_ms(j, "classify_ms", (double)d->classify_ns);
    }
    json_write_object_end(j);
}

/* ---- decisions that changed the output ---- */

static void write_preset(struct json_writer *j, const struct policy_decision *d) {
    json_write_object(j);
    write_string(j, "what", "preset");
    write_string(j, "preset", d->task == METRIC_TASK_NONE ? "middle" : metric_task_name(d->task));
    write_string(j, "by", policy_by_name(d->by));
    if (d->by != POLICY_BY_CLIENT && d->classified)
        write_float(j, "probability", d->verdict.confidence);
    json_write_key(j, "set");
    json_write_object(j);
    if (d->set & REQUEST_SET_TEMPERATURE) write_float(j, "temperature", d->temperature);
    if (d->set & REQUEST_SET_TOP_P) write_float(j, "top_p", d->top_p);
    if (d->set & REQUEST_SET_ENTROPY_THRESHOLD)
        write_float(j, "entropy_threshold", d->entropy_threshold);
    json_write_object_end(j);
    json_write_object_end(j);
}

static void write_rollback(struct json_writer *j, const struct flight_event *v) {
    const struct flight_rollback r = flight_rollback_of(v->c);
    json_write_object(j);
    write_string(j, "what", "rollback");
    write_uint(j, "choice", v->a);
    write_uint(j, "tokens", v->b);
    write_uint(j, "position", r.position);
    write_float(j, "entropy", r.entropy);
    write_float(j, "similarity", r.similarity);
    json_write_object_end(j);
}

static void write_gate(struct json_writer *j, const struct explain_record *r,
                       const struct flight_event *v) {
    const struct flight_total *gate = &r->totals[FLIGHT_GATE];
    if (gate->sum_b >= gate->sum_c) return; /* it left nothing out */
    json_write_object(j);
    write_string(j, "what", "gate");
    json_write_key(j, "trigger_word");
    json_write_bool(j, v->a != 0);
    write_uint(j, "pages", v->b);
    write_uint(j, "from_position", v->c);
    write_uint(j, "attended", gate->sum_b);
    write_uint(j, "of", gate->sum_c);
    json_write_object_end(j);
}

static void write_label(struct json_writer *j, const struct explain_record *r,
                        const struct flight_event *v) {
    json_write_object(j);
    write_string(j, "what", "label");
    write_uint(j, "label", v->b);
    json_write_key(j, "probability");
    json_write_double(j, (double)v->c / 1e6);
    write_string(j, "labels_by", v->a > 0 ? "head" : "zero-shot");
    if (v->a > 0) write_uint(j, "exit_layer", v->a);
    if (r->totals[FLIGHT_AUDIT].n > 0)
        write_string(j, "audit", r->totals[FLIGHT_AUDIT].sum_b > 0 ? "differed" : "agreed");
    json_write_object_end(j);
}

/* The breaker draws on more cautiously from there. */
static void write_breaker(struct json_writer *j, const struct flight_event *v) {
    json_write_object(j);
    write_string(j, "what", "breaker");
    write_uint(j, "choice", v->a);
    write_uint(j, "rollbacks", v->b);
    write_uint(j, "position", v->c);
    json_write_object_end(j);
}

static void write_regulation(struct json_writer *j, const struct flight_event *v) {
    static const char *const keys[] = {"temperature", "least_temperature", "most_temperature",
                                       "top_p"};
    json_write_object(j);
    write_string(j, "what", "regulation");
    for (int i = 0; i < 4; i++) {
        json_write_key(j, keys[i]);
        json_write_double(j, (double)(uint16_t)(v->c >> (16 * i)) / 1000);
    }
    json_write_key(j, "least_top_p");
    json_write_double(j, (double)(v->b >> 16) / 1000);
    json_write_key(j, "most_top_p");
    json_write_double(j, (double)(v->b & 0xFFFF) / 1000);
    json_write_object_end(j);
}

static void write_decisions(struct json_writer *j, const struct explain_record *r) {
    json_write_key(j, "decisions");
    json_write_array(j);
    for (uint32_t i = 0; i < r->n_kept; i++) {
        const struct flight_event *v = &r->kept[i];
        if (v->kind == FLIGHT_TASK && v->c != 0) write_preset(j, &r->decision);
        if (v->kind == FLIGHT_GATE_POLICY) write_gate(j, r, v);
        if (v->kind == FLIGHT_LABEL) write_label(j, r, v);
        if (v->kind == FLIGHT_ROLLBACK) write_rollback(j, v);
        if (v->kind == FLIGHT_BREAKER) write_breaker(j, v);
        if (v->kind == FLIGHT_REGULATED) write_regulation(j, v);
        if (v->kind != FLIGHT_DEADLINE) continue;
        json_write_object(j);
        write_string(j, "what", "deadline");
        json_write_object_end(j);
    }
    json_write_array_end(j);
}

/* ---- costs ---- */

static void write_costs(struct json_writer *j, const struct explain_record *r) {
    const struct flight_timings *t = &r->timings;
    json_write_key(j, "cost_ms");
    json_write_object(j);
    write_ms(j, "tokenise", (double)t->tokenise_ns);
    write_ms(j, "queue", (double)t->queue_ns);
    write_ms(j, "prefill", (double)t->prefill_ns);
    write_ms(j, "first_token", (double)t->ttft_ns);
    write_ms(j, "decode", (double)t->decode_ns);
    write_ms(j, "total", (double)t->total_ns);
    json_write_object_end(j);
}

static void write_steps(struct json_writer *j, const struct explain_record *r) {
    static const struct {
        const char *key;
        enum flight_kind kind;
    } kinds[] = {{"prefill", FLIGHT_STEP_PREFILL},
                 {"decode", FLIGHT_STEP_DECODE},
                 {"verify", FLIGHT_STEP_VERIFY}};
    json_write_key(j, "steps");
    json_write_object(j);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct flight_total *t = &r->totals[kinds[i].kind];
        json_write_key(j, kinds[i].key);
        json_write_object(j);
        write_uint(j, "n", t->n);
        write_uint(j, "rows", t->sum_b);
        write_ms(j, "ms", (double)t->sum_c);
        json_write_object_end(j);
    }
    json_write_object_end(j);
}

static void write_counts(struct json_writer *j, const struct explain_record *r) {
    const struct flight_total *drafts = &r->totals[FLIGHT_DRAFTED];
    const struct flight_total *rollbacks = &r->totals[FLIGHT_ROLLBACK];
    json_write_key(j, "tokens");
    json_write_object(j);
    write_uint(j, "prompt", r->timings.prompt_tokens);
    write_uint(j, "cached", r->timings.prefix_hit_tokens);
    write_uint(j, "completion", r->timings.tokens);
    json_write_object_end(j);
    json_write_key(j, "drafts");
    json_write_object(j);
    write_uint(j, "proposed", drafts->sum_b);
    write_uint(j, "accepted", drafts->sum_c);
    json_write_object_end(j);
    json_write_key(j, "rollbacks");
    json_write_object(j);
    write_uint(j, "n", rollbacks->n);
    write_uint(j, "tokens", rollbacks->sum_b);
    json_write_object_end(j);
    json_write_key(j, "pages");
    json_write_object(j);
    write_uint(j, "reserved", r->totals[FLIGHT_ADMITTED].sum_b);
    write_uint(j, "copied", r->totals[FLIGHT_COPY].n);
    json_write_object_end(j);
    json_write_key(j, "events");
    json_write_object(j);
    for (int k = 0; k < FLIGHT_KIND_COUNT; k++)
        if (r->totals[k].n > 0)
            write_uint(j, flight_kind_name((enum flight_kind)k), r->totals[k].n);
    json_write_object_end(j);
}

/* ---- what would have been faster ---- */

static void write_saving(struct json_writer *j, const char *what, double ns, const char *how) {
    if (ns < 50000) return;
    json_write_object(j);
    write_string(j, "what", what);
    write_ms(j, "saved_ms", ns);
    write_string(j, "how", how);
    json_write_object_end(j);
}

static double per(const struct flight_total *t) {
    return t->n > 0 ? (double)t->sum_c / (double)t->n : 0;
}

/* Of the rows that a prefill computes, those on whole pages could have come from the cache. */
static double cache_saving(const struct explain_record *r) {
    const struct flight_timings *t = &r->timings;
    const uint64_t computed = t->prompt_tokens - t->prefix_hit_tokens;
    if (t->prompt_tokens == 0 || computed > t->prompt_tokens) return 0;
    const uint64_t whole = (t->prompt_tokens - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    const uint64_t least = t->prompt_tokens - whole;
    if (computed <= least) return 0;
    return (double)t->prefill_ns * (double)(computed - least) / (double)computed;
}

/* What verifying took beyond plain decodes, for the share of drafts that were wrong. */
static double draft_waste(const struct explain_record *r) {
    const struct flight_total *verify = &r->totals[FLIGHT_STEP_VERIFY];
    const struct flight_total *drafts = &r->totals[FLIGHT_DRAFTED];
    if (verify->n == 0 || drafts->sum_b == 0 || r->totals[FLIGHT_STEP_DECODE].n == 0) return 0;
    const double beyond =
        (double)verify->sum_c - (double)verify->n * per(&r->totals[FLIGHT_STEP_DECODE]);
    const double wrong = (double)(drafts->sum_b - drafts->sum_c) / (double)drafts->sum_b;
    return beyond > 0 ? beyond * wrong : 0;
}

/* Decodes with other requests' rows beside them, against the quickest of all. Verifying is left
 * out: its steps differ by their own rows. */
static double company(const struct explain_record *r) {
    const struct flight_total *t = &r->totals[FLIGHT_STEP_DECODE];
    if (t->sum_b <= t->n * r->n_choices || r->least_decode_ns == 0) return 0;
    const double least = (double)t->n * (double)r->least_decode_ns;
    return (double)t->sum_c > least ? (double)t->sum_c - least : 0;
}

static void write_faster(struct json_writer *j, const struct explain_record *r) {
    const struct flight_timings *t = &r->timings;
    const struct flight_total *decode = &r->totals[FLIGHT_STEP_DECODE];
    const struct flight_total *verify = &r->totals[FLIGHT_STEP_VERIFY];
    const double paused = (double)r->totals[FLIGHT_RESUMED].sum_c;
    const double between =
        (double)t->decode_ns - (double)decode->sum_c - (double)verify->sum_c - paused;
    json_write_key(j, "faster");
    json_write_array(j);
    write_saving(j, "queue", (double)t->queue_ns, "a slot and pages free on arrival");
    write_saving(j, "prefix_cache", cache_saving(r),
                 "the prompt's whole pages in the cache: a prompt that begins like earlier ones");
    write_saving(j, "drafts", draft_waste(r), "no wrong drafts");
    write_saving(j, "company", company(r),
                 "every decode as quick as the quickest: no other request computed beside it");
    write_saving(j, "client", paused, "a client that reads as fast as tokens come");
    write_saving(j, "between_steps", between,
                 "no time between steps: sockets, prompts of others, hand-out of tokens");
    json_write_array_end(j);
    json_write_key(j, "saved_by");
    json_write_array(j);
    const uint64_t computed = t->prompt_tokens - t->prefix_hit_tokens;
    if (t->prefix_hit_tokens > 0 && computed > 0 && computed <= t->prompt_tokens)
        write_saving(j, "prefix_cache",
                     (double)t->prefill_ns / (double)computed * (double)t->prefix_hit_tokens,
                     "pages of the prompt came from the cache");
    const double drafted = (double)r->totals[FLIGHT_DRAFTED].sum_c * per(decode);
    write_saving(j, "drafts", drafted + (double)verify->n * per(decode) - (double)verify->sum_c,
                 "right drafts took fewer steps");
    json_write_array_end(j);
}

void explain_write(struct json_writer *j, const struct explain_record *r) {
    static const char *const outcomes[] = {
        [METRIC_FINISHED] = "finished", [METRIC_ABORTED] = "aborted", [METRIC_FAILED] = "failed"};
    static const char *const reasons[] = {[FINISH_STOP] = "stop",
                                          [FINISH_LENGTH] = "length",
                                          [FINISH_ABORT] = "abort",
                                          [FINISH_ERROR] = "error"};
    json_write_object(j);
    write_string(j, "state", r->running ? "running" : outcomes[r->outcome]);
    write_uint(j, "epoch", r->epoch);
    write_string(j, "policy", policy_kind_name(r->policy));
    write_string(j, "system_fingerprint", r->fingerprint);
    json_write_key(j, "seed");
    json_write_int(j, (int64_t)r->seed);
    write_task(j, r);
    write_decisions(j, r);
    json_write_key(j, "sampling");
    json_write_object(j);
    write_float(j, "temperature", r->temperature);
    write_float(j, "top_p", r->top_p);
    write_uint(j, "top_k", r->top_k);
    json_write_object_end(j);
    json_write_key(j, "finish_reasons");
    json_write_array(j);
    for (uint32_t c = 0; c < r->n_choices && c < REQUEST_MAX_CHOICES; c++) {
        if (r->ended[c])
            json_write_string(j, reasons[r->reasons[c]]);
        else
            json_write_null(j);
    }
    json_write_array_end(j);
    write_counts(j, r);
    write_costs(j, r);
    write_steps(j, r);
    write_faster(j, r);
    json_write_object_end(j);
}
