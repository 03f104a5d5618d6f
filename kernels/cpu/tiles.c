#include "tiles.h"

/* All channels of as many rows as fit in a BLOCK, or some channels of one row after another. */
static void tile_size(Tile *t, int64_t end) {
    t->cols = min_i64(TILE_COLS, t->channels - t->first);
    t->rows = min_i64(BLOCK / t->cols, end - t->row);
}

bool tile_start_at(Tile *t, int64_t channels, int64_t first, int64_t begin, int64_t end) {
    assert(0 <= first && first < channels && 0 <= begin);
    *t = (Tile){begin, first, 0, 0, channels};
    tile_size(t, end);
    return begin < end;
}

bool tile_start(Tile *t, int64_t channels, int64_t begin, int64_t end) {
    return tile_start_at(t, channels, 0, begin, end);
}

bool tile_next(Tile *t, int64_t begin, int64_t end) {
    t->row += t->rows;
    if (t->row == end) {
        t->row = begin;
        t->first += t->cols;
        if (t->first == t->channels) return false;
    }
    tile_size(t, end);
    return true;
}

static int64_t tile_at(const Tile *t, int64_t row) { return (t->row + row) * t->channels + t->first; }

const float *tile_load(const View *v, const Tile *t, float *scratch, int64_t *stride) {
    *stride = t->channels;
    if (v->dtype == DT_F32) return (const float *)v->data + tile_at(t, 0);
    *stride = t->cols;
    if (t->cols == t->channels) return block_load(v, tile_at(t, 0), t->rows * t->cols, scratch);
    for (int64_t r = 0; r < t->rows; r++) block_load(v, tile_at(t, r), t->cols, scratch + r * t->cols);
    return scratch;
}

float *tile_target(const View *v, const Tile *t, float *scratch, int64_t *stride) {
    float *to = block_target(v, tile_at(t, 0), scratch);
    *stride = to == scratch ? t->cols : t->channels;
    return to;
}

void tile_store(const View *v, const Tile *t, const float *values) {
    if (v->dtype == DT_F32 && values == (const float *)v->data + tile_at(t, 0)) return; /* computed where it lies */
    for (int64_t r = 0; r < t->rows; r++) block_store(v, tile_at(t, r), t->cols, values + r * t->cols);
}

int64_t channel_grain(int64_t channels) { return max_i64(1, 8 * BLOCK / channels); }

static int64_t slab_rows(int64_t rows) { return max_i64(div_up(rows, SLABS), SLAB_ROWS); }

size_t slabs_workspace(int64_t rows, int64_t channels) {
    return (size_t)(div_up(rows, slab_rows(rows)) * SUMS * channels) * sizeof(double);
}

HOT static void add_sums(double *to, const double *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

typedef struct Slabs { const KArgs *a; int64_t rows, grain, n; SlabFn *slab; double *sums; } Slabs;

static void slab_piece(const void *of, int64_t i) {
    const Slabs *s = of;
    double *sums = s->sums + i * s->n;
    memset(sums, 0, (size_t)s->n * sizeof *sums);
    s->slab(s->a, i * s->grain, min_i64((i + 1) * s->grain, s->rows), sums);
}

const double *slabs_run(const KArgs *a, int64_t rows, int64_t channels, SlabFn *slab) {
    assert(rows > 0 && a->workspace_bytes >= slabs_workspace(rows, channels));
    double *sums = a->workspace;
    const int64_t grain = slab_rows(rows), slabs = div_up(rows, grain), n = SUMS * channels;
    const Slabs s = {a, rows, grain, n, slab, sums};
    pieces_run(&s, slabs, slab_piece);
    for (int64_t i = 1; i < slabs; i++) add_sums(sums, sums + i * n, n);
    return sums;
}
