#include "models/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "models/jinja_internal.h"

enum { MAX_EVAL_DEPTH = 200, MAX_TARGETS = 64 };

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED };

/* Variables set in one block; lookups go outwards. */
struct scope {
    struct scope *up;
    struct variable {
        uint32_t symbol;
        struct jinja_value value;
    } * vars;
    uint32_t n, cap;
};

struct jinja_loop {
    struct jinja_list *items;
    uint32_t at;
    bool changed_called;
    struct jinja_value last_changed;
};

struct jinja_macro {
    const struct jinja_node *node;
    struct scope *scope; /* where it was defined */
};

struct eval {
    const struct jinja_template *t;
    struct jinja_ctx *c;
    struct scope *scope;
    struct jinja_sb *out;
    struct jinja_dict *vars;
    unsigned depth;
};

static bool eval(struct eval *e, const struct jinja_node *n, struct jinja_value *out);
static enum flow exec(struct eval *e, const struct jinja_nodes *body);

/* ---- variables ---- */

static struct scope *push_scope(struct eval *e) {
    struct scope *s = jinja_alloc(e->c, sizeof *s);
    if (!s) return NULL;
    s->up = e->scope;
    e->scope = s;
    return s;
}

static bool set_var(struct eval *e, uint32_t symbol, struct jinja_value v) {
    struct scope *s = e->scope;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->vars[i].symbol != symbol) continue;
        s->vars[i].value = v;
        return true;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        struct variable *vars = jinja_alloc(e->c, cap * sizeof *vars);
        if (!vars) return false;
        if (s->n) memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct variable){symbol, v};
    return true;
}

static bool undefined_named(struct jinja_ctx *c, const char *fmt, const struct jinja_string *name,
                            struct jinja_value *out) {
    char why[160];
    snprintf(why, sizeof why, fmt, name->len > 80 ? 80 : (int)name->len, name->data);
    char *kept = jinja_strdup(c, why, strlen(why));
    *out = jinja_undefined(kept);
    return kept != NULL;
}

static bool get_var(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    for (const struct scope *s = e->scope; s; s = s->up) {
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->vars[i].symbol != n->symbol) continue;
            *out = s->vars[i].value;
            return true;
        }
    }
    const struct jinja_value *v = jinja_dict_get_n(e->vars, n->name->data, n->name->len);
    if (v) {
        *out = *v;
        return true;
    }
    uint16_t id = jinja_find_row(jinja_functions, n->name->data, n->name->len);
    if (id != JINJA_NO_ID) {
        *out = (struct jinja_value){.kind = JINJA_FUNCTION, .id = id};
        return true;
    }
    return undefined_named(e->c, "'%.*s' is undefined", n->name, out);
}

static bool assign(struct eval *e, const struct jinja_node *target, struct jinja_value v) {
    if (target->kind == NODE_NAME) return set_var(e, target->symbol, v);
    if (target->kind == NODE_ATTR) {
        struct jinja_value ns, key = {.kind = JINJA_STRING, .u.s = target->name};
        if (!get_var(e, target->a, &ns)) return false;
        if (ns.kind != JINJA_NAMESPACE) {
            return jinja_fail(e->c, STATUS_TEMPLATE,
                              "cannot assign attribute on non-namespace object");
        }
        return jinja_dict_set(e->c, ns.u.dict, key, v);
    }
    struct jinja_list *l;
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(e->c, v);
    if (!jinja_iterate(e->c, v, &l)) return false;
    if (l->n != target->kids.n) {
        return jinja_fail(e->c, STATUS_TEMPLATE,
                          l->n > target->kids.n
                              ? "too many values to unpack (expected %u)"
                              : "not enough values to unpack (expected %u, got %u)",
                          target->kids.n, l->n);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        if (!assign(e, target->kids.items[i], l->items[i])) return false;
    }
    return true;
}

/* ---- text of a body ---- */

