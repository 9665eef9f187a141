/* commands.h: the commands. argv[0] is the command's name; the return value is the exit status: 0
 * on success, 1 on failure (one line on stderr says why), 2 on bad usage.
 */
#ifndef LAC_CMD_COMMANDS_H
#define LAC_CMD_COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_bake(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_drift(int argc, char **argv);
int cmd_lint(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_diagnose(int argc, char **argv);
int cmd_policy(int argc, char **argv);

#endif
