#include "affinity.h"

#include <sched.h>
#include <stdlib.h>

/* OpenMP's own, where the program has it: the core does without. */
__attribute__((weak)) int omp_get_num_places(void);
__attribute__((weak)) int omp_get_place_num_procs(int place);
__attribute__((weak)) void omp_get_place_proc_ids(int place, int *ids);

void set_add(NumberSet *set, int number) {
    assert(number >= 0 && number < SET_NUMBERS);
    set->word[(size_t)number / SET_WORD] |= 1ul << (size_t)number % SET_WORD;
}

bool set_has(const NumberSet *set, int number) {
    assert(number >= 0);
    return number < SET_NUMBERS && set->word[(size_t)number / SET_WORD] >> (size_t)number % SET_WORD & 1;
}

int set_count(const NumberSet *set) {
    int count = 0;
    for (size_t i = 0; i < ARRAY_LEN(set->word); i++) count += __builtin_popcountl(set->word[i]);
    return count;
}

bool set_meets(const NumberSet *a, const NumberSet *b) {
    for (size_t i = 0; i < ARRAY_LEN(a->word); i++)
        if (a->word[i] & b->word[i]) return true;
    return false;
}

/* The number at *at, which comes to stand after it; -1: there is none below SET_NUMBERS. */
static int number_at(const char **at) {
    if (**at < '0' || **at > '9') return -1;
    char *end;
    const unsigned long found = strtoul(*at, &end, 10);
    *at = end;
    return found < SET_NUMBERS ? (int)found : -1;
}

bool set_read(NumberSet *set, const char *text) {
    NumberSet found = {{0}};
    *set = found;
    for (const char *at = text;; at++) {
        const int first = number_at(&at);
        int last = first;
        if (first >= 0 && *at == '-') at++, last = number_at(&at);
        if (first < 0 || last < first) return false;
        for (int i = first; i <= last; i++) set_add(&found, i);
        if (*at != ',') break;
    }
    *set = found;
    return true;
}

bool affinity_places(NumberSet *processors) {
    *processors = (NumberSet){{0}};
    const int places = omp_get_num_places ? omp_get_num_places() : 0;
    for (int i = 0; i < places; i++) {
        int ids[SET_NUMBERS];
        const int n = omp_get_place_num_procs(i);
        if (n > SET_NUMBERS) continue;
        omp_get_place_proc_ids(i, ids);
        for (int k = 0; k < n; k++)
            if (ids[k] >= 0 && ids[k] < SET_NUMBERS) set_add(processors, ids[k]);
    }
    return set_count(processors) > 0;
}

void affinity_processors(NumberSet *processors) {
    if (!affinity_places(processors) && sched_getaffinity(0, sizeof processors->word, (cpu_set_t *)processors->word))
        *processors = (NumberSet){{0}};
}

void affinity_take(const NumberSet *processors) {
    if (sched_setaffinity(0, sizeof processors->word, (const cpu_set_t *)processors->word)) return;
}

void affinity_unbind(void) {
    NumberSet all;
    if (affinity_places(&all)) affinity_take(&all);
}
