/* jinja.h: the template language of chat templates, a subset of Jinja2.
 *
 * What it runs: for (tuple targets, if, else, loop.*, break, continue), if, set (also blocks,
 * tuples and namespace attributes), macro, call, filter, with, raw, comments, generation blocks;
 * expressions with Python's semantics (slices, chained comparisons, ~, **, in, inline if, calls
 * with keywords and stars); filters, tests and methods as listed in jinja_filter.c and
 * jinja_method.c; range, namespace, dict, cycler, joiner, raise_exception, strftime_now. Undefined
 * names print as nothing; using one further is an error. trim_blocks and lstrip_blocks are on. Not
 * there: include, import, extends, block, recursive loops, autoescape (text is never escaped
 * unasked). Integers are 64 bits: an overflow is an error, never a wrong number.
 *
 * A template is compiled once and is then read-only: any number of threads may render it.
 * Hostile templates: nesting is limited at compile time, memory, work, call depth and output while
 * rendering; each limit is an error of its own. Stack: at most 160 KiB below jinja_render(), which
 * may therefore run in a chore.
 */
#ifndef LAC_MODELS_JINJA_H
#define LAC_MODELS_JINJA_H

#include "models/jinja_value.h"
#include "models/text_span.h"

struct jinja_template;

enum { JINJA_MAX_TEMPLATE_BYTES = 1 << 20 };

/* `text` must be UTF-8, at most JINJA_MAX_TEMPLATE_BYTES; it is not kept. STATUS_TEMPLATE with the
 * line for a syntax error or an unknown filter or test, STATUS_TOO_LARGE for a limit. */
enum status jinja_compile(const char *text, size_t len, struct jinja_template **out,
                          struct error *e) LAC_MUST_USE;
void jinja_free(struct jinja_template *t);

/* Renders with the variables in `vars` (a dict in c). The text is a string in c, with its
 * provenance. STATUS_TEMPLATE: the template failed, or raised its own exception (e->message is then
 * exactly its text, cut to fit). STATUS_GONE: the chore was cancelled. c can only be freed after a
 * failure. */
enum status jinja_render(const struct jinja_template *t, struct jinja_ctx *c,
                         struct jinja_value vars, struct jinja_string **out,
                         struct error *e) LAC_MUST_USE;

#endif
