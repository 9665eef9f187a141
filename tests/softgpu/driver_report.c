#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buffer.h"
#include "core/json_writer.h"
#include "tests/softgpu/driver.h"

struct kernel_stats *stats_of(const char *kernel) {
    struct kernel_stats **s = &soft.stats;
    for (; *s != NULL; s = &(*s)->next) {
        if (strcmp((*s)->name, kernel) == 0) return *s;
    }
    *s = soft_alloc(sizeof **s);
    snprintf((*s)->name, sizeof(*s)->name, "%s", kernel);
    return *s;
}

void stats_free(void) {
    for (struct kernel_stats *s = soft.stats, *next; s != NULL; s = next) {
        next = s->next;
        free(s->sum.bytes);
        free(s);
    }
    soft.stats = NULL;
}

static void add_bytes(struct exec_counters *sum, const struct exec_bytes *b) {
    uint32_t i = 0;
    while (i < sum->n_bytes && strcmp(sum->bytes[i].label, b->label) != 0) i++;
    if (i == sum->n_bytes) {
        struct exec_bytes *more = soft_alloc((sum->n_bytes + 1) * sizeof *more);
        if (sum->n_bytes > 0) memcpy(more, sum->bytes, sum->n_bytes * sizeof *more);
        free(sum->bytes);
        sum->bytes = more;
        memcpy(sum->bytes[i].label, b->label, sizeof b->label);
        sum->n_bytes++;
    }
    sum->bytes[i].loaded_bytes += b->loaded_bytes;
    sum->bytes[i].stored_bytes += b->stored_bytes;
}

/* X(counter): those that add up over launches. */
#define SUM_LIST(X)                                                                                \
    X(blocks)                                                                                      \
    X(warps)                                                                                       \
    X(barriers)                                                                                    \
    X(divergent_branches)                                                                          \
    X(global_load_requests)                                                                        \
    X(global_store_requests)                                                                       \
    X(global_load_sectors)                                                                         \
    X(global_store_sectors)                                                                        \
    X(global_load_needed)                                                                          \
    X(global_store_needed)                                                                         \
    X(shared_requests)                                                                             \
    X(shared_wavefronts)                                                                           \
    X(shared_ideal)

void stats_add(struct kernel_stats *s, const struct exec_result *r) {
    const struct exec_counters *c = &r->counters;
    struct exec_counters *sum = &s->sum;
    s->launches++;
    s->elapsed_ns += r->elapsed_ns;
#define X(counter) sum->counter += c->counter;
    SUM_LIST(X)
#undef X
    for (int i = 0; i < EXEC_CLASS_COUNT; i++) {
        sum->warp_instructions[i] += c->warp_instructions[i];
        sum->lane_instructions[i] += c->lane_instructions[i];
    }
    for (int i = 0; i < 33; i++) sum->shared_degree[i] += c->shared_degree[i];
    sum->live_registers = c->live_registers;
    sum->occupancy = c->occupancy;
    sum->resident_limit = c->resident_limit;
    if (c->resident_peak > sum->resident_peak) sum->resident_peak = c->resident_peak;
    for (uint32_t i = 0; i < c->n_bytes; i++) add_bytes(sum, &c->bytes[i]);
}

static uint64_t worst_conflict(const struct exec_counters *c) {
    for (uint64_t d = 32; d > 0; d--) {
        if (c->shared_degree[d] > 0) return d;
    }
    return 0;
}

