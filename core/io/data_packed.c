/* Sequences of tokens of different lengths, several in a row of `window` tokens. Two datasets hold the rows: the tokens, with
 * the labels as targets, and the tokens' positions within their sequences, by which attention tells sequences apart. A label is
 * the token that comes next in the sequence; a sequence's last token has none. What is left of a row is one more sequence, of
 * padding, without labels.
 *
 * Wrapped: sequences fill one row after the other, and are cut where a row ends: each piece begins at position 0. Otherwise no
 * sequence is cut that is not longer than a row; by decreasing length each goes into the fullest row that has room for it
 * (best fit decreasing). */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "data_private.h"
#include "base/mem.h"
#include "base/scratch.h"

enum { TOKENS_MAX = 1 << 24 }; /* samples are handed out in fp32 */

/* Tokens that are consecutive in a sequence and in a row. from: the first one, among all tokens; ends: with the sequence; to:
 * its place among those of all rows */
typedef struct Piece { int64_t from, length, to; bool ends; } Piece;

typedef struct Rows {
    const Sequences *of;
    const Packing *how;
    int64_t *begin;     /* [sequences] of each its first token */
    int64_t *order;     /* [sequences] in which they are packed */
    Piece *piece;
    int64_t n_pieces, count; /* rows */
    Scratch scratch;
} Rows;

static int check_sequences(const Sequences *of, const Packing *how, int64_t *total, Err *e) {
    *total = 0;
    if (how->window < 1 || how->window > INT32_MAX)
        return err_set(e, ERR_SCRIPT, "packed: expected a window of at least 1 token, found %" PRId64, how->window);
    if (of->count < 1) return err_set(e, ERR_SCRIPT, "packed: expected at least 1 sequence, found none");
    if (how->tokens < 1 || how->tokens > TOKENS_MAX)
        return err_set(e, ERR_SCRIPT, "packed: expected 1 to %d tokens, found %d", TOKENS_MAX, how->tokens);
    if (how->pad < 0 || how->pad >= how->tokens)
        return err_set(e, ERR_SCRIPT, "packed: pad: expected a token below %d, found %d", how->tokens, how->pad);
    if (how->ignore_index >= 0 && how->ignore_index < how->tokens)
        return err_set(e, ERR_SCRIPT, "packed: ignore_index: expected a number that is no token, found %d", how->ignore_index);
    for (int64_t s = 0; s < of->count; s++) {
        if (of->length[s] < 1) return err_set(e, ERR_SCRIPT, "packed: sequence %" PRId64 " is empty", s + 1);
        for (int64_t k = *total; k < *total + of->length[s]; k++)
            if (of->token[k] < 0 || of->token[k] >= how->tokens)
                return err_set(e, ERR_SCRIPT, "packed: sequence %" PRId64 ", place %" PRId64 ": expected a token below %d, found %d",
                               s + 1, k - *total + 1, how->tokens, of->token[k]);
        *total += of->length[s];
    }
    return OK;
}

/* Cuts sequence s into pieces: the first of `first` tokens at most, the others of a row's. */
static void cut(Rows *r, int64_t s, int64_t first) {
    int64_t left = r->of->length[s], from = r->begin[s], n;
    for (int64_t most = first; left > 0; left -= n, from += n, most = r->how->window) {
        n = min_i64(left, most);
        r->piece[r->n_pieces++] = (Piece){from, n, 0, n == left};
    }
}

/* One piece after the other */
static void wrap(Rows *r) {
    int64_t used = 0;
    for (int64_t k = 0; k < r->of->count; k++) {
        const int64_t before = r->n_pieces;
        cut(r, r->order[k], r->how->window - used % r->how->window);
        for (int64_t i = before; i < r->n_pieces; i++) {
            r->piece[i].to = used;
            used += r->piece[i].length;
        }
    }
    r->count = (used + r->how->window - 1) / r->how->window;
}

/* Rows with the same room are a list, the one that came last in front. */
static void fit(Rows *r) {
    const int64_t window = r->how->window;
    for (int64_t k = 0; k < r->of->count; k++) cut(r, r->order[k], window);
    int64_t *with_room = scratch_new(&r->scratch, (size_t)window + 1, sizeof *with_room); /* 1 + a row, 0: none */
    int64_t *next = scratch_new(&r->scratch, (size_t)r->n_pieces, sizeof *next);          /* by row, the same */
    int64_t *first = scratch_new(&r->scratch, (size_t)window + 1, sizeof *first);         /* by length: 1 + a piece, 0: none */
    int64_t *after = scratch_new(&r->scratch, (size_t)r->n_pieces, sizeof *after);        /* by piece, the same */
    if (r->scratch.failed) return;
    for (int64_t i = r->n_pieces - 1; i >= 0; i--) {
        after[i] = first[r->piece[i].length];
        first[r->piece[i].length] = i + 1;
    }
    for (int64_t length = window; length > 0; length--)
        for (int64_t i = first[length]; i; i = after[i - 1]) {
            int64_t room = length;
            while (room < window && !with_room[room]) room++;
            const int64_t row = room < window ? with_room[room] - 1 : r->count++;
            if (room < window) with_room[room] = next[row];
            r->piece[i - 1].to = row * window + window - room;
            next[row] = with_room[room - length];
            with_room[room - length] = row + 1;
        }
}

