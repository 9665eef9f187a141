#include "core/config.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"

enum knob_type {
    KNOB_FLAG,   /* bool, no value */
    KNOB_SWITCH, /* bool, on|off */
    KNOB_U32,
    KNOB_U64,
    KNOB_F32,
    KNOB_TEXT,
    KNOB_CHOICE, /* unsigned or an enum: the index in `choices` */
    KNOB_SET,    /* uint32_t: of `choices` a|b|c the first is UINT32_MAX, the second 0, and the
                  * others are bits: any of them, with commas between */
    KNOB_LIST,   /* struct config_list: 1,4,8-11 */
    KNOB_LATER,  /* known, not in this build */
};

struct knob {
    const char *name;
    const char *value; /* what the help calls the value; choices stand for themselves */
    enum knob_type type;
    bool required;
    uint32_t commands;
    size_t offset;
    const char *initial;   /* the default, as it would be typed; NULL: zero, off, none */
    const char *zero_word; /* a word that means 0 */
    double min, max;
    const char *choices; /* a|b|c */
    const char *later;   /* values that are known but not in this build, a|b; "*": any other */
    const char *help;
};

#define BIT(command) (1u << CONFIG_##command)
#define ENGINE                                                                                     \
    (BIT(SERVE) | BIT(RUN) | BIT(BENCH) | BIT(LOGITS) | BIT(PERPLEXITY) | BIT(TUNE) |              \
     BIT(CALIBRATE))
#define REPORT                                                                                     \
    (BIT(BENCH) | BIT(PERPLEXITY) | BIT(INSPECT) | BIT(DOCTOR) | BIT(TUNE) | BIT(CALIBRATE) |      \
     TASK | BIT(EXPLAIN) | BIT(POLICY) | BIT(DIAGNOSE))
#define TASK  (BIT(TRAIN) | BIT(CLASSIFY) | BIT(DRIFT) | BIT(LINT))
#define SIZED (BIT(SERVE) | BIT(INSPECT))

/* One macro per type of knob; `who` is the set of commands, `zero` a word that means 0 or NULL. */
#define ROW(type_, name_, who, field, help_)                                                       \
    .name = name_, .type = type_, .commands = who, .offset = offsetof(struct config, field),       \
    .help = help_
#define FLAG(name, who, field, help)                                                               \
    { ROW(KNOB_FLAG, name, who, field, help) }
#define SWITCH(name, who, field, initial_, help)                                                   \
    { ROW(KNOB_SWITCH, name, who, field, help), .initial = initial_ }
#define TEXT(name, value_, who, field, initial_, help)                                             \
    { ROW(KNOB_TEXT, name, who, field, help), .value = value_, .initial = initial_ }
#define MUST(name, value_, who, field, help)                                                       \
    { ROW(KNOB_TEXT, name, who, field, help), .value = value_, .required = true }
#define NUMBER(name, who, field, initial_, zero, least, most, help)                                \
    {                                                                                              \
        ROW(KNOB_U32, name, who, field, help), .value = "N", .initial = initial_,                  \
                                               .zero_word = zero, .min = least, .max = most        \
    }
#define SEED(name, who, field, help)                                                               \
    { ROW(KNOB_U64, name, who, field, help), .value = "N" }
#define FRACTION(name, who, field, initial_, least, most, help)                                    \
    {                                                                                              \
        ROW(KNOB_F32, name, who, field, help), .value = "X", .initial = initial_, .min = least,    \
                                               .max = most                                         \
    }
#define LIST(name, who, field, initial_, least, most, help)                                        \
    {                                                                                              \
        ROW(KNOB_LIST, name, who, field, help), .value = "LIST", .initial = initial_,              \
                                                .min = least, .max = most                          \
    }
#define MUST_LIST(name, who, field, least, most, help)                                             \
    {                                                                                              \
        ROW(KNOB_LIST, name, who, field, help), .value = "LIST", .required = true, .min = least,   \
                                                .max = most                                        \
    }
#define CHOICE(name, who, field, initial_, choices_, later_, help)                                 \
    {                                                                                              \
        ROW(KNOB_CHOICE, name, who, field, help), .initial = initial_, .choices = choices_,        \
                                                  .later = later_                                  \
    }
#define SET(name, value_, who, field, initial_, choices_, help)                                    \
    {                                                                                              \
        ROW(KNOB_SET, name, who, field, help), .value = value_, .initial = initial_,               \
                                               .choices = choices_                                 \
    }
#define LATER(name_, who, help_)                                                                   \
    { .name = name_, .type = KNOB_LATER, .commands = who, .help = help_ }

#define X(code, word) "|" word
#define DRAFT_WORDS   "auto|off" METRIC_DRAFT_LIST(X)

