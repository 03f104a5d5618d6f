#include "pickle.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/scratch.h"

enum { BUFFER = 1 << 16, ARENA = 1 << 18, PICKLE_NAME_MAX = 128 };

/* What a word that is no whole number leads to. Texts and bytes follow their node. */
typedef struct Node {
    uint8_t kind, room; /* room: 2^room items have a place; 0: those that are there */
    uint32_t n;
    union { uint64_t *items; double number; } is; /* of a dict: key, value, key, value */
} Node;

struct Pickle {
    Scratch scratch;
    char *free;       /* of the block that was taken last */
    size_t left;
    Node **texts;     /* hash table: a power of two of slots */
    size_t slots, n_texts;
    uint64_t root;
};

/* ---- values */

static const Node none = {.kind = PICKLE_NONE}, no = {.kind = PICKLE_BOOL}, yes = {.kind = PICKLE_BOOL, .n = 1},
    big = {.kind = PICKLE_BIG};

static uint64_t word_of(const Node *n) { return (uint64_t)(uintptr_t)n; }
static const Node *node_of(uint64_t word) { return word & 1 ? NULL : (const Node *)(uintptr_t)word; }

static uint64_t word_of_int(int64_t value) {
    bool fits = value >= -(INT64_C(1) << 62) && value < INT64_C(1) << 62;
    return fits ? (uint64_t)value << 1 | 1 : word_of(&big);
}

const char *pickle_kind_name(PickleKind kind) {
    static const char *const names[] = {"nothing", "None", "a bool", "a whole number", "a whole number of 2^62 or more",
        "a number", "a text", "bytes", "a list", "a tuple", "a dict", "a name of Python", "an object"};
    _Static_assert(ARRAY_LEN(names) == PICKLE_KIND_COUNT, "a name for each");
    return names[kind];
}

PickleKind pickle_kind(PickleValue v) {
    if (v.word & 1) return PICKLE_INT;
    return v.word ? (PickleKind)node_of(v.word)->kind : PICKLE_ABSENT;
}

static const Node *node_if(PickleValue v, unsigned kinds) {
    return kinds >> pickle_kind(v) & 1 ? node_of(v.word) : NULL;
}

int64_t pickle_int(PickleValue v) {
    const Node *flag = node_if(v, 1u << PICKLE_BOOL);
    return v.word & 1 ? (int64_t)v.word >> 1 : flag ? flag->n : 0;
}

double pickle_float(PickleValue v) {
    const Node *n = node_if(v, 1u << PICKLE_FLOAT);
    return n ? n->is.number : v.word & 1 ? (double)pickle_int(v) : 0;
}

size_t pickle_count(PickleValue v) {
    const Node *n = node_if(v, ~(1u << PICKLE_NONE | 1u << PICKLE_BOOL | 1u << PICKLE_INT | 1u << PICKLE_BIG |
                                 1u << PICKLE_FLOAT));
    return n ? n->n : 0;
}

const char *pickle_text(PickleValue v) {
    const Node *n = node_if(v, 1u << PICKLE_TEXT | 1u << PICKLE_BYTES | 1u << PICKLE_NAME);
    return n ? (const char *)(n + 1) : "";
}

PickleValue pickle_item(PickleValue v, size_t i) {
    const Node *n = node_if(v, 1u << PICKLE_LIST | 1u << PICKLE_TUPLE | 1u << PICKLE_DICT | 1u << PICKLE_MADE);
    if (!n || i >= n->n) return (PickleValue){0};
    return (PickleValue){n->kind == PICKLE_DICT ? n->is.items[2 * i + 1] : n->is.items[i]};
}

PickleValue pickle_key(PickleValue v, size_t i) {
    const Node *n = node_if(v, 1u << PICKLE_DICT);
    return (PickleValue){n && i < n->n ? n->is.items[2 * i] : 0};
}

PickleValue pickle_get(PickleValue v, PickleValue key) {
    const Node *n = node_if(v, 1u << PICKLE_DICT);
    for (size_t i = n && key.word ? n->n : 0; i-- > 0;)
        if (n->is.items[2 * i] == key.word) return (PickleValue){n->is.items[2 * i + 1]};
    return (PickleValue){0};
}

PickleValue pickle_root(const Pickle *p) { return (PickleValue){p->root}; }

/* ---- what is kept */

/* NULL: out of host memory; the scratch remembers. */
static void *keep(Pickle *p, size_t bytes) {
    bytes = align_up(bytes, 8);
    if (bytes > p->left) {
        if (bytes > ARENA / 4) return scratch_new(&p->scratch, bytes, 1);
        p->free = scratch_new(&p->scratch, ARENA, 1);
        p->left = p->free ? ARENA : 0;
        if (!p->free) return NULL;
    }
    void *at = p->free;
    p->free += bytes;
    p->left -= bytes;
    return at;
}

