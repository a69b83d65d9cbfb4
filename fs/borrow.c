/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/borrow.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "fs/fs.h"
#include "fs/place.h"

#define JUST_NS UINT64_C(10000000)
#define NAPS_MAX 100
#define NAP_US 100u

void descriptors_init(struct descriptors *descriptors, unsigned max)
{
    for (unsigned kind = 0; kind < DESCRIPTOR_KINDS; kind++) {
        TAILQ_INIT(&descriptors->idle[kind]);
        descriptors->count[kind] = 0;
        descriptors->max[kind] = kind == DESCRIPTOR_KEPT ? UINT_MAX : max;
    }
}

/* --- the lists, with the shard's lock held --- */

static void begin_use(struct descriptors *descriptors, struct descriptor *descriptor)
{
    if (descriptor->users++ == 0)
        TAILQ_REMOVE(&descriptors->idle[descriptor->kind], descriptor, link);
}

static void end_use(struct descriptors *descriptors, struct descriptor *descriptor)
{
    if (--descriptor->users == 0)
        TAILQ_INSERT_TAIL(&descriptors->idle[descriptor->kind], descriptor, link);
}

/* Takes an idle one away from its inode. */
static void take_away(struct descriptors *descriptors, struct descriptor *descriptor,
                      struct descriptor_list *closing)
{
    TAILQ_REMOVE(&descriptors->idle[descriptor->kind], descriptor, link);
    descriptors->count[descriptor->kind]--;
    descriptor->inode->open = NULL;
    if (descriptor->kind == DESCRIPTOR_LAST)
        descriptor->inode->bared = descriptor->inode->handles > 0;
    TAILQ_INSERT_TAIL(closing, descriptor, link);
}

/* The next to be closed: rather the last one of a file that somebody has open, to which a handle leads, than
 * one without which nothing does. NULL: all are in use. */
static struct descriptor *choose(const struct descriptors *descriptors, enum descriptor_kind kind)
{
    struct descriptor *descriptor;

    if (kind == DESCRIPTOR_LAST)
        TAILQ_FOREACH (descriptor, &descriptors->idle[kind], link)
            if (descriptor->inode->handles)
                return descriptor;
    return TAILQ_FIRST(&descriptors->idle[kind]);
}

void descriptors_trim(struct inode_shard *shard, struct descriptor_list *closing)
{
    struct descriptors *descriptors = &shard->descriptors;

    struct descriptor *descriptor;

    for (unsigned kind = 0; kind < DESCRIPTOR_KINDS; kind++)
        while (descriptors->count[kind] > descriptors->max[kind] && (descriptor = choose(descriptors, kind)))
            take_away(descriptors, descriptor, closing);
}

int descriptors_add(struct inode_shard *shard, struct inode *inode, int fd, enum descriptor_kind kind)
{
    struct descriptors *descriptors = &shard->descriptors;
    struct descriptor *descriptor = malloc(sizeof(*descriptor));

    if (!descriptor)
        return -ENOMEM;
    *descriptor = (struct descriptor){.inode = inode, .fd = fd, .kind = kind};
    inode->open = descriptor;
    descriptors->count[kind]++;
    TAILQ_INSERT_TAIL(&descriptors->idle[kind], descriptor, link);
    return 0;
}

void descriptors_remove(struct inode_shard *shard, struct inode *inode, struct descriptor_list *closing)
{
    if (inode->open)
        take_away(&shard->descriptors, inode->open, closing);
}

void descriptors_mark(struct inode_shard *shard, struct inode *inode, bool last)
{
    enum descriptor_kind kind = last ? DESCRIPTOR_LAST : DESCRIPTOR_CACHED;
    struct descriptors *descriptors = &shard->descriptors;
    struct descriptor *descriptor = inode->open;

    if (descriptor->kind == DESCRIPTOR_KEPT || descriptor->kind == kind)
        return;
    begin_use(descriptors, descriptor);
    descriptors->count[descriptor->kind]--;
    descriptors->count[kind]++;
    descriptor->kind = kind;
    end_use(descriptors, descriptor);
}

/* --- without it --- */

void descriptors_close(struct descriptor_list *closing)
{
    struct descriptor *descriptor;

    while ((descriptor = TAILQ_FIRST(closing))) {
        TAILQ_REMOVE(closing, descriptor, link);
        close(descriptor->fd);
        free(descriptor);
    }
}

/* Those that are kept for the next, and the last ones of files that somebody has open: a handle leads to
 * them. */
static void shed(struct inode_shard *shard, struct descriptor_list *closing)
{
    struct descriptors *descriptors = &shard->descriptors;
    struct descriptor *descriptor;

    pthread_mutex_lock(&shard->lock);
    while ((descriptor = choose(descriptors, DESCRIPTOR_CACHED)))
        take_away(descriptors, descriptor, closing);
    while ((descriptor = choose(descriptors, DESCRIPTOR_LAST)) && descriptor->inode->handles)
        take_away(descriptors, descriptor, closing);
    pthread_mutex_unlock(&shard->lock);
}

