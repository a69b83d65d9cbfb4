/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel wakes the threads that wait for a request in turn, the one that has waited longest first. With
 * libfuse's own loop all threads that a burst has called for go on waiting, and each small request of a
 * single program then finds another one, on another processor, with a stack and buffers that no cache holds
 * any more: two to four times the time of a request (docs/tuning.md). So only a few wait in the kernel
 * here. A thread that takes a request and leaves none waiting wakes one that sleeps, or makes one; a thread
 * that has answered and finds enough of them waiting goes to sleep, and after a while ends.
 *
 * A thread whose request waits for the filesystem below (one that is frozen, a server that does not answer)
 * serves nobody meanwhile. When all that may be there have waited for a while, more are made: else a few
 * writers would keep every reader waiting. Who serves requests does nothing for that: a thread that leaves
 * none waiting has the lock anyway, and tells the first thread, which looks again a while later. */
#include "fs/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/follow.h"
#include "fs/log.h"
#include "fs/memory.h"

#define IDLE_MS 10000u /* then a sleeping thread ends, and its buffers with it */
#define THREADS_MIN 16l
#define THREADS_A_PROCESSOR 4l
#define THREADS_LEAST 8u               /* however small the memory is */
#define BACKGROUND_MIN 64l             /* two programs' queues of 32 */
#define BACKGROUND_MAX 4096l           /* the field has 16 bits */
#define THREAD_BYTES ((size_t)2 << 20) /* its buffers, when it has had a large request and a large read */
#define STUCK_MS 250u                  /* if none has got on for so long */
#define STUCK_MOST 1024u               /* threads more, however much memory there is: */
#define STUCK_PART 4u                  /* and of those that it may have at all, which are others' as well */

struct loop_worker {
    struct loop *loop;
    pthread_t thread;
    struct fuse_buf request; /* libfuse allocates it, with room for the largest */
    pthread_cond_t wake;
    struct follower follower;
    bool sleeping; /* in loop->sleepers */
    atomic_bool receiving;
    LIST_ENTRY(loop_worker) entry;
    SLIST_ENTRY(loop_worker) sleeper;
};

static __thread struct loop_worker *here; /* whose thread this is */

static void *work(void *argument);

/* loop->lock held. 0 or a negative errno. */
static int start_worker(struct loop *loop)
{
    struct loop_worker *worker = calloc(1, sizeof(*worker));
    int rc;

    if (!worker)
        return -ENOMEM;
    worker->loop = loop;
    lock_condition_init(&worker->wake);
    atomic_fetch_add(&loop->reading, 1); /* before it runs: others are not to make more meanwhile */
    rc = -follow_create(&worker->thread, work, worker);
    if (rc < 0) {
        atomic_fetch_sub(&loop->reading, 1);
        pthread_cond_destroy(&worker->wake);
        free(worker);
        return rc;
    }
    LIST_INSERT_HEAD(&loop->workers, worker, entry);
    loop->count++;
    return 0;
}

static void free_worker(struct loop_worker *worker)
{
    pthread_cond_destroy(&worker->wake);
    free(worker->request.mem);
    free(worker);
}

/* How many threads there may be now. Lock held. */
static unsigned allowed(const struct loop *loop)
{
    return loop->most + loop->waiting + loop->more;
}

/* Another thread waits for a request, or is about to. False: there is none. Lock held. */
static bool add_reader(struct loop *loop)
{
    struct loop_worker *worker = SLIST_FIRST(&loop->sleepers);

    if (!worker)
        return loop->count < allowed(loop) && start_worker(loop) == 0;
    SLIST_REMOVE_HEAD(&loop->sleepers, sleeper);
    worker->sleeping = false;
    atomic_fetch_add(&loop->reading, 1);
    pthread_cond_signal(&worker->wake);
    return true;
}

/* Nobody waits for a request any more. One too many does no harm. */
static void call_another(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    if (!loop->ending && !add_reader(loop)) { /* those that are there go on, if they can */
        loop->exhausted++;
        if (!loop->watched)
            pthread_cond_signal(&loop->change);
        loop->watched = true;
    }
    pthread_mutex_unlock(&loop->lock);
}

