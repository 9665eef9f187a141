/* config.h: what the command line said. One table (core/config.c) holds every knob: its name, type,
 * default, range, the commands that take it and its help; --help and the reference in the docs are
 * generated from it. The environment is read here and nowhere else.
 *
 * Syntax: `--name value`, `--name=value`, `--flag`; other words are positional; `--` ends options;
 * an option given twice takes its last value; `-h` is `--help`, and then nothing is demanded.
 * Numbers are whole decimal numbers (or decimal fractions) with nothing after them.
 * Errors: STATUS_INVALID for bad usage, STATUS_UNSUPPORTED for an option, value or command that is
 * known but not in this build; both are exit status 2. error.field is the option's name. *c is
 * zeroed. Ownership: strings point into argv or into constants; argv outlives the config.
 */
#ifndef LAC_CORE_CONFIG_H
#define LAC_CORE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/backend.h"
#include "core/cpu_features.h"
#include "core/metric.h"
#include "core/status.h"

/* X(code, name, positional words, how many at least, how many at most, help) */
#define CONFIG_COMMAND_LIST(X)                                                                     \
    X(SERVE, "serve", "MODEL", 1, 1, "Serve MODEL over HTTP, as OpenAI's API.")                    \
    X(RUN, "run", "MODEL", 1, 1, "Answer one prompt on standard output.")                          \
    X(BENCH, "bench", "MODEL", 1, 1, "Measure prefill and decode speed.")                          \
    X(TOKENIZE, "tokenize", "MODEL", 1, 1,                                                         \
      "Text on standard input to one JSON array of token ids.")                                    \
    X(DETOKENIZE, "detokenize", "MODEL", 1, 1,                                                     \
      "A JSON array of token ids on standard input to text.")                                      \
    X(TEMPLATE, "template", "MODEL|FILE.jinja", 1, 1,                                              \
      "Render a chat template over the JSON object on standard input.")                            \
    X(LOGITS, "logits", "MODEL", 1, 1,                                                             \
      "Write the largest logits at every position of token lists.")                                \
    X(PERPLEXITY, "perplexity", "MODEL", 1, 1, "Perplexity of a text file.")                       \
    X(INSPECT, "inspect", "MODEL", 1, 1,                                                           \
      "What a model file is, what will run and the memory it takes.")                              \
    X(TUNE, "tune", "MODEL", 1, 1,                                                                 \
      "Learn a deployment's own answers into a side-car: faster, not different.")                  \
    X(CALIBRATE, "calibrate", "MODEL", 1, 1,                                                       \
      "Measure what a mechanism that may change answers needs to know, into a side-car.")          \
    X(TRAIN, "train", "FILE.jsonl...", 1, 4, "Train a task model from labelled texts.")            \
    X(CLASSIFY, "classify", "", 0, 0, "What kind of task the text on standard input is.")          \
    X(DRIFT, "drift", "FILE.jsonl", 1, 1,                                                          \
      "Whether a log of queries, in order of arrival, has moved away from its beginning.")         \
    X(LINT, "lint", "", 0, 0, "What may go wrong with the prompt on standard input.")              \
    X(EXPLAIN, "explain", "URL ID", 2, 2,                                                          \
      "Why a running server answered a request as it did, and what would have been faster.")       \
    X(POLICY, "policy", "URL", 1, 1,                                                               \
      "A running server's policy epoch, feedback and drift; promote or revert a task model.")      \
    X(DIAGNOSE, "diagnose", "URL", 1, 1,                                                           \
      "What a server's latency is made of, where its answers wander; two settings compared.")      \
    X(BAKE, "bake", "MODEL", 1, 1,                                                                 \
      "Compile a model's GPU kernels ahead, into a pack for given chips.")                         \
    X(DOCTOR, "doctor", "[MODEL]", 0, 1, "What this machine offers and what is recommended on it.")

enum config_command {
#define X(code, name, words, least, most, help) CONFIG_##code,
    CONFIG_COMMAND_LIST(X)
#undef X
        CONFIG_COMMAND_COUNT
};

enum { CONFIG_MAX_POSITIONAL = 4, CONFIG_MAX_LIST = 256, CONFIG_MAX_KNOBS = 128 };

enum config_io { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_EPOLL };
enum config_backend { CONFIG_BACKEND_AUTO, CONFIG_BACKEND_CPU, CONFIG_BACKEND_CUDA };
#define CONFIG_DRAFTS_AUTO UINT32_MAX /* whatever is there and pays */
enum config_policy { CONFIG_POLICY_EXACT, CONFIG_POLICY_ADAPTIVE };
/* The order after AUTO is that of enum metric_task. */
enum config_task { CONFIG_TASK_AUTO };

struct config_list {
    uint32_t n;
    int values[CONFIG_MAX_LIST];
};

