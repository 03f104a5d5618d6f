/* The setting "sliced_updates": into how many slices of rows each large weight is cut (slice_updates.c).
 *
 * Slices change the order of sums. So nothing that must not change bits may have a say: this looks at what is alive without any
 * workspace, which the number of threads changes, and before other passes choose. It cuts a weight into slices of one size, as few
 * as bring the peak to what other ops will need, since small products are slower; and it cuts none if the peak falls by less than a
 * hundredth. */
#include "slice_updates.h"
#include "whatif.h"

/* OTHERS: passes that choose later may lower the peak of other ops by one part in so many. */
enum { WORTH = 100, OTHERS = 10, MOST_SLICES = 16 };

static size_t persistent_bytes(const Program *p) {
    size_t bytes = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].kind == BUF_PERSISTENT && !p->bufs[b].host) bytes += p->bufs[b].bytes;
    return bytes;
}

/* The bytes that are alive by op, of which take_out leaves those beside large gradients */
typedef struct Rest { const Life *life; size_t *live; } Rest;

static size_t bytes_of(const Find *f, int buf) { return align_up(f->p->bufs[buf].bytes, f->alignment); }

/* Bytes of the op's input that no longer live at op `at` */
static size_t ended(const Find *f, const Rest *r, int buf, int at) {
    return r->life[program_root(f->p, buf)].last < at ? bytes_of(f, buf) : 0;
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
        l->beside = r->live[l->at] + ended(f, r, maker->linear_dw.x, l->at) + ended(f, r, maker->linear_dw.dy, l->at);
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

/* finished: the program as it will be if nothing is cut and nothing leaves the device's memory; loses the bytes of its workspace. */
static void choose_by(Program *p, Program *finished, Compile *c) {
    Scratch *s = &c->scratch;
    Find f = slices_find_new(finished, c, s);
    Life *life = scratch_new(s, (size_t)finished->n_bufs, sizeof *life);
    size_t *live = scratch_new(s, (size_t)finished->n_ops, sizeof *live);
    if (s->failed) return;
    slices_find(&f, persistent_bytes(finished) / WORTH);
    if (!f.n) return;
    for (int b = 0; b < finished->n_bufs; b++)
        if (finished->bufs[b].category == CAT_WORKSPACE) finished->bufs[b].bytes = 0;
    const size_t before = placement_live(finished, f.alignment, life, live), after = choose(&f, &(Rest){life, live});
    for (int k = 0; k < f.n && after <= before - before / WORTH; k++)
        p->params[finished->bufs[finished->ops[f.large[k].update].out[0]].param].slices = f.large[k].slices;
}

int pass_choose_slices(Program *p, Compile *c) {
    const Settings *set = c->settings;
    Program *finished;
    if (!set->sliced_updates || set->eval || set->accumulate > 1 || p->forward_end == p->n_ops || optimizer_is_paged(set->optimizer.kind) ||
        !has_large(p))
        return OK;
    const int code = whatif(p, NULL, NULL, c, &finished, NULL);
    if (code) return code;
    choose_by(p, finished, c);
    program_free(finished);
    return OK;
}
