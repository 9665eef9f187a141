/* Markers and trigger words of prompts: against a slow oracle on random texts, hostile ones, and
 * the pages that anchors come to; what a policy attends to, counted one page at a time. */
#include "sched/gate.h"
#include "tests/sched/fake.h"

enum { MAX_TEXT = 4096 };

static struct gate_words words;

/* The oracle: pieces of text and markers, paired by looking back for the nearest open one. */
struct piece {
    size_t start, len;
    int kind; /* 0 text, 1 beginning, 2 end, 3 recall */
    int partner;
};

static size_t oracle_mark(const char *s, size_t n, int *kind) {
    if (n >= 8 && memcmp(s, "<RECALL>", 8) == 0) return *kind = 3, 8;
    if (n >= 9 && memcmp(s, "</ANCHOR>", 9) == 0) return *kind = 2, 9;
    if (n < 8 || memcmp(s, "<ANCHOR:", 8) != 0) return 0;
    for (size_t i = 8; i < n && i <= 8 + 64; i++) {
        if (s[i] == '>') return *kind = 1, i > 8 ? i + 1 : 0;
        if (s[i] == '<' || (unsigned char)s[i] < ' ') return 0;
    }
    return 0;
}

struct expected {
    char text[MAX_TEXT];
    size_t len;
    bool recall, in_anchor[MAX_TEXT], user[MAX_TEXT];
    uint32_t n_anchors;
};

static void oracle(const char *text, size_t len, const struct text_span *spans, size_t n_spans,
                   struct expected *x) {
    memset(x, 0, sizeof *x);
    for (size_t s = 0; s < n_spans; s++) {
        struct piece p[MAX_TEXT];
        int n = 0;
        for (size_t at = spans[s].start; at < spans[s].end;) {
            int kind = 0;
            size_t m = spans[s].from_user ? oracle_mark(text + at, spans[s].end - at, &kind) : 0;
            if (m == 0) m = 1, kind = 0;
            p[n++] = (struct piece){at, m, kind, -1};
            at += m;
        }
        for (int i = 0; i < n; i++) {
            if (p[i].kind != 2) continue;
            for (int k = i - 1; k >= 0; k--) {
                if (p[k].kind != 1 || p[k].partner >= 0) continue;
                p[k].partner = i;
                p[i].partner = k;
                break;
            }
        }
        int depth = 0;
        for (int i = 0; i < n; i++) {
            if (p[i].partner >= 0) {
                depth += p[i].kind == 1 ? 1 : -1;
                x->n_anchors += p[i].kind == 1;
                continue;
            }
            if (p[i].kind == 3) {
                x->recall = true;
                continue;
            }
            for (size_t b = 0; b < p[i].len; b++) {
                x->in_anchor[x->len] = depth > 0;
                x->user[x->len] = spans[s].from_user;
                x->text[x->len++] = text[p[i].start + b];
            }
        }
    }
    (void)len;
}

