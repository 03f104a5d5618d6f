/* attention.cu: y = dropout(softmax(scale q k^T)) v for each sample and head, and its gradient. A block has TILE rows
 * of a head and walks along the other side, TILE steps at a time. Two tiles in shared memory give the scores; each
 * thread keeps some rows by some columns of them in registers. What is computed from the scores is multiplied by a
 * third tile at once: so the matrix of scores is never whole, and each sum belongs to one block. The gradient has one
 * kernel whose rows are queries, which also makes the sums that the others need; one whose rows are keys, which walks along
 * all heads of q that the keys serve; and one for the gradient of the bias, whose blocks have one tile of it and walk along
 * the samples and heads that share it. All compute the scores again. Tiles of queries and keys that do not see each other
 * are left out, but for the bias. Sums are in fp32. */
#include "attention_kernels.h"
#include "attention_own.h"

/* ---- operands */

/* The part of v (N, T, F) or (T, N, F) that begins at `feature`; heads are `width` features wide. */
static Steps steps_of(const View *v, bool batch_first, int64_t feature, int64_t width, bool of_keys) {
    const int64_t near = v->shape.dim[2], far = v->shape.dim[1] * near;
    Steps s = {elements_of(v), v->shape.dim[batch_first], feature, batch_first ? far : near, batch_first ? near : far,
               of_keys, false};
    const int64_t word = v->dtype == DT_F32 ? 4 : 8;
    const bool fits = v->dtype == DT_F32 ? lanes_fit<4>(v->data, v->dtype, near) : lanes_fit<8>(v->data, v->dtype, near);
    s.whole = fits && feature % word == 0 && width % word == 0;
    return s;
}

static Steps part_of(const View *qkv, int part, const Attention &t) {
    const AttentionPart p = attention_part(qkv, part, &t.attr, t.width);
    return steps_of(&qkv[p.operand], t.attr.batch_first, p.feature, t.width, part > 0);
}

static Attention attention_of(const KArgs *a) {
    const AttentionOperands o = attention_operands(a);
    const View *qkv = o.qkv, *y = o.y, *lse = o.lse;
    assert(a->attr->attention.heads > 0 && a->attr->attention.kv_heads > 0);
    assert(a->attr->attention.heads % a->attr->attention.kv_heads == 0 && y->shape.rank == 3);
    assert(y->shape.dim[2] % a->attr->attention.heads == 0 && operand_is_fp32(lse));
    Attention t = {};
    t.attr = a->attr->attention;
    const int time = t.attr.batch_first ? 1 : 0;
    t.width = y->shape.dim[2] / t.attr.heads;
    t.q = part_of(qkv, 0, t);
    t.k = part_of(qkv, 1, t);
    t.v = part_of(qkv, 2, t);
    t.y = steps_of(y, time, 0, t.width, false);
    t.lse = (float *)lse->data;
    t.calls = (const uint32_t *)o.calls->data;
    t.bias = *o.bias;
    t.positions = *o.positions;
    t.samples = y->shape.dim[1 - time];
    t.queries = t.q.count;
    t.keys = t.k.count;
    t.seed = a->seed;
    return t;
}

/* ---- ops */

/* Tensor cores are used if all operands that are there have one 16-bit type and lie in whole words. */
static const AttentionKernels &pick(const KArgs *a, const Attention &t) {
    const Steps *const all[] = {&t.q, &t.k, &t.v, &t.y, &t.dq, &t.dk, &t.dv, &t.dy};
    const DType type = t.q.at.type;
    bool one = cuda_of(a)->model.capability >= CORES && type != DT_F32;
    for (size_t k = 0; k < ARRAY_LEN(all); k++)
        one = one && (!all[k]->at.data || (all[k]->whole && all[k]->at.type == type));
    return !one ? attention_plain : type == DT_BF16 ? attention_bf16 : attention_f16;
}

