/* nvtx_tool.h: a stand-in for a profiler's injection library (nvtx_tool.c, built to
 * tests/core/nvtx_tool.so), written against NVTX's documentation apart from core/nvtx.c: it
 * attaches by the injection protocol and keeps what it is told. */
#ifndef LAC_TESTS_CORE_NVTX_TOOL_H
#define LAC_TESTS_CORE_NVTX_TOOL_H

#include <stdint.h>

enum { TOOL_LOG = 64 };
enum tool_mode {
    TOOL_REFUSES,    /* InitializeInjectionNvtx2 says 0 */
    TOOL_PLAIN,      /* no payload extension */
    TOOL_STRUCTURES, /* takes schemas */
    TOOL_DEAF,       /* attaches and asks for no events */
};
struct tool_event {
    int push; /* 0: pop */
    int domain_matches;
    char name[160];
    int structured;
    uint64_t bytes, flops; /* by the schema's field names */
    uint64_t payload;      /* when not structured */
};
struct tool_log {
    enum tool_mode mode; /* set before opening */
    int version;
    char domain[64];
    int domain_destroyed;
    int n;
    struct tool_event events[TOOL_LOG];
};

/* Exported as "nvtx_tool_log". */
typedef struct tool_log *nvtx_tool_log_fn(void);

/* For tests, after cmocka.h: where the library is, and its log, emptied. */
#ifdef CMOCKA_H_
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline const char *nvtx_tool_path(void) {
    static char path[512];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/tests/core/nvtx_tool.so", build != NULL ? build : "build");
    return path;
}

static inline struct tool_log *nvtx_tool(enum tool_mode mode) {
    void *library = dlopen(nvtx_tool_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) fail_msg("%s", dlerror());
    void *p = dlsym(library, "nvtx_tool_log");
    nvtx_tool_log_fn *log_of;
    assert_non_null(p);
    memcpy(&log_of, &p, sizeof p);
    dlclose(library);
    struct tool_log *log = log_of();
    memset(log, 0, sizeof *log);
    log->mode = mode;
    return log;
}
#endif

#endif