static Node *new_node(Pickle *p, PickleKind kind, size_t more) {
    Node *n = keep(p, sizeof *n + more);
    if (n) n->kind = (uint8_t)kind;
    return n;
}

/* Where the text is or would be. */
static Node **text_slot(const Pickle *p, const char *text, size_t n) {
    size_t at = hash_bytes(HASH_START, text, n) & (p->slots - 1);
    while (p->texts[at] && (p->texts[at]->n != n || memcmp(p->texts[at] + 1, text, n))) at = (at + 1) & (p->slots - 1);
    return &p->texts[at];
}

static bool grow_texts(Pickle *p) {
    Node **old = p->texts;
    size_t slots = p->slots;
    if (2 * p->n_texts < slots) return true;
    p->slots = slots ? 2 * slots : 1024;
    p->texts = mem_new(p->slots * sizeof *p->texts);
    if (!p->texts) {
        p->texts = old;
        p->slots = slots;
        return false;
    }
    for (size_t i = 0; i < slots; i++)
        if (old[i]) *text_slot(p, (const char *)(old[i] + 1), old[i]->n) = old[i];
    mem_free(old);
    return true;
}

PickleValue pickle_find(const Pickle *p, const char *text) {
    return (PickleValue){p->slots ? word_of(*text_slot(p, text, strlen(text))) : 0};
}

/* ---- reading */

typedef struct Reader {
    Pickle *p;
    const char *path;
    const char *const *names; /* that may be named; NULL: none */
    int fd, op;            /* the opcode that is read now */
    uint64_t at, bytes;    /* where in the file it stands; of the file, or of its part */
    uint64_t read;         /* bytes that were read into the buffer so far */
    unsigned char *buffer;
    size_t pos, end;
    uint64_t *stack, *memo;
    int *marks;            /* heights of the stack */
    char *line;
    int n_stack, cap_stack, n_memo, cap_memo, n_marks, cap_marks, cap_line;
    bool done, part;
} Reader;

typedef struct Op { const char *name; int (*run)(Reader *, int, Err *); int arg; } Op;
static const Op *op_of(int code);

static int broken(const Reader *r, Err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "s.pickle: byte 12, BINGET: text" */
static int broken(const Reader *r, Err *e, const char *format, ...) {
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(e, ERR_FORMAT, "%s: byte %" PRIu64 ", %s: %s", r->path, r->at, op_of(r->op)->name, text);
}

static int no_memory(const Reader *r, Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory at byte %" PRIu64 " of %" PRIu64, r->path, r->at,
                   r->bytes);
}

static int ends(const Reader *r, Err *e) {
    return broken(r, e, "the file ends after %" PRIu64 " bytes, before what belongs to this opcode", r->read);
}

static uint64_t bytes_left(const Reader *r) { return r->bytes - r->read + (r->end - r->pos); }

/* Reads more into the buffer, whose unread bytes move to its front; nothing more: the file's end. */
static int refill(Reader *r, Err *e) {
    memmove(r->buffer, r->buffer + r->pos, r->end - r->pos);
    r->end -= r->pos;
    r->pos = 0;
    ssize_t got;
    size_t want = BUFFER - r->end;
    if (r->part && want > r->bytes - r->read) want = (size_t)(r->bytes - r->read);
    do got = read(r->fd, r->buffer + r->end, want);
    while (got < 0 && errno == EINTR);
    if (got < 0) return err_set(e, ERR_FILE, "cannot read %s: %s", r->path, strerror(errno));
    r->end += (size_t)got;
    r->read += (uint64_t)got;
    if (r->read > r->bytes) r->bytes = r->read; /* it has grown meanwhile */
    return OK;
}

/* The next n bytes (at most BUFFER), which are then taken. */
static int take(Reader *r, size_t n, const unsigned char **out, Err *e) {
    while (r->end - r->pos < n) {
        size_t had = r->end - r->pos;
        int code = refill(r, e);
        if (code) return code;
        if (r->end == had) return ends(r, e);
    }
    *out = r->buffer + r->pos;
    r->pos += n;
    return OK;
}

/* n bytes of any number into `to`; NULL: they are left out. */
static int copy(Reader *r, char *to, uint64_t n, Err *e) {
    while (n > 0) {
        const unsigned char *from;
        size_t some = n < BUFFER ? (size_t)n : BUFFER;
        int code = take(r, some, &from, e);
        if (code) return code;
        if (to) memcpy(to, from, some);
        to = to ? to + some : NULL;
        n -= some;
    }
    return OK;
}

