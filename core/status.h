/* status.h: what a call can come back with.
 *
 * Every fallible function returns `enum status` by value; the compiler warns when it is dropped.
 * A caller that wants the story passes a `struct error`; it is written only when the status is not
 * STATUS_OK. On failure a function zeroes its outputs and leaves its inputs as they were.
 * The class says who is at fault and what may help: input (the caller's data), resource (try with
 * less), device, corrupt (a file or artefact lies), transient (try again), internal.
 * Programmer errors are assertions, not statuses; data from files, sockets and models never
 * asserts.
 */
#ifndef LAC_CORE_STATUS_H
#define LAC_CORE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#define LAC_MUST_USE     __attribute__((warn_unused_result))
#define LAC_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* X(code, name, class) */
#define STATUS_LIST(X)                                                                             \
    X(STATUS_OK, "ok", STATUS_CLASS_NONE)                                                          \
    X(STATUS_INVALID, "invalid argument", STATUS_CLASS_INPUT)                                      \
    X(STATUS_UNSUPPORTED, "not supported", STATUS_CLASS_INPUT)                                     \
    X(STATUS_NOT_FOUND, "not found", STATUS_CLASS_INPUT)                                           \
    X(STATUS_TOO_LARGE, "over a limit", STATUS_CLASS_INPUT)                                        \
    X(STATUS_CONTEXT_LENGTH, "context length exceeded", STATUS_CLASS_INPUT)                        \
    X(STATUS_TEMPLATE, "template error", STATUS_CLASS_INPUT)                                       \
    X(STATUS_CORRUPT, "corrupt data", STATUS_CLASS_CORRUPT)                                        \
    X(STATUS_NO_MEMORY, "out of memory", STATUS_CLASS_RESOURCE)                                    \
    X(STATUS_FULL, "full", STATUS_CLASS_RESOURCE)                                                  \
    X(STATUS_IO, "input/output error", STATUS_CLASS_TRANSIENT)                                     \
    X(STATUS_AGAIN, "not ready", STATUS_CLASS_TRANSIENT)                                           \
    X(STATUS_DEADLINE, "deadline passed", STATUS_CLASS_TRANSIENT)                                  \
    X(STATUS_GONE, "client went away", STATUS_CLASS_TRANSIENT)                                     \
    X(STATUS_DEVICE, "device error", STATUS_CLASS_DEVICE)                                          \
    X(STATUS_BAD_NUMBER, "not a number in the model's output", STATUS_CLASS_DEVICE)

enum status_class {
    STATUS_CLASS_NONE,
    STATUS_CLASS_INPUT,
    STATUS_CLASS_RESOURCE,
    STATUS_CLASS_DEVICE,
    STATUS_CLASS_CORRUPT,
    STATUS_CLASS_TRANSIENT,
};

#define X(code, name, class) code,
enum status { STATUS_LIST(X) STATUS_COUNT };
#undef X

struct error {
    enum status status;
    char field[64];    /* the option, request field or file key at fault; "" if none */
    char message[256]; /* one line for a person, no newline */
};

const char *status_name(enum status s);
enum status_class status_class_of(enum status s);

/* Fill `e` (which may be NULL) and return `s`. `field` may be NULL. Over-long text is cut. */
enum status error_set(struct error *e, enum status s, const char *field, const char *fmt, ...)
    LAC_PRINTF(4, 5);

#endif
