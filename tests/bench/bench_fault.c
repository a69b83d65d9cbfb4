/* SPDX-License-Identifier: Apache-2.0 */
/* A fault of the soft device against a bare userfaultfd round trip between two processes: blocks of faults in turn.
 *
 * bare      a memfd mapping whose faults a forked process serves: it polls, reads the message, fills 4 KiB through its
 *           own mapping and continues
 * page      GAIA_ADV_RANDOM: single pages of a file in the host's memory
 * unit      the default: 64 KiB units, at random
 * store     first stores to pages that are resident, one by one (twin taken, protection lifted)
 *
 * bench_fault FILE BACKING [--faults N] [--blocks N] */
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "gpu/uffd.h"
#include "tests/bench/bench.h"

#define UNIT_PAGES 16u

struct bare {
    int memfd, socket;
    pid_t server;
    uint8_t *address;
    size_t pages;
};

static void send_fd(int socket, int fd, uint64_t word)
{
    struct iovec io = {.iov_base = &word, .iov_len = sizeof word};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != (ssize_t)sizeof word)
        die("sendmsg");
}

static int receive_fd(int socket, uint64_t *word)
{
    struct iovec io = {.iov_base = word, .iov_len = sizeof *word};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd;

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *word || !CMSG_FIRSTHDR(&message))
        die("recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* The other process. Ends when the socket does. */
__attribute__((noreturn)) static void serve(int socket, int memfd, size_t pages)
{
    uint64_t address;
    int faults = receive_fd(socket, &address);
    uint8_t *view = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);

    if (view == MAP_FAILED)
        die("the server's mmap");
    for (;;) {
        struct pollfd wait[2] = {{.fd = faults, .events = POLLIN}, {.fd = socket, .events = POLLIN}};
        struct uffd_msg message;
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            die("poll");
        if (wait[1].revents)
            _exit(0);
        if (read(faults, &message, sizeof message) != (ssize_t)sizeof message)
            continue;
        uint64_t at = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        uint64_t page = (at - address) / PAGE;
        memset(view + page * PAGE, (int)(page % 251), PAGE);
        struct uffdio_continue c = {.range = {.start = at, .len = PAGE}};
        if (ioctl(faults, UFFDIO_CONTINUE, &c) && errno != EEXIST)
            die("UFFDIO_CONTINUE");
    }
}

static struct bare bare_start(size_t pages)
{
    struct bare bare = {.memfd = memfd_create("bench_fault", MFD_CLOEXEC), .pages = pages};
    int sockets[2];

    if (bare.memfd < 0 || ftruncate(bare.memfd, (off_t)(pages * PAGE)) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets))
        die("memfd or socketpair");
    bare.socket = sockets[0];
    bare.server = fork();
    if (bare.server < 0)
        die("fork");
    if (!bare.server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sockets[0]);
        serve(sockets[1], bare.memfd, pages);
    }
    close(sockets[1]);
    bare.address = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, bare.memfd, 0);
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM};
    struct uffdio_register registration = {
        .range = {.start = (uintptr_t)bare.address, .len = pages * PAGE},
        .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR};
    if (bare.address == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
        ioctl(faults, UFFDIO_REGISTER, &registration))
        die("userfaultfd");
    send_fd(bare.socket, faults, (uintptr_t)bare.address);
    close(faults);
    return bare;
}

static void bare_stop(struct bare *bare)
{
    int status;

    munmap(bare->address, bare->pages * PAGE);
    close(bare->socket);
    close(bare->memfd);
    if (waitpid(bare->server, &status, 0) != bare->server || status)
        die("the bare server ended with %#x", (unsigned)status);
}

/* Microseconds a fault; the pages are away again at the end. */
static double time_bare(struct bare *bare, const uint32_t *pages, size_t n)
{
    uint64_t start = now_ns();

    for (size_t i = 0; i < n; i++)
        if (*(volatile uint8_t *)(bare->address + pages[i] * PAGE) != pages[i] % 251)
            die("wrong bytes in the bare mapping");
    double us = (double)(now_ns() - start) / 1000 / (double)n;
    if (fallocate(bare->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(bare->pages * PAGE)))
        die("fallocate");
    return us;
}

