/* regulation.h: the side-car's head that says temperature and top_p of each token from the model's
 * last hidden state (core/heads.h: regulation_head), and its fit.
 *
 * Section `regulation`, key "default", little endian: {d_model u32, zero u32, bias F32[2], least
 * F32[2], most F32[2], zeros to 64 bytes; weight F32[2, d_model]; then a report (JSON) of what was
 * measured}.
 *
 * The fit maximises the likelihood of given tokens under the distribution that would have been
 * drawn from: logits over the temperature T, each token weighed by how far the mass c before it is
 * inside top_p: w = 1 / (1 + exp(-(P - c) / s)), s = 0.05, P = top_p (1 + 5 s). That is the nucleus
 * of Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), with a soft edge, so
 * that it has derivatives; at top_p 1 no token loses more than 0.7 %.
 *
 * Hostile input: the view checks sizes, ranges and every number (STATUS_CORRUPT); another model's
 * width is STATUS_INVALID. The view points into the section. Threads: read-only.
 */
#ifndef LAC_MODELS_REGULATION_H
#define LAC_MODELS_REGULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/heads.h"
#include "core/status.h"
#include "models/sidecar.h"

#define REGULATION_KEY "default"

struct regulation {
    bool present;
    uint32_t d_model;
    struct regulation_head head;
    uint64_t digest; /* of the section: it decides about bytes */
    const char *report;
    size_t report_bytes;
};

/* *r without the section: present false. s NULL: likewise. */
LAC_MUST_USE enum status regulation_view(struct regulation *r, const struct sidecar *s,
                                         uint32_t d_model, struct error *e);
/* The section's bytes, malloc'ed. */
LAC_MUST_USE enum status regulation_write(const struct regulation_head *h, uint32_t d_model,
                                          const char *report, struct sidecar_section *out,
                                          struct error *e);

/* ---- the fit ---- */

/* A row of logits as a histogram of distances to the largest: bins of 1/8 up to 24, the last one
 * holds all beyond. What a bin's tokens weigh is taken at their mean distance: that of a whole bin
 * is wrong by 0.07 % at most at T = 1. */
enum { REGULATION_BINS = 193 };
#define REGULATION_BIN_WIDTH 0.125f
struct regulation_row {
    float count[REGULATION_BINS], distance[REGULATION_BINS]; /* distance: mean, 0 where none */
    float target;                                            /* the given token's distance */
    uint32_t text;                                           /* which text it is of */
};
/* count and summed distances -> means; once, when all logits were added. */
void regulation_row_add(struct regulation_row *r, float distance);
void regulation_row_finish(struct regulation_row *r);

/* ln of the given token's probability at T and top_p; slope[2] (NULL: not wanted): its derivatives
 * by them. */
double regulation_likelihood(const struct regulation_row *r, double T, double top_p,
                             double slope[2]);
/* Whether the nucleus with a hard edge holds the given token. */
bool regulation_inside(const struct regulation_row *r, double T, double top_p);

/* The pairs that a head is to beat. */
enum { REGULATION_GRID = 13 * 8 };
void regulation_grid(uint32_t i, double *T, double *top_p);

struct regulation_fit {
    uint32_t d_model, n_rows;
    const struct regulation_row *rows; /* [n_rows] */
    const float *states;               /* [n_rows, d_model] */
    const uint8_t *part;               /* [n_rows] 0: to learn from, 1: to stop by, 2: kept apart */
    void (*progress)(void *arg, uint32_t done, uint32_t all); /* may be NULL */
    void *progress_arg;
};
/* head->weight: the caller's [2, d_model]. Adam over whole passes; the weights at the best pass on
 * part 1. The same input gives the same bytes on one machine. */
LAC_MUST_USE enum status regulation_fit(const struct regulation_fit *f,
                                        struct regulation_head *head, float *weight,
                                        struct error *e);

#endif