static int too_many(const KArgs *a, Err *e, int64_t blocks) {
    return err_set(e, ERR_UNSUPPORTED, "%s: expected at most 2^31 blocks, found %lld", op_info(a->kind)->name,
                   (long long)blocks);
}

/* Launches a block per TILE rows, for `rows` rows of each of `heads` heads of each sample. */
static int run(const KArgs *a, Err *e, AttentionKernel *kernel, const Attention &t, int64_t heads, int64_t rows) {
    const int64_t blocks = t.samples * heads * ((rows + TILE - 1) / TILE);
    if (blocks <= INT32_MAX) return launch_op(a, e, kernel, (unsigned)blocks, ATTENTION_THREADS, t);
    return too_many(a, e, blocks);
}

/* A block per tile of the bias's gradient */
static int run_bias(const KArgs *a, Err *e, const Attention &t) {
    const int64_t *d = t.dbias.shape.dim;
    const int64_t blocks = d[0] * d[1] * ((d[2] + TILE - 1) / TILE) * ((d[3] + TILE - 1) / TILE);
    if (blocks <= INT32_MAX) return launch_op(a, e, pick(a, t).of_bias, (unsigned)blocks, ATTENTION_THREADS, t);
    return too_many(a, e, blocks);
}

/* The gradient's: `inner`, which has as many numbers as lse */
size_t attention_own_workspace(const KArgs *a) {
    return a->kind == OP_attention_dx ? (size_t)a->attention_dx.lse.count * sizeof(float) : 0;
}

static int forward(const KArgs *a, Err *e) {
    const Attention t = attention_of(a);
    return run(a, e, pick(a, t).forward, t, t.attr.heads, t.queries);
}

static int gradient(const KArgs *a, Err *e) {
    Attention t = attention_of(a);
    t.dy = steps_of(&a->attention_dx.dy, t.attr.batch_first, 0, t.width, false);
    t.dq = part_of(a->out, 0, t);
    t.dk = part_of(a->out, 1, t);
    t.dv = part_of(a->out, 2, t);
    t.dbias = a->attention_dx.dbias;
    t.inner = (float *)a->workspace;
    const int64_t heads = t.attr.heads;
    int code = run(a, e, pick(a, t).of_queries, t, heads, t.queries);
    if (!code) code = run(a, e, pick(a, t).of_keys, t, t.attr.kv_heads, t.keys);
    return code || !t.dbias.count ? code : run_bias(a, e, t);
}

int attention_own(const KArgs *a, Err *e) { return a->kind == OP_attention ? forward(a, e) : gradient(a, e); }

/* ---- dropout's mask */

/* A quad of keys is one call of Philox. */
static __global__ void mask_kernel(Elements mask, AttentionAttr attr, uint64_t seed, const uint32_t *calls, int64_t rows,
                                   int64_t keys, int64_t row) {
    const int64_t quads = (keys + QUAD - 1) / QUAD, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * quads; i += stride) {
        const int64_t at = i / quads, key = i % quads * QUAD;
        const Philox drawn = philox(seed, RNG_DROPOUT, attr.id, *calls, (dropout_row(at, keys) + (uint64_t)key) >> 2);
        float kept[QUAD];
        for (int k = 0; k < QUAD; k++) kept[k] = dropout_keep(attr.p, drawn.x[k]) > 0.0f ? 1.0f : 0.0f;
        lanes_store<QUAD>(mask.type, mask.data, at * row + key, kept);
    }
}

int attention_mask(const KArgs *a, void *mask, DType type, int64_t row, Err *e) {
    const Attention t = attention_of(a);
    const int64_t rows = t.samples * t.attr.heads * t.queries;
    const unsigned blocks = blocks_for(a, rows * ((t.keys + QUAD - 1) / QUAD), ELEMENT_THREADS);
    return launch_op(a, e, mask_kernel, blocks, ELEMENT_THREADS, Elements{mask, type}, t.attr, t.seed, t.calls, rows, t.keys, row);
}