static bool capture(struct eval *e, const struct jinja_nodes *body, struct jinja_value *out,
                    enum flow *flow) {
    struct jinja_sb sb, *outer = e->out;
    jinja_sb_init(&sb, e->c);
    e->out = &sb;
    *flow = exec(e, body);
    e->out = outer;
    return *flow != FLOW_FAILED && jinja_sb_finish(&sb, out);
}

/* ---- calls ---- */

static bool add_kw(struct jinja_ctx *c, struct jinja_args *a, uint32_t *cap, struct jinja_value key,
                   struct jinja_value v) {
    for (uint32_t i = 0; i < a->n_kw; i++) {
        if (a->kw[i].key.u.s->len == key.u.s->len &&
            memcmp(a->kw[i].key.u.s->data, key.u.s->data, key.u.s->len) == 0) {
            return jinja_fail(c, STATUS_TEMPLATE, "got multiple values for keyword argument '%.*s'",
                              (int)(key.u.s->len > 60 ? 60 : key.u.s->len), key.u.s->data);
        }
    }
    if (a->n_kw == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        struct jinja_entry *kw = jinja_alloc(c, *cap * sizeof *kw);
        if (!kw) return false;
        if (a->n_kw) memcpy(kw, a->kw, a->n_kw * sizeof *kw);
        a->kw = kw;
    }
    a->kw[a->n_kw++] = (struct jinja_entry){.key = key, .value = v};
    return true;
}

static bool eval_args(struct eval *e, const struct jinja_node *call, struct jinja_args *a) {
    struct jinja_value list;
    uint32_t cap = 0;
    *a = (struct jinja_args){0};
    if (!call->n_args) return true;
    if (!jinja_list_new(e->c, JINJA_LIST, call->n_args, &list)) return false;
    for (uint32_t i = 0; i < call->n_args; i++) {
        const struct jinja_arg *arg = &call->args[i];
        struct jinja_value v;
        if (!eval(e, arg->value, &v)) return false;
        if (arg->stars == 1) {
            struct jinja_list *l;
            if (!jinja_iterate(e->c, v, &l)) return false;
            for (uint32_t k = 0; k < l->n; k++) {
                if (!jinja_list_append(e->c, list.u.list, l->items[k])) return false;
            }
        } else if (arg->stars == 2) {
            if (v.kind != JINJA_DICT) {
                return jinja_fail(e->c, STATUS_TEMPLATE,
                                  "argument after ** must be a mapping, not %s",
                                  jinja_type_name(v));
            }
            for (uint32_t k = 0; k < v.u.dict->n; k++) {
                const struct jinja_entry *kw = &v.u.dict->entries[k];
                if (kw->key.kind != JINJA_STRING) {
                    return jinja_fail(e->c, STATUS_TEMPLATE, "keywords must be strings");
                }
                if (!add_kw(e->c, a, &cap, kw->key, kw->value)) return false;
            }
        } else if (arg->name) {
            struct jinja_value key = {.kind = JINJA_STRING, .u.s = arg->name};
            if (!add_kw(e->c, a, &cap, key, v)) return false;
        } else if (!jinja_list_append(e->c, list.u.list, v)) {
            return false;
        }
    }
    a->pos = list.u.list->items;
    a->n_pos = list.u.list->n;
    return true;
}

static struct jinja_value *find_kw(const struct jinja_args *a, const struct jinja_string *name) {
    for (uint32_t i = 0; i < a->n_kw; i++) {
        const struct jinja_string *k = a->kw[i].key.u.s;
        if (k->len == name->len && memcmp(k->data, name->data, k->len) == 0) return &a->kw[i].value;
    }
    return NULL;
}

