/* file.h: a file that is written beside its name and takes it when it is complete: nobody ever sees half of one.
 *
 *   what the name is before             what is written
 *   nothing, or a regular file          a new file in the same folder, renamed to it; an old one's permissions stay
 *   a link to a regular file            the same, in the place of the file that it leads to; the link stays
 *   where standard output goes to       standard output itself: /dev/stdout also of a pipe, or of a file after `>`
 *   a character device, a FIFO          that
 *   anything else                       nothing: an error
 *
 * So a device or a link never becomes a file. No link is followed to what is written beside the name. */
#ifndef MT_FILE_H
#define MT_FILE_H

#include "base/base.h"
#include "base/err.h"

typedef struct NewFile NewFile;
/* ERR_FILE: it cannot be made. */
int file_new(const char *path, NewFile **out, Err *e);
int file_write(NewFile *f, const void *bytes, size_t n, Err *e);
/* The file is complete: it takes its name, with `sync` after it has reached the disk. Frees f, also where it fails. */
int file_finish(NewFile *f, bool sync, Err *e);
/* It is not wanted: what was there before stays. Frees f; NULL is allowed. */
void file_discard(NewFile *f);
/* Is it standard output that is written? */
bool file_is_output(const NewFile *f);

#endif
