/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of agents that have a file of this home open: what is asked of them in addition to this node's
 * own. */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "cache/home.h"
#include "cache/home_open.h"
#include "cache/internal.h"
#include "cache/patience.h"

/* More than there can be, as a member's next session begins when the last one's are closed. */
#define KERNELS_MAX (MEMBERS_MAX * HOME_OPENS_MAX)

struct kernel {
    struct call_session *session; /* a reference */
    uint32_t file;
    unsigned node;
    struct patience_asking asking;
};

uint64_t home_kernels(const struct cache_file *file)
{
    const struct home_open *open;
    uint64_t kernels = 1;

    LIST_FOREACH (open, &file->opens, file_link)
        kernels |= UINT64_C(2) << open->session->member;
    return kernels;
}

#define ALL UINT_MAX /* of nodes */

/* Sorted by their numbers: a thread that waits for a place with one of them holds places with lower ones
 * only, so that two threads that ask the same kernels do not wait for each other. The reference is end()'s to
 * put. Lock held. */
static void add_kernel(const struct home_open *open, struct kernel kernels[KERNELS_MAX], unsigned *count)
{
    unsigned node = open->session->member + 1, at = (*count)++;

    assert(at < KERNELS_MAX);
    for (; at && kernels[at - 1].node > node; at--)
        kernels[at] = kernels[at - 1];
    kernels[at] = (struct kernel){.session = open->session->session, .file = open->number, .node = node};
    call_session_get(kernels[at].session);
}

/* Those of agents that have the file open: of one node, or all. */
static unsigned find_kernels(struct cache_file *file, unsigned node, struct kernel kernels[KERNELS_MAX])
{
    const struct home_open *open;
    unsigned count = 0;

    pthread_mutex_lock(&file->lock);
    LIST_FOREACH (open, &file->opens, file_link)
        if (node == ALL || node == open->session->member + 1)
            add_kernel(open, kernels, &count);
    pthread_mutex_unlock(&file->lock);
    return count;
}

/* Whether programs may have stored through the node's kernel what nobody knows yet. Lock held. */
static bool may_be_dirty(const struct cache_file *file, const struct writers *writers, unsigned node)
{
    return writers->any && kernels_held_any(file, node);
}

/* Those, but for a node's; and whether this node's is one. */
static unsigned find_dirty(struct cache_file *file, unsigned except, struct kernel kernels[KERNELS_MAX],
                           bool *here_out)
{
    const struct home_open *open;
    unsigned count = 0;

    pthread_mutex_lock(&file->lock);
    *here_out = except && may_be_dirty(file, &file->writers, 0);
    LIST_FOREACH (open, &file->opens, file_link)
        if (open->session->member + 1 != except &&
            may_be_dirty(file, &open->writers, open->session->member + 1))
            add_kernel(open, kernels, &count);
    pthread_mutex_unlock(&file->lock);
    return count;
}

/* An agent that says nothing is not waited for when the mount ends; for a minute one that does: its kernel
 * writes back what it holds, which comes by WRITEs. */
#define LEAVING ((struct patience){.silent = 1, .turns = 12})

/* op: NODE_INVALIDATE or NODE_WRITE_BACK; of the request the file is filled in. All at once. */
static void begin(struct nodes *nodes, struct kernel *kernels, unsigned count, enum node_op op,
                  const struct node_request *what)
{
    enum node_class class = op == NODE_INVALIDATE ? NODE_KERNEL : NODE_FLUSHES;

    for (unsigned i = 0; i < count; i++) {
        struct node_request request = *what;
        request.file = kernels[i].file;
        patience_begin(nodes, kernels[i].session, class, op, &request, &kernels[i].asking);
    }
}

static int end_one(struct kernel *kernel)
{
    int result = patience_end(&kernel->asking, LEAVING, NULL);

    /* -EIO is the end of its session, which the caller takes for the end of what its kernel had. */
    result = result > 0 ? -EPROTO : result;
    bool said = result != -EIO || !call_session_error(kernel->session);
    call_session_put(kernel->session);
    return said && (result == -EIO || node_result(result) != result) ? -EREMOTEIO : result;
}

/* The result of several, and of one more. A kernel whose session ends hides no other's error: see joined().
 */
static int with(int error, int one)
{
    return one != -ENOENT && (error == -ENOENT || !error || (error == -EIO && one)) ? one : error;
}

static int end(struct kernel *kernels, unsigned count)
{
    int error = -ENOENT;

    for (unsigned i = 0; i < count; i++)
        error = with(error, end_one(&kernels[i]));
    return error;
}

static int invalidate_there(struct cache_file *file, unsigned node, const struct node_request *invalidation)
{
    struct kernel kernels[KERNELS_MAX];
    unsigned count = find_kernels(file, node, kernels);

    begin(file->cache->nodes, kernels, count, NODE_INVALIDATE, invalidation);
    return end(kernels, count);
}

int home_invalidate_node(struct cache_file *file, unsigned node, off_t offset, off_t length)
{
    struct cache_host *host = &file->cache->host;

    if (node)
        return invalidate_there(file, node,
                                &(struct node_request){.offset = offset, .length = (uint64_t)length});
    lock_none("cache_host.invalidate");
    return host->invalidate(host->context, file->context, offset, length);
}

