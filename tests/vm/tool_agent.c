/* SPDX-License-Identifier: Apache-2.0 */
/* Does file operations in a virtual machine, one a line, as a program outside of it asks for them through a
 * serial port: tool_agent PORT. It answers "0" or an errno when the call has returned, with the bytes that
 * were read behind it, and is no cleverer than that: what was asked, answered, and must have survived a power
 * cut is known outside.
 *
 * Words of a line are an operation and numbers or paths; N is a descriptor and M a mapping, 0 to 63 each.
 * Bytes are made from a tag: see fill(). */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"

#define SLOTS 64
#define WORDS 8
#define PAGE 4096u
#define READ_MOST (64u << 10)

static int fds[SLOTS];
static struct mapping {
    struct gaia_device *device; /* NULL: of the CPU */
    uint8_t *bytes;
    size_t length;
} mappings[SLOTS];
static uint8_t buffer[1 << 20];
static char said[2 * READ_MOST + 2]; /* of the answer: a space, and the bytes that were read, in hex */
static sigjmp_buf touched;           /* where a touch that raises SIGBUS goes on */

static uint64_t number(const char *word)
{
    return strtoull(word, NULL, 0);
}

static unsigned slot(const char *word)
{
    return (unsigned)number(word) % SLOTS;
}

/* The bytes that a tag stands for at an offset of a file: 8 of them over and over, others on each page. */
static void fill(uint8_t *bytes, uint64_t offset, size_t length, uint64_t tag)
{
    for (size_t i = 0; i < length; i++, offset++) {
        uint64_t word = tag ^ (offset / PAGE + 1) * 0x9e3779b97f4a7c15u;
        bytes[i] = (uint8_t)(word >> offset % 8 * 8);
    }
}

static void say(const uint8_t *bytes, size_t length)
{
    said[0] = ' ';
    for (size_t i = 0; i < length; i++)
        sprintf(said + 1 + 2 * i, "%02x", bytes[i]);
}

static int code(long result)
{
    return result < 0 ? errno : 0;
}

/* open N PATH FLAGS */
static int do_open(char **words)
{
    int fd = open(words[2], (int)number(words[3]), 0644);

    fds[slot(words[1])] = fd;
    return code(fd);
}

static int do_close(char **words)
{
    return code(close(fds[slot(words[1])]));
}

/* write N OFFSET LENGTH TAG */
static int do_write(char **words)
{
    uint64_t offset = number(words[2]), length = number(words[3]);

    if (length > sizeof buffer)
        return EINVAL;
    fill(buffer, offset, length, number(words[4]));
    ssize_t n = pwrite(fds[slot(words[1])], buffer, length, (off_t)offset);
    return n == (ssize_t)length ? 0 : n < 0 ? errno : EIO;
}

/* read N OFFSET LENGTH */
static int do_read(char **words)
{
    uint64_t length = number(words[3]);

    if (length > READ_MOST)
        return EINVAL;
    ssize_t n = pread(fds[slot(words[1])], buffer, length, (off_t)number(words[2]));
    if (n > 0)
        say(buffer, (size_t)n);
    return code(n);
}

static int do_fsync(char **words)
{
    return code(fsync(fds[slot(words[1])]));
}

static int do_fdatasync(char **words)
{
    return code(fdatasync(fds[slot(words[1])]));
}

static int do_sync(char **words)
{
    (void)words;
    sync();
    return 0;
}

/* truncate N SIZE */
static int do_truncate(char **words)
{
    return code(ftruncate(fds[slot(words[1])], (off_t)number(words[2])));
}

static int do_rename(char **words)
{
    return code(rename(words[1], words[2]));
}

static int do_unlink(char **words)
{
    return code(unlink(words[1]));
}

static int do_mkdir(char **words)
{
    return code(mkdir(words[1], 0755));
}

/* map M N LENGTH: into the CPU's memory */
static int do_map(char **words)
{
    struct mapping *mapping = &mappings[slot(words[1])];

    mapping->length = number(words[3]);
    mapping->bytes = mmap(NULL, mapping->length, PROT_READ | PROT_WRITE, MAP_SHARED, fds[slot(words[2])], 0);
    return mapping->bytes == MAP_FAILED ? errno : 0;
}

