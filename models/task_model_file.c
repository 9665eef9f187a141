#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "alloc/map.h"
#include "models/task_model.h"
#include "models/task_model_impl.h"

enum section_kind {
    SECTION_LABELS = 1,  /* n_classes zero-padded names */
    SECTION_LINEAR = 2,  /* temperature, abstain_below, bias, dense [n_dense][n_classes] */
    SECTION_SCALES = 3,  /* FP32 [TASK_N_SCALES][n_classes] */
    SECTION_WEIGHTS = 4, /* int8 [TASK_N_BUCKETS][n_classes] */
    SECTION_SEEN = 5,
    SECTION_WORDS = 6, /* JSON */
    SECTION_NOTES = 7, /* JSON, optional */
    SECTION_HEAD = 8,  /* dim, layer, model digest, temperature, bias, weight; optional */
    SECTION_KINDS = 9,
};

enum { MAX_SECTIONS = 32, ALIGNMENT = 64, SECTION_VERSION = 1 };

struct header {
    char magic[4];
    uint32_t version;
    uint64_t file_bytes;
    uint8_t digest[16]; /* XXH3-128, canonical, of everything after the header */
    uint32_t n_sections, n_classes, n_dense, n_buckets;
    uint8_t zero[16];
};

struct section {
    uint32_t kind, version;
    uint64_t offset, bytes;
};

_Static_assert(sizeof(struct header) == 64 && sizeof(struct section) == 24, "as in the file");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little endian");

static void digest_of(const uint8_t *bytes, size_t n, uint8_t out[16]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    memcpy(out, canonical.digest, 16);
}

/* ---- reading ---- */

struct cursor {
    const uint8_t *at;
    size_t left;
};

static bool take(struct cursor *c, void *to, size_t n) {
    if (c->left < n) return false;
    memcpy(to, c->at, n);
    c->at += n;
    c->left -= n;
    return true;
}

static bool take_floats(struct cursor *c, float *to, size_t n) {
    if (!take(c, to, n * sizeof *to)) return false;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(to[i]) || fabsf(to[i]) > 1e6f) return false;
    return true;
}

static bool is_temperature(float t) {
    return t >= 1e-3f && t <= 1e3f;
}

static bool read_labels(struct task_model *m, struct cursor *c) {
    for (uint32_t k = 0; k < m->n_classes; k++) {
        if (!take(c, m->label[k], sizeof m->label[k])) return false;
        const char *s = m->label[k];
        if (s[0] == '\0' || memchr(s, '\0', sizeof m->label[k]) == NULL) return false;
        for (const char *p = s; *p != '\0'; p++)
            if (!(*p >= 'a' && *p <= 'z') && !(*p >= '0' && *p <= '9') && *p != '-' && *p != '_')
                return false;
        if (task_model_class(m, s) != (int)k) return false;
    }
    return true;
}

static bool read_linear(struct task_model *m, struct cursor *c, uint32_t n_dense) {
    if (!take_floats(c, &m->temperature, 1) || !take_floats(c, &m->abstain_below, 1) ||
        !take_floats(c, m->bias, m->n_classes))
        return false;
    for (uint32_t i = 0; i < n_dense; i++)
        if (!take_floats(c, m->dense[i], m->n_classes)) return false;
    return is_temperature(m->temperature) && m->abstain_below >= 0 && m->abstain_below <= 1;
}

static bool read_scales(struct task_model *m, struct cursor *c) {
    for (size_t i = 0; i < TASK_N_SCALES; i++)
        if (!take_floats(c, m->scale[i], m->n_classes)) return false;
    return true;
}

static enum status read_words(struct task_model *m, struct cursor *c, struct error *e) {
    const enum status st = task_words_parse((const char *)c->at, c->left, &m->words, e);
    c->left = 0;
    return st;
}

static bool read_notes(struct task_model *m, struct cursor *c) {
    return c->left <= TASK_MAX_NOTES_BYTES && memchr(c->at, '\0', c->left) == NULL &&
           take(c, m->notes, c->left);
}

static enum status read_head(struct task_model *m, struct cursor *c, struct error *e) {
    uint32_t shape[2];
    if (!take(c, shape, sizeof shape) || shape[0] == 0 || shape[0] > TASK_MAX_HEAD_DIM ||
        shape[1] > 100000)
        return error_set(e, STATUS_CORRUPT, "head", "the task model's head has a wrong shape");
    const enum status st = task_head_new(m, shape[0], e);
    if (st != STATUS_OK) return st;
    m->head.layer = shape[1];
    if (!take(c, m->head.model, sizeof m->head.model) || !take_floats(c, &m->head.temperature, 1) ||
        !is_temperature(m->head.temperature) || !take_floats(c, m->head.bias, m->n_classes) ||
        !take_floats(c, m->head.weight, (size_t)m->head.dim * m->n_classes))
        return error_set(e, STATUS_CORRUPT, "head", "the task model's head is damaged");
    return STATUS_OK;
}

