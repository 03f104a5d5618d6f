/* cublasLt.h: see cudnn.h. */
#ifndef EMULATE_CUBLASLT_H
#define EMULATE_CUBLASLT_H

typedef struct EmulatedBlas *cublasLtHandle_t;

#endif
