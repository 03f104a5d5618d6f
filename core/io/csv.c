#include "csv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "csv_line.h"

/* Memory holds 8 bytes for each row: where it begins, and a mark of its cell and repeat. The text of a row is read from
 * the file when it is needed, and then packed as csv_split packs it: the fields follow each other, each ended by
 * '\0'. */
typedef struct Header {
    char *line, *names; /* as in the file, with "\n"; packed */
    int columns;
} Header;

struct Csv {
    char *path, *directory;
    int fd;           /* -1: the file is not there yet */
    pid_t owner;      /* forked workers have the descriptor too, and with it the lock */
    int64_t length;   /* bytes of the file */
    Header header[ROW_FORMAT]; /* of the rows that are written, in each format */
    int format;       /* the file's: rows are written without the columns that it lacks */
    int cell, repeat; /* columns */
    bool late;        /* see csv_flush_late */
    uint64_t *slot;   /* [slots] hash table by mark: mark << AT_BITS | where the row begins, 0 = free */
    int slots, n;     /* slots is 0 or a power of two; n: rows, one for each (cell, repeat); n < slots */
    bool replaced;    /* has a later row replaced an earlier one? */
    char *record;     /* the row that was read last */
    int record_cap;
    int64_t held;     /* where that row begins; 0: none (the header begins there) */
};

enum { AT_BITS = 40, CHUNK = 1 << 13 };
#define BYTE_ORDER_MARK "\xEF\xBB\xBF"
#define AT_MASK ((UINT64_C(1) << AT_BITS) - 1)

static int no_memory(const Csv *c, Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "\"%.200s\": no memory for its rows", c->path);
}

/* "cannot <verb> <path>: <strerror>" */
static int file_error(const char *verb, const char *path, Err *e) {
    return err_set(e, ERR_FILE, "cannot %s \"%.200s\": %s", verb, path, strerror(errno));
}

/* Records */

static const char *field(const char *packed, int index) {
    assert(index >= 0);
    while (index-- > 0) packed += strlen(packed) + 1;
    return packed;
}

static const Header *header(const Csv *c) { return &c->header[c->format - 1]; }

static int find_column(const Csv *c, const char *name) {
    for (int i = 0; i < header(c)->columns; i++)
        if (!strcmp(field(header(c)->names, i), name)) return i;
    return -1;
}

static void set_format(Csv *c, int format) {
    assert(format >= 1 && format <= ROW_FORMAT);
    c->format = format;
    c->cell = find_column(c, "cell");
    c->repeat = find_column(c, "repeat");
    assert(c->cell >= 0 && c->repeat >= 0);
}

/* The index */

/* Length of the first part of a cell's id, which is the hash of its settings; those of network and data follow. */
static size_t settings_length(const char *cell) { return strcspn(cell, "-"); }

/* Rows with the same settings and repeat have the same mark, whatever their networks. */
static uint64_t mark_of(const char *cell, const char *repeat) {
    uint64_t hash = hash_bytes(HASH_START, cell, settings_length(cell));
    hash = hash_bytes(hash, repeat, strlen(repeat) + 1);
    return (hash ^ hash >> 32) & (UINT64_MAX >> AT_BITS);
}

/* Reads the line that begins at `at` into c->record; returns its length without the newline, -1: it cannot be read. */
static int read_line(Csv *c, int64_t at) {
    assert(c->fd >= 0 && at > 0);
    c->held = 0;
    for (int have = 0;;) {
        if (!mem_grow(&c->record, &c->record_cap, have + CHUNK, 1)) return -1;
        ssize_t got = pread(c->fd, c->record + have, CHUNK, (off_t)(at + have));
        const char *end = got > 0 ? memchr(c->record + have, '\n', (size_t)got) : NULL;
        if (got <= 0) return -1;
        if (end) return (int)(end - c->record);
        have += (int)got;
    }
}

/* The row that begins at `at`, packed; NULL: it cannot be read back. */
static const char *read_row(Csv *c, int64_t at) {
    if (c->held == at) return c->record;
    int n = read_line(c, at);
    if (n < 0 || csv_split(c->record, (size_t)n) != header(c)->columns) return NULL;
    c->held = at;
    return c->record;
}

