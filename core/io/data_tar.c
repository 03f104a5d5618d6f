/* Shards as WebDataset has them: tar archives in which members that follow each other and have the same stem are one
 * sample, KEY.npy and KEY.cls. Read are POSIX's ustar and pax headers, GNU's long names and the older format; links,
 * devices and sparse files are errors, and so is a member that would be left out. One pass over the headers makes the
 * index. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "data_private.h"
#include "base/mem.h"

enum { BLOCK = 512, NAME_ROOM = 4096, PAX_MAX = 1 << 16, LABEL_MAX = 32 };

/* A header: names and numbers are texts that end at their field's end or before. */
typedef struct Header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6], version[2],
        user[32], group[32], major[8], minor[8], prefix[155], rest[12];
} Header;
_Static_assert(sizeof(Header) == BLOCK, "a header is a block");

/* The archive while it is read, and the samples of all archives. */
typedef struct Tar {
    Dataset *d;
    DataPart *part;
    int64_t at;            /* of the header that is read */
    char name[NAME_ROOM];  /* of the member; "" until its header or an extended one has said it */
    int64_t size;          /* of the member; -1: as for its name */
    char key[NAME_ROOM];   /* of the sample that is read; "": none */
    int64_t x;             /* where its elements begin; 0: no .npy yet */
    int32_t label;         /* -1: no .cls yet */
    int32_t *labels;
    int offsets_cap, labels_cap;
} Tar;

/* "shard.tar: byte 512: " and what is wrong there */
#define WRONG(t, e, ...) \
    (err_set(e, ERR_FORMAT, __VA_ARGS__), err_prefix(e, "%s: byte %" PRId64, (t)->part->path, (t)->at))

/* ---- headers */

/* Octal digits, or GNU's for large numbers: 80 and a big-endian number. -1: it is none, or beyond 2^63 - 1. */
static int64_t number(const char *field, int length) {
    const unsigned char *p = (const unsigned char *)field;
    int64_t n = 0;
    int i = 0;
    if (p[0] == 0x80) {
        for (i = 1; i < length; i++) {
            if (n >> 55) return -1;
            n = n << 8 | p[i];
        }
        return n;
    }
    while (i < length && p[i] == ' ') i++;
    int first = i;
    for (; i < length && p[i] >= '0' && p[i] <= '7'; i++) n = n << 3 | (p[i] - '0');
    bool ended = i == length || p[i] == 0 || p[i] == ' ';
    return i > first && ended ? n : -1;
}

/* Is it the sum of the header's bytes, with spaces as its own? Some programs have added signed bytes. */
static bool sum_is_right(const Header *h) {
    const unsigned char *p = (const unsigned char *)h;
    int64_t plain = 0, with_sign = 0, found = number(h->checksum, sizeof h->checksum);
    for (size_t i = 0; i < BLOCK; i++) {
        bool own = i >= offsetof(Header, checksum) && i < offsetof(Header, type);
        unsigned char c = own ? ' ' : p[i];
        plain += c;
        with_sign += c < 128 ? c : c - 256;
    }
    return found == plain || found == with_sign;
}

static bool is_zero(const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* Sets t->name and t->size to what the header says, unless an extended one has said it before. */
static int take_header(Tar *t, const Header *h, Err *e) {
    bool with_prefix = !memcmp(h->magic, "ustar", sizeof h->magic) && h->prefix[0];
    int64_t size = number(h->size, sizeof h->size);
    if (!t->name[0])
        snprintf(t->name, sizeof t->name, "%.*s%s%.*s", with_prefix ? (int)sizeof h->prefix : 0, h->prefix,
            with_prefix ? "/" : "", (int)sizeof h->name, h->name);
    if (size < 0) return WRONG(t, e, "\"%s\": expected a size in octal digits", t->name);
    if (t->size < 0) t->size = size;
    int64_t left = t->part->opened.st_size - t->at - BLOCK;
    if (t->size > left)
        return WRONG(t, e, "\"%s\": expected %" PRId64 " bytes, found %" PRId64 ": the archive was cut off", t->name,
            t->size, left);
    return OK;
}

/* ---- extended headers: they say the name and the size of the member that follows */

static int set_name(Tar *t, const char *name, size_t n, Err *e) {
    if (n == 0 || n >= NAME_ROOM || memchr(name, 0, n))
        return WRONG(t, e, "expected a name of 1 to %d bytes that are not zero, found %zu bytes", NAME_ROOM - 1, n);
    memcpy(t->name, name, n);
    t->name[n] = 0;
    return OK;
}

/* A decimal number, all of the n bytes; -1: it is none. */
static int64_t decimal(const char *text, size_t n) {
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || v > (INT64_MAX - 9) / 10) return -1;
        v = 10 * v + (text[i] - '0');
    }
    return n ? v : -1;
}