/* This node's result, and the agents'. */
static int joined(int error, int there)
{
    /* Its session ends: it sees by itself to it that it has nothing of the file any more. */
    if (there == -EIO)
        there = 0;
    else if (there == -EREMOTEIO)
        there = -EIO;
    return error && error != -ENOENT ? error : there != -ENOENT ? there : error;
}

int home_invalidate(struct cache_file *file, off_t offset, off_t length)
{
    const struct node_request invalidation = {.offset = offset, .length = (uint64_t)length};
    struct nodes *nodes = file->cache->nodes;
    struct kernel kernels[KERNELS_MAX];
    unsigned count = nodes ? find_kernels(file, ALL, kernels) : 0;

    begin(nodes, kernels, count, NODE_INVALIDATE, &invalidation);
    int error = home_invalidate_node(file, 0, offset, length);
    return joined(error, end(kernels, count));
}

/* A node's kernel can't be asked to write back alone. WRITEs on their way are healed, as a READ may come
 * between (cache/heal.h). */
static int drop_instead(struct cache_file *file, unsigned node, off_t offset, off_t length)
{
    pthread_mutex_lock(&file->lock);
    heal_window_open_node(file, node, (uint64_t)offset / GAIA_PAGE_SIZE,
                          (uint64_t)(offset + length - 1) / GAIA_PAGE_SIZE);
    pthread_mutex_unlock(&file->lock);
    int error = home_invalidate_node(file, node, offset, length);
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    pthread_mutex_unlock(&file->lock);
    return error;
}

int home_write_back(struct cache_file *file, unsigned except, off_t offset, off_t length)
{
    const struct node_request what = {.offset = offset, .length = (uint64_t)length};
    struct cache_host *host = &file->cache->host;
    struct kernel kernels[KERNELS_MAX];
    int error = -ENOENT, there = -ENOENT;
    bool here;

    if (!file->cache->nodes)
        return 0;
    lock_none("cache_host.write_back");
    unsigned count = find_dirty(file, except, kernels, &here);
    begin(file->cache->nodes, kernels, count, NODE_WRITE_BACK, &what);
    if (here)
        error = host->write_back(host->context, file->context, offset, length);
    if (error == -EAGAIN)
        error = drop_instead(file, 0, offset, length);
    for (unsigned i = 0; i < count; i++) {
        int one = end_one(&kernels[i]);
        there = with(there, one == -EAGAIN ? drop_instead(file, kernels[i].node, offset, length) : one);
    }
    error = joined(error, there);
    return error == -ENOENT ? 0 : error;
}

off_t home_size(struct cache_file *file, uint64_t *truncations_out)
{
    pthread_mutex_lock(&file->lock);
    off_t size = file->size;
    *truncations_out = file->truncations;
    pthread_mutex_unlock(&file->lock);
    return size;
}

int home_tell_size(struct cache_file *file)
{
    struct cache_host *host = &file->cache->host;
    struct node_request invalidation = {.offset = -1};
    int error = home_invalidate_node(file, 0, -1, 0);
    uint64_t cut, cut_meanwhile;
    off_t size = home_size(file, &cut);

    if (!error && size) {
        error = host->grow(host->context, file->context, size);
        home_size(file, &cut_meanwhile);
        if (cut != cut_meanwhile) /* by a program of this node, perhaps: the kernel is to ask again */
            home_invalidate_node(file, 0, -1, 0);
    }
    invalidation.length = (uint64_t)home_size(file, &invalidation.value);
    error = joined(error, invalidate_there(file, ALL, &invalidation));
    return error == -ENOENT ? 0 : error;
}

void home_tell_handed(struct cache_file *file, bool lost)
{
    struct kernel kernels[KERNELS_MAX];
    unsigned count = find_kernels(file, ALL, kernels);

    for (unsigned i = 0; i < count; i++) {
        struct node_request request = {.file = kernels[i].file, .flags = lost ? NODE_HANDED_LOST : 0};

        call(kernels[i].session, NODE_CALLS, NODE_HANDED, &request, sizeof request, NULL, NULL, PATIENCE_MS);
        call_session_put(kernels[i].session);
    }
}

ssize_t home_peek(struct cache_file *file, unsigned node, off_t offset, size_t length, void *bytes_out)
{
    struct cache_host *host = &file->cache->host;
    struct kernel kernels[KERNELS_MAX];
    ssize_t n = -EIO;

    if (!node)
        return host->peek(host->context, file->context, offset, length, bytes_out);
    unsigned count = find_kernels(file, node, kernels);
    for (unsigned i = 0; i < count; i++) {
        int slot = n == -EIO ? call_slot_get(kernels[i].session) : -EIO;
        if (slot >= 0) {
            n = nodes_ask(
                kernels[i].session, NODE_HEALS, NODE_PEEK,
                &(struct node_request){
                    .file = kernels[i].file, .offset = offset, .length = length, .slot = (uint32_t)slot},
                NULL);
            if (n > (ssize_t)length)
                n = -EIO;
            if (n > 0)
                memcpy(bytes_out, call_slot(kernels[i].session, (unsigned)slot), (size_t)n);
            call_slot_put(kernels[i].session, (unsigned)slot);
        }
        call_session_put(kernels[i].session);
    }
    return n;
}
