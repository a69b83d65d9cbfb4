/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs in several processes over files of a gaiafs mount, and processes that are killed.
 *
 * usage: driver --mount DIR [--mount DIR]... --log DIR --seed N --operations N --workers N --devices N
 * --files N,N,... \
 *               [--kill N] [--mute LETTERS] [--need LETTERS] [--life N]
 *        driver --backing DATADIR --log DIR
 *
 * --mount    of each node: the workers are spread over them. The files of several keep their size (--mute g)
 * --devices  of each node
 * --files    sizes in bytes; the last one is appended to and truncated, up to twice its size
 * --kill     a worker is killed about every so many operations (0: none; those that are alive at the end
 * are killed then too, half of them)
 * --mute     operations that are not done, see worker.c; g: the last file is like the others
 * --need     operations that every worker does: else some do none of a kind, by chance
 * --life     operations after which a worker ends by itself, on the average
 * --backing  after the unmount: log what the data directory's files hold
 *
 * Exit status: 0; 2, bad arguments; 3, a call did not do what it must, it says which. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
    pid_t pid;
    uint32_t incarnation;
};

struct options {
    const char *log, *backing, *files;
    uint64_t seed, operations;
    uint32_t workers, devices, nodes, kill_every;
};

static struct run run = {.mutes = "", .needs = "", .mean_ops = 3000};
static struct child children[WORKERS_MAX];

static void *map_shared(const char *folder, const char *name, size_t size, bool create)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0644);
    if (fd < 0 || (create && ftruncate(fd, (off_t)size)))
        die(path);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED)
        die(path);
    close(fd);
    return memory;
}

static void open_logs(const char *folder, unsigned workers, bool create)
{
    char name[32];

    for (unsigned i = 0; i <= workers; i++) {
        snprintf(name, sizeof name, "log.%u", i);
        run.logs[i] = map_shared(folder, name, LOG_BYTES, create);
    }
}

static void make_run(const struct options *options)
{
    struct control *control = run.control = map_shared(options->log, "control", sizeof *control, true);
    const char *size = options->files;

    *control = (struct control){.magic = HISTORY_MAGIC,
                                .seed = options->seed,
                                .clock = 1, /* 0 is the start, 1 nothing: see the checker's rules.c */
                                .operations = options->operations,
                                .workers = options->workers,
                                .devices = options->devices,
                                .nodes = options->nodes};
    while (size && control->files < FILES_MAX) {
        struct history_file *file = &control->file[control->files++];
        file->size = file->most = strtoull(size, NULL, 10);
        size = strchr(size, ',');
        if (!size++) {
            if (strchr(run.mutes, 'g'))
                break;
            file->varies = 1;
            file->most *= 2;
            break;
        }
    }
    open_logs(options->log, control->workers, true);
}

static pid_t start(void (*body)(uint32_t), uint32_t argument)
{
    pid_t parent = getpid(), child = fork();

    if (child < 0)
        die("fork");
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    body(argument);
    _exit(3);
}

static void worker_body(uint32_t index)
{
    run_worker(&run, index, children[index].incarnation);
}

static void prepare_body(uint32_t unused)
{
    (void)unused;
    prepare_files(&run);
}

static void track_body(uint32_t unused)
{
    (void)unused;
    track_files(&run);
}

static void sync_body(uint32_t node)
{
    sync_files(&run, node);
}

static void finish_body(uint32_t node)
{
    finish_run(&run, node);
}

static void run_alone(void (*body)(uint32_t), uint32_t argument, const char *what)
{
    int status;

    if (waitpid(start(body, argument), &status, 0) < 0 || status) {
        fprintf(stderr, "driver: %s ended with status %#x\n", what, (unsigned)status);
        exit(3);
    }
}

/* A worker that was killed and is gone now: what it had begun is over. */
static void close_log(uint32_t index)
{
    struct log_header *log = run.logs[index];
    struct entry *entry = (struct entry *)((uint8_t *)(log + 1) + log->last);

    atomic_fetch_add(&run.control->kills, 1);
    if (!log->used || log->last >= log->used || entry->answered)
        return;
    entry->flags |= ENTRY_KILLED;
    entry->answered = tick(run.control);
    if (entry->operation != OP_OTHER)
        atomic_fetch_add(&run.control->kills_inside, 1);
}

static void kill_all(void)
{
    for (unsigned i = 0; i < run.control->workers; i++)
        if (children[i].pid)
            kill(children[i].pid, SIGKILL);
}

/* What became of a worker; ends the run if it is bad. */
static void bury(uint32_t index, int status)
{
    children[index].pid = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        close_log(index);
    } else if (status) {
        fprintf(stderr, "driver: worker %u.%u ended with status %#x\n", index, children[index].incarnation,
                (unsigned)status);
        kill_all();
        exit(3);
    }
}

static bool going_on(void)
{
    return atomic_load(&run.control->started) < run.control->operations;
}