/* One of pax's records, "KEY=VALUE" of n bytes. Those that say neither name nor size nor holes change nothing. */
static int take_record(Tar *t, const char *record, size_t n, bool global, Err *e) {
    static const char sparse[] = "GNU.sparse.";
    const char *equals = memchr(record, '=', n);
    if (!equals) return WRONG(t, e, "pax header: expected KEY=VALUE, found \"%.*s\"", (int)min_size(n, 24), record);
    size_t key = (size_t)(equals - record), value = n - key - 1;
    bool path = key == 4 && !memcmp(record, "path", 4), size = key == 4 && !memcmp(record, "size", 4);
    if (key >= sizeof sparse - 1 && !memcmp(record, sparse, sizeof sparse - 1))
        return WRONG(t, e, "expected files and folders, found a sparse file");
    if ((path || size) && global) return WRONG(t, e, "pax header of all members: found a \"%.4s\"", record);
    if (path) return set_name(t, equals + 1, value, e);
    if (!size) return OK;
    t->size = decimal(equals + 1, value);
    return t->size < 0 ? WRONG(t, e, "pax header: size: expected a number, found \"%.*s\"", (int)min_size(value, 24),
                               equals + 1) : OK;
}

/* "LENGTH KEY=VALUE\n" and so on; LENGTH counts itself and the end of the line. */
static int take_pax(Tar *t, const char *text, size_t n, bool global, Err *e) {
    while (n) {
        const char *space = memchr(text, ' ', n);
        int64_t length = space ? decimal(text, (size_t)(space - text)) : -1;
        if (length <= 0 || (uint64_t)length > n || text + length <= space + 1 || text[length - 1] != '\n')
            return WRONG(t, e, "pax header: expected LENGTH KEY=VALUE, found \"%.*s\"", (int)min_size(n, 24), text);
        int code = take_record(t, space + 1, (size_t)(text + length - 1 - (space + 1)), global, e);
        if (code) return code;
        text += length;
        n -= (size_t)length;
    }
    return OK;
}

/* Reads the content of an extended header of this type. */
static int take_extended(Tar *t, char type, int64_t size, Err *e) {
    char text[PAX_MAX];
    if (size > PAX_MAX)
        return WRONG(t, e, "expected an extended header of at most %d bytes, found %" PRId64, PAX_MAX, size);
    int code = part_bytes(t->part, t->at + BLOCK, text, (size_t)size, e);
    if (code) return code;
    if (type != 'L') return take_pax(t, text, (size_t)size, type == 'g', e);
    return set_name(t, text, strnlen(text, (size_t)size), e);
}

/* ---- members */

static int take_npy(Tar *t, Err *e) {
    char called[NAME_ROOM + 256];
    char shown[2][SHAPE_TEXT];
    size_t bytes;
    Shape shape;
    const DataType *type;
    Dataset *d = t->d;
    if (t->x) return WRONG(t, e, "\"%s\" is there twice", t->name);
    snprintf(called, sizeof called, "%.200s: \"%s\"", t->part->path, t->name);
    DataFile f = {.path = called, .part = t->part, .origin = t->at + BLOCK, .length = t->size};
    int code = data_npy_header(&f, &type, &shape, e);
    if (!code) code = data_rest_bytes(&f, &shape, type->size, INT64_MAX, &bytes, e);
    if (code) return code;
    if (shape.rank >= SHAPE_MAX)
        return WRONG(t, e, "\"%s\": expected a sample of at most %d dimensions, found shape %s", t->name, SHAPE_MAX - 1,
            shape_text(&shape, shown[0]));
    if (!d->sample.rank) {
        d->sample = shape;
        d->type = type;
    }
    if (!shape_equal(&shape, &d->sample) || type != d->type)
        return WRONG(t, e, "\"%s\": expected type '%s' and shape %s, as all samples before, found '%s' and %s", t->name,
            d->type->descr, shape_text(&d->sample, shown[0]), type->descr, shape_text(&shape, shown[1]));
    t->x = f.origin + f.at;
    return OK;
}

