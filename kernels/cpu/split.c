#include "split.h"

#include "base/base.h"

/* PIECES: at most, but for images without such a divisor; PIECE_MACS: multiply-adds that pay for a piece; SLICE: the
 * channels of a slice are a multiple of it, and at least LEAST_SLICE. */
enum { PIECES = 16, PIECE_MACS = 1 << 20, SLICE = 16, LEAST_SLICE = 64 };

/* What a piece costs beside its multiply-adds, in those: to add up one of its weights' gradients, and to read one number of
 * the image again, in another slice. THREADS: for which the best way to cut a sum is looked for. */
enum { MACS_PER_SUM = 64, MACS_PER_READ = 24, THREADS = 4 };

static int64_t slices_after(const Work *w, int64_t slices) {
    for (slices *= 2; slices <= PIECES; slices *= 2)
        if (w->channels % (slices * SLICE) == 0 && w->channels / slices >= LEAST_SLICE) return slices;
    return 0;
}

/* A divisor of the images: the least that is not below `wanted`, or the largest below it if that would be more than `most`. */
static int64_t parts_near(int64_t images, int64_t wanted, int64_t most) {
    int64_t below = 1;
    for (int64_t n = 1; n <= images; n++) {
        if (images % n) continue;
        if (n >= wanted) return n <= most ? n : below;
        below = n;
    }
    return below;
}

/* In multiply-adds, as long as THREADS threads take */
static double cost(const Work *w, int64_t parts, int64_t slices) {
    const double more = parts > 1 ? (double)MACS_PER_SUM * (double)(parts * w->weights) : 0;
    const double all = (double)w->macs + more + (double)MACS_PER_READ * (double)((slices - 1) * w->read);
    return all / (double)min_i64(THREADS, parts * slices);
}

Split split_work(const Work *w) {
    /* A prime number of images has pieces of one: slices of all of them would be copied, which takes their memory once more. */
    const int64_t paying = w->macs / PIECE_MACS, most = max_i64(1, min_i64(PIECES, paying));
    int64_t parts = w->sums ? 1 : parts_near(w->images, most, max_i64(4 * most, paying)), slices = 1;
    double least = cost(w, 1, 1);
    for (int64_t s = 1; s && !w->sums && parts * s <= most; s = slices_after(w, s)) slices = s;
    for (int64_t s = 1; s && w->sums; s = slices_after(w, s))
        for (int64_t n = 1; n * s <= most; n *= 2) {
            const int64_t p = parts_near(w->images, n, max_i64(4 * n, paying));
            if (cost(w, p, s) >= least) continue;
            least = cost(w, p, s), parts = p, slices = s;
        }
    return (Split){w->images / parts, parts, w->channels / slices, slices};
}

/* Rows first: each piece then reads all of the second factor, but rows of the first one and of the product lie together. */
Split split_product(int64_t m, int64_t n, int64_t k) {
    enum { ROWS = 96, COLUMNS = 128, WANTED = 8 };
    const int64_t most = max_i64(1, min_i64(WANTED, (int64_t)((double)m * (double)n * (double)k / PIECE_MACS)));
    const int64_t rows = max_i64(1, min_i64(most, m / ROWS)), parts = parts_near(m, rows, 4 * rows);
    const int64_t columns = max_i64(1, min_i64(most / parts, n / COLUMNS)), slices = parts_near(n, columns, 4 * columns);
    return (Split){m / parts, parts, n / slices, slices};
}
