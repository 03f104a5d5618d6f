#include "bf16_gemm.h"

#include "gemm.h"
#include "isa.h"

bool bf16_gemm_fits(void) { return isa_has(dnnl_cpu_isa_avx512_core_bf16); }

/* ---- by gemm.h */

/* Rounds sums, or what they are added to, into c. */
static void leave(const Gemm *g, int64_t row, int64_t rows, int64_t column, int64_t columns, float *sums, int64_t step) {
    float old[BLOCK];
    const View c = {.data = (void *)(uintptr_t)g->of, .dtype = DT_BF16};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i += BLOCK) {
            const int64_t n = min_i64(BLOCK, columns - i), at = (row + r) * g->c_step + column + i;
            float *from = sums + r * step + i;
            if (g->add) {
                const float *before = block_load(&c, at, n, old);
                for (int64_t k = 0; k < n; k++) from[k] += before[k];
            }
            block_store(&c, at, n, from);
        }
}

/* c: NULL where only sizes are asked for */
static Gemm gemm_of(const Bf16GemmShape *s, const void *a, const void *b, void *c) {
    static float somewhere;
    Gemm g = {.m = s->m, .n = s->n, .k = s->k, .a = {DT_BF16, a, s->a_stride, s->a_transposed},
              .b = {DT_BF16, b, s->b_stride, s->b_transposed}, .scale = 1, .c_step = s->c_stride, .add = s->add,
              .threads = s->threads};
    if (s->packed) g.packed = b ? b : &somewhere;
    if (s->to == DT_F32) g.c = c ? c : &somewhere;
    else g.leave = leave, g.of = c;
    return g;
}

/* ---- by oneDNN */

static dnnl_status_t plain_md(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, DType type, int64_t stride,
                              bool transposed) {
    return dnnl_memory_desc_init_by_strides(md, 2, (dnnl_dims_t){rows, cols}, type == DT_F32 ? dnnl_f32 : dnnl_bf16,
                                            transposed ? (dnnl_dims_t){1, stride} : (dnnl_dims_t){stride, 1});
}

static dnnl_status_t describe(Bf16Gemm *p, const Bf16GemmShape *s) {
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t after = NULL;
    dnnl_status_t status = plain_md(&a, s->m, s->k, DT_BF16, s->a_stride, s->a_transposed);
    if (!status) status = s->packed ? dnnl_memory_desc_init_by_tag(&b, 2, (dnnl_dims_t){s->k, s->n}, dnnl_bf16,
                                                                   dnnl_format_tag_any)
                                    : plain_md(&b, s->k, s->n, DT_BF16, s->b_stride, s->b_transposed);
    if (!status) status = plain_md(&c, s->m, s->n, s->to, s->c_stride, false);
    if (!status) status = dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c);
    if (!status) status = dnnl_primitive_attr_create(&attr);
    if (!status) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!status && s->add) status = dnnl_post_ops_create(&after);
    if (!status && s->add) status = dnnl_post_ops_append_sum(after, 1.0f);
    if (!status && s->add) status = dnnl_primitive_attr_set_post_ops(attr, after);
    if (!status) status = dnnl_primitive_desc_create(&p->desc, &desc, attr, p->engine, NULL);
    if (after) dnnl_post_ops_destroy(after);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t operand(const Bf16Gemm *p, dnnl_query_t which, dnnl_memory_t *out) {
    return dnnl_memory_create(out, dnnl_primitive_desc_query_md(p->desc, which, 0), p->engine, DNNL_MEMORY_NONE);
}

/* oneDNN makes a product for the number of threads that OpenMP has at that moment, and so the caller sets it for
 * descriptor and primitive together: oneDNN 2.6 may answer with the descriptor of a primitive in its cache, which points
 * into another one, freed since. That is never read where the primitive is found in the cache, too: under that number. */
static dnnl_status_t begin(Bf16Gemm *p, const Bf16GemmShape *s) {
    assert(s->m > 0 && s->n > 0 && s->k > 0 && s->threads > 0 && s->c_stride >= s->n);
    assert(s->a_stride >= (s->a_transposed ? s->m : s->k));
    assert(s->packed || s->b_stride >= (s->b_transposed ? s->k : s->n));
    memset(p, 0, sizeof *p);
    p->threads = s->threads;
    dnnl_status_t status = dnnl_engine_create(&p->engine, dnnl_cpu, 0);
    return status ? status : describe(p, s);
}

size_t bf16_gemm_scratch(const Bf16GemmShape *s) {
    Bf16Gemm p;
    const dnnl_memory_desc_t *scratch = NULL;
    size_t bytes = 0;
    const Gemm own = gemm_of(s, NULL, NULL, NULL);
    if (!bf16_gemm_fits()) return gemm_workspace(&own, SIZE_MAX);
    const int threads = threads_take(s->threads);
    if (!begin(&p, s)) scratch = dnnl_primitive_desc_query_md(p.desc, dnnl_query_scratchpad_md, 0);
    if (scratch) bytes = dnnl_memory_desc_get_size(scratch);
    bf16_gemm_close(&p);
    threads_back(threads);
    return bytes;
}

