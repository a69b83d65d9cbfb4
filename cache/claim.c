/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc_path.h"
#include "cache/drop.h"
#include "cache/fit.h"
#include "cache/home.h"
#include "cache/home_device.h"
#include "cache/sure.h"

#define CLAIM_BYTE (INT64_MAX - 1) /* no file is so long; a lock of a whole file has it, too */
#define END_BYTE (INT64_MAX - 3)   /* not beside it: the kernel makes one lock of two neighbours */
#define END_WAIT_NS UINT64_C(2000000000)
#define END_PAUSE_US 20u

void claim_init(struct claim *claim)
{
    *claim = (struct claim){.state = CLAIM_NONE};
    lock_init(&claim->lock, LOCK_CLAIM);
    pthread_cond_init(&claim->moved, NULL);
}

void claim_destroy(struct claim *claim)
{
    pthread_cond_destroy(&claim->moved);
    pthread_mutex_destroy(&claim->lock);
}

static struct flock lock_of(short type, off_t byte)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

static int lock_byte(int fd, short type, off_t byte)
{
    struct flock lock = lock_of(type, byte);
    int rc;

    do
        rc = fcntl(fd, F_OFD_SETLK, &lock);
    while (rc && errno == EINTR);
    return !rc ? 0 : errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
}

/* type: F_WRLCK, F_RDLCK, F_UNLCK. A daemon that may not write the file shares it with others that may not:
 * none of them changes a byte. */
static int lock_backing(const struct cache_file *file, short type)
{
    return lock_byte(file->fd, type, CLAIM_BYTE);
}

static void move(struct claim *claim, enum claim_state state)
{
    pthread_mutex_lock(&claim->lock);
    claim->state = state;
    pthread_cond_broadcast(&claim->moved);
    pthread_mutex_unlock(&claim->lock);
}

/* The kernel's pages of this mount: those that CPUs have stored to are written back, all are dropped. A
 * write() may be on its way whose page goes, and is read again before it comes: cache/heal.h. */
static int empty_kernel(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    heal_window_open(file, 0, UINT64_MAX);
    pthread_mutex_unlock(&file->lock);
    int error = home_invalidate(file, 0, 0);
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    pthread_mutex_unlock(&file->lock);
    return error == -ENOENT ? 0 : error; /* the kernel does not know the file: it holds nothing */
}

int claim_take(struct cache_file *file)
{
    struct claim *claim = &file->claim;
    int error = 0;

    if (!file->cache->config.shared)
        return 0;
    pthread_mutex_lock(&claim->lock);
    while (claim->state == CLAIM_MOVING)
        pthread_cond_wait(&claim->moved, &claim->lock);
    bool first = claim->state == CLAIM_NONE;
    if (first)
        claim->state = CLAIM_MOVING; /* the lock is not held over a call that a server answers */
    else
        claim->maps++;
    pthread_mutex_unlock(&claim->lock);
    if (!first)
        return 0;
    error = lock_backing(file, file->writable ? F_WRLCK : F_RDLCK);
    if (error == -EBUSY && file->cache->nodes && nodes_home_went(file->cache->nodes))
        error = -EINPROGRESS;
    if (!error && file->given_up) { /* after claim_give_up() */
        lock_backing(file, F_UNLCK);
        error = -EIO;
    }
    if (!error) { /* no store may bring back what is older there than another mount's */
        error = empty_kernel(file);
        if (error)
            lock_backing(file, F_UNLCK);
    }
    pthread_mutex_lock(&claim->lock);
    claim->maps += !error;
    claim->state = error ? CLAIM_NONE : CLAIM_HELD;
    pthread_cond_broadcast(&claim->moved);
    pthread_mutex_unlock(&claim->lock);
    return error;
}

/* Nobody else moves the claim until end_reopen(), or gives it back. Whether it is held. */
static bool begin_reopen(struct claim *claim)
{
    pthread_mutex_lock(&claim->lock);
    while (claim->state == CLAIM_MOVING)
        pthread_cond_wait(&claim->moved, &claim->lock);
    bool held = claim->state == CLAIM_HELD;
    claim->maps += held;
    claim->state = CLAIM_MOVING;
    pthread_mutex_unlock(&claim->lock);
    return held;
}

static void end_reopen(struct cache_file *file, bool held)
{
    move(&file->claim, held ? CLAIM_HELD : CLAIM_NONE);
    if (held)
        claim_put(file);
}

/* Whoever has the file's end, by the old description, has the file's lock, too. What that description has
 * locked goes with it, but the storage engine keeps it. Lock taken. */
static int replace(struct cache_file *file, int fd, bool held)
{
    pthread_mutex_lock(&file->lock);
    if (held)
        lock_backing(file, F_UNLCK);
    int error = dup3(fd, file->fd, O_CLOEXEC) < 0 ? -errno : 0;
    if (error && held)
        lock_backing(file, F_RDLCK); /* nobody has had it alone: the new one has it, too */
    pthread_mutex_unlock(&file->lock);
    return error;
}