/* A number without sign, of `size` bytes, little endian. */
static int take_number(Reader *r, int size, uint64_t *out, Err *e) {
    const unsigned char *from;
    int code = take(r, (size_t)size, &from, e);
    *out = 0;
    for (int i = size - 1; i >= 0 && !code; i--) *out = *out << 8 | from[i];
    return code;
}

/* A length of `size` bytes, which the file has room for. */
static int take_length(Reader *r, int size, uint64_t *out, Err *e) {
    int code = take_number(r, size, out, e);
    if (code || *out <= bytes_left(r)) return code;
    return broken(r, e, "expected at most %" PRIu64 " bytes, which the file still has, found a length of %" PRIu64,
                  bytes_left(r), *out);
}

/* What stands until the line's end, in r->line. */
static int take_line(Reader *r, int *length, Err *e) {
    for (*length = 0;; ++*length) {
        const unsigned char *c;
        int code = take(r, 1, &c, e);
        if (code) return code;
        if (!mem_grow(&r->line, &r->cap_line, *length + 1, 1)) return no_memory(r, e);
        r->line[*length] = *c == '\n' ? 0 : (char)*c;
        if (*c == '\n') return OK;
    }
}

/* ---- the stack */

static int push(Reader *r, uint64_t word, Err *e) {
    if (!word || r->p->scratch.failed) return no_memory(r, e);
    if (r->n_stack >= PICKLE_STACK) return broken(r, e, "expected at most %d values on the stack", PICKLE_STACK);
    if (!mem_grow(&r->stack, &r->cap_stack, r->n_stack + 1, sizeof *r->stack)) return no_memory(r, e);
    r->stack[r->n_stack++] = word;
    return OK;
}

static int push_node(Reader *r, const Node *n, Err *e) { return push(r, word_of(n), e); }

/* Are there n values since the last mark? */
static int need(const Reader *r, int n, Err *e) {
    int found = r->n_stack - (r->n_marks ? r->marks[r->n_marks - 1] : 0);
    return found >= n ? OK : broken(r, e, "expected %d value%s on the stack, found %d", n, n == 1 ? "" : "s", found);
}

/* Takes the last mark; *first: where the values since it begin. */
static int pop_mark(Reader *r, int *first, Err *e) {
    if (!r->n_marks) return broken(r, e, "expected a mark on the stack, found none");
    *first = r->marks[--r->n_marks];
    return OK;
}

/* Appends n words (at least one) to a node's items, of which `each` make one. */
static int append(Reader *r, Node *to, const uint64_t *words, size_t n, size_t each, Err *e) {
    size_t count = to->n * each + n, room = to->room ? (size_t)1 << to->room : to->n * each;
    if (count > UINT32_MAX) return broken(r, e, "expected fewer than 2^32 items");
    if (count > room) {
        uint8_t next = to->n ? 3 : 0;
        while (next && ((size_t)1 << next) < count) next++;
        uint64_t *items = keep(r->p, (next ? (size_t)1 << next : count) * sizeof *items);
        if (!items) return no_memory(r, e);
        if (to->n) memcpy(items, to->is.items, to->n * each * sizeof *items);
        to->is.items = items;
        to->room = next;
    }
    memcpy(to->is.items + to->n * each, words, n * sizeof *words);
    to->n = (uint32_t)(count / each);
    return OK;
}

/* A key is a value that cannot change. */
static int check_keys(const Reader *r, const uint64_t *pairs, size_t n, Err *e) {
    if (n % 2) return broken(r, e, "expected pairs of a key and a value, found %zu values", n);
    for (size_t i = 0; i < n; i += 2) {
        PickleKind kind = pickle_kind((PickleValue){pairs[i]});
        if (kind == PICKLE_LIST || kind == PICKLE_DICT)
            return broken(r, e, "expected a key such as a text, found %s", pickle_kind_name(kind));
    }
    return OK;
}

/* Gives the words from `first` on to the node, and takes them from the stack. */
static int fill(Reader *r, Node *to, int first, Err *e) {
    size_t n = (size_t)(r->n_stack - first);
    if (!n) return OK;
    const uint64_t *words = r->stack + first;
    bool dict = to->kind == PICKLE_DICT;
    int code = dict ? check_keys(r, words, n, e) : OK;
    if (!code) code = append(r, to, words, n, dict ? 2 : 1, e);
    r->n_stack = first;
    return code;
}

/* ---- opcodes; arg: the table's last column */