/* Parameters into the macro's fresh scope. Defaults see the parameters before them. */
static bool bind_params(struct eval *e, const struct jinja_node *m, const struct jinja_args *a,
                        struct jinja_value caller) {
    struct jinja_ctx *c = e->c;
    struct jinja_value rest_pos, rest_kw;
    if (!jinja_list_new(c, JINJA_TUPLE, 0, &rest_pos) || !jinja_dict_new(c, &rest_kw)) return false;
    int name_len = (int)(m->name->len > 60 ? 60 : m->name->len);
    uint32_t used_kw = 0;
    bool own_caller = false;
    for (uint32_t i = 0; i < m->n_params; i++) {
        const struct jinja_param *p = &m->params[i];
        const struct jinja_value *kw = i < a->n_pos ? NULL : find_kw(a, p->name);
        struct jinja_value v;
        if (p->symbol == SYMBOL_CALLER) own_caller = true;
        if (i < a->n_pos) {
            v = a->pos[i];
        } else if (kw) {
            v = *kw;
            used_kw++;
        } else if (p->symbol == SYMBOL_CALLER && caller.kind != JINJA_ABSENT) {
            v = caller;
        } else if (p->fallback) {
            if (!eval(e, p->fallback, &v)) return false;
        } else if (!undefined_named(c, "parameter '%.*s' was not provided", p->name, &v)) {
            return false;
        }
        if (!set_var(e, p->symbol, v)) return false;
    }
    for (uint32_t i = m->n_params; i < a->n_pos; i++) {
        if (!jinja_list_append(c, rest_pos.u.list, a->pos[i])) return false;
    }
    for (uint32_t i = 0; i < a->n_kw && used_kw < a->n_kw; i++) {
        bool is_param = false;
        for (uint32_t k = a->n_pos; k < m->n_params; k++) {
            is_param |= find_kw(a, m->params[k].name) == &a->kw[i].value;
        }
        if (is_param) continue;
        if (!jinja_dict_set(c, rest_kw.u.dict, a->kw[i].key, a->kw[i].value)) return false;
    }
    if (rest_pos.u.list->n && !m->uses_varargs) {
        return jinja_fail(c, STATUS_TEMPLATE, "macro '%.*s' takes not more than %u argument(s)",
                          name_len, m->name->data, m->n_params);
    }
    if (rest_kw.u.dict->n && !m->uses_kwargs) {
        const struct jinja_string *k = rest_kw.u.dict->entries[0].key.u.s;
        return jinja_fail(c, STATUS_TEMPLATE, "macro '%.*s' takes no keyword argument '%.*s'",
                          name_len, m->name->data, (int)(k->len > 60 ? 60 : k->len), k->data);
    }
    if (m->uses_varargs && !set_var(e, SYMBOL_VARARGS, rest_pos)) return false;
    if (m->uses_kwargs && !set_var(e, SYMBOL_KWARGS, rest_kw)) return false;
    if (own_caller) return true;
    if (caller.kind == JINJA_ABSENT) {
        if (!m->uses_caller || m->kind == NODE_CALL_BLOCK) return true;
        caller = jinja_undefined("No caller defined");
    } else if (!m->uses_caller) {
        return jinja_fail(c, STATUS_TEMPLATE, "macro '%.*s' takes no keyword argument 'caller'",
                          name_len, m->name->data);
    }
    return set_var(e, SYMBOL_CALLER, caller);
}

static bool call_macro(struct eval *e, const struct jinja_macro *m, const struct jinja_args *a,
                       struct jinja_value caller, struct jinja_value *out) {
    struct scope *outer = e->scope;
    enum flow flow;
    e->scope = m->scope;
    bool ok = push_scope(e) && bind_params(e, m->node, a, caller) &&
              capture(e, &m->node->body, out, &flow);
    e->scope = outer;
    return ok;
}