/* Whether another thread has just closed what this one would have. */
static bool others_shed(struct inode_table *table)
{
    for (int naps = 0; atomic_load(&table->shedding) && naps < NAPS_MAX; naps++)
        usleep(NAP_US);
    uint64_t at = atomic_load(&table->shed_at_ns);
    return at && clock_now_ns() - at < JUST_NS;
}

bool descriptors_shed(struct fs *fs, int error)
{
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct inode_table *table = &fs->inodes;
    bool some;

    if (error != EMFILE && error != ENFILE)
        return false;

    atomic_fetch_add(&table->shedding, 1);
    for (unsigned i = 0; i < INODE_SHARDS; i++)
        shed(&table->shards[i], &closing);
    some = !TAILQ_EMPTY(&closing);
    descriptors_close(&closing);
    if (some)
        atomic_store(&table->shed_at_ns, clock_now_ns());
    atomic_fetch_sub(&table->shedding, 1);
    some = some || others_shed(table);
    errno = error; /* of the call, whose caller may look at it still */
    return some;
}

int descriptors_openat(struct fs *fs, int at, const char *path, int flags, mode_t mode)
{
    int fd = openat(at, path, flags, mode);

    if (fd < 0 && descriptors_shed(fs, errno))
        fd = openat(at, path, flags, mode);
    return fd < 0 ? -errno : fd;
}

int descriptors_open_quietly(struct fs *fs, int at, const char *path, int flags, mode_t mode, int quiet)
{
    int fd = descriptors_openat(fs, at, path, flags | quiet, mode);

    return fd == -EPERM && quiet & ~flags ? descriptors_openat(fs, at, path, flags, mode) : fd;
}

static int open_by_key(struct inode *inode)
{
    if (inode->handle_bytes)
        return volume_open(inode->volume, inode->handle_type, inode->handle, inode->handle_bytes);
    return place_open(inode);
}

/* Through a descriptor that some program has open: good for a file that has lost its name, too. */
static int open_by_handle_of_program(struct inode *inode)
{
    struct fs *fs = inode->fs;
    int fd = -ESTALE;

    pthread_mutex_lock(&fs->handles_lock);
    for (struct handle *handle = fs->handles; handle && fd == -ESTALE; handle = handle->next) {
        if (handle->inode != inode)
            continue;
        fd = open(proc_path(handle->fd).text, O_PATH | O_CLOEXEC);
        fd = fd < 0 ? -errno : fd;
    }
    pthread_mutex_unlock(&fs->handles_lock);
    return fd;
}

static int open_inode(struct inode *inode)
{
    headroom_keep(&inode->fs->headroom);
    int fd = open_by_key(inode);

    if (fd < 0 && descriptors_shed(inode->fs, -fd))
        fd = open_by_key(inode);
    return fd == -ESTALE ? open_by_handle_of_program(inode) : fd;
}

/* The inode's descriptor, if it is open, begins to be used. Shard's lock held. */
static int use_open(struct inode_shard *shard, struct inode *inode)
{
    if (!inode->open)
        return -ENOENT;
    begin_use(&shard->descriptors, inode->open);
    inode->references++;
    return inode->open->fd;
}

struct borrowed inode_borrow(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct borrowed borrowed = {.inode = inode};
    int fd, error = 0;

    pthread_mutex_lock(&shard->lock);
    borrowed.fd = use_open(shard, inode);
    pthread_mutex_unlock(&shard->lock);
    if (borrowed.fd >= 0)
        return borrowed;
    fd = open_inode(inode);
    if (fd < 0)
        return (struct borrowed){.inode = inode, .fd = fd};
    pthread_mutex_lock(&shard->lock);
    if (!inode->open) {
        error = descriptors_add(shard, inode, fd, DESCRIPTOR_CACHED);
        fd = error ? fd : -1;
    }
    borrowed.fd = error ? error : use_open(shard, inode);
    descriptors_trim(shard, &closing);
    pthread_mutex_unlock(&shard->lock);
    if (fd >= 0)
        close(fd);
    descriptors_close(&closing);
    return borrowed;
}

void inode_return(struct borrowed *borrowed)
{
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct inode_shard *shard;

    if (borrowed->fd < 0)
        return;
    shard = shard_of_inode(borrowed->inode);
    pthread_mutex_lock(&shard->lock);
    end_use(&shard->descriptors, borrowed->inode->open);
    descriptors_trim(shard, &closing);
    inode_put_locked(shard, borrowed->inode);
    descriptors_close(&closing);
}
