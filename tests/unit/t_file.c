/* t_file.c: files that take their name when they are complete. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "base/mem.h"
#include "tap.h"

enum { LARGE = 200000 };

static char folder[] = "/tmp/memtide-file.XXXXXX";
static Err e;

static const char *in_folder(const char *name) {
    static char path[16][128];
    static int next;
    char *to = path[next++ % 16];
    snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}

/* The file's length, -1: there is none; its first bytes in `text`. */
static long content(const char *path, char text[16]) {
    FILE *f = fopen(path, "rb");
    memset(text, 0, 16);
    if (!f) return -1;
    long n = (long)fread(text, 1, 15, f);
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    fclose(f);
    return n;
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    if (f) fputs(text, f);
    if (f) fclose(f);
}

static int files(void) {
    char command[128];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *f = popen(command, "r");
    int n = -1;
    if (!f || fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}

static void test_new(void) {
    NewFile *f = NULL;
    char text[16];
    const char *path = in_folder("new");
    ok(!file_new(path, &f, &e) && !file_write(f, "abc", 3, &e), "a new file");
    is_int(content(path, text), -1, "is not there before it is complete");
    ok(!file_is_output(f), "nor is it standard output");
    ok(!file_finish(f, true, &e), "it is finished");
    ok(content(path, text) == 3 && !strcmp(text, "abc"), "then it is");
    ok(!file_new(path, &f, &e) && !file_write(f, "xy", 2, &e), "once more");
    file_discard(f);
    is_int(content(path, text), 3, "what is given up leaves what was there");
    char *large = calloc(1, LARGE);
    ok(!file_new(path, &f, &e) && !file_write(f, "x", 1, &e) && !file_write(f, large, LARGE, &e) &&
       !file_write(f, "y", 1, &e) && !file_finish(f, false, &e), "more than a buffer holds");
    free(large);
    is_int(content(path, text), LARGE + 2, "is written whole");
    is_int(files(), 1, "nothing else is left");
    unlink(path);
}

static void test_links(void) {
    NewFile *f = NULL;
    struct stat st;
    char text[16];
    const char *path = in_folder("link"), *target = in_folder("target"), *trap = in_folder("target.tmp0");
    put(target, "old");
    put(in_folder("victim"), "victim");
    ok(!chmod(target, 0640) && !symlink("target", path) && !symlink("victim", trap), "links");
    ok(!file_new(path, &f, &e) && !file_write(f, "new", 3, &e) && !file_finish(f, true, &e), "through a link");
    ok(!lstat(path, &st) && S_ISLNK(st.st_mode), "which stays");
    ok(content(target, text) == 3 && !strcmp(text, "new"), "its file is replaced");
    ok(!stat(target, &st) && (st.st_mode & 0777) == 0640, "with its permissions");
    ok(content(in_folder("victim"), text) == 6, "a link in the place of what is written beside it is not followed");
    unlink(target);
    is_int(file_new(path, &f, &e), ERR_FILE, "a link to nothing");
    has_text(e.text, "it is a symbolic link to a file that is not there", "is refused");
    is_int(file_new(folder, &f, &e), ERR_FILE, "a folder");
    has_text(e.text, "it is a folder", "too");
    is_int(file_new(in_folder("none/x"), &f, &e), ERR_FILE, "in a folder that is not there");
    ok(f == NULL, "nothing is opened");
}

static void test_devices(void) {
    NewFile *f = NULL;
    struct stat st;
    const char *full = in_folder("full");
    char byte[1] = {0};
    if (!ok(!symlink("/dev/full", full), "a link to a device")) return;
    ok(!file_new(full, &f, &e) && !file_write(f, byte, 1, &e), "is opened");
    is_int(file_finish(f, true, &e), ERR_FILE, "its errors are told");
    has_text(e.text, "No space left on device", "with their reason");
    ok(!lstat(full, &st) && S_ISLNK(st.st_mode), "it stays what it is");
}

static void test_names(void) {
    NewFile *f = NULL;
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "many.tmp%d", i);
        put(in_folder(name), "theirs");
    }
    is_int(file_new(in_folder("many"), &f, &e), ERR_FILE, "all names beside it are taken");
    is_int(content(in_folder("many.tmp99"), name), 6, "and stay");
    char large[1] = {0};
    for (int i = 0; i < 6; i++) {
        mem_fail_after(i);
        int code = file_new(in_folder("memory"), &f, &e);
        mem_fail_after(-1);
        if (!code) {
            ok(!file_write(f, large, 1, &e) && !file_finish(f, false, &e), "enough memory");
            return;
        }
        is_int(code, ERR_HOST_MEMORY, "out of host memory");
    }
    ok(false, "enough memory");
}

int main(void) {
    long live = mem_live();
    char command[128];
    if (!ok(mkdtemp(folder) != NULL, "a folder")) return tap_done();
    test_new();
    test_links();
    test_devices();
    test_names();
    is_int(mem_live(), live, "nothing leaks");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ok(!system(command), "cleaned up");
    return tap_done();
}
