/* SPDX-License-Identifier: Apache-2.0 */
#include "io/direct.h"

#include <errno.h>
#include <stdio.h>

#if __has_include(<infiniband/mlx5dv.h>)

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "io/direct_calls.h"

#define PAGE ((size_t)4096)
#define LINE ((size_t)64)
#define ENTRY 64u /* bytes of a request, of a completion */
/* libmlx5 may make room for larger requests than are posted. */
#define WQES_SPARE 4u

#define SAY(why, error, ...) (snprintf(why, GAIA_DIRECT_WHY_SIZE, __VA_ARGS__), (error))

struct gaia_direct {
    const struct direct_calls *calls;
    unsigned char *memory;
    size_t size, used; /* bytes; allocate() takes them one after the other */
    struct ibv_pd *parent;
    struct ibv_cq_ex *cq;
    struct ibv_qp *qp;
    struct gaia_direct_queue queue;
};

/* ---- the libraries ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Written once, by load(). */
static struct direct_calls found;
static char missing[GAIA_DIRECT_WHY_SIZE];

/* In a header, and not in a library. */
static struct ibv_pd *alloc_parent_domain(struct ibv_context *context,
                                          struct ibv_parent_domain_init_attr *attributes)
{
    return ibv_alloc_parent_domain(context, attributes);
}

static void load(void)
{
    const struct {
        bool is_mlx5;
        const char *name;
        size_t offset; /* of its pointer in struct direct_calls */
    } rows[] = {
#define ROW(is_mlx5, name, field) {is_mlx5, name, offsetof(struct direct_calls, field)}
        ROW(false, "ibv_get_device_list", get_device_list),
        ROW(false, "ibv_free_device_list", free_device_list),
        ROW(false, "ibv_get_device_name", get_device_name),
        ROW(false, "ibv_dealloc_pd", dealloc_pd),
        ROW(false, "ibv_destroy_cq", destroy_cq),
        ROW(false, "ibv_destroy_qp", destroy_qp),
        ROW(false, "ibv_modify_qp", modify_qp),
        ROW(true, "mlx5dv_is_supported", is_supported),
        ROW(true, "mlx5dv_create_cq", create_cq),
        ROW(true, "mlx5dv_create_qp", create_qp),
        ROW(true, "mlx5dv_init_obj", init_obj),
#undef ROW
    };
    /* They stay: what was found in them does. */
    void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    void *mlx5 = verbs ? dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!verbs || !mlx5) {
        snprintf(missing, sizeof missing, "no %s here", verbs ? "libmlx5.so.1" : "libibverbs.so.1");
        return;
    }
    found.alloc_parent_domain = alloc_parent_domain;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        void *function = dlsym(rows[i].is_mlx5 ? mlx5 : verbs, rows[i].name);

        if (!function) {
            snprintf(missing, sizeof missing, "%s has no %s",
                     rows[i].is_mlx5 ? "libmlx5.so.1" : "libibverbs.so.1", rows[i].name);
            return;
        }
        memcpy((char *)&found + rows[i].offset, &function, sizeof function);
    }
}

static int load_once(char why_out[GAIA_DIRECT_WHY_SIZE])
{
    pthread_once(&once, load);
    return missing[0] ? SAY(why_out, -ENOENT, "%s", missing) : 0;
}

int direct_probe_with(const struct direct_calls *calls, char device_out[64],
                      char why_out[GAIA_DIRECT_WHY_SIZE])
{
    int count = 0, error;
    struct ibv_device **list = calls->get_device_list(&count);

    if (!list || !count) {
        error = list || errno == ENOSYS ? SAY(why_out, -ENODEV, "no RDMA device")
                                        : SAY(why_out, -ENODEV, "no RDMA device: %s", strerror(errno));
        if (list)
            calls->free_device_list(list);
        return error;
    }
    error = SAY(why_out, -ENODEV, "no mlx5 device: %s is none", calls->get_device_name(list[0]));
    for (int i = 0; i < count && error; i++) {
        if (!calls->is_supported(list[i]))
            continue;
        snprintf(device_out, 64, "%s", calls->get_device_name(list[i]));
        why_out[0] = '\0';
        error = 0;
    }
    calls->free_device_list(list);
    return error;
}

int gaia_direct_probe(char device_out[64], char why_out[GAIA_DIRECT_WHY_SIZE])
{
    int error = load_once(why_out);

    return error ? error : direct_probe_with(&found, device_out, why_out);
}

/* ---- memory ---- */

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

size_t gaia_direct_size(uint32_t depth)
{
    if (depth < GAIA_DIRECT_DEPTH_MIN || depth > GAIA_DIRECT_DEPTH_MAX || depth & (depth - 1))
        return 0;
    /* Completions, requests, records; and what is lost to alignment between them. */
    return whole_pages((size_t)depth * ENTRY) + whole_pages((size_t)depth * ENTRY * WQES_SPARE) + 3 * PAGE;
}

