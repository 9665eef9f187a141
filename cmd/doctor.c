/* doctor: what this machine offers Laconic, measured where it can be, and what is recommended. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "alloc/region.h"
#include "cmd/commands.h"
#include "cmd/usage.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/cpu/matmul.h"
#include "core/cpu_features.h"
#include "core/cuda.h"
#include "core/json_writer.h"
#include "core/worker_pool.h"
#include "io/ring.h"
#include "models/model.h"

enum { READ_BYTES = 96 << 20, SLICE_BYTES = 1 << 20, READ_ROUNDS = 5 };

struct read_job {
    const uint64_t *data;
    uint64_t sums[64]; /* by worker, so that nothing is optimised away */
};

static void read_slice(void *arg, uint32_t task, uint32_t worker) {
    struct read_job *job = arg;
    const uint64_t *p = job->data + (size_t)task * (SLICE_BYTES / 8);
    uint64_t s[8] = {0};
    for (size_t i = 0; i < SLICE_BYTES / 8; i += 8)
        for (size_t k = 0; k < 8; k++) s[k] += p[i + k];
    for (size_t k = 0; k < 8; k++) job->sums[worker % 64] += s[k];
}

/* Best of a few passes over a buffer larger than any cache, bytes per second. */
static double read_bandwidth(uint32_t threads, const uint64_t *data) {
    struct worker_pool *pool;
    struct error e;
    const struct worker_pool_config cfg = {.n_workers = threads};
    if (worker_pool_start(&cfg, &pool, &e) != STATUS_OK) return 0;
    struct read_job job = {.data = data};
    double best = 0;
    for (int r = 0; r < READ_ROUNDS; r++) {
        const uint64_t t0 = clock_now_ns();
        worker_pool_run(pool, read_slice, &job, READ_BYTES / SLICE_BYTES);
        const double rate = (double)READ_BYTES / ((double)(clock_now_ns() - t0) * 1e-9);
        if (rate > best) best = rate;
    }
    worker_pool_stop(pool);
    return best;
}

