/* compile.h: Network -> Program -> passes -> Program, with the verifier after every pass that does something. */
#ifndef MT_COMPILE_H
#define MT_COMPILE_H

#include "network/network.h"
#include "passes.h"

/* Builds the step program of `net` under `s`, with workspace and states of `device`, which must outlive the program;
 * the caller frees it with program_free. ERR_SCRIPT: the settings do not suit the network; ERR_OOM: a budget is too
 * small; ERR_HOST_MEMORY; what the device says of an op that it cannot run; ERR_INTERNAL: the verifier found a
 * mistake. */
int compile(const Network *net, const Settings *s, Device *device, PassWatch *watch, void *arg, Program **out, Err *e);

#endif