/* Called by libmlx5 for queues and records. */
static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t kind)
{
    struct gaia_direct *direct = context;
    size_t at;

    (void)pd;
    (void)kind;
    /* Records don't share their line: a GPU and a NIC poll beside them. */
    alignment = alignment < LINE ? LINE : alignment;
    at = (direct->used + alignment - 1) / alignment * alignment;
    if (at > direct->size || size > direct->size - at) {
        errno = ENOMEM;
        return NULL;
    }
    direct->used = at + (size + LINE - 1) / LINE * LINE;
    return direct->memory + at;
}

static void leave(struct ibv_pd *pd, void *context, void *pointer, uint64_t kind)
{
    (void)pd;
    (void)context;
    (void)pointer;
    (void)kind;
}

static bool is_inside(const struct gaia_direct *direct, const void *at, size_t length)
{
    uintptr_t start = (uintptr_t)at - (uintptr_t)direct->memory;

    return (uintptr_t)at >= (uintptr_t)direct->memory && start <= direct->size &&
           length <= direct->size - start;
}

/* ---- queues ---- */

static int failed(char why_out[GAIA_DIRECT_WHY_SIZE], const char *what)
{
    int error = errno ? errno : EIO;

    return SAY(why_out, -error, "%s: %s", what, strerror(error));
}

static int make_cq(struct gaia_direct *direct, char why_out[GAIA_DIRECT_WHY_SIZE])
{
    /* One entry less: it is rounded up to a power of two after one was added. Nobody says how far completions
     * were looked at, as no more requests are posted than there are entries. */
    struct ibv_cq_init_attr_ex attributes = {
        .cqe = direct->queue.depth - 1,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
        .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
        .parent_domain = direct->parent,
    };
    struct mlx5dv_cq_init_attr own = {.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = ENTRY};
    struct mlx5dv_cq made = {0};
    struct mlx5dv_obj object = {.cq = {.out = &made}};

    errno = 0;
    direct->cq = direct->calls->create_cq(direct->parent->context, &attributes, &own);
    if (!direct->cq)
        return failed(why_out, "a completion queue");
    object.cq.in = ibv_cq_ex_to_cq(direct->cq);
    if (direct->calls->init_obj(&object, MLX5DV_OBJ_CQ))
        return SAY(why_out, -EOPNOTSUPP, "mlx5dv_init_obj of a completion queue");
    if (made.cqe_cnt != direct->queue.depth || made.cqe_size != ENTRY)
        return SAY(why_out, -EOPNOTSUPP, "a completion queue of %u entries of %u bytes, and not %u of %u",
                   made.cqe_cnt, made.cqe_size, direct->queue.depth, ENTRY);
    if (!is_inside(direct, made.buf, (size_t)made.cqe_cnt * ENTRY))
        return SAY(why_out, -EOPNOTSUPP, "libmlx5 has put a completion queue elsewhere");
    direct->queue.cqes = made.buf;
    return 0;
}

static int make_qp(struct gaia_direct *direct, char why_out[GAIA_DIRECT_WHY_SIZE])
{
    struct ibv_cq *cq = ibv_cq_ex_to_cq(direct->cq);
    struct ibv_qp_init_attr_ex attributes = {
        .send_cq = cq,
        .recv_cq = cq, /* where nothing comes: nothing is ever received */
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = direct->queue.depth, .max_send_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = direct->parent,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ,
    };
    struct mlx5dv_qp_init_attr own = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
                                      .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE};
    struct mlx5dv_qp made = {0};
    struct mlx5dv_obj object = {.qp = {.out = &made}};
    uint32_t count;

    errno = 0;
    direct->qp = direct->calls->create_qp(direct->parent->context, &attributes, &own);
    if (!direct->qp)
        return failed(why_out, "a queue pair");
    object.qp.in = direct->qp;
    if (direct->calls->init_obj(&object, MLX5DV_OBJ_QP))
        return SAY(why_out, -EOPNOTSUPP, "mlx5dv_init_obj of a queue pair");
    count = made.sq.wqe_cnt;
    if (count < direct->queue.depth || count > GAIA_DIRECT_DEPTH_MAX || count & (count - 1) ||
        made.sq.stride != ENTRY)
        return SAY(why_out, -EOPNOTSUPP, "a send queue of %u entries of %u bytes for %u", count,
                   made.sq.stride, direct->queue.depth);
    if (!is_inside(direct, made.sq.buf, (size_t)count * ENTRY) || !is_inside(direct, made.dbrec, 8))
        return SAY(why_out, -EOPNOTSUPP, "libmlx5 has put a send queue or its record elsewhere");
    if (!made.bf.reg)
        return SAY(why_out, -EOPNOTSUPP, "a queue pair without a doorbell");
    direct->queue.qpn = direct->qp->qp_num;
    direct->queue.wqes_count = count;
    direct->queue.wqes = made.sq.buf;
    direct->queue.record = (uint32_t *)made.dbrec;
    direct->queue.doorbell = made.bf.reg;
    return 0;
}

