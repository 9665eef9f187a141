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
    X(DOCTOR, "doctor", "[MODEL]", 0, 1, "What this machine offers and what is recommended on it.")

enum config_command {
#define X(code, name, words, least, most, help) CONFIG_##code,
    CONFIG_COMMAND_LIST(X)
#undef X
        CONFIG_COMMAND_COUNT
};

enum { CONFIG_MAX_POSITIONAL = 4, CONFIG_MAX_LIST = 256, CONFIG_MAX_KNOBS = 128 };

enum config_io { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_EPOLL };
enum config_backend { CONFIG_BACKEND_AUTO, CONFIG_BACKEND_CPU };
enum config_drafts { CONFIG_DRAFTS_AUTO, CONFIG_DRAFTS_OFF };

struct config_list {
    uint32_t n;
    int values[CONFIG_MAX_LIST];
};

struct config {
    enum config_command command;
    bool help;     /* print the help and end well; nothing else was checked for completeness */
    bool no_color; /* NO_COLOR is set in the environment */
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
    enum config_drafts drafts;
    bool json;

    /* serve */
    const char *host;
    uint32_t port;   /* 0: any free one */
    const char *uds; /* NULL: none */
    uint32_t max_batch, max_queue;
    uint32_t kv_mib; /* 0: chosen */
    enum config_io io;
    const char *encoder; /* NULL: none */

    /* run */
    const char *prompt;
    bool raw, stats;
    uint32_t n_predict;
    float temperature, top_p;
    uint32_t top_k; /* 0: off */
    uint64_t seed;
    bool seed_given;

    /* bench */
    uint32_t bench_prompt, bench_gen, bench_depth, bench_reps;
    struct config_list bench_batch;

    /* tokenize, detokenize, logits, perplexity */
    bool special, bos, skip_special, json_lines;
    const char *tokens_path, *out_path, *file_path;

    unsigned only_choice; /* knobs that have one value in this build */
};

/* argv[0 .. argc) are the words after the command's name. */
enum status config_parse(struct config *c, const char *command, int argc, char **argv,
                         struct error *e);

/* Whether the option was on the command line. CHECKs that it exists. */
bool config_given(const struct config *c, const char *option);

/* command NULL: the list of commands. CHECKs that the command exists. */
void config_print_help(FILE *out, const char *command);

/* The reference for the docs: a section per command, a table row per option. */
void config_print_markdown(FILE *out);

#endif
