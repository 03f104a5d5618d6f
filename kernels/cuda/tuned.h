/* tuned.h: picks: which way of running an op was the fastest on a device, as `memtide tune` found it. They are kept in
 * a text file with a line per op and limit, whose parts are separated by tabs:
 *
 *   device  library's version  limit  op  alternative  engine and knobs  workspace bytes  microseconds
 *
 * The same file gives the same choices, and so the same predictions, with and without the device. Lines of other
 * devices and versions are kept. Of two lines for one op and limit the later one counts. */
#ifndef MT_TUNED_H
#define MT_TUNED_H

#include "base/base.h"
#include "base/err.h"

enum { ENGINE_KNOBS = 24, ENGINE_TEXT = 256, PICK_OP = 512, PICK_WAY = 24 };

/* An engine of cuDNN or an algorithm of cuBLASLt, and its knobs: enough to ask for it again. Cleared to zero bytes
 * before it is filled, so that ids compare as memory. */
typedef struct EngineId { int64_t engine; int n_knobs; struct { int64_t type, value; } knob[ENGINE_KNOBS]; } EngineId;

/* As text: "38 2=27 25=0", the engine, then its knobs. engine_read: false if the text is none. */
const char *engine_text(const EngineId *id, char text[ENGINE_TEXT]);
bool engine_read(const char *text, EngineId *id);

typedef struct Pick {
    char device[96];
    size_t version, limit; /* of the library that runs the op; the setting workspace_limit, bytes */
    char op[PICK_OP];     /* all that the choice depends on */
    char way[PICK_WAY];   /* the alternative, by name */
    EngineId engine;
    size_t workspace;     /* bytes of the whole op; with casts it may be more than the limit */
    double us;
} Pick;

typedef struct Tuned {
    Pick *at;
    int n, cap;
    int damaged;          /* lines that were ignored */
    Err problem;          /* the first of them, with file and line */
} Tuned;

/* Appends the lines of a file; ERR_FILE: it cannot be read. Damaged lines are counted and ignored. */
int tuned_load(Tuned *p, const char *path, Err *e);
int tuned_save(const Tuned *p, const char *path, Err *e);
void tuned_free(Tuned *p);
/* The pick for an op under a limit: the one that was made under the same limit, else the fastest one that fits into it.
 * NULL: there is none. */
const Pick *tuned_find(const Tuned *p, const char *device, size_t version, const char *op, size_t limit);
/* Adds a pick; it replaces the one for the same device, version, limit and op. */
int tuned_set(Tuned *p, const Pick *pick, Err *e);

#endif
