/* slot_impl.h: what sched/slot.c and sched/slot_label.c share. Private to them. */
#ifndef LAC_SCHED_SLOT_IMPL_H
#define LAC_SCHED_SLOT_IMPL_H

#include "sched/slot.h"

/* slot.c */
struct choice *slot_choice(struct slots *t, const struct slot *s, uint32_t c);
bool slot_reserve(const struct kv_store *kv, uint32_t n);
void slot_unreserve(const struct kv_store *kv, uint32_t n);
void slot_take_choices(struct slots *t, struct slot *s, uint32_t n);
void slot_record(struct slots *t, const struct slot *s, uint64_t now, enum flight_kind kind,
                 uint32_t a, uint32_t b, uint64_t c);
enum metric_task slot_task(const struct slot *s);
/* Tells the report, with this label, and ends. */
void slot_finish_labelled(struct slots *t, struct slot *s, uint32_t label, uint64_t now);

/* slot_label.c. Choices, pages and the sequence of a request with labels; false: no room now. */
bool slot_take_label_memory(struct slots *t, struct slot *s, const struct slot_start *w);
void slot_look_done(struct slots *t, struct slot *s, const struct label_look *look, uint64_t now);
void slot_question_done(struct slots *t, struct slot *s);
void slot_score_done(struct slots *t, struct slot *s, uint32_t c, const struct output *outputs,
                     uint32_t n_outputs, uint64_t now);

#endif
