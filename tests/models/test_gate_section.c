/* The gate section: what is written is read back, and nothing else is taken. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "models/gate_section.h"

static void round_trip_and_refusals(void **state) {
    (void)state;
    static struct gate_section g, back;
    struct error e = {0};
    g = (struct gate_section){
        .least_context = 2048, .safe_pages = 17, .safe_share = 300, .kl_limit = 0.01f, .n_rows = 3};
    for (uint32_t i = 0; i < 3; i++)
        g.rows[i] = (struct gate_row){.context = 1024 << i, .budget = 10 * i, .kl = 0.5f};
    const size_t n = gate_section_bytes(&g);
    uint8_t *bytes = malloc(n + 64);
    memset(bytes, 0, n + 64);
    gate_section_write(&g, bytes);
    assert_int_equal(gate_section_read(&back, bytes, n, &e), STATUS_OK);
    assert_memory_equal(&g, &back, sizeof g);
    for (size_t cut = 0; cut < n + 64; cut++) {
        if (cut == n) continue;
        assert_int_equal(gate_section_read(&back, bytes, cut, &e), STATUS_CORRUPT);
        assert_int_equal(back.n_rows, 0);
    }
    /* Each field of the header that is checked: magic, rows, pages, share; and the version. */
    static const struct {
        size_t at;
        uint32_t value;
        enum status want;
    } bad[] = {{0, 1, STATUS_CORRUPT},     {4, 3, STATUS_UNSUPPORTED},
               {4, 1, STATUS_UNSUPPORTED}, {8, UINT32_MAX, STATUS_CORRUPT},
               {8, 2, STATUS_CORRUPT},     {16, UINT32_MAX, STATUS_CORRUPT},
               {20, 1025, STATUS_CORRUPT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gate_section_write(&g, bytes);
        memcpy(bytes + bad[i].at, &bad[i].value, 4);
        assert_int_equal(gate_section_read(&back, bytes, n, &e), bad[i].want);
    }
    /* Numbers that no measurement gives: the limit, and each float of the second row. */
    const size_t row = 32 + sizeof(struct gate_row);
    for (size_t at = 24; at < row + sizeof(struct gate_row); at = at == 24 ? row + 12 : at + 4) {
        for (int k = 0; k < 3; k++) {
            const float lie = k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY;
            gate_section_write(&g, bytes);
            memcpy(bytes + at, &lie, 4);
            assert_int_equal(gate_section_read(&back, bytes, n, &e), STATUS_CORRUPT);
        }
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip_and_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