static bool is_row(Csv *c, int64_t at, const char *cell, const char *repeat) {
    const char *record = read_row(c, at);
    return record && !strcmp(field(record, c->cell), cell) && !strcmp(field(record, c->repeat), repeat);
}

/* The slot of the row of this cell and repeat, or the free slot where it belongs. Where several rows have the mark,
 * each is read from the file and compared; one that cannot be read back is not the row. */
static uint64_t *find_slot(Csv *c, const char *cell, const char *repeat) {
    assert(c->n < c->slots); /* a free slot ends the search */
    uint64_t mark = mark_of(cell, repeat), last = (uint64_t)c->slots - 1, at = mark & last;
    while (c->slot[at] &&
           (c->slot[at] >> AT_BITS != mark || !is_row(c, (int64_t)(c->slot[at] & AT_MASK), cell, repeat)))
        at = (at + 1) & last;
    return &c->slot[at];
}

/* Makes room for one more row, so that `insert` cannot fail. */
static int reserve(Csv *c, Err *e) {
    if ((uint64_t)c->length > AT_MASK)
        return err_set(e, ERR_UNSUPPORTED, "\"%.200s\": expected at most %" PRIu64 " bytes, found %" PRId64, c->path,
                       (uint64_t)AT_MASK, c->length);
    if (c->n < c->slots / 4 * 3) return OK;
    int slots = c->slots ? 2 * c->slots : 64;
    uint64_t *fresh = mem_new((size_t)slots * sizeof *fresh), last = (uint64_t)slots - 1;
    if (!fresh) return no_memory(c, e);
    for (int i = 0; i < c->slots; i++) {
        uint64_t at = c->slot[i] >> AT_BITS & last;
        while (fresh[at]) at = (at + 1) & last;
        fresh[at] = c->slot[i];
    }
    mem_free(c->slot);
    c->slot = fresh;
    c->slots = slots;
    return OK;
}

/* Indexes the packed row that begins at `at`. Of two rows with the same cell and repeat the later counts: the cell was
 * run again. */
static void insert(Csv *c, const char *record, int64_t at) {
    const char *cell = field(record, c->cell), *repeat = field(record, c->repeat);
    uint64_t *slot = find_slot(c, cell, repeat);
    assert(at > 0 && (uint64_t)at <= AT_MASK);
    if (*slot) c->replaced = true;
    else c->n++;
    *slot = mark_of(cell, repeat) << AT_BITS | (uint64_t)at;
}

const char *csv_value(Csv *c, const char *cell, int64_t repeat, const char *column) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, repeat);
    uint64_t slot = c->slots ? *find_slot(c, cell, text) : 0;
    int i = find_column(c, column);
    const char *record = slot && i >= 0 ? read_row(c, (int64_t)(slot & AT_MASK)) : NULL;
    return record ? field(record, i) : NULL;
}

const char *csv_status(Csv *c, const char *cell, int64_t repeat) { return csv_value(c, cell, repeat, "status"); }

const char *csv_latest(Csv *c, const char *cell, int64_t repeat) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, repeat);
    uint64_t mark = mark_of(cell, text), last = (uint64_t)c->slots - 1;
    size_t n = settings_length(cell);
    int64_t latest = 0;
    for (uint64_t i = mark & last; c->slots && c->slot[i]; i = (i + 1) & last) {
        int64_t at = (int64_t)(c->slot[i] & AT_MASK);
        if (c->slot[i] >> AT_BITS != mark || at < latest) continue;
        const char *record = read_row(c, at), *other = record ? field(record, c->cell) : "";
        if (record && settings_length(other) == n && !memcmp(other, cell, n) && !strcmp(field(record, c->repeat), text))
            latest = at;
    }
    const char *record = latest ? read_row(c, latest) : NULL;
    return record ? field(record, c->cell) : NULL;
}

int64_t csv_rows(const Csv *c) { return c->n; }

/* Reading back */

/* Text of an untrusted file for a message on a terminal: without control characters */
static const char *printable(const char *text, char *out, size_t room) {
    snprintf(out, room, "%s", text);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
    return out;
}

