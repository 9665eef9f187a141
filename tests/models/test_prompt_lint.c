/* Prompt health: each measure by hand-counted examples in English and Chinese, spans on random
 * bytes, and how the published contradiction score behaves where an encoder is at hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "models/prompt_lint.h"

static struct lint_report check(const char *text) {
    struct lint_report r;
    struct error e;
    const struct lint_options o = lint_defaults();
    assert_int_equal(prompt_lint(text, strlen(text), &o, &r, &e), STATUS_OK);
    return r;
}

static const struct lint_finding *find(const struct lint_report *r, enum lint_kind kind) {
    for (uint32_t i = 0; i < r->n_findings; i++)
        if (r->findings[i].kind == kind) return &r->findings[i];
    return NULL;
}

static bool span_is(const char *text, const struct lint_finding *f, const char *expected) {
    return f->end - f->start == strlen(expected) &&
           memcmp(text + f->start, expected, strlen(expected)) == 0;
}

static void test_opposites(void **state) {
    (void)state;
    static const struct {
        const char *text, *first, *second;
    } cases[] = {
        {"Be brief. Explain everything in detail.", "Be brief", "Explain everything in detail"},
        {"Answer in JSON only. Write it as flowing prose for the board.", "Answer in JSON only",
         "Write it as flowing prose for the board"},
        {"Do not explain. Show your work for each step.", "Do not explain",
         "Show your work for each step"},
        {"请用一句话回答。请给出详细的分析。", "请用一句话回答", "请给出详细的分析"},
        {"请用中文回答。\n请用英文回答", "请用中文回答", "请用英文回答"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct lint_report r = check(cases[i].text);
        const struct lint_finding *f = find(&r, LINT_OPPOSITES);
        assert_non_null(f);
        assert_true(r.warns && f->warning);
        assert_true(span_is(cases[i].text, f, cases[i].first));
        const struct lint_finding other = {.start = f->other_start, .end = f->other_end};
        assert_true(span_is(cases[i].text, &other, cases[i].second));
        assert_non_null(strstr(f->suggestion, i < 3 ? "opposite" : "矛盾"));
    }
    static const char *const fine[] = {
        "Write a summary of at most 100 words. Use simple words. Answer in English.",
        "Do not explain your answer. Return only the number.",
        "请写一篇800字的散文。语气要温和。",
        "The report was brief. The weather is nice today.",
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        const struct lint_report r = check(fine[i]);
        assert_null(find(&r, LINT_OPPOSITES));
    }
}

static void test_denied(void **state) {
    (void)state;
    static const char *const bad[] = {
        "Mention the price. Do not mention any prices.",
        "请附上代码示例。不要写代码。",
    };
    static const char *const fine[] = {
        "Write a summary. Do not use long sentences in the summary of the text.",
        "Do not mention the price. Never mention the price.",
        "请写一段介绍。不要超过一百字。",
    };
    for (size_t i = 0; i < 2; i++) {
        const struct lint_report r = check(bad[i]);
        assert_non_null(find(&r, LINT_DENIED));
        assert_true(r.warns);
    }
    for (size_t i = 0; i < 3; i++) {
        const struct lint_report r = check(fine[i]);
        assert_null(find(&r, LINT_DENIED));
    }
}

static void test_ambiguity(void **state) {
    (void)state;
    /* 4 vague words ("some", "good", "stuff", "maybe") of 8. */
    const char *text = "Write some good stuff about cats, maybe dogs.";
    struct lint_report r = check(text);
    assert_int_equal(r.n_words, 8);
    assert_int_equal(r.n_vague, 4);
    assert_true(r.ambiguity_ratio == 0.5 && r.warns);
    assert_true(span_is(text, find(&r, LINT_VAGUE), "some"));
    uint32_t n = 0;
    for (uint32_t i = 0; i < r.n_findings; i++) n += r.findings[i].kind == LINT_VAGUE;
    assert_int_equal(n, 4);
    /* Under the limit nothing is said. */
    r = check(
        "Write exactly three sentences about the history of the bridge, maybe with one date.");
    assert_true(r.n_vague == 1 && r.ambiguity_ratio < 0.15);
    assert_null(find(&r, LINT_VAGUE));
    /* 4 Han characters of 12: two words of six. */
    r = check("请写一些合适的文章给我看");
    assert_true(r.chinese);
    assert_int_equal(r.n_words, 6);
    assert_int_equal(r.n_vague, 2);
    assert_non_null(strstr(find(&r, LINT_VAGUE)->suggestion, "具体"));
}

static void test_density(void **state) {
    (void)state;
    struct lint_report r = check("Tell me about whales and where they live and what they eat.");
    assert_true(r.constraint_density == 0);
    const struct lint_finding *f = find(&r, LINT_UNCONSTRAINED);
    assert_true(f != NULL && !f->warning && f->start == 0 && f->end == 59);
    /* "at most", "words", "only": 3 in 48 characters. */
    const char *text = "Describe whales in at most 50 words; only facts.";
    r = check(text);
    assert_int_equal(r.n_constraints, 3);
    assert_true(r.constraint_density > 6.2 && r.constraint_density < 6.3);
    assert_null(find(&r, LINT_UNCONSTRAINED));
    r = check("请介绍鲸鱼，不超过五十字以内，必须准确");
    assert_true(r.n_constraints >= 2);
    assert_null(find(&r, LINT_UNCONSTRAINED));
    assert_int_equal(check("").n_findings, 0);
}

