#include <stdarg.h>
#include <string.h>

#include "tests/softgpu/run.h"

void report(struct warp *w, const struct op *op, enum finding_kind kind, uint32_t lane,
            uint64_t address, const char *fmt, ...) {
    const struct image_line *line = &w->image->lines[op->index];
    struct finding f = {.kind = kind,
                        .ptx_line = line->ptx_line,
                        .source_line = line->source_line,
                        .source_file = line->source_file,
                        .address = address};
    char text[FINDING_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    strncpy(f.kernel, w->image->name, sizeof f.kernel - 1);
    memcpy(f.block, w->block->id, sizeof f.block);
    lane_thread(w, lane, f.thread);
    finding_add(w->block->launch->findings, &f, "%s", text);
}

static void describe(const struct memory_range *r, uint64_t address, char *out, size_t size) {
    const unsigned long long n = r->size_bytes;
    const char *label = r->label[0] ? r->label : "allocation";
    if (address < r->base)
        snprintf(out, size, "%llu bytes before %s %llu (%llu bytes at %#llx)",
                 (unsigned long long)(r->base - address), label, (unsigned long long)r->sequence, n,
                 (unsigned long long)r->base);
    else if (address >= r->base + r->size_bytes)
        snprintf(out, size, "%llu bytes behind the end of %s %llu (%llu bytes at %#llx)",
                 (unsigned long long)(address - r->base - r->size_bytes), label,
                 (unsigned long long)r->sequence, n, (unsigned long long)r->base);
    else
        snprintf(out, size, "%llu bytes into %s %llu (%llu bytes at %#llx)",
                 (unsigned long long)(address - r->base), label, (unsigned long long)r->sequence, n,
                 (unsigned long long)r->base);
}

void report_address(struct warp *w, const struct op *op, uint32_t lane, uint64_t address,
                    uint32_t bytes, const char *what) {
    const struct memory_range *r = memory_near(w->block->launch->memory, address);
    if (!r) {
        report(w, op, FINDING_UNMAPPED, lane, address,
               "%s of %u bytes at %#llx, where no memory is", what, bytes,
               (unsigned long long)address);
        return;
    }
    char where[200];
    describe(r, address, where, sizeof where);
    const bool inside = address - r->base < r->size_bytes;
    if (r->state == MEMORY_FREED && inside) {
        report(w, op, r->kind == MEMORY_MAPPING ? FINDING_UNMAPPED : FINDING_FREED, lane, address,
               "%s of %u bytes, %s, which was freed", what, bytes, where);
        return;
    }
    if (inside && address + bytes <= r->base + r->size_bytes) {
        report(w, op, FINDING_ACCESS_RIGHTS, lane, address, "%s of %u bytes, %s, without the right",
               what, bytes, where);
        return;
    }
    report(w, op, FINDING_OUT_OF_BOUNDS, lane, address, "%s of %u bytes, %s", what, bytes, where);
}
