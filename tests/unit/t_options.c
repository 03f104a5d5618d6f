/* Options of layers, losses and optimizers: options.c, number.c. */
#include <float.h>
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/number.h"
#include "network/options.h"
#include "passes/settings.h"
#include "tap.h"

static const char CONV[] = "in_channels:int out_channels:int kernel_size:pair stride:pair=1 padding:pair|same|valid=0 "
                           "dilation:pair=1 groups:int=1 bias:bool=true";
static const char POOL[] = "kernel_size:pair stride:pair=kernel_size padding:pair=0";
static const char ADAM[] = "lr:float=0.001 betas:floats=0.9,0.999 eps:float=1e-8 weight_decay:float=0";
static const char GELU[] = "approximate:none|tanh=none";

static Options parse(const char *spec) {
    Options o;
    Err e = {0};
    ok(options_parse(&o, spec, &e) == OK, "\"%.40s\" is read", spec);
    if (e.code) printf("# %s\n", e.text);
    return o;
}

static void test_defaults(void) {
    Err e;
    char text[OPTION_WORDS];
    Options o = parse(CONV);
    is_int(o.count, 8, "Conv2d has 8 options");
    is_int(options_finish(&o, &e), ERR_SCRIPT, "three of them are required");
    is_str(e.text, "option \"in_channels\" is required", "the first is named");
    option_set_number(&o.item[0], 3, &e);
    is_int(options_finish(&o, &e), ERR_SCRIPT, "one given, two are left");
    is_str(e.text, "option \"out_channels\" is required", "the next is named");
    option_set_number(&o.item[1], 64, &e);
    option_set_numbers(&o.item[2], 3, 5, &e);
    is_int(options_finish(&o, &e), OK, "all required ones are given");
    is_int(options_int(&o, "in_channels"), 3, "an int");
    is_int(options_pair(&o, "kernel_size", 0), 3, "a pair, first");
    is_int(options_pair(&o, "kernel_size", 1), 5, "a pair, second");
    is_int(options_pair(&o, "stride", 1), 1, "the default of a pair is for both");
    is_int(options_bool(&o, "bias"), true, "the default of a bool");
    is_str(options_word(&o, "padding", text), "", "no word where a pair stands");
    ok(!o.item[3].given && o.item[2].given, "a default is not given");
    Options adam = parse(ADAM);
    is_int(options_finish(&adam, &e), OK, "an optimizer needs nothing");
    ok(options_float(&adam, "lr") == 0.001, "lr is exactly 0.001");
    ok(options_floats(&adam, "betas", 0) == 0.9 && options_floats(&adam, "betas", 1) == 0.999, "two floats");
    ok(options_float(&adam, "eps") == 1e-8, "an exponent");
    Options gelu = parse(GELU), none = parse("");
    is_str(options_word(&gelu, "approximate", text), "none", "a word");
    is_int(none.count, 0, "an empty spec has no options");
    is_int(options_finish(&none, &e), OK, "and is finished");
}

static void test_default_of_another(void) {
    Err e;
    Options o = parse(POOL);
    option_set_numbers(options_find(&o, "kernel_size", &e), 2, 3, &e);
    options_finish(&o, &e);
    ok(options_pair(&o, "stride", 0) == 2 && options_pair(&o, "stride", 1) == 3, "stride is kernel_size by default");
    option_set_number(options_find(&o, "stride", &e), 1, &e);
    options_finish(&o, &e);
    ok(options_pair(&o, "stride", 0) == 1 && options_pair(&o, "stride", 1) == 1, "and itself when given");
}

static void test_unknown(void) {
    static const struct { const char *spec, *name, *text; } cases[] = {
        {POOL, "strid", "unknown option \"strid\"; known: kernel_size, stride, padding; did you mean \"stride\"?"},
        {POOL, "kernelsize", "unknown option \"kernelsize\"; known: kernel_size, stride, padding; did you mean "
                             "\"kernel_size\"?"},
        {POOL, "Pading", "unknown option \"Pading\"; known: kernel_size, stride, padding; did you mean \"padding\"?"},
        {POOL, "momentum", "unknown option \"momentum\"; known: kernel_size, stride, padding"},
        {"p:float=0.5", "x", "unknown option \"x\"; known: p"},
        {"p:float=0.5", "pp", "unknown option \"pp\"; known: p; did you mean \"p\"?"},
        {POOL, "pdading", "unknown option \"pdading\"; known: kernel_size, stride, padding; did you mean \"padding\"?"},
        {"p:float=0.5", "", "unknown option \"\"; known: p"},
        {"", "x", "unknown option \"x\"; known: none"},
        {"p:float=0.5", "a_name_that_is_far_longer_than_the_name_of_any_option_may_be",
         "unknown option \"a_name_that_is_far_longer_than_the_name_of_any_opt\"; known: p"},
    };
    Err e;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Options o;
        options_parse(&o, cases[i].spec, NULL);
        ok(!options_find(&o, cases[i].name, &e) && e.code == ERR_SCRIPT, "\"%s\" is not known", cases[i].name);
        is_str(e.text, cases[i].text, "and the message helps");
    }
}

