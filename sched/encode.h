/* encode.h: embeddings by the language model: the mean of a text's states after the output norm,
 * scaled to length one. One request's texts are run one after the other through the same pages; a
 * text's vector does not depend on how it was cut into spans, or on what ran beside it.
 *
 * States are summed per KV page in position order by the backend (TAP_SUM), the pages' sums here.
 *
 * Memory: encode_footprint() bytes of the caller's, 8-aligned; ids and ends are the request's and
 * stay until its last text is done. Nothing allocates or fails.
 * Threads: the loop thread.
 */
#ifndef LAC_SCHED_ENCODE_H
#define LAC_SCHED_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct encode {
    const uint32_t *ids;  /* of all texts */
    const uint32_t *ends; /* [n_texts]: where each ends in ids */
    uint32_t n_texts, text;
    uint32_t d_model;
    float *total;   /* [d_model]: sum over the whole pages of this text so far */
    float *partial; /* [d_model]: sum over the positions of the page that is not whole */
};

size_t encode_footprint(uint32_t d_model);
void encode_init(struct encode *c, void *mem, uint32_t d_model);
void encode_start(struct encode *c, const uint32_t *ids, const uint32_t *ends, uint32_t n_texts);

/* The tokens of the text at hand. */
const uint32_t *encode_text(const struct encode *c, uint32_t *n);

/* Pages that rows [first, first + n) touch: as many sums does their tap write. */
uint32_t encode_pages(uint32_t first, uint32_t n);
/* sums[encode_pages(first, n), d_model] as the tap of rows [first, first + n) wants them. */
void encode_before(const struct encode *c, uint32_t first, uint32_t n, float *sums);
/* The tap has written them. */
void encode_after(struct encode *c, uint32_t first, uint32_t n, const float *sums);
/* Every row of the text at hand was summed: leaves its vector in `total` and returns whether it is
 * one (all finite, not zero). The sums are empty again after encode_next. */
bool encode_finish(struct encode *c);
/* On to the next text; false when there is none. */
bool encode_next(struct encode *c);

#endif
