/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alive.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/shared_page.h"

struct alive {
    pthread_mutex_t held; /* robust; no lock of anything, and so without a class of base/lock.h */
};
static_assert(sizeof(struct alive) <= SHARED_PAGE_SIZE, "");

/* The futex: the number of the thread that holds it; 0 when it let go in order; FUTEX_OWNER_DIED without a
 * number when the kernel did it. Clients can't write here, as pthread_mutex_trylock() would. */
static uint32_t owner(const struct alive *alive)
{
    _Atomic uint32_t *word = (void *)(uintptr_t)&alive->held.__data.__lock; /* loads of const are C23's */

    return atomic_load(word) & FUTEX_TID_MASK;
}

int alive_begin(struct alive **alive_out, int *fd_out)
{
    pthread_mutexattr_t attributes;
    void *page;

    int error = shared_page_make("gaiafs:alive", &page, fd_out);
    if (error)
        return error;
    struct alive *alive = page;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    error = -pthread_mutex_init(&alive->held, &attributes);
    pthread_mutexattr_destroy(&attributes);
    if (!error)
        error = -pthread_mutex_lock(&alive->held);
    if (!error && owner(alive) != (uint32_t)gettid()) {
        pthread_mutex_unlock(&alive->held);
        error = -ENOTSUP;
    }
    if (error) {
        munmap(alive, SHARED_PAGE_SIZE);
        close(*fd_out);
        return error;
    }
    *alive_out = alive;
    return 0;
}

void alive_end(struct alive *alive, int fd)
{
    pthread_mutex_unlock(&alive->held);
    munmap(alive, SHARED_PAGE_SIZE);
    close(fd);
}

bool alive_seen(const struct alive *alive)
{
    return owner(alive) != 0;
}
