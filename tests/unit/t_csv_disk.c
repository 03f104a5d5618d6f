/* The results file and the world around it: csv.c's calls of the disk and their failures, and other processes. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "csv_files.h"

/* The C library's calls, logged and made to fail: r read, w write, s fdatasync, f fsync of a file, d fsync of a folder,
 * t ftruncate */
static struct {
    char log[256];
    size_t at_most;           /* bytes that one read or write moves; 0 = all */
    int interrupt;            /* so many reads and writes end with EINTR */
    bool fail_sync, fail_cut; /* with EIO */
} disk;

static void note(char call) {
    size_t n = strlen(disk.log);
    if (n + 1 < sizeof disk.log) disk.log[n] = call;
}

static bool interrupted(void) {
    if (disk.interrupt == 0) return false;
    disk.interrupt--;
    errno = EINTR;
    return true;
}

static size_t moved(size_t n) { return disk.at_most && n > disk.at_most ? disk.at_most : n; }

ssize_t read(int fd, void *data, size_t n) {
    note('r');
    return interrupted() ? -1 : syscall(SYS_read, fd, data, moved(n));
}

ssize_t write(int fd, const void *data, size_t n) {
    note('w');
    return interrupted() ? -1 : syscall(SYS_write, fd, data, moved(n));
}

int fdatasync(int fd) {
    note('s');
    if (!disk.fail_sync) return (int)syscall(SYS_fdatasync, fd);
    errno = EIO;
    return -1;
}

int fsync(int fd) {
    struct stat st;
    note(fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? 'd' : 'f');
    return (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t length) {
    note('t');
    if (!disk.fail_cut) return (int)syscall(SYS_ftruncate, fd, length);
    errno = EIO;
    return -1;
}

static void forget(void) { memset(&disk, 0, sizeof disk); }

static void test_calls(void) {
    start_afresh();
    Csv *c = reopen(NULL);
    forget();
    csv_append(c, fill("5f3a", 0, "ok", ""), &err);
    is_str(disk.log, "dws", "the first row: the new name to the disk, one write of header and row, that to the disk");
    forget();
    csv_append(c, fill("5f3a", 1, "ok", ""), &err);
    is_str(disk.log, "ws", "a further row: one write, then to the disk");
    csv_close(c);
    Text t = slurp(path);
    spit(path, t.s, t.n - 3);
    forget();
    bool torn = false;
    csv_close(reopen(&torn));
    ok(torn, "a torn line");
    is_str(disk.log + strspn(disk.log, "r"), "wwfdtf", "is safely in FILE.torn before it is cut off");
}

static void test_slow_disk(void) {
    Text whole = file_of_three();
    start_afresh();
    Csv *c = reopen(NULL);
    forget();
    disk.at_most = 7;
    disk.interrupt = 3;
    append_three(c, 0);
    csv_close(c);
    Text t = slurp(path);
    ok(same(&t, &whole), "interrupted and short writes are continued");
    disk.interrupt = 3;
    c = reopen(NULL);
    is_int(csv_rows(c), 3, "as are reads");
    csv_close(c);
    forget();
}

static void test_sync_fails(void) {
    Text whole = file_of_three();
    Csv *c = reopen(NULL);
    forget();
    disk.fail_sync = true;
    is_int(csv_append(c, fill("b", 7, "ok", ""), &err), ERR_FILE, "a row that does not reach the disk is refused");
    has_text(err.text, strerror(EIO), "with the reason");
    Text t = slurp(path);
    ok(same(&t, &whole) && !csv_status(c, "b", 7), "and is neither in the file nor known");
    disk.fail_cut = true;
    is_int(csv_append(c, row, &err), ERR_FILE, "where it cannot be taken back either");
    has_text(err.text, "the file may now end in a part of the row", "the message says so");
    forget();
    is_int(csv_append(c, row, &err), ERR_FILE, "and no further row is put after it");
    csv_close(c);
}

/* `held`: what the parent has open, or NULL; the child gives its copy back, so that it leaks nothing. */
static int open_in_child(Csv *held) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        Csv *c;
        Err e = {0};
        int code = csv_open(path, row, &c, NULL, &e);
        if (code == OK) csv_close(c);
        csv_close(held);
        _exit(code == ERR_FILE && strstr(e.text, "is in use") ? 99 : code);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_exclusive(void) {
    file_of_three();
    Csv *c = reopen(NULL), *second;
    is_int(open_in_child(c), 99, "a second process is refused");
    is_int(csv_open(path, row, &second, NULL, &err), ERR_FILE, "a second time in one process too");
    has_text(err.text, "is in use: another process is writing to it", "and told why");
    fflush(stdout);
    pid_t worker = fork();
    if (worker == 0) for (;;) pause();
    csv_close(c);
    is_int(open_in_child(NULL), OK, "once closed it is free, though a forked worker still has the descriptor");
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    start_afresh();
    c = reopen(NULL);
    second = reopen(NULL);
    is_int(csv_append(c, fill("a", 0, "ok", ""), &err), OK, "of two that found no file, the first to append has it");
    is_int(csv_append(second, row, &err), ERR_FILE, "the other is refused");
    has_text(err.text, "cannot create", "and told why");
    csv_close(second);
    is_int(open_in_child(c), 99, "the first still holds it");
    csv_close(c);
}

/* Appends while no file may be longer than `limit`. */
static int append_on_full_disk(Csv *c, size_t limit) {
    struct rlimit before, tight;
    getrlimit(RLIMIT_FSIZE, &before);
    tight = before;
    tight.rlim_cur = limit;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    int code = csv_append(c, row, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    return code;
}

static void test_disk_full(void) {
    start_afresh();
    Csv *c = reopen(NULL);
    fill("a", 0, "ok", "");
    is_int(append_on_full_disk(c, 100), ERR_FILE, "no room for the header");
    Text t = slurp(path);
    is_int((long long)t.n, 0, "the file is empty");
    is_int(csv_rows(c), 0, "and there are no rows");
    append_three(c, 0);
    Text whole = slurp(path);
    is_int(csv_rows(c), 3, "with room again rows are appended, after a header");
    fill("b", 7, "ok", "");
    bool unchanged = true;
    for (size_t more = 0; more < 50; more += 7) {
        unchanged = append_on_full_disk(c, whole.n + more) == ERR_FILE && unchanged;
        t = slurp(path);
        unchanged = unchanged && same(&t, &whole) && !csv_status(c, "b", 7);
    }
    ok(unchanged, "a row that finds room for a part of it leaves the file as it was");
    has_text(err.text, strerror(EFBIG), "the message has the reason");
    has_text(err.text, path, "and the file");
    is_int(csv_append(c, row, &err), OK, "with room again the row is appended");
    csv_close(c);
    c = reopen(NULL);
    is_int(csv_rows(c), 4, "and read back");
    csv_close(c);
}

int main(void) {
    if (set_up()) return 1;
    test_calls();
    test_slow_disk();
    test_sync_fails();
    test_exclusive();
    test_disk_full();
    return tear_down();
}
