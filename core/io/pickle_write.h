/* pickle_write.h: writes plain data as Python's pickle does, in protocol 2: dicts, lists, text, whole numbers, True, False,
 * None, and what is shared between them. pickle.h reads it.
 *
 * A value is put, and then taken into the container that was put before it:
 *
 *     pickle_put_dict; pickle_put_text "sizes"; pickle_put_list; pickle_put_int 7; pickle_append; pickle_set    {"sizes": [7]}
 *
 * The first failure is kept, and what is put after it is dropped: pickle_finish tells it. */
#ifndef MT_PICKLE_WRITE_H
#define MT_PICKLE_WRITE_H

#include "base/base.h"
#include "base/err.h"

typedef struct PickleFile PickleFile;
/* ERR_FILE: it cannot be made. The file gets its name when it is complete: file.h. */
int pickle_new(const char *path, PickleFile **out, Err *e);
void pickle_put_none(PickleFile *f);
void pickle_put_bool(PickleFile *f, bool value);
void pickle_put_int(PickleFile *f, int64_t value);
void pickle_put_text(PickleFile *f, const char *text, size_t n); /* bytes that are no UTF-8 become '?' */
void pickle_put_list(PickleFile *f);  /* an empty one */
void pickle_put_dict(PickleFile *f);  /* an empty one */
void pickle_append(PickleFile *f);    /* the value that was put last, to the list before it */
void pickle_set(PickleFile *f);       /* the value that was put last, by the key before it, into the dict before that */
/* The value that was put last has this number from now on, and can be put again by it: it is then the same object. Numbers
 * count up from 0. */
void pickle_remember(PickleFile *f, uint32_t number);
void pickle_put_again(PickleFile *f, uint32_t number);
/* One value was put. Completes the file; frees f, also if it fails. */
int pickle_finish(PickleFile *f, Err *e);
/* Drops the file: what was there before stays. Frees f; NULL is allowed. */
void pickle_discard(PickleFile *f);

#endif
