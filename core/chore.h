/* chore.h: work that may pass 200 microseconds, cut into slices.
 *
 * A chore is a function with a stack of its own. It calls chore_checkpoint() as it goes (every few
 * hundred bytes or tokens); when the slice is used up the checkpoint switches back to whoever
 * called chore_run(), and the next chore_run() continues inside the checkpoint. Code that cannot
 * yield is simply called with chore == NULL, and the checkpoint is then free.
 *
 * Ownership: the caller owns the memory given to chore_init (chore_footprint bytes, 16-aligned),
 * which includes the stack. A chore may be abandoned at a checkpoint only if its function holds no
 * resources there, so cancel with chore_cancel(): the checkpoint then returns true and the function
 * must unwind and return.
 * Threads: one thread runs a chore at a time; which one may change between slices. Between two
 * checkpoints a chore must not keep pointers to thread-local data.
 * Under ASan and TSan the switches are announced to the sanitizer.
 */
#ifndef LAC_CORE_CHORE_H
#define LAC_CORE_CHORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chore;

enum { CHORE_STACK_BYTES = 256 * 1024 };

typedef void chore_fn(struct chore *c, void *arg);

size_t chore_footprint(void);
struct chore *chore_init(void *mem, chore_fn *fn, void *arg);

/* Run for about `budget_ns`. Returns true when the function has returned. */
bool chore_run(struct chore *c, uint64_t budget_ns);

/* Inside the function: yields when the slice is over. Returns true when the chore was cancelled. */
bool chore_checkpoint(struct chore *c);

void chore_cancel(struct chore *c);
bool chore_done(const struct chore *c);

#endif