static bool call_value(struct eval *e, struct jinja_value f, const struct jinja_args *a,
                       struct jinja_value caller, struct jinja_value *out) {
    if (caller.kind != JINJA_ABSENT && f.kind != JINJA_MACRO && f.kind != JINJA_UNDEFINED) {
        return jinja_fail(e->c, STATUS_TEMPLATE, "only a macro can be the target of a call block");
    }
    switch ((enum jinja_kind)f.kind) {
    case JINJA_MACRO:
        return call_macro(e, f.u.macro, a, caller, out);
    case JINJA_FUNCTION:
        return jinja_call_row(e->c, &jinja_functions[f.id], jinja_none(), a, out);
    case JINJA_METHOD:
        return jinja_call_row(e->c, &jinja_methods[f.u.method->id], f.u.method->self, a, out);
    case JINJA_CYCLER:
    case JINJA_JOINER: {
        struct jinja_list *l = f.u.list;
        if (f.kind == JINJA_JOINER) {
            if (l->at++) {
                *out = l->items[0];
                return true;
            }
            l->at = 1;
            return jinja_str(e->c, "", 0, false, out);
        }
        break;
    }
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(e->c, f);
    case JINJA_LOOP:
        return jinja_fail(e->c, STATUS_TEMPLATE, "recursive loops are not supported");
    default:
        break;
    }
    return jinja_fail(e->c, STATUS_TEMPLATE, "'%s' object is not callable", jinja_type_name(f));
}

/* ---- the loop variable ---- */

int64_t jinja_loop_index0(struct jinja_value loop) {
    return loop.u.loop->at;
}

bool jinja_loop_attr(struct jinja_ctx *c, struct jinja_value loop, const struct jinja_string *name,
                     struct jinja_value *out, bool *found) {
    const struct jinja_loop *l = loop.u.loop;
    struct jinja_value n = {.kind = JINJA_STRING, .u.s = (struct jinja_string *)(uintptr_t)name};
    int64_t at = l->at, len = l->items->n;
    *found = true;
    if (jinja_is_str(n, "index")) {
        *out = jinja_int(at + 1);
    } else if (jinja_is_str(n, "index0")) {
        *out = jinja_int(at);
    } else if (jinja_is_str(n, "first")) {
        *out = jinja_bool(at == 0);
    } else if (jinja_is_str(n, "last")) {
        *out = jinja_bool(at + 1 == len);
    } else if (jinja_is_str(n, "length")) {
        *out = jinja_int(len);
    } else if (jinja_is_str(n, "revindex")) {
        *out = jinja_int(len - at);
    } else if (jinja_is_str(n, "revindex0")) {
        *out = jinja_int(len - at - 1);
    } else if (jinja_is_str(n, "previtem")) {
        *out = at ? l->items->items[at - 1] : jinja_undefined("there is no previous item");
    } else if (jinja_is_str(n, "nextitem")) {
        *out = at + 1 < len ? l->items->items[at + 1] : jinja_undefined("there is no next item");
    } else if (jinja_is_str(n, "depth")) {
        *out = jinja_int(1);
    } else if (jinja_is_str(n, "depth0")) {
        *out = jinja_int(0);
    } else {
        *found = false;
    }
    return !c->failed;
}

bool jinja_loop_changed(struct jinja_ctx *c, struct jinja_value loop, const struct jinja_args *args,
                        struct jinja_value *out) {
    struct jinja_loop *l = loop.u.loop;
    struct jinja_value now;
    bool same = false;
    if (!jinja_list_new(c, JINJA_TUPLE, args->n_pos, &now)) return false;
    for (uint32_t i = 0; i < args->n_pos; i++) now.u.list->items[i] = args->pos[i];
    now.u.list->n = args->n_pos;
    if (l->changed_called && !jinja_equal(c, l->last_changed, now, &same)) return false;
    l->changed_called = true;
    l->last_changed = now;
    *out = jinja_bool(!same);
    return true;
}

/* ---- expressions ---- */

