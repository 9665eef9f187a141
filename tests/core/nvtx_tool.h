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

#endif