static int arrange(Rows *r, int64_t total, Err *e) {
    const size_t n = (size_t)r->of->count;
    r->begin = scratch_new(&r->scratch, n, sizeof *r->begin);
    r->order = scratch_new(&r->scratch, n, sizeof *r->order);
    r->piece = scratch_new(&r->scratch, n + (size_t)(total / r->how->window) + 1, sizeof *r->piece);
    if (r->scratch.failed) return data_no_memory("packed", n * sizeof(Piece), e);
    int64_t begin = 0;
    for (int64_t s = 0; s < r->of->count; s++) {
        r->order[s] = s;
        r->begin[s] = begin;
        begin += r->of->length[s];
    }
    if (r->how->shuffle) data_permute(r->order, r->of->count, r->how->seed, 0);
    (r->how->wrapped ? wrap : fit)(r);
    return r->scratch.failed ? data_no_memory("packed", (size_t)total * sizeof(int64_t), e) : OK;
}

/* A dataset of the rows, whose numbers the caller fills in; NULL: no memory. */
static Dataset *start_rows(const Rows *r, const char *kind, int32_t **values, Err *e) {
    const size_t bytes = (size_t)(r->count * r->how->window) * sizeof **values;
    Dataset *d = dataset_start(kind, e);
    DataPart *p = d ? dataset_part(d, e) : NULL;
    if (p && !(p->bytes = mem_new(bytes))) data_no_memory(kind, bytes, e);
    if (!p || !p->bytes) {
        dataset_free(d);
        return NULL;
    }
    d->count = r->count;
    d->sample = shape1(r->how->window);
    d->type = &data_types[DATA_I32];
    p->stride = r->how->window * (int64_t)sizeof **values;
    *values = (int32_t *)(void *)p->bytes;
    return d;
}

static void fill(const Rows *r, int32_t *ids, int32_t *labels, int32_t *positions) {
    const int64_t window = r->how->window, n = r->count * window;
    for (int64_t i = 0; i < n; i++) ids[i] = r->how->pad, labels[i] = r->how->ignore_index, positions[i] = -1;
    for (int64_t k = 0; k < r->n_pieces; k++) {
        const Piece *p = &r->piece[k];
        const int32_t *from = r->of->token + p->from;
        for (int64_t i = 0; i < p->length; i++) {
            ids[p->to + i] = from[i];
            positions[p->to + i] = (int32_t)i;
            if (i + 1 < p->length || !p->ends) labels[p->to + i] = from[i + 1];
        }
    }
    for (int64_t i = 0, pad = 0; i < n; i++) {
        pad = i % window ? pad : 0;
        if (positions[i] < 0) positions[i] = (int32_t)pad++;
    }
}

static int make_rows(const Rows *r, Packed *out, Err *e) {
    const size_t places = (size_t)(r->count * r->how->window);
    int32_t *ids, *positions, most = 0;
    if (r->count > (int64_t)(DATA_MAX / sizeof *ids) / r->how->window)
        return err_set(e, ERR_SCRIPT, "packed: %" PRId64 " rows of %" PRId64 " tokens are too many", r->count, r->how->window);
    Dataset *d = start_rows(r, "packed", &ids, e);
    if (!d) return ERR_HOST_MEMORY;
    int32_t *labels = d->t = mem_new(places * sizeof *labels);
    if (!labels) return dataset_finish(d, data_no_memory("packed", places * sizeof *labels, e), &out->ids, e);
    Dataset *of_positions = start_rows(r, "positions", &positions, e);
    if (!of_positions) return dataset_finish(d, ERR_HOST_MEMORY, &out->ids, e);
    fill(r, ids, labels, positions);
    for (size_t i = 0; i < places; i++) most = positions[i] > most ? positions[i] : most;
    d->target = d->sample;
    d->tokens = d->classes = r->how->tokens;
    of_positions->tokens = most + 1;
    int code = dataset_finish(d, OK, &out->ids, e);
    code = dataset_finish(of_positions, code, &out->positions, e);
    if (code && out->ids) {
        dataset_free(out->ids);
        out->ids = NULL;
    }
    return code;
}

int dataset_packed(const Sequences *of, const Packing *how, Packed *out, Err *e) {
    int64_t total, longest = 0;
    *out = (Packed){NULL, NULL, of->count, 0, 0, 0};
    int code = check_sequences(of, how, &total, e);
    if (code) return code;
    Rows r = {.of = of, .how = how};
    code = arrange(&r, total, e);
    if (!code) code = make_rows(&r, out, e);
    for (int64_t s = 0; s < of->count; s++) longest = of->length[s] > longest ? of->length[s] : longest;
    out->tokens = total;
    out->padding = r.count * how->window - total;
    out->padded = of->count * longest - total;
    scratch_release(&r.scratch, NULL);
    return code;
}
