/* record_vectors.c: runs every form of tests/softgpu/vector_forms.h on the CUDA device and writes
 * operands and results, in that header's format.
 *
 * usage: record_vectors OUT.txt    (libcuda.so.1 as the loader finds it)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/cuda.h"
#include "tests/softgpu/vector_forms.h"

enum { IN_BYTES = 32 * VECTOR_LANE_IN * 4, OUT_BYTES = 32 * VECTOR_LANE_OUT * 4 };

static struct cuda cu;
static struct cuda_device device;
static struct error e;

/* The kernel's results for `in`; false: the chip or the driver has no such instruction. */
static bool run(const struct vector_form *f, const void *in, size_t in_bytes, void *out,
                size_t out_bytes) {
    static char text[VECTOR_TEXT_BYTES];
    const char *version = cu.driver_version >= 13000   ? "9.0"
                          : cu.driver_version >= 12080 ? "8.7"
                          : cu.driver_version >= 12000 ? "8.0"
                                                       : "7.8";
    struct cu_module *module;
    struct cu_function *function;
    uint64_t d_in = 0, d_out = 0;
    char log[256];
    vector_kernel(f, version, device.cc, text);
    if (cuda_module_load(&cu, text, log, sizeof log, &module, &e) != STATUS_OK) return false;
    const struct cuda_launch launch = {.grid = {1, 1, 1},
                                       .block = {f->kind == 'S' ? VECTOR_SETS : 32, 1, 1}};
    void *params[] = {&d_in, &d_out};
    enum status s = CUDA_CALL(&cu, &e, module_get_function, &function, module, "k");
    if (s == STATUS_OK) s = CUDA_CALL(&cu, &e, mem_alloc, &d_in, in_bytes);
    if (s == STATUS_OK) s = CUDA_CALL(&cu, &e, mem_alloc, &d_out, out_bytes);
    if (s == STATUS_OK) s = CUDA_CALL(&cu, &e, memcpy_htod_async, d_in, in, in_bytes, NULL);
    if (s == STATUS_OK) s = cuda_launch(&cu, function, &launch, params, NULL, &e);
    if (s == STATUS_OK) s = CUDA_CALL(&cu, &e, memcpy_dtoh_async, out, d_out, out_bytes, NULL);
    if (s == STATUS_OK) s = CUDA_CALL(&cu, &e, stream_synchronize, NULL);
    if (d_in != 0) (void)cu.mem_free(d_in);
    if (d_out != 0) (void)cu.mem_free(d_out);
    (void)cu.module_unload(module);
    if (s == STATUS_OK) return true;
    fprintf(stderr, "record_vectors: %s: %s\n", f->text, e.message);
    exit(1);
}

static bool record(const struct vector_form *f, uint64_t *seed, FILE *to) {
    static uint64_t in[VECTOR_SETS][3], out[VECTOR_SETS];
    static uint32_t lanes[32][VECTOR_LANE_IN], results[32][VECTOR_LANE_OUT];
    fprintf(to, "form %c %c %u %s\n", f->kind, f->result, f->ulps, f->text);
    if (f->kind == 'S') {
        for (int i = 0; i < VECTOR_SETS; i++)
            for (int k = 0; k < 3; k++) in[i][k] = vector_operand(seed);
        if (!run(f, in, sizeof in, out, sizeof out)) return false;
        for (int i = 0; i < VECTOR_SETS; i++)
            fprintf(to, "%llx %llx %llx %llx\n", (unsigned long long)in[i][0],
                    (unsigned long long)in[i][1], (unsigned long long)in[i][2],
                    (unsigned long long)out[i]);
        return true;
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < VECTOR_LANE_IN; i++) lanes[l][i] = (uint32_t)vector_random(seed);
    if (!run(f, lanes, sizeof lanes, results, sizeof results)) return false;
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < VECTOR_LANE_IN; i++) fprintf(to, "%x ", lanes[l][i]);
        for (int i = 0; i < VECTOR_LANE_OUT; i++)
            fprintf(to, "%x%c", results[l][i], i + 1 < VECTOR_LANE_OUT ? ' ' : '\n');
    }
    return true;
}

int main(int argc, char **argv) {
    struct cu_context *context;
    uint64_t seed = 0x9e3779b97f4a7c15u;
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUT.txt\n", argv[0]);
        return 2;
    }
    if (cuda_open(&cu, NULL, &e) != STATUS_OK ||
        cuda_device_read(&cu, 0, &device, &e) != STATUS_OK ||
        cuda_context_open(&cu, &device, &context, &e) != STATUS_OK) {
        fprintf(stderr, "record_vectors: %s\n", e.message);
        return 1;
    }
    FILE *to = fopen(argv[1], "w");
    if (to == NULL) {
        perror(argv[1]);
        return 1;
    }
    fprintf(to, "# device %s, compute capability %u.%u, driver %d\n", device.name, device.cc / 10,
            device.cc % 10, cu.driver_version);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < VECTOR_FORMS; i++)
        if (!record(&vector_forms[i], &seed, to)) {
            fprintf(to, "refused\n");
            refused++;
        }
    cuda_context_close(&cu, &device);
    cuda_close(&cu);
    if (fclose(to) != 0) return 1;
    printf("%d forms recorded on %s, %u of them refused by it\n", (int)VECTOR_FORMS, device.name,
           refused);
    return 0;
}
