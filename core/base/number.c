#include "number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Switches the calling thread to the locale "C" and returns the locale to go back to. Neither call can fail: "C" takes
 * no memory. */
static locale_t enter_c_locale(void) { return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); }

const char *number_text(double value, char *text) {
    if (isnan(value)) {
        snprintf(text, NUMBER_TEXT, "nan");
        return text;
    }
    locale_t before = enter_c_locale();
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, NUMBER_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    uselocale(before);
    return text;
}

double number_read(const char *text, const char **end) {
    char *stop;
    locale_t before = enter_c_locale();
    double value = strtod(text, &stop);
    uselocale(before);
    *end = stop;
    return value;
}