static int run_proto(Reader *r, int arg, Err *e) {
    const unsigned char *version;
    int code = take(r, 1, &version, e);
    if (code || *version <= arg) return code;
    return broken(r, e, "expected a protocol of at most %d, found %d", arg, *version);
}

static int run_frame(Reader *r, int arg, Err *e) {
    uint64_t length;
    return take_length(r, arg, &length, e);
}

static int run_stop(Reader *r, int arg, Err *e) {
    (void)arg;
    if (r->n_stack != 1 || r->n_marks)
        return broken(r, e, "expected one value on the stack, found %d and %d open marks", r->n_stack, r->n_marks);
    if (bytes_left(r))
        return broken(r, e, "expected the end of the file after it, found %" PRIu64 " more bytes", bytes_left(r));
    r->p->root = r->stack[0];
    r->done = true;
    return OK;
}

static int run_mark(Reader *r, int arg, Err *e) {
    (void)arg;
    if (r->n_marks == PICKLE_DEPTH) return broken(r, e, "expected at most %d open marks", PICKLE_DEPTH);
    if (!mem_grow(&r->marks, &r->cap_marks, r->n_marks + 1, sizeof *r->marks)) return no_memory(r, e);
    r->marks[r->n_marks++] = r->n_stack;
    return OK;
}

static int run_pop_mark(Reader *r, int arg, Err *e) {
    (void)arg;
    return pop_mark(r, &r->n_stack, e);
}

/* As Python does: where nothing stands after a mark, it is the mark that goes. */
static int run_pop(Reader *r, int arg, Err *e) {
    if (r->n_marks && r->marks[r->n_marks - 1] == r->n_stack) return run_pop_mark(r, arg, e);
    int code = need(r, 1, e);
    if (!code) r->n_stack--;
    return code;
}

static int run_dup(Reader *r, int arg, Err *e) {
    (void)arg;
    int code = need(r, 1, e);
    return code ? code : push(r, r->stack[r->n_stack - 1], e);
}

static int run_none(Reader *r, int arg, Err *e) {
    (void)arg;
    return push_node(r, &none, e);
}

static int run_bool(Reader *r, int arg, Err *e) { return push_node(r, arg ? &yes : &no, e); }

static int run_int(Reader *r, int arg, Err *e) {
    uint64_t value;
    int code = take_number(r, arg, &value, e);
    return code ? code : push(r, word_of_int(arg == 4 ? (int32_t)(uint32_t)value : (int64_t)value), e);
}

/* A number of any length in two's complement. */
static int run_long(Reader *r, int arg, Err *e) {
    uint64_t length, value = 0;
    const unsigned char *from = NULL;
    int code = take_length(r, arg, &length, e);
    if (!code && length > 8) {
        code = copy(r, NULL, length, e);
        return code ? code : push_node(r, &big, e);
    }
    if (!code) code = take(r, (size_t)length, &from, e);
    for (size_t i = (size_t)length; i-- > 0 && !code;) value = value << 8 | from[i];
    if (!code && length && length < 8 && from[length - 1] & 0x80) value |= UINT64_MAX << (8 * length);
    return code ? code : push(r, word_of_int((int64_t)value), e);
}