static int reopen(struct cache_file *file, int fd, bool held)
{
    /* The two share it, until the new one has it alone. */
    int error = held ? lock_byte(fd, F_RDLCK, CLAIM_BYTE) : 0;

    if (!error)
        error = replace(file, fd, held);
    if (!error && held)
        error = lock_backing(file, F_WRLCK);
    if (held && file->given_up) { /* after claim_give_up() */
        lock_backing(file, F_UNLCK);
        error = -EIO;
    }
    if (!error)
        file->writable = true;
    return error;
}

int claim_reopen(struct cache_file *file, int fd)
{
    bool claims = file->cache->config.shared, held = claims && begin_reopen(&file->claim);
    /* Another map may have been first: then the claim is a writer's, which keeps fd out. */
    int error = file->writable ? 0 : reopen(file, fd, held);

    if (claims)
        end_reopen(file, held);
    return error;
}

int claim_empty(struct replica *replica)
{
    int error = drop_range(replica, 0, UINT64_MAX);

    if (error && gaia_node_frames_gone(replica->frames)) { /* nothing can be had of it any more */
        home_device_lose(replica);
        error = 0;
    }
    return error;
}

/* Replicas are only ever added, and not while the claim is moving. */
static int empty_all(struct cache_file *file)
{
    struct replica *replica;
    int error = 0;

    /* Another node may be the home by now: what was released is kept, and collected later, or given up. */
    if (file->cache->nodes && !nodes_are_sure(file->cache->nodes))
        return -EBUSY;
    pthread_mutex_lock(&file->lock);
    replica = SLIST_FIRST(&file->replicas);
    pthread_mutex_unlock(&file->lock);
    for (; replica; replica = SLIST_NEXT(replica, link)) {
        int one = claim_empty(replica);
        error = error ? error : one;
    }
    return error;
}

/* What another mount has cut off meanwhile is not to come back with what devices stored there. */
static void look_at_size(struct cache_file *file)
{
    struct stat st;

    pthread_mutex_lock(&file->lock);
    if (!fstat(file->fd, &st))
        file_resized(file, st.st_size);
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
}

bool claim_is_shared(const struct cache_file *file)
{
    return file->cache->config.shared && !file->cache->nodes; /* nodes change a file by its home */
}

/* Not that of a whole file, which a program in the data directory may keep. */
static bool is_end_lock(int fd)
{
    struct flock lock = lock_of(F_WRLCK, END_BYTE);

    return !fcntl(fd, F_OFD_GETLK, &lock) &&
           (lock.l_type == F_UNLCK || (lock.l_start == END_BYTE && lock.l_len == 1));
}

bool claim_hold_end(int fd, bool *missed)
{
    uint64_t until = missed && *missed ? 0 : clock_now_ns() + END_WAIT_NS;
    bool late = false;
    int error;

    while ((error = lock_byte(fd, F_WRLCK, END_BYTE)) == -EBUSY && is_end_lock(fd) &&
           !(late = clock_now_ns() >= until))
        usleep(END_PAUSE_US);
    if (missed)
        *missed = late;
    return !error;
}

void claim_let_end_go(int fd)
{
    lock_byte(fd, F_UNLCK, END_BYTE);
}

void cache_end_hold(struct cache *cache, int fd, int path_fd, bool *missed, struct cache_end *end_out)
{
    bool shared = cache->config.shared && !cache->nodes;
    int own = shared && fd < 0 ? open(proc_path(path_fd).text, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    int held = fd < 0 ? own : fd;
    bool holds = shared && held >= 0 && claim_hold_end(held, missed);

    *end_out = (struct cache_end){.held = holds ? held : -1, .own = own};
}

void cache_end_let_go(const struct cache_end *end)
{
    if (end->held >= 0)
        claim_let_end_go(end->held);
    if (end->own >= 0)
        close(end->own);
}

int cache_cut(int fd, int path_fd, off_t size)
{
    return (fd < 0 ? truncate(proc_path(path_fd).text, size) : ftruncate(fd, size)) ? -errno : 0;
}

void claim_give_up(struct cache_file *file)
{
    lock_backing(file, F_UNLCK); /* its state goes on being counted: nobody takes it here any more */
}

void claim_put(struct cache_file *file)
{
    struct claim *claim = &file->claim;

    if (!file->cache->config.shared)
        return;
    pthread_mutex_lock(&claim->lock);
    bool last = --claim->maps == 0;
    if (last)
        claim->state = CLAIM_MOVING;
    pthread_mutex_unlock(&claim->lock);
    if (!last)
        return;
    look_at_size(file);
    int error = empty_all(file);
    if (!error)
        error = empty_kernel(file);
    if (!error)
        error = lock_backing(file, F_UNLCK);
    move(claim, error ? CLAIM_HELD : CLAIM_NONE);
}
