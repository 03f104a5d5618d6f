/* compile.h: the spine up to the plan: Network -> Program -passes-> Program -> Plan, the verifier after every pass. */
#ifndef MT_COMPILE_H
#define MT_COMPILE_H

#include "network/network.h"
#include "passes.h"

/* Builds the step program of `net` under `s`, with workspace and states of `device`.
 * The device must outlive the program. */
int compile(const Network *net, const Settings *s, Device *device, PassWatch *watch, void *arg, Program **out, Err *e);

#endif
