/* diagnose.h: the parts of `laconic diagnose`: what was asked and answered (cmd/diagnose.c), what
 * it comes to (cmd/diagnose_figures.c), and how it is told (cmd/diagnose_report.c,
 * diagnose_plot.c).
 *
 * Arms: A, as --a says; with --b also B, on the same prompts with the same seeds, and a control: A
 * once more with other seeds, which shows what two runs differ by anyway. Each prompt goes through
 * all arms one after the other, and the first place is taken in turns, since what came before fills
 * caches. Traces are requests of their own behind all timed ones, with A's seeds.
 */
#ifndef LAC_CMD_DIAGNOSE_H
#define LAC_CMD_DIAGNOSE_H

#include "cmd/diagnose_ask.h"
#include "cmd/diagnose_stats.h"
#include "core/config.h"

enum diagnose_arm { DIAGNOSE_A, DIAGNOSE_B, DIAGNOSE_CONTROL, DIAGNOSE_ARMS };
enum { DIAGNOSE_MAX_SAVINGS = 12, DIAGNOSE_MAX_STRETCHES = 32 };

struct diagnose {
    const struct config *config;
    const char *url;
    char model[256];
    bool laconic;
    json_t *settings[2]; /* A's and B's */
    char **prompts;      /* [n] */
    uint32_t n, n_arms;
    struct diagnose_answer *answers[DIAGNOSE_ARMS]; /* [n] of each */
    struct diagnose_answer *traces;                 /* [n], or NULL */
};

struct diagnose_arm_figures {
    struct distribution seconds, first_s, token_s, gap_s, tokens;
    uint32_t n_failed;
    const char *why; /* of the first failure, or NULL */
};

/* An arm against A, on the prompts that both answered. */
struct diagnose_comparison {
    uint32_t n, n_identical;
    struct interval median_ratio, p95_ratio, difference_s, first_ratio, tokens, agreement;
};

/* Means of some requests, in milliseconds. */
struct diagnose_share {
    uint32_t n, n_known;
    double tokens, total, tokenise, queue, prefill, decode;
};

struct diagnose_stretch {
    uint32_t prompt;
    struct stretch at;
};

struct diagnose_saving {
    char what[32];
    uint32_t n;
    double ms; /* of all A's requests together */
};

struct diagnose_figures {
    struct diagnose_arm_figures arms[DIAGNOSE_ARMS];
    struct diagnose_comparison b, control; /* where there is a B */
    struct diagnose_share slowest, middle; /* A: over its P95; between the quartiles */
    struct diagnose_saving savings[DIAGNOSE_MAX_SAVINGS];
    uint32_t n_savings;
    uint32_t n_traced, n_same, n_exact; /* same: the very text of the timed request */
    const char *trace_why;              /* why the first one failed, or NULL */
    uint64_t n_tokens, n_divergent;     /* traced tokens, and of them in stretches */
    double entropy, similarity;         /* means over tokens; NaN: not known */
    uint32_t n_stretches;               /* found; the longest are told */
    struct diagnose_stretch stretches[DIAGNOSE_MAX_STRETCHES];
};

void diagnose_figures(const struct diagnose *d, struct diagnose_figures *f);

void diagnose_print(const struct diagnose *d, const struct diagnose_figures *f);
enum status diagnose_print_json(const struct diagnose *d, const struct diagnose_figures *f,
                                struct error *e);
/* latency.png, traces.png and, with a B, compare.png in the folder, which is made if need be. */
enum status diagnose_plot(const struct diagnose *d, const struct diagnose_figures *f,
                          const char *folder, struct error *e);

/* One of 100 prompts: tasks of several kinds in English and Chinese. */
enum { DIAGNOSE_PROMPTS = 100 };
char *diagnose_prompt(uint32_t i);

#endif
