/* lint: what may go wrong with a prompt. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/commands.h"
#include "cmd/task_files.h"
#include "cmd/usage.h"
#include "models/encoder.h"
#include "models/prompt_lint.h"

static const char NAME[] = "lint";

static void print_span(const char *text, uint32_t start, uint32_t end) {
    putchar('\'');
    for (uint32_t i = start; i < end && i < start + 120; i++)
        putchar((unsigned char)text[i] < ' ' ? ' ' : text[i]);
    fputs(end > start + 120 ? "...'" : "'", stdout);
}

static void print_report(const char *text, const struct lint_report *r) {
    if (r->embedded)
        printf("contradiction score  %.3f (a conflict under 0.3)\n", r->contradiction_score);
    printf("ambiguity ratio      %.3f (warns over 0.15)\n", r->ambiguity_ratio);
    printf("constraint density   %.2f per 100 characters (asks for more under 0.5)\n",
           r->constraint_density);
    printf("anchors              %" PRIu32 " (warns over %d)\n", r->n_anchors, LINT_MAX_ANCHORS);
    for (uint32_t i = 0; i < r->n_findings; i++) {
        const struct lint_finding *f = &r->findings[i];
        printf("%s %" PRIu32 "-%" PRIu32 " %s", f->warning ? "warning" : "hint", f->start, f->end,
               lint_kind_name(f->kind));
        if (f->kind == LINT_CONFLICT) printf(" (cosine %.2f)", (double)f->score);
        fputs(": ", stdout);
        print_span(text, f->start, f->end);
        if (f->other_end > 0) {
            fputs(" / ", stdout);
            print_span(text, f->other_start, f->other_end);
        }
        printf("\n    %s\n", f->suggestion);
    }
}

static enum status report(const struct config *c, const char *text, const struct lint_report *r,
                          struct error *e) {
    if (!c->json) {
        print_report(text, r);
        return STATUS_OK;
    }
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    prompt_lint_write(&j, text, r, SIZE_MAX);
    return task_files_print(&b, e);
}

int cmd_lint(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};
    struct lint_options o = lint_defaults();
    struct encoder *enc = NULL;
    struct lint_report r;
    char *text = NULL;
    size_t len = 0;
    enum status st = c.encoder ? encoder_open(c.encoder, &enc, &e) : STATUS_OK;
    o.encoder = enc;
    if (st == STATUS_OK) st = usage_read_all(stdin, LINT_MAX_BYTES, &text, &len, &e);
    if (st == STATUS_OK) st = prompt_lint(text, len, &o, &r, &e);
    if (st == STATUS_OK) st = report(&c, text, &r, &e);
    free(text);
    encoder_close(enc);
    return st == STATUS_OK ? 0 : usage_fail(NAME, &e);
}
