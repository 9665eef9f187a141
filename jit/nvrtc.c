#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/check.h"
#include "core/clock.h"

/* NVRTC's C interface, as NVIDIA documents it; there is no header where there is no toolkit. */
typedef struct nvrtc_program_opaque *program;
enum {
    RESULT_OK = 0,
    RESULT_NO_MEMORY = 1,
    RESULT_BAD_OPTION = 5,
    RESULT_COMPILATION = 6,
    RESULT_CANCELLED = 16,
};

struct nvrtc {
    void *library, *builtins;
    char version[32];
    int n_archs;
    int *archs;
    int (*get_version)(int *major, int *minor);
    int (*count_archs)(int *n);
    int (*list_archs)(int *archs);
    int (*create)(program *p, const char *source, const char *name, int n_headers,
                  const char *const *headers, const char *const *include_names);
    int (*destroy)(program *p);
    int (*compile)(program p, int n_options, const char *const *options);
    int (*cubin_size)(program p, size_t *bytes);
    int (*get_cubin)(program p, char *cubin);
    int (*ptx_size)(program p, size_t *bytes);
    int (*get_ptx)(program p, char *ptx);
    int (*log_size)(program p, size_t *bytes);
    int (*get_log)(program p, char *log);
    const char *(*error_string)(int result);
    /* NULL before 12.8. */
    int (*set_flow_callback)(program p, int (*callback)(void *arg, void *reserved), void *arg);
};

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
enum { N_SONAMES = sizeof sonames / sizeof sonames[0] };

