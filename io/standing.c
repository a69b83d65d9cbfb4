/* SPDX-License-Identifier: Apache-2.0 */
#include "io/standing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/transport_internal.h"

#define AGAIN_NS 1000000000u /* after a refusal that may pass */
#define ENDS_MAX 2u          /* transfers that fail before memory is given up; a peer may die once */

/* What came of it when the transport was asked to register it. */
struct standing_registration {
    LIST_ENTRY(standing_registration) of_standing, of_transport;
    struct gaia_transport *transport;
    struct gaia_memory *memory; /* NULL: refused, and `error` says how */
    int error;
    uint64_t again_ns; /* not asked before; UINT64_MAX: never again */
};

/* Guards all registrations of standing memory: what ends may be the memory or the transport. Held while one
 * is made, which others that want one wait for; that is once for many pages. */
static pthread_mutex_t lock = LOCK_INITIALIZER(LOCK_STANDING);

/* ---- what is known ---- */

enum gaia_reach gaia_standing_reach(const struct gaia_standing *standing, enum gaia_path path)
{
    return atomic_load(&standing->reaches->of[path]);
}

void gaia_standing_give_up(struct gaia_standing *standing, enum gaia_path path)
{
    atomic_store(&standing->reaches->of[path], GAIA_REACH_NONE);
}

/* If nothing is known yet: bytes of other memory of the same GPU's may well arrive. */
static void learn(struct gaia_standing *standing, enum gaia_path path, enum gaia_reach reach)
{
    enum gaia_reach unknown = GAIA_REACH_UNKNOWN;

    atomic_compare_exchange_strong(&standing->reaches->of[path], &unknown, reach);
}

bool gaia_standing_is_proven(const struct gaia_memory *registration)
{
    return registration && atomic_load(&registration->proven);
}

void gaia_standing_prove(struct gaia_standing *standing, enum gaia_path path,
                         struct gaia_memory *registration)
{
    atomic_store(&registration->proven, true);
    learn(standing, path, GAIA_REACH_PROVEN);
}

/* ---- registrations ---- */

/* Lock held. */
static struct standing_registration *find(const struct gaia_standing *standing,
                                          const struct gaia_transport *transport)
{
    struct standing_registration *registration;

    LIST_FOREACH (registration, &standing->registered, of_standing)
        if (registration->transport == transport)
            break;
    return registration;
}

/* The same, made if there is none, and not asked for yet; NULL: no memory. Lock held. */
static struct standing_registration *get(struct gaia_standing *standing, struct gaia_transport *transport)
{
    struct standing_registration *registration = find(standing, transport);

    if (registration || !(registration = calloc(1, sizeof *registration)))
        return registration;
    registration->transport = transport;
    LIST_INSERT_HEAD(&standing->registered, registration, of_standing);
    LIST_INSERT_HEAD(&transport->standing, registration, of_transport);
    return registration;
}

static bool is_for_good(int error)
{
    return error == -EOPNOTSUPP || error == -EFAULT || error == -EINVAL;
}

/* By a dma-buf. Lock held. */
static int make_shared(struct gaia_standing *standing, struct gaia_transport *transport,
                       struct gaia_memory **memory_out)
{
    struct gaia_transport_limits limits;

    gaia_transport_limits(transport, &limits);
    int fd = limits.dmabuf && standing->share ? standing->share(standing) : -EOPNOTSUPP;
    if (fd < 0)
        return fd;
    int error = gaia_memory_register(transport, &(struct gaia_span){NULL, standing->length, fd}, memory_out);
    close(fd); /* the registration keeps the buffer */
    if (!error)
        (*memory_out)->span.dmabuf = -1;
    return error;
}

/* By a dma-buf, else by its address. 0, -ENOMEM (not now), -EOPNOTSUPP. Lock held. */
static int make(struct gaia_standing *standing, struct gaia_transport *transport,
                struct gaia_memory **memory_out)
{
    struct gaia_span span = {standing->address, standing->length, -1};

    int shared = make_shared(standing, transport, memory_out);
    int error = shared ? gaia_memory_register(transport, &span, memory_out) : 0;
    return !error ? 0 : is_for_good(shared) && is_for_good(error) ? -EOPNOTSUPP : -ENOMEM;
}

int gaia_standing_register(struct gaia_standing *standing, struct gaia_transport *transport,
                           struct gaia_memory **memory_out)
{
    enum gaia_path path = transport->config.path;

    if (gaia_standing_reach(standing, path) == GAIA_REACH_NONE)
        return -EOPNOTSUPP;
    pthread_mutex_lock(&lock);
    struct standing_registration *registration = get(standing, transport);
    if (registration && standing->gone[path])
        registration->error = -EOPNOTSUPP;
    else if (registration && !registration->memory && clock_now_ns() >= registration->again_ns) {
        registration->error = make(standing, transport, &registration->memory);
        registration->again_ns = registration->error == -ENOMEM ? clock_now_ns() + AGAIN_NS : UINT64_MAX;
        atomic_store(&standing->reaches->refused[path], registration->error == -ENOMEM);
    }
    int error = registration ? registration->error : -ENOMEM;
    if (!error)
        *memory_out = registration->memory;
    pthread_mutex_unlock(&lock);
    if (error == -EOPNOTSUPP)
        learn(standing, path, GAIA_REACH_NONE);
    return error;
}

/* The registration stays: transfers of it may be under way. */
void gaia_standing_ended(struct gaia_standing *standing, enum gaia_path path,
                         const struct gaia_memory *registration, int error)
{
    if (!error || error == -ECANCELED)
        return;
    learn(standing, path, GAIA_REACH_NONE);
    pthread_mutex_lock(&lock);
    if (error == -EFAULT || (!gaia_standing_is_proven(registration) && ++standing->ends[path] == ENDS_MAX))
        standing->gone[path] = true;
    pthread_mutex_unlock(&lock);
}

/* Lock held. */
static void end(struct standing_registration *registration)
{
    LIST_REMOVE(registration, of_standing);
    LIST_REMOVE(registration, of_transport);
    free(registration);
}

void gaia_standing_end(struct gaia_standing *standing)
{
    struct standing_registration *registration, *next;

    pthread_mutex_lock(&lock);
    for (registration = LIST_FIRST(&standing->registered); registration; registration = next) {
        next = LIST_NEXT(registration, of_standing);
        gaia_memory_release(registration->memory); /* its transport is there: forget() wants the lock */
        end(registration);
    }
    memset(standing->ends, 0, sizeof standing->ends);
    memset(standing->gone, 0, sizeof standing->gone);
    pthread_mutex_unlock(&lock);
}

void gaia_standing_forget(struct gaia_transport *transport)
{
    struct standing_registration *registration, *next;

    pthread_mutex_lock(&lock);
    for (registration = LIST_FIRST(&transport->standing); registration; registration = next) {
        next = LIST_NEXT(registration, of_transport);
        end(registration); /* its memory goes with the transport */
    }
    pthread_mutex_unlock(&lock);
}
