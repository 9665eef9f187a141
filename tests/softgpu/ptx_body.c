#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/ptx_parser.h"

static const char *const special_names[PTX_SREG_COUNT] = {
    [PTX_SREG_TID_X] = "%tid.x",
    [PTX_SREG_TID_Y] = "%tid.y",
    [PTX_SREG_TID_Z] = "%tid.z",
    [PTX_SREG_NTID_X] = "%ntid.x",
    [PTX_SREG_NTID_Y] = "%ntid.y",
    [PTX_SREG_NTID_Z] = "%ntid.z",
    [PTX_SREG_CTAID_X] = "%ctaid.x",
    [PTX_SREG_CTAID_Y] = "%ctaid.y",
    [PTX_SREG_CTAID_Z] = "%ctaid.z",
    [PTX_SREG_NCTAID_X] = "%nctaid.x",
    [PTX_SREG_NCTAID_Y] = "%nctaid.y",
    [PTX_SREG_NCTAID_Z] = "%nctaid.z",
    [PTX_SREG_LANEID] = "%laneid",
    [PTX_SREG_WARPID] = "%warpid",
    [PTX_SREG_NWARPID] = "%nwarpid",
    [PTX_SREG_SMID] = "%smid",
    [PTX_SREG_NSMID] = "%nsmid",
    [PTX_SREG_GRIDID] = "%gridid",
    [PTX_SREG_LANEMASK_EQ] = "%lanemask_eq",
    [PTX_SREG_LANEMASK_LE] = "%lanemask_le",
    [PTX_SREG_LANEMASK_LT] = "%lanemask_lt",
    [PTX_SREG_LANEMASK_GE] = "%lanemask_ge",
    [PTX_SREG_LANEMASK_GT] = "%lanemask_gt",
    [PTX_SREG_CLOCK] = "%clock",
    [PTX_SREG_CLOCK_HI] = "%clock_hi",
    [PTX_SREG_CLOCK64] = "%clock64",
    [PTX_SREG_GLOBALTIMER] = "%globaltimer",
    [PTX_SREG_GLOBALTIMER_LO] = "%globaltimer_lo",
    [PTX_SREG_GLOBALTIMER_HI] = "%globaltimer_hi",
    [PTX_SREG_DYNAMIC_SMEM_SIZE] = "%dynamic_smem_size",
    [PTX_SREG_TOTAL_SMEM_SIZE] = "%total_smem_size",
    [PTX_SREG_CLUSTERID_X] = "%clusterid.x",
    [PTX_SREG_CLUSTERID_Y] = "%clusterid.y",
    [PTX_SREG_CLUSTERID_Z] = "%clusterid.z",
    [PTX_SREG_NCLUSTERID_X] = "%nclusterid.x",
    [PTX_SREG_NCLUSTERID_Y] = "%nclusterid.y",
    [PTX_SREG_NCLUSTERID_Z] = "%nclusterid.z",
    [PTX_SREG_CLUSTER_CTAID_X] = "%cluster_ctaid.x",
    [PTX_SREG_CLUSTER_CTAID_Y] = "%cluster_ctaid.y",
    [PTX_SREG_CLUSTER_CTAID_Z] = "%cluster_ctaid.z",
    [PTX_SREG_CLUSTER_NCTAID_X] = "%cluster_nctaid.x",
    [PTX_SREG_CLUSTER_NCTAID_Y] = "%cluster_nctaid.y",
    [PTX_SREG_CLUSTER_NCTAID_Z] = "%cluster_nctaid.z",
    [PTX_SREG_CLUSTER_CTARANK] = "%cluster_ctarank",
    [PTX_SREG_CLUSTER_NCTARANK] = "%cluster_nctarank",
    [PTX_SREG_IS_EXPLICIT_CLUSTER] = "%is_explicit_cluster",
};

static uint32_t hash_of(const char *text, size_t len) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h % PTX_BUCKETS;
}

static void declare(struct ptx_parser *p, const char *text, size_t len, enum ptx_name_kind kind,
                    uint32_t index, uint32_t count) {
    struct ptx_name **bucket = &p->buckets[hash_of(text, len)];
    struct ptx_name *n = parse_take(p, sizeof *n);
    *n = (struct ptx_name){text, len, kind, index, count, *bucket, p->depth};
    *bucket = n;
}

