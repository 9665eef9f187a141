/* Dispatches to one command. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cmd/commands.h"
#include "core/config.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} COMMANDS[] = {
    {"serve", cmd_serve},
    {"run", cmd_run},
    {"bench", cmd_bench},
    {"tokenize", cmd_tokenize},
    {"detokenize", cmd_detokenize},
    {"template", cmd_template},
    {"logits", cmd_logits},
    {"perplexity", cmd_perplexity},
    {"inspect", cmd_inspect},
    {"doctor", cmd_doctor},
    {"tune", cmd_tune},
    {"train", cmd_train},
    {"classify", cmd_classify},
    {"drift", cmd_drift},
    {"lint", cmd_lint},
    {"bake", cmd_bake},
};

int main(int argc, char **argv) {
    /* A file over `ulimit -f` is a write that fails, not the end of a server. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        config_print_help(stderr, NULL);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        config_print_help(stdout, NULL);
        return 0;
    }
    for (size_t i = 0; i < sizeof COMMANDS / sizeof COMMANDS[0]; i++)
        if (strcmp(name, COMMANDS[i].name) == 0) return COMMANDS[i].run(argc - 1, argv + 1);
    if (config_command_comes_later(name)) {
        fprintf(stderr, "laconic: the command \"%s\" is not in this build\n", name);
        return 2;
    }
    fprintf(stderr, "laconic: no command \"%s\"; laconic --help lists them\n", name);
    return 2;
}
