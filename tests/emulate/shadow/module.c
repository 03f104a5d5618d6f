/* module.c: what the file of a program or library says of itself: names of functions and of shared arrays. */
#include "shadow.h"

#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

char *__cxa_demangle(const char *name, char *out, size_t *bytes, int *status); /* of C++'s library */

static ShadowModule module;
static char path[4096];

static int find_module(struct dl_phdr_info *info, size_t size, void *out) {
    const uintptr_t here = (uintptr_t)&module;
    ShadowModule m = {.base = info->dlpi_addr, .begin = UINTPTR_MAX};
    bool mine = false;
    (void)size, (void)out;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + p->p_vaddr, end = begin + p->p_memsz;
        if (p->p_type == PT_TLS) m.shared = info->dlpi_tls_data, m.shared_bytes = p->p_memsz;
        if (p->p_type != PT_LOAD) continue;
        if (begin < m.begin) m.begin = begin;
        if (end > m.end) m.end = end;
        mine |= here >= begin && here < end;
    }
    if (!mine) return 0;
    module = m;
    const bool named = info->dlpi_name && *info->dlpi_name;
    const ssize_t n = named ? -1 : readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) snprintf(path, sizeof path, "%s", named ? info->dlpi_name : "");
    return 1;
}

static int by_address(const void *a, const void *b) {
    const ShadowSymbol *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void add(ShadowSymbol **list, int *n, ShadowSymbol s) {
    if (!(*n & (*n - 1))) *list = realloc(*list, (size_t)(*n ? 2 * *n : 1) * sizeof s);
    if (!*list) abort();
    (*list)[(*n)++] = s;
}

/* file[bytes]: an ELF file, which stays as long as the process */
static void read_symbols(const char *file, size_t bytes) {
    const ElfW(Ehdr) *head = (const void *)file;
    if (bytes < sizeof *head || memcmp(file, ELFMAG, SELFMAG)) return;
    const ElfW(Shdr) *section = (const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbol = (const void *)(file + section[i].sh_offset);
        const char *names = file + section[section[i].sh_link].sh_offset;
        for (size_t k = 0; k < section[i].sh_size / sizeof *symbol; k++) {
            const int type = ELF64_ST_TYPE(symbol[k].st_info);
            const char *name = names + symbol[k].st_name;
            const ShadowKind kind = strstr(name, "emulate_room_") ? SHADOW_ROOM : strncmp(name, "_ZGV", 4) ? SHADOW_ARRAY : SHADOW_GUARD;
            const ShadowSymbol s = {symbol[k].st_value, symbol[k].st_size, name, kind};
            if (!s.bytes || symbol[k].st_shndx == SHN_UNDEF) continue;
            if (type == STT_TLS) add(&module.array, &module.arrays, s);
            if (type == STT_FUNC) add(&module.function, &module.functions, s);
        }
    }
    qsort(module.array, (size_t)module.arrays, sizeof *module.array, by_address);
    qsort(module.function, (size_t)module.functions, sizeof *module.function, by_address);
}

const ShadowModule *shadow_module(void) {
    static _Thread_local volatile char there;
    struct stat s;
    (void)there; /* a thread gets a module's variables when it first reads one of them */
    if (module.end) return &module;
    dl_iterate_phdr(find_module, NULL);
    const int f = open(path, O_RDONLY);
    if (f < 0 || fstat(f, &s)) return &module;
    const char *file = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, f, 0);
    if (file != MAP_FAILED) read_symbols(file, (size_t)s.st_size);
    close(f);
    return &module;
}

const ShadowSymbol *shadow_find(const ShadowSymbol *sorted, int n, uintptr_t at) {
    int low = 0, high = n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (sorted[middle].at <= at) low = middle + 1;
        else high = middle;
    }
    return low > 0 && at - sorted[low - 1].at < sorted[low - 1].bytes ? &sorted[low - 1] : NULL;
}

/* "void kernel<F, (DType)2>(F, long)::tile" becomes "kernel<F, (DType)2>::tile". */
const char *shadow_plain_name(const char *name) {
    static char out[512];
    int status = 0, depth = 0;
    size_t n = 0;
    char *demangled = __cxa_demangle(name, NULL, NULL, &status);
    const char *from = demangled ? demangled : name;
    if (!strncmp(from, "void ", 5)) from += 5;
    for (bool types = false; *from && n + 1 < sizeof out; from++) {
        if (*from == '<') depth++;
        if (*from == '(' && !depth) types = true;
        if (!types) out[n++] = *from;
        if (*from == ')' && !depth) types = false;
        if (*from == '>') depth--;
    }
    out[n] = 0;
    free(demangled);
    return out;
}

const char *shadow_code_place(const void *pc) {
    static char out[1024];
    char command[sizeof path + 64], line[512] = "";
    const uintptr_t offset = (uintptr_t)pc - 1 - shadow_module()->base;
    snprintf(command, sizeof command, "addr2line -e '%s' %#lx 2>/dev/null", path, (unsigned long)offset);
    FILE *f = popen(command, "r");
    const bool known = f && fgets(line, sizeof line, f) && *line != '?';
    if (f) pclose(f);
    line[strcspn(line, " \n")] = 0;
    if (known) snprintf(out, sizeof out, " at %s", line);
    else snprintf(out, sizeof out, " at %s+%#lx", path, (unsigned long)offset);
    return out;
}