static const struct ptx_name *find_exact(struct ptx_parser *p, const char *text, size_t len,
                                         bool range) {
    for (const struct ptx_name *n = p->buckets[hash_of(text, len)]; n; n = n->next)
        if ((n->kind == PTX_NAME_RANGE) == range && n->len == len && !memcmp(n->text, text, len))
            return n;
    return NULL;
}

/* A name in scope; *offset is the place in a range. */
static const struct ptx_name *find_name(struct ptx_parser *p, const char *text, size_t len,
                                        uint32_t *offset) {
    *offset = 0;
    const struct ptx_name *n = find_exact(p, text, len, false);
    if (n) return n;
    uint64_t scale = 1, index = 0;
    for (size_t digits = 1; digits < len && digits <= 7; digits++) {
        const char c = text[len - digits];
        if (c < '0' || c > '9') break;
        index += scale * (uint64_t)(c - '0');
        scale *= 10;
        n = find_exact(p, text, len - digits, true);
        if (n && index < n->count) {
            *offset = (uint32_t)index;
            return n;
        }
    }
    return NULL;
}

static void close_scope(struct ptx_parser *p) {
    for (uint32_t i = 0; i < PTX_BUCKETS; i++)
        while (p->buckets[i] && p->buckets[i]->depth == p->depth)
            p->buckets[i] = p->buckets[i]->next;
    p->depth--;
    p->scope = p->scope_parent[p->scope];
}

static void open_scope(struct ptx_parser *p) {
    if (p->depth >= PTX_MAX_DEPTH) parse_fail(p, STATUS_TOO_LARGE, "scopes nested too deep");
    p->scope_parent =
        parse_grow(p, p->scope_parent, p->n_scopes, &p->cap_scopes, sizeof *p->scope_parent);
    p->scope_parent[p->n_scopes] = p->n_scopes ? p->scope : 0;
    p->scope = p->n_scopes++;
    p->depth++;
}

static uint32_t add_register(struct ptx_parser *p, enum ptx_type type, char *name) {
    struct ptx_function *f = p->function;
    if (f->n_registers >= 1u << 20) parse_fail(p, STATUS_TOO_LARGE, "too many registers");
    size_t cap = p->cap_registers;
    f->register_type = parse_grow(p, f->register_type, f->n_registers, &p->cap_registers, 1);
    f->register_name = parse_grow(p, f->register_name, f->n_registers, &cap, sizeof(char *));
    f->register_type[f->n_registers] = (uint8_t)type;
    f->register_name[f->n_registers] = name;
    return f->n_registers++;
}

static void parse_registers(struct ptx_parser *p) {
    enum ptx_type type = PTX_NONE;
    while (p->token.kind == PTX_TOKEN_DOT) {
        if (!parse_type(&p->token, &type))
            parse_fail(p, STATUS_UNSUPPORTED, ".reg .%.*s", (int)p->token.len, p->token.text);
        parse_advance(p);
    }
    if (type == PTX_NONE) parse_fail(p, STATUS_INVALID, ".reg without a type");
    do {
        if (p->token.kind != PTX_TOKEN_NAME) parse_fail(p, STATUS_INVALID, "register name?");
        const struct ptx_token t = p->token;
        parse_advance(p);
        if (parse_accept(p, '<')) {
            const uint64_t n = parse_integer(p);
            parse_expect(p, '>');
            if (n > 1u << 20) parse_fail(p, STATUS_TOO_LARGE, "too many registers");
            const uint32_t first = p->function->n_registers;
            for (uint64_t i = 0; i < n; i++) {
                char *name = parse_take(p, t.len + 9);
                memcpy(name, t.text, t.len);
                uint64_t v = i;
                char digits[9];
                size_t k = 0;
                do digits[k++] = (char)('0' + v % 10);
                while (v /= 10);
                for (size_t j = 0; j < k; j++) name[t.len + j] = digits[k - 1 - j];
                add_register(p, type, name);
            }
            declare(p, t.text, t.len, PTX_NAME_RANGE, first, (uint32_t)n);
        } else {
            const uint32_t reg = add_register(p, type, parse_string(p, &t));
            declare(p, t.text, t.len, PTX_NAME_REGISTER, reg, 1);
        }
    } while (parse_accept(p, ','));
    parse_expect(p, ';');
}

