#include "autograd.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "reduce.h"

bool tensor_requires_grad(const Tensor *t) { return t && (t->node || t->leaf); }

/* ---- the graph */

static void apply_accumulate(Eager *g, Node *n, Tensor *const *dy, Tensor **dx);
static const NodeRule accumulate_rule = {"torch::autograd::AccumulateGrad", apply_accumulate};

static Node *new_node(Eager *g, const NodeRule *rule, int n_next, int n_saved, int n_out) {
    /* one block for all, since there are thousands of nodes; what is aligned most comes first */
    const size_t edges = (size_t)n_next * sizeof(Edge), metas = (size_t)n_out * sizeof(Meta);
    const size_t tensors = (size_t)(n_saved + n_out) * sizeof(Tensor *);
    Node *n = scratch_new(&g->scratch, 1, sizeof *n + metas + edges + tensors + (size_t)n_saved * sizeof(int));
    if (!n) return NULL;
    Meta *out = (Meta *)(n + 1);
    Edge *next = (Edge *)(out + n_out);
    Tensor **saved = (Tensor **)(next + n_next);
    int *held = (int *)(saved + n_saved + n_out);
    *n = (Node){.rule = rule, .layer = g->layer, .sequence = ++g->sequence, .refs = 1, .next = next, .n_next = n_next,
                .saved = saved, .n_saved = n_saved, .out = out, .sent = saved + n_saved, .held = held};
    return n;
}

/* The node that takes the gradient of t. That of a parameter stays; another leaf lives as long as nodes that lead to it. */
static Edge edge_of(Eager *g, Tensor *t) {
    if (!tensor_requires_grad(t)) return (Edge){NULL, 0};
    if (!t->node && !t->accumulate && (t->accumulate = new_node(g, &accumulate_rule, 0, 0, 1))) {
        t->accumulate->sequence = LONG_MAX;
        t->accumulate->variable = t->parameter ? t : tensor_ref(t);
        t->accumulate->refs = t->parameter;
        t->accumulate->n_out = 1;
        t->accumulate->out[0] = (Meta){t->size, t->type};
    }
    Node *n = t->node ? t->node : t->accumulate;
    if (n) n->refs++;
    return (Edge){n, t->node ? t->output : 0};
}

enum { NODE_OUTPUTS = 8 };

Node *node_new(Eager *g, const NodeRule *rule, Tensor *const *in, int n_in, int n_saved) {
    bool wanted = false;
    for (int i = 0; i < n_in; i++) wanted |= tensor_requires_grad(in[i]);
    if (!g->grad || !wanted) return NULL;
    Node *n = new_node(g, rule, n_in, n_saved, NODE_OUTPUTS);
    for (int i = 0; n && i < n_in; i++) n->next[i] = edge_of(g, in[i]);
    return n;
}

static bool is_gone(const Frame *f, int number) {
    const Gone *gone = f->gone;
    while (gone && gone->number != number) gone = gone->next;
    return gone != NULL;
}

/* In a checkpoint, in place of saving x as the node's k-th. */
static void save_in_frame(Eager *g, Node *n, int k, Tensor *x) {
    Frame *f = g->frame;
    if (!f->again) {
        if (!n->frame) f->refs++;
        n->frame = f;
        n->held[k] = ++f->counted;
    } else if (f->made < f->counted) {
        *(is_gone(f, f->made) ? &n->saved[k] : &f->again[f->made]) = tensor_detach(g, x);
        f->made++;
        g->halted = f->made == f->counted;
    }
}

/* What a node has saved in a frame, before it runs: the first node that needs it has all of the frame made again. */
static void restore_saved(Eager *g, Node *n) {
    Frame *f = n->frame;
    if (!f) return;
    if (!f->again) f->make_again(g, f);
    for (int k = 0; k < n->n_saved && !g->scratch.failed; k++) {
        if (!n->held[k]) continue;
        assert(n->held[k] <= f->made);
        n->saved[k] = f->again[n->held[k] - 1];
        f->again[n->held[k] - 1] = NULL;
    }
}

