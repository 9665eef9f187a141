/* Dispatches to one command. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/service.h"
#include "core/config.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
};
static const struct command COMMANDS[] = {
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
    {"calibrate", cmd_calibrate},
    {"train", cmd_train},
    {"classify", cmd_classify},
    {"drift", cmd_drift},
    {"lint", cmd_lint},
    {"explain", cmd_explain},
    {"policy", cmd_policy},
    {"diagnose", cmd_diagnose},
    {"bake", cmd_bake},
};

static const struct command *find(const char *name) {
    for (size_t i = 0; i < sizeof COMMANDS / sizeof COMMANDS[0]; i++)
        if (strcmp(name, COMMANDS[i].name) == 0) return &COMMANDS[i];
    return NULL;
}

/* What a command has written is only written when it has left the process. */
static int ended(const char *name, int status) {
    const bool lost = fflush(stdout) != 0 || ferror(stdout) != 0;
    if (!lost || status != 0) return status;
    fprintf(stderr, "laconic %s: the output cannot be written\n", name);
    return 1;
}

int main(int argc, char **argv) {
    /* A file over `ulimit -f` is a write that fails, not the end of a server. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        config_print_help(stderr, NULL);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        config_print_help(stdout, argc > 2 && find(argv[2]) != NULL ? argv[2] : NULL);
        return ended(name, 0);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        puts("laconic " LACONIC_VERSION);
        return ended(name, 0);
    }
    const struct command *c = find(name);
    if (c != NULL) return ended(name, c->run(argc - 1, argv + 1));
    if (config_command_comes_later(name)) {
        fprintf(stderr, "laconic: the command \"%s\" is not in this build\n", name);
        return 2;
    }
    fprintf(stderr, "laconic: no command \"%s\"; laconic --help lists them\n", name);
    return 2;
}
