/* task_files.h: the files that the commands about tasks share. */
#ifndef LAC_CMD_TASK_FILES_H
#define LAC_CMD_TASK_FILES_H

#include "core/config.h"
#include "core/json_writer.h"
#include "core/status.h"
#include "models/task_model.h"
#include "models/task_score.h"

/* --task-words, or the built-in lists. On failure *out is NULL. */
LAC_MUST_USE enum status task_files_words(const struct config *c, struct task_words **out,
                                          struct error *e);
/* --task-model, or the built-in one, with the word lists of --task-words if given. */
LAC_MUST_USE enum status task_files_model(const struct config *c, struct task_model **out,
                                          struct error *e);

/* {"rows", "accuracy", "macro_f1", "ece", "abstained", "confusion"}; label [n_classes]. */
void task_files_scores(struct json_writer *j, const struct task_scores *s);

/* The buffer and a line break on standard output; frees it. */
LAC_MUST_USE enum status task_files_print(struct buffer *b, struct error *e);

#endif
