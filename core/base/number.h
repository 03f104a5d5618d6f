/* number.h: numbers as text, with "." as the decimal point whatever the locale. */
#ifndef MT_NUMBER_H
#define MT_NUMBER_H

#include "base.h"

enum { NUMBER_TEXT = 32 };

/* The fewest of 15, 16 or 17 significant digits that read back equal; "nan", "inf", "-inf". Returns text. */
const char *number_text(double value, char *text /* NUMBER_TEXT */);
/* Reads the number at the start of `text` as strtod does; *end == text: there is none. */
double number_read(const char *text, const char **end);

#endif