/* What a node has saved on the host gets a place on the device, in order. */
static void fetch_saved(Eager *g, Node *n) {
    const Category before = g->category;
    g->category = CAT_ACTIVATIONS;
    eager_op(g, "aten::to");
    for (int k = 0; k < n->n_saved; k++)
        if (n->saved[k] && n->saved[k]->storage->host) tensor_set(g, &n->saved[k], tensor_new(g, n->saved[k]->type, n->saved[k]->size));
    g->category = before;
}

void node_save(Eager *g, Node *n, int k, Tensor *x) {
    if (!n || !x) return;
    assert(k < n->n_saved && !n->saved[k]);
    if (g->frame) save_in_frame(g, n, k, x);
    else n->saved[k] = g->offload ? tensor_to_host(g, x) : tensor_detach(g, x);
}

void node_output(Eager *g, Node *n, Tensor *y) {
    if (!n || y == g->unnamed) return;
    assert(n->n_out < NODE_OUTPUTS && !y->node);
    if (n->n_out) n->refs++; /* the first output takes over the maker's reference */
    y->node = n;
    y->output = n->n_out;
    n->out[n->n_out++] = (Meta){y->size, y->type};
}

void node_hook(Eager *g, const Tensor *y, FsdpUnit *unit) {
    if (!y->node || !g->grad) return;
    Hook **last = &y->node->hooks, *hook = scratch_new(&g->scratch, 1, sizeof *hook);
    if (!hook) return;
    while (*last) last = &(*last)->next;
    *hook = (Hook){unit, y->output, NULL};
    *last = hook;
}

void node_rebase(Eager *g, Node *n, Tensor *y) {
    if (!n) return;
    Node *before = y->node;
    y->node = NULL;
    node_output(g, n, y);
    node_drop(g, before);
}

/* ---- the backward pass */

/* The node that was made last on top. Gradients of parameters are alike, and which of them comes first decides what shares a
 * bucket (ddp.c): so this is the heap that the engine has, std::priority_queue of libstdc++, step by step. */
typedef struct Ready { Node **heap; int n, cap; bool failed; } Ready;

/* Puts a node into the hole at `at`, or where its parents go down into it. */
static void lift(Ready *r, int at, Node *n) {
    for (; at && r->heap[(at - 1) / 2]->sequence < n->sequence; at = (at - 1) / 2) r->heap[at] = r->heap[(at - 1) / 2];
    r->heap[at] = n;
}

static void push(Ready *r, Node *n) {
    if (!mem_grow(&r->heap, &r->cap, r->n + 1, sizeof *r->heap)) {
        r->failed = true;
        return;
    }
    lift(r, r->n++, n);
}

/* The hole goes down to the end, by the right child where both are alike, and the last node is lifted from there. */
static Node *pop(Ready *r) {
    Node *top = r->heap[0], *last = r->heap[--r->n];
    int at = 0;
    for (int child; (child = 2 * at + 2) <= r->n; at = child) {
        if (child == r->n || r->heap[child]->sequence < r->heap[child - 1]->sequence) child--;
        r->heap[at] = r->heap[child];
    }
    lift(r, at, last);
    return top;
}

/* Counts, for each node that is reached, the edges that lead to it. */
static void count_waits(Ready *r, Node *root) {
    root->seen = true;
    push(r, root);
    while (r->n && !r->failed) {
        Node *n = r->heap[--r->n]; /* whatever the order */
        for (int i = 0; i < n->n_next; i++) {
            Node *next = n->next[i].node;
            if (!next) continue;
            next->waits++;
            if (!next->seen) push(r, next);
            next->seen = true;
        }
    }
}

/* Makes a gradient what the tensor is: broadcast dimensions are summed up, types converted. Takes and gives a
 * reference. */
static Tensor *validated(Eager *g, const Meta *meta, Tensor *d) {
    if (!size_equal(&meta->size, &d->size)) {
        Tensor *sum = aten_sum_to(g, d, meta->size);
        tensor_drop(g, d);
        d = sum;
    }
    if (meta->type != d->type) {
        eager_op(g, "aten::_to_copy");
        READS(g, d);
        Tensor *cast = tensor_like(g, d, meta->type);
        tensor_drop(g, d);
        d = cast;
    }
    return d;
}

