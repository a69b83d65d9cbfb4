/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/flusher.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/fs.h"
#include "fs/log.h"

#define FIRST_SOCKET 64 /* of the child's: above all descriptors that the daemon has by then */
#define CHILD_STACK (256u << 10)
#define FUSE_HANDLE_TYPE 0x81 /* FILEID_INO64_GEN: the kernel's fs/fuse/inode.c */

struct order {
    dev_t device;
    uint64_t nodeid;
    off_t offset, length;
};

/* --- the child --- */

/* Of one thread; the path is the daemon's, as it was when it forked. */
struct work {
    int socket;
    uint32_t generation;
    const char *mount_path;
};

/* The file of a node id, of which the kernel knows the inode: somebody has it open. Not by a name, which may
 * be another file's by now, or none's. */
static int open_node(const struct work *work, const struct order *order)
{
    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + 3 * sizeof(uint32_t)];
    } name = {.handle = {.handle_bytes = 3 * sizeof(uint32_t), .handle_type = FUSE_HANDLE_TYPE}};
    const uint32_t words[3] = {(uint32_t)(order->nodeid >> 32), (uint32_t)order->nodeid, work->generation};
    struct statx st;

    int top = open(work->mount_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return -1;
    memcpy(name.handle.f_handle, words, sizeof words);
    int fd = -1;
    /* Another mount may lie over ours, or be in its place. A handle's mount is named by a descriptor that is
     * open for more than its path, which would be a request of its own, or by the working directory. */
    if (!statx(top, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) &&
        makedev(st.stx_dev_major, st.stx_dev_minor) == order->device && !fchdir(top)) {
        /* O_NONBLOCK: a program's lease is not waited for. */
        fd = open_by_handle_at(AT_FDCWD, &name.handle, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (chdir("/"))
            _exit(1);
    }
    close(top);
    return fd;
}

static int flush(const struct work *work, const struct order *order)
{
    int fd = open_node(work, order), rc = 0;

    if (fd < 0)
        return -EAGAIN;
    if (sync_file_range(fd, order->offset, order->length,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
        rc = errno == EAGAIN ? -EIO : -errno;
    /* Before Linux 6.16 this waits for write-backs that are on their way still (attach_handle()). */
    close(fd);
    return rc;
}

static void *serve(void *argument)
{
    const struct work *work = argument;
    pid_t number = (pid_t)syscall(SYS_gettid);
    struct order order;
    int rc = 0;

    /* A working directory for each. */
    if (unshare(CLONE_FS) ||
        send(work->socket, &number, sizeof number, MSG_NOSIGNAL) != (ssize_t)sizeof number)
        _exit(1);
    while (recv(work->socket, &order, sizeof order, 0) == (ssize_t)sizeof order) {
        rc = flush(work, &order);
        if (send(work->socket, &rc, sizeof rc, MSG_NOSIGNAL) != (ssize_t)sizeof rc)
            break;
    }
    _exit(0); /* the daemon has gone */
}

/* No descriptor of the daemon's may be held here, and no signal but SIGKILL is for this process. */
static _Noreturn void live(const struct fs *fs, const int sockets[FLUSHER_THREADS], pid_t daemon)
{
    static struct work work[FLUSHER_THREADS];
    pthread_attr_t small;
    pthread_t thread;
    sigset_t all;

    prctl(PR_SET_NAME, "gaiafs-flusher"); /* killall mount.gaiafs means the daemon, */
    setsid();                             /* and so do signals to the group that it was started in */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (unsigned i = 0; i < FLUSHER_THREADS; i++) {
        int fd = fcntl(sockets[i], F_DUPFD_CLOEXEC, FIRST_SOCKET);
        if (fd != FIRST_SOCKET + (int)i)
            _exit(1);
        work[i] = (struct work){fd, fs->generation, fs->mount_path};
    }
    if (syscall(SYS_close_range, 0u, FIRST_SOCKET - 1u, 0u) ||
        syscall(SYS_close_range, FIRST_SOCKET + FLUSHER_THREADS, ~0u, 0u))
        _exit(1);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != daemon)
        _exit(1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, CHILD_STACK);
    for (unsigned i = 1; i < FLUSHER_THREADS; i++)
        if (pthread_create(&thread, &small, serve, &work[i]))
            _exit(1);
    serve(&work[0]);
    _exit(0);
}

/* --- the daemon --- */

static void no_flusher(const char *why)
{
    fs_log(LOG_WARNING,
           "no flusher: %s: acquires on other nodes will drop what this one's kernel holds of the files that "
           "programs have open for writing",
           why);
}

static void close_sockets(struct flusher *flusher)
{
    for (unsigned i = 0; i < FLUSHER_THREADS; i++)
        if (flusher->threads[i].socket >= 0)
            close(flusher->threads[i].socket);
}

/* Each thread says its number first. */
static bool meet(struct flusher *flusher)
{
    for (unsigned i = 0; i < FLUSHER_THREADS; i++)
        if (recv(flusher->threads[i].socket, &flusher->threads[i].number, sizeof(pid_t), 0) !=
            (ssize_t)sizeof(pid_t))
            return false;
    return true;
}

static pid_t spawn(const struct fs *fs, struct flusher *flusher)
{
    int theirs[FLUSHER_THREADS], pair[2];
    pid_t daemon = getpid(), pid = -1;
    unsigned count = 0;

    while (count < FLUSHER_THREADS && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        flusher->threads[count].socket = pair[0];
        theirs[count++] = pair[1];
    }
    if (count == FLUSHER_THREADS)
        pid = fork();
    if (pid == 0)
        live(fs, theirs, daemon);
    int error = errno;
    for (unsigned i = 0; i < count; i++)
        close(theirs[i]);
    errno = error;
    return pid;
}

static void reap(pid_t pid)
{
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void flusher_start(struct fs *fs)
{
    struct flusher *flusher = &fs->flusher;

    lock_init(&flusher->lock, LOCK_FLUSHER);
    pthread_cond_init(&flusher->idle, NULL);
    for (unsigned i = 0; i < FLUSHER_THREADS; i++)
        flusher->threads[i].socket = -1;
    if (!fs->options.members)
        return;
    pid_t pid = spawn(fs, flusher);
    if (pid > 0 && meet(flusher)) {
        flusher->pid = pid;
        return;
    }
    no_flusher(pid < 0 ? strerror(errno) : "it has ended");
    if (pid > 0)
        reap(pid);
    close_sockets(flusher);
    for (unsigned i = 0; i < FLUSHER_THREADS; i++)
        flusher->threads[i].socket = -1;
}

void flusher_kill(struct fs *fs)
{
    if (fs->flusher.pid)
        kill(fs->flusher.pid, SIGKILL); /* it is there until flusher_stop() waits for it */
}

void flusher_stop(struct fs *fs)
{
    struct flusher *flusher = &fs->flusher;

    if (flusher->pid)
        reap(flusher->pid);
    close_sockets(flusher);
    flusher->pid = 0;
}

/* Not by the thread alone: when the flusher has died its numbers are anybody's. */
bool flusher_is(struct fs *fs, const struct inode *inode, pid_t thread)
{
    struct flusher *flusher = &fs->flusher;
    bool is = false;

    if (!flusher->pid)
        return false;
    pthread_mutex_lock(&flusher->lock);
    for (unsigned i = 0; i < FLUSHER_THREADS; i++)
        is |= flusher->threads[i].number == thread && flusher->threads[i].busy &&
              flusher->threads[i].nodeid == nodeid_of(inode);
    pthread_mutex_unlock(&flusher->lock);
    return is;
}

/* One that is idle, and the caller's then; FLUSHER_THREADS: none answers any more. */
static unsigned take_thread(struct flusher *flusher, uint64_t nodeid)
{
    unsigned taken = FLUSHER_THREADS;
    bool any = flusher->pid;

    pthread_mutex_lock(&flusher->lock);
    while (any && taken == FLUSHER_THREADS) {
        any = false;
        for (unsigned i = 0; i < FLUSHER_THREADS; i++) {
            any |= flusher->threads[i].socket >= 0;
            if (flusher->threads[i].socket >= 0 && !flusher->threads[i].busy)
                taken = i;
        }
        if (any && taken == FLUSHER_THREADS)
            pthread_cond_wait(&flusher->idle, &flusher->lock);
    }
    if (taken < FLUSHER_THREADS) {
        flusher->threads[taken].busy = true;
        flusher->threads[taken].nodeid = nodeid;
    }
    pthread_mutex_unlock(&flusher->lock);
    return taken;
}

static void give_thread(struct fs *fs, unsigned number, bool answers)
{
    struct flusher *flusher = &fs->flusher;

    pthread_mutex_lock(&flusher->lock);
    bool first = !answers && !flusher->gone && fs->serving;
    flusher->threads[number].busy = false;
    if (!answers) {
        flusher->gone = true;
        close(flusher->threads[number].socket);
        flusher->threads[number].socket = -1;
    }
    pthread_cond_broadcast(&flusher->idle);
    pthread_mutex_unlock(&flusher->lock);
    if (first)
        no_flusher("it has ended");
}

/* Whether there was an answer. */
static bool ask(int socket, const struct order *order, int *answer_out)
{
    ssize_t n;

    do
        n = send(socket, order, sizeof *order, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return false;
    do
        n = recv(socket, answer_out, sizeof *answer_out, 0);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *answer_out;
}

int flusher_write_back(struct fs *fs, const struct inode *inode, off_t offset, off_t length)
{
    const struct order order = {fs->mounted.device, nodeid_of(inode), offset, length};
    struct flusher *flusher = &fs->flusher;
    unsigned number = take_thread(flusher, order.nodeid);
    bool answers = true;
    int rc = -ENOENT;

    if (number == FLUSHER_THREADS)
        return -EAGAIN;
    pthread_rwlock_rdlock(&fs->notify_gate); /* the WRITEs that it waits for must be answered */
    if (fs->serving)
        answers = ask(flusher->threads[number].socket, &order, &rc);
    pthread_rwlock_unlock(&fs->notify_gate);
    give_thread(fs, number, answers);
    return answers ? rc : -EAGAIN;
}
