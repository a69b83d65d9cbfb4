/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

static uint32_t forks; /* from the first process on; changed while there is one thread */

static void count_fork(void)
{
    forks++;
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
