/* SPDX-License-Identifier: Apache-2.0 */
/* mount.gaiafs: checks what it was given, goes to the background, serves the mount, ends it with nothing
 * lost. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/kernel.h"
#include "cache/ranges.h"
#include "fs/answers.h"
#include "fs/creds.h"
#include "fs/flusher.h"
#include "fs/fs.h"
#include "fs/grow.h"
#include "fs/guard.h"
#include "fs/later.h"
#include "fs/left.h"
#include "fs/log.h"
#include "fs/memory.h"
#include "fs/mountinfo.h"
#include "fs/nodes.h"
#include "fs/overlap.h"
#include "fs/passthrough.h"
#include "fs/peek.h"
#include "fs/server.h"
#include "fs/session.h"
#include "fs/trouble.h"
#include "io/protocol.h"

#define IDLE_DESCRIPTORS_MAX 8192u
#define DESCRIPTOR_TABLE 4096u
#define INODE_BYTES 192u /* of a known inode, with its places in the tables */
#define UNSYNCED_PART 64 /* of the memory, for what is known of bytes that are not synced */

/* --- what must hold before anything is started --- */

/* An absolute path without symbolic links of an existing directory; NULL after the reason was logged. */
static char *directory_path(const char *what, const char *given)
{
    char *path = realpath(given, NULL);
    struct stat st;

    if (!path || stat(path, &st)) {
        fs_log(LOG_ERR, "%s %s: %s%s", what, given, strerror(errno),
               errno == ENOTCONN ? " (a mount whose daemon has gone: umount it first)" : "");
    } else if (!S_ISDIR(st.st_mode)) {
        fs_log(LOG_ERR, "%s %s: not a directory", what, given);
    } else {
        return path;
    }
    free(path);
    return NULL;
}

static int find_directories(struct fs *fs)
{
    fs->data_path = directory_path("data directory", fs->options.data);
    fs->mount_path = fs->data_path ? directory_path("mount point", fs->options.mountpoint) : NULL;
    if (!fs->mount_path)
        return -ENOENT;
    if (overlap_is_inside(fs->data_path, fs->mount_path)) {
        fs_log(LOG_ERR, "data directory %s lies inside the mount point %s, which would hide it",
               fs->data_path, fs->mount_path);
        return -EINVAL;
    }
    return 0;
}

/* A lock taken through a gaiafs mount would not meet the lock of its daemon, which is on the directory below.
 */
static int check_not_on_gaiafs(const struct fs *fs, int fd)
{
    struct gaia_ioctl_token answer;
    struct statfs st;

    /* By what it answers: its type in the mount table is an option. */
    if (fstatfs(fd, &st) == 0 && st.f_type == FUSE_SUPER_MAGIC && ioctl(fd, GAIA_IOCTL_TOKEN, &answer) == 0) {
        fs_log(LOG_ERR, "data directory %s is already mounted by another gaiafs, or lies in a gaiafs mount",
               fs->data_path);
        return -EBUSY;
    }
    return 0;
}

/* umount(8) comes back before the daemon of the mount has ended, and a mount right after that meets it: so
 * this waits for some seconds. */
static int lock_directory(int fd, bool shared)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    int left = 500;

    while (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
        if (errno != EWOULDBLOCK || left-- == 0)
            return -errno;
        nanosleep(&pause, NULL);
    }
    return 0;
}

static void say_taken(const struct fs *fs)
{
    char at[PATH_MAX];

    overlap_find(fs, at);
    fs_log(LOG_ERR, "data directory %s is already mounted by another gaiafs%s: %s%s", fs->data_path,
           !options_share_directory(&fs->options) ? " (several take -o shared or node=, all of them)"
           : fs->options.members                  ? ", without -o peers"
                                                  : ", without -o shared",
           at[0] ? "at "
                 : "not seen from here: it is ending, a container has a copy of it, or it has an fsname=",
           at);
}

/* Whether what is read there gets a new time of access, for all that we do. A remount is not noticed. */
static bool dates_reads(const struct fs *fs, int fd)
{
    struct statvfs st;

    return !fs->options.no_atime && !fs->options.read_only &&
           (fstatvfs(fd, &st) || !(st.f_flag & (ST_NOATIME | ST_RDONLY)));
}