static bool eval_compare(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_value left, right;
    if (!eval(e, n->a, &left)) return false;
    for (uint32_t i = 0; i < n->kids.n; i++) {
        bool yes = false;
        int order;
        if (!eval(e, n->kids.items[i], &right)) return false;
        switch ((enum jinja_op)n->ops[i]) {
        case OP_EQ:
        case OP_NE:
            if (!jinja_equal(e->c, left, right, &yes)) return false;
            yes ^= n->ops[i] == OP_NE;
            break;
        case OP_IN:
        case OP_NOT_IN:
            if (!jinja_contains(e->c, right, left, &yes)) return false;
            yes ^= n->ops[i] == OP_NOT_IN;
            break;
        case OP_LT:
            if (!jinja_compare(e->c, left, right, "<", &order)) return false;
            yes = order == -1;
            break;
        case OP_LE:
            if (!jinja_compare(e->c, left, right, "<=", &order)) return false;
            yes = order == -1 || order == 0;
            break;
        case OP_GT:
            if (!jinja_compare(e->c, left, right, ">", &order)) return false;
            yes = order == 1;
            break;
        default:
            if (!jinja_compare(e->c, left, right, ">=", &order)) return false;
            yes = order == 1 || order == 0;
            break;
        }
        *out = jinja_bool(yes);
        if (!yes) return true;
        left = right;
    }
    return true;
}

static bool eval_list(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    if (!jinja_list_new(e->c, n->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE, n->kids.n, out)) {
        return false;
    }
    for (uint32_t i = 0; i < n->kids.n; i++) {
        if (!eval(e, n->kids.items[i], &out->u.list->items[i])) return false;
    }
    out->u.list->n = n->kids.n;
    return true;
}

static bool eval_dict(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    if (!jinja_dict_new(e->c, out)) return false;
    for (uint32_t i = 0; i + 1 < n->kids.n; i += 2) {
        struct jinja_value k, v;
        if (!eval(e, n->kids.items[i], &k) || !eval(e, n->kids.items[i + 1], &v)) return false;
        if (!jinja_dict_set(e->c, out->u.dict, k, v)) return false;
    }
    return true;
}

static bool eval_concat(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_value v;
    if (!eval(e, n->a, &v) || !jinja_to_string(e->c, v, out)) return false;
    for (uint32_t i = 0; i < n->kids.n; i++) {
        if (!eval(e, n->kids.items[i], &v) || !jinja_to_string(e->c, v, &v)) return false;
        if (!jinja_concat(e->c, out->u.s, v.u.s, out)) return false;
    }
    return true;
}

static bool eval_item(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_value a, key, parts[3];
    if (!eval(e, n->a, &a)) return false;
    if (n->b->kind != NODE_SLICE) {
        return eval(e, n->b, &key) && jinja_get_item(e->c, a, key, out);
    }
    for (uint32_t i = 0; i < 3; i++) {
        parts[i] = jinja_none();
        if (n->b->kids.items[i] && !eval(e, n->b->kids.items[i], &parts[i])) return false;
    }
    return jinja_get_slice(e->c, a, parts, out);
}

/* `input`: the value on the left, already there. */
static bool eval_filter_on(struct eval *e, const struct jinja_node *n, struct jinja_value input,
                           struct jinja_value *out) {
    struct jinja_args args;
    return eval_args(e, n, &args) &&
           jinja_call_row(e->c, n->kind == NODE_TEST ? &jinja_tests[n->id] : &jinja_filters[n->id],
                          input, &args, out);
}

static bool eval_call(struct eval *e, const struct jinja_node *n, struct jinja_value caller,
                      struct jinja_value *out) {
    struct jinja_value f;
    struct jinja_args args;
    return eval(e, n->a, &f) && eval_args(e, n, &args) && call_value(e, f, &args, caller, out);
}

