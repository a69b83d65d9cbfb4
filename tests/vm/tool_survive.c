/* SPDX-License-Identifier: Apache-2.0 */
/* What programs of a node see when the home of a file goes away, and that files of their own node go on.
 *
 * tool_survive MOUNT DATA a|b LIMIT_MS NAME [still]   MOUNT is the node's own; the other of a and b goes away
 * tool_survive little BYTES COMMAND...   runs it with so little memory to lock, and not as who may lock more
 *
 * A thread for each way to touch a file: write(), read(), fsync(), loads of soft:0, stores and releases, and
 * acquires, all of a file of the other node; and one for everything of a file of this node. Once all are
 * running /tmp/ready is made (still: and none of them calls any more); when /tmp/gone is there the other node
 * has gone. They go on for LIMIT_MS then.
 * /tmp/late is made when something takes longer than it may, while it still does.
 * No call and no touch may take longer than that, or end with anything else than success, EIO and SIGBUS; of
 * this node's own file nothing may fail at all. The other file is taken over, but its maps fail: how many
 * calls did is printed, and none means that the other node had not gone. Ends with a line "node test NAME:
 * ..." (nodes_tool.h). */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <linux/capability.h>

#include "gaia.h"
#include "nodes_tool.h"

#define PAGES 256u /* more than the device has: 1 MiB, half of it for each home, and each a part of that */
#define STARTS_MS 60000u
#define STILL_US 1000000u

struct file {
    int fd;
    uint8_t *mapped;
};

enum how { BY_WRITE, BY_READ, BY_SYNC, BY_LOAD, BY_RELEASE, BY_ACQUIRE, OWN, HOWS };
static const char *const how_names[] = {"write()", "read()",   "fsync()",     "loads",
                                        "stores",  "acquires", "the own file"};

static struct toucher {
    pthread_t thread;
    enum how how;
    uint64_t state;
    _Atomic uint64_t busy_since_us; /* 0: between two calls */
    _Atomic unsigned done, failed;  /* calls */
    _Atomic unsigned done_after;    /* of done: after the other node had gone */
    uint64_t longest_us;
    int other; /* an errno that nobody should see */
} touchers[HOWS];

static struct file far_file, own_file;
static struct gaia_device *device;
static _Atomic bool gone, stop, pause_all;
static __thread sigjmp_buf *volatile landing;

static void on_bus(int number)
{
    (void)number;
    if (!landing)
        _exit(3);
    siglongjmp(*landing, 1);
}

/* One byte, loaded, or stored when that is 0 or more. 0 or -EIO: it was a SIGBUS. */
static int touch(volatile uint8_t *byte, int value)
{
    sigjmp_buf here;

    if (sigsetjmp(here, 1)) {
        landing = NULL;
        return -EIO;
    }
    landing = &here;
    if (value >= 0)
        *byte = (uint8_t)value;
    else
        (void)*byte;
    landing = NULL;
    return 0;
}

static int result(long said)
{
    return said < 0 ? -errno : 0;
}

static int once(struct toucher *t, enum how how, struct file *file)
{
    uint64_t page = draw(&t->state, PAGES);
    uint8_t bytes[PAGE] = {(uint8_t)page};

    switch (how) {
    case BY_WRITE:
        return result(pwrite(file->fd, bytes, sizeof bytes, (off_t)(page * PAGE)));
    case BY_READ: /* not out of this kernel's cache */
        posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
        return result(pread(file->fd, bytes, sizeof bytes, (off_t)(page * PAGE)));
    case BY_SYNC:
        return result(fsync(file->fd));
    case BY_LOAD:
        return touch(file->mapped + page * PAGE, -1);
    case BY_RELEASE: {
        int error = touch(file->mapped + page * PAGE, (int)(page & 0xff));
        return error ? error : result(gaia_mrelease(file->mapped + page * PAGE, PAGE, device));
    }
    default:
        return result(gaia_macquire(file->mapped + page * PAGE, PAGE, device));
    }
}

static void *touches(void *argument)
{
    struct toucher *t = argument;
    struct file *file = t->how == OWN ? &own_file : &far_file;
    unsigned turn = 0;

    while (!stop) {
        bool after = gone;
        uint64_t since = now_us();
        t->busy_since_us = since;
        if (pause_all) {
            t->busy_since_us = 0;
            usleep(1000);
            continue;
        }
        int error = once(t, t->how == OWN ? turn++ % OWN : t->how, file);
        uint64_t took = now_us() - since;
        t->busy_since_us = 0;
        t->longest_us = took > t->longest_us ? took : t->longest_us;
        t->done++;
        t->done_after += after;
        t->failed += error != 0;
        if (error && error != -EIO)
            t->other = -error;
        if (error || after) /* as fast as they can until then, so that it meets calls under way */
            usleep(20000);
    }
    return NULL;
}

/* Somebody may look at what they wait for (rdma_nodes.sh). */
static void show_late(uint64_t limit_us)
{
    for (unsigned i = 0; i < HOWS; i++) {
        uint64_t since = touchers[i].busy_since_us;
        if (since && now_us() - since > limit_us)
            close(open("/tmp/late", O_CREAT | O_WRONLY, 0644));
    }
}