static void *open_library(const char *path, struct error *e) {
    /* Local: its symbols must not answer for anybody else's. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) error_set(e, STATUS_NOT_FOUND, "nvrtc", "no NVRTC: %.200s", dlerror());
    return library;
}

static void *open_in_folder(const char *folder, struct error *e) {
    char path[4096];
    struct stat st;
    for (int i = 0; i < N_SONAMES; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s", folder, sonames[i]);
        if (n < 0 || (size_t)n >= sizeof path || stat(path, &st) != 0) continue;
        return open_library(path, e);
    }
    error_set(e, STATUS_NOT_FOUND, "nvrtc", "no NVRTC: %.100s holds neither %s nor %s", folder,
              sonames[0], sonames[1]);
    return NULL;
}

static void *search(const char *path, struct error *e) {
    if (path != NULL && path[0] != '\0') {
        struct stat st;
        if (stat(path, &st) != 0) {
            error_set(e, STATUS_NOT_FOUND, "nvrtc", "no NVRTC: %.150s: %s", path, strerror(errno));
            return NULL;
        }
        return S_ISDIR(st.st_mode) ? open_in_folder(path, e) : open_library(path, e);
    }
    for (int i = 0; i < N_SONAMES; i++) {
        void *library = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    void *library = open_in_folder("/usr/local/cuda/lib64", e);
    if (library == NULL) {
        error_set(e, STATUS_NOT_FOUND, "nvrtc",
                  "no NVRTC: the loader finds neither %s nor %s, and neither is in "
                  "/usr/local/cuda/lib64",
                  sonames[0], sonames[1]);
    }
    return library;
}

static bool bind(const struct nvrtc *n, const char *name, void *function) {
    void *symbol = dlsym(n->library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* NVRTC opens its other half by name when it first compiles, and finds it only where the loader
 * looks. Opened here from NVRTC's own folder it has that name already. */
static void open_builtins(struct nvrtc *n, int major, int minor) {
    void *symbol = dlsym(n->library, "nvrtcVersion");
    char path[4096];
    Dl_info info;
    if (dladdr(symbol, &info) == 0 || info.dli_fname == NULL) return;
    const char *end = strrchr(info.dli_fname, '/');
    const int n_folder = end != NULL ? (int)(end - info.dli_fname) : 0;
    const int used = snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", n_folder,
                              info.dli_fname, major, minor);
    if (end != NULL && used > 0 && (size_t)used < sizeof path)
        n->builtins = dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static enum status bind_all(struct nvrtc *n, struct error *e) {
#define BIND(field, name) bind(n, "nvrtc" #name, &n->field)
    const bool whole = BIND(get_version, Version) && BIND(count_archs, GetNumSupportedArchs) &&
                       BIND(list_archs, GetSupportedArchs) && BIND(create, CreateProgram) &&
                       BIND(destroy, DestroyProgram) && BIND(compile, CompileProgram) &&
                       BIND(cubin_size, GetCUBINSize) && BIND(get_cubin, GetCUBIN) &&
                       BIND(ptx_size, GetPTXSize) && BIND(get_ptx, GetPTX) &&
                       BIND(log_size, GetProgramLogSize) && BIND(get_log, GetProgramLog) &&
                       BIND(error_string, GetErrorString);
    (void)BIND(set_flow_callback, SetFlowCallback);
#undef BIND
    int major = 0, minor = 0;
    if (!whole || n->get_version(&major, &minor) != RESULT_OK) {
        return error_set(e, STATUS_UNSUPPORTED, "nvrtc", "the library found is not a usable NVRTC");
    }
    if (major != 12 && major != 13) {
        return error_set(e, STATUS_UNSUPPORTED, "nvrtc", "NVRTC is %d.%d; 12.x or 13.x is needed",
                         major, minor);
    }
    snprintf(n->version, sizeof n->version, "nvrtc %d.%d", major, minor);
    open_builtins(n, major, minor);
    int count = 0;
    if (n->count_archs(&count) != RESULT_OK || count <= 0 || count > 1000) {
        return error_set(e, STATUS_UNSUPPORTED, "nvrtc", "NVRTC names no architectures");
    }
    n->archs = calloc((size_t)count, sizeof *n->archs);
    if (n->archs == NULL) return error_set(e, STATUS_NO_MEMORY, "nvrtc", "no memory for NVRTC");
    if (n->list_archs(n->archs) == RESULT_OK) n->n_archs = count;
    return STATUS_OK;
}

enum status nvrtc_open(const char *path, struct nvrtc **out, struct error *e) {
    *out = NULL;
    struct nvrtc *n = calloc(1, sizeof *n);
    if (n == NULL) return error_set(e, STATUS_NO_MEMORY, "nvrtc", "no memory for NVRTC");
    n->library = search(path, e);
    const enum status s = n->library == NULL ? STATUS_NOT_FOUND : bind_all(n, e);
    if (s != STATUS_OK) {
        nvrtc_close(n);
        return s;
    }
    *out = n;
    return STATUS_OK;
}

void nvrtc_close(struct nvrtc *n) {
    if (n == NULL) return;
    if (n->library != NULL) dlclose(n->library);
    if (n->builtins != NULL) dlclose(n->builtins);
    free(n->archs);
    free(n);
}

const char *nvrtc_version(const struct nvrtc *n) {
    return n->version;
}

bool nvrtc_knows_arch(const struct nvrtc *n, uint32_t arch) {
    for (int i = 0; i < n->n_archs; i++) {
        if (n->archs[i] >= 0 && (uint32_t)n->archs[i] == arch) return true;
    }
    return false;
}

struct option_list {
    char text[NVRTC_OPTION_BYTES];
    char arch[32];
    const char *words[NVRTC_MAX_OPTIONS];
    int n;
};

static void split_options(const struct nvrtc_job *job, struct option_list *list) {
    const size_t len = strlen(job->options);
    CHECK(len < sizeof list->text);
    memcpy(list->text, job->options, len + 1);
    snprintf(list->arch, sizeof list->arch, "--gpu-architecture=sm_%u", job->arch);
    list->words[0] = list->arch;
    list->n = 1;
    char *rest = NULL;
    for (char *word = strtok_r(list->text, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        CHECK(list->n < NVRTC_MAX_OPTIONS);
        list->words[list->n++] = word;
    }
}

static int flow(void *arg, void *reserved) {
    (void)reserved;
    return atomic_load((const atomic_bool *)arg);
}

/* The line to show a person: the first that says error, else the first. */
static void first_error(const char *log, char *line, size_t cap) {
    const char *at = strstr(log, "error");
    at = at != NULL ? at : log;
    while (at > log && at[-1] != '\n') at--;
    snprintf(line, cap, "%.*s", (int)strcspn(at, "\r\n"), at);
}

static enum status fail(const struct nvrtc *n, const struct nvrtc_job *job, int result,
                        const char *log, struct error *e) {
    char line[160];
    first_error(log, line, sizeof line);
    switch (result) {
    case RESULT_NO_MEMORY:
        return error_set(e, STATUS_NO_MEMORY, "jit", "no memory to compile %.80s", job->name);
    case RESULT_CANCELLED:
        return error_set(e, STATUS_GONE, "jit", "compiling %.80s was stopped", job->name);
    case RESULT_BAD_OPTION:
    case RESULT_COMPILATION:
        return error_set(e, STATUS_INVALID, "jit", "%.70s does not compile for sm_%u: %s",
                         job->name, job->arch, line[0] != '\0' ? line : n->error_string(result));
    default:
        return error_set(e, STATUS_DEVICE, "jit", "NVRTC failed on %.80s: %.60s %s", job->name,
                         n->error_string(result), line);
    }
}

/* One of the program's texts, always with a NUL behind it. */
static int read_text(program p, int (*size)(program, size_t *), int (*get)(program, char *),
                     char **text, size_t *bytes) {
    size_t n = 0;
    const int result = size(p, &n);
    if (result != RESULT_OK) return result;
    char *data = malloc(n + 1);
    if (data == NULL) return RESULT_NO_MEMORY;
    const int got = n == 0 ? RESULT_OK : get(p, data);
    if (got != RESULT_OK) {
        free(data);
        return got;
    }
    data[n] = '\0';
    *text = data;
    *bytes = n;
    return RESULT_OK;
}

static int run(struct nvrtc *n, const struct nvrtc_job *job, program p, struct nvrtc_output *out) {
    struct option_list options;
    split_options(job, &options);
    if (job->cancel != NULL && n->set_flow_callback != NULL) {
        (void)n->set_flow_callback(p, flow, (void *)(uintptr_t)job->cancel);
    }
    const int result = n->compile(p, options.n, options.words);
    size_t log_bytes;
    (void)read_text(p, n->log_size, n->get_log, &out->log, &log_bytes);
    if (result != RESULT_OK) return result;
    char *cubin;
    int got = read_text(p, n->cubin_size, n->get_cubin, &cubin, &out->cubin_bytes);
    if (got != RESULT_OK) return got;
    out->cubin = (uint8_t *)cubin;
    got = read_text(p, n->ptx_size, n->get_ptx, &out->ptx, &out->ptx_bytes);
    if (got != RESULT_OK) return got;
    out->ptx_bytes = strlen(out->ptx) + 1;
    return RESULT_OK;
}

enum status nvrtc_compile(struct nvrtc *n, const struct nvrtc_job *job, struct nvrtc_output *out,
                          struct error *e) {
    *out = (struct nvrtc_output){0};
    if (!nvrtc_knows_arch(n, job->arch)) {
        return error_set(e, STATUS_UNSUPPORTED, "jit", "%s makes no code for sm_%u", n->version,
                         job->arch);
    }
    const uint64_t start_ns = clock_now_ns();
    /* An absolute name: a relative one would put this process's working folder into the artefact,
     * and two bakes of the same kernel would differ. */
    char file[256];
    snprintf(file, sizeof file, "/laconic/%s.cu",
             job->file_name != NULL ? job->file_name : job->name);
    program p = NULL;
    int result = n->create(&p, job->source, file, 0, NULL, NULL);
    if (result == RESULT_OK) {
        result = run(n, job, p, out);
        (void)n->destroy(&p);
    }
    const bool empty = result == RESULT_OK && (out->cubin_bytes == 0 || out->ptx_bytes <= 1);
    if (result != RESULT_OK || empty) {
        const char *log = out->log != NULL ? out->log : "";
        const enum status s =
            empty ? error_set(e, STATUS_DEVICE, "jit", "NVRTC made nothing of %.80s", job->name)
                  : fail(n, job, result, log, e);
        char *kept = out->log;
        out->log = NULL;
        nvrtc_output_free(out);
        out->log = kept;
        return s;
    }
    out->compile_ns = clock_now_ns() - start_ns;
    return STATUS_OK;
}

void nvrtc_output_free(struct nvrtc_output *out) {
    free(out->cubin);
    free(out->ptx);
    free(out->log);
    *out = (struct nvrtc_output){0};
}
