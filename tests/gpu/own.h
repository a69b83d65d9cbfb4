/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's own tests: what is said and counted, and the programs that they start. */
#ifndef GAIAFS_TESTS_GPU_OWN_H
#define GAIAFS_TESTS_GPU_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "gpu/device.h"
#include "gpu/home_gpu.h"

struct own {
    struct home_gpu *gpu;
    const struct cuda_api *api;
    bool standin;     /* for a driver: it has the machine's memory, so little of it is used */
    uint64_t pages;   /* to hash */
    uint64_t random;  /* state */
    const char *self; /* this program */
};

/* What each test is: 0, or the first check that did not hold. */
#define EXPECT(condition)                                                            \
    do {                                                                             \
        if (!(condition)) {                                                          \
            printf("     %s:%d: not so: %s\n", __FILE_NAME__, __LINE__, #condition); \
            return 1;                                                                \
        }                                                                            \
    } while (0)
#ifndef __FILE_NAME__ /* gcc before 12 */
#define __FILE_NAME__ __FILE__
#endif

static inline uint64_t own_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* own_window.c */
int own_window(struct own *own);

/* What a client stores to page 3, from byte 100 on. */
#define OWN_STORED "stored by a client"
#define OWN_STORED_AT ((size_t)3 * 4096 + 100)

/* A client is this program again, with memory that was exported to it: a process like any other that maps
 * a file. What it says is read from `says`. */
struct client {
    pid_t pid;
    int says;
};

/* mode: see own_client.c. fd: the memory, of so many bytes. */
int client_start(const struct own *own, const char *mode, int fd, size_t bytes, struct client *client_out);
/* The next line that it says, within so many ms: true, and the line without its end. */
bool client_line(const struct client *client, char line[128], int ms);
/* Its end, as waitpid() has it, within a minute; else it is killed, and -1. */
int client_end(struct client *client);

/* main() of a client. */
int client_main(const char *mode, int fd, size_t bytes);

#endif