#define WHOLE "a whole number from -2147483648 to 2147483647"

/* set: n number, 2 numbers, t / f bool, w word */
static const struct { const char *spec; char set; double a, b; const char *word, *text; } values[] = {
    {"k:int", 'n', 7, 0, "", NULL},
    {"k:int", 'n', -2147483648.0, 0, "", NULL},
    {"k:int", 'n', 2147483647, 0, "", NULL},
    {"k:int", 'n', 2147483648.0, 0, "", "option \"k\": expected " WHOLE ", found 2147483648"},
    {"k:int", 'n', 1e300, 0, "", "option \"k\": expected " WHOLE ", found 1e+300"},
    {"k:int", 'n', 1.5, 0, "", "option \"k\": expected " WHOLE ", found 1.5"},
    {"k:int", 'n', NAN, 0, "", "option \"k\": expected " WHOLE ", found nan"},
    {"k:int", '2', 1, 2, "", "option \"k\": expected a whole number, found {1, 2}"},
    {"k:int", 't', 0, 0, "", "option \"k\": expected a whole number, found true"},
    {"k:int", 'w', 0, 0, "same", "option \"k\": expected a whole number, found \"same\""},
    {"k:float", 'n', -0.25, 0, "", NULL},
    {"k:float", 'n', INFINITY, 0, "", "option \"k\": expected a finite number, found inf"},
    {"k:float", 'n', NAN, 0, "", "option \"k\": expected a finite number, found nan"},
    {"k:float", 'f', 0, 0, "", "option \"k\": expected a number, found false"},
    {"k:float", '2', 1, 2, "", "option \"k\": expected a number, found {1, 2}"},
    {"k:pair", 'n', 3, 0, "", NULL},
    {"k:pair", '2', 3, -4, "", NULL},
    {"k:pair", 'n', 0.5, 0, "", "option \"k\": expected " WHOLE ", found 0.5"},
    {"k:pair", '2', 3, 0.5, "", "option \"k\": expected " WHOLE ", found {3, 0.5}"},
    {"k:pair", 'w', 0, 0, "same", "option \"k\": expected a number or a pair, found \"same\""},
    {"k:pair", 't', 0, 0, "", "option \"k\": expected a number or a pair, found true"},
    {"k:pair|same|valid", '2', 3, 4, "", NULL},
    {"k:pair|same|valid", 'w', 0, 0, "valid", NULL},
    {"k:pair|same|valid", 'w', 0, 0, "sam",
     "option \"k\": expected a number or a pair or \"same\" or \"valid\", found \"sam\""},
    {"k:floats", '2', 0.9, 0.5, "", NULL},
    {"k:floats", 'n', 0.9, 0, "", "option \"k\": expected two numbers, found 0.9"},
    {"k:floats", '2', 0.9, INFINITY, "", "option \"k\": expected a finite number, found {0.9, inf}"},
    {"k:bool", 't', 1, 0, "", NULL},
    {"k:bool", 'n', 1, 0, "", "option \"k\": expected true or false, found 1"},
    {"k:mean|sum", 'w', 0, 0, "sum", NULL},
    {"k:mean|sum", 'w', 0, 0, "none", "option \"k\": expected \"mean\" or \"sum\", found \"none\""},
    {"k:mean|sum", 'w', 0, 0, "", "option \"k\": expected \"mean\" or \"sum\", found \"\""},
    {"k:mean|sum", 'w', 0, 0, "mean|sum", "option \"k\": expected \"mean\" or \"sum\", found \"mean|sum\""},
    {"k:mean|sum", 'n', 1, 0, "", "option \"k\": expected \"mean\" or \"sum\", found 1"},
};

static void test_values(void) {
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        Options o;
        Err e = {0};
        char word[OPTION_WORDS];
        options_parse(&o, values[i].spec, NULL);
        Option *k = &o.item[0];
        int code = values[i].set == 'n' ? option_set_number(k, values[i].a, &e)
                 : values[i].set == '2' ? option_set_numbers(k, values[i].a, values[i].b, &e)
                 : values[i].set == 'w' ? option_set_word(k, values[i].word, &e)
                                        : option_set_bool(k, values[i].set == 't', &e);
        is_int(code, values[i].text ? ERR_SCRIPT : OK, values[i].spec);
        is_str(e.text, values[i].text ? values[i].text : "", "its message");
        is_int(k->given, !values[i].text, "a refused value is not given");
        if (values[i].text) continue;
        double second = values[i].set == '2' ? values[i].b : values[i].a;
        is_str(options_word(&o, "k", word), values[i].word, "its word");
        if (k->type == OPTION_FLOAT || k->type == OPTION_FLOATS)
            ok(options_float(&o, "k") == values[i].a && options_floats(&o, "k", 1) == second, "its floats");
        else ok((double)options_int(&o, "k") == values[i].a && (k->type == OPTION_BOOL ||
                (double)options_pair(&o, "k", 1) == second), "its whole numbers");
    }
}