/* device M N LENGTH NAME: into a device */
static int do_device(char **words)
{
    struct mapping *mapping = &mappings[slot(words[1])];

    mapping->length = number(words[3]);
    if (gaia_device_open(words[4], &mapping->device))
        return errno;
    mapping->bytes = gaia_mmap(mapping->device, mapping->length, PROT_READ | PROT_WRITE, GAIA_SHARED,
                               fds[slot(words[2])], 0);
    return mapping->bytes == MAP_FAILED ? errno : 0;
}

/* store M OFFSET LENGTH TAG */
static int do_store(char **words)
{
    const struct mapping *mapping = &mappings[slot(words[1])];
    uint64_t offset = number(words[2]), length = number(words[3]);

    if (offset > mapping->length || length > mapping->length - offset)
        return EINVAL;
    fill(mapping->bytes + offset, offset, length, number(words[4]));
    return 0;
}

/* load M OFFSET LENGTH */
static int do_load(char **words)
{
    const struct mapping *mapping = &mappings[slot(words[1])];
    uint64_t offset = number(words[2]), length = number(words[3]);

    if (length > READ_MOST || offset > mapping->length || length > mapping->length - offset)
        return EINVAL;
    memcpy(buffer, mapping->bytes + offset, length);
    say(buffer, length);
    return 0;
}

/* unmap M: and close its device */
static int do_unmap(char **words)
{
    struct mapping *mapping = &mappings[slot(words[1])];
    struct gaia_device *device = mapping->device;
    int rc =
        code(device ? gaia_munmap(mapping->bytes, mapping->length) : munmap(mapping->bytes, mapping->length));

    gaia_device_close(device);
    *mapping = (struct mapping){0};
    return rc;
}

static int do_acquire(char **words)
{
    const struct mapping *mapping = &mappings[slot(words[1])];

    return code(gaia_macquire(mapping->bytes, mapping->length, mapping->device));
}

static int do_release(char **words)
{
    const struct mapping *mapping = &mappings[slot(words[1])];

    return code(gaia_mrelease(mapping->bytes, mapping->length, mapping->device));
}

/* msync M: with MS_SYNC */
static int do_msync(char **words)
{
    const struct mapping *mapping = &mappings[slot(words[1])];

    if (mapping->device)
        return code(gaia_msync(mapping->bytes, mapping->length, MS_SYNC));
    return code(msync(mapping->bytes, mapping->length, MS_SYNC));
}

static const struct operation {
    const char *name;
    int words;
    int (*run)(char **words);
} operations[] = {
    {"open", 4, do_open},     {"close", 2, do_close},       {"write", 5, do_write},
    {"read", 4, do_read},     {"fsync", 2, do_fsync},       {"fdatasync", 2, do_fdatasync},
    {"sync", 1, do_sync},     {"truncate", 3, do_truncate}, {"rename", 3, do_rename},
    {"unlink", 2, do_unlink}, {"mkdir", 2, do_mkdir},       {"map", 4, do_map},
    {"device", 5, do_device}, {"store", 5, do_store},       {"load", 4, do_load},
    {"unmap", 2, do_unmap},   {"acquire", 2, do_acquire},   {"release", 2, do_release},
    {"msync", 2, do_msync},
};

static int do_safely(const struct operation *operation, char **words)
{
    return sigsetjmp(touched, 1) ? EFAULT : operation->run(words);
}

static int run(char *line)
{
    char *words[WORDS], *rest;
    int count = 0;

    *said = '\0';
    for (char *word = strtok_r(line, " \n", &rest); word && count < WORDS;
         word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    for (size_t i = 0; count && i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(words[0], operations[i].name) && count == operations[i].words)
            return do_safely(&operations[i], words);
    return ENOSYS;
}

/* Only loads and stores here touch mappings. */
static void on_bus_error(int signal_number)
{
    (void)signal_number;
    siglongjmp(touched, 1);
}

int main(int argc, char **argv)
{
    char line[512];
    int port = argc == 2 ? open(argv[1], O_RDWR) : -1;
    FILE *asked = port >= 0 ? fdopen(port, "r") : NULL;

    if (!asked) {
        perror(argc == 2 ? argv[1] : "usage: tool_agent PORT");
        return 2;
    }
    signal(SIGBUS, on_bus_error);
    dprintf(port, "ready\n");
    while (fgets(line, sizeof line, asked)) {
        int rc = run(line);
        dprintf(port, "%d%s\n", rc, said);
    }
    return 0;
}