static void test_anchors(void **state) {
    (void)state;
    char text[512] = "";
    for (int i = 0; i < 7; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "<ANCHOR:A%d>x</ANCHOR> ", i);
    struct lint_report r = check(text);
    uint32_t n = 0;
    for (uint32_t i = 0; i < r.n_findings; i++) n += r.findings[i].kind == LINT_ANCHORS;
    assert_true(r.n_anchors == 7 && n == 2 && r.warns);
    assert_true(span_is(text, find(&r, LINT_ANCHORS), "<ANCHOR:A5>x</ANCHOR>"));
    text[5 * 22] = '\0';
    r = check(text);
    assert_int_equal(r.n_anchors, 5);
    assert_null(find(&r, LINT_ANCHORS));
    r = check("<ANCHOR:A>one <ANCHOR:B>two</ANCHOR>");
    assert_int_equal(r.n_anchors, 2);
    assert_non_null(find(&r, LINT_OPEN_ANCHOR));
    assert_int_equal(find(&r, LINT_OPEN_ANCHOR)->start, 0);
}

static void test_random_bytes(void **state) {
    (void)state;
    static const char *const pieces[] = {"Be brief. ", "in detail! ", "<ANCHOR:", "</ANCHOR>",
                                         "some ",      "\n",          "必须",     "一些。",
                                         "do not ",    "\xff"};
    struct error e;
    const struct lint_options o = lint_defaults();
    for (uint32_t round = 0; round < 500; round++) {
        char text[4000];
        size_t n = 0;
        const size_t want = rng_draw(5, round, 0, RNG_TEST, 0) % 3900;
        while (n < want) {
            const uint64_t d = rng_draw(5, round, (uint32_t)n + 1, RNG_TEST, 0);
            const char *p = pieces[(d >> 8) % 10];
            if (d % 3 == 0) {
                text[n++] = (char)(d >> 16);
            } else {
                memcpy(text + n, p, strlen(p));
                n += strlen(p);
            }
        }
        struct lint_report r;
        assert_int_equal(prompt_lint(text, n, &o, &r, &e), STATUS_OK);
        assert_true(r.n_findings <= LINT_MAX_FINDINGS && r.ambiguity_ratio <= 1);
        for (uint32_t i = 0; i < r.n_findings; i++) {
            const struct lint_finding *f = &r.findings[i];
            assert_true(f->start < f->end && f->end <= n);
            assert_true(f->other_start <= f->other_end && f->other_end <= n);
            assert_non_null(f->suggestion);
        }
    }
    char *large = calloc(1, LINT_MAX_BYTES + 1);
    struct lint_report r;
    assert_int_equal(prompt_lint(large, LINT_MAX_BYTES + 1, &o, &r, &e), STATUS_TOO_LARGE);
    free(large);
}

/* Pairs of instructions: opposed ones, and ones that a prompt may well hold together. */
static void test_contradiction_score(void **state) {
    (void)state;
    static const char *const opposed[] = {
        "Be brief. Write at least two thousand words.",
        "Answer only in French. Never use the French language.",
        "Always cite sources. Do not mention any source.",
        "Use a formal tone. Write it casually, like a chat with friends.",
        "List all options. Show only the best option.",
        "Keep the original wording. Rewrite every sentence completely.",
        "Include code examples. Do not write any code.",
        "Write for experts. Write so that a five-year-old understands.",
    };
    static const char *const together[] = {
        "Write a summary of the report. Use at most 100 words.",
        "Translate the text into French. Keep the names unchanged.",
        "Review this function. List the bugs you find.",
        "Write an email to the supplier. Ask for a delivery date.",
        "Explain photosynthesis. Use an example from daily life.",
        "Extract all dates. Return them as JSON.",
        "Describe the plot. Do not reveal the ending.",
        "Plan a trip to Rome. Stay within 500 euros.",
    };
    const char *dir = getenv("LAC_ENCODER");
    struct encoder *enc;
    struct error e;
    if (dir == NULL || encoder_open(dir, &enc, &e) != STATUS_OK) {
        print_message("skip: no encoder (LAC_ENCODER)\n");
        return;
    }
    struct lint_options o = lint_defaults();
    o.encoder = enc;
    int conflicts[2] = {0}, rules[2] = {0};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 8; i++) {
            const char *text = k ? together[i] : opposed[i];
            struct lint_report r;
            assert_int_equal(prompt_lint(text, strlen(text), &o, &r, &e), STATUS_OK);
            assert_true(r.embedded && r.n_instructions == 2);
            const bool low = r.contradiction_score < 0.3;
            assert_true(low == (find(&r, LINT_CONFLICT) != NULL));
            conflicts[k] += low;
            const bool rule = find(&r, LINT_OPPOSITES) != NULL || find(&r, LINT_DENIED) != NULL;
            rules[k] += rule;
            assert_true(rule == r.warns || r.ambiguity_ratio > 0.15);
            print_message("%s  %.3f%s  %s\n", k ? "together" : "opposed ", r.contradiction_score,
                          rule ? " rule" : "", text);
        }
    print_message("cosine under 0.3: %d of 8 opposed, %d of 8 together; rules: %d and "
                  "%d\n",
                  conflicts[0], conflicts[1], rules[0], rules[1]);
    assert_true(rules[0] >= 5 && rules[1] == 0);
    encoder_close(enc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opposites),
        cmocka_unit_test(test_denied),
        cmocka_unit_test(test_ambiguity),
        cmocka_unit_test(test_density),
        cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_contradiction_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