static void use_label(struct ptx_parser *p, const struct ptx_token *t, uint32_t instruction,
                      uint32_t operand) {
    p->label_uses =
        parse_grow(p, p->label_uses, p->n_label_uses, &p->cap_label_uses, sizeof *p->label_uses);
    p->label_uses[p->n_label_uses++] =
        (struct ptx_label_use){t->text, t->len, p->scope, t->line, instruction, operand};
}

static bool find_symbol(struct ptx_parser *p, const struct ptx_token *t, struct ptx_operand *o) {
    const struct ptx_function *f = p->function;
    uint32_t offset;
    const struct ptx_name *n = find_name(p, t->text, t->len, &offset);
    if (n && (n->kind == PTX_NAME_REGISTER || n->kind == PTX_NAME_RANGE)) {
        o->kind = PTX_OPERAND_REGISTER;
        o->reg = n->index + offset;
        return true;
    }
    if (n && n->kind == PTX_NAME_TARGETS) {
        o->kind = PTX_OPERAND_TARGETS;
        o->index = n->index;
        return true;
    }
    o->kind = PTX_OPERAND_VARIABLE;
    if (n) {
        o->symbol_kind = PTX_SYMBOL_LOCAL;
        o->index = n->index;
        return true;
    }
    for (uint32_t i = 0; i < f->n_params + f->n_returns; i++) {
        const char *name = i < f->n_params ? f->params[i].name : f->returns[i - f->n_params].name;
        if (!ptx_token_is(t, name)) continue;
        o->symbol_kind = PTX_SYMBOL_PARAM;
        o->index = i;
        return true;
    }
    for (uint32_t i = 0; i < p->module->n_variables; i++) {
        if (!ptx_token_is(t, p->module->variables[i].name)) continue;
        o->symbol_kind = PTX_SYMBOL_MODULE;
        o->index = i;
        return true;
    }
    for (uint32_t i = 0; i < p->module->n_functions; i++) {
        if (!ptx_token_is(t, p->module->functions[i].name)) continue;
        o->kind = PTX_OPERAND_FUNCTION;
        o->index = i;
        return true;
    }
    return false;
}

/* `instruction` and `operand` say where a label's index will have to be put. */
static void parse_operand(struct ptx_parser *p, struct ptx_operand *o, uint32_t instruction,
                          uint32_t operand, int depth);

static void parse_address(struct ptx_parser *p, struct ptx_operand *o) {
    if (ptx_token_punct(&p->token, '-') || p->token.kind == PTX_TOKEN_INTEGER) {
        o->base_kind = PTX_OPERAND_IMMEDIATE;
        o->bits = parse_integer(p);
    } else {
        const struct ptx_token t = p->token;
        if (t.kind != PTX_TOKEN_NAME || !find_symbol(p, &t, o) ||
            (o->kind != PTX_OPERAND_REGISTER && o->kind != PTX_OPERAND_VARIABLE))
            parse_fail(p, STATUS_INVALID, "unknown name %.*s in an address",
                       (int)(t.len < 60 ? t.len : 60), t.text);
        o->base_kind = o->kind;
        parse_advance(p);
        if (parse_accept(p, '+'))
            o->bits = parse_integer(p);
        else if (ptx_token_punct(&p->token, '-'))
            o->bits = parse_integer(p);
    }
    o->kind = PTX_OPERAND_ADDRESS;
    parse_expect(p, ']');
}

static void parse_elements(struct ptx_parser *p, struct ptx_operand *o, char close, int depth) {
    size_t cap = 0;
    if (depth > 2) parse_fail(p, STATUS_INVALID, "operands nested too deep");
    if (parse_accept(p, close)) return;
    do {
        o->elements = parse_grow(p, o->elements, o->n_elements, &cap, sizeof *o->elements);
        memset(&o->elements[o->n_elements], 0, sizeof *o->elements);
        parse_operand(p, &o->elements[o->n_elements], UINT32_MAX, 0, depth + 1);
        o->n_elements++;
        if (o->n_elements > 1024) parse_fail(p, STATUS_TOO_LARGE, "too many elements");
    } while (parse_accept(p, ','));
    parse_expect(p, close);
}