static int take_cls(Tar *t, Err *e) {
    char text[LABEL_MAX];
    if (t->label >= 0) return WRONG(t, e, "\"%s\" is there twice", t->name);
    size_t n = (size_t)min_i64(t->size, LABEL_MAX), from = 0;
    int code = part_bytes(t->part, t->at + BLOCK, text, n, e);
    if (code) return code;
    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1]) n--;
    while (from < n && text[from] == ' ') from++;
    int64_t label = t->size > LABEL_MAX ? -1 : decimal(text + from, n - from);
    if (label < 0 || label >= INT32_MAX)
        return WRONG(t, e, "\"%s\": expected a label from 0 to %d in decimal digits, found \"%.*s\"", t->name,
            INT32_MAX - 1, (int)n, text);
    t->label = (int32_t)label;
    return OK;
}

static const struct { const char *ending, *image; int (*take)(Tar *t, Err *e); } endings[] = {
    {"npy", NULL, take_npy}, {"cls", NULL, take_cls},
    {"jpg", "JPEG", NULL}, {"jpeg", "JPEG", NULL}, {"png", "PNG", NULL}, {"webp", "WebP", NULL}, {"gif", "GIF", NULL},
    {"bmp", "BMP", NULL}, {"tif", "TIFF", NULL}, {"tiff", "TIFF", NULL}, {"ppm", "PPM", NULL}, {"pgm", "PGM", NULL},
};

static int take_ending(Tar *t, const char *ending, Err *e) {
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        if (strcasecmp(ending, endings[i].ending)) continue;
        if (endings[i].take) return endings[i].take(t, e);
        return WRONG(t, e, "\"%s\": %s is not decoded: store .npy", t->name, endings[i].image);
    }
    return WRONG(t, e, "expected KEY.npy and KEY.cls, found \"%s\"", t->name);
}

/* The sample is complete: all samples have a label, or none has one. */
static int end_sample(Tar *t, Err *e) {
    Dataset *d = t->d;
    int n = (int)d->count;
    if (!t->key[0]) return OK;
    if (!t->x) return WRONG(t, e, "sample \"%s\" before it has no .npy", t->key);
    if (n > 0 && (t->label >= 0) != (t->labels != NULL))
        return WRONG(t, e, "sample \"%s\" before it has %s .cls, the samples before have %s", t->key,
            t->label < 0 ? "no" : "a", t->labels ? "one" : "none");
    if (!mem_grow(&d->offsets, &t->offsets_cap, n + 1, sizeof *d->offsets) ||
        (t->label >= 0 && !mem_grow(&t->labels, &t->labels_cap, n + 1, sizeof *t->labels)))
        return data_no_memory(t->part->path, (size_t)(n + 1) * sizeof *d->offsets, e);
    d->offsets[n] = t->x;
    if (t->label >= 0) t->labels[n] = t->label;
    d->count++;
    t->key[0] = 0;
    t->x = 0;
    t->label = -1;
    return OK;
}

/* A file: its key is its path to the first dot of its last name, as WebDataset has it. */
static int take_file(Tar *t, Err *e) {
    const char *slash = strrchr(t->name, '/'), *last = slash ? slash + 1 : t->name, *dot = strchr(last, '.');
    if (!dot || dot == last) return WRONG(t, e, "expected KEY.npy and KEY.cls, found \"%s\"", t->name);
    size_t n = (size_t)(dot - t->name);
    if (strlen(t->key) != n || memcmp(t->key, t->name, n)) {
        int code = end_sample(t, e);
        if (code) return code;
        memcpy(t->key, t->name, n);
        t->key[n] = 0;
    }
    return take_ending(t, dot + 1, e);
}

static int refuse_type(const Tar *t, char type, Err *e) {
    static const struct { char type; const char *what; } known[] = {
        {'1', "a hard link"}, {'2', "a symbolic link"}, {'3', "a device"}, {'4', "a device"}, {'6', "a FIFO"},
        {'S', "a sparse file"}, {'K', "a link with a long name"}, {'M', "the rest of a file of another archive"},
        {'V', "the name of a volume"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].type == type)
            return WRONG(t, e, "\"%s\": expected files and folders, found %s", t->name, known[i].what);
    return WRONG(t, e, "\"%s\": expected files and folders, found a member of type %02x", t->name, (unsigned char)type);
}

