/* bench_kernel.h: `bench MODEL --kernel FAMILY --shape n=,k=,b=`: the kernels of a family that the
 * model takes, each alone (jit/kernel_bench.h). Weights are not read: only the plan's shapes count.
 */
#ifndef LAC_CMD_BENCH_KERNEL_H
#define LAC_CMD_BENCH_KERNEL_H

#include "core/config.h"

/* The command's exit status. */
int bench_kernel(const struct config *c);

#endif
