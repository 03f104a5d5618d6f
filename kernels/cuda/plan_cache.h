/* plan_cache.h: an engine made ready to run. Engines that are compiled at run time take a second or so each: what came
 * out is kept in ~/.cache/memtide/plans and read back. A file that is damaged or of another cuDNN is made anew. */
#ifndef MT_PLAN_CACHE_H
#define MT_PLAN_CACHE_H

#include "engines.h"

enum { PLAN_KEY = 1024 };

/* What a plan is kept under: it tells the plan from those of all other graphs, engines, libraries and devices. A graph
 * is what an op (`op`) does in one way (`way`). file: a path in the cache, by the text's hash. */
typedef struct PlanKey { char text[PLAN_KEY], file[32]; } PlanKey;
void plan_key(const CudaDevice *c, const char *op, const char *way, const EngineId *engine, PlanKey *key);

/* The plan is the caller's to free with node_free. */
int plan_open(CudaDevice *c, const char *op, const char *way, const Engine *engine, Node *plan, Err *e);
/* Enqueues it. id[k] is the tensor whose data is data[k]. */
int plan_run(CudaDevice *c, Node plan, int n, const int64_t *id, void *const *data, void *workspace, Err *e);

/* The two halves of the cache: `text` is to be freed with mem_free(). */
int plan_write(Node plan, const char *path, const char *key, Err *e);
int plan_read(CudaDevice *c, const char *path, const char *key, Node *plan, Err *e);

#endif
