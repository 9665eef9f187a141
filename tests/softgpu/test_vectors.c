/* The interpreter against results recorded on hardware (the .txt files of tests/softgpu/vectors,
 * format in vector_forms.h). Until somebody has run tests/gpu_check.sh on a GPU there are none, and
 * the instructions are unconfirmed: this test then says so, and checks only that it would notice.
 */
#include "tests/softgpu/harness.h"

#include <dirent.h>
#include <math.h>

#include "tests/softgpu/vector_forms.h"

struct replay {
    FILE *f;
    char line[4096];
    uint32_t forms, confirmed, refused, wrong;
};

static bool close_enough(uint32_t a, uint32_t b, uint32_t ulps) {
    float x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    if (a == b || (ulps > 0 && x != x && y != y)) return true;
    /* Sums of many products: hardware adds them in an order of its own. */
    if (ulps >= VECTOR_LOOSE_ULPS) return fabsf(x - y) <= 4e-6f * fmaxf(1, fabsf(x));
    const int64_t i = (int32_t)a < 0 ? INT32_MIN - (int64_t)(int32_t)a : (int32_t)a;
    const int64_t j = (int32_t)b < 0 ? INT32_MIN - (int64_t)(int32_t)b : (int32_t)b;
    return ulps > 0 && llabs(i - j) <= (int64_t)ulps;
}

/* What the interpreter makes of the inputs of one form. */
static void interpret(const struct vector_form *f, const void *in, size_t in_bytes, void *out,
                      size_t out_bytes) {
    static char text[VECTOR_TEXT_BYTES];
    struct harness h;
    vector_kernel(f, "9.0", 120, text);
    harness_start(&h, true, 0);
    harness_load(&h, text);
    const uint64_t a = harness_buffer(&h, in_bytes, in);
    const uint64_t b = harness_buffer(&h, out_bytes, NULL);
    harness_arg(&h, a);
    harness_arg(&h, b);
    harness_launch(&h, "k", 1, f->kind == 'S' ? VECTOR_SETS : 32);
    harness_expect_clean(&h);
    harness_read(&h, b, out, out_bytes);
    harness_stop(&h);
}

static bool next_line(struct replay *r) {
    if (fgets(r->line, sizeof r->line, r->f) == NULL) return false;
    r->line[strcspn(r->line, "\n")] = '\0';
    return true;
}

static const struct vector_form *known_form(char kind, const char *text) {
    for (uint32_t i = 0; i < VECTOR_FORMS; i++)
        if (vector_forms[i].kind == kind && strcmp(vector_forms[i].text, text) == 0)
            return &vector_forms[i];
    return NULL; /* of an older table */
}

static bool replay_scalar(struct replay *r, const struct vector_form *f) {
    static uint64_t in[VECTOR_SETS][3], want[VECTOR_SETS], got[VECTOR_SETS];
    for (int i = 0; i < VECTOR_SETS; i++) {
        unsigned long long v[4];
        if (i > 0 && !next_line(r)) fail_msg("a file of vectors ends early");
        if (sscanf(r->line, "%llx %llx %llx %llx", &v[0], &v[1], &v[2], &v[3]) != 4)
            fail_msg("not a vector: %s", r->line);
        for (int k = 0; k < 3; k++) in[i][k] = v[k];
        want[i] = v[3];
    }
    interpret(f, in, sizeof in, got, sizeof got);
    for (int i = 0; i < VECTOR_SETS; i++) {
        const bool equal = f->result == 'f'
                               ? close_enough((uint32_t)got[i], (uint32_t)want[i], f->ulps)
                               : got[i] == want[i];
        if (equal) continue;
        print_error("%s  a=%llx b=%llx c=%llx: %llx, the device says %llx\n", f->text,
                    (unsigned long long)in[i][0], (unsigned long long)in[i][1],
                    (unsigned long long)in[i][2], (unsigned long long)got[i],
                    (unsigned long long)want[i]);
        return false;
    }
    return true;
}

static bool replay_warp(struct replay *r, const struct vector_form *f) {
    static uint32_t in[32][VECTOR_LANE_IN], want[32][VECTOR_LANE_OUT], got[32][VECTOR_LANE_OUT];
    for (int l = 0; l < 32; l++) {
        if (l > 0 && !next_line(r)) fail_msg("a file of vectors ends early");
        char *at = r->line;
        for (int i = 0; i < VECTOR_LANE_IN + VECTOR_LANE_OUT; i++) {
            const uint32_t v = (uint32_t)strtoul(at, &at, 16);
            if (i < VECTOR_LANE_IN)
                in[l][i] = v;
            else
                want[l][i - VECTOR_LANE_IN] = v;
        }
    }
    interpret(f, in, sizeof in, got, sizeof got);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < VECTOR_LANE_OUT; i++) {
            if (close_enough(got[l][i], want[l][i], f->ulps)) continue;
            print_error("%s  lane %d: r%d is %x, the device says %x\n", f->text, l, i, got[l][i],
                        want[l][i]);
            return false;
        }
    return true;
}

