#include "machine.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096 };

static FILE *open_below(const char *root, const char *path) {
    char whole[PATH_MAX];
    const int n = snprintf(whole, sizeof whole, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "r") : NULL;
}

/* The first line of a file below the root; false: there is none. */
static bool first_line(const char *root, const char *path, char line[LINE]) {
    FILE *f = open_below(root, path);
    const bool found = f && fgets(line, LINE, f);
    if (f) fclose(f);
    return found;
}

void machine_text(const char *root, const char *path, const char *name, char *value, size_t size) {
    char line[LINE];
    value[0] = 0;
    FILE *f = open_below(root, path);
    if (!f) return;
    while (!value[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, name, strlen(name))) continue;
        snprintf(value, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        value[strcspn(value, "\n")] = 0;
    }
    fclose(f);
}

bool machine_list(const char *root, const char *path, NumberSet *set) {
    char line[LINE];
    *set = (NumberSet){{0}};
    return first_line(root, path, line) && set_read(set, line);
}

/* ---- processors' time */

/* A quota and a period in microseconds, of one line ("150000 100000", "max 100000") or of two files, as processors' time */
static double time_of(const char *quota, const char *period) {
    char *end;
    const double q = strtod(quota, &end), p = strtod(period ? period : end, NULL);
    return end != quota && q > 0 && p > 0 ? q / p : INFINITY; /* "max" and -1: no limit */
}

static double time_v2(const char *root, const char *folder) {
    char path[PATH_MAX], line[LINE];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    return first_line(root, path, line) ? time_of(line, NULL) : INFINITY;
}

static double time_v1(const char *root, const char *folder) {
    char path[PATH_MAX], quota[LINE], period[LINE];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!first_line(root, path, quota)) return INFINITY;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return first_line(root, path, period) ? time_of(quota, period) : INFINITY;
}

/* The least of a group and those above it, which share theirs. A container may see its group at the top of the tree and a path that
 * is not there: then the top counts. */
static double time_up(const char *root, const char *top, const char *group, double (*of)(const char *, const char *)) {
    char folder[PATH_MAX - 32];
    const int n = snprintf(folder, sizeof folder, "%s%s", top, group);
    if (n < 0 || (size_t)n >= sizeof folder) return of(root, top);
    double least = INFINITY;
    for (;;) {
        const double found = of(root, folder);
        if (found < least) least = found;
        if (strlen(folder) <= strlen(top)) return least;
        *strrchr(folder, '/') = 0;
    }
}

/* Is "cpu" among the controllers "cpu,cpuacct"? */
static bool has_cpu(const char *controllers) {
    for (const char *at = controllers;; at++) {
        const size_t n = strcspn(at, ",");
        if (n == 3 && !strncmp(at, "cpu", n)) return true;
        at += n;
        if (!*at) return false;
    }
}

/* Lines of /proc/self/cgroup: "0::/group" of the one tree (version 2), "4:cpu,cpuacct:/group" of a controller's own (version 1). */
static double time_left(const char *root) {
    char line[LINE];
    double least = INFINITY;
    FILE *f = open_below(root, "/proc/self/cgroup");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *controllers++ = *group++ = 0;
        double found = INFINITY;
        if (!*controllers) found = time_up(root, "/sys/fs/cgroup", group, time_v2);
        else if (has_cpu(controllers)) found = time_up(root, "/sys/fs/cgroup/cpu", group, time_v1);
        if (found < least) least = found;
    }
    if (f) fclose(f);
    return least;
}

/* ---- memory nodes */

/* Nodes that have memory that the process may take, and processors on which it may run: memory of other nodes would be far from all
 * its threads. */
static NumberSet nodes_near(const char *root, const NumberSet *processors) {
    NumberSet with_memory, allowed, of_node, near = {{0}};
    char text[LINE], path[96];
    machine_list(root, "/sys/devices/system/node/has_memory", &with_memory);
    machine_text(root, "/proc/self/status", "Mems_allowed_list", text, sizeof text);
    const bool limited = set_read(&allowed, text);
    for (int i = 0; i < SET_NUMBERS; i++) {
        if (!set_has(&with_memory, i) || (limited && !set_has(&allowed, i))) continue;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", i);
        if (machine_list(root, path, &of_node) && set_meets(&of_node, processors)) set_add(&near, i);
    }
    return near;
}

void machine_look(const char *root, const NumberSet *processors, Machine *m) {
    const int count = set_count(processors);
    *m = (Machine){.processors = count > 1 ? count : 1, .time = time_left(root), .nodes = nodes_near(root, processors)};
}

int machine_threads(const Machine *m, int wanted) {
    assert(wanted >= 1 && m->time > 0);
    return m->time < wanted ? (int)ceil(m->time) : wanted;
}