struct config {
    enum config_command command;
    bool help;     /* print the help and end well; nothing else was checked for completeness */
    bool no_color; /* NO_COLOR is set in the environment */
    const char *nvtx_injection; /* NVTX_INJECTION64_PATH, set by NVIDIA's profilers, or NULL */
    uint32_t n_positional;
    const char *positional[CONFIG_MAX_POSITIONAL];
    const char *model;                     /* the first positional word, or NULL */
    uint64_t given[CONFIG_MAX_KNOBS / 64]; /* see config_given */

    /* engine */
    uint32_t threads;                   /* 0: one per core */
    uint32_t n_ctx;                     /* 0: the model's own */
    enum activation_format activations; /* ACTIVATION_F32 under --exact */
    enum kv_format kv;                  /* KV_F32 under --exact */
    bool exact;
    enum config_backend backend;
    unsigned isa_choice; /* as parsed; use the two below */
    bool isa_auto;
    enum cpu_isa isa;       /* meaningless under isa_auto */
    struct config_list pin; /* CPU of worker i; n = 0: not pinned */
    bool huge_pages, mlock;
    uint32_t drafts; /* bit per enum metric_draft; 0: off; CONFIG_DRAFTS_AUTO */
    bool json;

    /* serve */
    const char *host;
    uint32_t port;   /* 0: any free one */
    const char *uds; /* NULL: none */
    uint32_t max_batch, max_queue;
    uint32_t kv_mib; /* 0: chosen */
    enum config_io io;
    const char *encoder;  /* NULL: none */
    const char *side_car; /* NULL: NAME.lacs beside the model, if there is one; "off" */
    enum config_policy policy;
    const char *policy_file; /* NULL: none */
    bool auto_promote;

    /* serve and run */
    bool gates;
    const char *gate_words; /* NULL: the built-in list */

    /* run */
    const char *prompt;
    bool raw, stats;
    unsigned task_type; /* CONFIG_TASK_AUTO, else 1 + enum metric_task */
    uint32_t n_predict;
    float temperature, top_p;
    uint32_t top_k; /* 0: off */
    uint64_t seed;
    bool seed_given;

    /* bench */
    uint32_t bench_prompt, bench_gen, bench_depth, bench_reps, bench_gate;
    struct config_list bench_batch;
    const char *bench_kernel, *bench_shape; /* NULL: none */

    /* tokenize, detokenize, logits, perplexity */
    bool special, bos, skip_special, json_lines;
    const char *tokens_path, *out_path, *file_path;

    /* tune; out_path is the side-car, n_predict the longest answer */
    const char *answers_path, *prompts_path, *traffic;
    uint32_t tune_samples, tune_batch, tune_shortlist, tune_ngram_kib, tune_epochs;
    bool tune_draft_block;
    uint32_t tune_exit_layer; /* 0: no exit block */
    const char *labels_path;
    struct config_list label_layers; /* n = 0: chosen */

    /* calibrate; out_path is the side-car or NULL, file_path the documents */
    bool calibrate_gate;
    struct config_list gate_contexts, gate_budgets;
    uint32_t gate_documents, gate_tokens;
    float gate_kl;

    /* calibrate; out_path is the side-car or NULL, file_path the texts; n_predict, tune_batch */
    bool calibrate_monitor, calibrate_regulate;

    /* train, classify, drift, lint; out_path is the task model */
    const char *task_model, *task_words, *adapt_path, *replay_path, *check_path, *head_model;
    uint32_t train_epochs, head_layer, drift_reference, drift_window, drift_step;
    float train_cost, abstain_below, false_alarms;
    bool no_validation;

    /* policy */
    bool promote, revert;

    /* diagnose; prompts_path, n_predict, seed */
    uint32_t diagnose_requests, diagnose_clients;
    const char *settings_a, *settings_b, *plots_path; /* NULL: none; settings_a "{}" */
    bool no_traces;

    /* GPU kernels; bake's pack is out_path */
    struct config_list bake_arch, bake_sms; /* bake_sms n = 0: the usual chip's */
    bool jit, graphs;
    const char *pack, *jit_dump, *cache_dir, *nvrtc;
    const char *xdg_cache_home, *home; /* from the environment; NULL or "": not set */

    unsigned only_choice; /* knobs that have one value in this build */
};

/* argv[0 .. argc) are the words after the command's name. */
enum status config_parse(struct config *c, const char *command, int argc, char **argv,
                         struct error *e);

/* Whether the option was on the command line. CHECKs that it exists. */
bool config_given(const struct config *c, const char *option);

/* The folder of compiled kernels: --cache-dir, else laconic/kernels in the user's cache folder.
 * False when there is none: --cache-dir off, no home, or a path that does not fit. */
bool config_cache_dir(const struct config *c, char *out, size_t out_bytes);

/* command NULL: the list of commands. CHECKs that the command exists. */
void config_print_help(FILE *out, const char *command);
/* A command of the design that this build does not have yet. */
bool config_command_comes_later(const char *name);

/* The reference for the docs: a section per command, a table row per option. */
void config_print_markdown(FILE *out);

#endif
