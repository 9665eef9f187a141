/* The report of `tune`, as JSON and as text. */
#include <stdio.h>

#include "cmd/tune.h"
#include "core/buffer.h"
#include "core/json_writer.h"

static double share(uint64_t part, uint64_t all) {
    return all > 0 ? (double)part / (double)all : 0;
}

static void write_score(struct json_writer *j, const char *name, const struct tune_draft_score *s) {
    json_write_key(j, name), json_write_object(j);
    json_write_key(j, "proposed"), json_write_double(j, share(s->proposed, s->positions));
    json_write_key(j, "right"), json_write_double(j, share(s->right, s->positions));
    json_write_key(j, "tokens_per_step_4"), json_write_double(j, s->tokens_per_step[0]);
    json_write_key(j, "tokens_per_step_8"), json_write_double(j, s->tokens_per_step[1]);
    json_write_object_end(j);
}

static void write_block(struct json_writer *j, const char *name, const struct tune_block_score *s) {
    if (s->positions == 0) return;
    json_write_key(j, name), json_write_object(j);
    json_write_key(j, "agreement"), json_write_double(j, s->agreement);
    json_write_key(j, "agreement_seen"), json_write_double(j, s->agreement_seen);
    json_write_key(j, "cross_entropy"), json_write_double(j, s->cross_entropy);
    json_write_object_end(j);
}

void tune_report_json(const struct tune *t, const struct tune_report *r, bool times,
                      struct buffer *out) {
    struct json_writer j;
    json_write_begin(&j, out);
    json_write_object(&j);
    json_write_key(&j, "traffic"), json_write_string(&j, t->config->traffic);
    json_write_key(&j, "answers"), json_write_uint(&j, t->set.n_answers);
    json_write_key(&j, "left_out"), json_write_uint(&j, t->set.n_left_out);
    json_write_key(&j, "seen"), json_write_object(&j);
    json_write_key(&j, "topics"), json_write_uint(&j, r->n_seen_topics);
    json_write_key(&j, "answers"), json_write_uint(&j, r->n_seen);
    json_write_key(&j, "tokens"), json_write_uint(&j, r->seen_tokens);
    json_write_object_end(&j);
    json_write_key(&j, "unseen"), json_write_object(&j);
    json_write_key(&j, "topics"), json_write_uint(&j, r->n_unseen_topics);
    json_write_key(&j, "answers"), json_write_uint(&j, r->n_unseen);
    json_write_key(&j, "tokens"), json_write_uint(&j, r->unseen_tokens);
    json_write_object_end(&j);
    json_write_key(&j, "shortlist"), json_write_object(&j);
    json_write_key(&j, "ids"), json_write_uint(&j, t->config->tune_shortlist);
    json_write_key(&j, "mass_on_seen"), json_write_double(&j, r->mass_held);
    json_write_key(&j, "coverage_on_unseen"), json_write_double(&j, r->coverage);
    json_write_object_end(&j);
    json_write_key(&j, "ngram_bytes"), json_write_uint(&j, r->ngram_bytes);
    json_write_key(&j, "drafts_on_unseen"), json_write_object(&j);
    write_score(&j, "ngram", &r->ngram);
    write_score(&j, "prompt_lookup", &r->lookup);
    write_score(&j, "surer_of_both", &r->both);
    write_block(&j, "draft_block", &r->draft_block);
    write_block(&j, "exit_block", &r->exit_block);
    json_write_object_end(&j);
    if (times) {
        json_write_key(&j, "seconds"), json_write_object(&j);
        json_write_key(&j, "answers"), json_write_double(&j, r->answers_s);
        json_write_key(&j, "records"), json_write_double(&j, r->records_s);
        json_write_key(&j, "learning"), json_write_double(&j, r->learn_s);
        json_write_object_end(&j);
    }
    json_write_object_end(&j);
    buffer_putc(out, '\n');
}

static void print_score(const char *name, const struct tune_draft_score *s) {
    printf("  %-14s guesses at %5.1f %% of the tokens, right at %5.1f %%; %.2f and %.2f tokens per "
           "step with drafts of 4 and 8\n",
           name, 100 * share(s->proposed, s->positions), 100 * share(s->right, s->positions),
           s->tokens_per_step[0], s->tokens_per_step[1]);
}

static void print_block(const char *name, const struct tune_block_score *s) {
    if (s->positions > 0)
        printf(
            "  %-14s right at %5.1f %% of the tokens (%.1f %% on seen topics); cross-entropy %.3f "
            "nats\n",
            name, 100 * s->agreement, 100 * s->agreement_seen, s->cross_entropy);
}

void tune_report_print(const struct tune *t, const struct tune_report *r) {
    printf(
        "traffic %s: %u answers on %u topics (%llu tokens) learnt; %u on %u topics (%llu tokens) "
        "kept apart to measure, then learnt as well; %u left out\n",
        t->config->traffic, r->n_seen, r->n_seen_topics, (unsigned long long)r->seen_tokens,
        r->n_unseen, r->n_unseen_topics, (unsigned long long)r->unseen_tokens, t->set.n_left_out);
    printf(
        "shortlist of %u ids: %.2f %% of the probability on seen topics, %.2f %% of the likeliest "
        "tokens on unseen ones\n",
        t->config->tune_shortlist, 100 * r->mass_held, 100 * r->coverage);
    printf("n-gram table: %.2f MB\ndrafts on unseen topics:\n", (double)r->ngram_bytes / 1e6);
    print_score("n-gram table", &r->ngram);
    print_score("prompt lookup", &r->lookup);
    print_score("surer of both", &r->both);
    print_block("draft block", &r->draft_block);
    print_block("exit block", &r->exit_block);
    printf("%s: written in %.0f s (answers %.0f s, records %.0f s, learning %.0f s)\n",
           t->config->out_path, r->answers_s + r->records_s + r->learn_s, r->answers_s,
           r->records_s, r->learn_s);
}