static void test_list(void) {
    static const double many[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, bad[] = {1, INFINITY};
    char text[OPTIONS_TEXT], other[OPTIONS_TEXT];
    int64_t n;
    Err e = {0};
    Options o = parse("weight:list|none=none scale:float=1");
    ok(!options_list(&o, "weight", &n) && n == 0, "none is no list");
    is_str(options_text(&o, text, sizeof text), "", "and is the default");
    is_int(option_set_list(&o.item[0], many, 3, &e), OK, "a list of three");
    const double *list = options_list(&o, "weight", &n);
    ok(n == 3 && list && list != many && list[2] == 3, "is copied");
    is_str(options_text(&o, text, sizeof text), "weight=1,2,3", "a short one is told in full");
    is_int(option_set_list(&o.item[0], many, 9, &e), OK, "a longer one in its place");
    options_text(&o, text, sizeof text);
    ok(!strncmp(text, "weight=9#", 9) && strlen(text) == 25, "is told by its count and hash");
    is_int(option_set_list(&o.item[0], (double[]){1, 2, 3, 4, 5, 6, 7, 8, 10}, 9, &e), OK, "another one");
    ok(strcmp(text, options_text(&o, other, sizeof other)) && !strncmp(other, "weight=9#", 9), "has another hash");
    is_int(option_set_list(&o.item[0], bad, 2, &e), ERR_SCRIPT, "an infinity in a list");
    is_str(e.text, "option \"weight\": expected finite numbers, found inf as number 2", "and where it is");
    is_int(option_set_list(&o.item[0], bad, 0, &e), ERR_SCRIPT, "an empty list");
    is_str(e.text, "option \"weight\": expected a list of numbers or \"none\", found none", "and what is wrong");
    is_int(option_set_number(&o.item[0], 2, &e), ERR_SCRIPT, "a number is no list");
    is_int(option_set_list(&o.item[1], many, 3, &e), ERR_SCRIPT, "a list is no number");
    options_free(&o);
    is_int(options_parse(&o, "weight:each=1", &e), OK, "one number for all, or a list");
    is_str(options_text(&o, text, sizeof text), "", "... whose default has no text");
    is_int(option_set_number(&o.item[0], 2.5, &e), OK, "a number");
    is_str(options_text(&o, text, sizeof text), "weight=2.5", "... as text");
    ok(options_float(&o, "weight") == 2.5 && !options_list(&o, "weight", &n), "... is no list");
    is_int(option_set_list(&o.item[0], many, 1, &e), OK, "a list of one");
    ok(options_list(&o, "weight", &n) && n == 1, "... is one");
    is_str(e.text, "option \"scale\": expected a number, found a list of numbers", "it says");
    options_free(&o);
    is_int(mem_live(), 0, "lists are given back");
}

static void test_malformed(void) {
    static const char *const bad[] = {
        "a", "a=1", ":int", "a:", "a:number", "a:int=", "a:int=x", "a:int=1.5", "a:int=1,2", "a:pair=1,",
        "a:pair=1,2,3", "a:floats=1", "a:bool=yes", "a:bool=1", "a:none|tanh=relu", "a:none|=none", "a:|none=none",
        "a:none||tanh=none", "a:bool|same=true", "a:int a:int", " a:int", "a:int  b:int", "a:float=inf",
        "a:int=b b:int=1", "a:list=1", "a:list=1,2", "a:floats|none=none",
        "a:float=1 b:int=a",
        "a:pair|same=same b:pair=a", "a_name_of_thirty_two_characters_:int", "a:int=1x",
        "a:this_is_a_list_of_words|that_is_longer_than_it_may_be=x",
        "a:int b:int c:int d:int e:int f:int g:int h:int i:int j:int k:int l:int m:int",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        Options o;
        Err e = {0};
        is_int(options_parse(&o, bad[i], &e), ERR_INTERNAL, bad[i]);
        has_text(e.text, bad[i], "the message has the spec");
    }
}

/* Every option line of the tables is read. */
static void test_tables(void) {
    static const char *const specs[] = {
#define LAYER(name, role, file, kind, spec) spec,
#include "network/layers.def"
#undef LAYER
#define OPTIMIZER(name, op, options) options OPTIM_CLIPS,
#include "program/optimizers.def"
    };
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) parse(specs[i]);
}

