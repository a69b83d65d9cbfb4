/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that are cancelled in the middle of libgaia's calls: the others go on.
 *
 * usage: tool_cancel FILE DEVICE ROUNDS SEED
 *
 * A round: a thread maps, stores, releases, acquires and unmaps without end, and is cancelled at some moment.
 * Then all of it is done once more. Exit status: 0; 2, a call failed, it says which. A hang is ended by
 * SIGALRM. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/mount/tool.h"

#define LIMIT_S 20u /* of a round */

static struct gaia_device *device;
static int fd;

static void use_once(void)
{
    uint8_t *bytes = gaia_mmap(device, 2 * PAGE, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);

    if (bytes == MAP_FAILED)
        die("gaia_mmap");
    bytes[PAGE]++;
    if (gaia_mrelease(bytes, 2 * PAGE, device))
        die("gaia_mrelease");
    if (gaia_macquire(bytes, 2 * PAGE, device))
        die("gaia_macquire");
    if (gaia_munmap(bytes, 2 * PAGE))
        die("gaia_munmap");
}

static void *use(void *argument)
{
    (void)argument;
    for (;;) {
        use_once();
        pthread_testcancel();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    unsigned rounds = (unsigned)strtoul(argv[3], NULL, 0), seed = (unsigned)strtoul(argv[4], NULL, 0);
    if ((fd = open(argv[1], O_RDWR | O_CREAT, 0600)) < 0 || ftruncate(fd, (off_t)2 * PAGE))
        die(argv[1]);
    if (gaia_device_open(argv[2], &device))
        die("gaia_device_open");
    for (unsigned round = 0; round < rounds; round++) {
        struct timespec moment = {.tv_nsec = rand_r(&seed) % 3000000};
        pthread_t thread;

        alarm(LIMIT_S);
        if ((errno = pthread_create(&thread, NULL, use, NULL)))
            die("pthread_create");
        nanosleep(&moment, NULL);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        use_once();
    }
    gaia_device_close(device);
    return 0;
}
