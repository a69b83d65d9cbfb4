/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/session.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/proc_path.h"
#include "fs/content.h"
#include "fs/flusher.h"
#include "fs/later.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/mountinfo.h"
#include "fs/nodes.h"
#include "fs/open_reply.h"
#include "fs/ops.h"
#include "fs/peek.h"
#include "fs/request.h"

#define MAX_REQUEST (1u << 20) /* bytes of a READ or WRITE: more than 1 MiB breaks libfuse 3.14 */
#define READ_AHEAD_KIB 1024u

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    (void)userdata;
    /* Who opens with O_TRUNC cuts by a SETATTR, for which the kernel takes the inode's lock, and waits for
     * what it has written back and sent. A cut that came with the OPEN would meet those, and appends: what
     * was cut off came back, and the kernel took the file to be empty when it was not any more. (In
     * passthrough who writes from memory that does not come holds the backing file's lock as long: a cut
     * waits for that, and without the kernel's own lock so many of them that no thread is left.) */
    conn->want &= ~(unsigned)FUSE_CAP_ATOMIC_O_TRUNC;
    /* The kernel drops all of a file's pages when mtime moves, which our own writes make it do; opens compare
     * instead (inode_unchanged). Splicing writes through pipes costs more than it saves. */
    conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_HANDLE_KILLPRIV | FUSE_CAP_SPLICE_READ |
                              FUSE_CAP_WRITEBACK_CACHE);
    conn->want |=
        conn->capable & (FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                         FUSE_CAP_POSIX_ACL | FUSE_CAP_DONT_MASK | FUSE_CAP_IOCTL_DIR |
                         FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO);
    conn->max_write = MAX_REQUEST;
    conn->max_readahead = MAX_REQUEST;
    conn->max_background = loop_background(sysconf(_SC_NPROCESSORS_ONLN));
    conn->congestion_threshold = conn->max_background / 4 * 3;
}

static const struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .create = op_create,
    .read = op_read,
    .write = op_write,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .ioctl = op_ioctl,
    .fallocate = op_fallocate,
    .copy_file_range = op_copy_file_range,
    .lseek = op_lseek,
    .retrieve_reply = op_retrieve_reply,
};

/* Answers FUSE_INIT, with more than libfuse 3.14 says: FUSE_PARALLEL_DIROPS, which it forgets (a
 * folder's lookups came one after the other), FUSE_HANDLE_KILLPRIV_V2, which it does not know, and
 * passthrough (fs/open_reply.h). Without the second the kernel asks for the attribute security.capability
 * before every write(), which doubles the cost of a small one. libfuse's answer is caught in a pipe that
 * takes the session's descriptor for a moment (nothing else runs yet) and then sent on. */
static int answer_init(struct fs *fs, const struct fuse_buf *request)
{
    int device = fuse_session_fd(fs->session), saved, catcher[2], rc = 0;
    const struct fuse_in_header *in = request->mem;
    const struct fuse_init_in *init_in = (const void *)(in + 1);
    char reply[4096];
    struct fuse_out_header *out = (void *)reply;
    struct fuse_init_out *init_out = (void *)(out + 1);
    ssize_t length;
    uint32_t offered = in->opcode == FUSE_INIT && request->size >= sizeof(*in) + 16 ? init_in->flags : 0;

    saved = fcntl(device, F_DUPFD_CLOEXEC, 3);
    if (saved < 0)
        return -errno;
    if (pipe2(catcher, O_CLOEXEC | O_NONBLOCK)) {
        rc = -errno;
        close(saved);
        return rc;
    }
    if (dup3(catcher[1], device, O_CLOEXEC) >= 0)
        fuse_session_process_buf(fs->session, request);
    length = read(catcher[0], reply, sizeof(reply));
    if (dup3(saved, device, O_CLOEXEC) < 0 || length < (ssize_t)sizeof(*out)) {
        rc = -EIO;
    } else {
        if (out->error || length < (ssize_t)(sizeof(*out) + 24))
            offered = 0;
        init_out->flags |= offered & FUSE_PARALLEL_DIROPS;
        if (offered & FUSE_HANDLE_KILLPRIV_V2 && fs->as_root) {
            init_out->flags |= FUSE_HANDLE_KILLPRIV_V2;
            fs->kills_privileges = true;
        }
        fs->passes = passthrough_is_wanted(fs) && open_reply_is_offered(in, request->size) &&
                     open_reply_take_offer(reply, (size_t)length);
        rc = write(device, reply, (size_t)length) == length ? out->error : -errno;
    }
    close(saved);
    close(catcher[0]);
    close(catcher[1]);
    return rc;
}

