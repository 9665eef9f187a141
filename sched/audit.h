/* audit.h: whether what leaves early keeps the promise it was made with.
 *
 * A share of the decisions that a profile takes early runs on to its full depth; the client is
 * given the early one all the same. A profile promises that at most `epsilon` of its early
 * decisions differ from those of full depth. The audits' outcomes are tested one by one: a profile
 * is switched off when they speak for three times epsilon against epsilon.
 *
 * The test. Every 64 audits a hypothesis begins that the share has been 3 epsilon since then. Each
 * is a likelihood ratio of Bernoulli outcomes, weighed by 1/2 (the first) and 1 / (2 j (j + 1))
 * (the others, j from 1); the weights of those to come count 1. Under a share of at most epsilon
 * the sum is a supermartingale that starts at 1, so it ever reaches AUDIT_EVIDENCE with probability
 * at most 1 / AUDIT_EVIDENCE (Ville's inequality), however long it runs; and a profile that turns
 * bad late is found almost as soon as one that was bad from the start (Wald, "Sequential Tests of
 * Statistical Hypotheses", 1945; the mixture over beginnings: Shin, Ramdas, Rinaldo, "E-detectors",
 * 2023).
 *
 * Which decisions: all until AUDIT_PASSED audits of the profile agreed, then one in AUDIT_EVERY, by
 * a draw at (seed, position), so a request's answer never depends on it. A switched off profile is
 * audited no more: it runs at full depth until the server starts anew.
 *
 * Memory: the caller's; nothing here allocates or fails. Threads: the loop thread only.
 */
#ifndef LAC_SCHED_AUDIT_H
#define LAC_SCHED_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

enum { AUDIT_EVIDENCE = 32, AUDIT_PASSED = 250, AUDIT_EVERY = 50, AUDIT_RESTART = 64 };

/* Of one profile. */
struct audit {
    double epsilon;  /* 0: it promises nothing, and is not audited */
    double evidence; /* weighed likelihood ratios of the hypotheses that have begun */
    double to_come;  /* weight of the others */
    uint64_t n, n_differed;
    bool off;
};

/* epsilon in [0, 1). */
void audit_init(struct audit *a, double epsilon);

/* Is the decision at this position of a request with this seed audited? */
bool audit_wanted(const struct audit *a, uint64_t seed, uint32_t position);

/* One audited decision. True: with this one the profile is to be switched off. Outcomes that were
 * under way by then are counted, nothing else. */
bool audit_add(struct audit *a, bool differed);

#endif
