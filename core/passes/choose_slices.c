/* The setting "sliced_updates": into how many slices of rows each large weight is cut (slice_updates.c).
 *
 * Slices change the order of sums. So nothing that must not change bits may have a say: this comes before other passes choose, and
 * looks at what is alive without any workspace, which with a budget in bytes is that of all threads. It cuts a weight into slices of
 * one size, as few as bring the peak to what other ops will need, since small products are slower; and it cuts none if the peak falls
 * by less than a hundredth. */
#include "slice_updates.h"
#include "whatif.h"

/* OTHERS: passes that choose later may lower the peak of other ops by one part in so many. */
enum { OTHERS = 10, MOST_SLICES = 16 };

static size_t persistent_bytes(const Program *p) {
    size_t bytes = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].kind == BUF_PERSISTENT && !p->bufs[b].host) bytes += p->bufs[b].bytes;
    return bytes;
}

/* The bytes that are alive by op, of which take_out leaves those beside large gradients */
typedef struct Rest { const Life *life; size_t *live; } Rest;

static size_t bytes_of(const Find *f, int buf) { return align_up(f->p->bufs[buf].bytes, f->alignment); }

/* Bytes of an input of the gradient's op that is not there any more at op l->at: it has ended, or another op has its storage. */
static size_t ended(const Find *f, const Rest *r, const Large *l, int buf) {
    const int root = program_root(f->p, buf);
    bool gone = r->life[root].last < l->at;
    for (int i = l->maker + 1; i <= l->at && !gone; i++)
        EACH_OUT(&f->p->ops[i], k) gone |= program_root(f->p, f->p->ops[i].out[k]) == root;
    return gone ? bytes_of(f, buf) : 0;
}

static void take_out(Find *f, const Rest *r) {
    for (int k = 0; k < f->n; k++) {
        Large *l = &f->large[k];
        const Op *maker = &f->p->ops[l->maker];
        for (int i = l->maker; i <= l->update; i++) l->whole = max_size(l->whole, r->live[i]);
        l->divided = bytes_of(f, maker->linear_dw.dw) + bytes_of(f, maker->linear_dw.dy);
    }
    for (int k = 0; k < f->n; k++)
        for (int i = f->large[k].maker; i <= f->large[k].update; i++) r->live[i] -= bytes_of(f, f->p->ops[f->large[k].maker].linear_dw.dw);
    for (int k = 0; k < f->n; k++) {
        Large *l = &f->large[k];
        const Op *maker = &f->p->ops[l->maker];
        l->beside = r->live[l->at] + ended(f, r, l, maker->linear_dw.x) + ended(f, r, l, maker->linear_dw.dy);
    }
}

/* Alive at most while the gradient, or a slice of it, is */
static size_t alive(const Large *l, int slices) { return slices == 1 ? l->whole : l->beside + l->divided / (size_t)slices; }

/* The least that is alive while a slice of it is, by any number of slices */
static size_t lowest(const Find *f, const Large *l) {
    size_t least = l->whole;
    for (int n = 2; n <= MOST_SLICES; n *= 2)
        if (slices_divide(f, &f->p->ops[l->update], n)) least = min_size(least, alive(l, n));
    return least;
}

/* Gives each large gradient as few slices as bring the peak as low as it can be, or all but so. Returns the peak. */
static size_t choose(Find *f, const Rest *r) {
    size_t least = 0, peak;
    take_out(f, r);
    for (int i = 0; i < f->p->n_ops; i++) least = max_size(least, r->live[i]);
    peak = least;
    for (int k = 0; k < f->n; k++) {
        Large *l = &f->large[k];
        const size_t low = lowest(f, l), goal = max_size(least - least / OTHERS, low + low / WORTH);
        for (int n = 2; n <= MOST_SLICES && alive(l, l->slices) > goal; n *= 2)
            if (slices_divide(f, &f->p->ops[l->update], n) && alive(l, n) <= goal) l->slices = n;
        peak = max_size(peak, alive(l, l->slices));
    }
    return peak;
}

/* Might a weight be worth it? Cheap, and before there are updates. */
static bool has_large(const Program *p) {
    size_t all = 0, most = 0;
    for (int i = 0; i < p->n_params; i++) {
        const Buf *w = &p->bufs[p->params[i].weight];
        all += w->bytes;
        if (p->params[i].grad != NO_BUF && w->shape.rank > 1) most = max_size(most, p->bufs[p->params[i].grad].bytes);
    }
    return most >= all / WORTH;
}

/* The program as it will be if nothing leaves the device's memory, which the caller frees; without the bytes of its workspace. */
static int finish(const Program *p, Compile *c, Program **finished) {
    const int code = whatif(p, NULL, NULL, c, finished, NULL);
    for (int b = 0; !code && b < (*finished)->n_bufs; b++)
        if ((*finished)->bufs[b].category == CAT_WORKSPACE) (*finished)->bufs[b].bytes = 0;
    return code;
}

/* Sets the parameters' slices. *before: the peak of `finished`, in which nothing is cut. Returns whether there are any. */
static bool choose_by(Program *p, const Program *finished, Compile *c, size_t *before) {
    Scratch *s = &c->scratch;
    Find f = slices_find_new(finished, c, s);
    if (s->failed) return false;
    slices_find(&f, persistent_bytes(finished) / WORTH);
    if (!f.n) return false;
    const Alive alive = placement_alive(finished, f.alignment, s);
    *before = alive.most;
    if (s->failed || !is_worth(*before, choose(&f, &(Rest){alive.life, alive.live}))) return false;
    for (int k = 0; k < f.n; k++) p->params[finished->bufs[finished->ops[f.large[k].update].out[0]].param].slices = f.large[k].slices;
    return true;
}

/* Takes all slices back if the peak is not lower with them, since they leave less to be computed in place. */
static int judge(Program *p, size_t before, Compile *c) {
    Program *finished;
    const int code = finish(p, c, &finished);
    if (code) return code;
    const bool lower = is_worth(before, placement_alive(finished, c->device->table->alignment, &c->scratch).most);
    for (int i = 0; i < p->n_params && !lower; i++) p->params[i].slices = 0;
    program_free(finished);
    return OK;
}

int pass_choose_slices(Program *p, Compile *c) {
    const Settings *set = c->settings;
    Program *finished;
    size_t before;
    if (!set->sliced_updates || set->eval || set->accumulate > 1 || p->forward_end == p->n_ops || optimizer_is_paged(set->optimizer.kind) ||
        !has_large(p))
        return UNCHANGED;
    const int code = finish(p, c, &finished);
    if (code) return code;
    const bool any = choose_by(p, finished, c, &before);
    program_free(finished);
    return any ? judge(p, before, c) : OK;
}