/* "-12"; with "L" after it where arg says so; "00" and "01" are False and True. */
static int run_int_line(Reader *r, int arg, Err *e) {
    int length, code = take_line(r, &length, e);
    if (code) return code;
    const char *at = r->line;
    if (!arg && length == 2 && at[0] == '0' && (at[1] == '0' || at[1] == '1')) return run_bool(r, at[1] == '1', e);
    bool minus = *at == '-', fits = true;
    uint64_t value = 0;
    const char *first = at += minus;
    for (; *at >= '0' && *at <= '9'; at++) {
        fits = fits && value < UINT64_C(1) << 59;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    bool good = at > first;
    if (arg && *at == 'L') at++;
    if (!good || at != r->line + length) return broken(r, e, "expected a whole number");
    if (!fits) return push_node(r, &big, e);
    return push(r, word_of_int(minus ? -(int64_t)value : (int64_t)value), e);
}

static int push_float(Reader *r, double value, Err *e) {
    Node *n = new_node(r->p, PICKLE_FLOAT, 0);
    if (n) n->is.number = value;
    return push_node(r, n, e);
}

static int run_float(Reader *r, int arg, Err *e) {
    const unsigned char *from;
    uint64_t bits = 0;
    double value;
    int code = take(r, (size_t)arg, &from, e);
    for (int i = 0; i < arg && !code; i++) bits = bits << 8 | from[i];
    memcpy(&value, &bits, sizeof value);
    return code ? code : push_float(r, value, e);
}

static int run_float_line(Reader *r, int arg, Err *e) {
    (void)arg;
    const char *end;
    int length, code = take_line(r, &length, e);
    if (code) return code;
    double value = number_read(r->line, &end);
    if (!length || end != r->line + length) return broken(r, e, "expected a number");
    return push_float(r, value, e);
}

/* A text that stands in the buffer, once. */
static int push_text(Reader *r, const char *text, size_t n, Err *e) {
    Pickle *p = r->p;
    if (!grow_texts(p)) return no_memory(r, e);
    Node **slot = text_slot(p, text, n);
    if (*slot) return push_node(r, *slot, e);
    Node *node = new_node(p, PICKLE_TEXT, n + 1);
    if (!node) return no_memory(r, e);
    node->n = (uint32_t)n;
    memcpy(node + 1, text, n);
    *slot = node;
    p->n_texts++;
    return push_node(r, node, e);
}

/* Bytes, or a text that is too long to be a name, as they stand in the file. */
static int push_bytes(Reader *r, PickleKind kind, uint64_t n, Err *e) {
    if (n >= UINT32_MAX) return broken(r, e, "expected fewer than 2^32 bytes");
    Node *node = new_node(r->p, kind, (size_t)n + 1);
    if (!node) return no_memory(r, e);
    node->n = (uint32_t)n;
    int code = copy(r, (char *)(node + 1), n, e);
    return code ? code : push_node(r, node, e);
}

static int run_text(Reader *r, int arg, Err *e) {
    uint64_t n;
    const unsigned char *from;
    int code = take_length(r, arg, &n, e);
    if (code) return code;
    if (n > BUFFER) return push_bytes(r, PICKLE_TEXT, n, e);
    code = take(r, (size_t)n, &from, e);
    return code ? code : push_text(r, (const char *)from, (size_t)n, e);
}

static int run_bytes(Reader *r, int arg, Err *e) {
    uint64_t n;
    int code = take_length(r, arg, &n, e);
    return code ? code : push_bytes(r, PICKLE_BYTES, n, e);
}

/* `digits` hexadecimal digits, or -1. */
static int64_t hexadecimal(const char *at, int digits) {
    static const char known[] = "0123456789abcdef";
    int64_t value = 0;
    for (int i = 0; i < digits; i++) {
        const char *digit = at[i] ? strchr(known, at[i] >= 'A' && at[i] <= 'F' ? at[i] | 0x20 : at[i]) : NULL;
        if (!digit) return -1;
        value = value << 4 | (digit - known);
    }
    return value;
}

static char *put_utf8(char *to, uint32_t c) {
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | c >> (6 * more));
    while (more-- > 0) *to++ = (char)(0x80 | (c >> (6 * more) & 0x3f));
    return to;
}

/* Latin 1, with \uXXXX and \UXXXXXXXX for the rest. A byte becomes two at most. */
static int run_text_line(Reader *r, int arg, Err *e) {
    (void)arg;
    int length, code = take_line(r, &length, e);
    if (code) return code;
    char *text = mem_new(2 * (size_t)length + 1), *to = text;
    if (!text) return no_memory(r, e);
    for (const char *at = r->line; at < r->line + length && !code;) {
        int digits = at[0] == '\\' ? at[1] == 'u' ? 4 : at[1] == 'U' ? 8 : 0 : 0;
        int64_t c = digits ? hexadecimal(at + 2, digits) : (unsigned char)*at;
        if (c < 0 || c > 0x10ffff) code = broken(r, e, "expected %d hexadecimal digits after \\%c", digits, at[1]);
        else to = put_utf8(to, (uint32_t)c);
        at += digits ? digits + 2 : 1;
    }
    if (!code && to - text >= UINT32_MAX) code = broken(r, e, "expected fewer than 2^32 bytes");
    if (!code) code = push_text(r, text, (size_t)(to - text), e);
    mem_free(text);
    return code;
}

static int run_empty(Reader *r, int arg, Err *e) { return push_node(r, new_node(r->p, (PickleKind)arg, 0), e); }

/* A container of what stands after the mark. */
static int run_container(Reader *r, int arg, Err *e) {
    int first = 0, code = pop_mark(r, &first, e);
    Node *n = code ? NULL : new_node(r->p, (PickleKind)arg, 0);
    if (code) return code;
    if (!n) return no_memory(r, e);
    code = fill(r, n, first, e);
    return code ? code : push_node(r, n, e);
}

static int run_tuple(Reader *r, int arg, Err *e) {
    int code = need(r, arg, e);
    Node *n = code ? NULL : new_node(r->p, PICKLE_TUPLE, 0);
    if (code) return code;
    if (!n) return no_memory(r, e);
    code = fill(r, n, r->n_stack - arg, e);
    return code ? code : push_node(r, n, e);
}

