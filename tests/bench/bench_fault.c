/* SPDX-License-Identifier: Apache-2.0 */
/* A fault of the soft device against a bare userfaultfd round trip between two processes: blocks of faults in
 * turn.
 *
 * bare      a memfd mapping whose faults a forked process serves: it polls, reads the message, fills 4 KiB
 * through its own mapping and continues page      GAIA_ADV_RANDOM: single pages of a file in the host's
 * memory unit      the default: 64 KiB units, at random store     first stores to pages that are resident,
 * one by one (twin taken, protection lifted)
 *
 * Each is measured with the toucher and the server on one CPU, where a round trip is two switches of threads;
 * on two, where it is also two wake-ups of an idle CPU; and wherever the kernel puts them.
 *
 * bench_fault FILE BACKING DAEMON_PID [--faults N] [--blocks N] */
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "gpu/uffd.h"
#include "tests/bench/bench.h"

#define UNIT_PAGES 16u
#define BLOCKS_MAX 64u

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
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM};
    struct uffdio_register registration = {.range = {.start = (uintptr_t)bare.address, .len = pages * PAGE},
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
        *(volatile uint64_t *)(base + page * PAGE) =
            pattern_word(page, 0); /* the same bytes: the file stays */
    }
    return (double)(now_ns() - start) / 1000 / (double)n;
}

enum kind { BARE, ONE_PAGE, UNIT, STORE, KINDS };
static const char *const kind_names[KINDS] = {"bare", "page", "unit", "store"};
enum placement { ONE_CPU, TWO_CPUS, FREE, PLACEMENTS };
static const char *const placement_names[PLACEMENTS] = {"one_cpu", "two_cpus", "free"};

/* The CPUs that this process may use, and the placements made of them. */
struct cpus {
    cpu_set_t all, first, second;
    int count;
};

static struct cpus find_cpus(void)
{
    struct cpus cpus = {0};

    if (sched_getaffinity(0, sizeof cpus.all, &cpus.all))
        die("sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus.all) && cpus.count++ < 2)
            CPU_SET(cpu, cpus.count == 1 ? &cpus.first : &cpus.second);
    return cpus;
}

/* Every thread of a process. One that ends meanwhile is no error. */
static void place_process(pid_t pid, const cpu_set_t *set)
{
    char path[40];
    struct dirent *entry;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        die("%s", path);
    while ((entry = readdir(tasks)))
        if (entry->d_name[0] != '.' && sched_setaffinity(atoi(entry->d_name), sizeof *set, set) &&
            errno != ESRCH)
            die("sched_setaffinity");
    closedir(tasks);
}

static void place(const struct cpus *cpus, enum placement placement, pid_t server, pid_t daemon)
{
    const cpu_set_t *ours = placement == FREE ? &cpus->all : &cpus->first;
    const cpu_set_t *theirs = placement == TWO_CPUS ? &cpus->second : ours;

    if (sched_setaffinity(0, sizeof *ours, ours))
        die("sched_setaffinity");
    place_process(server, theirs);
    place_process(daemon, theirs);
}

struct bench {
    struct bare bare;
    int backing;
    uint8_t *base;
    size_t length, units, faults;
    uint32_t *picked;
    uint64_t random;
};

/* A block of each kind: microseconds a fault. */
static void time_block(struct bench *b, double us[KINDS])
{
    pick_distinct(&b->random, b->picked, b->faults, b->bare.pages);
    us[BARE] = time_bare(&b->bare, b->picked, b->faults);
    pick_distinct(&b->random, b->picked, b->faults, b->units);
    warm_units(b->backing, b->picked, b->faults);
    us[ONE_PAGE] = time_touches(b->base, b->length, b->picked, b->faults, GAIA_ADV_RANDOM);
    us[STORE] = time_stores(b->base, b->picked, b->faults);
    advise(b->base, b->length, GAIA_ADV_DONTNEED);
    pick_distinct(&b->random, b->picked, b->faults, b->units);
    warm_units(b->backing, b->picked, b->faults);
    us[UNIT] = time_touches(b->base, b->length, b->picked, b->faults, GAIA_ADV_NORMAL);
    advise(b->base, b->length, GAIA_ADV_DONTNEED);
}

static void print_placement(const char *name, double (*times)[BLOCKS_MAX], double (*ratios)[BLOCKS_MAX],
                            size_t blocks)
{
    printf(", \"%s\": {", name);
    for (int k = 0; k < KINDS; k++) {
        double us = median(times[k], blocks), ratio = median(ratios[k], blocks); /* which sorts */
        printf("%s\"%s_us\": %.2f, \"%s_us_min\": %.2f, \"%s_ratio\": %.2f, \"%s_ratio_min\": %.2f, "
               "\"%s_ratio_max\": %.2f",
               k ? ", " : "", kind_names[k], us, kind_names[k], times[k][0], kind_names[k], ratio,
               kind_names[k], ratios[k][0], kind_names[k], ratios[k][blocks - 1]);
    }
    printf("}");
}

int main(int argc, char **argv)
{
    static double times[PLACEMENTS][KINDS][BLOCKS_MAX], ratios[PLACEMENTS][KINDS][BLOCKS_MAX];
    struct bench b = {.faults = option(&argc, argv, "--faults", 512), .random = 7};
    size_t blocks = option(&argc, argv, "--blocks", 9);

    if (argc != 4 || !b.faults || !blocks || blocks > BLOCKS_MAX) {
        fprintf(stderr, "usage: bench_fault FILE BACKING DAEMON_PID [--faults N] [--blocks N]\n");
        return 2;
    }
    pid_t daemon = (pid_t)strtol(argv[3], NULL, 10);
    struct cpus cpus = find_cpus();
    b.bare = bare_start(4 * b.faults); /* before there are threads */
    int fd = open_file(argv[1], O_RDWR);
    b.backing = open_file(argv[2], O_RDONLY);
    b.length = file_size(fd);
    b.units = b.length / PAGE / UNIT_PAGES;
    struct gaia_device *device = open_device();
    b.base = map_file(device, fd, b.length, PROT_READ | PROT_WRITE);
    b.picked = malloc(b.faults * sizeof *b.picked);
    if (!b.picked)
        die("memory");
    for (size_t block = 0; block <= blocks; block++) /* the first warms up */
        for (int p = 0; p < PLACEMENTS; p++) {
            double us[KINDS];
            if (p == TWO_CPUS && cpus.count < 2)
                continue;
            place(&cpus, (enum placement)p, b.bare.server, daemon);
            time_block(&b, us);
            for (int k = 0; k < KINDS && block; k++) {
                times[p][k][block - 1] = us[k];
                ratios[p][k][block - 1] = us[k] / us[BARE];
            }
        }
    place(&cpus, FREE, b.bare.server, daemon);
    printf("{\"faults\": %zu, \"blocks\": %zu", b.faults, blocks);
    for (int p = 0; p < PLACEMENTS; p++)
        if (p != TWO_CPUS || cpus.count > 1)
            print_placement(placement_names[p], times[p], ratios[p], blocks);
    printf("}\n");
    gaia_munmap(b.base, b.length);
    gaia_device_close(device);
    close(fd);
    close(b.backing);
    bare_stop(&b.bare);
    free(b.picked);
    return 0;
}