/* First line of a small file, "" if it cannot be read. */
static const char *first_line(const char *path, char *line, int cap) {
    FILE *f = fopen(path, "r");
    line[0] = '\0';
    if (f == NULL) return line;
    if (fgets(line, cap, f) == NULL) line[0] = '\0';
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static void ring_state(enum ring_kind kind, char text[320]) {
    struct ring *ring;
    struct error e = {0};
    const struct ring_config cfg = {.kind = kind, .max_sockets = 8, .n_buffers = 8};
    if (ring_open(&cfg, &ring, &e) != STATUS_OK) {
        snprintf(text, 320, "no: %s", e.message);
        return;
    }
    ring_close(ring);
    snprintf(text, 320, "yes");
}

/* The first CUDA device, or why there is none. */
static void describe_gpu(struct buffer *out) {
    struct cuda cu = {0};
    struct cuda_device d;
    struct error e = {0};
    enum status s = cuda_open(&cu, NULL, &e);
    if (s == STATUS_OK) s = cuda_device_read(&cu, 0, &d, &e);
    if (s == STATUS_OK)
        buffer_printf(out, "GPU              %s, %u SMs, compute capability %u.%u, %.1f GiB\n",
                      d.name, d.n_sms, d.cc / 10, d.cc % 10, (double)d.total_bytes / 1073741824);
    else
        buffer_printf(out, "GPU              none used: %s\n", e.message);
    cuda_close(&cu);
}

int cmd_doctor(int argc, char **argv) {
    struct config c;
    int rc;
    if (!usage_parse(&c, argc, argv, &rc)) return rc;
    struct error e = {0};

    struct cpu_features f;
    cpu_features_detect(&f);
    cpu_set_t set;
    CPU_ZERO(&set);
    const uint32_t cores =
        sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    struct utsname u;
    if (uname(&u) != 0) memset(&u, 0, sizeof u);
    struct rlimit memlock = {0}, files = {0};
    (void)getrlimit(RLIMIT_MEMLOCK, &memlock);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    const uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char thp[128], cgroup[64], uring[320], epoll[320];
    first_line("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof thp);
    first_line("/sys/fs/cgroup/memory.max", cgroup, sizeof cgroup);
    ring_state(RING_URING, uring);
    ring_state(RING_EPOLL, epoll);

    struct region buffer;
    if (region_take(&buffer, "doctor", READ_BYTES, 64, false, false, &e) != STATUS_OK)
        return usage_fail("doctor", &e);
    memset(buffer.data, 1, READ_BYTES);
    const double one = read_bandwidth(1, buffer.data);
    const double all = cores > 1 ? read_bandwidth(cores, buffer.data) : one;
    region_free(&buffer);
    double dots[CPU_ISA_COUNT][2] = {{0}};
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        for (int class = 0; class < 2 && cpu_isa_supported(&f, (enum cpu_isa)i); class ++)
            dots[i][class] = matmul_dot_rate((enum cpu_isa)i, (enum activation_format) class);

    struct buffer out;
    buffer_init(&out, 1 << 20);
    if (c.json) {
        struct json_writer j;
        json_write_begin(&j, &out);
        json_write_object(&j);
        json_write_key(&j, "cpu"), json_write_string(&j, f.brand);
        json_write_key(&j, "cores"), json_write_uint(&j, cores);
        json_write_key(&j, "isa"), json_write_string(&j, cpu_isa_name(cpu_isa_best(&f)));
        json_write_key(&j, "isa_supported"), json_write_array(&j);
        for (int i = 0; i < CPU_ISA_COUNT; i++)
            if (cpu_isa_supported(&f, (enum cpu_isa)i))
                json_write_string(&j, cpu_isa_name((enum cpu_isa)i));
        json_write_array_end(&j);
        json_write_key(&j, "l2_bytes"), json_write_uint(&j, f.l2_bytes);
        json_write_key(&j, "l3_bytes"), json_write_uint(&j, f.l3_bytes);
        json_write_key(&j, "ram_bytes"), json_write_uint(&j, ram);
        json_write_key(&j, "read_bytes_per_s_1_thread"), json_write_double(&j, round(one));
        json_write_key(&j, "read_bytes_per_s_all_threads"), json_write_double(&j, round(all));
        json_write_key(&j, "multiply_adds_per_s_1_thread"), json_write_object(&j);
        for (int i = 0; i < CPU_ISA_COUNT; i++) {
            if (dots[i][0] == 0) continue;
            json_write_key(&j, cpu_isa_name((enum cpu_isa)i)), json_write_object(&j);
            json_write_key(&j, "int16"), json_write_double(&j, round(dots[i][ACTIVATION_INT16]));
            json_write_key(&j, "int8"), json_write_double(&j, round(dots[i][ACTIVATION_INT8]));
            json_write_object_end(&j);
        }
        json_write_object_end(&j);
        json_write_key(&j, "io_uring"), json_write_string(&j, uring);
        json_write_key(&j, "epoll"), json_write_string(&j, epoll);
        json_write_key(&j, "kernel"), json_write_string(&j, u.release);
        json_write_object_end(&j);
        buffer_putc(&out, '\n');
    } else {
        buffer_printf(&out, "processor        %s, %u usable cores, L2 %.1f MiB, L3 %.1f MiB\n",
                      f.brand, cores, (double)f.l2_bytes / 1048576, (double)f.l3_bytes / 1048576);
        buffer_puts(&out, "instruction sets ");
        for (int i = 0; i < CPU_ISA_COUNT; i++)
            if (cpu_isa_supported(&f, (enum cpu_isa)i))
                buffer_printf(&out, "%s ", cpu_isa_name((enum cpu_isa)i));
        buffer_printf(&out, "(auto takes %s)\n", cpu_isa_name(cpu_isa_best(&f)));
        buffer_printf(&out, "memory           %.1f GiB; cgroup limit %s; memlock limit ",
                      (double)ram / 1073741824, cgroup[0] != '\0' ? cgroup : "unknown");
        if (memlock.rlim_cur == RLIM_INFINITY)
            buffer_puts(&out, "none\n");
        else
            buffer_printf(&out, "%llu KiB\n", (unsigned long long)memlock.rlim_cur / 1024);
        buffer_printf(&out,
                      "read bandwidth   %.1f GB/s with 1 thread, %.1f GB/s with %u (measured, "
                      "%d MiB)\n",
                      one / 1e9, all / 1e9, cores, READ_BYTES >> 20);
        for (int i = 0; i < CPU_ISA_COUNT; i++)
            if (dots[i][0] > 0)
                buffer_printf(&out,
                              "%-16s %.0f G multiply-adds/s of the int16 class, %.0f of the int8 "
                              "class (1 thread, measured)\n",
                              cpu_isa_name((enum cpu_isa)i), dots[i][ACTIVATION_INT16] / 1e9,
                              dots[i][ACTIVATION_INT8] / 1e9);
        buffer_printf(&out, "huge pages       %s\n", thp[0] != '\0' ? thp : "unknown");
        buffer_printf(&out, "kernel           %s %s\nio_uring         %s\nepoll            %s\n",
                      u.sysname, u.release, uring, epoll);
        buffer_printf(&out, "open files       %llu at most\n", (unsigned long long)files.rlim_cur);
        describe_gpu(&out);
        if (all > 0 && one > 0 && all < 1.1 * one)
            buffer_puts(&out, "note             one thread already reads as fast as all: a second "
                              "thread helps prefill, hardly decode\n");
        if (strstr(thp, "[never]") != NULL)
            buffer_puts(&out, "note             transparent huge pages are off: --huge-pages on "
                              "has no effect here\n");
        if (files.rlim_cur < 4096)
            buffer_puts(&out, "note             raise the open file limit for many clients "
                              "(ulimit -n 65536)\n");
    }
    int status = 0;
    if (c.model != NULL) {
        struct model *m;
        if (model_open(c.model, 0, &m, &e) != STATUS_OK) {
            status = usage_fail("doctor", &e);
        } else {
            const double bytes = (double)gguf_file_bytes(model_gguf(m));
            if (!c.json)
                buffer_printf(&out,
                              "decode roofline  %.0f tokens/s for this model at batch 1 "
                              "(%.1f MB read a token)\n",
                              all / bytes, bytes / 1e6);
            model_close(m);
        }
    }
    fwrite(out.data, 1, out.len, stdout);
    buffer_free(&out);
    return status;
}