static bool eval_sign(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_value v;
    if (!eval(e, n->a, &v)) return false;
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(e->c, v);
    if (!jinja_is_number(v)) {
        return jinja_fail(e->c, STATUS_TEMPLATE, "bad operand type for unary %c: '%s'",
                          n->kind == NODE_NEG ? '-' : '+', jinja_type_name(v));
    }
    if (v.kind == JINJA_FLOAT) {
        if (n->kind == NODE_NEG) v.u.f = -v.u.f;
        *out = v;
        return true;
    }
    int64_t i = jinja_as_int(v);
    if (n->kind == NODE_NEG && __builtin_sub_overflow((int64_t)0, i, &i)) {
        return jinja_fail(e->c, STATUS_TEMPLATE, "integer overflow");
    }
    bool from_user = v.from_user;
    *out = jinja_int(i);
    out->from_user = from_user;
    return true;
}

static bool eval_node(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_value v;
    switch ((enum jinja_node_kind)n->kind) {
    case NODE_CONST:
        *out = n->value;
        return true;
    case NODE_NAME:
        return get_var(e, n, out);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(e, n, out);
    case NODE_DICT:
        return eval_dict(e, n, out);
    case NODE_ATTR:
        return eval(e, n->a, &v) && jinja_get_attr(e->c, v, n->name, n->id, out);
    case NODE_ITEM:
        return eval_item(e, n, out);
    case NODE_CALL:
        return eval_call(e, n, (struct jinja_value){.kind = JINJA_ABSENT}, out);
    case NODE_FILTER:
    case NODE_TEST:
        return eval(e, n->a, &v) && eval_filter_on(e, n, v, out);
    case NODE_COND:
        if (!eval(e, n->a, &v)) return false;
        if (jinja_truth(v)) return eval(e, n->b, out);
        if (n->c) return eval(e, n->c, out);
        *out =
            jinja_undefined("the inline if-expression evaluated to false and no else section was "
                            "defined.");
        return true;
    case NODE_AND:
    case NODE_OR:
        for (uint32_t i = 0; i < n->kids.n; i++) {
            if (!eval(e, n->kids.items[i], out)) return false;
            if (jinja_truth(*out) == (n->kind == NODE_OR)) return true;
        }
        return true;
    case NODE_NOT:
        if (!eval(e, n->a, &v)) return false;
        *out = jinja_bool(!jinja_truth(v));
        return true;
    case NODE_NEG:
    case NODE_POS:
        return eval_sign(e, n, out);
    case NODE_BINARY:
        if (!eval(e, n->a, out)) return false;
        for (uint32_t i = 0; i < n->kids.n; i++) {
            if (!eval(e, n->kids.items[i], &v)) return false;
            if (!jinja_arith(e->c, (enum jinja_op)n->ops[i], *out, v, out)) return false;
        }
        return true;
    case NODE_CONCAT:
        return eval_concat(e, n, out);
    case NODE_COMPARE:
        return eval_compare(e, n, out);
    default:
        CHECK(!"an expression");
        return false;
    }
}

static bool eval(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    if (!jinja_work(e->c, 1)) return false;
    if (e->depth >= MAX_EVAL_DEPTH) {
        return jinja_fail(e->c, STATUS_TOO_LARGE, "the template recurses too deeply");
    }
    e->depth++;
    bool ok = eval_node(e, n, out);
    e->depth--;
    return ok;
}

/* ---- statements ---- */

static bool keep_items(struct eval *e, const struct jinja_node *n, struct jinja_list **items) {
    struct jinja_value kept;
    if (!jinja_list_new(e->c, JINJA_LIST, 0, &kept)) return false;
    for (uint32_t i = 0; i < (*items)->n; i++) {
        struct jinja_value yes;
        if (!assign(e, n->a, (*items)->items[i]) || !eval(e, n->c, &yes)) return false;
        if (jinja_truth(yes) && !jinja_list_append(e->c, kept.u.list, (*items)->items[i])) {
            return false;
        }
    }
    *items = kept.u.list;
    return true;
}