static const struct knob knobs[] = {
    /* where to listen */
    TEXT("--host", "ADDRESS", BIT(SERVE), host, "127.0.0.1", "address to listen on"),
    NUMBER("--port", BIT(SERVE), port, "8080", NULL, 0, 65535, "TCP port; 0 takes any free one"),
    TEXT("--uds", "PATH", BIT(SERVE), uds, NULL, "listen on this Unix socket as well"),
    TEXT("--encoder", "DIR", BIT(SERVE), encoder, NULL,
         "folder of a sentence encoder for /v1/embeddings, named like the folder"),
    TEXT("--encoder", "DIR", BIT(LINT), encoder, NULL,
         "folder of a sentence encoder; without it the contradiction score is left out"),
    CHOICE("--io", BIT(SERVE), io, "auto", "auto|uring|epoll", NULL,
           "auto is io_uring where it is allowed"),
    /* how much to take in */
    NUMBER("--max-batch", SIZED, max_batch, "32", NULL, 1, 1024, "sequences that may run at once"),
    NUMBER("--max-queue", BIT(SERVE), max_queue, "256", NULL, 1, 65536,
           "requests that may wait; more are answered 503"),
    NUMBER("--kv-mib", SIZED, kv_mib, "auto", "auto", 1, 16777216, "memory for KV pages in MiB"),
    CHOICE("--policy", BIT(SERVE), policy, "exact", "exact|adaptive", NULL,
           "exact: nothing changes an answer unasked; adaptive: each prompt's task presets the "
           "sampling that its request leaves open"),
    TEXT("--config", "F.json", BIT(SERVE), policy_file, NULL,
         "presets, word lists and what the task model may learn from"),
    FLAG("--auto-promote", BIT(SERVE), auto_promote,
         "publish a task model that was trained on feedback when it is the better one"),
    FLAG("--promote", BIT(POLICY), promote, "publish the candidate that waits"),
    FLAG("--revert", BIT(POLICY), revert, "publish the task model that was replaced last"),
    /* the prompt and the answer */
    MUST("-p", "TEXT", BIT(RUN), prompt, "the prompt"),
    FLAG("--raw", BIT(RUN), raw, "no chat template: continue the prompt as it stands"),
    NUMBER("-n", BIT(RUN), n_predict, "1024", NULL, 0, 16777216, "most tokens to generate"),
    FRACTION("--temp", BIT(RUN), temperature, "1", 0, 2,
             "temperature; 0 always takes the likeliest token"),
    FRACTION("--top-p", BIT(RUN), top_p, "1", 0, 1,
             "draw from the likeliest tokens of this mass; 1 is all"),
    NUMBER("--top-k", BIT(RUN), top_k, "0", NULL, 0, UINT32_MAX,
           "draw from this many likeliest tokens; 0 is all"),
    SEED("--seed", BIT(RUN), seed, "the same seed gives the same answer; drawn when not given"),
    CHOICE("--task-type", BIT(RUN), task_type, "auto",
           "auto|deterministic|open|reasoning|code|classify|qa", NULL,
           "kind of task: presets --temp and --top-p where they are not given; auto is none"),
    FLAG("--stats", BIT(RUN) | BIT(BENCH), stats,
         "times and token counts on standard error at the end (bench: where a step's time goes)"),
    /* measuring */
    NUMBER("--prompt", BIT(BENCH), bench_prompt, "512", NULL, 0, 1048576,
           "prefill test: prompt tokens; 0 leaves it out"),
    NUMBER("--gen", BIT(BENCH), bench_gen, "128", NULL, 0, 1048576,
           "decode test: tokens; 0 leaves it out"),
    LIST("--batch", BIT(BENCH), bench_batch, "1,4,16", 1, 1024,
         "decode test: sequences side by side"),
    NUMBER("--depth", BIT(BENCH), bench_depth, "0", NULL, 0, 1048576, "tokens already in context"),
    NUMBER("--gate", BIT(BENCH), bench_gate, "off", "off", 1, 65536,
           "decode test: pages chosen besides sinks and the recent window; off is full attention"),
    NUMBER("--reps", BIT(BENCH), bench_reps, "5", NULL, 1, 10000, "repetitions of each test"),
    TEXT("--kernel", "FAMILY", BIT(BENCH), bench_kernel, NULL,
         "the model's GPU kernels of a family (or all), each alone, for a profiler"),
    TEXT("--shape", "n=,k=,b=", BIT(BENCH), bench_shape, NULL,
         "with --kernel: only those of that shape; b is the rows, else --batch"),
    SWITCH("--graphs", ENGINE, graphs, "on",
           "off: GPU kernels are launched one by one, each a range for profilers"),
    /* learning the traffic */
    TEXT("--answers", "DIR", BIT(TUNE), answers_path, NULL,
         "logged answers: *.jsonl of {\"prompt\" or \"messages\", \"answer\", \"topic\"}"),
    TEXT("--prompts", "F", BIT(TUNE), prompts_path, NULL,
         "answer these prompts now: lines of topic, tab, prompt"),
    TEXT("--labels", "F.csv", BIT(TUNE), labels_path, NULL,
         "learn to classify instead: rows of text,category; the heads are found by their labels"),
    LIST("--label-layers", BIT(TUNE), label_layers, NULL, 1, 256,
         "with --labels: layers with a head, counted from 1; else 1, 2 and every third"),
    TEXT("--traffic", "NAME", BIT(TUNE), traffic, NULL,
         "the kind of traffic; names the sections (not with --labels)"),
    MUST("-o", "F.lacs", BIT(TUNE), out_path,
         "the side-car; its sections for other traffic are kept"),
    NUMBER("-n", BIT(TUNE), n_predict, "160", NULL, 1, 4096, "most tokens of a generated answer"),
    NUMBER("--samples", BIT(TUNE), tune_samples, "1", NULL, 1, 64,
           "answers per prompt: the first greedy, the others drawn at temperature 0.7"),
    NUMBER("--batch", BIT(TUNE), tune_batch, "16", NULL, 1, 256, "answers generated side by side"),
    NUMBER("--shortlist", BIT(TUNE), tune_shortlist, "4096", NULL, 16, 65536,
           "ids in the shortlist"),
    NUMBER("--ngram-kib", BIT(TUNE), tune_ngram_kib, "4096", NULL, 1, 1048576,
           "most memory of the n-gram table"),
    SWITCH("--draft-block", BIT(TUNE), tune_draft_block, "on",
           "train a draft block on the last layer's state"),
    NUMBER("--exit-layer", BIT(TUNE), tune_exit_layer, "none", "none", 1, 255,
           "train an exit block behind this layer as well, counted from 1"),
    NUMBER("--epochs", BIT(TUNE), tune_epochs, "6", NULL, 1, 1000,
           "how often the blocks see every answer"),
    /* what lossy mechanisms cost */
    FLAG("--gate", BIT(CALIBRATE), calibrate_gate,
         "attention to chosen pages: the budget that keeps the distribution, and where it pays"),
    MUST("--file", "F", BIT(CALIBRATE), file_path,
         "--gate: documents, *.jsonl of {\"document\" or \"text\"}, else one text; --monitor: "
         "prompts, *.jsonl of {\"prompt\" or \"text\"}; --regulate: *.jsonl of {\"prompt\", "
         "\"answer\"} or {\"text\"}"),
    TEXT("-o", "F.lacs", BIT(CALIBRATE), out_path, NULL,
         "the side-car; its other sections are kept. Without it only the report"),
    LIST("--contexts", BIT(CALIBRATE), gate_contexts, "1024,2048,4096,8192", 64, 1048576,
         "tokens in context to measure at, ascending"),
    LIST("--budgets", BIT(CALIBRATE), gate_budgets, "10,20,30,40,60,80,120,160", 1, 65536,
         "pages to choose, ascending"),
    NUMBER("--documents", BIT(CALIBRATE), gate_documents, "24", NULL, 1, 4096,
           "most documents per context"),
    NUMBER("--tokens", BIT(CALIBRATE), gate_tokens, "64", NULL, 1, 512,
           "positions scored per document and context"),
    FRACTION("--kl", BIT(CALIBRATE), gate_kl, "0.01", 0.000001, 10,
             "most nats from full attention that the safe budget may be"),
    FLAG("--monitor", BIT(CALIBRATE), calibrate_monitor,
         "the rollback monitor: what drift looks like, on answers to the prompts of --file"),
    FLAG("--regulate", BIT(CALIBRATE), calibrate_regulate,
         "a head that says temperature and top_p of each token, from preferred texts in --file"),
    NUMBER("-n", BIT(CALIBRATE), n_predict, "112", NULL, 48, 512,
           "--monitor: most tokens of an answer; --regulate: most scored of a text"),
    NUMBER("--batch", BIT(CALIBRATE), tune_batch, "16", NULL, 1, 256,
           "--monitor: answers generated side by side"),
    /* tasks */
    MUST("-o", "F.lact", BIT(TRAIN), out_path, "the task model to write"),
    TEXT("--adapt", "F.lact", BIT(TRAIN), adapt_path, NULL,
         "correct this model by the rows given (200 will do) instead of training anew"),
    TEXT("--replay", "F.jsonl", BIT(TRAIN), replay_path, NULL,
         "with --adapt: rows of before, so that they are not forgotten"),
    TEXT("--check", "F.jsonl", BIT(TRAIN), check_path, NULL,
         "report the scores on these rows; with --adapt those of the old model too"),
    TEXT("--head", "MODEL", BIT(TRAIN), head_model, NULL,
         "train a second look on this model's hidden states as well (minutes)"),
    NUMBER("--head-layer", BIT(TRAIN), head_layer, "auto", "auto", 1, 65536,
           "states after this many layers; auto is a fifth of the model's"),
    NUMBER("--epochs", BIT(TRAIN), train_epochs, "24", NULL, 1, 1000, "passes over the rows"),
    FRACTION("--cost", BIT(TRAIN), train_cost, NULL, 0.001, 1000,
             "weight of the errors against the size of the weights; 4, with --adapt 0.3"),
    SEED("--seed", BIT(TRAIN), seed, "order of the rows and folds; 1 when not given"),
    FRACTION("--abstain-below", BIT(TRAIN), abstain_below, "0.5", 0, 1,
             "with less probability than this the model abstains"),
    FLAG("--no-validation", BIT(TRAIN), no_validation,
         "leave out the held-out folds and sources; probabilities are then not calibrated"),
    TEXT("--task-model", "F.lact", BIT(SERVE) | BIT(CLASSIFY) | BIT(DRIFT), task_model, NULL,
         "another task model than the built-in one"),
    TEXT("--task-words", "F.json", BIT(TRAIN) | BIT(CLASSIFY) | BIT(DRIFT), task_words, NULL,
         "other word lists: {\"NAME\": [\"phrase\", ...], ...}"),
    NUMBER("--reference", BIT(DRIFT), drift_reference, "300", NULL, 20, 65536,
           "rows at the beginning that the others are compared with"),
    NUMBER("--window", BIT(DRIFT), drift_window, "100", NULL, 20, 65536, "newest rows compared"),
    NUMBER("--step", BIT(DRIFT), drift_step, "10", NULL, 1, 65536, "rows between comparisons"),
    FRACTION("--false-alarms", BIT(DRIFT), false_alarms, "0.01", 0.000001, 0.5,
             "allowed chance of an alarm in 1,000 rows without drift"),
    /* a server's health */
    TEXT("--prompts", "F", BIT(DIAGNOSE), prompts_path, NULL,
         "*.jsonl of strings or {\"prompt\" or \"text\"}; else a set of our own, in English and "
         "Chinese"),
    NUMBER("--requests", BIT(DIAGNOSE), diagnose_requests, "100", NULL, 1, 100000,
           "most prompts, each a request per setting"),
    NUMBER("--clients", BIT(DIAGNOSE), diagnose_clients, "1", NULL, 1, 256, "requests at a time"),
    NUMBER("-n", BIT(DIAGNOSE), n_predict, "128", NULL, 1, 16777216,
           "most tokens of an answer, unless a setting says"),
    TEXT("--a", "JSON", BIT(DIAGNOSE), settings_a, "{}",
         "request fields, as {\"temperature\": 0, \"laconic\": {...}}"),
    TEXT("--b", "JSON", BIT(DIAGNOSE), settings_b, NULL,
         "others to compare with; adds a control: the first once more, with other seeds"),
    SEED("--seed", BIT(DIAGNOSE), seed,
         "of the first request, the next one's is one more; 1 when not given"),
    TEXT("--plots", "DIR", BIT(DIAGNOSE), plots_path, NULL,
         "write latency.png, traces.png and compare.png there"),
    FLAG("--no-traces", BIT(DIAGNOSE), no_traces,
         "leave out the second request for each prompt that traces entropy and similarity"),
    /* files and tokens */
    FLAG("--special", BIT(TOKENIZE), special,
         "recognise special tokens in the text (else they are plain text)"),
    FLAG("--bos", BIT(TOKENIZE), bos, "add the tokens that the model wants around a text"),
    FLAG("--skip-special", BIT(DETOKENIZE), skip_special,
         "leave out control tokens (else they are shown as their text)"),
    FLAG(
        "--json-lines", BIT(TOKENIZE) | BIT(DETOKENIZE) | BIT(CLASSIFY), json_lines,
        "many at once: each line of the input is a JSON value, each line of the output its result"),
    MUST("--tokens", "F.json", BIT(LOGITS), tokens_path, "input: [{\"name\", \"tokens\"}, ...]"),
    MUST("--out", "F.json", BIT(LOGITS), out_path, "output file"),
    MUST("--file", "F", BIT(PERPLEXITY), file_path, "the text"),
    FLAG("--exact", BIT(LOGITS) | BIT(PERPLEXITY), exact,
         "FP32 activations and KV, whatever --activations and --kv say"),
    /* the engine */
    NUMBER("--threads", ENGINE | BIT(BAKE), threads, "auto", "auto", 1, 256,
           "compute threads; auto is one per core"),
    NUMBER("--ctx",
           (ENGINE | BIT(INSPECT)) & ~(BIT(PERPLEXITY) | BIT(SERVE) | BIT(TUNE) | BIT(CALIBRATE)),
           n_ctx, "auto", "auto", 1, 16777216,
           "longest context in tokens; auto is the model's own"),
    NUMBER("--ctx", BIT(SERVE), n_ctx, "auto", "auto", 2, 16777216,
           "longest context in tokens; auto is the model's own"),
    NUMBER("--ctx", BIT(TUNE), n_ctx, "1024", NULL, 16, 16777216,
           "longest prompt and answer in tokens; longer ones are left out"),
    NUMBER("--ctx", BIT(PERPLEXITY), n_ctx, "512", NULL, 2, 16777216,
           "tokens in each scored window"),
    CHOICE("--activations", ENGINE | BIT(INSPECT) | BIT(BAKE), activations, "int16", "int16|int8",
           "bf16", "numerics of the products: two int8 passes, or one"),
    CHOICE("--kv", ENGINE | BIT(INSPECT), kv, "f16", "f16|q8", NULL, "format of the KV pages"),
    CHOICE("--backend", ENGINE, backend, "auto", "auto|cpu|cuda", NULL,
           "where steps are computed; auto is a CUDA device that takes the model, else the CPU"),
    CHOICE("--isa", ENGINE, isa_choice, "auto", "auto|scalar|avx2|avxvnni|avx512|amx|neon", NULL,
           "instruction set; auto is the best this machine runs"),
    LIST("--pin", ENGINE, pin, NULL, 0, 65535, "CPUs of the compute threads, as 0,2,4-7"),
    CHOICE("--numa", ENGINE, only_choice, "auto", "auto", "*", "memory node"),
    SWITCH("--gates", BIT(SERVE) | BIT(RUN), gates, "on",
           "keep what choosing KV pages needs (6 % more memory), so that requests can ask for "
           "laconic.gate"),
    TEXT("--gate-words", "F", BIT(SERVE) | BIT(RUN), gate_words, NULL,
         "words, one a line, that raise a gate's budget when they stand in the prompt"),
    SWITCH("--huge-pages", ENGINE, huge_pages, "on", "ask for transparent huge pages"),
    SWITCH("--mlock", ENGINE, mlock, "off", "lock memory, so that it is never paged out"),
    SET("--drafts", "auto|off|SOURCE,...", ENGINE | BIT(INSPECT), drafts, "auto", DRAFT_WORDS,
        "tokens proposed and verified: by earlier text (suffix, ngram), by learnt blocks of the "
        "side-car (draft-block, exit-block); they change speed, never an answer"),
    TEXT("--side-car", "F", BIT(SERVE) | BIT(RUN) | BIT(INSPECT), side_car, NULL,
         "what was learnt for this model (laconic tune); else NAME.lacs beside it, else "
         "the default model's own; off is none"),
    CHOICE("--side-car", ENGINE & ~(BIT(SERVE) | BIT(RUN)), only_choice, "off", "off", "*",
           "what was learnt beside the model"),
    SWITCH("--jit", ENGINE, jit, "on", "compile GPU kernels that neither pack nor cache has"),
    TEXT("--pack", "F.lacp", ENGINE, pack, NULL, "GPU kernels compiled ahead by bake"),
    MUST_LIST("--arch", BIT(BAKE), bake_arch, 75, 999,
              "compute capabilities to compile for, as 80,90,120"),
    LIST("--sms", BIT(BAKE), bake_sms, NULL, 1, 1024,
         "SM counts to compile each of them for; else that of the usual chip"),
    MUST("-o", "F.lacp", BIT(BAKE), out_path, "the pack to write"),
    TEXT("--jit-dump", "DIR", ENGINE | BIT(BAKE), jit_dump, NULL,
         "write every kernel's text, PTX and cubin there"),
    TEXT("--cache-dir", "DIR", ENGINE | BIT(BAKE), cache_dir, NULL,
         "folder of kernels compiled before; off keeps none; else ~/.cache/laconic/kernels"),
    TEXT("--nvrtc", "PATH", ENGINE | BIT(BAKE), nvrtc, NULL,
         "NVIDIA's run-time compiler, the library or its folder; else as the loader finds it"),
    /* serving, to come */
    LATER("--tls-cert", BIT(SERVE), "certificate chain"),
    LATER("--tls-key", BIT(SERVE), "private key"),
    LATER("--api-key-file", BIT(SERVE), "API keys"),
    LATER("--journal", BIT(SERVE), "journal folder"),
    /* reports */
    FLAG("--json", REPORT, json, "report as JSON"),
};

