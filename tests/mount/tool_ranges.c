/* SPDX-License-Identifier: Apache-2.0 */
/* Changes a range of a file while another thread stores to a byte of the same page through a mapping, and has
 * the page written back.
 *
 * usage: tool_ranges FILE BELOW SOURCE punch|zero|copy|part ROUNDS SEED
 *
 * BELOW: FILE in the data directory. SOURCE: a file of a page of 's'. What is done to the first half of the
 * page (of copy: to all of it) must be found there afterwards, and the byte that was stored in the rest; of
 * copy that byte is among those that are copied over, and may be either. Exit status: 0, all was there; 1,
 * something was not, it says what; 2, a call failed. */
#include <err.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define HALF (PAGE / 2)
#define STORED_AT (PAGE - 100)
#define REPORTS_MAX 5u

static int file, below, source;
static volatile uint8_t *map;
static pthread_barrier_t start;
static unsigned store_after, wrong;

static void *store(void *argument)
{
    uint8_t first = *(const uint8_t *)argument;

    pthread_barrier_wait(&start);
    usleep(store_after);
    for (uint8_t i = 0; i < 3; i++) {
        map[STORED_AT] = (uint8_t)(first + i);
        if (sync_file_range(file, 0, PAGE,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
            err(2, "sync_file_range");
    }
    return NULL;
}

static void change(const char *what)
{
    off_t from = 0, to = 0;
    ssize_t length = strcmp(what, "copy") == 0 ? PAGE : HALF;

    if (strcmp(what, "punch") == 0 || strcmp(what, "zero") == 0) {
        int mode = what[0] == 'p' ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;
        if (fallocate(file, mode | FALLOC_FL_KEEP_SIZE, 0, HALF))
            err(2, "fallocate");
    } else if (copy_file_range(source, &from, file, &to, (size_t)length, 0) != length) {
        err(2, "copy_file_range");
    }
}

static void expect(unsigned round, const char *where, const uint8_t *page, unsigned at, unsigned length,
                   uint8_t value)
{
    for (unsigned i = at; i < at + length; i++) {
        if (page[i] == value || i == STORED_AT)
            continue;
        if (wrong++ < REPORTS_MAX)
            printf("round %u, %s: byte %u is %02x, not %02x\n", round, where, i, page[i], value);
        return;
    }
}

static void look(unsigned round, const char *what, uint8_t stored)
{
    bool whole = strcmp(what, "copy") == 0, copied = whole || strcmp(what, "part") == 0;
    uint8_t value = copied ? 's' : 0;
    uint8_t pages[2][PAGE];

    if (fsync(file) || pread(below, pages[0], PAGE, 0) != PAGE || pread(file, pages[1], PAGE, 0) != PAGE)
        err(2, "looking");
    for (int i = 0; i < 2; i++) {
        const char *where = i ? "mount" : "data directory";
        uint8_t last = pages[i][STORED_AT];
        expect(round, where, pages[i], 0, whole ? PAGE : HALF, value);
        if (whole ? last != pages[0][STORED_AT] : last != stored)
            if (wrong++ < REPORTS_MAX)
                printf("round %u, %s: the stored byte is %02x, not %02x\n", round, where, last, stored);
    }
}

int main(int argc, char **argv)
{
    uint8_t old[PAGE];

    if (argc != 7)
        return 2;
    file = open(argv[1], O_RDWR);
    below = open(argv[2], O_RDONLY);
    source = open(argv[3], O_RDONLY);
    srand((unsigned)strtoul(argv[6], NULL, 0));
    map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || below < 0 || source < 0 || map == MAP_FAILED)
        err(2, "opening");
    memset(old, 'x', sizeof old);
    pthread_barrier_init(&start, NULL, 2);
    unsigned rounds = (unsigned)atoi(argv[5]);
    for (unsigned round = 0; round < rounds; round++) {
        pthread_t thread;
        uint8_t first = (uint8_t)(rand() % 250);
        if (pwrite(file, old, STORED_AT, 0) != STORED_AT)
            err(2, "pwrite");
        store_after = (unsigned)rand() % 100;
        if (pthread_create(&thread, NULL, store, &first))
            err(2, "pthread_create");
        pthread_barrier_wait(&start);
        usleep((unsigned)rand() % 100);
        change(argv[4]);
        pthread_join(thread, NULL);
        look(round, argv[4], (uint8_t)(first + 2));
    }
    printf("%u rounds, %u times wrong\n", rounds, wrong);
    return wrong > 0;
}
