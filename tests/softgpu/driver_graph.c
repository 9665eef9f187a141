#include <stdlib.h>
#include <string.h>

#include "tests/softgpu/driver.h"

struct node {
    struct graph *graph;
    enum work_kind kind;
    uint32_t index;
    union {
        struct kernel_op kernel; /* params owned */
        struct copy_op copy;
        struct fill_op fill;
        struct host_op host;
    };
    uint32_t *after; /* [n_after] indices of earlier nodes */
    bool *programmatic;
    uint32_t n_after;
    bool has_follower;
    void *handle;
};
struct graph {
    struct node **nodes; /* [n_nodes] */
    uint32_t n_nodes, cap_nodes;
};
struct graph_exec {
    struct node *nodes; /* [n_nodes] copies; `graph` is the original's */
    uint32_t n_nodes;
    struct work *last; /* the end of its last launch: a graph does not run beside itself */
};

static void node_free_parts(struct node *n) {
    if (n->kind == WORK_KERNEL) free(n->kernel.params);
    free(n->after);
    free(n->programmatic);
}

void graph_free(struct graph *g) {
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        handle_end(g->nodes[i]->handle);
        node_free_parts(g->nodes[i]);
        free(g->nodes[i]);
    }
    free(g->nodes);
    free(g);
}

void graph_exec_free(struct graph_exec *x) {
    for (uint32_t i = 0; i < x->n_nodes; i++) node_free_parts(&x->nodes[i]);
    work_release(x->last);
    free(x->nodes);
    free(x);
}

enum cu_result soft_graph_create(struct cu_graph **out, unsigned flags) {
    soft_lock();
    enum cu_result r = soft_enter("cuGraphCreate", true);
    if (r == CUDA_SUCCESS && flags != 0) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) *out = handle_new(HANDLE_GRAPH, soft_alloc(sizeof(struct graph)));
    soft_unlock();
    return r;
}

enum cu_result soft_graph_destroy(struct cu_graph *graph) {
    soft_lock();
    enum cu_result r = soft_enter("cuGraphDestroy", true);
    struct graph *g = r == CUDA_SUCCESS ? handle_get(HANDLE_GRAPH, graph, "cuGraphDestroy") : NULL;
    if (r == CUDA_SUCCESS && g == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        graph_free(g);
        handle_end(graph);
    }
    soft_unlock();
    return r;
}

