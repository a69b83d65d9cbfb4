/* SPDX-License-Identifier: Apache-2.0 */
/* tool_beside FILE SECONDS: write()s a number at the begin of a file and reads it again, while threads read
 * the page, so that it comes back as soon as somebody has the kernel drop it. Prints how many reads did not
 * find what was written just before; 1: some. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define READERS 3u

static const char *path;
static atomic_bool stop;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(2);
}

static void *reads(void *argument)
{
    int fd = open(path, O_RDONLY);
    uint64_t number;

    while (!stop)
        if (pread(fd, &number, sizeof number, 0) != (ssize_t)sizeof number)
            fail("pread");
    close(fd);
    return argument;
}

int main(int argc, char **argv)
{
    pthread_t readers[READERS];
    uint64_t number = 0, stale = 0, found;

    if (argc != 3)
        return 2;
    path = argv[1];
    int fd = open(path, O_RDWR);
    if (fd < 0)
        fail(path);
    for (unsigned i = 0; i < READERS; i++)
        if (pthread_create(&readers[i], NULL, reads, NULL))
            fail("pthread_create");
    for (time_t until = time(NULL) + atoi(argv[2]); time(NULL) < until;) {
        number++;
        if (pwrite(fd, &number, sizeof number, 0) != (ssize_t)sizeof number)
            fail("pwrite");
        if (pread(fd, &found, sizeof found, 0) != (ssize_t)sizeof found)
            fail("pread");
        stale += found != number;
    }
    stop = true;
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    printf("%llu of %llu\n", (unsigned long long)stale, (unsigned long long)number);
    return stale != 0;
}