int bf16_gemm_open(Bf16Gemm *p, const Bf16GemmShape *s) {
    *p = (Bf16Gemm){.shape = *s};
    if (!bf16_gemm_fits()) return 0;
    const int threads = threads_take(s->threads);
    dnnl_status_t status = begin(p, s);
    if (!status) status = dnnl_primitive_create(&p->primitive, p->desc);
    threads_back(threads);
    if (!status) status = dnnl_stream_create(&p->stream, p->engine, dnnl_stream_in_order);
    if (!status) status = operand(p, dnnl_query_src_md, &p->a);
    if (!status) status = operand(p, dnnl_query_weights_md, &p->b);
    if (!status) status = operand(p, dnnl_query_dst_md, &p->c);
    if (!status) status = operand(p, dnnl_query_scratchpad_md, &p->scratch);
    return (int)status;
}

static dnnl_status_t point(dnnl_memory_t m, const void *at) {
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)at); /* what is const is only read */
}

int bf16_gemm_run(Bf16Gemm *p, const void *a, const void *b, void *c, void *scratch) {
    const Gemm own = gemm_of(&p->shape, a, b, c);
    assert((uintptr_t)scratch % 64 == 0);
    if (!bf16_gemm_fits()) return gemm_run(&own, scratch, gemm_workspace(&own, SIZE_MAX)), 0;
    assert(p->primitive);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c},
                                    {DNNL_ARG_SCRATCHPAD, p->scratch}};
    const int threads = threads_take(p->threads);
    dnnl_status_t status = point(p->a, a);
    if (!status) status = point(p->b, b);
    if (!status) status = point(p->c, c);
    if (!status) status = point(p->scratch, scratch);
    if (!status) status = dnnl_primitive_execute(p->primitive, p->stream, ARRAY_LEN(args), args);
    if (!status) status = dnnl_stream_wait(p->stream);
    threads_back(threads);
    return (int)status;
}

void bf16_gemm_close(Bf16Gemm *p) {
    const dnnl_memory_t memories[] = {p->a, p->b, p->c, p->scratch};
    for (size_t k = 0; k < ARRAY_LEN(memories); k++)
        if (memories[k]) dnnl_memory_destroy(memories[k]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->desc) dnnl_primitive_desc_destroy(p->desc);
    if (p->stream) dnnl_stream_destroy(p->stream);
    if (p->engine) dnnl_engine_destroy(p->engine);
    memset(p, 0, sizeof *p);
}

/* oneDNN pads to tiles of its instructions. */
size_t bf16_gemm_packed(int64_t n, int64_t k) {
    if (!bf16_gemm_fits()) return (size_t)gemm_packed(n, k) * sizeof(float);
    return align_up((size_t)n, 64) * align_up((size_t)k, 64) * 2;
}

int bf16_gemm_pack(const Bf16Gemm *p, const Bf16GemmShape *s, const void *from, void *to) {
    if (!bf16_gemm_fits()) {
        const Gemm own = gemm_of(s, NULL, from, NULL);
        return gemm_pack(&own, to), 0;
    }
    dnnl_memory_desc_t plain;
    const dnnl_memory_desc_t *inner = dnnl_primitive_desc_query_md(p->desc, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_memory_t source = NULL, target = NULL;
    if (dnnl_memory_desc_get_size(inner) > bf16_gemm_packed(s->n, s->k)) return (int)dnnl_unimplemented;
    dnnl_status_t status = plain_md(&plain, s->k, s->n, DT_BF16, s->b_stride, s->b_transposed);
    if (!status) status = dnnl_reorder_primitive_desc_create(&desc, &plain, p->engine, inner, p->engine, NULL);
    if (!status) status = dnnl_primitive_create(&reorder, desc);
    if (!status) status = dnnl_memory_create(&source, &plain, p->engine, (void *)(uintptr_t)from);
    if (!status) status = dnnl_memory_create(&target, inner, p->engine, to);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}};
    if (!status) status = dnnl_primitive_execute(reorder, p->stream, ARRAY_LEN(args), args);
    if (!status) status = dnnl_stream_wait(p->stream);
    if (target) dnnl_memory_destroy(target);
    if (source) dnnl_memory_destroy(source);
    if (reorder) dnnl_primitive_destroy(reorder);
    if (desc) dnnl_primitive_desc_destroy(desc);
    return (int)status;
}

int bf16_gemm_product(const Bf16GemmShape *s, const void *a, const void *b, void *c, void *scratch) {
    Bf16Gemm p;
    int status = bf16_gemm_open(&p, s);
    if (!status) status = bf16_gemm_run(&p, a, b, c, scratch);
    bf16_gemm_close(&p);
    return status;
}