static bool all_have_begun(void)
{
    for (unsigned i = 0; i < HOWS; i++)
        if (touchers[i].done < 3)
            return false;
    return true;
}

/* Nobody calls, and what was done besides for who did (reads ahead, pages written back) has ended, too. */
static void be_still(void)
{
    unsigned busy;

    pause_all = true;
    for (unsigned i = 0; i < STARTS_MS / 20; i++, usleep(20000)) {
        busy = 0;
        for (unsigned j = 0; j < HOWS; j++)
            busy += touchers[j].busy_since_us != 0;
        if (!busy)
            break;
    }
    if (busy)
        fail("be_still");
    usleep(STILL_US);
}

static void await_file(const char *path)
{
    for (unsigned i = 0; i < STARTS_MS / 20; i++, usleep(20000))
        if (!access(path, F_OK))
            return;
    fail(path);
}

static void file_open(struct file *file, const char *mount, const char *data, unsigned home, const char *what)
{
    char name[64];

    make_homed(data, home, what, name);
    int fd = open_in(data, name, O_RDWR);
    if (ftruncate(fd, PAGES * PAGE))
        fail("ftruncate");
    close(fd);
    file->fd = open_in(mount, name, O_RDWR);
    file->mapped = gaia_mmap(device, PAGES * PAGE, PROT_READ | PROT_WRITE, 0, file->fd, 0);
    if (file->mapped == MAP_FAILED)
        fail("gaia_mmap");
}

/* What is wrong with what a thread has seen; false: nothing. */
static bool judge(const struct toucher *t, uint64_t limit_us, char problem_out[160])
{
    uint64_t since = t->busy_since_us, stuck = since ? now_us() - since : 0;
    uint64_t longest = t->longest_us > stuck ? t->longest_us : stuck;

    printf("  %s: %u calls, %u of them after it had gone, %u failed, the longest %.1f s\n", how_names[t->how],
           t->done, t->done_after, t->failed, (double)longest / 1e6);
    if (longest > limit_us)
        snprintf(problem_out, 160, "%s: a call took %.1f s%s", how_names[t->how], (double)longest / 1e6,
                 stuck ? " and is not back" : "");
    else if (t->other)
        snprintf(problem_out, 160, "%s: %s", how_names[t->how], strerror(t->other));
    else if (t->how == OWN && t->failed)
        snprintf(problem_out, 160, "%s: %u calls failed", how_names[t->how], t->failed);
    else if (!t->done_after)
        snprintf(problem_out, 160, "%s: no call afterwards", how_names[t->how]);
    else
        return false;
    return true;
}

static int survive(const char *name, uint64_t limit_us, bool still)
{
    char problem[160] = "";

    for (unsigned i = 0; i < HOWS; i++) {
        touchers[i].how = i;
        touchers[i].state = i;
        if (pthread_create(&touchers[i].thread, NULL, touches, &touchers[i]))
            fail("pthread_create");
    }
    for (unsigned i = 0; i < STARTS_MS / 20 && !all_have_begun(); i++, usleep(20000))
        show_late(limit_us);
    if (!all_have_begun())
        snprintf(problem, sizeof problem, "not everybody has begun");
    if (still)
        be_still();
    close(open("/tmp/ready", O_CREAT | O_WRONLY, 0644));
    await_file("/tmp/gone");
    gone = true;
    pause_all = false;
    uint64_t since = now_us();
    for (; now_us() - since < limit_us; usleep(50000))
        show_late(limit_us * 3 / 4);
    stop = true;
    usleep(300000);
    for (unsigned i = 0; i < HOWS; i++)
        judge(&touchers[i], limit_us, problem);
    unsigned failed = 0;
    for (unsigned i = 0; i < OWN; i++)
        failed += touchers[i].failed;
    if (!failed && !*problem)
        snprintf(problem, sizeof problem, "nobody noticed that it has gone");
    if (*problem)
        printf("node test %s: failed: %s\n", name, problem);
    else
        printf("node test %s: ok (%u calls failed)\n", name, failed);
    fflush(stdout);
    if (*problem)
        _exit(1); /* somebody may hang */
    for (unsigned i = 0; i < HOWS; i++)
        pthread_join(touchers[i].thread, NULL);
    gaia_munmap(far_file.mapped, PAGES * PAGE);
    gaia_munmap(own_file.mapped, PAGES * PAGE);
    close(far_file.fd);
    close(own_file.fd);
    gaia_device_close(device);
    return 0;
}

static int little(char **arguments)
{
    rlim_t bytes = strtoull(arguments[0], NULL, 0);

    if (prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) ||
        setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes}))
        fail("little memory to lock");
    execvp(arguments[1], arguments + 1);
    fail(arguments[1]);
}

int main(int argc, char **argv)
{
    if (argc > 3 && !strcmp(argv[1], "little"))
        return little(argv + 2);
    bool still = argc == 7 && !strcmp(argv[6], "still");
    if (argc != 6 + still)
        return 2;
    unsigned self = *argv[3] == 'b';
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    if (gaia_device_open("soft:0", &device))
        fail("gaia_device_open");
    file_open(&far_file, argv[1], argv[2], !self, "far");
    file_open(&own_file, argv[1], argv[2], self, "own");
    return survive(argv[5], strtoull(argv[4], NULL, 0) * 1000, still);
}
