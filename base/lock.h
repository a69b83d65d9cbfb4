/* SPDX-License-Identifier: Apache-2.0 */
/* Locks and the order in which they may be taken. What each is for, and why the order is so: the tree at the
 * top of cache/cache.c. Here are its classes, outermost first.
 *
 * Locks are pthread's, and so are the calls on them. Only their beginning is spelled lock_init(),
 * lock_rw_init() and LOCK_INITIALIZER(), because it names the class. In checked builds (GAIAFS_CHECK_LOCKS:
 * `make DEBUG=1`, and all sanitizer builds) the same calls check the order first and end the program where it
 * is broken, also when no other thread is there to deadlock with. In the others nothing is left of it.
 *
 * The idea is lockdep's (Linux, Documentation/locking/lockdep-design.rst); the order is written down here
 * instead of learnt, so that the first wrong step is found, and not the second of two that contradict.
 */
#ifndef GAIAFS_BASE_LOCK_H
#define GAIAFS_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "base/order.h"

/* While a lock is held, only locks of classes further down may be taken, and none of its own class; and
 * nobody waits on a condition of another lock. Besides: */
enum lock_flags {
    LOCK_LEAF = 1,  /* nothing is taken while it is held */
    LOCK_ALONE = 2, /* it is taken only with no other lock held */
    LOCK_PAIR = 4,  /* two of the class may be held, the lower address taken first */
    /* Its condition may be waited on with others held: a peer answers, and needs none of them. */
    LOCK_PEER = 8,
};

#define LOCK_CLASSES(X)                                         \
    X(SESSIONS, "gaia_session.sessions_lock", LOCK_ALONE)       \
    X(SESSION, "gaia_session.lock", LOCK_ALONE)                 \
    X(DESCRIPTORS, "descriptors.lock", 0)                       \
    X(TABLE, "gaia_mapping.table_lock", LOCK_LEAF)              \
    X(DEMAND_CALLS, "demand_map.calls", LOCK_ALONE)             \
    X(DEMAND_RING, "demand_server.ring", LOCK_ALONE)            \
    X(DEMAND, "demand_server.lock", LOCK_LEAF)                  \
    X(SEARCH, "cuda_search.lock", LOCK_ALONE)                   \
    X(MODULE, "cuda_module.lock", LOCK_LEAF)                    \
    X(HANDLE, "handle.lock", LOCK_ALONE)                        \
    X(GATE, "inode.gate", LOCK_PAIR)                            \
    X(PASSTHROUGH, "fs.passthrough_lock", 0)                    \
    X(GPUS, "cache.gpus_lock", LOCK_ALONE)                      \
    X(CLIENT, "cache_client.lock", LOCK_ALONE)                  \
    X(CACHE, "cache.lock", 0)                                   \
    X(FILE, "cache_file.lock", 0)                               \
    X(DEVICES, "cache.devices_lock", 0)                         \
    X(SHARD, "inode_shard.lock", 0)                             \
    X(CLAIM, "claim.lock", LOCK_LEAF)                           \
    X(DEVICE, "cache_device.lock", LOCK_LEAF)                   \
    X(DURABLE, "durable.lock", LOCK_LEAF)                       \
    X(TWINS, "frame_pool.lock", LOCK_LEAF)                      \
    X(STAGES, "stage_pool.lock", LOCK_LEAF)                     \
    X(READAHEAD, "readahead.lock", LOCK_LEAF)                   \
    X(GROUP, "fill_group.lock", LOCK_LEAF)                      \
    X(HEALER, "healer.lock", LOCK_LEAF)                         \
    X(DROPPER, "dropper.lock", LOCK_LEAF)                       \
    X(NODES, "nodes.lock", LOCK_LEAF)                           \
    X(HOME_SESSION, "home_session.lock", LOCK_LEAF)             \
    X(FILLER, "filler.lock", LOCK_LEAF)                         \
    X(EVICTOR, "evictor.lock", LOCK_LEAF)                       \
    X(IO, "gaia_io.lock", LOCK_LEAF)                            \
    X(URING, "gaia_io_uring.lock", LOCK_LEAF)                   \
    X(URING_FILES, "gaia_io_uring.files_lock", LOCK_LEAF)       \
    X(POOL, "gaia_io_pool.lock", LOCK_LEAF)                     \
    X(FAULT_PATH, "fault_path.lock", LOCK_LEAF)                 \
    X(FAULT_THREADS, "fault_threads.lock", LOCK_LEAF)           \
    X(CUDA_CHUNKS, "cuda_frames.making", 0)                     \
    X(CUDA_FRAMES, "cuda_frames.lock", 0)                       \
    X(STANDING, "standing.lock", 0)                             \
    X(GPU, "home_gpu.lock", LOCK_LEAF)                          \
    X(GPU_LANES, "home_gpu.lanes_lock", LOCK_LEAF)              \
    X(GPU_TURN, "home_gpu.turn", LOCK_LEAF)                     \
    X(CALLS, "calls.lock", LOCK_LEAF)                           \
    X(CALL_SESSION, "call_session.lock", LOCK_LEAF | LOCK_PEER) \
    X(PULL, "gaia_pull.lock", LOCK_LEAF)                        \
    X(TRANSPORT, "gaia_transport.lock", LOCK_LEAF)              \
    X(SERVER, "server.lock", LOCK_LEAF)                         \
    X(TOKENS, "token_table.lock", LOCK_LEAF)                    \
    X(PROGRAMS, "programs.lock", LOCK_LEAF)                     \
    X(HANDLES, "fs.handles_lock", LOCK_LEAF)                    \
    X(VOLUMES, "volumes.lock", LOCK_LEAF)                       \
    X(PRUNER, "pruner.lock", LOCK_LEAF)                         \
    X(PEEK, "peek.lock", LOCK_LEAF)                             \
    X(FLUSHER, "flusher.lock", LOCK_LEAF)                       \
    X(ANSWERS, "answers.lock", LOCK_LEAF)                       \
    X(TROUBLE, "trouble.lock", LOCK_LEAF)                       \
    X(DROPS, "fs.drops_lock", LOCK_LEAF)                        \
    X(COPIES, "home_copy.copies.lock", LOCK_LEAF)               \
    X(CUDA_LOAD, "cuda_load.lock", LOCK_LEAF)                   \
    X(LOOP, "loop.lock", LOCK_ALONE | LOCK_LEAF)                \
    X(NOTIFY, "fs.notify_gate", LOCK_ALONE | LOCK_LEAF)         \
    X(MAPS, "soft_frames.maps_lock", LOCK_ALONE | LOCK_LEAF)

