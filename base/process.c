/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static uint32_t forks;       /* from the first process on; changed while there is one thread */
static _Atomic pid_t holder; /* 0: nobody yet */

static void count_fork(void)
{
    forks++;
    holder = 0;
}

/* When the library is loaded: at its first use another thread may be in a fork. */
__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

uint64_t process_here(void)
{
    return (uint64_t)forks << 32 | (uint32_t)getpid();
}

bool process_holds_state(void)
{
    pid_t other = 0, here = getpid();

    return atomic_compare_exchange_strong(&holder, &other, here) || other == here;
}