/* The member that the header begins; the next header comes after it. */
static int take_member(Tar *t, const Header *h, Err *e) {
    bool extended = strchr("Lxg", h->type) && h->type, regular = !h->type || strchr("07", h->type);
    char name[NAME_ROOM];
    int64_t size = t->size;
    if (!sum_is_right(h)) return WRONG(t, e, "expected a header of tar: its checksum is wrong");
    if (extended) { /* it stands between another one and its member, and has a name and a size of its own */
        memcpy(name, t->name, sizeof name);
        t->size = -1;
    }
    int code = take_header(t, h, e);
    if (code) return code;
    int64_t bytes = t->size;
    if (extended) {
        t->size = size;
        memcpy(t->name, name, sizeof name);
        code = take_extended(t, h->type, bytes, e);
    } else {
        bool folder = h->type == '5' || (regular && t->name[0] && t->name[strlen(t->name) - 1] == '/');
        code = folder ? OK : regular ? take_file(t, e) : refuse_type(t, h->type, e);
        t->name[0] = 0;
        t->size = -1;
    }
    t->at += BLOCK + bytes / BLOCK * BLOCK + (bytes % BLOCK ? BLOCK : 0);
    return code;
}

/* A block of zeros ends the archive. What follows it must be zero, too: nobody would read it. */
static int take_end(Tar *t, int64_t length, Err *e) {
    char block[BLOCK];
    if (t->name[0] || t->size >= 0) return WRONG(t, e, "expected the member of an extended header, found the end");
    for (; t->at < length; t->at += BLOCK) {
        size_t n = (size_t)min_i64(BLOCK, length - t->at);
        int code = part_bytes(t->part, t->at, block, n, e);
        if (code) return code;
        if (!is_zero(block, n)) return WRONG(t, e, "expected nothing but zeros after the archive's end");
    }
    return OK;
}

static int tar_read(Tar *t, Err *e) {
    Header h;
    int64_t length = t->part->opened.st_size, before = t->d->count;
    for (bool end = false; !end;) {
        if (length - t->at < BLOCK)
            return WRONG(t, e, "expected a header or the blocks of zeros that end an archive, found %" PRId64
                         " bytes: the archive was cut off", max_i64(length - t->at, 0));
        int code = part_bytes(t->part, t->at, &h, BLOCK, e);
        if (code) return code;
        end = is_zero((const char *)&h, BLOCK);
        code = end ? take_end(t, length, e) : take_member(t, &h, e);
        if (code) return code;
    }
    int code = end_sample(t, e);
    if (!code && t->d->count == before) return WRONG(t, e, "expected samples, found none");
    return code;
}

static int tar_open(Tar *t, const char *path, Err *e) {
    DataFile f;
    int code = data_open(&f, path, e);
    if (!code && f.length < 0)
        code = err_set(e, ERR_FORMAT, "%s: expected a plain tar archive, whose samples can be read in any order, found "
                       "a compressed one or no regular file", path);
    if (!code) code = part_open(t->part, &f, e);
    data_close(&f);
    t->at = 0;
    t->part->first = t->d->count;
    return code;
}

int dataset_tar(const char *const *paths, int n_paths, Dataset **out, Err *e) {
    if (n_paths < 1) return err_set(e, ERR_SCRIPT, "tar: expected at least one file, found none");
    Tar *t = mem_new(sizeof *t);
    if (!t) return data_no_memory(paths[0], sizeof *t, e);
    Dataset *d = t->d = dataset_start("tar", e);
    int code = d ? OK : ERR_HOST_MEMORY;
    t->size = t->label = -1;
    for (int i = 0; i < n_paths && !code; i++) {
        t->part = dataset_part(d, e);
        code = t->part ? tar_open(t, paths[i], e) : ERR_HOST_MEMORY;
        if (!code) code = tar_read(t, e);
    }
    if (d) d->t = t->labels;
    mem_free(t);
    return d ? dataset_finish(d, code, out, e) : code;
}