static double time_touches(uint8_t *base, size_t length, const uint32_t *units, size_t n, int advice)
{
    advise(base, length, advice);
    uint64_t start = now_ns();
    for (size_t i = 0; i < n; i++)
        check_page(base, (uint64_t)units[i] * UNIT_PAGES + units[i] % UNIT_PAGES);
    return (double)(now_ns() - start) / 1000 / (double)n;
}

static void warm_units(int backing, const uint32_t *units, size_t n)
{
    for (size_t i = 0; i < n; i++)
        warm(backing, (uint64_t)units[i] * UNIT_PAGES * PAGE, UNIT_PAGES * PAGE);
}

/* After time_touches(): the pages are resident and protected. */
static double time_stores(uint8_t *base, const uint32_t *units, size_t n)
{
    uint64_t start = now_ns();

    for (size_t i = 0; i < n; i++) {
        uint64_t page = (uint64_t)units[i] * UNIT_PAGES + units[i] % UNIT_PAGES;
        *(volatile uint64_t *)(base + page * PAGE) = pattern_word(page, 0); /* the same bytes: the file stays */
    }
    return (double)(now_ns() - start) / 1000 / (double)n;
}

enum kind { BARE, ONE_PAGE, UNIT, STORE, KINDS };

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"bare", "page", "unit", "store"};
    size_t n = option(&argc, argv, "--faults", 512), blocks = option(&argc, argv, "--blocks", 9);
    uint64_t random = 7;

    if (argc != 3 || !n || !blocks) {
        fprintf(stderr, "usage: bench_fault FILE BACKING [--faults N] [--blocks N]\n");
        return 2;
    }
    struct bare bare = bare_start(4 * n); /* before there are threads */
    int fd = open_file(argv[1], O_RDWR), backing = open_file(argv[2], O_RDONLY);
    size_t length = file_size(fd), units = length / PAGE / UNIT_PAGES;
    struct gaia_device *device = open_device();
    uint8_t *base = map_file(device, fd, length, PROT_READ | PROT_WRITE);
    uint32_t *pages = malloc(n * sizeof *pages), *picked = malloc(n * sizeof *picked);
    double *times[KINDS], *ratios[KINDS];
    for (int k = 0; k < KINDS; k++) {
        times[k] = calloc(blocks, sizeof *times[k]);
        ratios[k] = calloc(blocks, sizeof *ratios[k]);
        if (!times[k] || !ratios[k] || !pages || !picked)
            die("memory");
    }
    for (size_t b = 0; b <= blocks; b++) { /* the first warms up */
        size_t at = b ? b - 1 : 0;
        pick_distinct(&random, pages, n, bare.pages);
        pick_distinct(&random, picked, n, units);
        warm_units(backing, picked, n);
        times[BARE][at] = time_bare(&bare, pages, n);
        times[ONE_PAGE][at] = time_touches(base, length, picked, n, GAIA_ADV_RANDOM);
        times[STORE][at] = time_stores(base, picked, n);
        advise(base, length, GAIA_ADV_DONTNEED);
        pick_distinct(&random, picked, n, units);
        warm_units(backing, picked, n);
        times[UNIT][at] = time_touches(base, length, picked, n, GAIA_ADV_NORMAL);
        advise(base, length, GAIA_ADV_DONTNEED);
        for (int k = 0; k < KINDS; k++)
            ratios[k][at] = times[k][at] / times[BARE][at];
    }
    printf("{\"faults\": %zu, \"blocks\": %zu", n, blocks);
    for (int k = 0; k < KINDS; k++) {
        double us = median(times[k], blocks), ratio = median(ratios[k], blocks); /* which sorts */
        printf(", \"%s_us\": %.2f, \"%s_us_min\": %.2f, \"%s_ratio\": %.2f, \"%s_ratio_min\": %.2f, "
               "\"%s_ratio_max\": %.2f",
               names[k], us, names[k], times[k][0], names[k], ratio, names[k], ratios[k][0], names[k],
               ratios[k][blocks - 1]);
    }
    printf("}\n");
    gaia_munmap(base, length);
    gaia_device_close(device);
    close(fd);
    close(backing);
    bare_stop(&bare);
    for (int k = 0; k < KINDS; k++) {
        free(times[k]);
        free(ratios[k]);
    }
    free(pages);
    free(picked);
    return 0;
}
