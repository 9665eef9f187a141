#include "models/task_units.h"

#include <string.h>

#include "core/check.h"
#include "models/task_model_impl.h"
#include "models/task_weights.h"

uint32_t task_units(void) {
    return task_n_dense() + TASK_N_BLOCKS;
}

const char *task_unit_name(uint32_t unit) {
    CHECK(unit < task_units());
    return unit < task_n_dense() ? task_dense_name(unit)
                                 : task_block_name((enum task_block)(unit - task_n_dense()));
}

void task_units_without(const struct task_model *m, const struct task_features *f,
                        uint32_t *answer) {
    float part[TASK_UNITS_MAX][TASK_MAX_CLASSES], all[TASK_MAX_CLASSES] = {0};
    const uint32_t n = task_units(), k = m->n_classes;
    memset(part, 0, sizeof part);
    for (uint32_t u = 0; u < n; u++) {
        if (u < task_n_dense())
            for (uint32_t c = 0; c < k; c++) part[u][c] = f->dense[u] * m->dense[u][c];
        else
            task_add_block(m, f, u - task_n_dense(), part[u]);
    }
    for (uint32_t c = 0; c < k; c++) {
        all[c] = m->bias[c];
        for (uint32_t u = 0; u < n; u++) all[c] += part[u][c];
    }
    for (uint32_t u = 0; u < n; u++) {
        answer[u] = 0;
        for (uint32_t c = 1; c < k; c++)
            if (all[c] - part[u][c] > all[answer[u]] - part[u][answer[u]]) answer[u] = c;
    }
}