/* What stands from `first` on belongs into the container before it. */
static int add(Reader *r, PickleKind kind, int first, Err *e) {
    int last = r->n_marks ? r->marks[r->n_marks - 1] : 0;
    PickleValue to = {first > last ? r->stack[first - 1] : 0};
    if (pickle_kind(to) != kind)
        return broken(r, e, "expected %s to add to, found %s", pickle_kind_name(kind),
                      pickle_kind_name(pickle_kind(to)));
    return fill(r, (Node *)(uintptr_t)to.word, first, e);
}

static int run_add(Reader *r, int arg, Err *e) {
    int n = arg == PICKLE_DICT ? 2 : 1, code = need(r, n + 1, e);
    return code ? code : add(r, (PickleKind)arg, r->n_stack - n, e);
}

static int run_add_many(Reader *r, int arg, Err *e) {
    int first = 0, code = pop_mark(r, &first, e);
    return code ? code : add(r, (PickleKind)arg, first, e);
}

/* ---- what is used again: places in the memo, each of which costs bytes of the file */

static int put(Reader *r, uint64_t i, Err *e) {
    int code = need(r, 1, e);
    if (code) return code;
    if (i > r->at || i >= INT32_MAX)
        return broken(r, e, "expected a place in the memo of at most %" PRIu64 ", found %" PRIu64, r->at, i);
    int n = (int)i + 1;
    if (!mem_grow(&r->memo, &r->cap_memo, n, sizeof *r->memo)) return no_memory(r, e);
    r->memo[i] = r->stack[r->n_stack - 1];
    if (n > r->n_memo) r->n_memo = n;
    return OK;
}

static int get(Reader *r, uint64_t i, Err *e) {
    if (i >= (uint64_t)r->n_memo || !r->memo[i])
        return broken(r, e, "expected a place in the memo that was filled, found %" PRIu64, i);
    return push(r, r->memo[i], e);
}

static int run_memoize(Reader *r, int arg, Err *e) {
    (void)arg;
    return put(r, (uint64_t)r->n_memo, e);
}

static int run_put(Reader *r, int arg, Err *e) {
    uint64_t i;
    int code = take_number(r, arg, &i, e);
    return code ? code : put(r, i, e);
}

static int run_get(Reader *r, int arg, Err *e) {
    uint64_t i;
    int code = take_number(r, arg, &i, e);
    return code ? code : get(r, i, e);
}

/* The same with the place as a line of digits; arg: it is filled. */
static int run_memo_line(Reader *r, int arg, Err *e) {
    int length, code = take_line(r, &length, e);
    uint64_t i = 0;
    if (code) return code;
    for (int k = 0; k < length; k++) {
        if (r->line[k] < '0' || r->line[k] > '9' || length > 10) return broken(r, e, "expected a place in the memo");
        i = i * 10 + (uint64_t)(r->line[k] - '0');
    }
    if (!length) return broken(r, e, "expected a place in the memo");
    return arg ? put(r, i, e) : get(r, i, e);
}

static int run_refused(Reader *r, int arg, Err *e) {
    (void)arg;
    return broken(r, e, "refused: this opcode is not needed for plain data, and could make or call anything");
}

/* ---- names that the reader allows: see pickle_open_part */

static int run_global(Reader *r, int arg, Err *e) {
    char name[2 * PICKLE_NAME_MAX + 2];
    int length, code = r->names ? take_line(r, &length, e) : run_refused(r, arg, e);
    if (code) return code;
    const int n = snprintf(name, sizeof name, "%.*s ", PICKLE_NAME_MAX, r->line);
    if ((code = take_line(r, &length, e))) return code;
    snprintf(name + n, sizeof name - (size_t)n, "%.*s", PICKLE_NAME_MAX, r->line);
    const char *const *known = r->names;
    while (*known && strcmp(*known, name)) known++;
    if (!*known) return broken(r, e, "refused: %s is not needed for tensors, and could do anything", name);
    Node *node = new_node(r->p, PICKLE_NAME, strlen(name) + 1);
    if (!node) return no_memory(r, e);
    node->n = (uint32_t)strlen(name);
    memcpy(node + 1, name, strlen(name) + 1);
    return push_node(r, node, e);
}

/* A MADE of the two last values, or of None and the last one */
static int make(Reader *r, bool named, Err *e) {
    const uint64_t words[2] = {named ? r->stack[r->n_stack - 2] : word_of(&none), r->stack[r->n_stack - 1]};
    Node *n = new_node(r->p, PICKLE_MADE, 0);
    if (!n) return no_memory(r, e);
    int code = append(r, n, words, 2, 1, e);
    r->n_stack -= named ? 2 : 1;
    return code ? code : push_node(r, n, e);
}