enum lock_class {
    LOCK_UNCHECKED, /* the tests' own */
#define X(name, text, flags) LOCK_##name,
    LOCK_CLASSES(X)
#undef X
};

#ifdef GAIAFS_CHECK_LOCKS
struct lock_mutex {
    pthread_mutex_t lock;
    enum lock_class class;
};
struct lock_rwlock {
    pthread_rwlock_t lock;
    enum lock_class class;
};

#define LOCK_STRING_(x) #x
#define LOCK_STRING(x) LOCK_STRING_(x)
#define LOCK_HERE __FILE__ ":" LOCK_STRING(__LINE__)

/* Each ends the program when the order is broken. take: is about to wait for a lock; tried: has got one
 * without waiting, which can't deadlock; free: lets it go; wait: waits on a condition of it; anew: begins
 * (again, in the child of a fork); none: does what no lock may be held over. */
void lock_check_take(const void *lock, enum lock_class class, const char *where);
int lock_check_tried(int error, const void *lock, enum lock_class class, const char *where);
void lock_check_free(const void *lock, enum lock_class class, const char *where);
void lock_check_wait(const void *lock, enum lock_class class, const char *where);
void lock_check_anew(const void *lock);
void lock_check_none(const char *what, const char *where);

#define pthread_mutex_t struct lock_mutex
#define pthread_rwlock_t struct lock_rwlock
#undef PTHREAD_MUTEX_INITIALIZER
#define PTHREAD_MUTEX_INITIALIZER LOCK_INITIALIZER(LOCK_UNCHECKED)
#define LOCK_INITIALIZER(c) \
    {                       \
        .class = (c)        \
    } /* the C library's is all zeros */