static enum status read_section(struct task_model *m, const struct header *h,
                                const struct section *s, const uint8_t *bytes, struct error *e) {
    struct cursor c = {bytes + s->offset, (size_t)s->bytes};
    bool ok = true;
    enum status st = STATUS_OK;
    switch (s->kind) {
    case SECTION_LABELS:
        ok = read_labels(m, &c);
        break;
    case SECTION_LINEAR:
        ok = read_linear(m, &c, h->n_dense);
        break;
    case SECTION_SCALES:
        ok = read_scales(m, &c);
        break;
    case SECTION_WEIGHTS:
        ok = take(&c, m->weight, (size_t)TASK_N_BUCKETS * m->n_classes);
        break;
    case SECTION_SEEN:
        ok = take(&c, m->seen, TASK_SEEN_BYTES);
        break;
    case SECTION_WORDS:
        st = read_words(m, &c, e);
        break;
    case SECTION_NOTES:
        ok = read_notes(m, &c);
        break;
    default:
        st = read_head(m, &c, e);
        break;
    }
    if (st == STATUS_OK && (!ok || c.left != 0))
        st = error_set(e, STATUS_CORRUPT, NULL, "section %u of the task model is damaged", s->kind);
    return st;
}

static enum status check_header(const struct header *h, const uint8_t *bytes, size_t n,
                                struct error *e) {
    if (memcmp(h->magic, "LACT", 4) != 0)
        return error_set(e, STATUS_CORRUPT, "magic", "this is not a task model");
    if (h->version != TASK_MODEL_VERSION)
        return error_set(e, STATUS_UNSUPPORTED, "version",
                         "the task model has version %u, this build reads %d", h->version,
                         TASK_MODEL_VERSION);
    uint8_t digest[16];
    digest_of(bytes + sizeof *h, n - sizeof *h, digest);
    if (h->file_bytes != n || memcmp(digest, h->digest, 16) != 0)
        return error_set(e, STATUS_CORRUPT, "digest",
                         "the task model is damaged: its size or checksum is wrong");
    if (h->n_classes < 2 || h->n_classes > TASK_MAX_CLASSES || h->n_sections > MAX_SECTIONS ||
        h->n_sections * sizeof(struct section) > n - sizeof *h)
        return error_set(e, STATUS_CORRUPT, NULL, "the task model's counts are out of range");
    /* Other features than this build's would be weighed with wrong weights. */
    if (h->n_dense != task_n_dense() || h->n_buckets != TASK_N_BUCKETS)
        return error_set(e, STATUS_UNSUPPORTED, NULL,
                         "the task model is for %u measures and %u buckets, this build has %u and "
                         "%d: train it again",
                         h->n_dense, h->n_buckets, task_n_dense(), TASK_N_BUCKETS);
    return STATUS_OK;
}

static enum status read_sections(struct task_model *m, const struct header *h, const uint8_t *bytes,
                                 size_t n, struct error *e) {
    uint32_t seen = 0;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        struct section s;
        memcpy(&s, bytes + sizeof *h + i * sizeof s, sizeof s);
        if (s.offset % ALIGNMENT != 0 || s.offset > n || s.bytes > n - s.offset)
            return error_set(e, STATUS_CORRUPT, NULL, "a section of the task model lies outside");
        if (s.kind == 0 || s.kind >= SECTION_KINDS) continue;
        if (s.version != SECTION_VERSION || (seen >> s.kind & 1) != 0)
            return error_set(e, STATUS_CORRUPT, NULL, "section %u of the task model is %s", s.kind,
                             s.version != SECTION_VERSION ? "of another version" : "there twice");
        seen |= 1u << s.kind;
        const enum status st = read_section(m, h, &s, bytes, e);
        if (st != STATUS_OK) return st;
    }
    const uint32_t needed = (1u << (SECTION_WORDS + 1)) - 2;
    if ((seen & needed) != needed)
        return error_set(e, STATUS_CORRUPT, NULL, "the task model lacks a section");
    return STATUS_OK;
}

enum status task_model_read(const void *bytes, size_t n, struct task_model **out, struct error *e) {
    *out = NULL;
    struct header h;
    if (n < sizeof h) return error_set(e, STATUS_CORRUPT, NULL, "the task model is cut short");
    if (n > TASK_MODEL_MAX_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the task model is over %d bytes",
                         TASK_MODEL_MAX_BYTES);
    memcpy(&h, bytes, sizeof h);
    enum status st = check_header(&h, bytes, n, e);
    if (st != STATUS_OK) return st;
    struct task_model *m;
    st = task_model_new(h.n_classes, &m, e);
    if (st != STATUS_OK) return st;
    st = read_sections(m, &h, bytes, n, e);
    if (st != STATUS_OK) {
        task_model_free(m);
        return st;
    }
    *out = m;
    return STATUS_OK;
}