static int handshake(struct fs *fs)
{
    struct fuse_buf request = {0};
    int rc;

    do
        rc = fuse_session_receive_buf(fs->session, &request);
    while (rc == -EINTR);
    if (rc > 0)
        rc = answer_init(fs, &request);
    else if (rc == 0)
        rc = -ENODEV;
    free(request.mem);
    if (rc < 0)
        fs_log(LOG_ERR, "the kernel's FUSE_INIT could not be answered: %s", strerror(-rc));
    return rc;
}

/* Without it the kernel asks for 128 KiB at a time. Where we may not, it stays at that. */
static void raise_read_ahead(dev_t device)
{
    char path[64], text[16];
    int fd, length;

    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(device), minor(device));
    length = snprintf(text, sizeof(text), "%u", READ_AHEAD_KIB);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)length) < 0)
        fs_log(LOG_DEBUG, "%s: %s", path, strerror(errno));
    close(fd);
}

/* Whether one of the two was given: one is the opposite of the other. */
static bool is_asked(const struct fs_options *options, const char *word, const char *opposite)
{
    return options_ask_for(options, word) || options_ask_for(options, opposite);
}

/* mount(8)'s defaults, not libfuse's; but what the data directory's own mount refuses, this one does not
 * allow unasked: it would be a way round. Nor what is refused by mounts below, of which the kernel knows
 * nothing here: resolve_hidden(). 0 or -ENOMEM. */
static int add_defaults(struct fs *fs, char **list)
{
    BORROWED root = inode_borrow(fs->root);
    struct statvfs st;
    unsigned long flags = root.fd < 0 || fstatvfs(root.fd, &st) ? ST_NOSUID | ST_NODEV : st.f_flag;

    if (fs->as_root && !(flags & ST_NOSUID) && !is_asked(&fs->options, "suid", "nosuid"))
        fs->hides |= REFUSES_SET_IDS;
    if (fs->as_root && !(flags & ST_NODEV) && !is_asked(&fs->options, "dev", "nodev"))
        fs->hides |= REFUSES_DEVICES;
    /* Of a user's mount fusermount3 sees to these. */
    if (fs->as_root && (fuse_opt_add_opt(list, flags & ST_NOSUID ? "nosuid" : "suid") ||
                        fuse_opt_add_opt(list, flags & ST_NODEV ? "nodev" : "dev")))
        return -ENOMEM;
    if (flags & ST_NOEXEC && fuse_opt_add_opt(list, "noexec"))
        return -ENOMEM;
    return 0;
}

static int add_arguments(struct fs *fs, struct fuse_args *args)
{
    const struct fs_options *options = &fs->options;
    char *list = NULL, *name = NULL, *type = NULL, *argument = NULL;
    int rc = -ENOMEM;

    if (add_defaults(fs, &list) < 0)
        goto out;
    /* What was asked for comes after them. */
    if (options->mount_options && fuse_opt_add_opt(&list, options->mount_options))
        goto out;
    if (options->no_atime && fuse_opt_add_opt(&list, "noatime"))
        goto out;
    if (fuse_opt_add_opt(&list, "default_permissions"))
        goto out;
    if (asprintf(&type, "subtype=%s", options->subtype ? options->subtype : "gaiafs") < 0) {
        type = NULL;
        goto out;
    }
    if (strcmp(type, "subtype=") != 0 && fuse_opt_add_opt_escaped(&list, type))
        goto out;
    if (options->allow_other && fuse_opt_add_opt(&list, "allow_other"))
        goto out;
    if (options->read_only && fuse_opt_add_opt(&list, "ro"))
        goto out;
    if (options->debug && fuse_opt_add_opt(&list, "debug"))
        goto out;
    if (asprintf(&name, "fsname=%s", options->fsname ? options->fsname : fs->data_path) < 0) {
        name = NULL;
        goto out;
    }
    if (fuse_opt_add_opt_escaped(&list, name) || asprintf(&argument, "-o%s", list) < 0) {
        argument = NULL;
        goto out;
    }
    if (fuse_opt_add_arg(args, "mount.gaiafs") == 0 && fuse_opt_add_arg(args, argument) == 0)
        rc = 0;
out:
    free(argument);
    free(type);
    free(name);
    free(list);
    return rc;
}