#define LOCK_TAKE(call, l) (lock_check_take(l, (l)->class, LOCK_HERE), call(&(l)->lock))
#define LOCK_TRY(call, l) lock_check_tried(call(&(l)->lock), l, (l)->class, LOCK_HERE)
#define LOCK_FREE(call, l) (lock_check_free(l, (l)->class, LOCK_HERE), call(&(l)->lock))
#define LOCK_WAIT(l) lock_check_wait(l, (l)->class, LOCK_HERE)
#define pthread_mutex_lock(l) LOCK_TAKE(pthread_mutex_lock, l)
#define pthread_mutex_trylock(l) LOCK_TRY(pthread_mutex_trylock, l)
#define pthread_mutex_unlock(l) LOCK_FREE(pthread_mutex_unlock, l)
#define pthread_mutex_destroy(l) pthread_mutex_destroy(&(l)->lock)
#define pthread_rwlock_rdlock(l) LOCK_TAKE(pthread_rwlock_rdlock, l)
#define pthread_rwlock_wrlock(l) LOCK_TAKE(pthread_rwlock_wrlock, l)
#define pthread_rwlock_tryrdlock(l) LOCK_TRY(pthread_rwlock_tryrdlock, l)
#define pthread_rwlock_trywrlock(l) LOCK_TRY(pthread_rwlock_trywrlock, l)
#define pthread_rwlock_unlock(l) LOCK_FREE(pthread_rwlock_unlock, l)
#define pthread_rwlock_destroy(l) pthread_rwlock_destroy(&(l)->lock)
#define pthread_cond_wait(c, l) (LOCK_WAIT(l), pthread_cond_wait(c, &(l)->lock))
#define pthread_cond_timedwait(c, l, t) (LOCK_WAIT(l), pthread_cond_timedwait(c, &(l)->lock, t))
#define pthread_join(thread, result) \
    (lock_check_none("pthread_join", LOCK_HERE), pthread_join(thread, result))
#define pthread_mutex_init(l, a) ((l)->class = LOCK_UNCHECKED, pthread_mutex_init(&(l)->lock, a))
#define pthread_rwlock_init(l, a) ((l)->class = LOCK_UNCHECKED, pthread_rwlock_init(&(l)->lock, a))
#define LOCK_CLASSIFY(l, c) (lock_check_anew(l), (void)((l)->class = (c)))
#define lock_none(what) lock_check_none(what, LOCK_HERE)
#else
#define LOCK_INITIALIZER(c) PTHREAD_MUTEX_INITIALIZER
#define LOCK_CLASSIFY(l, c) ((void)(c))
#define lock_none(what) ((void)0) /* no lock of ours may be held here */
#endif

/* A new lock; in the child of a fork, a copy of the parent's. */
static inline void lock_init(pthread_mutex_t *mutex, enum lock_class class)
{
    pthread_mutex_init(mutex, NULL);
    LOCK_CLASSIFY(mutex, class);
}

/* A condition, and the time limit of a wait for it: no step of the clock stretches or cuts it. */
static inline void lock_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static inline struct timespec lock_wait_by(clockid_t clock, unsigned timeout_ms)
{
    struct timespec until;

    clock_gettime(clock, &until);
    until.tv_nsec += (long)timeout_ms % 1000 * 1000000;
    until.tv_sec += (time_t)(timeout_ms / 1000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

static inline struct timespec lock_wait_until(unsigned timeout_ms)
{
    return lock_wait_by(CLOCK_MONOTONIC, timeout_ms);
}

/* Whether such a time is over. */
static inline bool lock_is_past(const struct timespec *until)
{
    struct timespec now = lock_wait_until(0);

    return now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec > until->tv_nsec);
}

/* Whether the thread has ended, and is joined, within that time. (ThreadSanitizer of gcc 12 and clang 14 does
 * not know pthread_clockjoin_np(): there by the clock that may be set.) */
static inline bool lock_join_within(pthread_t thread, unsigned timeout_ms)
{
#if defined(GAIAFS_UNDER_TSAN)
    struct timespec until = lock_wait_by(CLOCK_REALTIME, timeout_ms);
    return !pthread_timedjoin_np(thread, NULL, &until);
#else
    struct timespec until = lock_wait_until(timeout_ms);
    if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until))
        return false;
    order_joined(thread);
    return true;
#endif
}

/* writers_first: a stream of readers does not keep a writer out for ever. A thread that has it shared must
 * not take it again then. */
static inline void lock_rw_init(pthread_rwlock_t *rwlock, enum lock_class class, bool writers_first)
{
    pthread_rwlockattr_t attributes;

    pthread_rwlockattr_init(&attributes);
    if (writers_first)
        pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(rwlock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    LOCK_CLASSIFY(rwlock, class);
}

#endif