static void parse_name(struct ptx_parser *p, struct ptx_operand *o, uint32_t instruction,
                       uint32_t operand) {
    const struct ptx_token t = p->token;
    parse_advance(p);
    if (t.len == 1 && t.text[0] == '_') {
        o->kind = PTX_OPERAND_SINK;
        if (parse_accept(p, '|')) { /* _|q */
            struct ptx_operand second = {0};
            if (p->token.kind != PTX_TOKEN_NAME || !find_symbol(p, &p->token, &second) ||
                second.kind != PTX_OPERAND_REGISTER)
                parse_fail(p, STATUS_INVALID, "a register must follow |");
            o->reg2 = second.reg;
            parse_advance(p);
        }
        return;
    }
    if (ptx_token_is(&t, "WARP_SZ")) {
        o->kind = PTX_OPERAND_IMMEDIATE;
        o->bits = 32;
        return;
    }
    if (find_symbol(p, &t, o)) {
        if (o->kind == PTX_OPERAND_REGISTER && parse_accept(p, '|')) {
            struct ptx_operand second = {0};
            if (ptx_token_is(&p->token, "_")) {
                second.reg = UINT32_MAX;
            } else if (p->token.kind != PTX_TOKEN_NAME || !find_symbol(p, &p->token, &second) ||
                       second.kind != PTX_OPERAND_REGISTER) {
                parse_fail(p, STATUS_INVALID, "a register must follow |");
            }
            o->reg2 = second.reg;
            parse_advance(p);
        }
        if (o->kind == PTX_OPERAND_VARIABLE && parse_accept(p, '+')) o->bits = parse_integer(p);
        return;
    }
    if (t.text[0] == '%') {
        char name[40] = {0};
        size_t len = t.len;
        if (len < sizeof name - 3) {
            memcpy(name, t.text, len);
            if (p->token.kind == PTX_TOKEN_DOT && p->token.len == 1) {
                name[len++] = '.';
                name[len++] = p->token.text[0];
                parse_advance(p);
            }
        }
        for (int i = 0; i < PTX_SREG_COUNT; i++) {
            if (strcmp(name, special_names[i]) != 0) continue;
            o->kind = PTX_OPERAND_SPECIAL;
            o->special = (enum ptx_special)i;
            return;
        }
        parse_fail(p, STATUS_INVALID, "unknown register %.*s", (int)(t.len < 60 ? t.len : 60),
                   t.text);
    }
    if (instruction == UINT32_MAX)
        parse_fail(p, STATUS_INVALID, "unknown name %.*s", (int)(t.len < 60 ? t.len : 60), t.text);
    o->kind = PTX_OPERAND_LABEL;
    use_label(p, &t, instruction, operand);
}

static void parse_operand(struct ptx_parser *p, struct ptx_operand *o, uint32_t instruction,
                          uint32_t operand, int depth) {
    o->reg2 = UINT32_MAX;
    if (parse_accept(p, '{')) {
        o->kind = PTX_OPERAND_VECTOR;
        parse_elements(p, o, '}', depth);
    } else if (parse_accept(p, '[')) {
        parse_address(p, o);
    } else if (parse_accept(p, '(')) {
        o->kind = PTX_OPERAND_PARAMS;
        parse_elements(p, o, ')', depth);
    } else if (parse_accept(p, '!')) {
        if (p->token.kind != PTX_TOKEN_NAME || !find_symbol(p, &p->token, o) ||
            o->kind != PTX_OPERAND_REGISTER)
            parse_fail(p, STATUS_INVALID, "a predicate must follow !");
        o->negated = true;
        parse_advance(p);
    } else if (ptx_token_punct(&p->token, '-') || p->token.kind == PTX_TOKEN_INTEGER ||
               p->token.kind == PTX_TOKEN_FLOAT32 || p->token.kind == PTX_TOKEN_FLOAT64) {
        const bool minus = parse_accept(p, '-');
        o->bits = p->token.bits;
        if (p->token.kind == PTX_TOKEN_INTEGER) {
            o->kind = PTX_OPERAND_IMMEDIATE;
            if (minus) o->bits = 0 - o->bits;
        } else if (p->token.kind == PTX_TOKEN_FLOAT32) {
            o->kind = PTX_OPERAND_FLOAT32;
            if (minus) o->bits ^= UINT64_C(1) << 31;
        } else if (p->token.kind == PTX_TOKEN_FLOAT64) {
            o->kind = PTX_OPERAND_FLOAT64;
            if (minus) o->bits ^= UINT64_C(1) << 63;
        } else {
            parse_fail(p, STATUS_INVALID, "a number must follow -");
        }
        parse_advance(p);
    } else if (p->token.kind == PTX_TOKEN_NAME) {
        parse_name(p, o, instruction, operand);
    } else {
        parse_fail(p, STATUS_INVALID, "not an operand: '%.*s'",
                   (int)(p->token.len < 40 ? p->token.len : 40), p->token.text);
    }
}

