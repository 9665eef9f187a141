/* The prompts of `laconic diagnose` when it is given none: ten tasks about ten subjects. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/diagnose.h"
#include "core/check.h"

enum { SUBJECTS = 10, TASKS = 10 };

static const char *const SUBJECT[2][SUBJECTS] = {
    {"a savings account", "tide tables", "bicycle brakes", "the water cycle", "sorting a list",
     "bread dough", "railway timetables", "sunlight on a roof", "a chess opening",
     "the price of tea"},
    {"储蓄账户", "潮汐", "自行车刹车", "水循环", "排序算法", "面包面团", "火车时刻表",
     "屋顶上的阳光", "象棋开局", "茶叶价格"},
};

static const struct {
    bool chinese;
    const char *before, *behind;
} TASK[TASKS] = {
    {false, "Explain ", " to a child in three sentences."},
    {false, "What is the most common mistake with ", "? Answer in one sentence."},
    {false, "Write a short poem about ", "."},
    {false, "Write a Python function that has to do with ", ", with a docstring."},
    {false, "List five facts about ", "."},
    {false, "A shop sells 12 books about ",
     " a day for 9 euros each. What does it take in a week?"},
    {false, "Compare ", " with something that is like it, step by step."},
    {true, "用三句话解释", "。"},
    {true, "写一首关于", "的短诗。"},
    {true, "列出关于", "的五个常见问题，并逐一回答。"},
};

char *diagnose_prompt(uint32_t i) {
    char text[512];
    const uint32_t task = i % TASKS, subject = i / TASKS % SUBJECTS;
    const int n = snprintf(text, sizeof text, "%s%s%s", TASK[task].before,
                           SUBJECT[TASK[task].chinese][subject], TASK[task].behind);
    CHECK(n > 0 && (size_t)n < sizeof text);
    char *out = malloc((size_t)n + 1);
    CHECK(out != NULL);
    snprintf(out, (size_t)n + 1, "%s", text);
    return out;
}