static void to_log(enum fuse_log_level level, const char *format, va_list arguments)
{
    fs_vlog((int)level, format, arguments); /* libfuse's levels are syslog's */
}

int session_start(struct fs *fs)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct mounted now;
    int rc = add_arguments(fs, &args);

    fuse_set_log_func(to_log);
    unsetenv("FUSE_URING_ENABLE"); /* libfuse 3.18: requests would not come by request_start()'s way */
    if (rc == 0) {
        fs->session = fuse_session_new(&args, &operations, sizeof(operations), fs);
        rc = fs->session ? 0 : -EINVAL;
    }
    fuse_opt_free_args(&args);
    if (rc < 0) {
        fs_log(LOG_ERR, "no FUSE session: %s", strerror(-rc));
        return rc;
    }
    if (fuse_session_mount(fs->session, fs->mount_path)) {
        fs_log(LOG_ERR, "can't mount on %s (the line before says why)", fs->mount_path); /* libfuse's */
        rc = -EIO;
        goto out_destroy;
    }
    rc = mountinfo_at(fs->mount_path, &fs->mounted);
    if (rc < 0) {
        fs_log(LOG_ERR, "the mount on %s is not in /proc/self/mountinfo: %s", fs->mount_path, strerror(-rc));
        goto out_unmount;
    }
    rc = handshake(fs);
    if (rc == 0)
        rc = request_start(fs->session);
    if (rc < 0)
        goto out_unmount;
    raise_read_ahead(fs->mounted.device);
    return 0;

out_unmount:
    fuse_session_unmount(fs->session);
    /* libfuse takes a descriptor in error for a mount that has gone. */
    if (mountinfo_at(fs->mount_path, &now) == 0 && now.device == fs->mounted.device)
        umount2(fs->mount_path, MNT_DETACH | UMOUNT_NOFOLLOW);
out_destroy:
    fuse_session_destroy(fs->session);
    fs->session = NULL;
    return rc;
}

/* --- stopping --- */

int session_invalidate(void *context, void *file_context, off_t offset, off_t length)
{
    struct fs *fs = context;
    int rc = -ENOENT;

    pthread_rwlock_rdlock(&fs->notify_gate);
    if (fs->serving)
        rc = fuse_lowlevel_notify_inval_inode(fs->session, nodeid_of(file_context), offset, length);
    pthread_rwlock_unlock(&fs->notify_gate);
    /* The mount has gone meanwhile, and the kernel's pages with it. */
    return rc == -ENODEV || rc == -ENOTCONN || rc == -EBADF ? -ENOENT : rc;
}

int session_write_back(void *context, void *file_context, off_t offset, off_t length)
{
    if (!inode_has_writers(file_context)) /* the last one has gone, and the kernel has written back before */
        return 0;
    int rc = flusher_write_back(context, file_context, offset, length);
    /* The mount has gone meanwhile, and what was stored with it. */
    return rc == -ENOTCONN || rc == -ECONNABORTED ? -ENOENT : rc;
}

/* Not within the gate: it waits for the lock of the folder, which a program may have for as long as it likes,
 * and the end of the mount would wait for the gate. Who calls this is one of those that later_end() counts:
 * the session stays as long. */
void session_forget_name(struct fs *fs, const struct inode *parent, const char *name)
{
    if (fs->serving)
        fuse_lowlevel_notify_inval_entry(fs->session, nodeid_of(parent), name, strlen(name));
}

static int drop_pages(struct inode *inode, void *context)
{
    if (S_ISREG(inode->type))
        session_invalidate(context, inode, 0, 0);
    return 0;
}

static void stop_notifications(struct fs *fs)
{
    pthread_rwlock_wrlock(&fs->notify_gate);
    fs->serving = false;
    pthread_rwlock_unlock(&fs->notify_gate);
}