#undef X
enum { N_KNOBS = sizeof knobs / sizeof knobs[0] };
_Static_assert(sizeof knobs / sizeof knobs[0] <= CONFIG_MAX_KNOBS,
               "struct config.given is too small");
_Static_assert(sizeof(enum config_io) == sizeof(unsigned), "choices are stored as unsigned");

struct command {
    const char *name, *words, *help;
    uint32_t least, most;
};

static const struct command commands[CONFIG_COMMAND_COUNT] = {
#define X(code, name_, words_, least_, most_, help_)                                               \
    [CONFIG_##                                                                                     \
        code] = {.name = name_, .words = words_, .help = help_, .least = least_, .most = most_},
    CONFIG_COMMAND_LIST(X)
#undef X
};

static const char later_commands[] = "bundle|replay|trace|plan|canary";

/* The index of the word in "a|b|c", or -1. */
static int find_word(const char *words, const char *word, size_t n) {
    if (words == NULL) return -1;
    for (int i = 0;; i++) {
        const size_t len = strcspn(words, "|");
        if (len == n && memcmp(words, word, n) == 0) return i;
        if (words[len] == '\0') return -1;
        words += len + 1;
    }
}

bool config_command_comes_later(const char *name) {
    return find_word(later_commands, name, strlen(name)) >= 0;
}