/* Opens the data directory, before it may be mounted over, and makes it ours. *lock_out is kept open as long.
 */
static int open_root(struct fs *fs, int *lock_out)
{
    struct stat st;
    int lock, fd, rc;

    lock = open(fs->data_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0) {
        rc = -errno;
        fs_log(LOG_ERR, "data directory %s: %s", fs->data_path, strerror(errno));
        return rc;
    }
    rc = check_not_on_gaiafs(fs, lock);
    if (rc < 0) {
        close(lock);
        return rc;
    }
    rc = lock_directory(lock, options_share_directory(&fs->options));
    if (rc < 0) {
        if (rc == -EWOULDBLOCK)
            say_taken(fs);
        else
            fs_log(LOG_ERR, "locking data directory %s: %s", fs->data_path, strerror(-rc));
        close(lock);
        return rc;
    }
    rc = overlap_check(fs);
    if (rc < 0) {
        close(lock);
        return rc;
    }
    fd = openat(lock, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
    } else {
        fs->volumes.top = st.st_dev;
        rc = inode_lookup(fs, fd, &st, NULL, NULL, &fs->root);
    }
    if (rc < 0) {
        fs_log(LOG_ERR, "data directory %s: %s", fs->data_path, strerror(-rc));
        close(lock);
        return rc;
    }
    fs->local = file_is_local(lock);
    fs->dates_reads = fs->local && dates_reads(fs, lock);
    fs->prompt_write_backs = !kernel_writes_back_late();
    fs->drops_behind = kernel_drops_behind_writes();
    *lock_out = lock;
    return 0;
}

/* --- the process --- */

/* To the hard limit, which is the administrator's: open files of programs cost one or two each, inodes none.
 */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static size_t descriptor_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) ? SIZE_MAX / 4 : limit.rlim_cur;
}

/* How many descriptors of inodes may stay open between requests: a quarter of what there is, and as many of
 * files that have lost their last name. More would only keep the kernel from forgetting what they stand for.
 */
static unsigned idle_descriptors(void)
{
    size_t all = descriptor_limit();

    return all / 4 > IDLE_DESCRIPTORS_MAX ? IDLE_DESCRIPTORS_MAX : (unsigned)(all / 4);
}

/* A quarter of the memory. */
static size_t most_inodes(const struct fs *fs)
{
    return fs->options.inodes ? fs->options.inodes : memory_available() / 4 / INODE_BYTES;
}

/* Threads come and go with the load (fs/loop.c), and each has buffers of 1 MiB. In the heaps of glibc, eight
 * for each processor, they would leave holes behind that other pages of them fill: a daemon that lives long
 * must not grow. */
static void keep_heaps_small(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    mallopt(M_MMAP_THRESHOLD, 256 * 1024); /* freed to the kernel, and no longer raised by such a free */
    mallopt(M_ARENA_MAX, cpus > 2 ? (int)cpus : 2);
}

/* The kernel's table of descriptors grows when it is full, and where a process has threads the kernel then
 * waits for all processors (synchronize_rcu): 6 to 12 ms, also for every thread that waits for a lock of the
 * one that wanted the descriptor. So the table is made large enough for most while there is one thread. It
 * does not shrink. */
static void make_descriptor_table(void)
{
    size_t all = descriptor_limit(), wanted = all < DESCRIPTOR_TABLE ? all : DESCRIPTOR_TABLE;
    int last = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, (int)wanted - 1);

    if (last >= 0)
        close(last);
}

static void prepare_process(const struct fs *fs)
{
    sigset_t signals;

    keep_heaps_small();
    make_descriptor_table();
    umask(0); /* the kernel has applied the caller's */
    if (chdir("/"))
        fs_log(LOG_WARNING, "chdir /: %s", strerror(errno));
    signal(SIGHUP, SIG_IGN); /* unless it has a meaning, below */
    signal(SIGPIPE, SIG_IGN);
    /* They wake threads of ours (fs/loop.c, cache/fault_threads.c); until there are such, nobody's do any
     * harm. */
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE: EFBIG to who writes */
    signal(SIGIO,
           SIG_IGN); /* somebody opens a file of which a lease is held for a moment: fs/passthrough.c */
    /* For the thread that waits for them, in every other; before there are any. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (options_has_peers_file(&fs->options)) {
        sigaddset(&signals, SIGHUP);
        signal(SIGHUP, SIG_DFL); /* what is ignored does not come */
    }
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    creds_init();
}