static uint64_t counter_of(const struct kernel_stats *s, const char *name) {
    if (strcmp(name, "launches") == 0) return s->launches;
    if (strcmp(name, "shared_worst_conflict") == 0) return worst_conflict(&s->sum);
    if (strcmp(name, "live_registers") == 0) return s->sum.live_registers;
    if (strcmp(name, "occupancy") == 0) return s->sum.occupancy;
#define X(counter)                                                                                 \
    if (strcmp(name, #counter) == 0) return s->sum.counter;
    SUM_LIST(X)
#undef X
    for (int i = 0; i < EXEC_CLASS_COUNT; i++) {
        const char *class = exec_class_name((enum exec_class)i);
        if (strncmp(name, "lane.", 5) == 0 && strcmp(name + 5, class) == 0) {
            return s->sum.lane_instructions[i];
        }
        if (strncmp(name, "warp.", 5) == 0 && strcmp(name + 5, class) == 0) {
            return s->sum.warp_instructions[i];
        }
    }
    return 0;
}

__attribute__((visibility("default"))) uint64_t softgpu_counter(const char *kernel,
                                                                const char *counter) {
    soft_lock();
    uint64_t v = 0;
    for (const struct kernel_stats *s = soft.stats; s != NULL; s = s->next) {
        if (kernel[0] == '\0' || strcmp(s->name, kernel) == 0) v += counter_of(s, counter);
    }
    soft_unlock();
    return v;
}

static void field(struct json_writer *j, const char *key, uint64_t v) {
    json_write_key(j, key);
    json_write_uint(j, v);
}

static void text(struct json_writer *j, const char *key, const char *v) {
    json_write_key(j, key);
    json_write_string(j, v);
}

static void write_classes(struct json_writer *j, const char *key, const uint64_t *v) {
    json_write_key(j, key);
    json_write_object(j);
    for (int i = 0; i < EXEC_CLASS_COUNT; i++) {
        if (v[i] != 0) field(j, exec_class_name((enum exec_class)i), v[i]);
    }
    json_write_object_end(j);
}

static void write_kernel(struct json_writer *j, const struct kernel_stats *s) {
    const struct exec_counters *c = &s->sum;
    json_write_object(j);
    text(j, "kernel", s->name);
    field(j, "launches", s->launches);
#define X(counter) field(j, #counter, c->counter);
    SUM_LIST(X)
#undef X
    field(j, "shared_worst_conflict", worst_conflict(c));
    field(j, "live_registers", c->live_registers);
    field(j, "occupancy", c->occupancy);
    field(j, "resident_peak", c->resident_peak);
    write_classes(j, "warp_instructions", c->warp_instructions);
    write_classes(j, "lane_instructions", c->lane_instructions);
    json_write_key(j, "bytes");
    json_write_array(j);
    for (uint32_t i = 0; i < c->n_bytes; i++) {
        json_write_object(j);
        text(j, "range", c->bytes[i].label);
        field(j, "loaded", c->bytes[i].loaded_bytes);
        field(j, "stored", c->bytes[i].stored_bytes);
        json_write_object_end(j);
    }
    json_write_array_end(j);
    field(j, "interpreter_ns", s->elapsed_ns);
    json_write_object_end(j);
}

static void write_finding(struct json_writer *j, const struct finding *f) {
    json_write_object(j);
    text(j, "kind", finding_kind_name(f->kind));
    text(j, "where", f->kernel);
    field(j, "count", f->count);
    field(j, "ptx_line", f->ptx_line);
    field(j, "source_line", f->source_line);
    field(j, "address", f->address);
    text(j, "text", f->text);
    json_write_object_end(j);
}

bool report_write(const char *path) {
    struct buffer b;
    struct json_writer j;
    buffer_init(&b, 0);
    json_write_begin(&j, &b);
    json_write_object(&j);
    text(&j, "device", soft.spec->name);
    field(&j, "compute_capability", soft.device.compute_capability);
    field(&j, "sm_count", soft.device.sm_count);
    text(&j, "check", soft.check == EXEC_CHECK_FULL ? "full" : "bounds");
    field(&j, "seed", soft.seed);
    field(&j, "findings", finding_total(&soft.findings));
    field(&j, "findings_dropped", soft.findings.dropped);
    json_write_key(&j, "finding");
    json_write_array(&j);
    for (uint32_t i = 0; i < soft.findings.n; i++) write_finding(&j, &soft.findings.items[i]);
    json_write_array_end(&j);
    static const char *const kinds[] = {"kernels", "copies", "fills", "host_functions", "records"};
    json_write_key(&j, "executed");
    json_write_object(&j);
    for (int i = 0; i < WORK_JOIN; i++) field(&j, kinds[i], soft.executed[i]);
    field(&j, "never_waited_for", soft.n_pending);
    json_write_object_end(&j);
    field(&j, "bytes_in_use", memory_used_bytes(soft.memory));
    json_write_key(&j, "kernels");
    json_write_array(&j);
    for (const struct kernel_stats *s = soft.stats; s != NULL; s = s->next) write_kernel(&j, s);
    json_write_array_end(&j);
    json_write_object_end(&j);
    buffer_putc(&b, '\n');
    FILE *f = fopen(path, "we");
    bool ok = f != NULL && !b.full;
    if (ok) ok = fwrite(b.data, 1, b.len, f) == b.len;
    if (f != NULL) ok = fclose(f) == 0 && ok;
    buffer_free(&b);
    return ok;
}
