/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/fault_threads.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cache/agent.h"
#include "cache/map.h"

/* Where there is one thread it has taken from the kernel at once what it will come to. */
#define FAULTS_AT_ONCE 32u
#define FAULTS_OF_MANY 4u

/* How many there may be where no option says so. */
static unsigned default_most(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors < 8 ? 1 : processors < 16 ? (unsigned)processors / 4 : 4;
}

static void serve(struct cache_client *client, const struct gaia_fault *fault)
{
    struct cache_map *map = client_find_map(client, fault->address);

    if (!map) /* unmapped meanwhile: there is nobody to wake any more */
        return;
    if (map->far)
        agent_fault(map, fault);
    else
        fault_serve(map, fault);
    cache_map_put(map);
}

/* Waits for the turn, and for faults. As gaia_soft_wait(); 0 too when there is no more to do. */
static int look(struct cache_client *client, struct gaia_fault *faults_out, unsigned most)
{
    struct fault_threads *threads = &client->threads;
    int count = 0;

    while (sem_wait(&threads->turn)) /* a signal: perhaps interrupt()'s */
        if (atomic_load(&threads->stop))
            return 0;
    if (!atomic_load(&threads->stop))
        count = gaia_soft_wait(client->process.faults, client->stop, faults_out, most);
    sem_post(&threads->turn);
    return count;
}

static int start_thread(struct cache_client *client);

static void *serve_faults(void *argument)
{
    struct cache_client *client = argument;
    struct fault_threads *threads = &client->threads;
    struct gaia_fault faults[FAULTS_AT_ONCE];
    int count;

    pthread_setname_np(pthread_self(), "gaiafs-faults"); /* for ps; a failure means nothing */
    for (;;) {
        atomic_fetch_add(&threads->looking, 1);
        count = look(client, faults, threads->most > 1 ? FAULTS_OF_MANY : FAULTS_AT_ONCE);
        bool last = atomic_fetch_sub(&threads->looking, 1) == 1;
        if (count <= 0)
            return NULL;
        if (last)
            (void)start_thread(client); /* without it this thread looks when it has served */
        for (int i = 0; i < count; i++)
            serve(client, &faults[i]);
    }
}

/* 0 when there are enough. */
static int start_thread(struct cache_client *client)
{
    struct fault_threads *threads = &client->threads;
    int error = 0;

    pthread_mutex_lock(&threads->lock);
    if (threads->started < threads->most && !atomic_load(&threads->stop)) {
        error = -pthread_create(&threads->threads[threads->started], NULL, serve_faults, client);
        threads->started += !error;
    }
    pthread_mutex_unlock(&threads->lock);
    return error;
}

static void interrupt(int signal)
{
    (void)signal; /* only ends a read(), or the wait for a turn */
}

static void install_interrupt(void)
{
    struct sigaction action = {.sa_handler = interrupt};

    sigaction(SIGUSR2, &action, NULL); /* no SA_RESTART */
}

static void destroy(struct fault_threads *threads)
{
    pthread_mutex_destroy(&threads->lock);
    sem_destroy(&threads->turn);
}

int fault_threads_start(struct cache_client *client)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct fault_threads *threads = &client->threads;

    pthread_once(&once, install_interrupt);
    threads->most = client->cache->config.fault_threads;
    if (!threads->most)
        threads->most = default_most();
    sem_init(&threads->turn, 0, 1);
    lock_init(&threads->lock, LOCK_FAULT_THREADS);
    int error = start_thread(client);
    if (error)
        destroy(threads);
    return error;
}

/* The client shares the description of its descriptor, and may have made it one that blocks: then only a
 * signal ends the read that a thread is in, and a signal may come just before the read, so it is sent again
 * until the thread has ended. A thread that waits for its turn is woken by a signal, too. */
void fault_threads_stop(struct cache_client *client)
{
    struct fault_threads *threads = &client->threads;

    pthread_mutex_lock(&threads->lock);
    atomic_store(&threads->stop, true); /* none is started any more */
    pthread_mutex_unlock(&threads->lock);
    for (unsigned i = 0; i < threads->started; i++)
        while (!lock_join_within(threads->threads[i], 100))
            pthread_kill(threads->threads[i], SIGUSR2);
    destroy(threads);
}
