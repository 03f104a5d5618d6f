/* err.h: errors are values. A function that can fail returns an ErrCode (0: success); where it fails, it fills its Err.
 * On success the Err stays as it was. */
#ifndef MT_ERR_H
#define MT_ERR_H

/*   code            meaning                                                    exit status of the command line */
#define ERR_CODES(X)                                                                             \
    X(OK,          "no error",                                                              0)   \
    X(SCRIPT,      "a mistake in the script: a wrong option, shape or value",              65)   \
    X(OOM,         "the device (or the limit set for it) has not enough memory",            3)   \
    X(HOST_MEMORY, "the host has not enough memory",                                       71)   \
    X(FILE,        "a file cannot be opened, read or written",                             66)   \
    X(FORMAT,      "a data file is not what it says it is",                                65)   \
    X(DEVICE,      "the device is missing or has failed",                                  69)   \
    X(UNSUPPORTED, "this device or build cannot do what was asked",                        69)   \
    X(INTERNAL,    "a bug in memtide: a check of its own has failed",                      70)

typedef enum ErrCode {
#define X(name, text, status) ERR_##name,
    ERR_CODES(X)
#undef X
    ERR_CODE_COUNT
} ErrCode;

enum { OK = ERR_OK };

enum { ERR_TEXT = 960 };

typedef struct Err {
    int code; /* ErrCode */
    char text[ERR_TEXT]; /* one line without control characters, cut off where it is too long */
} Err;

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *e with `code`, not OK, and the text; returns `code`. e: NULL: only the code is wanted. */
int err_set(Err *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the text of *e, which holds an error, and returns its code. e: NULL: ERR_INTERNAL. */
int err_prefix(Err *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "FILE" for ERR_FILE; "UNKNOWN" where there is no such code. */
const char *err_name(int code);
/* The program's exit status for the code; 70, as for ERR_INTERNAL, where there is no such code. */
int err_exit_status(int code);

#ifdef __cplusplus
}
#endif

#endif