static enum cu_result take_copy(struct copy_op *c, const struct cu_copy_3d *p) {
    if (p->height != 1 || p->depth != 1 || p->src_y != 0 || p->src_z != 0 || p->dst_y != 0 ||
        p->dst_z != 0 || p->src_lod != 0 || p->dst_lod != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    c->bytes = p->width_bytes;
    if (p->src_type == CU_MEMORY_HOST) {
        c->src_host = (const uint8_t *)p->src_host + p->src_x_bytes;
    } else if (p->src_type == CU_MEMORY_DEVICE) {
        c->src_device = p->src_device + p->src_x_bytes;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->dst_type == CU_MEMORY_HOST) {
        c->dst_host = (uint8_t *)p->dst_host + p->dst_x_bytes;
    } else if (p->dst_type == CU_MEMORY_DEVICE) {
        c->dst_device = p->dst_device + p->dst_x_bytes;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return c->src_host != NULL && c->dst_host != NULL ? CUDA_ERROR_NOT_SUPPORTED
                                                      : copy_prepare(c, "cuGraphAddNode");
}

static enum cu_result take_kernel(struct kernel_op *k, const struct cu_kernel_params *p,
                                  const char *call) {
    struct function *f = handle_get(HANDLE_FUNCTION, p->function, call);
    if (f == NULL) return CUDA_ERROR_INVALID_HANDLE;
    const uint32_t grid[3] = {p->grid_x, p->grid_y, p->grid_z};
    const uint32_t block[3] = {p->block_x, p->block_y, p->block_z};
    return kernel_prepare(k, f, grid, block, p->shared_bytes, p->params, p->extra, call);
}

static enum cu_result take_node(struct node *n, const struct cu_node_params *p) {
    switch (p->type) {
    case CU_NODE_KERNEL:
        n->kind = WORK_KERNEL;
        return take_kernel(&n->kernel, &p->kernel, "cuGraphAddNode");
    case CU_NODE_MEMCPY:
        n->kind = WORK_COPY;
        return take_copy(&n->copy, &p->memcpy.copy);
    case CU_NODE_MEMSET: {
        const struct cu_memset_params *m = &p->memset;
        n->kind = WORK_FILL;
        n->fill = (struct fill_op){m->dst, m->value, m->element_bytes, m->width};
        const bool ok = m->height == 1 && m->width > 0 &&
                        (m->element_bytes == 1 || m->element_bytes == 2 || m->element_bytes == 4);
        return ok && m->dst % m->element_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_NODE_HOST:
        n->kind = WORK_HOST;
        n->host = (struct host_op){p->host.function, p->host.arg};
        return p->host.function != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_NODE_EMPTY:
        n->kind = WORK_JOIN;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static enum cu_result take_edges(struct node *n, struct cu_graph_node *const *after,
                                 const struct cu_edge *edges, size_t n_after) {
    n->after = soft_alloc(n_after * sizeof *n->after);
    n->programmatic = soft_alloc(n_after * sizeof *n->programmatic);
    for (size_t i = 0; i < n_after; i++) {
        const struct node *a = handle_get(HANDLE_NODE, after[i], "cuGraphAddNode");
        if (a == NULL || a->graph != n->graph) return CUDA_ERROR_INVALID_VALUE;
        static const struct cu_edge full = {0};
        const struct cu_edge *e = edges != NULL ? &edges[i] : &full;
        const bool programmatic = e->type == CU_EDGE_TYPE_PROGRAMMATIC;
        static const unsigned char zero[sizeof e->reserved] = {0};
        bool ok = memcmp(e->reserved, zero, sizeof zero) == 0 && e->to_port == 0 &&
                  e->type <= CU_EDGE_TYPE_PROGRAMMATIC &&
                  e->from_port == (programmatic ? CU_EDGE_PORT_PROGRAMMATIC : 0);
        ok = ok && (!programmatic || (n->kind == WORK_KERNEL && a->kind == WORK_KERNEL));
        if (!ok || (programmatic && soft.device.compute_capability < 90)) {
            rule_broken(RULE_DEPENDENT_LAUNCH, 0,
                        "cuGraphAddNode: edge %zu (type %u, ports %u and %u) cannot be", i, e->type,
                        e->from_port, e->to_port);
            return ok ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        }
        n->after[i] = a->index;
        n->programmatic[i] = programmatic;
        n->n_after++;
    }
    return CUDA_SUCCESS;
}

enum cu_result soft_graph_add_node(struct cu_graph_node **out, struct cu_graph *graph,
                                   struct cu_graph_node *const *after, const struct cu_edge *edges,
                                   size_t n_after, struct cu_node_params *params) {
    *out = NULL;
    soft_lock();
    enum cu_result r = soft_enter("cuGraphAddNode", true);
    struct graph *g = r == CUDA_SUCCESS ? handle_get(HANDLE_GRAPH, graph, "cuGraphAddNode") : NULL;
    if (r == CUDA_SUCCESS && (g == NULL || n_after > UINT32_MAX)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct node *n = soft_alloc(sizeof *n);
        n->graph = g;
        n->index = g->n_nodes;
        r = take_node(n, params);
        if (r == CUDA_SUCCESS) r = take_edges(n, after, edges, n_after);
        if (r == CUDA_SUCCESS) {
            for (uint32_t i = 0; i < n->n_after; i++) g->nodes[n->after[i]]->has_follower = true;
            g->nodes = soft_grow(g->nodes, &g->cap_nodes, g->n_nodes, sizeof(struct node *));
            g->nodes[g->n_nodes++] = n;
            n->handle = handle_new(HANDLE_NODE, n);
            *out = n->handle;
        } else {
            node_free_parts(n);
            free(n);
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_graph_kernel_node_set_attribute(struct cu_graph_node *node,
                                                    enum cu_launch_attribute_id id,
                                                    const union cu_launch_value *value) {
    static const char call[] = "cuGraphKernelNodeSetAttribute";
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    struct node *n = r == CUDA_SUCCESS ? handle_get(HANDLE_NODE, node, call) : NULL;
    if (r == CUDA_SUCCESS && (n == NULL || n->kind != WORK_KERNEL)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        switch (id) {
        case CU_LAUNCH_CLUSTER_DIMENSION:
            n->kernel.cluster[0] = value->cluster.x;
            n->kernel.cluster[1] = value->cluster.y;
            n->kernel.cluster[2] = value->cluster.z;
            break;
        case CU_LAUNCH_COOPERATIVE:
            n->kernel.cooperative = value->cooperative != 0;
            break;
        case CU_LAUNCH_PRIORITY:
            break;
        default:
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (r == CUDA_SUCCESS) r = kernel_check_cluster(&n->kernel, call);
    soft_unlock();
    return r;
}

static void copy_kernel(struct kernel_op *to, const struct kernel_op *from) {
    *to = *from;
    to->params = soft_alloc(from->params_bytes);
    memcpy(to->params, from->params, from->params_bytes);
}

enum cu_result soft_graph_instantiate(struct cu_graph_exec **out, struct cu_graph *graph,
                                      unsigned long long flags) {
    *out = NULL;
    soft_lock();
    enum cu_result r = soft_enter("cuGraphInstantiate", true);
    struct graph *g =
        r == CUDA_SUCCESS ? handle_get(HANDLE_GRAPH, graph, "cuGraphInstantiate") : NULL;
    if (r == CUDA_SUCCESS && g == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && (flags & ~(unsigned long long)CU_GRAPH_INSTANTIATE_UPLOAD) != 0) {
        r = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (r == CUDA_SUCCESS) {
        struct graph_exec *x = soft_alloc(sizeof *x);
        x->n_nodes = g->n_nodes;
        x->nodes = soft_alloc(g->n_nodes * sizeof *x->nodes);
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            struct node *to = &x->nodes[i];
            const struct node *from = g->nodes[i];
            *to = *from;
            if (from->kind == WORK_KERNEL) copy_kernel(&to->kernel, &from->kernel);
            to->after = soft_alloc(from->n_after * sizeof *to->after);
            to->programmatic = soft_alloc(from->n_after * sizeof *to->programmatic);
            memcpy(to->after, from->after, from->n_after * sizeof *to->after);
            memcpy(to->programmatic, from->programmatic, from->n_after * sizeof *to->programmatic);
        }
        *out = handle_new(HANDLE_EXEC, x);
    }
    soft_unlock();
    return r;
}

/* What the launches hold is their own: they end well without it. */
enum cu_result soft_graph_exec_destroy(struct cu_graph_exec *exec) {
    soft_lock();
    enum cu_result r = soft_enter("cuGraphExecDestroy", true);
    struct graph_exec *x =
        r == CUDA_SUCCESS ? handle_get(HANDLE_EXEC, exec, "cuGraphExecDestroy") : NULL;
    if (r == CUDA_SUCCESS && x == NULL) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        graph_exec_free(x);
        handle_end(exec);
    }
    soft_unlock();
    return r;
}

enum cu_result soft_graph_exec_kernel_node_set_params(struct cu_graph_exec *exec,
                                                      struct cu_graph_node *node,
                                                      const struct cu_kernel_params *params) {
    static const char call[] = "cuGraphExecKernelNodeSetParams";
    soft_lock();
    enum cu_result r = soft_enter(call, true);
    if (r == CUDA_SUCCESS) {
        struct graph_exec *x = handle_get(HANDLE_EXEC, exec, call);
        const struct node *n = handle_get(HANDLE_NODE, node, call);
        struct kernel_op k = {0};
        if (x == NULL || n == NULL) {
            r = CUDA_ERROR_INVALID_HANDLE;
        } else if (n->index >= x->n_nodes || x->nodes[n->index].graph != n->graph ||
                   n->kind != WORK_KERNEL) {
            rule_broken(RULE_GRAPH, 0, "%s: not a kernel node of this graph", call);
            r = CUDA_ERROR_INVALID_VALUE;
        } else {
            r = take_kernel(&k, params, call);
        }
        if (r == CUDA_SUCCESS) {
            struct kernel_op *old = &x->nodes[n->index].kernel;
            memcpy(k.cluster, old->cluster, sizeof k.cluster);
            k.cooperative = old->cooperative;
            r = kernel_check_cluster(&k, call);
            free(r == CUDA_SUCCESS ? old->params : k.params);
            if (r == CUDA_SUCCESS) *old = k;
        }
    }
    soft_unlock();
    return r;
}

enum cu_result soft_graph_upload(struct cu_graph_exec *exec, struct cu_stream *stream) {
    soft_lock();
    enum cu_result r = soft_enter("cuGraphUpload", true);
    if (r == CUDA_SUCCESS && (handle_get(HANDLE_EXEC, exec, "cuGraphUpload") == NULL ||
                              stream_get(stream, "cuGraphUpload") == NULL)) {
        r = CUDA_ERROR_INVALID_HANDLE;
    }
    soft_unlock();
    return r;
}

/* Functions and memory must still be there, and the host's sources are what they are now. */
static enum cu_result check_nodes(struct graph_exec *x) {
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        struct node *n = &x->nodes[i];
        if (n->kind == WORK_KERNEL && n->kernel.function->module->unloaded) {
            rule_broken(RULE_DEAD_HANDLE, 0,
                        "cuGraphLaunch: the module of kernel node %u was unloaded", i);
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (n->kind == WORK_COPY) {
            const enum cu_result r = copy_prepare(&n->copy, "cuGraphLaunch");
            if (r != CUDA_SUCCESS) return r;
        }
    }
    return CUDA_SUCCESS;
}

static struct work *work_of_node(const struct node *n) {
    struct work *o = work_new(n->kind);
    switch (n->kind) {
    case WORK_KERNEL:
        copy_kernel(&o->kernel, &n->kernel);
        break;
    case WORK_COPY:
        o->copy = n->copy;
        break;
    case WORK_FILL:
        o->fill = n->fill;
        break;
    case WORK_HOST:
        o->host = n->host;
        break;
    default:
        break;
    }
    return o;
}

static void launch(struct graph_exec *x, struct stream *s) {
    struct work *start = work_new(WORK_JOIN);
    work_add_edge(start, x->last, false);
    stream_push(s, start, false);
    struct work **works = soft_alloc(x->n_nodes * sizeof(struct work *));
    bool has_host = false;
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        const struct node *n = &x->nodes[i];
        works[i] = work_of_node(n);
        if (n->n_after == 0) work_add_edge(works[i], start, false);
        for (uint32_t k = 0; k < n->n_after; k++) {
            work_add_edge(works[i], works[n->after[k]], n->programmatic[k]);
        }
        work_enqueue(works[i]);
        has_host = has_host || n->kind == WORK_HOST;
    }
    struct work *end = work_new(WORK_JOIN);
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        if (!x->nodes[i].has_follower) work_add_edge(end, works[i], false);
    }
    stream_push(s, end, false); /* and after `start`, which was the stream's last */
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        if (x->nodes[i].kind == WORK_COPY && x->nodes[i].copy.dst_host != NULL) {
            copy_spoil_destination(works[i]);
        }
        work_release(works[i]);
    }
    free(works);
    work_release(x->last);
    x->last = end;
    work_release(start);
    if (has_host) worker_wake();
}

enum cu_result soft_graph_launch(struct cu_graph_exec *exec, struct cu_stream *stream) {
    soft_lock();
    enum cu_result r = soft_enter("cuGraphLaunch", true);
    if (r == CUDA_SUCCESS) {
        struct graph_exec *x = handle_get(HANDLE_EXEC, exec, "cuGraphLaunch");
        struct stream *s = stream_get(stream, "cuGraphLaunch");
        if (x == NULL || s == NULL)
            r = CUDA_ERROR_INVALID_HANDLE;
        else
            r = check_nodes(x);
        if (r == CUDA_SUCCESS) launch(x, s);
    }
    soft_unlock();
    return r;
}
