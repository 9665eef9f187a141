/* softgpu.h: how a test talks to the software device behind the driver's back.
 *
 * tests/softgpu/libcuda.so.1 is loaded by core/cuda.h like any CUDA driver. It reads its settings
 * from the environment when it is loaded and at every softgpu_reset():
 *   SOFTGPU_DEVICE  T4, A100, L4, L40S, RTX4090, RTX5090, H100 (the default), H200, B200
 *   SOFTGPU_SMS     number of multiprocessors, for a slice of that device
 *   SOFTGPU_DRIVER  the version the driver claims, 13000 if not set; entries younger are not there
 *   SOFTGPU_SEED    0 (the default): everything as late as the API allows, natural order inside a
 *                   kernel; other numbers permute both, bounded by the API
 *   SOFTGPU_CHECK   full (the default) or bounds (several threads, no defined bits, no races)
 *   SOFTGPU_THREADS host threads of a kernel under bounds; default: all cores
 *   SOFTGPU_COUNT   0: no counters of sectors and conflicts (faster)
 *   SOFTGPU_REPORT  a file that gets a JSON report at exit (findings, counters per kernel)
 *   SOFTGPU_FAIL    faults, comma-separated; see softgpu_fail
 * Work is queued, and executed only when somebody waits for it (synchronise, query, a host
 * function) - a missing wait reads what was there before, and the destination of a copy to the host
 * holds a pattern until the copy runs.
 *
 * The functions below are exported, to be found with dlsym. Threads: any; softgpu_reset only while
 * no other call is under way.
 */
#ifndef LAC_TESTS_SOFTGPU_SOFTGPU_H
#define LAC_TESTS_SOFTGPU_SOFTGPU_H

#include <stdint.h>

#include "tests/softgpu/finding.h"

/* What the driver itself finds (kind FINDING_HOST, or FINDING_UNDEFINED for copies): the rule's
 * name is the finding's `kernel`, so that equal misuses count up. X(code, name) */
#define HOST_RULE_LIST(X)                                                                          \
    X(RULE_DEAD_HANDLE, "use of a destroyed or foreign handle")                                    \
    X(RULE_NO_CONTEXT, "no current context")                                                       \
    X(RULE_LAUNCH_BOUNDS, "launch over a limit")                                                   \
    X(RULE_SHARED_MEMORY, "too much shared memory")                                                \
    X(RULE_PARAMETERS, "kernel parameters")                                                        \
    X(RULE_COPY_RANGE, "copy outside of memory")                                                   \
    X(RULE_UNDEFINED_COPY, "copy of undefined bytes")                                              \
    X(RULE_SOURCE_CHANGED, "host source changed before its copy was waited for")                   \
    X(RULE_OVERLAP, "unordered operations on the same memory")                                     \
    X(RULE_IN_FLIGHT, "freed while in flight")                                                     \
    X(RULE_BAD_FREE, "free of what is not allocated")                                              \
    X(RULE_DEPENDENT_LAUNCH, "programmatic dependence")                                            \
    X(RULE_GRAPH, "graph")                                                                         \
    X(RULE_CALLBACK, "driver call from a host function")

enum host_rule {
#define X(code, name) code,
    HOST_RULE_LIST(X)
#undef X
        HOST_RULE_COUNT
};

/* Everything since the last clear or reset. kind -1: of all kinds. */
typedef uint64_t softgpu_findings_count_fn(int kind);
/* Findings of one rule. */
typedef uint64_t softgpu_rule_count_fn(enum host_rule rule);
/* Copies record i (in order of first occurrence); 0 when there is none. */
typedef int softgpu_finding_fn(uint32_t i, struct finding *out);
typedef void softgpu_findings_clear_fn(void);
/* Operations enqueued and not executed yet. */
typedef uint64_t softgpu_pending_fn(void);
/* Replaces the faults to come; counts start now. Returns 0 when the text cannot be read. Items:
 *   launch=N        the Nth kernel launch (or graph kernel, at instantiation) is refused
 *   lost=N          the device is lost while the Nth kernel executes
 *   lost-file=PATH  the device is lost at the first operation that finds PATH there
 *   memory=BYTES    allocations that would take the total over BYTES get OUT_OF_MEMORY
 *   corrupt=N       the Nth copy to the host arrives as all ones (NaN, in any float format)
 * "" ends all faults. A lost device stays lost until softgpu_reset. */
typedef int softgpu_fail_fn(const char *faults);
/* Writes the report; 0 on failure. */
typedef int softgpu_report_fn(const char *path);
/* A number from the counters of one kernel (all launches since the reset; name "" sums over all):
 * the names are those in the report, such as "launches" or "global_load_sectors". 0 if unknown. */
typedef uint64_t softgpu_counter_fn(const char *kernel, const char *counter);
/* Forgets everything (memory, handles, findings, counters, faults) and reads the environment
 * again. Pending work is dropped. */
typedef void softgpu_reset_fn(void);

softgpu_findings_count_fn softgpu_findings_count;
softgpu_rule_count_fn softgpu_rule_count;
softgpu_finding_fn softgpu_finding;
softgpu_findings_clear_fn softgpu_findings_clear;
softgpu_pending_fn softgpu_pending;
softgpu_fail_fn softgpu_fail;
softgpu_report_fn softgpu_report;
softgpu_counter_fn softgpu_counter;
softgpu_reset_fn softgpu_reset;

#endif