static int line_error(const Csv *c, int64_t line, int fields, Err *e) {
    if (fields == CSV_OPEN_QUOTE)
        return err_set(e, ERR_FORMAT, "\"%.200s\" line %" PRId64 ": a quote is not closed", c->path, line);
    if (fields == CSV_DAMAGED)
        return err_set(e, ERR_FORMAT, "\"%.200s\" line %" PRId64 ": a quote or a zero byte where none can be", c->path,
                       line);
    return err_set(e, ERR_FORMAT, "\"%.200s\" line %" PRId64 ": expected %d fields, found %d", c->path, line,
                   header(c)->columns, fields);
}

/* How many of the packed names, from the first on, are those of the header */
static int agree(const Header *h, const char *packed, int fields) {
    int i = 0;
    while (i < fields && i < h->columns && !strcmp(field(packed, i), field(h->names, i))) i++;
    return i;
}

/* Finds the file's format. A header of no format is compared with the format that it is most like, for the message. */
static int check_header(Csv *c, const char *packed, int fields, Err *e) {
    char found[48];
    int best = 0, most = -1;
    if (fields < 0) return line_error(c, 1, fields, e);
    for (int format = ROW_FORMAT; format > 0; format--) {
        int n = agree(&c->header[format - 1], packed, fields);
        if (n == fields && n == c->header[format - 1].columns) {
            set_format(c, format);
            return OK;
        }
        if (n > most) {
            most = n;
            best = format;
        }
    }
    const Header *h = &c->header[best - 1];
    if (most < fields && most < h->columns) {
        printable(field(packed, most), found, sizeof found);
        if (!strncmp(field(packed, 0), BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)))
            return err_set(e, ERR_FORMAT, "\"%.200s\" begins with a byte order mark, as spreadsheets write it: expected UTF-8 without one", c->path);
        return err_set(e, ERR_FORMAT, "\"%.200s\": column %d is \"%s\", expected \"%.48s\"",
                       c->path, most + 1, found, field(h->names, most));
    }
    printable(field(fields < h->columns ? h->names : packed, most), found, sizeof found);
    return err_set(e, ERR_FORMAT, "\"%.200s\": column %d, \"%s\", is %s", c->path, most + 1, found,
                   fields < h->columns ? "missing" : "not expected");
}

/* Is text[0..n) the beginning of a header? */
static bool begins_header(const Csv *c, const char *text, size_t n) {
    for (int i = 0; i < ROW_FORMAT; i++) {
        size_t length = strlen(c->header[i].line);
        if (!memcmp(text, c->header[i].line, n < length ? n : length)) return true;
    }
    return false;
}

/* The file, read line by line; the buffer grows to the longest line. */
typedef struct Lines {
    char *text;
    int cap, at, have; /* text[at..have) was read and is not taken yet */
} Lines;

/* The next line is text[at..at + *n), with its newline after it. *n = -1: text[at..have) is the rest of the file and
 * has no newline; text[have] is writable. */
static int next_line(const Csv *c, Lines *l, int *n, Err *e) {
    assert(l->at <= l->have);
    for (int seen = 0;;) {
        int left = l->have - l->at;
        const char *end = left > seen ? memchr(l->text + l->at + seen, '\n', (size_t)(left - seen)) : NULL;
        *n = end ? (int)(end - l->text) - l->at : -1;
        if (end) return OK;
        if (left) memmove(l->text, l->text + l->at, (size_t)left);
        l->at = 0;
        l->have = seen = left;
        if (!mem_grow(&l->text, &l->cap, seen + CHUNK + 1, 1)) return no_memory(c, e);
        ssize_t got = read(c->fd, l->text + seen, CHUNK);
        if (got < 0 && errno != EINTR) return file_error("read", c->path, e);
        if (got == 0) return OK;
        if (got > 0) l->have += (int)got;
    }
}

/* Checks the complete line text[0..n), which begins at c->length in the file, and indexes it. *torn: it is the last
 * line and its quote is open. */
static int take_line(Csv *c, char *text, int n, int64_t line, bool last, bool *torn, Err *e) {
    int fields = csv_split(text, (size_t)n);
    if (line == 1) return check_header(c, text, fields, e);
    *torn = fields == CSV_OPEN_QUOTE && last;
    if (*torn) return OK;
    if (fields != header(c)->columns) return line_error(c, line, fields, e);
    int code = reserve(c, e);
    if (!code) insert(c, text, c->length);
    return code;
}

