/* plugin.h: libraries of this program that are loaded when they are asked for, since they need others that are not
 * everywhere. One that was loaded stays to the end of the process. */
#ifndef MT_PLUGIN_H
#define MT_PLUGIN_H

#include "base.h"
#include "err.h"

enum { PLUGIN_PATH = 1024 };

typedef struct Plugin {
    const char *what, *file, *variable;  /* "CUDA plugin", "memtide_cuda.so"; a variable that names another file */
    const char *entry, *abi_name;        /* what it exports: a function, and a uint64_t that is `abi` if it was built with */
    uint64_t abi;                        /* this program */
} Plugin;

/* path: the plugin's file. false: there is none; `looked` says where it was searched for. */
bool plugin_find(const Plugin *p, char path[PLUGIN_PATH], char looked[PLUGIN_PATH]);
/* ERR_UNSUPPORTED: it is not there, or not this program's. */
int plugin_load(const Plugin *p, void **library, void **entry, Err *e);

#endif