int direct_open_with(const struct direct_calls *calls, const struct gaia_direct_options *options,
                     struct gaia_direct **direct_out, char why_out[GAIA_DIRECT_WHY_SIZE])
{
    size_t size = gaia_direct_size(options->depth);
    struct ibv_parent_domain_init_attr attributes = {
        .pd = options->pd,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        .alloc = allocate,
        .free = leave,
    };
    struct gaia_direct *direct;
    int error;

    if (!size)
        return SAY(why_out, -EINVAL, "a depth of %u: it is a power of two from %u to %u", options->depth,
                   GAIA_DIRECT_DEPTH_MIN, GAIA_DIRECT_DEPTH_MAX);
    if (!options->pd || !options->memory || (uintptr_t)options->memory % PAGE || options->size < size)
        return SAY(why_out, -EINVAL, "%zu bytes of memory: %zu whole pages are needed", options->size,
                   size / PAGE);
    direct = calloc(1, sizeof *direct);
    if (!direct)
        return SAY(why_out, -ENOMEM, "no memory for a queue");
    direct->calls = calls;
    direct->memory = options->memory;
    direct->size = options->size;
    direct->queue.depth = options->depth;
    attributes.pd_context = direct;
    errno = 0;
    direct->parent = calls->alloc_parent_domain(options->pd->context, &attributes);
    if (!direct->parent) {
        error = failed(why_out, "a parent domain");
    } else {
        error = make_cq(direct, why_out);
        if (!error)
            error = make_qp(direct, why_out);
    }
    if (error) {
        gaia_direct_close(direct);
        return error;
    }
    *direct_out = direct;
    why_out[0] = '\0';
    return 0;
}

int gaia_direct_open(const struct gaia_direct_options *options, struct gaia_direct **direct_out,
                     char why_out[GAIA_DIRECT_WHY_SIZE])
{
    int error = load_once(why_out);

    return error ? error : direct_open_with(&found, options, direct_out, why_out);
}

void gaia_direct_queue(const struct gaia_direct *direct, struct gaia_direct_queue *queue_out)
{
    *queue_out = direct->queue;
}

static int modify(struct gaia_direct *direct, struct ibv_qp_attr attributes, int mask, const char *to,
                  char why_out[GAIA_DIRECT_WHY_SIZE])
{
    int error = direct->calls->modify_qp(direct->qp, &attributes, mask | IBV_QP_STATE);

    return error ? SAY(why_out, -error, "a queue pair to %s: %s", to, strerror(error)) : 0;
}

int gaia_direct_connect(struct gaia_direct *direct, const struct gaia_direct_peer *peer,
                        char why_out[GAIA_DIRECT_WHY_SIZE])
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = peer->port};
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = peer->mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->receive_psn,
        .ah_attr = {.dlid = peer->lid, .port_num = peer->port, .is_global = !peer->lid},
    };
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = peer->send_psn,
        .timeout = 14, /* 67 ms, seven times */
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = peer->reads,
    };
    int error;

    receive.ah_attr.grh.dgid = peer->gid;
    receive.ah_attr.grh.sgid_index = peer->gid_index;
    receive.ah_attr.grh.hop_limit = 64;
    error = modify(direct, init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT", why_out);
    if (!error)
        error = modify(direct, receive,
                       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                       "RTR", why_out);
    if (!error)
        error = modify(direct, send,
                       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC,
                       "RTS", why_out);
    return error;
}

void gaia_direct_close(struct gaia_direct *direct)
{
    if (!direct)
        return;
    if (direct->qp)
        (void)direct->calls->destroy_qp(direct->qp);
    if (direct->cq)
        (void)direct->calls->destroy_cq(ibv_cq_ex_to_cq(direct->cq));
    if (direct->parent)
        (void)direct->calls->dealloc_pd(direct->parent);
    free(direct);
}

#else

static int absent(char why_out[GAIA_DIRECT_WHY_SIZE])
{
    snprintf(why_out, GAIA_DIRECT_WHY_SIZE, "built without <infiniband/mlx5dv.h>");
    return -ENOSYS;
}

int gaia_direct_probe(char device_out[64], char why_out[GAIA_DIRECT_WHY_SIZE])
{
    (void)device_out;
    return absent(why_out);
}

size_t gaia_direct_size(uint32_t depth)
{
    (void)depth;
    return 0;
}

int gaia_direct_open(const struct gaia_direct_options *options, struct gaia_direct **direct_out,
                     char why_out[GAIA_DIRECT_WHY_SIZE])
{
    (void)options;
    (void)direct_out;
    return absent(why_out);
}

void gaia_direct_queue(const struct gaia_direct *direct, struct gaia_direct_queue *queue_out)
{
    (void)direct;
    *queue_out = (struct gaia_direct_queue){0};
}

int gaia_direct_connect(struct gaia_direct *direct, const struct gaia_direct_peer *peer,
                        char why_out[GAIA_DIRECT_WHY_SIZE])
{
    (void)direct;
    (void)peer;
    return absent(why_out);
}

void gaia_direct_close(struct gaia_direct *direct)
{
    (void)direct;
}

#endif
