/* usage.h: how every command begins and how it fails. */
#ifndef LAC_CMD_USAGE_H
#define LAC_CMD_USAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "core/config.h"
#include "core/status.h"

/* Parses the command line of argv[0]. True: go on. False: stop with *exit_status (the help was
 * printed, or a line about the bad option). */
bool usage_parse(struct config *c, int argc, char **argv, int *exit_status);

/* What a file says of itself must not speak to the terminal: control characters but line feeds
 * become question marks. */
void usage_clean(char *text);

/* The message, behind the key or tensor of a file that it is about when it does not name it. */
void usage_reason(const struct error *e, char *text, size_t cap);

/* "laconic COMMAND: reason" on stderr; returns 1. */
int usage_fail(const char *command, const struct error *e);

/* All of a stream as a NUL-terminated string for the caller to free, at most max_bytes of it. */
enum status usage_read_all(FILE *in, size_t max_bytes, char **text, size_t *len, struct error *e);

/* STATUS_INVALID names the first byte that begins no well-formed sequence. */
enum status usage_check_utf8(const char *what, const char *text, size_t len, struct error *e);

#endif
