/* policy: what a running server's policy epoch is, and how its task model does; promotes a
 * candidate or goes back. */
#include <stdio.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/http_client.h"
#include "cmd/usage.h"

static const char NAME[] = "policy";

static const char *word(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL ? s : "?";
}

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static bool yes(const json_t *o, const char *key) {
    return json_is_true(json_object_get(o, key));
}

static void print_confusion(const json_t *scores, const json_t *labels) {
    size_t i, k;
    json_t *row, *n;
    printf("confusion (rows: truth)\n");
    json_array_foreach(json_object_get(scores, "confusion"), i, row) {
        printf("  %-20s", json_string_value(json_array_get(labels, i)));
        json_array_foreach(row, k, n) printf(" %6lld", (long long)json_integer_value(n));
        putchar('\n');
    }
}

static void print_test(const char *what, const json_t *t) {
    const json_t *now = json_object_get(t, "now"), *new = json_object_get(t, "candidate");
    if (t == NULL) return;
    printf("  %s: accuracy %.3f (now %.3f), macro-F1 %.3f (now %.3f), %lld rows\n", what,
           number(new, "accuracy"), number(now, "accuracy"), number(new, "macro_f1"),
           number(now, "macro_f1"), (long long)json_integer_value(json_object_get(new, "rows")));
}

static void print_report(const json_t *p) {
    const json_t *feedback = json_object_get(p, "feedback"), *drift = json_object_get(p, "drift");
    const json_t *scores = json_object_get(feedback, "of_this_epoch");
    const json_t *candidate = json_object_get(p, "candidate");
    printf("epoch %lld, policy %s, %s\n",
           (long long)json_integer_value(json_object_get(p, "epoch")), word(p, "policy"),
           word(p, "system_fingerprint"));
    printf("drift: %s after %lld rows\n", yes(drift, "alarm") ? "ALARM" : "no alarm",
           (long long)json_integer_value(json_object_get(drift, "rows")));
    printf("feedback: %lld labels; ",
           (long long)json_integer_value(json_object_get(feedback, "labels")));
    if (json_integer_value(json_object_get(scores, "rows")) > 0) {
        printf("accuracy %.3f, macro-F1 %.3f%s\n", number(scores, "accuracy"),
               number(scores, "macro_f1"), yes(feedback, "falling") ? ", FALLING" : "");
        print_confusion(scores, json_object_get(json_object_get(p, "task_model"), "labels"));
    } else {
        printf("none of this epoch\n");
    }
    if (!json_is_object(candidate)) return;
    printf("candidate: %s%s\n", word(candidate, "state"),
           yes(candidate, "better") ? ", better than what serves" : "");
    print_test("fresh rows", json_object_get(candidate, "on_fresh_rows"));
    print_test("old rows", json_object_get(candidate, "on_old_rows"));
}

int cmd_policy(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    if (c.promote && c.revert) {
        fprintf(stderr, "laconic policy: --promote and --revert exclude each other\n");
        return 2;
    }
    struct error e = {0};
    json_t *root;
    const enum status st = http_client_json(c.positional[0], c.promote || c.revert ? "POST" : "GET",
                                            c.promote  ? "/v1/policy/promote"
                                            : c.revert ? "/v1/policy/revert"
                                                       : "/v1/policy",
                                            &root, &e);
    if (st != STATUS_OK) return usage_fail(NAME, &e);
    if (c.json) {
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
    } else {
        print_report(root);
    }
    json_decref(root);
    return ferror(stdout) != 0;
}
