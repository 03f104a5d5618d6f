/* The verifier. It runs after lowering and after every pass that does something, in every build. */
#include <string.h>

#include "base/mem.h"
#include "rule.h"

typedef struct Check {
    const Program *p;
    const char *after; /* the pass that has run */
    Err *e;
    int op;       /* index of the op that is checked */
    int *made;    /* by buffer: the op that has given it a value, 0 where it had one before the step; NO_OP: none yet */
    int *content; /* by buffer: a number for the value that was written into it; a view has its source's */
    int *current; /* by root buffer: the number of the value that its storage has now */
    int *begun;   /* by root buffer: the op under way that has it, NO_OP: none */
} Check;

static int bad(const Check *c, const char *what, int buf) {
    const Op *op = &c->p->ops[c->op];
    return err_set(c->e, ERR_INTERNAL, "after %s: op %d %s %s: %s%s%s", c->after, c->op, op_info(op->kind)->name,
                   op->path, what, buf == NO_BUF ? "" : ": ", buf == NO_BUF ? "" : c->p->bufs[buf].name);
}

static int check_operands(const Check *c, const Op *op) {
    const OpInfo *info = op_info(op->kind);
    for (int k = 0; k < OP_IN; k++) {
        if (op->in[k] < NO_BUF || op->in[k] >= c->p->n_bufs) return bad(c, "input out of range", NO_BUF);
        if (k >= info->n_in ? op->in[k] != NO_BUF : op->in[k] == NO_BUF && !info->in[k].optional)
            return bad(c, k >= info->n_in ? "too many inputs" : "an input is missing", NO_BUF);
    }
    for (int k = 0; k < OP_OUT; k++) {
        if (op->out[k] < NO_BUF || op->out[k] >= c->p->n_bufs) return bad(c, "output out of range", NO_BUF);
        if (k >= info->n_out ? op->out[k] != NO_BUF : op->out[k] == NO_BUF && !info->out[k].optional)
            return bad(c, k >= info->n_out ? "too many outputs" : "an output is missing", NO_BUF);
    }
    return OK;
}

/* A copy goes from the device to host memory or back; no other op works on host memory. */
static int check_host(const Check *c, const Op *op) {
    bool from = false, to = false;
    EACH_IN(op, k) from |= c->p->bufs[op->in[k]].host;
    EACH_OUT(op, k) to |= c->p->bufs[op->out[k]].host;
    if (op->kind == OP_copy ? from != to : op->kind == OP_wait || (!from && !to)) return OK; /* a wait may be for a copy */
    return bad(c, op->kind == OP_copy ? "copies within one memory" : "works on host memory", op->out[0]);
}

/* ---- ops that are only begun: until the wait nothing reads what they make, or changes what they have */

/* The op under way that makes the buffer's storage, or NO_OP. */
static bool is_made_now(const Check *c, int buf) {
    const int op = c->begun[program_root(c->p, buf)];
    return op != NO_OP && program_root(c->p, c->p->ops[op].out[0]) == program_root(c->p, buf);
}

static void set_begun(const Check *c, const Op *op, int to) {
    const int has[] = {op->in[0], op->out[0], op->workspace};
    for (size_t i = 0; i < ARRAY_LEN(has); i++)
        if (has[i] != NO_BUF) c->begun[program_root(c->p, has[i])] = to;
}

/* A wait ends the op that makes its y, and has all that this has. */
static int check_wait(const Check *c, const Op *op) {
    if (!is_made_now(c, op->wait.y)) return bad(c, "waits for what is not under way", op->wait.y);
    const Op *of = &c->p->ops[c->begun[program_root(c->p, op->wait.y)]];
    const bool apart = of->in[0] != NO_BUF && program_root(c->p, of->in[0]) != program_root(c->p, of->out[0]);
    if (op->wait.x != (apart ? of->in[0] : NO_BUF) || op->wait.room != of->workspace)
        return bad(c, "waits for less than the op has", op->wait.y);
    set_begun(c, of, NO_OP);
    return OK;
}