static int find_command(const char *name) {
    for (int i = 0; i < CONFIG_COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) return i;
    }
    return -1;
}

/* Digits only; false on anything else and on overflow. */
static bool parse_u64(const char *s, size_t n, uint64_t *out) {
    uint64_t v = 0;
    if (n == 0) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v)) return false;
        if (__builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

/* strtod would take spaces, hexadecimal, infinities and NaN as well. */
static bool parse_f64(const char *s, double *out) {
    if (s[0] == '\0' || s[strspn(s, "+-.0123456789eE")] != '\0') return false;
    char *end;
    const double v = strtod(s, &end);
    if (*end != '\0' || end == s || !isfinite(v)) return false;
    *out = v;
    return true;
}

static enum status bad_number(const struct knob *k, const char *text, struct error *e) {
    const char *kind = k->type == KNOB_F32 ? "a number" : "a whole number";
    if (k->type == KNOB_U64) {
        return error_set(e, STATUS_INVALID, k->name, "%s takes %s from 0 to 2^64 - 1, not '%s'",
                         k->name, kind, text);
    }
    return error_set(e, STATUS_INVALID, k->name, "%s takes %s from %.10g to %.10g%s%s, not '%s'",
                     k->name, kind, k->min, k->max, k->zero_word != NULL ? ", or " : "",
                     k->zero_word != NULL ? k->zero_word : "", text);
}

static bool in_range(const struct knob *k, double v) {
    return v >= k->min && v <= k->max;
}

/* 1,4,8-11 */
static bool parse_list(const struct knob *k, const char *s, struct config_list *list) {
    list->n = 0;
    for (;;) {
        const size_t n = strcspn(s, ",");
        size_t first_n = 0;
        while (first_n < n && s[first_n] != '-') first_n++;
        uint64_t first, last;
        if (!parse_u64(s, first_n, &first)) return false;
        last = first;
        if (first_n < n && !parse_u64(s + first_n + 1, n - first_n - 1, &last)) return false;
        if (last < first || !in_range(k, (double)first) || !in_range(k, (double)last)) return false;
        if (last - first >= CONFIG_MAX_LIST - list->n) return false;
        for (uint64_t v = first; v <= last; v++) list->values[list->n++] = (int)v;
        if (s[n] == '\0') return true;
        s += n + 1;
    }
}

static enum status set_choice(const struct knob *k, const char *text, void *field,
                              struct error *e) {
    const size_t n = strlen(text);
    const int index = find_word(k->choices, text, n);
    if (index >= 0) {
        const unsigned value = (unsigned)index;
        memcpy(field, &value, sizeof value);
        return STATUS_OK;
    }
    const bool any_later = k->later != NULL && strcmp(k->later, "*") == 0;
    if (any_later || find_word(k->later, text, n) >= 0) {
        return error_set(e, STATUS_UNSUPPORTED, k->name, "%s %s is not in this build (it has: %s)",
                         k->name, text, k->choices);
    }
    return error_set(e, STATUS_INVALID, k->name, "%s takes one of %s, not '%s'", k->name,
                     k->choices, text);
}

static enum status set_set(const struct knob *k, const char *text, void *field, struct error *e) {
    uint32_t bits = 0;
    for (const char *word = text;; word++) {
        const size_t n = strcspn(word, ",");
        const int index = find_word(k->choices, word, n);
        /* The first two stand alone. */
        if (index < 0 || (index < 2 && (word != text || word[n] != '\0')))
            return error_set(e, STATUS_INVALID, k->name,
                             "%s takes the first or second of %s, or some of the others with "
                             "commas between, not '%s'",
                             k->name, k->choices, text);
        bits |= index == 0 ? UINT32_MAX : index == 1 ? 0 : UINT32_C(1) << (index - 2);
        word += n;
        if (*word == '\0') break;
    }
    memcpy(field, &bits, sizeof bits);
    return STATUS_OK;
}

static enum status set_knob(struct config *c, const struct knob *k, const char *text,
                            struct error *e) {
    void *field = (char *)c + k->offset;
    const size_t n = strlen(text);
    uint64_t u = 0;
    double f = 0;
    switch (k->type) {
    case KNOB_FLAG:
        *(bool *)field = true;
        return STATUS_OK;
    case KNOB_SWITCH: {
        const int index = find_word("off|on", text, n);
        if (index < 0) {
            return error_set(e, STATUS_INVALID, k->name, "%s takes on or off, not '%s'", k->name,
                             text);
        }
        *(bool *)field = index == 1;
        return STATUS_OK;
    }
    case KNOB_U32:
        if (k->zero_word == NULL || strcmp(text, k->zero_word) != 0) {
            if (!parse_u64(text, n, &u) || !in_range(k, (double)u)) return bad_number(k, text, e);
        }
        *(uint32_t *)field = (uint32_t)u;
        return STATUS_OK;
    case KNOB_U64:
        if (!parse_u64(text, n, &u)) return bad_number(k, text, e);
        *(uint64_t *)field = u;
        return STATUS_OK;
    case KNOB_F32:
        if (!parse_f64(text, &f) || !in_range(k, f)) return bad_number(k, text, e);
        *(float *)field = (float)f;
        return STATUS_OK;
    case KNOB_TEXT:
        *(const char **)field = text;
        return STATUS_OK;
    case KNOB_CHOICE:
        return set_choice(k, text, field, e);
    case KNOB_SET:
        return set_set(k, text, field, e);
    case KNOB_LIST:
        if (!parse_list(k, text, field)) {
            return error_set(e, STATUS_INVALID, k->name,
                             "%s takes a list such as 1,4,8-11 of numbers from %.10g to %.10g (at "
                             "most %d), not '%s'",
                             k->name, k->min, k->max, CONFIG_MAX_LIST, text);
        }
        return STATUS_OK;
    case KNOB_LATER:
        break;
    }
    return error_set(e, STATUS_UNSUPPORTED, k->name, "%s is not in this build", k->name);
}

/* The knob of that name (n bytes) which the command takes; if none does, the one of another. */
static const struct knob *find_knob(uint32_t command_bit, const char *name, size_t n) {
    const struct knob *other = NULL;
    for (size_t i = 0; i < N_KNOBS; i++) {
        if (strlen(knobs[i].name) != n || memcmp(knobs[i].name, name, n) != 0) continue;
        if (knobs[i].commands & command_bit) return &knobs[i];
        other = &knobs[i];
    }
    return other;
}

static void mark_given(struct config *c, const struct knob *k) {
    const size_t i = (size_t)(k - knobs);
    c->given[i / 64] |= (uint64_t)1 << (i % 64);
}

static bool is_given(const struct config *c, const struct knob *k) {
    const size_t i = (size_t)(k - knobs);
    return (c->given[i / 64] >> (i % 64)) & 1;
}

static enum status parse_option(struct config *c, const struct command *command, int argc,
                                char **argv, int *i, struct error *e) {
    const char *word = argv[*i];
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    const size_t name_n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const uint32_t bit = 1u << c->command;
    const struct knob *k = find_knob(bit, word, name_n);
    if (k == NULL) {
        char name[sizeof e->field];
        snprintf(name, sizeof name, "%.*s", (int)(name_n < 60 ? name_n : 60), word);
        return error_set(e, STATUS_INVALID, name, "there is no option %s (laconic %s --help)", name,
                         command->name);
    }
    if ((k->commands & bit) == 0) {
        return error_set(e, STATUS_INVALID, k->name, "%s does not take %s (laconic %s --help)",
                         command->name, k->name, command->name);
    }
    if (k->type == KNOB_LATER) return set_knob(c, k, "", e);
    const char *value = "";
    if (k->type == KNOB_FLAG) {
        if (equals != NULL) {
            return error_set(e, STATUS_INVALID, k->name, "%s takes no value", k->name);
        }
    } else if (equals != NULL) {
        value = equals + 1;
    } else if (*i + 1 < argc) {
        value = argv[++*i];
    } else {
        return error_set(e, STATUS_INVALID, k->name, "%s needs a value", k->name);
    }
    const enum status s = set_knob(c, k, value, e);
    if (s == STATUS_OK) mark_given(c, k);
    return s;
}

static enum status parse_words(struct config *c, int argc, char **argv, struct error *e) {
    const struct command *command = &commands[c->command];
    bool options = true;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (options && strcmp(word, "--") == 0) {
            options = false;
        } else if (options && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            c->help = true;
        } else if (options && word[0] == '-' && word[1] != '\0') {
            const enum status s = parse_option(c, command, argc, argv, &i, e);
            if (s != STATUS_OK) return s;
        } else if (c->n_positional == command->most) {
            return error_set(e, STATUS_INVALID, NULL, "%s does not know what to do with '%.100s'",
                             command->name, word);
        } else {
            CHECK(c->n_positional < CONFIG_MAX_POSITIONAL);
            c->positional[c->n_positional++] = word;
        }
    }
    return STATUS_OK;
}