/* All threads that may be there are at work. Of those that get on, each one that takes a request meanwhile
 * finds that nobody is left. First as many more as there were, then twice as many, and so on: what waits in
 * the kernel may be long. Also where a thread could not be made, as everybody's next may be that one. Lock
 * held, which is let go meanwhile. */
static void watch(struct loop *loop)
{
    struct timespec until = lock_wait_until(STUCK_MS);
    uint64_t exhausted = loop->exhausted;
    int rc = 0;

    while (rc == 0 && !loop->ending)
        rc = pthread_cond_timedwait(&loop->change, &loop->lock, &until);
    if (loop->ending || loop->exhausted != exhausted)
        return;
    if (atomic_load(&loop->reading)) {
        loop->watched = false;
        return;
    }
    if (loop->count >= allowed(loop)) {
        loop->more += loop->more ? loop->more : loop->most;
        if (loop->more > loop->most_more)
            loop->more = loop->most_more;
    }
    add_reader(loop);
}

/* Sleeps if enough others wait. False: the thread is to end. True: it is counted in loop->reading. */
static bool rest(struct loop_worker *worker)
{
    struct loop *loop = worker->loop;
    struct timespec until = lock_wait_until(IDLE_MS);
    int rc = 0;

    pthread_mutex_lock(&loop->lock);
    /* Looked at again: who left nobody waiting a moment ago has not seen us among the sleepers. */
    if (atomic_load(&loop->reading) < (int)loop->wanted || loop->ending) {
        atomic_fetch_add(&loop->reading, 1);
        pthread_mutex_unlock(&loop->lock);
        return true;
    }
    /* It stays where it followed to: who waits for each request has the answering threads pre-empted, so that
     * they come and go here all the time. Called for somebody else it moves away. */
    worker->sleeping = true;
    SLIST_INSERT_HEAD(&loop->sleepers, worker, sleeper);
    while (worker->sleeping && rc == 0 && !loop->ending)
        rc = pthread_cond_timedwait(&worker->wake, &loop->lock, &until);
    bool called = !worker->sleeping, ending = loop->ending;
    if (!called) {
        SLIST_REMOVE(&loop->sleepers, worker, loop_worker, sleeper);
        worker->sleeping = false;
    }
    if (!called && !ending) {
        LIST_REMOVE(worker, entry);
        loop->count--;
        if (loop->count <= loop->most)
            loop->more = 0;
    }
    pthread_mutex_unlock(&loop->lock);
    if (called)
        return true;
    if (!ending) { /* nobody will join it */
        pthread_detach(worker->thread);
        free_worker(worker);
    }
    return false;
}

/* The next request, or what fuse_session_receive_buf() says: -EINTR when loop_serve() wants the thread back.
 */
static int receive(struct loop_worker *worker)
{
    atomic_store(&worker->receiving, true);
    int rc = fuse_session_receive_buf(worker->loop->fs->session, &worker->request);
    atomic_store(&worker->receiving, false);
    return rc;
}

static void on_wake(int signal_number)
{
    (void)signal_number;
}

/* The session has ended. A read of the kernel's requests is interrupted by a signal, again and again, as a
 * signal may come just before the read; work under way is left to end by itself. No pthread_cancel(): a
 * cancelled thread leaves no frame in order, which AddressSanitizer takes for an error, and needs a library
 * that may not be loaded yet. */
static void join(struct loop_worker *worker)
{
    while (!lock_join_within(worker->thread, 5))
        if (atomic_load(&worker->receiving))
            pthread_kill(worker->thread, SIGUSR1);
}

static void end_with(struct loop *loop, int error)
{
    pthread_mutex_lock(&loop->lock);
    loop->ending = true;
    if (error)
        loop->error = error;
    pthread_cond_signal(&loop->change);
    pthread_mutex_unlock(&loop->lock);
}

