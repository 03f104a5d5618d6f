/* words.h: elements that are moved and not looked at, in the largest words of 2, 4, 8 or 16 bytes that fit. For .cu files. */
#ifndef MT_WORDS_H
#define MT_WORDS_H

#include "launch.h"

enum { WORD_BYTES = 16 };

/* The bytes of a word of which all lengths and addresses are multiples. of: all of them or'ed, in bytes */
static inline int word_bytes(uint64_t of) {
    of |= WORD_BYTES;
    return (int)(of & (~of + 1));
}

/* Of a function template on the type of a word: the one for words of so many bytes */
#define FOR_WORDS(function, bytes) \
    ((bytes) == 16 ? function<uint4> : (bytes) == 8 ? function<uint2> : (bytes) == 4 ? function<uint32_t> : function<uint16_t>)

#endif
