/* plan_cache.h: engines made ready to run. An engine that is compiled at run time takes about a second: the result is
 * kept in ~/.cache/memtide/plans and read back. A file that is damaged, or of another cuDNN, is made anew. */
#ifndef MT_PLAN_CACHE_H
#define MT_PLAN_CACHE_H

#include "engines.h"

enum { PLAN_KEY = 1024 };

/* text: identifies a plan among those of all graphs, engines, libraries and devices; a graph is what op `op` does in
 * way `way`. file: the plan's path in the cache, by the hash of the text. */
typedef struct PlanKey { char text[PLAN_KEY], file[32]; } PlanKey;
void plan_key(const CudaDevice *c, const char *op, const char *way, const EngineId *engine, PlanKey *key);

/* *plan: the engine, ready to run; the caller frees it with node_free. */
int plan_open(CudaDevice *c, const char *op, const char *way, const Engine *engine, Node *plan, Err *e);
/* Enqueues a plan; tensor id[k] of its graph lies at data[k]. */
int plan_run(CudaDevice *c, Node plan, int n, const int64_t *id, void *const *data, void *workspace, Err *e);

/* The two halves of the cache: a plan to and from a file */
int plan_write(Node plan, const char *path, const char *key, Err *e);
int plan_read(CudaDevice *c, const char *path, const char *key, Node *plan, Err *e);

#endif