static enum status check_complete(const struct config *c, struct error *e) {
    const struct command *command = &commands[c->command];
    if (c->n_positional < command->least) {
        return error_set(e, STATUS_INVALID, NULL,
                         "usage: laconic %s %s [options] (--help tells more)", command->name,
                         command->words);
    }
    for (size_t i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &knobs[i];
        if (k->required && (k->commands & (1u << c->command)) && !is_given(c, k)) {
            return error_set(e, STATUS_INVALID, k->name, "%s needs %s %s", command->name, k->name,
                             k->value);
        }
    }
    return STATUS_OK;
}

static enum status parse(struct config *c, int argc, char **argv, struct error *e) {
    for (size_t i = 0; i < N_KNOBS; i++) {
        const struct knob *k = &knobs[i];
        if (k->initial == NULL || (k->commands & (1u << c->command)) == 0) continue;
        const enum status s = set_knob(c, k, k->initial, e);
        CHECK(s == STATUS_OK);
    }
    enum status s = parse_words(c, argc, argv, e);
    if (s == STATUS_OK && !c->help) s = check_complete(c, e);
    if (s != STATUS_OK) return s;

    c->model = c->positional[0];
    c->isa_auto = c->isa_choice == 0;
    c->isa = c->isa_auto ? CPU_ISA_SCALAR : (enum cpu_isa)(c->isa_choice - 1);
    c->seed_given = config_given(c, "--seed");
    if (c->exact) {
        c->activations = ACTIVATION_F32;
        c->kv = KV_F32;
    }
    c->xdg_cache_home = getenv("XDG_CACHE_HOME");
    c->home = getenv("HOME");
    const char *no_color = getenv("NO_COLOR");
    c->no_color = no_color != NULL && no_color[0] != '\0';
    c->nvtx_injection = getenv("NVTX_INJECTION64_PATH");
    return STATUS_OK;
}