/* Takes over the reference. */
static void send(Eager *g, Ready *r, const Edge *e, Tensor *d) {
    Node *n = e->node;
    Tensor **sent = &n->sent[e->output];
    if (d && !*sent) {
        *sent = d;
    } else if (d) {
        if (!tensor_is_only(*sent) || !tensor_is_dense(*sent)) {
            eager_op(g, "aten::add");
            READS(g, *sent, d);
            tensor_set(g, sent, tensor_like(g, *sent, (*sent)->type));
        } else {
            eager_inplace(g, "aten::add_", *sent, d);
        }
        tensor_drop(g, d);
    }
    if (--n->waits == 0) {
        n->seen = false;
        push(r, n);
    }
}

static void run_node(Eager *g, Ready *r, Node *n) {
    Tensor *dx[NODE_EDGES] = {NULL};
    bool any = false;
    assert(n->n_next <= NODE_EDGES);
    eager_where(g, n->layer, n->rule->name);
    for (int k = 0; k < n->n_out; k++) any |= n->sent[k] != NULL;
    for (const Hook *hook = n->hooks; hook; hook = hook->next)
        if (n->sent[hook->output]) g->hooks.output(g, hook->unit);
    if (any) restore_saved(g, n);
    if (any && g->offload) fetch_saved(g, n);
    if (g->scratch.failed) return;
    if (any) n->rule->apply(g, n, n->sent, dx);
    if (n->frame || g->offload) node_drop_saved(g, n); /* what was made again is held by the call alone */
    for (int i = 0; i < n->n_next; i++)
        if (dx[i]) dx[i] = validated(g, &n->next[i].node->out[n->next[i].output], dx[i]);
    for (int k = 0; k < n->n_out; k++) tensor_set(g, &n->sent[k], NULL);
    node_drop_saved(g, n);
    node_drop_frame(g, n);
    for (int i = 0; i < n->n_next; i++)
        if (n->next[i].node) send(g, r, &n->next[i], dx[i]);
}

/* The first gradient is taken over where nobody else holds it and it lies as the parameter does; else it is copied.
 * Later ones are added in place. */
static void accumulate(Eager *g, Tensor *p, Tensor *d) {
    if (p->grad) {
        eager_inplace(g, "aten::add_", p->grad, d);
    } else if (d->refs == 1 && tensor_same_strides(d, p)) {
        p->grad = tensor_detach(g, d);
        if (d->storage->traced >= 0) g->trace->tensors[d->storage->traced].category = CAT_GRADIENTS;
    } else {
        eager_op(g, "aten::clone");
        READS(g, d);
        g->category = CAT_GRADIENTS;
        p->grad = tensor_like(g, p, p->type);
        g->category = CAT_ACTIVATION_GRADIENTS;
    }
}

static void apply_accumulate(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    (void)dx;
    accumulate(g, n->variable, dy[0]);
    if (g->hooks.gradient && n->variable->parameter) g->hooks.gradient(g, n->variable);
}

void backward(Eager *g, Tensor *loss, Tensor *gradient) {
    const Eager before = *g;
    Ready r = {0};
    g->grad = g->autocast = false;
    g->category = CAT_ACTIVATION_GRADIENTS;
    eager_where(g, NULL, NULL);
    eager_op(g, "aten::ones_like");
    Tensor *root = gradient ? tensor_ref(gradient) : tensor_like(g, loss, loss->type);
    g->thread = THREAD_AUTOGRAD;
    if (loss->node && !g->scratch.failed) {
        count_waits(&r, loss->node);
        loss->node->waits++;
        send(g, &r, &(Edge){loss->node, loss->output}, tensor_ref(root));
        while (r.n && !r.failed && !g->scratch.failed) run_node(g, &r, pop(&r));
    }
    if (r.failed) g->scratch.failed = true;
    mem_free(r.heap);
    eager_where(g, NULL, NULL);
    if (g->hooks.end && !g->scratch.failed) g->hooks.end(g);
    tensor_drop(g, root);
    g->grad = before.grad;
    g->autocast = before.autocast;
    g->category = before.category;
    g->thread = before.thread;
    eager_where(g, before.layer, NULL);
}
