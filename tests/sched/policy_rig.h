/* policy_rig.h: a policy for the scheduler's tests: two task models (the built-in one, and one that
 * was taught a few words), and what DESIGN.md says of presets, written down a second time. */
#ifndef LAC_TESTS_SCHED_POLICY_RIG_H
#define LAC_TESTS_SCHED_POLICY_RIG_H

#include "models/task_default.h"
#include "models/task_train.h"
#include "sched/policy.h"
#include "tests/sched/fake.h"

struct rig_preset {
    const char *task;
    float temperature, top_p;
};

static inline const struct rig_preset *rig_preset(const char *task) {
    static const struct rig_preset presets[] = {{"deterministic", 0.2f, 0.8f},
                                                {"qa", 0.2f, 0.8f},
                                                {"open", 0.8f, 0.95f},
                                                {"reasoning", 0.5f, 0.9f},
                                                {"code", 0.2f, 0.95f},
                                                {"classify", 0, 1},
                                                {"", 0.5f, 0.9f}};
    const struct rig_preset *p = presets;
    while (p->task[0] != '\0' && strcmp(p->task, task) != 0) p++;
    return p;
}

/* A model that learnt "fetch", "compose" and "compute", whose labels are tasks, and one more label
 * that is none. */
static inline struct task_model *rig_small_model(void) {
    static const char *const verbs[3] = {"fetch", "compose", "compute"};
    static const char *const labels[3] = {"deterministic", "open", "sums"};
    struct task_set s;
    struct task_words *words;
    struct task_model *m;
    struct error e = {0};
    task_set_init(&s);
    for (uint32_t i = 0; i < 150; i++) {
        char text[80];
        snprintf(text, sizeof text, "%s w%u and w%u", verbs[i % 3], i * 7 % 31, i * 5 % 37);
        must(task_set_add(&s, text, strlen(text), labels[i % 3], "s", "en", false, &e), &e);
    }
    struct task_train_options o = task_train_defaults();
    o.epochs = 8;
    o.folds = 0;
    o.leave_sources_out = false;
    must(task_words_default(&words, &e), &e);
    must(task_train(&s, words, &o, &m, NULL, &e), &e);
    task_words_free(words);
    task_set_free(&s);
    return m;
}

/* Made at the first use; kept until rig_close. */
static inline struct task_model **rig_models(void) {
    static struct task_model *models[2];
    struct error e = {0};
    if (models[0] == NULL) {
        must(task_model_default(&models[0], &e), &e);
        models[1] = rig_small_model();
    }
    return models;
}

static inline const struct task_model *rig_model(uint32_t which) {
    return rig_models()[which];
}

static inline void rig_close(void) {
    struct task_model **models = rig_models();
    for (int i = 0; i < 2; i++) {
        task_model_free(models[i]);
        models[i] = NULL;
    }
}

static inline struct task_model *rig_copy(uint32_t which) {
    struct buffer b;
    struct task_model *m;
    struct error e = {0};
    buffer_init(&b, 2 * TASK_MODEL_MAX_BYTES);
    must(task_model_write(rig_model(which), &b, &e), &e);
    must(task_model_read(b.data, b.len, &m, &e), &e);
    buffer_free(&b);
    return m;
}

/* "" where it is not clear. */
static inline const char *rig_task(const struct task_model *m, struct text text) {
    static struct task_workspace *w;
    struct error e = {0};
    struct task_verdict v;
    enum metric_task task;
    if (w == NULL) must(task_workspace_new(&w, &e), &e);
    if (text.len == 0) return "";
    task_model_classify(m, w, text.data, text.len, &v);
    const char *label = task_model_label(m, v.class);
    return v.abstained || !metric_task_find(label, strlen(label), &task) ? "" : label;
}

/* Begins with model 0. */
static inline struct policy *rig_policy(enum policy_kind kind) {
    const struct policy_config cfg = {
        .kind = kind, .presets = policy_default_presets(), .identity = 77, .n_workspaces = 2};
    struct policy *p;
    struct error e = {0};
    must(policy_open(&cfg, rig_copy(0), &p, &e), &e);
    return p;
}

static inline void rig_publish(struct policy *p, uint32_t which) {
    struct error e = {0};
    must(policy_publish(p, rig_copy(which), &e), &e);
}

#endif