/* Checks and indexes a file of `size` bytes. c->length becomes the number of bytes before a torn last line. */
static int take_lines(Csv *c, Lines *l, int64_t size, Err *e) {
    bool torn = false;
    for (int64_t line = 1;; line++) {
        int n, code = next_line(c, l, &n, e);
        size_t rest = (size_t)(l->have - l->at);
        if (code) return code;
        if (n < 0 && (line > 1 || !rest || begins_header(c, l->text, rest))) return OK;
        if (n < 0) { /* memtide never wrote to this file: the header's check says what it found instead */
            l->text[rest] = '\n';
            return take_line(c, l->text, (int)rest, line, true, &torn, e);
        }
        code = take_line(c, l->text + l->at, n, line, c->length + n + 1 == size, &torn, e);
        if (code || torn) return code;
        l->at += n + 1;
        c->length += n + 1;
    }
}

static int write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;
        if (done <= 0) return -1;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

static int sync_directory(const Csv *c, Err *e) {
    int fd = open(c->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    if (failed) file_error("write to the disk the directory", c->directory, e);
    if (fd >= 0) close(fd);
    return failed ? ERR_FILE : OK;
}

/* Appends torn[0..n) to FILE.torn, and returns when it is on the disk: only then may it be cut from the file. */
static int keep_torn(const Csv *c, const char *torn, size_t n, Err *e) {
    assert(n > 0);
    size_t room = strlen(c->path) + sizeof ".torn";
    char *path = mem_new(room);
    if (!path) return no_memory(c, e);
    snprintf(path, room, "%s.torn", c->path);
    int code = OK, fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || write_all(fd, torn, n) || (torn[n - 1] != '\n' && write_all(fd, "\n", 1)) || fsync(fd))
        code = file_error("write", path, e);
    if (fd >= 0 && close(fd) && !code) code = file_error("write", path, e);
    mem_free(path);
    return code ? code : sync_directory(c, e);
}

/* Moves the bytes after c->length to FILE.torn. */
static int cut_torn(const Csv *c, int64_t size, Err *e) {
    size_t n = (size_t)(size - c->length);
    char *text = mem_new(n);
    if (!text) return no_memory(c, e);
    int code = OK;
    errno = EIO; /* for a short read, which sets none */
    if (pread(c->fd, text, n, (off_t)c->length) != (ssize_t)n) code = file_error("read", c->path, e);
    if (!code) code = keep_torn(c, text, n, e);
    if (!code && (ftruncate(c->fd, (off_t)c->length) || fsync(c->fd))) code = file_error("shorten", c->path, e);
    mem_free(text);
    return code;
}

/* Indexes the file of `size` bytes anew. */
static int index_rows(Csv *c, int64_t size, Err *e) {
    Lines lines = {0};
    if (lseek(c->fd, 0, SEEK_SET)) return file_error("read", c->path, e);
    if (c->slots) memset(c->slot, 0, (size_t)c->slots * sizeof *c->slot);
    c->n = 0;
    c->length = 0;
    c->held = 0;
    c->replaced = false;
    int code = take_lines(c, &lines, size, e);
    mem_free(lines.text);
    return code;
}

static int load(Csv *c, bool *torn, Err *e) {
    struct stat st;
    if (fstat(c->fd, &st)) return file_error("read", c->path, e);
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_FILE, "\"%.200s\" is not a regular file", c->path);
    int code = index_rows(c, st.st_size, e);
    if (code || c->length >= st.st_size) return code;
    code = cut_torn(c, st.st_size, e);
    *torn = !code;
    return code;
}

/* Opening */