enum status config_parse(struct config *c, const char *command, int argc, char **argv,
                         struct error *e) {
    memset(c, 0, sizeof *c);
    const int index = find_command(command);
    if (index < 0 && config_command_comes_later(command)) {
        return error_set(e, STATUS_UNSUPPORTED, NULL, "the command %s is not in this build",
                         command);
    }
    if (index < 0) {
        return error_set(e, STATUS_INVALID, NULL, "there is no command '%.100s' (laconic --help)",
                         command);
    }
    c->command = (enum config_command)index;
    const enum status s = parse(c, argc, argv, e);
    if (s != STATUS_OK) memset(c, 0, sizeof *c);
    return s;
}

bool config_given(const struct config *c, const char *option) {
    const struct knob *k = find_knob(1u << c->command, option, strlen(option));
    CHECK(k != NULL);
    return is_given(c, k);
}

bool config_cache_dir(const struct config *c, char *out, size_t out_bytes) {
    int n = -1;
    if (c->cache_dir != NULL) {
        if (strcmp(c->cache_dir, "off") != 0) n = snprintf(out, out_bytes, "%s", c->cache_dir);
    } else if (c->xdg_cache_home != NULL && c->xdg_cache_home[0] == '/') {
        n = snprintf(out, out_bytes, "%s/laconic/kernels", c->xdg_cache_home);
    } else if (c->home != NULL && c->home[0] == '/') {
        n = snprintf(out, out_bytes, "%s/.cache/laconic/kernels", c->home);
    }
    if (n > 0 && (size_t)n < out_bytes) return true;
    out[0] = '\0';
    return false;
}

