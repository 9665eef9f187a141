/* explain: why a running server answered a request as it did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/commands.h"
#include "cmd/http_client.h"
#include "cmd/usage.h"

static const char NAME[] = "explain";

static const char *word(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL ? s : "?";
}

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static long long whole(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_task(const json_t *task) {
    printf("task       %s, said by the %s", word(task, "type"), word(task, "by"));
    if (json_object_get(task, "likeliest") != NULL)
        printf("; likeliest %s with probability %.3f%s", word(task, "likeliest"),
               number(task, "probability"),
               json_is_true(json_object_get(task, "abstained")) ? ", the model abstains" : "");
    putchar('\n');
    size_t i;
    json_t *reason;
    json_array_foreach(json_object_get(task, "reasons"), i, reason)
        printf("           %s %s (%.2f)\n", i == 0 ? "because of" : "       and",
               word(reason, "feature"), number(reason, "score"));
}

/* {"temperature": 0.2, ...} as words. */
static void print_members(const json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        printf(" %s %s", key, text != NULL ? text : "?");
        free(text);
    }
}

static void print_decisions(const json_t *list) {
    size_t i;
    json_t *d;
    if (json_array_size(list) == 0) printf("decisions  none changed the answer\n");
    json_array_foreach(list, i, d) {
        printf("%s  %s", i == 0 ? "decisions" : "         ", word(d, "what"));
        const json_t *set = json_object_get(d, "set");
        if (set != NULL) {
            printf(" %s:", word(d, "preset"));
            print_members(set);
        } else {
            json_object_del(d, "what");
            print_members(d);
        }
        putchar('\n');
    }
}

static void print_costs(const json_t *p) {
    const json_t *cost = json_object_get(p, "cost_ms"), *steps = json_object_get(p, "steps");
    const json_t *tokens = json_object_get(p, "tokens"), *drafts = json_object_get(p, "drafts");
    const json_t *rollbacks = json_object_get(p, "rollbacks");
    printf("tokens     %lld of prompt (%lld cached), %lld of answer\n", whole(tokens, "prompt"),
           whole(tokens, "cached"), whole(tokens, "completion"));
    printf("cost       %.1f ms: tokenise %.1f, queue %.1f, prefill %.1f, decode %.1f; first token "
           "after %.1f\n",
           number(cost, "total"), number(cost, "tokenise"), number(cost, "queue"),
           number(cost, "prefill"), number(cost, "decode"), number(cost, "first_token"));
    static const char *const kinds[] = {"prefill", "decode", "verify"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const json_t *s = json_object_get(steps, kinds[k]);
        if (whole(s, "n") == 0) continue;
        printf("           %lld %s steps, %lld rows with those of others, %.1f ms\n", whole(s, "n"),
               kinds[k], whole(s, "rows"), number(s, "ms"));
    }
    printf("           drafts %lld, of them right %lld; rollbacks %lld (%lld tokens)\n",
           whole(drafts, "proposed"), whole(drafts, "accepted"), whole(rollbacks, "n"),
           whole(rollbacks, "tokens"));
}

static void print_savings(const char *title, const json_t *list) {
    size_t i;
    json_t *s;
    json_array_foreach(list, i, s) printf("%-10s %.1f ms by %s: %s\n", i == 0 ? title : "",
                                          number(s, "saved_ms"), word(s, "what"), word(s, "how"));
}

static void print_prompt(const json_t *p) {
    const json_t *sampling = json_object_get(p, "sampling");
    printf("state      %s; policy %s, epoch %lld, %s; seed %lld\n", word(p, "state"),
           word(p, "policy"), whole(p, "epoch"), word(p, "system_fingerprint"), whole(p, "seed"));
    print_task(json_object_get(p, "task"));
    print_decisions(json_object_get(p, "decisions"));
    printf("sampling  ");
    print_members(sampling);
    printf("\nends      ");
    size_t i;
    json_t *reason;
    json_array_foreach(json_object_get(p, "finish_reasons"), i, reason)
        printf(" %s", json_is_string(reason) ? json_string_value(reason) : "running");
    putchar('\n');
    print_costs(p);
    print_savings("saved", json_object_get(p, "saved_by"));
    print_savings("faster", json_object_get(p, "faster"));
}

/* The id percent-encoded, behind the address. */
static bool make_path(const char *id, char *path, size_t cap) {
    size_t n = (size_t)snprintf(path, cap, "/v1/requests/");
    for (; *id != '\0'; id++) {
        if (n + 4 > cap) return false;
        const unsigned char c = (unsigned char)*id;
        const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                           (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
        n += (size_t)snprintf(path + n, cap - n, plain ? "%c" : "%%%02X", c);
    }
    return true;
}

int cmd_explain(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    char path[512];
    json_t *root = NULL;
    enum status st = make_path(c.positional[1], path, sizeof path)
                         ? STATUS_OK
                         : error_set(&e, STATUS_INVALID, NULL, "that is no request's id");
    if (st == STATUS_OK) st = http_client_json(c.positional[0], "GET", path, &root, &e);
    if (st != STATUS_OK) return usage_fail(NAME, &e);
    if (c.json) {
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
    } else {
        size_t i;
        json_t *p;
        json_array_foreach(json_object_get(root, "prompts"), i, p) {
            if (i > 0) putchar('\n');
            print_prompt(p);
        }
    }
    json_decref(root);
    return ferror(stdout) != 0;
}
