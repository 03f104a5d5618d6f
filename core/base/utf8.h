/* utf8.h: UTF-8 (RFC 3629). */
#ifndef MT_UTF8_H
#define MT_UTF8_H

#include "base.h"

/* Bytes of the character at p, before `end`; 0: there is none (cut off, overlong, a surrogate, or above U+10FFFF). */
size_t utf8_length(const char *p, const char *end);

#endif