static enum flow exec_for(struct eval *e, const struct jinja_node *n) {
    struct jinja_value iterable;
    struct jinja_list *items;
    if (!eval(e, n->b, &iterable) || !jinja_iterate(e->c, iterable, &items)) return FLOW_FAILED;
    struct scope *outer = e->scope, *inner = push_scope(e);
    struct jinja_loop *loop = jinja_alloc(e->c, sizeof *loop);
    enum flow flow = FLOW_NEXT;
    if (!inner || !loop) return FLOW_FAILED;
    if (n->c && !keep_items(e, n, &items)) return FLOW_FAILED;
    loop->items = items;
    bool ran = false;
    /* The list may grow or shrink under the loop, as a Python list may. */
    for (; loop->at < items->n; loop->at++) {
        struct jinja_value l = {.kind = JINJA_LOOP, .u.loop = loop};
        inner->n = 0;
        if (!jinja_work(e->c, 1) || !assign(e, n->a, items->items[loop->at]) ||
            !set_var(e, SYMBOL_LOOP, l)) {
            flow = FLOW_FAILED;
            break;
        }
        flow = exec(e, &n->body);
        if (flow == FLOW_BREAK || flow == FLOW_FAILED) break;
        ran |= flow == FLOW_NEXT; /* as in Jinja2, a turn cut short does not keep `else` away */
    }
    if (flow != FLOW_FAILED) flow = FLOW_NEXT;
    if (flow == FLOW_NEXT && !ran && n->other.n) {
        inner->n = 0;
        flow = exec(e, &n->other);
    }
    e->scope = outer;
    return flow;
}

static enum flow exec_if(struct eval *e, const struct jinja_node *n) {
    for (;; n = n->c) {
        struct jinja_value v;
        if (!eval(e, n->a, &v)) return FLOW_FAILED;
        if (jinja_truth(v)) return exec(e, &n->body);
        if (!n->c) return exec(e, &n->other);
    }
}

/* The filters of a set or filter block, innermost first. */
static bool through_filters(struct eval *e, const struct jinja_node *n, struct jinja_value text,
                            struct jinja_value *out) {
    struct jinja_value v = text;
    if (!n) {
        *out = text;
        return true;
    }
    if (e->depth >= MAX_EVAL_DEPTH) {
        return jinja_fail(e->c, STATUS_TOO_LARGE, "the template recurses too deeply");
    }
    e->depth++;
    bool ok = through_filters(e, n->a, text, &v) && eval_filter_on(e, n, v, out);
    e->depth--;
    return ok;
}

static bool put(struct eval *e, struct jinja_value v) {
    if (!jinja_sb_value(e->out, v)) return false;
    if (e->out->len <= e->c->limits.output_bytes) return true;
    return jinja_fail(e->c, STATUS_TOO_LARGE, "the template's output is over %zu bytes",
                      e->c->limits.output_bytes);
}

static enum flow exec_block(struct eval *e, const struct jinja_node *n) {
    struct scope *outer = e->scope;
    struct jinja_value v;
    enum flow flow = FLOW_NEXT;
    bool ok = true;
    if (n->kind == NODE_WITH) {
        /* Values are computed in the outer scope, so that they do not see each other. */
        struct jinja_value values;
        ok = jinja_list_new(e->c, JINJA_LIST, n->kids.n, &values);
        for (uint32_t i = 1; ok && i < n->kids.n; i += 2) {
            ok = eval(e, n->kids.items[i], &values.u.list->items[i]);
        }
        ok = ok && push_scope(e);
        for (uint32_t i = 0; ok && i + 1 < n->kids.n; i += 2) {
            ok = assign(e, n->kids.items[i], values.u.list->items[i + 1]);
        }
    } else {
        ok = push_scope(e) != NULL;
    }
    if (ok && (n->kind == NODE_WITH || n->kind == NODE_SCOPE)) {
        flow = exec(e, &n->body);
    } else if (ok) {
        ok = capture(e, &n->body, &v, &flow);
    }
    e->scope = outer;
    if (!ok || flow == FLOW_FAILED) return FLOW_FAILED;
    if (n->kind == NODE_SET_BLOCK) {
        if (!through_filters(e, n->b, v, &v) || !assign(e, n->a, v)) return FLOW_FAILED;
    } else if (n->kind == NODE_FILTER_BLOCK) {
        if (!through_filters(e, n->b, v, &v) || !put(e, v)) return FLOW_FAILED;
    }
    return flow;
}

