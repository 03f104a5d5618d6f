/* pickle.h: reads plain data that Python's pickle has written (protocols 0 to 5): dicts, lists, tuples, text, bytes,
 * numbers, True, False, None, and what is shared between them. Pickles are not trusted: an opcode that makes or calls
 * anything else (GLOBAL, REDUCE, BUILD, persistent ids, extension codes, ...) is refused with its name and its place,
 * and nothing is ever looked up or run. A reader may allow names, as those that PyTorch's tensors consist of: then GLOBAL
 * gives the name, REDUCE and BINPERSID a pair of what would be called and its arguments, and BUILD is left out.
 *
 * A value is a word: a whole number, or the address of what the pickle holds. Equal texts are stored once, and what the
 * file shares (a frame of ten thousand tracebacks) is shared here, so that 100 MB of a file need about twice that. A
 * list may hold itself: who walks values looks after where that ends. */
#ifndef MT_PICKLE_H
#define MT_PICKLE_H

#include "base/base.h"
#include "base/err.h"

enum {
    PICKLE_DEPTH = 1000,      /* most marks that are open at once: tuples in tuples of protocol 0 */
    PICKLE_STACK = 1 << 22,   /* most values that wait for the container that they belong to */
};

/* PICKLE_BIG: a whole number that does not fit into 63 bits, whose value is not kept. */
typedef enum PickleKind {
    PICKLE_ABSENT, PICKLE_NONE, PICKLE_BOOL, PICKLE_INT, PICKLE_BIG, PICKLE_FLOAT, PICKLE_TEXT, PICKLE_BYTES,
    PICKLE_LIST, PICKLE_TUPLE, PICKLE_DICT, PICKLE_NAME, PICKLE_MADE, PICKLE_KIND_COUNT
} PickleKind;
const char *pickle_kind_name(PickleKind kind); /* "a list" */

typedef struct PickleValue { uint64_t word; } PickleValue; /* 0: absent */

typedef struct Pickle Pickle;
/* Reads a whole file. ERR_FILE: it cannot be read; ERR_FORMAT: it is no pickle of plain data, with the byte at which
 * that shows. */
int pickle_open(const char *path, Pickle **out, Err *e);
/* The same of a part of a file: `bytes` from byte `at` on. names: "module name" of what it may name, then NULL. */
#define PICKLE_ORDERED_DICT "collections OrderedDict" /* a dict here */
int pickle_open_part(const char *path, uint64_t at, uint64_t bytes, const char *const *names, Pickle **out, Err *e);
void pickle_close(Pickle *p); /* and all its values; NULL is allowed */
PickleValue pickle_root(const Pickle *p);

PickleKind pickle_kind(PickleValue v);
/* What a value of that kind holds; 0 of any other. */
int64_t pickle_int(PickleValue v);     /* INT; BOOL: 0 or 1 */
double pickle_float(PickleValue v);    /* FLOAT, INT */
/* Items of a LIST, a TUPLE or a MADE (the NAME of what makes it, None for a persistent id; then its arguments), pairs of a DICT, bytes of a TEXT (UTF-8) or of BYTES. */
size_t pickle_count(PickleValue v);
/* Of TEXT, BYTES and NAME ("torch FloatStorage"); a zero byte follows the last one. "" of any other. */
const char *pickle_text(PickleValue v);
PickleValue pickle_item(PickleValue v, size_t i);   /* of a LIST, TUPLE, MADE; DICT: the i-th pair's value */
PickleValue pickle_key(PickleValue v, size_t i);    /* of a DICT */
/* The text as a value that the pickle has somewhere: a key to look up in many dicts. Absent: no dict has it. */
PickleValue pickle_find(const Pickle *p, const char *text);
/* The value of that key, the last one where there are two; absent: there is none, or v is no DICT. */
PickleValue pickle_get(PickleValue v, PickleValue key);

#endif
