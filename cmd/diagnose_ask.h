/* diagnose_ask.h: one chat request of `laconic diagnose` to a server, streamed and timed as its
 * client sees it: from before connecting to the last byte, a connection each.
 *
 * A server is Laconic when a reply of its has a `laconic` object; only then are traces exact and
 * explanations there. Elsewhere entropies are those of the 20 best log-probabilities and one lump
 * of the rest, which is at most the whole entropy, and nothing is known of the similarity.
 * Threads: any, each its own answer. Memory: the answer's, freed by diagnose_answer_free.
 */
#ifndef LAC_CMD_DIAGNOSE_ASK_H
#define LAC_CMD_DIAGNOSE_ASK_H

#include <jansson.h>
#include <stdbool.h>

#include "core/buffer.h"
#include "core/status.h"

enum { DIAGNOSE_ID_BYTES = 64, DIAGNOSE_SILENCE_S = 300 };

struct diagnose_ask {
    const char *url, *model, *prompt;
    const json_t *settings; /* an object, laid over the request; NULL: none */
    uint32_t max_tokens;    /* unless the settings say */
    uint64_t seed;          /* likewise */
    bool trace;             /* entropy and similarity of every token */
    bool laconic;           /* the server is Laconic: ask for what only it has */
};

/* A growing list of numbers. */
struct diagnose_list {
    double *v;
    uint32_t n, cap;
};

/* Where a server's milliseconds went, by its own explanation. */
struct diagnose_cost {
    bool known;
    double tokenise, queue, prefill, decode;
    json_t *faster; /* [{what, saved_ms, how}], or NULL */
};

struct diagnose_answer {
    bool failed, laconic, exact; /* exact: entropies are of whole distributions */
    char why[160];               /* it failed */
    char id[DIAGNOSE_ID_BYTES];
    double seconds, first_s;   /* whole, and until the first text */
    double token_s;            /* from the first text to the last, a token; NaN: one text or none */
    struct diagnose_list gaps; /* seconds from text to text */
    uint32_t prompt_tokens, tokens;
    struct buffer text;
    struct diagnose_list entropy, similarity; /* of each token; NaN: not known */
    struct diagnose_cost cost;
};

/* A failure is the answer's, not this function's. */
void diagnose_ask(const struct diagnose_ask *q, struct diagnose_answer *out);
void diagnose_answer_free(struct diagnose_answer *a);
/* The server's explanation of a request, into its answer. */
void diagnose_explain(const char *url, struct diagnose_answer *a);

void diagnose_list_add(struct diagnose_list *l, double v);

#endif