enum status task_model_open(const char *path, struct task_model **out, struct error *e) {
    *out = NULL;
    struct map map;
    enum status st = map_open(path, &map, e);
    if (st != STATUS_OK) return st;
    st = task_model_read(map.data, map.bytes, out, e);
    map_close(&map);
    return st;
}

/* ---- writing ---- */

struct writer {
    struct buffer *out;
    struct section table[SECTION_KINDS];
    uint32_t n;
};

static void begin(struct writer *w, enum section_kind kind) {
    static const char zeros[ALIGNMENT];
    buffer_append(w->out, zeros, (ALIGNMENT - w->out->len % ALIGNMENT) % ALIGNMENT);
    w->table[w->n] =
        (struct section){.kind = kind, .version = SECTION_VERSION, .offset = w->out->len};
}

static void end(struct writer *w) {
    w->table[w->n].bytes = w->out->len - w->table[w->n].offset;
    w->n++;
}

static void put(struct writer *w, const void *from, size_t n) {
    buffer_append(w->out, from, n);
}

static void write_required(struct writer *w, const struct task_model *m) {
    const size_t row = m->n_classes * sizeof(float);
    begin(w, SECTION_LABELS);
    put(w, m->label, m->n_classes * sizeof m->label[0]);
    end(w);
    begin(w, SECTION_LINEAR);
    put(w, &m->temperature, sizeof m->temperature);
    put(w, &m->abstain_below, sizeof m->abstain_below);
    put(w, m->bias, row);
    for (uint32_t i = 0; i < task_n_dense(); i++) put(w, m->dense[i], row);
    end(w);
    begin(w, SECTION_SCALES);
    for (size_t i = 0; i < TASK_N_SCALES; i++) put(w, m->scale[i], row);
    end(w);
    begin(w, SECTION_WEIGHTS);
    put(w, m->weight, (size_t)TASK_N_BUCKETS * m->n_classes);
    end(w);
    begin(w, SECTION_SEEN);
    put(w, m->seen, TASK_SEEN_BYTES);
    end(w);
    begin(w, SECTION_WORDS);
    task_words_write(m->words, w->out);
    end(w);
}

static void write_optional(struct writer *w, const struct task_model *m) {
    if (m->notes[0] != '\0') {
        begin(w, SECTION_NOTES);
        put(w, m->notes, strlen(m->notes));
        end(w);
    }
    if (m->head.dim == 0) return;
    const uint32_t shape[2] = {m->head.dim, m->head.layer};
    begin(w, SECTION_HEAD);
    put(w, shape, sizeof shape);
    put(w, m->head.model, sizeof m->head.model);
    put(w, &m->head.temperature, sizeof m->head.temperature);
    put(w, m->head.bias, m->n_classes * sizeof m->head.bias[0]);
    put(w, m->head.weight, (size_t)m->head.dim * m->n_classes * sizeof m->head.weight[0]);
    end(w);
}

enum status task_model_write(const struct task_model *m, struct buffer *out, struct error *e) {
    struct writer w = {.out = out};
    struct header h = {.magic = "LACT",
                       .version = TASK_MODEL_VERSION,
                       .n_classes = m->n_classes,
                       .n_dense = task_n_dense(),
                       .n_buckets = TASK_N_BUCKETS};
    buffer_clear(out);
    put(&w, &h, sizeof h);
    put(&w, w.table, sizeof w.table);
    write_required(&w, m);
    write_optional(&w, m);
    if (out->full) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the task model");
    if (out->len > TASK_MODEL_MAX_BYTES)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the task model has %zu bytes, over %d",
                         out->len, TASK_MODEL_MAX_BYTES);
    memcpy(out->data + sizeof h, w.table, sizeof w.table);
    h.n_sections = w.n;
    h.file_bytes = out->len;
    digest_of((const uint8_t *)out->data + sizeof h, out->len - sizeof h, h.digest);
    memcpy(out->data, &h, sizeof h);
    return STATUS_OK;
}

static bool write_file(const char *path, const struct buffer *b) {
    FILE *f = fopen(path, "wb");
    if (f == NULL) return false;
    bool ok = fwrite(b->data, 1, b->len, f) == b->len && fflush(f) == 0 && fsync(fileno(f)) == 0;
    return fclose(f) == 0 && ok;
}

enum status task_model_save(const struct task_model *m, const char *path, struct error *e) {
    char temporary[4096];
    const int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return error_set(e, STATUS_TOO_LARGE, NULL, "the path is too long");
    struct buffer b;
    buffer_init(&b, 2 * TASK_MODEL_MAX_BYTES);
    enum status st = task_model_write(m, &b, e);
    if (st == STATUS_OK && (!write_file(temporary, &b) || rename(temporary, path) != 0)) {
        unlink(temporary);
        st = error_set(e, STATUS_IO, NULL, "%s cannot be written", path);
    }
    buffer_free(&b);
    return st;
}