static int run_reduce(Reader *r, int arg, Err *e) {
    int code = r->names ? need(r, 2, e) : run_refused(r, arg, e);
    if (code) return code;
    const PickleValue what = {r->stack[r->n_stack - 2]}, args = {r->stack[r->n_stack - 1]};
    if (pickle_kind(what) != PICKLE_NAME || pickle_kind(args) != PICKLE_TUPLE)
        return broken(r, e, "expected a name and its arguments, found %s and %s", pickle_kind_name(pickle_kind(what)),
                      pickle_kind_name(pickle_kind(args)));
    if (strcmp(pickle_text(what), PICKLE_ORDERED_DICT)) return make(r, true, e);
    if (pickle_count(args)) return broken(r, e, "expected an OrderedDict without arguments");
    r->n_stack -= 2;
    return run_empty(r, PICKLE_DICT, e);
}

static int run_persistent(Reader *r, int arg, Err *e) {
    int code = r->names ? need(r, 1, e) : run_refused(r, arg, e);
    return code ? code : make(r, false, e);
}

/* What the object's __dict__ would get */
static int run_build(Reader *r, int arg, Err *e) {
    int code = r->names ? need(r, 2, e) : run_refused(r, arg, e);
    if (!code) r->n_stack--;
    return code;
}

/* ---- the opcodes of protocols 0 to 5 */

static const Op ops[256] = {
    ['('] = {"MARK", run_mark, 0}, ['.'] = {"STOP", run_stop, 0}, ['0'] = {"POP", run_pop, 0},
    ['1'] = {"POP_MARK", run_pop_mark, 0}, ['2'] = {"DUP", run_dup, 0},
    ['F'] = {"FLOAT", run_float_line, 0}, ['G'] = {"BINFLOAT", run_float, 8},
    ['I'] = {"INT", run_int_line, 0}, ['L'] = {"LONG", run_int_line, 1},
    ['J'] = {"BININT", run_int, 4}, ['K'] = {"BININT1", run_int, 1}, ['M'] = {"BININT2", run_int, 2},
    [0x8a] = {"LONG1", run_long, 1}, [0x8b] = {"LONG4", run_long, 4},
    ['N'] = {"NONE", run_none, 0}, [0x88] = {"NEWTRUE", run_bool, 1}, [0x89] = {"NEWFALSE", run_bool, 0},
    ['S'] = {"STRING", run_refused, 0}, ['T'] = {"BINSTRING", run_text, 4}, ['U'] = {"SHORT_BINSTRING", run_text, 1},
    ['V'] = {"UNICODE", run_text_line, 0}, ['X'] = {"BINUNICODE", run_text, 4},
    [0x8c] = {"SHORT_BINUNICODE", run_text, 1}, [0x8d] = {"BINUNICODE8", run_text, 8},
    ['B'] = {"BINBYTES", run_bytes, 4}, ['C'] = {"SHORT_BINBYTES", run_bytes, 1},
    [0x8e] = {"BINBYTES8", run_bytes, 8}, [0x96] = {"BYTEARRAY8", run_bytes, 8},
    [']'] = {"EMPTY_LIST", run_empty, PICKLE_LIST}, ['l'] = {"LIST", run_container, PICKLE_LIST},
    ['a'] = {"APPEND", run_add, PICKLE_LIST}, ['e'] = {"APPENDS", run_add_many, PICKLE_LIST},
    ['}'] = {"EMPTY_DICT", run_empty, PICKLE_DICT}, ['d'] = {"DICT", run_container, PICKLE_DICT},
    ['s'] = {"SETITEM", run_add, PICKLE_DICT}, ['u'] = {"SETITEMS", run_add_many, PICKLE_DICT},
    [')'] = {"EMPTY_TUPLE", run_empty, PICKLE_TUPLE}, ['t'] = {"TUPLE", run_container, PICKLE_TUPLE},
    [0x85] = {"TUPLE1", run_tuple, 1}, [0x86] = {"TUPLE2", run_tuple, 2}, [0x87] = {"TUPLE3", run_tuple, 3},
    ['p'] = {"PUT", run_memo_line, 1}, ['q'] = {"BINPUT", run_put, 1}, ['r'] = {"LONG_BINPUT", run_put, 4},
    [0x94] = {"MEMOIZE", run_memoize, 0},
    ['g'] = {"GET", run_memo_line, 0}, ['h'] = {"BINGET", run_get, 1}, ['j'] = {"LONG_BINGET", run_get, 4},
    [0x80] = {"PROTO", run_proto, 5}, [0x95] = {"FRAME", run_frame, 8},
    ['c'] = {"GLOBAL", run_global, 0}, ['R'] = {"REDUCE", run_reduce, 0}, ['b'] = {"BUILD", run_build, 0},
    ['i'] = {"INST", run_refused, 0}, ['o'] = {"OBJ", run_refused, 0}, ['P'] = {"PERSID", run_refused, 0},
    ['Q'] = {"BINPERSID", run_persistent, 0}, [0x81] = {"NEWOBJ", run_refused, 0}, [0x82] = {"EXT1", run_refused, 0},
    [0x83] = {"EXT2", run_refused, 0}, [0x84] = {"EXT4", run_refused, 0}, [0x8f] = {"EMPTY_SET", run_refused, 0},
    [0x90] = {"ADDITEMS", run_refused, 0}, [0x91] = {"FROZENSET", run_refused, 0},
    [0x92] = {"NEWOBJ_EX", run_refused, 0}, [0x93] = {"STACK_GLOBAL", run_refused, 0},
    [0x97] = {"NEXT_BUFFER", run_refused, 0}, [0x98] = {"READONLY_BUFFER", run_refused, 0},
};