static void test_text(void) {
    Err e;
    char text[OPTIONS_TEXT];
    Options o = parse(CONV);
    option_set_number(&o.item[0], 3, &e);
    option_set_number(&o.item[1], 64, &e);
    option_set_number(&o.item[2], 3, &e);
    options_finish(&o, &e);
    is_str(options_text(&o, text, sizeof text), "in_channels=3 out_channels=64 kernel_size=3x3", "required ones only");
    option_set_number(&o.item[3], 1, &e);
    is_str(options_text(&o, text, sizeof text), "in_channels=3 out_channels=64 kernel_size=3x3",
           "a default that is given makes no difference");
    option_set_numbers(&o.item[3], 1, 2, &e);
    option_set_word(&o.item[4], "same", &e);
    option_set_bool(&o.item[7], false, &e);
    const char *all = "in_channels=3 out_channels=64 kernel_size=3x3 stride=1x2 padding=same bias=false";
    is_str(options_text(&o, text, sizeof text), all, "pairs, words, bools");
    option_set_numbers(&o.item[4], 2, 1, &e);
    option_set_number(&o.item[0], 0, &e);
    all = "in_channels=0 out_channels=64 kernel_size=3x3 stride=1x2 padding=2x1 bias=false";
    is_str(options_text(&o, text, sizeof text), all, "a pair takes the place of a word; a required zero is printed");
    Options pool = parse(POOL);
    option_set_number(&pool.item[0], 2, &e);
    option_set_number(&pool.item[1], 2, &e);
    is_str(options_text(&pool, text, sizeof text), "kernel_size=2x2", "stride like kernel_size is its default");
    option_set_number(&pool.item[1], 1, &e);
    is_str(options_text(&pool, text, sizeof text), "kernel_size=2x2 stride=1x1", "another is not");
    Options adam = parse(ADAM), none = {0};
    is_str(options_text(&adam, text, sizeof text), "", "nothing but defaults: no text");
    option_set_number(&adam.item[0], 0.1, &e);
    option_set_numbers(&adam.item[1], 0.5, 1.0 / 3, &e);
    is_str(options_text(&adam, text, sizeof text), "lr=0.1 betas=0.5,0.3333333333333333", "floats, shortest form");
    is_str(options_text(&none, text, sizeof text), "", "no options: no text");
    for (size_t room = 1; room <= strlen(all) + 1; room++) {
        memset(text, '#', sizeof text);
        options_text(&o, text, room);
        if (strlen(text) == room - 1 && !strncmp(text, all, room - 1) && text[room] == '#') continue;
        ok(false, "cut to %zu characters", room);
        return;
    }
    ok(true, "text is cut to the room there is");
}

static void check_numbers(const char *where) {
    static const struct { double value; const char *text; } cases[] = {
        {0, "0"}, {0.1, "0.1"}, {-2.5, "-2.5"}, {100000, "100000"}, {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"}, {1e21, "1e+21"}, {1e23, "1e+23"}, {DBL_MAX, "1.7976931348623157e+308"},
        {NAN, "nan"}, {-NAN, "nan"}, {INFINITY, "inf"}, {-INFINITY, "-inf"},
    };
    char text[NUMBER_TEXT];
    const char *end;
    Options o;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) is_str(number_text(cases[i].value, text), cases[i].text, where);
    uint64_t state = 1, same = 0;
    for (int i = 0; i < 20000; i++) { /* any bits: subnormals and exponents of all sizes */
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t bits = state ^ state >> 29;
        double value, back;
        memcpy(&value, &bits, sizeof value);
        back = number_read(number_text(value, text), &end);
        same += !*end && (isnan(value) ? isnan(back) : back == value);
    }
    is_int((long long)same, 20000, "numbers read back equal");
    ok(!options_parse(&o, "lr:float=0.001", NULL) && options_float(&o, "lr") == 0.001, "a spec is read (%s)", where);
}

/* A locale of our own making, as few machines have one with a decimal comma */
static void test_locale(void) {
    char folder[] = "/tmp/memtide-locale-XXXXXX", command[200];
    check_numbers("C locale");
    if (!mkdtemp(folder)) { ok(false, "a folder for the locale"); return; }
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
    int made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    if (made && setlocale(LC_ALL, "de_DE.UTF-8")) {
        is_str(localeconv()->decimal_point, ",", "this locale has a decimal comma");
        check_numbers("German locale");
        is_str(localeconv()->decimal_point, ",", "the locale is as before");
    } else {
        skip("numbers under a decimal comma", "localedef cannot make a German locale here");
    }
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -r %s", folder);
    is_int(system(command), 0, "the folder is removed");
}

int main(void) {
    test_defaults();
    test_default_of_another();
    test_unknown();
    test_values();
    test_list();
    test_malformed();
    test_tables();
    test_text();
    test_locale();
    return tap_done();
}