bool csv_no_locks(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

static int lock(const Csv *c, Err *e) {
    if (!flock(c->fd, LOCK_EX | LOCK_NB) || csv_no_locks(errno)) return OK;
    if (errno != EWOULDBLOCK) return file_error("lock", c->path, e);
    return err_set(e, ERR_FILE, "\"%.200s\" is in use: another process is writing to it", c->path);
}

static bool make_header(Header *h, const Row *like, int format) {
    h->line = row_header_line(like, format);
    h->names = h->line ? mem_copy(h->line, strlen(h->line) + 1) : NULL;
    if (h->names) h->columns = csv_split(h->names, strlen(h->names) - 1);
    return h->names != NULL;
}

static int set_up(Csv *c, const char *path, const Row *like, Err *e) {
    bool made = true;
    const char *slash = strrchr(path, '/');
    c->fd = -1;
    c->owner = getpid();
    c->path = mem_copy(path, strlen(path) + 1);
    c->directory = mem_copy(slash ? path : ".", slash ? (size_t)(slash - path) + 2 : 2);
    for (int format = 1; format <= ROW_FORMAT && made; format++)
        made = make_header(&c->header[format - 1], like, format);
    if (!c->path || !c->directory || !made)
        return err_set(e, ERR_HOST_MEMORY, "no memory to open \"%.200s\"", path);
    if (slash) c->directory[slash - path + 1] = '\0'; /* with the slash: right for "/" too */
    set_format(c, ROW_FORMAT);
    return OK;
}

static int open_file(Csv *c, bool *torn, Err *e) {
    c->fd = open(c->path, O_RDWR | O_APPEND | O_CLOEXEC);
    if (c->fd >= 0) {
        int code = lock(c, e);
        return code ? code : load(c, torn, e);
    }
    struct stat st;
    if (errno != ENOENT) return file_error("open", c->path, e);
    if (!lstat(c->path, &st))
        return err_set(e, ERR_FILE, "cannot create \"%.200s\": it is a symbolic link to a file that is not there",
                       c->path);
    /* checked now, not after the first cell has run for an hour */
    if (access(c->directory, W_OK | X_OK)) return file_error("create", c->path, e);
    return OK;
}

int csv_open(const char *path, const Row *like, Csv **out, bool *torn, Err *e) {
    bool moved = false;
    Csv *c = mem_new(sizeof *c);
    *out = NULL;
    if (!c) return err_set(e, ERR_HOST_MEMORY, "no memory to open \"%.200s\"", path);
    int code = set_up(c, path, like, e);
    if (!code) code = open_file(c, &moved, e);
    if (code) csv_close(c);
    else *out = c;
    if (torn) *torn = moved;
    return code;
}

void csv_close(Csv *c) {
    if (!c) return;
    if (c->fd >= 0 && c->owner == getpid()) flock(c->fd, LOCK_UN);
    if (c->fd >= 0) close(c->fd);
    mem_free(c->record);
    mem_free(c->slot);
    for (int i = 0; i < ROW_FORMAT; i++) {
        mem_free(c->header[i].names);
        mem_free(c->header[i].line);
    }
    mem_free(c->directory);
    mem_free(c->path);
    mem_free(c);
}

/* Appending */

/* O_EXCL: of two processes that both found no file, one creates it and the other is refused here. */
static int create(Csv *c, Err *e) {
    c->fd = open(c->path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (c->fd < 0) return file_error("create", c->path, e);
    int code = lock(c, e);
    if (!code) code = sync_directory(c, e);
    if (code) {
        close(c->fd);
        c->fd = -1;
    }
    return code;
}

/* An editor that saved the file has put another one in its place: rows written to the old one would be lost. */
static int check_unchanged(const Csv *c, Err *e) {
    struct stat st;
    if (fstat(c->fd, &st)) return file_error("write", c->path, e);
    if (st.st_nlink == 0)
        return err_set(e, ERR_FILE, "\"%.200s\" was removed or replaced by another program", c->path);
    if (st.st_size != c->length)
        return err_set(e, ERR_FILE, "\"%.200s\" was changed by another program: expected %" PRId64 " bytes, found %"
                       PRId64, c->path, c->length, (int64_t)st.st_size);
    return OK;
}

static int write_record(Csv *c, const char *text, Err *e) {
    size_t n = strlen(text);
    int code = c->fd < 0 ? create(c, e) : OK;
    if (!code) code = check_unchanged(c, e);
    if (code) return code;
    if (write_all(c->fd, text, n) || (!c->late && fdatasync(c->fd))) {
        code = file_error("write", c->path, e);
        if (ftruncate(c->fd, (off_t)c->length)) err_prefix(e, "the file may now end in a part of the row");
        return code;
    }
    c->length += (int64_t)n;
    return OK;
}

/* Where field `index` begins in a line that is not split yet */
static size_t field_offset(const char *line, int index) {
    assert(index >= 0);
    bool open = false;
    size_t i = 0;
    for (; index; i++) {
        if (line[i] == '"') open = !open;
        index -= line[i] == ',' && !open;
    }
    return i;
}

/* Overwrites n bytes of the file at `at`. With O_APPEND, pwrite ignores the offset (Linux), so the flag is off for the
 * write. */
static int write_over(const Csv *c, const char *data, size_t n, int64_t at) {
    assert(at > 0 && at + (int64_t)n <= c->length);
    int flags = fcntl(c->fd, F_GETFL);
    if (flags < 0 || fcntl(c->fd, F_SETFL, flags & ~O_APPEND)) return -1;
    errno = ENOSPC;
    int failed = pwrite(c->fd, data, n, (off_t)at) != (ssize_t)n || (!c->late && fdatasync(c->fd));
    int why = errno;
    if (fcntl(c->fd, F_SETFL, flags)) return -1;
    errno = why;
    return failed ? -1 : 0;
}

/* If the row that begins at *at has this cell and repeat, its id becomes `to`. *at moves to the next row. */
static int rename_row(Csv *c, int64_t *at, const char *cell, const char *repeat, const char *to, Err *e) {
    errno = EIO; /* for a short read, which sets none */
    int n = read_line(c, *at);
    if (n < 0) return file_error("read", c->path, e);
    size_t offset = field_offset(c->record, c->cell);
    offset += c->record[offset] == '"';
    int64_t place = *at + (int64_t)offset;
    *at += n + 1;
    if (csv_split(c->record, (size_t)n) != header(c)->columns)
        return err_set(e, ERR_FILE, "\"%.200s\" was changed by another program", c->path);
    if (strcmp(field(c->record, c->cell), cell) != 0 || strcmp(field(c->record, c->repeat), repeat) != 0) return OK;
    return write_over(c, to, strlen(to), place) ? file_error("write", c->path, e) : OK;
}

int csv_rename(Csv *c, const char *cell, int64_t repeat, const char *to, Err *e) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, repeat);
    uint64_t slot = c->slots ? *find_slot(c, cell, text) : 0;
    if (!slot || strlen(to) != strlen(cell) || mark_of(to, text) != mark_of(cell, text) || !strcmp(to, cell))
        return err_set(e, ERR_INTERNAL, "\"%.200s\": no row of %s can become one of %s", c->path, cell, to);
    bool reindex = c->replaced || *find_slot(c, to, text);
    int code = check_unchanged(c, e);
    /* The oldest row first: after a crash in between, the latest still has the old id, and the rename is done again. */
    int64_t at = c->replaced ? (int64_t)strlen(header(c)->line) : (int64_t)(slot & AT_MASK);
    do {
        if (!code) code = rename_row(c, &at, cell, text, to, e);
    } while (!code && c->replaced && at < c->length);
    return !code && reindex ? index_rows(c, c->length, e) : code;
}

