/* pretokenize_split.h: how one split of a pre-tokenizer is described; the rows are in
 * pretokenize_table.c, the matching in pretokenize.c. Private to the two.
 */
#ifndef LAC_MODELS_PRETOKENIZE_SPLIT_H
#define LAC_MODELS_PRETOKENIZE_SPLIT_H

#include "models/pretokenize.h"

/* What a code point is; a class is a set of these. */
enum char_kind {
    KIND_UPPER = 1u << 0,        /* Lu, Lt */
    KIND_LOWER = 1u << 1,        /* Ll */
    KIND_OTHER_LETTER = 1u << 2, /* Lm, Lo */
    KIND_MARK = 1u << 3,         /* M */
    KIND_NUMBER = 1u << 4,       /* N */
    KIND_PUNCT = 1u << 5,        /* P */
    KIND_SYMBOL = 1u << 6,       /* S */
    KIND_SPACE = 1u << 7,        /* \s */
    KIND_NEWLINE = 1u << 8,      /* \r and \n */
    KIND_DIGIT = 1u << 9,        /* Nd */
    KIND_REST = 1u << 10,        /* C, and Z that is no space */
    KIND_WORD = 1u << 11,        /* \w */

    KIND_LETTER = KIND_UPPER | KIND_LOWER | KIND_OTHER_LETTER,
};

/* A set of code points: those of a kind in `kinds`, and those in a range. `exclude`: all but those
 * of `kinds` and in a range. */
struct char_class {
    unsigned kinds;
    bool exclude;
    const uint32_t (*range)[2]; /* ascending {first, last}; may be NULL */
    size_t n_ranges;
};

enum split_kind {
    SPLIT_RUN,            /* C+ or C{1,max}, for the first of the classes that has the character */
    SPLIT_SPACED_RUN,     /* \s?C+, or with `plain_space` a literal ' '?C+ */
    SPLIT_EXACT,          /* C{max} */
    SPLIT_TRAILING_SPACE, /* \s+$ */
    SPLIT_DIGIT_GROUPS,   /* runs of C in threes from the right; `boundary`: only before \b */
    SPLIT_BEFORE,         /* a piece starts at each C */
    SPLIT_BEFORE_DIGIT_GROUPS, /* a piece starts at each three of a run of C, from the right */
    SPLIT_SENTINEL,            /* <sentinel:[0-9]+> */
    SPLIT_IMAGE_TOKEN,         /* IMGIMG[A-I]{1,4}Z */
    SPLIT_INDENT,              /* tab, newline, four spaces or two */
    SPLIT_WORDS, /* an alternation of word, number, punctuation and space: struct words */
};

enum contraction {
    CONTRACTION_NONE,
    CONTRACTION_EXACT,    /* 's 't 're 've 'm 'll 'd before words */
    CONTRACTION_ANY_CASE, /* the same in any case */
    CONTRACTION_SUFFIX,   /* in any case, behind the letters of a word */
};

enum letters {
    LETTERS_RUN,    /* C+ */
    LETTERS_CASED,  /* U*L+ or U+L*, where letters without case and marks are both */
    LETTERS_SPACED, /* letters with their marks, single spaces between them */
};

enum punct_tail {
    PUNCT_TAIL_NONE,
    PUNCT_TAIL_NEWLINES,       /* [\r\n]* */
    PUNCT_TAIL_NEWLINES_SLASH, /* [\r\n/]* */
    PUNCT_TAIL_ONE,            /* [\r\n/]? */
};

/* The alternatives in the order they are tried. */
struct words {
    enum contraction contraction;
    bool han_first;        /* Han+ first, and no Han among the letters */
    bool ascii_punct_word; /* an ASCII punctuation mark and the ASCII letters behind it */
    unsigned prefix;       /* kinds that may NOT precede a word's letters; 0: only ' ' may */
    unsigned letters_kinds;
    enum letters letters;
    size_t max_digits; /* \p{N}{1,max}; 0: no alternative for numbers */
    bool digits_space; /* ' '?\p{N}+ */
    unsigned punct;    /* kinds of ' '?P+ */
    enum punct_tail tail;
    bool newlines;       /* \s*[\r\n]+ */
    bool single_newline; /* [\r\n] */
    bool space_cascade;  /* white space in powers of two up to 512 */
};

struct pretokenizer_split {
    enum split_kind kind;
    struct char_class class[4];
    size_t n_classes;
    size_t max;
    bool plain_space;
    bool boundary;
    const struct words *words;
};

#endif