static bool make_macro(struct eval *e, const struct jinja_node *n, struct jinja_value *out) {
    struct jinja_macro *m = jinja_alloc(e->c, sizeof *m);
    if (!m) return false;
    m->node = n;
    m->scope = e->scope;
    *out = (struct jinja_value){.kind = JINJA_MACRO, .u.macro = m};
    return true;
}

static enum flow exec_node(struct eval *e, const struct jinja_node *n) {
    struct jinja_value v, text;
    bool ok = false;
    switch ((enum jinja_node_kind)n->kind) {
    case NODE_TEXT:
        ok = put(e, n->value);
        break;
    case NODE_OUTPUT:
        ok = eval(e, n->a, &v) && put(e, v);
        break;
    case NODE_IF:
        return exec_if(e, n);
    case NODE_FOR:
        return exec_for(e, n);
    case NODE_SET:
        ok = eval(e, n->b, &v) && assign(e, n->a, v);
        break;
    case NODE_MACRO:
        ok = make_macro(e, n, &v) && set_var(e, n->symbol, v);
        break;
    case NODE_CALL_BLOCK:
        ok = make_macro(e, n, &v) && eval_call(e, n->b, v, &text) && put(e, text);
        break;
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return exec_block(e, n);
    }
    return ok ? FLOW_NEXT : FLOW_FAILED;
}

static enum flow exec(struct eval *e, const struct jinja_nodes *body) {
    enum flow flow = FLOW_NEXT;
    if (e->depth >= MAX_EVAL_DEPTH) {
        jinja_fail(e->c, STATUS_TOO_LARGE, "the template recurses too deeply");
        return FLOW_FAILED;
    }
    e->depth++;
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT; i++) {
        if (!jinja_work(e->c, 1)) {
            flow = FLOW_FAILED;
            break;
        }
        flow = exec_node(e, body->items[i]);
    }
    e->depth--;
    return flow;
}

/* ---- the contract ---- */

enum status jinja_compile(const char *text, size_t len, struct jinja_template **out,
                          struct error *e) {
    *out = NULL;
    if (len > JINJA_MAX_TEMPLATE_BYTES) {
        return error_set(e, STATUS_TOO_LARGE, NULL, "the template is over %d bytes",
                         JINJA_MAX_TEMPLATE_BYTES);
    }
    struct jinja_template *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, STATUS_NO_MEMORY, NULL, "no memory for the template");
    jinja_ctx_init(&t->store, NULL);
    struct jinja_tokens tokens;
    if (!jinja_lex(&t->store, text, len, &tokens) || !jinja_parse(t, &tokens)) {
        enum status s = error_set(e, t->store.error.status, NULL, "%s", t->store.error.message);
        jinja_free(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

void jinja_free(struct jinja_template *t) {
    if (!t) return;
    jinja_ctx_free(&t->store);
    free(t);
}

enum status jinja_render(const struct jinja_template *t, struct jinja_ctx *c,
                         struct jinja_value vars, struct jinja_string **out, struct error *err) {
    CHECK(vars.kind == JINJA_DICT);
    struct jinja_sb sb;
    struct jinja_value text;
    struct eval e = {.t = t, .c = c, .vars = vars.u.dict, .out = &sb};
    *out = NULL;
    jinja_sb_init(&sb, c);
    if (c->failed || !push_scope(&e) || exec(&e, &t->body) == FLOW_FAILED ||
        !jinja_sb_finish(&sb, &text)) {
        return error_set(err, c->error.status, NULL, "%s", c->error.message);
    }
    *out = text.u.s;
    return STATUS_OK;
}
