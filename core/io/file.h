/* file.h: new files. A file is written under a temporary name and renamed when it is complete, so that nobody ever sees
 * half of one.
 *
 *   what the path is before             what is written
 *   nothing, or a regular file          a new file in the same folder, renamed to it; the old file's permissions stay
 *   a link to a regular file            the same for the file that the link leads to; the link stays
 *   the file of standard output         standard output itself: /dev/stdout, also if it is a pipe or a file after `>`
 *   a character device, a FIFO          the device or the FIFO itself
 *   anything else                       nothing: an error
 *
 * So a device or a link is never replaced by a file. The temporary file is opened without following links. */
#ifndef MT_FILE_H
#define MT_FILE_H

#include "base/base.h"
#include "base/err.h"

typedef struct NewFile NewFile;
/* ERR_FILE: it cannot be made. */
int file_new(const char *path, NewFile **out, Err *e);
int file_write(NewFile *f, const void *bytes, size_t n, Err *e);
/* Gives the complete file its name; with `sync` first waits until it is on the disk. Frees f, also if it fails. */
int file_finish(NewFile *f, bool sync, Err *e);
/* Drops the new file: what was there before stays. Frees f; NULL is allowed. */
void file_discard(NewFile *f);
/* Does f write to standard output? */
bool file_is_output(const NewFile *f);

#endif