static void *work(void *argument)
{
    struct loop_worker *worker = argument;
    struct loop *loop = worker->loop;
    struct fuse_session *session = loop->fs->session;

    here = worker;
    while (!fuse_session_exited(session)) {
        int rc = receive(worker);

        if (rc == -EINTR || rc == -EAGAIN)
            continue;
        if (rc == -ENOMEM) { /* no buffer for it: who answers will free some */
            usleep(10000);
            continue;
        }
        if (rc <= 0) {
            if (rc < 0)
                fs_log(LOG_ERR, "reading requests of the kernel: %s: the mount ends", strerror(-rc));
            fuse_session_exit(session);
            end_with(loop, rc);
            return NULL;
        }
        if (atomic_fetch_sub(&loop->reading, 1) == 1)
            call_another(loop);
        follow(&worker->follower, worker->request.mem, (size_t)rc, fuse_session_fd(session));
        fuse_session_process_buf(session, &worker->request);
        if (atomic_fetch_add(&loop->reading, 1) >= (int)loop->wanted) {
            atomic_fetch_sub(&loop->reading, 1);
            if (!rest(worker))
                return NULL;
        }
    }
    end_with(loop, 0);
    return NULL;
}

bool loop_wait_begin(void)
{
    struct loop *loop = here ? here->loop : NULL;

    if (!loop)
        return true;
    pthread_mutex_lock(&loop->lock);
    bool may = loop->waiting < loop->most_wait;
    loop->waiting += may;
    pthread_mutex_unlock(&loop->lock);
    /* Who took the last request had found all threads at work, and made none. */
    if (may && !atomic_load(&loop->reading))
        call_another(loop);
    return may;
}

void loop_wait_end(void)
{
    if (!here)
        return;
    pthread_mutex_lock(&here->loop->lock);
    here->loop->waiting--;
    pthread_mutex_unlock(&here->loop->lock);
}

/* As many as there are threads to serve them: with fewer, threads would have nothing to do while requests
 * wait in the kernel. */
unsigned loop_background(long processors)
{
    long requests =
        processors > BACKGROUND_MAX / THREADS_A_PROCESSOR ? BACKGROUND_MAX : processors * THREADS_A_PROCESSOR;

    return (unsigned)(requests > BACKGROUND_MIN ? requests : BACKGROUND_MIN);
}

void loop_init(struct loop *loop, struct fs *fs)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    memset(loop, 0, sizeof(*loop));
    loop->fs = fs;
    /* Of a program that opens and closes files, one request is on its way while it sends the next. */
    loop->wanted = cpus > 12 ? (unsigned)cpus / 4 : 3;
    loop->most =
        (unsigned)(cpus * THREADS_A_PROCESSOR > THREADS_MIN ? cpus * THREADS_A_PROCESSOR : THREADS_MIN);
    unsigned background = loop_background(cpus);
    size_t fit = memory_available() / 8 / THREAD_BYTES;
    fit = fit < THREADS_LEAST ? THREADS_LEAST : fit;
    loop->most = loop->most > fit ? (unsigned)fit : loop->most;
    loop->most_wait = background > fit ? (unsigned)fit : background;
    uint64_t part = threads_available() / STUCK_PART;
    part = part < STUCK_MOST ? part : STUCK_MOST;
    loop->most_more = (unsigned)(part < fit ? part : fit);
    lock_init(&loop->lock, LOCK_LOOP);
    lock_condition_init(&loop->change);
    LIST_INIT(&loop->workers);
    SLIST_INIT(&loop->sleepers);
}

int loop_serve(struct loop *loop)
{
    const struct sigaction action = {.sa_handler = on_wake}; /* no SA_RESTART */
    struct loop_worker *worker;
    int rc;

    sigaction(SIGUSR1, &action, NULL);
    pthread_mutex_lock(&loop->lock);
    rc = start_worker(loop);
    while (rc == 0 && !loop->ending) {
        if (loop->watched)
            watch(loop);
        else
            pthread_cond_wait(&loop->change, &loop->lock);
    }
    loop->ending = true;
    fuse_session_exit(loop->fs->session);
    LIST_FOREACH (worker, &loop->workers, entry)
        pthread_cond_signal(&worker->wake);
    while ((worker = LIST_FIRST(&loop->workers))) {
        LIST_REMOVE(worker, entry);
        pthread_mutex_unlock(&loop->lock);
        join(worker);
        free_worker(worker);
        pthread_mutex_lock(&loop->lock);
    }
    pthread_mutex_unlock(&loop->lock);
    return rc < 0 ? rc : loop->error; /* nobody else is left to write it */
}

void loop_stop(struct loop *loop)
{
    fuse_session_exit(loop->fs->session);
    end_with(loop, 0);
}

void loop_destroy(struct loop *loop)
{
    pthread_cond_destroy(&loop->change);
    pthread_mutex_destroy(&loop->lock);
}
