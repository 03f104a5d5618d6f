#include "json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

/* "expected ... at byte 7, found '}'" */
static int unexpected(const Json *j, const char *expected, Err *e) {
    char found[16] = "the end";
    unsigned char c = j->at < j->end ? (unsigned char)*j->at : 0;
    if (j->at < j->end) snprintf(found, sizeof found, c >= 0x20 && c < 0x7f ? "'%c'" : "byte 0x%02x", c);
    return err_set(e, ERR_FORMAT, "%s: expected %s at byte %zu, found %s", j->what, expected,
                   (size_t)(j->at - j->start), found);
}

static char *utf8_put(char *to, uint32_t c) {
    assert(c <= 0x10ffff);
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(lead[n] | c);
    return to + n;
}

int json_open(Json *j, char *text, size_t n, const char *what, Err *e) {
    *j = (Json){text, text, text + n, what};
    while (j->at < j->end) {
        size_t length = utf8_length(j->at, j->end);
        if (length == 0) return unexpected(j, "UTF-8", e);
        j->at += length;
    }
    j->at = text;
    return OK;
}

static void skip_white(Json *j) {
    while (j->at < j->end && memchr(" \t\n\r", *j->at, 4)) j->at++;
}

bool json_accept(Json *j, char sign) {
    skip_white(j);
    if (j->at == j->end || *j->at != sign) return false;
    j->at++;
    return true;
}

int json_expect(Json *j, char sign, Err *e) {
    const char expected[] = {'\'', sign, '\'', 0};
    return json_accept(j, sign) ? OK : unexpected(j, expected, e);
}

/* Four hexadecimal digits. */
static int unit(Json *j, uint32_t *value, Err *e) {
    static const char digits[] = "0123456789abcdef";
    *value = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char *digit = j->at < j->end && *j->at ? strchr(digits, *j->at | 0x20) : NULL;
        if (!digit || (*j->at < '0')) return unexpected(j, "four hexadecimal digits", e);
        *value = *value << 4 | (uint32_t)(digit - digits);
    }
    return OK;
}

/* The rest of an escape after \u: one unit, or two (a surrogate pair) for a character above U+FFFF. */
static int escaped_unit(Json *j, char **to, Err *e) {
    uint32_t c, low;
    int code = unit(j, &c, e);
    if (code) return code;
    if (c >> 10 == 0xd800 >> 10) {
        if (j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u')
            return unexpected(j, "the second half of a surrogate pair", e);
        j->at += 2;
        code = unit(j, &low, e);
        if (code) return code;
        c = low >> 10 == 0xdc00 >> 10 ? 0x10000 + ((c & 0x3ff) << 10 | (low & 0x3ff)) : 0xdc00;
    }
    if (c == 0 || c >> 11 == 0xd800 >> 11)
        return err_set(e, ERR_FORMAT, "%s: the escape before byte %zu is zero or half of a surrogate pair, "
                       "not a character", j->what, (size_t)(j->at - j->start));
    *to = utf8_put(*to, c);
    return OK;
}

static int escape(Json *j, char **to, Err *e) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (j->at < j->end && *j->at == 'u') {
        j->at++;
        return escaped_unit(j, to, e);
    }
    const char *name = j->at < j->end && *j->at ? strchr(names, *j->at) : NULL;
    if (!name) return unexpected(j, "an escape such as \\n", e);
    *(*to)++ = values[name - names];
    j->at++;
    return OK;
}

int json_string(Json *j, char **text, Err *e) {
    if (!json_accept(j, '"')) return unexpected(j, "a string", e);
    char *to = *text = j->at; /* never ahead of j->at: an escape is longer than what it stands for */
    while (j->at < j->end && *j->at != '"') {
        if ((unsigned char)*j->at < 0x20) return unexpected(j, "no bare control character in a string", e);
        if (*j->at != '\\') {
            *to++ = *j->at++;
            continue;
        }
        j->at++;
        int code = escape(j, &to, e);
        if (code) return code;
        assert(to <= j->at);
    }
    if (j->at == j->end) return unexpected(j, "the end of a string", e);
    j->at++;
    *to = 0;
    return OK;
}

int json_whole(Json *j, int64_t *value, Err *e) {
    skip_white(j);
    const char *first = j->at;
    int64_t sum = 0;
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        int digit = *j->at - '0';
        if (sum > (INT64_MAX - digit) / 10) return unexpected(j, "a number below 2^63", e);
        sum = sum * 10 + digit;
        if (j->at > first && *first == '0') return unexpected(j, "a number without leading zeros", e);
    }
    bool more = j->at < j->end && memchr(".eE", *j->at, 3);
    if (j->at == first || more) return unexpected(j, "a whole number that is not negative", e);
    *value = sum;
    return OK;
}

/* Skips digits; returns how many. */
static int64_t digits(Json *j) {
    const char *first = j->at;
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++;
    return j->at - first;
}

int json_number(Json *j, double *value, int64_t *integer, bool *whole, Err *e) {
    static const char expected[] = "a number";
    skip_white(j);
    const char *first = j->at, *end;
    if (j->at < j->end && *j->at == '-') j->at++;
    const bool zero = j->at < j->end && *j->at == '0';
    const int64_t n = digits(j);
    if (!n || (zero && n > 1)) return unexpected(j, n ? "a number without leading zeros" : expected, e);
    *whole = n <= 18; /* below 2^63 */
    if (j->at < j->end && *j->at == '.') {
        *whole = false;
        j->at++;
        if (!digits(j)) return unexpected(j, "digits", e);
    }
    if (j->at < j->end && (*j->at | 0x20) == 'e') {
        *whole = false;
        j->at++;
        if (j->at < j->end && memchr("+-", *j->at, 2)) j->at++;
        if (!digits(j)) return unexpected(j, "digits", e);
    }
    *value = number_read(first, &end);
    *integer = *whole ? strtoll(first, NULL, 10) : 0;
    assert(end == j->at);
    return OK;
}

char json_word(Json *j) {
    static const char *const words[] = {"true", "false", "null"};
    skip_white(j);
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) < n || memcmp(j->at, words[i], n)) continue;
        j->at += n;
        return words[i][0];
    }
    return 0;
}

int json_expected(const Json *j, const char *expected, Err *e) { return unexpected(j, expected, e); }

int json_end(Json *j, Err *e) {
    skip_white(j);
    return j->at == j->end ? OK : unexpected(j, "the end of the text", e);
}
