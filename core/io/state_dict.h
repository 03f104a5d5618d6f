/* state_dict.h: the tensors of a file that torch.save has written (PyTorch 1.6 and later: a zip archive of a pickle and
 * of each storage's bytes, nothing compressed). The pickle may name what tensors consist of and nothing else (pickle.h);
 * nothing is ever called. Of a checkpoint, a dict of several things, the dict under "model", "state_dict" or "model_state_dict" is
 * the state_dict. Tensors must lie in PyTorch's order; several may share a storage. */
#ifndef MT_STATE_DICT_H
#define MT_STATE_DICT_H

#include "safetensors.h"

/* Opens such a file, or one of safetensors, whichever it is by its first bytes. ERR_FILE: it cannot be read; ERR_FORMAT: it
 * holds something else than that, or is damaged; ERR_UNSUPPORTED: PyTorch's older format. */
int state_dict_open(const char *path, Safetensors **out, Err *e);

#endif