/* None is under way, or none that exchanges. */
static int check_over(const Check *c, bool exchanges) {
    for (int b = 0; b < c->p->n_bufs; b++)
        if (c->begun[b] != NO_OP && (!exchanges || op_exchanges(c->p->ops[c->begun[b]].kind)))
            return err_set(c->e, ERR_INTERNAL, "after %s: op %d is begun, and none waits for it: %s", c->after, c->begun[b], c->p->bufs[b].name);
    return OK;
}

/* Before an op: no other has in hand what it writes, and none is under way where the op's own kernel exchanges. */
static int check_undisturbed(const Check *c, const Op *op) {
    if (op->kind == OP_wait || op->kind == OP_view) return OK; /* neither computes */
    if (attr_exchanges(op->kind, &op->attr) && check_over(c, true)) return ERR_INTERNAL;
    EACH_OUT(op, k)
        if (c->begun[program_root(c->p, op->out[k])] != NO_OP) return bad(c, "writes what an op has that is under way", op->out[k]);
    if (op->begun && op->kind == OP_copy && c->begun[program_root(c->p, op->in[0])] != NO_OP)
        return bad(c, "begins to read what an op has that is under way", op->in[0]);
    return OK;
}

static int check_reads(const Check *c, const Op *op) {
    const Program *p = c->p;
    EACH_IN(op, k) {
        int b = op->in[k];
        if (op->kind != OP_wait && is_made_now(c, b)) return bad(c, "reads what is still under way", b);
        if (c->made[b] == NO_OP) return bad(c, "reads a buffer that no op before it has written", b);
        if (c->current[program_root(p, b)] != c->content[b]) return bad(c, "reads storage that was overwritten", b);
        if ((p->parts || p->micro_batches > 1) && c->op >= p->body_end && c->made[b] < p->body_end &&
            p->bufs[b].kind == BUF_TEMP && !p->bufs[b].carried)
            return bad(c, "reads a temporary of the last micro-batch only", b);
    }
    return OK;
}

/* `out` is in the storage of another buffer. Only output 0 may be, in that of the input which ops.def allows. */
static int check_inplace(const Check *c, const Op *op, int out) {
    const Program *p = c->p;
    int allowed = op_info(op->kind)->inplace, root = program_root(p, out);
    if (allowed == NEVER || op->out[0] != out || program_root(p, op->in[allowed]) != root)
        return bad(c, "writes into the storage of another buffer", out);
    if (p->bufs[root].kind != BUF_TEMP && op->kind != OP_view) return bad(c, "overwrites an input or parameter", out);
    EACH_IN(op, k)
        if (k != allowed && program_root(p, op->in[k]) == root)
            return bad(c, "overwrites another of its inputs", out);
    return OK;
}

/* What lasts, is carried, or was copied to the device for this, and is there still */
static bool can_be_updated(const Check *c, int b) {
    const Buf *storage = &c->p->bufs[program_root(c->p, b)];
    const bool fetched = c->made[b] != NO_OP && c->p->ops[c->made[b]].kind == OP_copy && c->p->ops[c->made[b]].out[0] == b;
    return storage->kind == BUF_PERSISTENT || storage->carried || is_made_now(c, b) || (fetched && c->current[program_root(c->p, b)] == b);
}

static int check_write(Check *c, const Op *op, int k) {
    const Program *p = c->p;
    int b = op->out[k], root;
    if (b == NO_BUF || op->kind == OP_wait) return OK; /* what it waits for has made it */
    const Buf *buf = &p->bufs[b];
    if (op_info(op->kind)->out[k].updated) {
        if (!can_be_updated(c, b)) return bad(c, "updates a buffer that does not last", b);
        c->made[b] = c->op;
        return OK;
    }
    if (buf->kind == BUF_PERSISTENT && buf->host && !buf->constant) return OK; /* op is a copy (check_host), which updates it */
    if (buf->kind != BUF_TEMP || buf->carried) return bad(c, "writes over a buffer that lasts", b);
    if (c->made[b] != NO_OP) return bad(c, "writes a buffer that another op has written", b);
    root = program_root(p, b);
    if (root != b && check_inplace(c, op, b)) return ERR_INTERNAL;
    c->made[b] = c->op;
    c->content[b] = op->kind == OP_view ? c->content[op->view.x] : b;
    c->current[root] = c->content[b];
    return OK;
}

