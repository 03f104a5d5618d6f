/* json.h: reads JSON text (RFC 8259) from front to back. The caller knows what comes next and asks for it. Nothing is
 * allocated: strings are decoded in place. Errors are ERR_FORMAT and name the byte. */
#ifndef MT_JSON_H
#define MT_JSON_H

#include "base/base.h"
#include "base/err.h"

typedef struct Json {
    char *start, *at, *end;
    const char *what; /* what messages call the text: "x.safetensors: header" */
} Json;

/* Starts to read text[0..n). Reading changes it, and text[n] must be writable. ERR_FORMAT: it is not UTF-8. */
int json_open(Json *j, char *text, size_t n, const char *what, Err *e);
/* Skips white space and takes `sign`, one of { } [ ] : , if it comes next. expect: anything else is an error. */
int json_expect(Json *j, char sign, Err *e);
bool json_accept(Json *j, char sign);
/* A string, decoded and ended by a zero byte; a string that contains a zero byte is an error. */
int json_string(Json *j, char **text, Err *e);
/* A whole number from 0 to INT64_MAX, without fraction or exponent. */
int json_whole(Json *j, int64_t *value, Err *e);
/* Any number, as fp64; *whole: it has neither fraction nor exponent, and *integer is its value (an int64_t). */
int json_number(Json *j, double *value, int64_t *integer, bool *whole, Err *e);
/* One of the words true, false and null: the first letter of the one that comes next; 0: none does. */
char json_word(Json *j);
/* An error that says what was expected here. */
int json_expected(const Json *j, const char *expected, Err *e);
/* Checks that only white space is left. */
int json_end(Json *j, Err *e);

#endif