static void replay(struct replay *r) {
    bool more = next_line(r);
    while (more) {
        char kind, result;
        unsigned ulps;
        int text = 0;
        if (r->line[0] == '#') {
            print_message("%s\n", r->line + 2);
            more = next_line(r);
            continue;
        }
        if (sscanf(r->line, "form %c %c %u %n", &kind, &result, &ulps, &text) != 3)
            fail_msg("not a form: %s", r->line);
        const struct vector_form *f = known_form(kind, r->line + text);
        r->forms++;
        if (!next_line(r)) fail_msg("a file of vectors ends early");
        if (strcmp(r->line, "refused") == 0) {
            r->refused++;
            more = next_line(r);
        } else if (f == NULL) {
            do more = next_line(r);
            while (more && strncmp(r->line, "form ", 5) != 0);
        } else {
            const bool equal = kind == 'S' ? replay_scalar(r, f) : replay_warp(r, f);
            r->confirmed += equal;
            r->wrong += !equal;
            more = next_line(r);
        }
    }
}

static void hardware_agrees(void **state) {
    (void)state;
    DIR *folder = opendir("tests/softgpu/vectors");
    struct replay all = {0};
    for (struct dirent *d; folder != NULL && (d = readdir(folder)) != NULL;) {
        char path[512];
        const size_t n = strlen(d->d_name);
        if (n < 4 || strcmp(d->d_name + n - 4, ".txt") != 0) continue;
        snprintf(path, sizeof path, "tests/softgpu/vectors/%s", d->d_name);
        all.f = fopen(path, "r");
        assert_non_null(all.f);
        replay(&all);
        fclose(all.f);
    }
    if (folder != NULL) closedir(folder);
    if (all.forms == 0)
        print_message("%d PTX forms, all unconfirmed: no vectors of a GPU are here\n",
                      (int)VECTOR_FORMS);
    else
        print_message("%u forms: %u confirmed, %u refused by their device, %u wrong\n", all.forms,
                      all.confirmed, all.refused, all.wrong);
    assert_int_equal(all.wrong, 0);
}

/* Results of the interpreter itself are replayed without a difference, one changed bit is seen. */
static void a_difference_is_seen(void **state) {
    (void)state;
    uint64_t seed = 5;
    static uint64_t in[VECTOR_SETS][3], out[VECTOR_SETS];
    static uint32_t lanes[32][VECTOR_LANE_IN], results[32][VECTOR_LANE_OUT];
    for (uint32_t i = 0; i < VECTOR_FORMS; i += i + 12 < VECTOR_FORMS ? 11 : 1)
        for (int spoil = 0; spoil < 2; spoil++) {
            const struct vector_form *f = &vector_forms[i];
            struct replay r = {.f = tmpfile()};
            assert_non_null(r.f);
            fprintf(r.f, "# made up\nform %c %c %u %s\n", f->kind, f->result, f->ulps, f->text);
            if (f->kind == 'S') {
                for (int k = 0; k < VECTOR_SETS * 3; k++) in[k / 3][k % 3] = vector_operand(&seed);
                interpret(f, in, sizeof in, out, sizeof out);
                if (spoil) out[VECTOR_SETS - 1] ^= 0x10000000;
                for (int k = 0; k < VECTOR_SETS; k++)
                    fprintf(r.f, "%llx %llx %llx %llx\n", (unsigned long long)in[k][0],
                            (unsigned long long)in[k][1], (unsigned long long)in[k][2],
                            (unsigned long long)out[k]);
            } else {
                for (int k = 0; k < 32 * VECTOR_LANE_IN; k++)
                    lanes[k / VECTOR_LANE_IN][k % VECTOR_LANE_IN] = (uint32_t)vector_random(&seed);
                interpret(f, lanes, sizeof lanes, results, sizeof results);
                if (spoil) results[31][0] ^= 0x10000000;
                for (int k = 0; k < 32; k++) {
                    for (int n = 0; n < VECTOR_LANE_IN; n++) fprintf(r.f, "%x ", lanes[k][n]);
                    for (int n = 0; n < VECTOR_LANE_OUT; n++) fprintf(r.f, "%x ", results[k][n]);
                    fputc('\n', r.f);
                }
            }
            rewind(r.f);
            replay(&r);
            if (r.wrong != (uint32_t)spoil) fail_msg("%s: %u wrong", f->text, r.wrong);
            fclose(r.f);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hardware_agrees),
                                       cmocka_unit_test(a_difference_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