static int check_buffers(const Program *p, const char *after, Err *e) {
    for (int i = 0; i < p->n_bufs; i++) {
        const Buf *b = &p->bufs[i];
        int64_t n;
        if (shape_count(&b->shape, &n, e)) return err_prefix(e, "after %s: %s", after, b->name);
        if (b->shard.count < 0 || b->shard.first < 0 || b->shard.first + b->shard.count > n)
            return err_set(e, ERR_INTERNAL, "after %s: the shard of %s is outside of it", after, b->name);
        n = program_elements(b);
        if (b->category != CAT_WORKSPACE && b->bytes != (size_t)n * dtype_size(b->dtype))
            return err_set(e, ERR_INTERNAL, "after %s: %s has %zu bytes, its shape wants %zu", after, b->name, b->bytes,
                           (size_t)n * dtype_size(b->dtype));
        if (b->alias != NO_BUF && (b->alias >= p->n_bufs || p->bufs[b->alias].alias != NO_BUF ||
                                   p->bufs[b->alias].bytes < program_offset(p, i) + b->bytes))
            return err_set(e, ERR_INTERNAL, "after %s: %s shares the storage of a buffer that cannot hold it", after,
                           b->name);
    }
    return OK;
}

static int check_ops(Check *c) {
    const Program *p = c->p;
    for (int b = 0; b < p->n_bufs; b++) {
        c->made[b] = p->bufs[b].kind != BUF_TEMP ? 0 : NO_OP;
        c->content[b] = c->current[b] = b;
        c->begun[b] = NO_OP;
    }
    for (c->op = 0; c->op < p->n_ops; c->op++) {
        const Op *op = &p->ops[c->op];
        const bool ends = (c->op == p->body_end && (p->micro_batches > 1 || p->parts)) || (c->op == p->forward_end && p->parts);
        if (ends && check_over(c, false)) return ERR_INTERNAL;
        if (check_operands(c, op) || check_host(c, op) || check_reads(c, op) || check_undisturbed(c, op)) return ERR_INTERNAL;
        for (int k = 0; k < OP_OUT; k++)
            if (check_write(c, op, k)) return ERR_INTERNAL;
        const OpRule *rule = op_rule(op->kind);
        const Operands operands = operands_of(p, op);
        if (rule->fits && !rule->fits(&operands)) return bad(c, "shapes, types or orders do not fit", op->out[0]);
        if (op->workspace != NO_BUF) c->made[op->workspace] = c->op; /* a wait reads it */
        if (op->begun) set_begun(c, op, c->op);
        if (op->kind == OP_wait && check_wait(c, op)) return ERR_INTERNAL;
    }
    if (check_over(c, false)) return ERR_INTERNAL;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].keep && c->made[b] != NO_OP && c->current[program_root(p, b)] != c->content[b])
            return err_set(c->e, ERR_INTERNAL, "after %s: %s is kept but overwritten", c->after, p->bufs[b].name);
    return OK;
}

int program_check(const Program *p, const char *after, Err *e) {
    if (p->failed) return err_set(e, ERR_HOST_MEMORY, "out of host memory in %s", after);
    if (check_buffers(p, after, e)) return ERR_INTERNAL;
    size_t n = (size_t)p->n_bufs;
    Check c = {p, after, e, 0, mem_new(n * sizeof(int)), mem_new(n * sizeof(int)), mem_new(n * sizeof(int)), mem_new(n * sizeof(int))};
    int code = c.made && c.content && c.current && c.begun ? check_ops(&c)
                                                : err_set(e, ERR_HOST_MEMORY, "out of host memory in %s", after);
    mem_free(c.made);
    mem_free(c.content);
    mem_free(c.current);
    mem_free(c.begun);
    return code;
}