static const char *value_words(const struct knob *k) {
    if (k->type == KNOB_SWITCH) return "on|off";
    if (k->type == KNOB_CHOICE) return k->choices;
    return k->value != NULL ? k->value : "";
}

static void print_list(FILE *out, const char *words) {
    for (; *words != '\0'; words++) {
        if (*words == '|')
            fputc(' ', out);
        else
            fputc(*words, out);
    }
}

static void print_commands(FILE *out) {
    fputs("usage: laconic COMMAND [words] [options]\n\n", out);
    for (int i = 0; i < CONFIG_COMMAND_COUNT; i++) {
        fprintf(out, "  %-11s %-17s %s\n", commands[i].name, commands[i].words, commands[i].help);
    }
    fputs("\nlaconic COMMAND --help lists a command's options.\n\nNot in this build:\n  ", out);
    print_list(out, later_commands);
    fputs("\n", out);
}

enum { HELP_COLUMN = 32, HELP_WIDTH = 100 };

/* Words of `text`, from column `at` on, wrapped to the help's columns; returns the column after. */
static size_t print_wrapped(FILE *out, const char *text, size_t at) {
    while (*text != '\0') {
        const size_t n = strcspn(text, " ");
        if (at != HELP_COLUMN && at + 1 + n > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        } else if (at != HELP_COLUMN) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)n, text);
        at += n;
        text += n + strspn(text + n, " ");
    }
    return at;
}