/* Whether the kernel still has the mount: then it has others, as a container's copy or a bind mount. It ends
 * the connection with the last of them. */
static bool is_mounted_elsewhere(struct fs *fs)
{
    struct pollfd device = {.fd = fuse_session_fd(fs->session)};
    int n;

    while ((n = poll(&device, 1, 0)) < 0 && errno == EINTR)
        ;
    return n == 0;
}

/* A path of the mount that leads nowhere else. Who owns a folder above may put something in that one's place
 * at any moment, such as a link to where root has mounted another filesystem; from the folder that a mount is
 * in nobody else takes its name. */
struct place {
    int folder;
    char path[sizeof(struct proc_path) + 1 + NAME_MAX];
};

/* False: ours is not there, or another one lies over it. */
static bool place_begin(const struct fs *fs, const char *path, struct place *place_out)
{
    const char *name = strrchr(path, '/') + 1;
    char folder[PATH_MAX];

    snprintf(folder, sizeof(folder), "%.*s", (int)(name - path), path);
    place_out->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place_out->folder < 0)
        return false;
    snprintf(place_out->path, sizeof(place_out->path), "%s/%s", proc_path(place_out->folder).text, name);
    if (!mountinfo_is_covered(&fs->mounted, place_out->path))
        return true;
    close(place_out->folder);
    return false;
}

/* Unmounts while the session still serves: what the kernel writes back on the way must be answered. True when
 * the mount is gone and the session ends by itself. */
static bool unmount_at(struct fs *fs, const char *path, const struct place *place)
{
    if (umount2(place->path, UMOUNT_NOFOLLOW) == 0) {
        if (!is_mounted_elsewhere(fs))
            return true;
        fs_log(LOG_NOTICE, "%s is mounted elsewhere, too: what uses it there ends with ENOTCONN", path);
        return false;
    }
    if (errno != EBUSY)
        fs_log(LOG_WARNING, "unmounting %s: %s: detached instead", path, strerror(errno));
    else
        fs_log(LOG_NOTICE, "%s is busy: detached from the tree, files still open in it end with ENOTCONN",
               path);
    fs_each_inode(fs, drop_pages, fs);
    if (umount2(place->path, MNT_DETACH | UMOUNT_NOFOLLOW))
        fs_log(LOG_WARNING, "detaching %s: %s: umount -l it by hand", path, strerror(errno));
    return false;
}

/* Wherever it is now. Another filesystem may lie over ours; that one is not ours to unmount. */
static bool unmount_served(struct fs *fs)
{
    char *path = fs->as_root ? mountinfo_path(&fs->mounted) : NULL;
    bool unmounted = false;
    struct place place;

    if (path && place_begin(fs, path, &place)) {
        unmounted = unmount_at(fs, path, &place);
        close(place.folder);
    }
    free(path);
    return unmounted;
}

struct stopper {
    struct loop loop;
    int signals; /* signalfd */
    int ended;   /* eventfd: the session is not served any more */
};

/* By one thread at a time: as long as SIGHUPs have come. */
static void reread(void *argument)
{
    struct fs *fs = argument;
    unsigned rereads = atomic_load(&fs->rereads);

    do
        nodes_reread(fs);
    while (!atomic_compare_exchange_strong(&fs->rereads, &rereads, 0));
}

/* A signal has come. SIGHUP: the members are read again; not here, as other nodes are asked then, which may
 * take as long as they like. */
static bool wants_end(const struct stopper *stopper)
{
    struct fs *fs = stopper->loop.fs;
    struct signalfd_siginfo signal;

    if (read(stopper->signals, &signal, sizeof signal) != sizeof signal)
        return false;
    if (signal.ssi_signo != SIGHUP)
        return true;
    if (!atomic_fetch_add(&fs->rereads, 1) && !later_perhaps(fs, reread, fs)) {
        atomic_store(&fs->rereads, 0);
        fs_log(LOG_ERR, "no thread to read %.300s again: the members stay as they were", fs->options.peers);
    }
    return false;
}

