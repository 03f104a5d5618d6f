/* net.h: networks from text, for tests.
 *
 *   layer = [ name ":" ] Kind [ "(" value { "," value } ")" ] [ "{" { layer } "}" ] [ "!" ] [ "&" [ k ] ] [ "^" k { "," k } ">" ]
 *           [ "<" k { "," k } ">" ]
 *             "!": frozen; "&": tied to the layer before it, "&k": to the container's layer k; "<": what it reads, see Layer.from (-1: the input);
 *             "^": whose outputs are the container's, see Layer.result
 *         | "Again"   the layer before it once more, sharing its parameters
 *   loss  = { [ factor "*" ] layer }
 *   value = [ option "=" ] ( 3 | 3x5 | 3:5:7 (a list) | true | same | ij:jk->ik (an equation, with ":" for ",") )
 *
 * "Sequential{Conv2d(3, 8, 3, padding=same) ReLU Flatten Linear(8192, 10)}"; the i-th layer
 * is said to come from "net:i". */
#ifndef NET_H
#define NET_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "network/network.h"

typedef struct NetText { const char *at; int layers; Err *e; } NetText;

static void net_word(NetText *t, char *word /* 48 */) {
    int n = 0;
    t->at += strspn(t->at, " ,\n");
    while (n < 47 && *t->at && (!strchr(" ,=(){}!&<>^*\n", *t->at) || (n && *t->at == '>' && word[n - 1] == '-')))
        word[n++] = *t->at++;
    word[n] = '\0';
    t->at += strspn(t->at, " ,\n");
}

static int net_value(Option *o, const char *word, Err *e) {
    char *end;
    double first = strtod(word, &end), list[16] = {first};
    int64_t n = 1;
    if (strstr(word, "->")) { /* an equation */
        char text[48];
        snprintf(text, sizeof text, "%s", word);
        for (char *c = text; *c; c++) *c = *c == ':' ? ',' : *c;
        return option_set_word(o, text, e);
    }
    for (; *end == ':' && n < 16; n++) list[n] = strtod(end + 1, &end);
    if (end != word && (n > 1 || o->type == OPTION_LIST)) return option_set_list(o, list, n, e);
    if (!strcmp(word, "true") || !strcmp(word, "false")) return option_set_bool(o, word[0] == 't', e);
    if (isalpha((unsigned char)word[0]) || !strcmp(word, "-inf")) return option_set_word(o, word, e);
    return *end == 'x' ? option_set_numbers(o, first, strtod(end + 1, NULL), e) : option_set_number(o, first, e);
}

static int net_options(NetText *t, Layer *l) {
    char word[48];
    for (int i = 0; *t->at != ')'; i++) {
        Option *o = i < l->options.count ? &l->options.item[i] : NULL;
        net_word(t, word);
        if (*t->at == '=') {
            o = options_find(&l->options, word, t->e);
            t->at++;
            net_word(t, word);
        }
        if (!o || net_value(o, word, t->e)) return t->e->code;
    }
    t->at++;
    return OK;
}

/* "<1, 2>" or "^1, 2>" */
static int net_places(NetText *t, int *place) {
    char word[48];
    int n = 0;
    t->at++;
    while (*t->at && *t->at != '>' && n < LAYER_IN) {
        net_word(t, word);
        place[n++] = (int)strtol(word, NULL, 10);
    }
    t->at += strspn(t->at, "> ,\n");
    return n;
}

/* What the parent's last child reads. */
static int net_wire(NetText *t, Layer *parent) {
    int from[LAYER_IN], n = net_places(t, from);
    return layer_wire(parent, parent->n_child - 1, from, n, t->e);
}

/* A second use of the layer (one without children) that `parent` got last. */
static Layer *net_again(NetText *t, const Layer *parent, const char *where) {
    const Layer *first = parent->child[parent->n_child - 1];
    Layer *l = layer_new(layer_kind(first), where, t->e);
    if (!l) return NULL;
    l->options = first->options;
    l->frozen = first->frozen;
    l->shares = first->shares ? first->shares : first;
    return l;
}

static Layer *net_layer(NetText *t, const Layer *parent) {
    char word[48], where[16];
    net_word(t, word);
    snprintf(where, sizeof where, "net:%d", ++t->layers);
    if (parent && !strcmp(word, "Again")) return net_again(t, parent, where);
    char *colon = strchr(word, ':');
    Layer *l = layer_new(colon ? colon + 1 : word, where, t->e);
    int code = l ? OK : t->e->code;
    if (colon) *colon = '\0';
    if (!code && colon) code = layer_set_name(l, word, t->e);
    if (!code && *t->at == '(') {
        t->at++;
        code = net_options(t, l);
        t->at += strspn(t->at, " ,\n");
    }
    if (!code && *t->at == '{') {
        t->at++;
        while (!code && *t->at != '}') {
            Layer *child = net_layer(t, l);
            code = child ? layer_add(l, child, t->e) : t->e->code;
            if (!code && *t->at == '<') code = net_wire(t, l);
        }
        t->at++;
        t->at += strspn(t->at, " ,\n");
    }
    if (!code && *t->at == '!') {
        t->at++;
        l->frozen = true;
    }
    if (!code && *t->at == '&' && parent && parent->n_child) {
        t->at++;
        char *end;
        const long k = strtol(t->at, &end, 10);
        l->tied = parent->child[end == t->at || k < 0 || k >= parent->n_child ? parent->n_child - 1 : k];
        t->at = end;
    }
    if (!code && *t->at == '^') l->n_result = net_places(t, l->result);
    t->at += strspn(t->at, " ,\n");
    if (!code) return l;
    layer_free(l);
    return NULL;
}

static Layer *net_loss(NetText *t) {
    char *end;
    double factor = strtod(t->at, &end);
    bool given = *end == '*';
    if (given) t->at = end + 1;
    Layer *l = net_layer(t, NULL);
    if (l && given) l->factor = factor;
    return l;
}

/* `loss` may be NULL. On an error returns NULL with *e filled. */
__attribute__((unused)) static Network *net_new(const char *text, const char *loss, Shape input, Err *e) {
    NetText t = {text, 0, e}, l = {loss, 90, e};
    Network *n = NULL;
    Layer *root = net_layer(&t, NULL), *losses[LAYER_IN];
    int k = 0;
    while (root && loss && *l.at && k < LAYER_IN) {
        if ((losses[k] = net_loss(&l)) != NULL) k++;
        else root = (layer_free(root), NULL);
    }
    if (root) return network_new(root, losses, k, &(Input){.shape = input}, 1, &n, e) == OK ? n : NULL;
    while (k > 0) layer_free(losses[--k]);
    return NULL;
}

/* The buffer of that name, or NO_BUF. */
__attribute__((unused)) static int find_buf(const Program *p, const char *name) {
    for (int b = 0; b < p->n_bufs; b++)
        if (!strcmp(p->bufs[b].name, name)) return b;
    return NO_BUF;
}

#endif