static void reap(bool restart)
{
    int status;

    for (unsigned i = 0; i < run.control->workers; i++) {
        if (!children[i].pid || waitpid(children[i].pid, &status, WNOHANG) <= 0)
            continue;
        bury(i, status);
        if (!restart || !going_on())
            continue;
        children[i].incarnation++;
        children[i].pid = start(worker_body, i);
    }
}

static void run_workers(const struct options *options)
{
    uint64_t random = options->seed * 31 + 7, next = options->kill_every;
    uint32_t count = run.control->workers;

    for (unsigned i = 0; i < count; i++)
        children[i].pid = start(worker_body, i);
    while (going_on()) {
        usleep(200);
        reap(true);
        if (!options->kill_every || atomic_load(&run.control->started) < next)
            continue;
        next = atomic_load(&run.control->started) + next_random(&random) % (2 * options->kill_every);
        pid_t victim = children[next_random(&random) % count].pid;
        if (victim)
            kill(victim, SIGKILL);
    }
    for (unsigned i = 0; i < count && options->kill_every; i += 2)
        if (children[i].pid)
            kill(children[i].pid, SIGKILL);
    for (unsigned i = 0; i < count; i++)
        while (children[i].pid) {
            reap(false);
            usleep(1000);
        }
}

/* Of several nodes: tracked from the start, and as long as a node has them open. This process has, to its
 * end. */
static void hold_files(const struct options *options)
{
    char path[4096];

    for (uint32_t node = 0; node < options->nodes; node++)
        for (uint32_t file = 0; file < run.control->files; file++) {
            snprintf(path, sizeof path, "%s/file.%u", run.mounts[node], file);
            if (open(path, O_RDONLY | O_CLOEXEC) < 0)
                die(path);
        }
    run_alone(track_body, 0, "the first maps");
}

static int log_backing(const struct options *options)
{
    run.control = map_shared(options->log, "control", sizeof *run.control, false);
    open_logs(options->log, run.control->workers, false);
    read_backing(&run, options->backing);
}

static uint64_t number(const char *text)
{
    char *rest;
    uint64_t value = strtoull(text, &rest, 10);

    if (*rest || !*text) {
        fprintf(stderr, "driver: not a number: %s\n", text);
        exit(2);
    }
    return value;
}

static void parse(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {{"mount", 1, NULL, 'm'},   {"log", 1, NULL, 'l'},
                                          {"seed", 1, NULL, 's'},    {"operations", 1, NULL, 'o'},
                                          {"workers", 1, NULL, 'w'}, {"devices", 1, NULL, 'd'},
                                          {"kill", 1, NULL, 'k'},    {"files", 1, NULL, 'f'},
                                          {"mute", 1, NULL, 'u'},    {"backing", 1, NULL, 'b'},
                                          {"life", 1, NULL, 'e'},    {"need", 1, NULL, 'n'},
                                          {NULL, 0, NULL, 0}};
    int key;

    while ((key = getopt_long(argc, argv, "", known, NULL)) != -1)
        switch (key) {
        case 'm':
            if (options->nodes == NODES_MAX)
                exit(2);
            run.mounts[options->nodes++] = optarg;
            break;
        case 'l':
            options->log = optarg;
            break;
        case 's':
            options->seed = number(optarg);
            break;
        case 'o':
            options->operations = number(optarg);
            break;
        case 'w':
            options->workers = (uint32_t)number(optarg);
            break;
        case 'd':
            options->devices = (uint32_t)number(optarg);
            break;
        case 'k':
            options->kill_every = (uint32_t)number(optarg);
            break;
        case 'f':
            options->files = optarg;
            break;
        case 'u':
            run.mutes = optarg;
            break;
        case 'b':
            options->backing = optarg;
            break;
        case 'n':
            run.needs = optarg;
            break;
        case 'e':
            run.mean_ops = (uint32_t)number(optarg);
            break;
        default:
            exit(2);
        }
}

int main(int argc, char **argv)
{
    struct options options = {.operations = 10000, .workers = 3, .devices = 2, .files = "65536,32768"};

    parse(argc, argv, &options);
    if (options.log && options.backing)
        return log_backing(&options);
    if (!options.log || !options.nodes || !options.workers || options.workers >= WORKERS_MAX ||
        !options.devices || options.nodes * options.devices > DEVICES_MAX || !run.mean_ops ||
        (options.nodes > 1 && !strchr(run.mutes, 'g'))) {
        fprintf(stderr, "usage: see the head of driver.c\n");
        return 2;
    }
    make_run(&options);
    run_alone(prepare_body, 0, "the preparation");
    if (options.nodes > 1)
        hold_files(&options);
    run_workers(&options);
    for (uint32_t node = 0; node < options.nodes; node++)
        run_alone(sync_body, node, "the last sync");
    for (uint32_t node = 0; node < options.nodes; node++)
        run_alone(finish_body, node, "the end of the run");
    printf("operations %llu, kills %u, of these inside a call %u\n",
           (unsigned long long)run.control->operations, run.control->kills, run.control->kills_inside);
    return 0;
}
