/* safetensors.h: files of named tensors, the format of PyTorch's pretrained weights:
 *
 *   u64 length of the header, little endian
 *   header: JSON {"name": {"dtype": "F32", "shape": [64, 3], "data_offsets": [begin, end]}, ...,
 *                 "__metadata__": {"key": "text"}}, padded with spaces
 *   the tensors' bytes, little endian, in PyTorch's order, without gaps; offsets count from here
 *
 * Files are not trusted: everything that the header says is checked against the file's length before it is used. The
 * bytes are read, not mapped, so that a file that shrinks meanwhile gives an error and not a signal. */
#ifndef MT_SAFETENSORS_H
#define MT_SAFETENSORS_H

#include "base/dtype.h"
#include "base/shape.h"

enum { TENSOR_RANK = 8 };
#define SAFETENSORS_HEADER_MAX ((size_t)100000000) /* what the format allows */

/*   X(name, bits, as): a tensor of that type can be read as fp32 (F32), int32 (I32), or only as bytes (COUNT) */
#define TENSOR_TYPES(X) \
    X(F32, 32, F32) X(F16, 16, F32) X(BF16, 16, F32) X(F64, 64, F32) X(I32, 32, I32) X(I64, 64, I32) X(U8, 8, I32) \
    X(BOOL, 8, I32) X(I8, 8, COUNT) X(I16, 16, COUNT) X(U16, 16, COUNT) X(U32, 32, COUNT) X(U64, 64, COUNT) \
    X(C64, 64, COUNT) X(F8_E4M3, 8, COUNT) X(F8_E5M2, 8, COUNT) X(F8_E4M3FNUZ, 8, COUNT) X(F8_E5M2FNUZ, 8, COUNT) \
    X(F8_E8M0, 8, COUNT) X(F6_E2M3, 6, COUNT) X(F6_E3M2, 6, COUNT) X(F4, 4, COUNT)

typedef enum TensorType {
#define X(name, bits, as) TENSOR_##name,
    TENSOR_TYPES(X)
#undef X
    TENSOR_TYPE_COUNT
} TensorType;
const char *tensor_type_name(TensorType t);
DType tensor_type_as(TensorType t); /* the last column; DT_COUNT: bytes only */
size_t tensor_type_size(TensorType t); /* bytes of an element; 0 where it has fewer than 8 bits */
TensorType tensor_type_of(DType t);

typedef struct Tensor {
    const char *name;
    TensorType type;
    int rank;
    int64_t dim[TENSOR_RANK]; /* PyTorch's shape; dimensions may be 0 */
    size_t begin, bytes;      /* in the file's data */
} Tensor;

typedef struct Pair { const char *key, *value; } Pair; /* of __metadata__ */

/* ---- reading */
typedef struct Safetensors Safetensors;
int safetensors_open(const char *path, Safetensors **out, Err *e);
/* Tensors that lie in a file of another format: `begin` counts from its first byte, and names are copied. ERR_FORMAT: one
 * does not lie in the file, or two have one name. */
int safetensors_of(const char *path, const Tensor *tensors, int n, Safetensors **out, Err *e);
void safetensors_close(Safetensors *s); /* NULL is allowed */
/* All tensors, or the metadata, ordered by name; *n is their number. They belong to s. */
const Tensor *safetensors_tensors(const Safetensors *s, int *n);
const Pair *safetensors_metadata(const Safetensors *s, int *n);
const Tensor *safetensors_find(const Safetensors *s, const char *name); /* NULL: there is none */
/* ERR_FORMAT unless `t` has that shape. */
int safetensors_check_shape(const Safetensors *s, const Tensor *t, const Shape *expected, Err *e);
/* The tensor's elements as fp32 (`as` = DT_F32; F64 is rounded) or int32 (DT_I32; ERR_FORMAT for larger numbers), into
 * values[elements]. ERR_UNSUPPORTED: its type cannot be read as `as`. */
int safetensors_read(Safetensors *s, const Tensor *t, DType as, void *values, Err *e);
/* Its bytes as they are in the file, into bytes[t->bytes]. */
int safetensors_read_bytes(Safetensors *s, const Tensor *t, void *bytes, Err *e);

/* CRC-32 of the tensor's bytes, as zlib and gzip compute it. */
int safetensors_checksum(Safetensors *s, const Tensor *t, uint32_t *sum, Err *e);

/* ---- writing */
typedef struct TensorEntry { const char *name; TensorType type; Shape shape; } TensorEntry;
/* Copies the elements of entry `i` to `bytes`, in PyTorch's order. */
typedef int TensorFill(void *arg, int i, void *bytes, Err *e);
/* Writes a file of `n` tensors, each with a name of its own and elements of whole bytes. The same content gives the
 * same bytes: tensors are ordered by size of element (largest first) and name, metadata as given. The file appears
 * under `path` complete and on the disk, or not at all: file.h. */
int safetensors_write(const char *path, const TensorEntry *entries, int n, const Pair *metadata, int n_metadata,
                      TensorFill *fill, void *arg, Err *e);

#endif
