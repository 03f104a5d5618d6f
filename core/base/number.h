/* number.h: numbers as text, with "." as the decimal point in every locale. */
#ifndef MT_NUMBER_H
#define MT_NUMBER_H

#include "base.h"

enum { NUMBER_TEXT = 32 };

/* The shortest of the texts with 15, 16 and 17 significant digits that reads back as the same number; "nan", "inf",
 * "-inf". Returns text. */
const char *number_text(double value, char *text /* NUMBER_TEXT */);
/* Reads the number at the start of `text` as strtod does; *end: the first character after it, or text if there is no
 * number. */
double number_read(const char *text, const char **end);

#endif
