/* suffix_automaton.h: the longest earlier occurrence of a sequence's end, and what followed it: the
 * draft source of one sequence over its prompt and answer (prompt lookup).
 *
 * A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text",
 * 1985), built online: at most 2 n states and 3 n transitions for n tokens. Appending is O(1)
 * amortised; each append is logged, so cut takes tokens back exactly, last first, at the cost of
 * appending them. The link of the last state is the longest suffix that occurred before.
 *
 * Proposals walk the automaton from there, at each state by the continuation that was met last; a
 * state that has several lowers the confidence, a longer match raises it. A state with no
 * continuation (the end of the text) is left for its link, so a repeating text is continued beyond
 * its end.
 *
 * Memory: suffix_automaton_footprint(max_tokens), about 170 bytes per token; one footprint per
 * sequence slot. Over max_tokens the automaton stops following, and proposes nothing until it is
 * cut back to where it followed. Never fails, never allocates. The tokens are any u32 values.
 */
#ifndef LAC_MODELS_SUFFIX_AUTOMATON_H
#define LAC_MODELS_SUFFIX_AUTOMATON_H

#include <stddef.h>
#include <stdint.h>

#include "models/draft_source.h"

enum { SUFFIX_MAX_TOKENS = 1 << 26 };

struct suffix_automaton;

/* A multiple of 64. CHECKs 1 <= max_tokens <= SUFFIX_MAX_TOKENS. */
size_t suffix_automaton_footprint(uint32_t max_tokens);
/* mem: 64-byte aligned, outlives the automaton; its first bytes are the automaton. */
struct suffix_automaton *suffix_automaton_init(void *mem, uint32_t max_tokens);
/* Empty again, for the next sequence: O(what was appended). */
void suffix_automaton_clear(struct suffix_automaton *a);
struct draft_source *suffix_automaton_source(struct suffix_automaton *a);

void suffix_automaton_append(struct suffix_automaton *a, const uint32_t *ids, uint32_t n);
/* Keeps the first n_tokens of what was appended; CHECKs that there are as many. */
void suffix_automaton_cut(struct suffix_automaton *a, uint32_t n_tokens);
/* Tokens appended, followed or not. */
uint32_t suffix_automaton_length(const struct suffix_automaton *a);
/* The length of the longest suffix that also ends earlier; *end: where it first ended (positions
 * [end - length, end) hold it). 0 when the last token is new. */
uint32_t suffix_automaton_match(const struct suffix_automaton *a, uint32_t *end);
void suffix_automaton_propose(const struct suffix_automaton *a, uint32_t max,
                              struct draft_proposal *out);

#endif
