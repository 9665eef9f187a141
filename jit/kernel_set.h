/* kernel_set.h: every kernel that a model takes on one chip, from its plan: what a backend asks the
 * compiler for before it is ready, and what `bake` puts into a pack. One list, so that a pack holds
 * exactly what a server looks up.
 *
 * How a layer is cut into kernels, by bucket of rows (1, 2, 4, ... KERNEL_SET_MAX_ROWS):
 *   attention in   q, k and v in one product with norm, rotation and KV write in it, where formats
 *                  are equal, heads have no norms and dimensions are multiples of 16; else a
 * product for each run of equal formats, then rope_kv attention      split and walk, plain and
 * gated attention out  a product with the residual in it, or plain and then norm (post-norm models)
 *   feed-forward   one kernel up to 16 rows where norm, formats and shared memory allow; else gate
 *                  and up in one product, quantising, and down
 * A product whose prologue does not take the norm reads planes that a norm kernel writes. The
 * classes of a plan's layers are found by their specs: equal layers share kernels.
 * Configurations are chosen from the spec and the device alone (kernel_config_choose without
 * usage): of the device's fields, all but the SM count follow from the architecture, so that `bake`
 * on a machine without the chip arrives at the same keys as a server on it. Kernels of heads are
 * not in the set: a side-car's are not known from the plan. Errors: STATUS_UNSUPPORTED names the
 * layer and what the kernels lack (experts, a format, a shape); STATUS_NO_MEMORY. *out is zeroed.
 */
#ifndef LAC_JIT_KERNEL_SET_H
#define LAC_JIT_KERNEL_SET_H

#include "core/plan.h"
#include "core/status.h"
#include "jit/compiler.h"
#include "jit/kernel.h"

enum { KERNEL_SET_MAX_ROWS = 64 };

struct kernel_set_options {
    uint32_t activation_bits; /* 16, or 8: the int8 class, in which q, k and v keep 16 */
    uint32_t max_rows;        /* largest bucket, at most KERNEL_SET_MAX_ROWS */
    uint32_t min_rows;        /* smallest, a power of two or max_rows; 0: 1 */
};

struct kernel_use {
    struct kernel_spec spec;
    struct kernel_config config;
    uint32_t n_rows; /* the bucket that it was first chosen for */
};

struct kernel_set {
    struct kernel_device device;
    struct kernel_use *uses; /* no two alike, in the order found */
    uint32_t n_uses, room;
};

enum status kernel_set_build(const struct plan *plan, const struct kernel_device *device,
                             const struct kernel_set_options *options, struct kernel_set *out,
                             struct error *e);
void kernel_set_free(struct kernel_set *set); /* of a zeroed set: nothing */

/* Asks for one kernel, or for all of a set. */
enum status kernel_set_request(struct compiler *c, const struct kernel_device *device,
                               const struct kernel_use *use, struct error *e);
enum status kernel_set_request_all(struct compiler *c, const struct kernel_set *set,
                                   struct error *e);

#endif