static const Op *op_of(int code) {
    static const Op start = {"the start", NULL, 0};
    return code < 0 || !ops[code].name ? &start : &ops[code];
}

static int read_op(Reader *r, Err *e) {
    const unsigned char *code;
    r->at = r->read - (r->end - r->pos);
    if (!bytes_left(r))
        return err_set(e, ERR_FORMAT, "%s: the file ends after %" PRIu64 " bytes, before STOP", r->path, r->at);
    int failed = take(r, 1, &code, e);
    if (failed) return failed;
    r->op = *code;
    if (!ops[r->op].run)
        return err_set(e, ERR_FORMAT, "%s: byte %" PRIu64 ": expected an opcode of a pickle, found 0x%02x", r->path,
                       r->at, r->op);
    failed = ops[r->op].run(r, ops[r->op].arg, e);
    return failed || !r->p->scratch.failed ? failed : no_memory(r, e);
}

/* ---- files */

static int open_file(Reader *r, Err *e) {
    struct stat info;
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0) return err_set(e, ERR_FILE, "cannot open %s: %s", r->path, strerror(errno));
    if (fstat(r->fd, &info)) return err_set(e, ERR_FILE, "cannot read %s: %s", r->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return err_set(e, ERR_FILE, "cannot read %s: it is not a file", r->path);
    r->bytes = (uint64_t)info.st_size;
    r->buffer = mem_new(BUFFER);
    return r->buffer ? OK : no_memory(r, e);
}

/* Goes to the part of the file that is read. */
static int seek(Reader *r, uint64_t at, uint64_t bytes, Err *e) {
    if (at > r->bytes || bytes > r->bytes - at)
        return err_set(e, ERR_FORMAT, "%s: expected %" PRIu64 " bytes at %" PRIu64 ", found a file of %" PRIu64, r->path,
                       bytes, at, r->bytes);
    if (lseek(r->fd, (off_t)at, SEEK_SET) < 0) return err_set(e, ERR_FILE, "cannot read %s: %s", r->path, strerror(errno));
    r->part = true;
    r->bytes = bytes;
    return OK;
}

static int read_all(Reader *r, int code, Pickle **out, Err *e) {
    while (!code && !r->done) code = read_op(r, e);
    if (r->fd >= 0) close(r->fd);
    mem_free(r->buffer);
    mem_free(r->stack);
    mem_free(r->memo);
    mem_free(r->marks);
    mem_free(r->line);
    if (code) pickle_close(r->p);
    else *out = r->p;
    return code;
}

int pickle_open(const char *path, Pickle **out, Err *e) {
    Reader r = {.p = mem_new(sizeof *r.p), .path = path, .fd = -1, .op = -1};
    if (!r.p) return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", path);
    return read_all(&r, open_file(&r, e), out, e);
}

int pickle_open_part(const char *path, uint64_t at, uint64_t bytes, const char *const *names, Pickle **out, Err *e) {
    Reader r = {.p = mem_new(sizeof *r.p), .path = path, .names = names, .fd = -1, .op = -1};
    if (!r.p) return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", path);
    int code = open_file(&r, e);
    if (!code) code = seek(&r, at, bytes, e);
    return read_all(&r, code, out, e);
}

void pickle_close(Pickle *p) {
    if (!p) return;
    scratch_release(&p->scratch, NULL);
    mem_free(p->texts);
    mem_free(p);
}
