/* SPDX-License-Identifier: Apache-2.0 */
#include "io/standing.h"

#include <errno.h>
#include <unistd.h>

#include "io/transport_internal.h"

/* Guards all registrations of standing memory: what ends may be the memory or the transport. Held while one
 * is made, which others that want one wait for; that is once for many pages. */
static pthread_mutex_t lock = LOCK_INITIALIZER(LOCK_STANDING);

/* Lock held. */
static struct gaia_memory *find(const struct gaia_standing *standing, const struct gaia_transport *transport)
{
    struct gaia_memory *memory;

    LIST_FOREACH (memory, &standing->registered, of_standing)
        if (memory->transport == transport)
            break;
    return memory;
}

/* By a dma-buf, else by its address. Lock held. */
static int make(struct gaia_standing *standing, struct gaia_transport *transport,
                struct gaia_memory **memory_out)
{
    struct gaia_transport_limits limits;
    int error = -EOPNOTSUPP;

    gaia_transport_limits(transport, &limits);
    int fd = limits.dmabuf && standing->share ? standing->share(standing) : -1;
    if (fd >= 0) {
        error = gaia_memory_register(transport, &(struct gaia_span){NULL, standing->length, fd}, memory_out);
        close(fd); /* the registration keeps the buffer */
    }
    if (error && error != -ENOMEM)
        error = gaia_memory_register(transport, &(struct gaia_span){standing->address, standing->length, -1},
                                     memory_out);
    return error;
}

int gaia_standing_register(struct gaia_standing *standing, struct gaia_transport *transport,
                           struct gaia_memory **memory_out)
{
    int error = 0;

    if (!gaia_standing_is_reachable(standing))
        return -EOPNOTSUPP;
    pthread_mutex_lock(&lock);
    struct gaia_memory *memory = find(standing, transport);
    if (!memory) {
        error = make(standing, transport, &memory);
        if (!error) {
            LIST_INSERT_HEAD(&standing->registered, memory, of_standing);
            memory->stands = true;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!error)
        *memory_out = memory;
    else if (error != -ENOMEM)
        gaia_standing_missed(standing);
    return error && error != -ENOMEM ? -EOPNOTSUPP : error;
}

void gaia_standing_missed(struct gaia_standing *standing)
{
    atomic_store(&standing->unreachable, true);
}

bool gaia_standing_is_reachable(const struct gaia_standing *standing)
{
    return !atomic_load(&standing->unreachable);
}

void gaia_standing_end(struct gaia_standing *standing)
{
    struct gaia_memory *memory;

    pthread_mutex_lock(&lock);
    while ((memory = LIST_FIRST(&standing->registered))) {
        LIST_REMOVE(memory, of_standing);
        gaia_memory_release(memory); /* its transport is there: gaia_standing_forget() wants the lock */
    }
    pthread_mutex_unlock(&lock);
}

void gaia_standing_forget(struct gaia_transport *transport)
{
    struct gaia_memory *memory;

    pthread_mutex_lock(&lock);
    LIST_FOREACH (memory, &transport->memories, entry) /* nobody else changes them any more */
        if (memory->stands) {
            memory->stands = false;
            LIST_REMOVE(memory, of_standing);
        }
    pthread_mutex_unlock(&lock);
}
