/* err.h: errors are values. A function that can fail returns an ErrCode (0 = ok) and fills Err at the failing line. */
#ifndef MT_ERR_H
#define MT_ERR_H

/*   code            what it means                                              exit status of the command line */
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
    char text[ERR_TEXT]; /* without control characters */
} Err;

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *e and returns `code`. `e` may be NULL. */
int err_set(Err *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the text that is already there and returns the code. */
int err_prefix(Err *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(int code);
int err_exit_status(int code);

#ifdef __cplusplus
}
#endif

#endif
