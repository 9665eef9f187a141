/* policy_file.h: --config F: the policy as a file.
 *
 *   {"presets": {"TASK" or "middle": {"temperature": 0 .. 2, "top_p": above 0, at most 1,
 *                                     "entropy_threshold": 0 .. 20 nats}, ...},
 *    "task_words": {"LIST": ["phrase", ...], ...},   as --task-words (models/task_words.h)
 *    "drift": {"reference": rows, "window": rows},   20 .. 65536 each
 *    "adapt": {"rows": 20 .. 4096, "replay": "F.jsonl", "validation": "F.jsonl"}}
 *
 * All of it may be left out; what is not named keeps its default. Errors: STATUS_INVALID, with the
 * member at fault as field ("presets.code.top_p"); STATUS_IO; STATUS_TOO_LARGE. On failure *out is
 * zeroed.
 */
#ifndef LAC_CMD_POLICY_FILE_H
#define LAC_CMD_POLICY_FILE_H

#include "models/task_words.h"
#include "sched/policy.h"

struct policy_file {
    struct policy_presets presets;
    struct task_words *words;                           /* NULL: the task model's own */
    uint32_t drift_reference, drift_window, adapt_rows; /* 0: the default */
    char *replay_path, *validation_path;                /* NULL: none */
};

/* path NULL: the defaults. */
LAC_MUST_USE enum status policy_file_read(const char *path, struct policy_file *out,
                                          struct error *e);
void policy_file_free(struct policy_file *f);

#endif