static void grow_instructions(struct ptx_parser *p) {
    struct ptx_function *f = p->function;
    if (f->n_instructions >= 1u << 22) parse_fail(p, STATUS_TOO_LARGE, "function too long");
    f->instructions = parse_grow(p, f->instructions, f->n_instructions, &p->cap_instructions,
                                 sizeof *f->instructions);
}

static void parse_instruction(struct ptx_parser *p) {
    grow_instructions(p);
    struct ptx_function *f = p->function;
    struct ptx_instruction *in = &f->instructions[f->n_instructions];
    memset(in, 0, sizeof *in);
    in->line = p->token.line;
    in->source_line = p->source_line;
    in->source_file = p->source_file;
    if (parse_accept(p, '@')) {
        in->guarded = true;
        in->guard_negated = parse_accept(p, '!');
        struct ptx_operand guard = {0};
        if (p->token.kind != PTX_TOKEN_NAME || !find_symbol(p, &p->token, &guard) ||
            guard.kind != PTX_OPERAND_REGISTER)
            parse_fail(p, STATUS_INVALID, "a predicate must follow @");
        in->guard = guard.reg;
        parse_advance(p);
    }
    if (p->token.kind != PTX_TOKEN_NAME)
        parse_fail(p, STATUS_INVALID, "not an instruction: '%.*s'",
                   (int)(p->token.len < 40 ? p->token.len : 40), p->token.text);
    in->name = parse_string(p, &p->token);
    parse_advance(p);
    while (p->token.kind == PTX_TOKEN_DOT) {
        if (in->n_suffixes == PTX_MAX_SUFFIXES) parse_fail(p, STATUS_TOO_LARGE, "suffixes");
        in->suffix[in->n_suffixes++] = parse_string(p, &p->token);
        parse_advance(p);
    }
    const uint32_t index = f->n_instructions;
    if (!parse_accept(p, ';')) {
        do {
            if (in->n_operands == PTX_MAX_OPERANDS) parse_fail(p, STATUS_TOO_LARGE, "operands");
            parse_operand(p, &in->operand[in->n_operands], index, in->n_operands, 0);
            in->n_operands++;
        } while (parse_accept(p, ','));
        parse_expect(p, ';');
    }
    f->n_instructions++;
}

/* NAME: .branchtargets a, b; or .calltargets f, g; or .callprototype ...; */
static void parse_targets(struct ptx_parser *p, const struct ptx_token *name) {
    struct ptx_function *f = p->function;
    f->targets = parse_grow(p, f->targets, f->n_targets, &p->cap_targets, sizeof *f->targets);
    struct ptx_targets *list = &f->targets[f->n_targets];
    memset(list, 0, sizeof *list);
    const uint32_t at = f->n_targets++;
    declare(p, name->text, name->len, PTX_NAME_TARGETS, at, 1);
    const struct ptx_token kind = p->token;
    parse_advance(p);
    if (ptx_token_is(&kind, "callprototype")) {
        parse_pragma(p);
        return;
    }
    list->labels = ptx_token_is(&kind, "branchtargets");
    size_t cap = 0;
    do {
        list->index = parse_grow(p, list->index, list->n, &cap, sizeof *list->index);
        struct ptx_operand o = {0};
        if (p->token.kind != PTX_TOKEN_NAME) parse_fail(p, STATUS_INVALID, "target name?");
        if (list->labels) {
            use_label(p, &p->token, UINT32_MAX - 1 - at, list->n);
            list->index[list->n++] = 0;
        } else if (find_symbol(p, &p->token, &o) && o.kind == PTX_OPERAND_FUNCTION) {
            list->index[list->n++] = o.index;
        } else {
            parse_fail(p, STATUS_INVALID, "unknown call target");
        }
        parse_advance(p);
    } while (parse_accept(p, ','));
    parse_expect(p, ';');
}