static void print_option(FILE *out, const struct knob *k) {
    char left[80], last[64] = "";
    snprintf(left, sizeof left, "%s %s", k->name, value_words(k));
    fprintf(out, "  %-*s", HELP_COLUMN - 2, left);
    if (strlen(left) > HELP_COLUMN - 4) fprintf(out, "\n%*s", HELP_COLUMN, "");
    if (k->required)
        snprintf(last, sizeof last, "(required)");
    else if (k->initial != NULL)
        snprintf(last, sizeof last, "(default: %s)", k->initial);
    print_wrapped(out, last, print_wrapped(out, k->help, HELP_COLUMN));
    fputs("\n", out);
}

void config_print_help(FILE *out, const char *command) {
    if (command == NULL) {
        print_commands(out);
        return;
    }
    const int index = find_command(command);
    CHECK(index >= 0);
    const uint32_t bit = 1u << index;
    fprintf(out, "usage: laconic %s %s [options]\n\n%s\n\n", command, commands[index].words,
            commands[index].help);
    bool later = false;
    for (size_t i = 0; i < N_KNOBS; i++) {
        if ((knobs[i].commands & bit) == 0) continue;
        if (knobs[i].type == KNOB_LATER)
            later = true;
        else
            print_option(out, &knobs[i]);
    }
    fprintf(out, "  %-*s%s\n", HELP_COLUMN - 2, "--help", "this text");
    if (!later) return;
    fputs("\nNot in this build:", out);
    size_t column = 100;
    for (size_t i = 0; i < N_KNOBS; i++) {
        if ((knobs[i].commands & bit) == 0 || knobs[i].type != KNOB_LATER) continue;
        column += strlen(knobs[i].name) + 1;
        if (column > 90) {
            fputs("\n ", out);
            column = 1 + strlen(knobs[i].name) + 1;
        }
        fprintf(out, " %s", knobs[i].name);
    }
    fputs("\n", out);
}

/* A table cell must not contain a bare bar. */
static void print_cell(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void config_print_markdown(FILE *out) {
    for (int c = 0; c < CONFIG_COMMAND_COUNT; c++) {
        fprintf(out, "## laconic %s %s\n\n%s\n\n| option | default | meaning |\n|---|---|---|\n",
                commands[c].name, commands[c].words, commands[c].help);
        for (size_t i = 0; i < N_KNOBS; i++) {
            const struct knob *k = &knobs[i];
            if ((k->commands & (1u << c)) == 0) continue;
            fprintf(out, "| `%s", k->name);
            if (value_words(k)[0] != '\0') fputc(' ', out);
            print_cell(out, value_words(k));
            fputs("` | ", out);
            if (k->required)
                fputs("required", out);
            else if (k->initial != NULL)
                fprintf(out, "`%s`", k->initial);
            fputs(" | ", out);
            print_cell(out, k->help);
            if (k->type == KNOB_LATER) fputs(" (not in this build)", out);
            if (k->later != NULL && strcmp(k->later, "*") != 0) {
                fputs(" (not in this build: ", out);
                print_list(out, k->later);
                fputs(")", out);
            }
            fputs(" |\n", out);
        }
        fputs("\n", out);
    }
}
