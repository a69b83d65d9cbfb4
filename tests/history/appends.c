/* SPDX-License-Identifier: Apache-2.0 */
/* appends FILE SECONDS [BELOW]: one thread appends to a file, another stores to the same page through a
 * mapping and has it written back, and both are looked at afterwards through FILE, and BELOW the mount where
 * it is said. README.md has what this is for: FILE may be on any FUSE file system.
 *
 * sync_file_range() writes back as the kernel's own flusher does, and as close() and an invalidation by a
 * FUSE server do: without the inode's lock, which write() holds until it is answered. msync() and fsync()
 * take it. */
#include <errno.h>
#include <error.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define HEAD 100 /* bytes that are there before; the first half of them is stored to */
#define RECORD 7 /* bytes of an append */
#define RECORDS 500

struct storer {
    int fd;
    volatile char *page;
    atomic_bool stop;
};

static void *store(void *argument)
{
    struct storer *storer = argument;

    for (unsigned i = 0; !atomic_load(&storer->stop); i++) {
        storer->page[i % (HEAD / 2)] = (char)('A' + i % 26);
        if (sync_file_range(storer->fd, 0, PAGE,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
            error(1, errno, "sync_file_range");
    }
    return NULL;
}

static void record(int number, char text[RECORD + 1])
{
    snprintf(text, RECORD + 1, "%0*d", RECORD, number);
}

/* Records of the file that are not what was appended. */
static long wrong_in(int fd)
{
    char bytes[PAGE], text[RECORD + 1];
    long wrong = 0;

    if (pread(fd, bytes, PAGE, 0) != HEAD + RECORDS * RECORD)
        error(1, errno, "pread");
    for (int i = 0; i < RECORDS; i++) {
        record(i, text);
        wrong += memcmp(bytes + HEAD + i * RECORD, text, RECORD) != 0;
    }
    return wrong;
}

static long one_round(const char *path)
{
    char bytes[HEAD], text[RECORD + 1];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), log = open(path, O_WRONLY | O_APPEND);
    struct storer storer = {.fd = fd};
    pthread_t thread;

    memset(bytes, 'a', sizeof bytes);
    if (fd < 0 || log < 0 || write(fd, bytes, HEAD) != HEAD)
        error(1, errno, "%s", path);
    storer.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (storer.page == MAP_FAILED)
        error(1, errno, "mmap");
    int failed = pthread_create(&thread, NULL, store, &storer);
    if (failed)
        error(1, failed, "pthread_create");
    for (int i = 0; i < RECORDS; i++) {
        record(i, text);
        if (write(log, text, RECORD) != RECORD)
            error(1, errno, "write");
    }
    atomic_store(&storer.stop, true);
    pthread_join(thread, NULL);
    long wrong = wrong_in(fd);
    munmap((void *)(uintptr_t)storer.page, PAGE);
    close(fd);
    close(log);
    return wrong;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        error(2, 0, "appends FILE SECONDS [BELOW]");
    time_t end = time(NULL) + atoi(argv[2]);
    long rounds = 0, seen = 0, below = 0;

    while (time(NULL) < end) {
        rounds++;
        seen += one_round(argv[1]);
        int fd = argc > 3 ? open(argv[3], O_RDONLY) : -1;
        if (argc > 3 && fd < 0)
            error(1, errno, "%s", argv[3]);
        below += fd >= 0 ? wrong_in(fd) : 0;
        if (fd >= 0)
            close(fd);
    }
    printf("%ld appends: %ld seen as something else, %ld something else below\n", rounds * RECORDS, seen,
           below);
    return seen || below;
}