static void check(const char *text, size_t len, const struct text_span *spans, size_t n_spans,
                  bool with_spans) {
    static struct expected x;
    char *got = malloc(len + 1);
    struct text_span *s = malloc((n_spans + 1) * sizeof *s);
    struct gate_marks m;
    struct error e = {0};
    size_t n = len, n_s = n_spans;
    memcpy(got, text, len);
    memcpy(s, spans, n_spans * sizeof *s);
    oracle(text, len, spans, n_spans, &x);
    assert_int_equal(gate_marks_take(got, &n, with_spans ? s : NULL, with_spans ? &n_s : NULL,
                                     &words, NULL, &m, &e),
                     STATUS_OK);
    assert_int_equal(n, x.len);
    assert_memory_equal(got, x.text, n);
    assert_int_equal(m.n_anchors, x.n_anchors);
    assert_int_equal(m.recall, x.recall);
    static bool in[MAX_TEXT];
    memset(in, 0, sizeof in);
    for (uint32_t a = 0; a < m.n_anchors; a++) {
        assert_true(m.anchors[a].start <= m.anchors[a].end && m.anchors[a].end <= n);
        assert_true(a == 0 || m.anchors[a - 1].start <= m.anchors[a].start);
        for (uint32_t b = m.anchors[a].start; b < m.anchors[a].end; b++) in[b] = true;
    }
    for (size_t b = 0; b < n; b++) assert_int_equal(in[b], x.in_anchor[b]);
    for (size_t i = 0, at = 0; with_spans && i < n_s; at = s[i++].end) {
        assert_int_equal(s[i].start, at);
        assert_true(s[i].end > s[i].start && (i == 0 || s[i].from_user != s[i - 1].from_user));
        for (uint32_t b = s[i].start; b < s[i].end; b++)
            assert_int_equal(x.user[b], s[i].from_user);
        if (i + 1 == n_s) assert_int_equal(s[i].end, n);
    }
    gate_marks_free(&m);
    free(got);
    free(s);
}

static void random_texts(void **state) {
    (void)state;
    static const char *const parts[] = {
        "<ANCHOR:a>", "</ANCHOR>",    "<RECALL>",
        "x",          "\xE7\x97\x85", "<ANCHOR:\xE7\x97\x85\xE5\x8F\xB2>",
        "<ANCHOR:>",  "<ANCHOR:",     "</ANCHO",
        "<",          "<ANCHOR:a\n>", "<<ANCHOR:b>",
        "RECALL>",    "<|im_end|>"};
    uint64_t r = 11;
    for (int run = 0; run < 20000; run++) {
        char text[MAX_TEXT];
        struct text_span spans[16];
        size_t n = 0, n_spans = 0;
        const uint32_t k = below(&r, 8);
        bool user = below(&r, 2);
        for (uint32_t s = 0; s <= k; s++, user = !user) {
            const size_t start = n;
            for (uint32_t i = below(&r, 12) + 1; i > 0; i--) {
                const char *p = parts[below(&r, sizeof parts / sizeof *parts)];
                memcpy(text + n, p, strlen(p));
                n += strlen(p);
            }
            spans[n_spans++] = (struct text_span){(uint32_t)start, (uint32_t)n, user};
        }
        check(text, n, spans, n_spans, true);
        const struct text_span all = {0, (uint32_t)n, true};
        check(text, n, &all, 1, false);
    }
}

static void hostile_texts(void **state) {
    (void)state;
    struct error e = {0};
    struct gate_marks m;
    /* A name of 64 bytes is one, of 65 is none. */
    for (size_t name = 63; name <= 66; name++) {
        char text[128] = "<ANCHOR:";
        memset(text + 8, 'n', name);
        strcpy(text + 8 + name, ">in</ANCHOR>");
        size_t n = strlen(text);
        assert_int_equal(gate_marks_take(text, &n, NULL, NULL, &words, NULL, &m, &e), STATUS_OK);
        assert_int_equal(m.n_anchors, name <= 64);
        gate_marks_free(&m);
    }
    /* A million of each, nested or never closed: linear. */
    static const char *const parts[] = {
        "<ANCHOR:a>", "</ANCHOR>", "<RECALL>", "<ANCHOR:a></ANCHOR>", "<ANCHOR:", "<", "previousl"};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        const size_t one = strlen(parts[p]), count = 1000000;
        char *text = malloc(one * count + 1);
        for (size_t i = 0; i < count; i++) memcpy(text + i * one, parts[p], one);
        size_t n = one * count;
        assert_int_equal(gate_marks_take(text, &n, NULL, NULL, &words, NULL, &m, &e), STATUS_OK);
        assert_int_equal(m.n_anchors, p == 3 ? count : 0);
        assert_int_equal(n, p == 2 || p == 3 ? 0 : one * count);
        assert_int_equal(m.recall, p == 2);
        assert_false(m.trigger);
        gate_marks_free(&m);
        free(text);
    }
}