/* A thread of its own: waits for SIGTERM or SIGINT, or for the end. */
static void *stop_on_signal(void *argument)
{
    struct stopper *stopper = argument;
    struct fs *fs = stopper->loop.fs;
    struct pollfd fds[2] = {{.fd = stopper->ended, .events = POLLIN},
                            {.fd = stopper->signals, .events = POLLIN}};
    int rc;

    do {
        while (poll(fds, 2, -1) < 0 && errno == EINTR)
            ;
        if (fds[0].revents)
            return NULL;
    } while (!wants_end(stopper));
    cache_ending(fs->cache);
    rc = cache_flush_all(fs->cache);
    if (rc < 0)
        fs_log(LOG_ERR,
               "data directory %s: what devices hold could not all be written: %s: it is tried once more at "
               "the end",
               fs->data_path, strerror(-rc));
    /* It holds nobody up, and keeps nothing busy: acquires elsewhere have pages dropped from now on. */
    flusher_kill(fs);
    if (unmount_served(fs))
        return NULL;
    /* What was stored through mappings up to here, also where the mount is at its place no more: programs may
     * have it yet. */
    fs_each_inode(fs, drop_pages, fs);
    stop_notifications(fs);
    loop_stop(&stopper->loop);
    return NULL;
}

static int stopper_start(struct stopper *stopper, pthread_t *thread_out)
{
    sigset_t signals;
    int rc;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (options_has_peers_file(&stopper->loop.fs->options))
        sigaddset(&signals, SIGHUP);
    stopper->signals = signalfd(-1, &signals, SFD_CLOEXEC);
    stopper->ended = eventfd(0, EFD_CLOEXEC);
    if (stopper->signals < 0 || stopper->ended < 0)
        rc = -errno;
    else
        rc = -pthread_create(thread_out, NULL, stop_on_signal, stopper);
    if (rc < 0) {
        close(stopper->signals);
        close(stopper->ended);
    }
    return rc;
}

int session_serve(struct fs *fs)
{
    struct stopper stopper;
    pthread_t thread = 0;
    int rc;

    loop_init(&stopper.loop, fs);
    rc = stopper_start(&stopper, &thread);
    if (rc < 0) {
        fs_log(LOG_ERR, "no thread to wait for signals: %s (limits of threads and of open files?)",
               strerror(-rc));
        loop_destroy(&stopper.loop);
        return rc;
    }
    rc = loop_serve(&stopper.loop);
    if (rc < 0)
        fs_log(LOG_ERR, "serving the mount on %s: %s", fs->mount_path, strerror(-rc));
    cache_ending(fs->cache); /* umount(8) sends no signal */
    fs->left |= !later_end(fs);
    /* Without the gate: a notification under way ends with the mount, and may hold it till then. */
    fs->serving = false;
    if (eventfd_write(stopper.ended, 1))
        fs_log(LOG_ERR, "eventfd: %s", strerror(errno));
    pthread_join(thread, NULL);
    fs->left |= !fs->left && !later_end(fs); /* what a late SIGHUP has begun */
    close(stopper.ended);
    close(stopper.signals);
    loop_destroy(&stopper.loop);
    return rc;
}

/* The mount is no longer at its place, but libfuse would unmount whatever is there now. A descriptor in
 * error, in place of the session's, tells it that there is nothing left to do. The connection ends with that.
 */
static void abandon(struct fs *fs)
{
    int broken[2];

    if (pipe2(broken, O_CLOEXEC))
        return;
    close(broken[0]);
    dup3(broken[1], fuse_session_fd(fs->session), O_CLOEXEC);
    close(broken[1]);
}

void session_end(struct fs *fs)
{
    struct mounted now;
    struct place place;
    bool there = mountinfo_at(fs->mount_path, &now) == 0 && now.device == fs->mounted.device &&
                 place_begin(fs, fs->mount_path, &place);

    if (!there || fs->as_root)
        abandon(fs);
    if (there && fs->as_root) /* libfuse goes by the path, wherever that leads by now */
        umount2(place.path, MNT_DETACH | UMOUNT_NOFOLLOW);
    if (there)
        close(place.folder);
    fuse_session_unmount(fs->session); /* closes its descriptor */
    if (fs->left)                      /* who may notify the kernel yet */
        return;
    fuse_session_destroy(fs->session);
    fs->session = NULL;
}
