/* SPDX-License-Identifier: Apache-2.0 */
/* names WHAT DIR COUNT: what fio has no engine for, or measures in whole milliseconds only. Prints one line
 * of JSON: operations, nanoseconds, and the processor time and context switches of this process. make create
 * COUNT files in DIR, which is not measured by anybody stat    stat() each of COUNT files once       restat
 * the same, twice: the second time is measured open    open() and close(), again and again, on the first
 * hundred of them create  create COUNT new files, and close them       unlink  take those away
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int directory;

static int create_one(const char *name)
{
    int fd = openat(directory, name, O_CREAT | O_EXCL | O_WRONLY, 0644);

    return fd < 0 ? -1 : close(fd);
}

static int open_one(const char *name)
{
    int fd = openat(directory, name, O_RDONLY);

    return fd < 0 ? -1 : close(fd);
}

static int stat_one(const char *name)
{
    struct stat status;

    return fstatat(directory, name, &status, 0);
}

static int unlink_one(const char *name)
{
    return unlinkat(directory, name, 0);
}

static const struct kind {
    const char *name, *prefix;
    int (*call)(const char *name);
    long among; /* so many different names; 0: as many as calls */
    int warm;   /* called once for each name before */
} kinds[] = {{"make", "f", create_one, 0, 0},   {"stat", "f", stat_one, 0, 0},
             {"restat", "f", stat_one, 0, 1},   {"open", "f", open_one, 100, 1},
             {"create", "n", create_one, 0, 0}, {"unlink", "n", unlink_one, 0, 0}};

static void call_all(const struct kind *kind, long count)
{
    char name[32];

    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%s%06ld", kind->prefix, kind->among ? i % kind->among : i);
        if (kind->call(name) != 0) {
            fprintf(stderr, "%s %s: %s\n", kind->name, name, strerror(errno));
            exit(1);
        }
    }
}

static int64_t microseconds(struct timeval time)
{
    return (int64_t)time.tv_sec * 1000000 + time.tv_usec;
}

static void measure(const struct kind *kind, long count)
{
    struct timespec begin, end;
    struct rusage before, after;

    if (kind->warm)
        call_all(kind, kind->among && kind->among < count ? kind->among : count);
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    call_all(kind, count);
    clock_gettime(CLOCK_MONOTONIC, &end);
    getrusage(RUSAGE_SELF, &after);
    printf("{\"operations\": %ld, \"ns\": %" PRId64 ", \"cpu_us\": %" PRId64 ", \"switches\": %ld}\n", count,
           (int64_t)(end.tv_sec - begin.tv_sec) * 1000000000 + (end.tv_nsec - begin.tv_nsec),
           microseconds(after.ru_utime) + microseconds(after.ru_stime) - microseconds(before.ru_utime) -
               microseconds(before.ru_stime),
           after.ru_nvcsw - before.ru_nvcsw);
}

int main(int argc, char **argv)
{
    long count = argc == 4 ? strtol(argv[3], NULL, 10) : 0;

    if (count < 1) {
        fprintf(stderr, "usage: names make|stat|restat|open|create|unlink DIR COUNT\n");
        return 2;
    }
    directory = open(argv[2], O_RDONLY | O_DIRECTORY);
    if (directory < 0) {
        perror(argv[2]);
        return 1;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, argv[1]) == 0) {
            measure(&kinds[i], count);
            return 0;
        }
    }
    fprintf(stderr, "%s: no such kind\n", argv[1]);
    return 2;
}
