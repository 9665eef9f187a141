/* The promise of core/step.h on a real model, named by LAC_MODEL (tests/core/backend_bits.h). */
#include "tests/core/backend_bits.h"

#include "core/rng.h"
#include "models/model.h"

static void a_real_model_has_the_same_bits(void **state) {
    (void)state;
    enum { N = 266 }; /* over one key block */
    const char *path = getenv("LAC_MODEL");
    if (path == NULL || path[0] == 0) {
        printf("skip: LAC_MODEL names no model\n");
        return;
    }
    struct model *m;
    struct error e = {0};
    if (model_open(path, 512, &m, &e) != STATUS_OK) fail_msg("%s", e.message);
    uint32_t ids[N];
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (uint32_t)(rng_draw(9, 0, i, RNG_TEST, 0) % model_plan(m)->n_vocab);
    /* A few of the combinations; with LONG=1 many, under a sanitizer (V of tests/all.sh) fewer. */
    const char *is_long = getenv("LONG"), *variant = getenv("V");
    const bool sanitised = variant != NULL && strcmp(variant, "release") != 0;
    const uint32_t every = sanitised ? 104 : is_long != NULL && strcmp(is_long, "1") == 0 ? 4 : 26;
    bits_everything(model_plan(m), ids, N, ACTIVATION_INT16, KV_F16, NULL, every);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_real_model_has_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
