/* SPDX-License-Identifier: Apache-2.0 */
/* What the worker's operations are made of. */
#include "steps.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

uint64_t random_state;

uint64_t random_number(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state * 0x2545F4914F6CDD1Du >> 16) % below;
}

uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static volatile sig_atomic_t touching;
static sigjmp_buf out_of_touch;

static void on_touch(int signal_number)
{
    if (touching)
        siglongjmp(out_of_touch, 1);
    signal(signal_number, SIG_DFL); /* of no touch of ours: it comes again, and ends us */
}

static int touch(volatile uint8_t *to, const volatile uint8_t *from, size_t n)
{
    if (sigsetjmp(out_of_touch, 1)) {
        touching = 0;
        return RESULT_SIGBUS;
    }
    touching = 1;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
    touching = 0;
    return 0;
}

int store(volatile uint8_t *to, const uint8_t *from, size_t n)
{
    return touch(to, from, n);
}

int load(volatile uint8_t *from, size_t n, uint8_t *to)
{
    return touch(to, from, n);
}

void catch_touches(void)
{
    struct sigaction action = {.sa_handler = on_touch, .sa_flags = SA_NODEFER};

    sigaction(SIGBUS, &action, NULL);
}

static int create_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    if (fd < 0)
        return -1;
    return close(fd);
}

static int fill_file(const char *path, const char *text, int flags)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | flags);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    return n < 0 ? -1 : 0;
}

int name_call(unsigned kind, const char *path, const char *other, const char *text)
{
    switch (kind) {
    case OP_create:
        return create_file(path);
    case OP_fill:
        return fill_file(path, text, 0);
    case OP_extend: /* of a file that no device has, so the daemon appends itself */
        return fill_file(path, text, O_APPEND);
    case OP_rename:
        return rename(path, other);
    case OP_link:
        return link(path, other);
    case OP_unlink:
        return unlink(path);
    case OP_symlink:
        return symlink(text, path);
    case OP_mkdir:
        return mkdir(path, 0755);
    case OP_rmdir:
        return rmdir(path);
    case OP_setxattr:
        return setxattr(path, "user.kills", text, strlen(text), 0);
    default:
        return chmod(path, 0600 + (text[0] & 7));
    }
}
