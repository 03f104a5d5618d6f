/* engines.h: cuDNN's engines, each of which can run a graph: which there are, what each needs, and which may be taken. */
#ifndef MT_ENGINES_H
#define MT_ENGINES_H

#include "cuda.h"
#include "cudnn_graph.h"
#include "tuned.h"

enum { ENGINES_ALL = 1000 };

typedef struct Engine {
    EngineId id;
    size_t workspace;  /* bytes */
    unsigned notes;    /* a bit per CUDNN_NUMERICAL_NOTE_ */
    bool compiled;     /* compiled at run time; else shipped with the library */
    Node config;
} Engine;

typedef struct Engines { Engine *at; int n, cap; } Engines;

/* Engines are asked for in this order: cuDNN's quick ranking, its careful one, and engines that work, unranked. */
enum { ENGINE_RANKINGS = 3 };

/* Appends the `most` best engines of a ranking, best first, except those that the list has already. To find none is no
 * failure. cuDNN takes about 60 ms to describe an engine that must be compiled, so it pays to ask for few. */
int engines_ask(CudaDevice *c, const Graph *g, int ranking, int most, Engines *list, Err *e);
void engines_free(Engines *list);
/* The engine that `id` names. ERR_UNSUPPORTED: this library has none for this graph. */
int engine_open(CudaDevice *c, const Graph *g, const EngineId *id, Engine *out, Err *e);
void engine_close(Engine *engine);

/* May the engine be taken? The same inputs must give the same bits, and sums must be fp32; exact: fp32 operands must
 * not be rounded to TF32. */
bool engine_may(const Engine *engine, bool exact);

#endif