void csv_flush_late(Csv *c) { c->late = true; }

int csv_flush(Csv *c, Err *e) {
    return c->fd >= 0 && fdatasync(c->fd) ? file_error("write", c->path, e) : OK;
}

/* Header and first row in one write: a file has both or neither, unless the write was torn. */
static char *with_header(const Csv *c, const char *line) {
    const char *first = header(c)->line;
    size_t length = strlen(first), n = strlen(line);
    char *text = mem_new(length + n + 1);
    if (!text) return NULL;
    memcpy(text, first, length);
    memcpy(text + length, line, n);
    return text;
}

int csv_append(Csv *c, const Row *r, Err *e) {
    char *names = row_header_line(r, c->format), *line = row_line(r, c->format), *text = NULL;
    if (names && line) text = c->length ? mem_copy(line, strlen(line) + 1) : with_header(c, line);
    int code = text ? reserve(c, e) : no_memory(c, e);
    if (!code && strcmp(names, header(c)->line) != 0)
        code = err_set(e, ERR_INTERNAL, "\"%.200s\": the row has other columns", c->path);
    if (!code) code = write_record(c, text, e);
    if (!code) {
        size_t n = strlen(line) - 1;
        csv_split(line, n);
        insert(c, line, c->length - (int64_t)n - 1);
    }
    mem_free(text);
    mem_free(line);
    mem_free(names);
    return code;
}