static bool triggers(const struct gate_words *w, const char *what) {
    char text[256];
    struct gate_marks m;
    struct error e = {0};
    strcpy(text, what);
    size_t n = strlen(text);
    assert_int_equal(gate_marks_take(text, &n, NULL, NULL, w, NULL, &m, &e), STATUS_OK);
    const bool trigger = m.trigger;
    gate_marks_free(&m);
    return trigger;
}

static void trigger_words(void **state) {
    (void)state;
    struct gate_words own;
    struct error e = {0};
    struct {
        const char *text;
        bool wanted;
    } cases[] = {{"as said Previously.", true},
                 {"previously", true},
                 {"LAST TIME we met", true},
                 {"unpreviously", false},
                 {"previouslyish", false},
                 {"last times", false},
                 {"last\ntime", false},
                 {"他的病史很长", true},
                 {"上次", true},
                 {"上", false},
                 {"", false},
                 {"<ANCHOR:a>previously</ANCHOR>", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (triggers(&words, cases[i].text) != cases[i].wanted) fail_msg("%s", cases[i].text);
    }
    static const char file[] = "  Foo Bar \r\n\n\xC3\xA9t\xC3\xA9\n#x";
    assert_int_equal(gate_words_parse(&own, file, sizeof file - 1, &e), STATUS_OK);
    assert_int_equal(own.n, 3);
    assert_true(triggers(&own, "a foo bar!") && triggers(&own, "\xC3\xA9t\xC3\xA9") &&
                triggers(&own, "##x") && !triggers(&own, "foo bars"));
    gate_words_free(&own);
    char *large = calloc(1, GATE_MAX_WORDS_BYTES + 1);
    assert_int_equal(gate_words_parse(&own, large, GATE_MAX_WORDS_BYTES + 1, &e), STATUS_TOO_LARGE);
    assert_int_equal(gate_words_parse(&own, large, 3, &e), STATUS_INVALID); /* NULs */
    memset(large, 'a', GATE_MAX_WORD_BYTES);
    assert_int_equal(gate_words_parse(&own, large, GATE_MAX_WORD_BYTES, &e), STATUS_INVALID);
    for (size_t i = 0; i < GATE_MAX_WORDS_BYTES; i++) large[i] = i % 2 ? '\n' : 'a';
    assert_int_equal(gate_words_parse(&own, large, GATE_MAX_WORDS_BYTES, &e), STATUS_INVALID);
    free(large);
}

/* With a tokenizer of bytes and a few longer tokens, page by page. */
static void pages_of_anchors(void **state) {
    (void)state;
    struct tokenizer *t = fake_tokenizer();
    uint64_t r = 5;
    struct error e = {0};
    for (int run = 0; run < 2000; run++) {
        char text[512];
        const size_t len = 1 + below(&r, 500);
        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + below(&r, 5));
        struct gate_range ranges[8];
        struct gate_marks m = {.anchors = ranges, .n_anchors = below(&r, 8)};
        uint32_t from = 0;
        for (uint32_t a = 0; a < m.n_anchors; a++) { /* one after the other, or inside */
            const bool inside = a > 0 && below(&r, 3) == 0;
            const uint32_t end = inside ? ranges[a - 1].end : (uint32_t)len;
            const uint32_t start = inside ? ranges[a - 1].start : from;
            ranges[a].start = start + below(&r, end - start + 1);
            ranges[a].end = ranges[a].start + below(&r, end - ranges[a].start + 1);
            if (ranges[a].end > from) from = ranges[a].end;
        }
        struct token_list ids = {0};
        assert_int_equal(tokenizer_encode(t, NULL, text, len, TOKENIZE_BOS, &ids, &e), STATUS_OK);
        uint32_t pages[64], n_pages;
        assert_int_equal(
            gate_marks_pages(&m, t, ids.ids, (uint32_t)ids.n, len, NULL, pages, &n_pages),
            STATUS_OK);
        bool want[64] = {false}, got[64] = {false};
        size_t at = 0;
        for (size_t i = 1; i < ids.n; i++) { /* behind the bos token */
            char piece[16];
            const size_t n = tokenizer_piece(t, ids.ids[i], true, piece, sizeof piece);
            for (uint32_t a = 0; a < m.n_anchors; a++)
                for (size_t b = at; b < at + n; b++)
                    want[i / 16] |= b >= ranges[a].start && b < ranges[a].end;
            at += n;
        }
        assert_int_equal(at, len);
        for (uint32_t p = 0; p < n_pages; p++) {
            assert_true(p == 0 || pages[p] > pages[p - 1]);
            got[pages[p]] = true;
        }
        assert_memory_equal(want, got, sizeof want);
        token_list_free(&ids);
    }
    tokenizer_free(t);
}

