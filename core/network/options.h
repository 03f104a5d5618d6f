/* options.h: the arguments of layers, losses and optimizers, described by one line of text.
 *
 *   spec   = option { " " option }          in PyTorch's positional order. As in Python, options after a "*" are given
 *                                           by name only, because PyTorch has others before them
 *   option = name ":" type [ "=" default ]  no default: required; a default may name an earlier option
 *   type   = "int" | "float" | "bool" | "pair" (int or {int, int}) | "floats" ({float, float})
 *          | "list" (numbers, one or more) | "each" (one number for all, or a list: one for each)
 *          | "text" (without spaces, of less than OPTION_WORDS characters)
 *          | ("pair" | "int" | "float" | "list") "|" word ... (that, or one of the words) | word "|" word ...
 *
 * "kernel_size:pair stride:pair=kernel_size padding:pair=0" is MaxPool2d's. */
#ifndef MT_OPTIONS_H
#define MT_OPTIONS_H

#include "base/base.h"
#include "base/err.h"

enum { OPTIONS_MAX = 12, OPTION_NAME = 32, OPTION_WORDS = 48, OPTIONS_TEXT = 1024, LIST_SHOWN = 8 };

typedef enum OptionType {
    OPTION_INT, OPTION_FLOAT, OPTION_BOOL, OPTION_PAIR, OPTION_FLOATS, OPTION_LIST, OPTION_EACH,
    OPTION_TEXT, OPTION_WORD
} OptionType;

typedef struct Option {
    char name[OPTION_NAME];
    OptionType type;
    char words[OPTION_WORDS]; /* "none|tanh"; the value of a text */
    bool required, given;
    int64_t i[2];  /* int, bool, pair */
    int word;      /* index into words, -1 where a pair was given */
    double f[2];   /* float, floats */
    double *list;  /* list and each [n], or NULL where a word or a number was given; see options_free */
    int64_t n;
    int from;      /* index of the option whose value is the default, or -1 */
} Option;

typedef struct Options {
    const char *spec; /* borrowed: a constant of one of the tables */
    int count;
    Option item[OPTIONS_MAX];
} Options;

/* Reads a spec and sets the defaults. ERR_INTERNAL: the spec is malformed. */
int options_parse(Options *o, const char *spec, Err *e);
void options_free(Options *o);
/* The option of that name; NULL: ERR_SCRIPT, which lists the known names. */
Option *options_find(Options *o, const char *name, Err *e);
/* Set an option. ERR_SCRIPT: the value is not of its type, not finite, or not one of its words; a list is copied
 * (ERR_HOST_MEMORY). */
int option_set_number(Option *o, double value, Err *e);                 /* int, float, each, pair (both) */
int option_set_numbers(Option *o, double first, double second, Err *e); /* pair, floats */
int option_set_list(Option *o, const double *values, int64_t n, Err *e); /* list, each */
int option_set_bool(Option *o, bool value, Err *e);
int option_set_word(Option *o, const char *word, Err *e);
static inline bool option_takes_list(const Option *o) { return o->type == OPTION_LIST || o->type == OPTION_EACH; }
/* Fills the defaults that name another option. ERR_SCRIPT names the first required option that was not given. */
int options_finish(Options *o, Err *e);

/* Values of a finished set. A name that the spec does not have reads as 0, false or "". which: 0 or 1, of a pair. */
int64_t options_int(const Options *o, const char *name);
int64_t options_pair(const Options *o, const char *name, int which);
double options_float(const Options *o, const char *name);
double options_floats(const Options *o, const char *name, int which);
bool options_bool(const Options *o, const char *name);
/* list[*n]; NULL where a word was given, or one number for all, which options_float reads. */
const double *options_list(const Options *o, const char *name, int64_t *n);
/* The word or the text that was given, "" where a number or a pair was; returns text. */
const char *options_word(const Options *o, const char *name, char *text /* OPTION_WORDS */);
/* "kernel_size=3x3 stride=1x1": every option that differs from its default or is required, for dumps and cell ids; of
 * a list of more than LIST_SHOWN numbers their count and their hash, "weight=10#89abcdef01234567". OPTIONS_TEXT
 * characters are always enough. Returns text. */
const char *options_text(const Options *o, char *text, size_t room);

#endif