/* Forks (there are no threads yet). In the parent: waits until the child says that the mount answers, or
 * ends. Returns in the child only, with the descriptor to say it on; -1: no fork wanted. */
static int go_to_background(void)
{
    int ready[2], status;
    ssize_t got;
    char byte;
    pid_t child;

    if (pipe2(ready, O_CLOEXEC)) {
        fs_log(LOG_ERR, "can't go to the background: pipe: %s (-f stays in the foreground)", strerror(errno));
        exit(EXIT_FAILURE);
    }
    child = fork();
    if (child < 0) {
        fs_log(LOG_ERR, "can't go to the background: fork: %s (-f stays in the foreground)", strerror(errno));
        exit(EXIT_FAILURE);
    }
    if (child == 0) {
        close(ready[0]);
        return ready[1];
    }
    close(ready[1]);
    do
        got = read(ready[0], &byte, 1);
    while (got < 0 && errno == EINTR);
    if (got == 1)
        exit(EXIT_SUCCESS);
    waitpid(child, &status, 0); /* it has logged why */
    exit(EXIT_FAILURE);
}

/* What is opened first must not get the number of a descriptor that was closed at the start: say_ready() puts
 * /dev/null there, and an error that is printed would go into a file. */
static void open_standard_descriptors(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Until here it has stayed in the process group of who has it mounted: where that is done on demand
 * (systemd's x-systemd.automount) all others who come to the mount point wait until it is mounted. */
static void say_ready(const struct fs *fs, int ready)
{
    int null;

    if (ready < 0)
        return;
    setsid();
    if (fs->options.log_syslog)
        log_to_syslog(true);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        if (fs->options.log_syslog)
            dup2(null, STDERR_FILENO);
        if (null > STDERR_FILENO)
            close(null);
    }
    if (write(ready, "1", 1) < 0)
        fs_log(LOG_WARNING, "the starting process has gone: %s", strerror(errno));
    close(ready);
}

/* --- the mount's life --- */

/* The signals of prepare_process(), which nobody waits for yet. */
static bool stops(void *context)
{
    sigset_t signals;

    (void)context;
    return !sigpending(&signals) && (sigismember(&signals, SIGTERM) || sigismember(&signals, SIGINT));
}

static void pin(void *context, void *file_context, bool pinned)
{
    (void)context;
    inode_pin(file_context, pinned);
}

static const char *cache_hint(int error)
{
    if (error == -ENOSYS || error == -EPERM || error == -EACCES) /* SELinux says the last */
        return " (io_uring is refused here? try -o io=threads)";
    return error == -ENOMEM ? " (or too little memory may be locked, ulimit -l? try -o io=threads)" : "";
}

static int start_parts(struct fs *fs)
{
    struct cache_host host = {.context = fs,
                              .invalidate = session_invalidate,
                              .write_back = session_write_back,
                              .peek = peek_kernel,
                              .grow = grow_kernel,
                              .pin = pin,
                              .find = nodes_find,
                              .track = nodes_track_here,
                              .follow = nodes_follow,
                              .keep = nodes_keep,
                              .moved = nodes_moved,
                              .sync = nodes_sync,
                              .warn = nodes_warn,
                              .stops = stops};
    /* Other mounts of the data directory write to it as they should: an acquire looks each time. (Of nodes
     * the home hears of it.) */
    double seconds = fs->options.cache.shared && !fs->options.members ? 0 : fs->options.timeout_s;
    fs->options.cache.behind_timeout_ns = seconds < 1e9 ? (uint64_t)(seconds * 1e9) : UINT64_MAX;
    fs->options.cache.members = fs->options.members;
    if (!fs->options.members || !nodes_name(fs->root, &fs->options.cache.directory))
        fs->options.cache.directory.length = 0;
    fs->options.cache.shared |= fs->options.members != NULL; /* two that both take themselves for a home */
    char why[CACHE_WHY];
    int rc = cache_open(&fs->options.cache, &host, &fs->cache, why);

    if (rc < 0) {
        fs_log(LOG_ERR, "starting the cache: %s%s", *why ? why : strerror(-rc), *why ? "" : cache_hint(rc));
        return rc;
    }
    rc = server_start(fs, &fs->server);
    if (rc < 0) {
        fs_log(LOG_ERR, "starting the server for devices' programs: %s", strerror(-rc));
        cache_stop(fs->cache); /* run() closes it */
        return rc;
    }
    rc = fs->options.members ? cache_join(fs->cache, why) : 0;
    if (rc < 0) {
        fs_log(LOG_ERR, "meeting the other nodes: %s", *why ? why : strerror(-rc));
        server_stop(fs->server);
        cache_stop(fs->cache);
    }
    return rc;
}

/* The kernel is not served any more; what clients and devices still hold goes into the data directory. */
static int stop_parts(struct fs *fs)
{
    int rc;

    cache_ending(fs->cache);
    cache_flush_all(fs->cache); /* a client that can't be ended shall not keep others' bytes; told below */
    /* First: what is released until then is acknowledged, and must be collected. */
    fs->left |= !server_stop(fs->server);
    rc = cache_flush_all(fs->cache);
    int left = cache_leave(fs->cache);
    rc = rc ? rc : left;
    if (rc < 0)
        fs_log(LOG_ERR, "data directory %s: what devices held%s could not all be written, and is lost: %s",
               fs->data_path, fs->options.members ? " and nodes wrote" : "",
               rc == -EBUSY ? "a program has kept it busy" : strerror(-rc));
    if (fs->left) /* the cache's threads may wait for the same */
        return rc;
    fs->left = !cache_stop(fs->cache);
    trouble_end(fs);
    fs->left |= !later_end(fs); /* what clients and other nodes have begun since the loop ended */
    if (fs->left)
        return rc;
    while (fs->handles) /* of files that were open when the mount was detached */
        handle_free(fs, fs->handles);
    return rc;
}

static int serve_guarded(struct fs *fs, int ready, struct guard *guard)
{
    int rc = start_parts(fs), stopped;

    if (rc < 0)
        return rc;
    rc = pruner_start(fs);
    if (rc < 0)
        fs_log(LOG_WARNING, "no thread that bounds the inodes: %s", strerror(-rc));
    rc = session_start(fs);
    if (rc == 0) {
        fs->serving = true; /* not before: other nodes may have us drop pages any time; there are none yet */
        guard_watch(guard, fs->mounted.device);
        say_ready(fs, ready);
        rc = session_serve(fs);
    }
    fs->serving = false;
    flusher_kill(fs); /* who waits for its answer is waited for */
    pruner_stop(fs);
    stopped = stop_parts(fs);
    if (fs->session)
        session_end(fs);
    peek_end();
    return rc < 0 ? rc : stopped;
}

static int serve(struct fs *fs, int ready)
{
    struct guard guard;

    guard_start(&guard);
    flusher_start(fs);
    int rc = serve_guarded(fs, ready, &guard);
    flusher_stop(fs);
    guard_stop(&guard);
    return rc;
}

static int run(struct fs *fs, int ready)
{
    int lock = -1, rc = find_directories(fs);

    if (rc < 0)
        return rc;
    size_t most = most_inodes(fs);
    size_t remember = fs->options.remember < most / 4 ? fs->options.remember : most / 4;
    raise_descriptor_limit();
    volumes_init(&fs->volumes);
    pruner_init(fs);
    headroom_init(&fs->headroom);
    shed_init(fs, descriptor_limit(), most);
    ranges_bound(memory_available() / UNSYNCED_PART);
    rc = inode_table_init(fs, most, remember, idle_descriptors());
    if (rc < 0) {
        fs_log(LOG_ERR, "no memory for the table of inodes: %s", strerror(-rc));
        return rc;
    }
    lock_init(&fs->handles_lock, LOCK_HANDLES);
    lock_init(&fs->drops_lock, LOCK_DROPS);
    STAILQ_INIT(&fs->drops_waiting);
    passthrough_init(fs);
    programs_init(&fs->programs);
    lock_rw_init(&fs->notify_gate, LOCK_NOTIFY,
                 true); /* a stream of notifications must not put off the end */
    fs->as_root = geteuid() == 0;
    if (getrandom(&fs->generation, sizeof(fs->generation), GRND_NONBLOCK) != sizeof(fs->generation))
        fs->generation = (uint32_t)time(NULL);
    rc = open_root(fs, &lock);
    if (rc == 0) {
        prepare_process(fs);
        rc = serve(fs, ready);
        if (fs->left)
            left_end(fs, rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    answers_free();
    inode_table_destroy(fs);
    volumes_destroy(&fs->volumes);
    headroom_end(&fs->headroom);
    if (fs->cache)
        cache_close(fs->cache);
    pthread_rwlock_destroy(&fs->notify_gate);
    pthread_mutex_destroy(&fs->handles_lock);
    pthread_mutex_destroy(&fs->drops_lock);
    programs_end(&fs->programs);
    passthrough_end(fs);
    if (lock >= 0)
        close(lock);
    return rc;
}

/* mount --fake (`mount -fa` tries an fstab) hands its -f on, and means that nothing is to be mounted; people
 * who say it mean the foreground. */
static bool is_fake(const struct fs_options *options)
{
    char path[32], name[16] = "";

    if (!options->foreground)
        return false;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool is_mount = fgets(name, sizeof name, file) && !strcmp(name, "mount\n");
    fclose(file);
    return is_mount;
}

/* What the data directory's own mount refuses is not allowed unasked, as at the mount (fs/session.c): of what
 * was not said then nobody knows that it has to be said again. Where it is mounted over, or has another name
 * (fsname=), what is refused now stays. */
static unsigned long refused_unasked(const struct fs_options *options)
{
    static const struct {
        const char *opposite;
        unsigned long flag;
    } refusals[] = {{"suid", MS_NOSUID}, {"dev", MS_NODEV}, {"exec", MS_NOEXEC}};
    unsigned long flags = 0;
    struct statvfs st;

    if (statvfs(options->data, &st) && statvfs(options->mountpoint, &st))
        return 0; /* nor will it be mounted anew */
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (st.f_flag & refusals[i].flag && !options_ask_for(options, refusals[i].opposite))
            flags |= refusals[i].flag;
    return flags;
}

/* mount(8) comes here for it, too. The kernel keeps these flags itself: the daemon is not told. */
static int remount(const struct fs_options *options)
{
    unsigned long flags = MS_REMOUNT | options->remount_flags | refused_unasked(options);

    if (mount("none", options->mountpoint, NULL, flags, NULL) == 0)
        return 0;
    fs_log(LOG_ERR, "remounting %s: %s", options->mountpoint, strerror(errno));
    return -1;
}

int main(int argc, char **argv)
{
    struct fs fs = {0};
    int rc, ready = -1;

    open_standard_descriptors();
    if (options_parse(&fs.options, argc, argv) < 0)
        return EXIT_FAILURE;
    if (is_fake(&fs.options)) {
        options_free(&fs.options);
        return EXIT_SUCCESS;
    }
    if (fs.options.remount) {
        rc = remount(&fs.options);
        options_free(&fs.options);
        return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (fs.options.help || fs.options.version) {
        if (fs.options.help)
            options_print_help();
        else
            printf("mount.gaiafs %s\nlibfuse %s\n", GAIAFS_VERSION, fuse_pkgversion());
        options_free(&fs.options);
        return EXIT_SUCCESS;
    }
    if (fs.options.foreground)
        log_to_syslog(fs.options.log_syslog);
    else
        ready = go_to_background();
    rc = run(&fs, ready);
    free(fs.data_path);
    free(fs.mount_path);
    members_free(fs.members);
    options_free(&fs.options);
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