static void parse_directive(struct ptx_parser *p) {
    struct ptx_function *f = p->function;
    const struct ptx_token t = p->token;
    enum ptx_space space;
    parse_advance(p);
    if (ptx_token_is(&t, "reg"))
        parse_registers(p);
    else if (ptx_token_is(&t, "loc"))
        parse_loc(p);
    else if (ptx_token_is(&t, "pragma"))
        parse_pragma(p);
    else if (ptx_token_is(&t, "file"))
        parse_file(p);
    else if (parse_space(&t, &space)) {
        f->variables =
            parse_grow(p, f->variables, f->n_variables, &p->cap_locals, sizeof *f->variables);
        struct ptx_variable *v = &f->variables[f->n_variables];
        parse_variable(p, space, false, false, v);
        declare(p, v->name, strlen(v->name), PTX_NAME_VARIABLE, f->n_variables, 1);
        f->n_variables++;
    } else {
        parse_fail(p, STATUS_INVALID, "unknown directive .%.*s in a function", (int)t.len, t.text);
    }
}

static void resolve_labels(struct ptx_parser *p) {
    struct ptx_function *f = p->function;
    f->is_target = parse_take(p, f->n_instructions + 1u);
    for (uint32_t i = 0; i < p->n_label_uses; i++) {
        const struct ptx_label_use *u = &p->label_uses[i];
        const struct ptx_label *found = NULL;
        for (uint32_t scope = u->scope; !found;) {
            for (uint32_t k = 0; k < p->n_labels && !found; k++)
                if (p->labels[k].scope == scope && p->labels[k].len == u->len &&
                    !memcmp(p->labels[k].text, u->text, u->len))
                    found = &p->labels[k];
            if (scope == 0) break;
            scope = p->scope_parent[scope];
        }
        if (!found) {
            p->token.line = u->line;
            parse_fail(p, STATUS_INVALID, "unknown name %.*s", (int)(u->len < 60 ? u->len : 60),
                       u->text);
        }
        if (u->instruction < f->n_instructions) {
            f->instructions[u->instruction].operand[u->operand].index = found->instruction;
        } else {
            f->targets[UINT32_MAX - 1 - u->instruction].index[u->operand] = found->instruction;
        }
        f->is_target[found->instruction] = true;
    }
}

void parse_body(struct ptx_parser *p) {
    p->n_scopes = p->n_labels = p->n_label_uses = 0;
    p->cap_scopes = p->cap_labels = p->cap_label_uses = p->cap_registers = p->cap_locals = 0;
    p->cap_instructions = p->cap_targets = 0;
    p->scope_parent = NULL;
    p->labels = NULL;
    p->label_uses = NULL;
    p->source_line = p->source_file = 0;
    p->depth = 0;
    memset(p->buckets, 0, sizeof p->buckets);
    open_scope(p);
    while (p->depth > 0) {
        if (p->token.kind == PTX_TOKEN_END) parse_fail(p, STATUS_INVALID, "function without end");
        if (parse_accept(p, '{')) {
            open_scope(p);
        } else if (parse_accept(p, '}')) {
            close_scope(p);
        } else if (p->token.kind == PTX_TOKEN_DOT) {
            parse_directive(p);
        } else if (parse_accept(p, ';')) {
            continue;
        } else {
            /* a label is a name with a colon behind it; the lexer is cheap to ask twice */
            struct ptx_lexer ahead = p->lexer;
            const struct ptx_token after = ptx_lexer_next(&ahead);
            if (p->token.kind != PTX_TOKEN_NAME || !ptx_token_punct(&after, ':')) {
                parse_instruction(p);
                continue;
            }
            const struct ptx_token name = p->token;
            parse_advance(p);
            parse_advance(p);
            if (ptx_token_is(&p->token, "branchtargets") ||
                ptx_token_is(&p->token, "calltargets") ||
                ptx_token_is(&p->token, "callprototype")) {
                parse_targets(p, &name);
                continue;
            }
            p->labels = parse_grow(p, p->labels, p->n_labels, &p->cap_labels, sizeof *p->labels);
            p->labels[p->n_labels++] =
                (struct ptx_label){name.text, name.len, p->scope, p->function->n_instructions};
        }
    }
    resolve_labels(p);
}