static void policies(void **state) {
    (void)state;
    static const struct gate_config cfg = {
        .bounds = true, .least_context = 1024, .safe_pages = 8, .safe_share = 200};
    uint64_t r = 3;
    void *mem = malloc(gate_footprint(16384));
    struct gate g;
    gate_init(&g, mem);
    for (int run = 0; run < 2000; run++) {
        const uint32_t n_prompt = 1 + below(&r, 4000);
        uint32_t pages[256], n_pages = 0;
        for (uint32_t p = 0; p <= n_prompt / 16 && n_pages < 256; p++)
            if (below(&r, 20) == 0) pages[n_pages++] = p;
        struct request q = {.set = below(&r, 5) ? REQUEST_SET_GATE : 0,
                            .gate = (enum request_gate)below(&r, REQUEST_GATE_PAGES + 1),
                            .gate_pages = 1 + below(&r, 100)};
        const struct gate_prompt prompt = {.recall = below(&r, 8) == 0,
                                           .trigger = below(&r, 3) == 0,
                                           .n_anchors = n_pages,
                                           .pages = pages,
                                           .n_pages = n_pages};
        gate_start(&g, &cfg, &q, &prompt, n_prompt);
        const bool on = (q.set & REQUEST_SET_GATE) && q.gate != REQUEST_GATE_OFF && !prompt.recall;
        assert_int_equal(g.on, on);
        const uint32_t first = q.gate == REQUEST_GATE_AUTO && n_prompt < 1024 ? 1024 : n_prompt;
        for (int i = 0; i < 20; i++) {
            const uint32_t p = n_prompt + below(&r, 3000), own = p / 16;
            uint32_t n = own + 1;
            if (on && p >= first) {
                uint32_t c = p / 5 * 5;
                if (c < first) c = first;
                uint32_t budget = q.gate == REQUEST_GATE_PAGES  ? q.gate_pages
                                  : q.gate == REQUEST_GATE_FAST ? 10
                                                                : 8 + (c / 16 + 1) * 200 / 1024;
                if (q.gate != REQUEST_GATE_PAGES && prompt.trigger && budget < 50) budget = 50;
                uint32_t fixed = 0, others = 0;
                for (uint32_t page = 0; page <= own; page++) {
                    bool always = page == 0 || page + 4 > c / 16;
                    for (uint32_t a = 0; a < n_pages; a++) always |= pages[a] == page;
                    fixed += always;
                    others += !always;
                }
                n = fixed + (budget < others ? budget : others);
            }
            assert_int_equal(gate_attended(&g, p), n);
        }
    }
    free(mem);
}

static int set_up(void **state) {
    (void)state;
    struct error e = {0};
    return gate_words_default(&words, &e) == STATUS_OK ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    gate_words_free(&words);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts),  cmocka_unit_test(hostile_texts),
        cmocka_unit_test(trigger_words), cmocka_unit_test(pages_of_anchors),
        cmocka_unit_test(policies),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
