/* SPDX-License-Identifier: Apache-2.0 */
/* One row for each call that can fail: system calls, io_uring, allocations, sockets, threads, FUSE's
 * notifications. Linked into mount.gaiafs and libgaia.so for tests with --wrap, so that every call from our
 * own code comes through here; the programs as users get them know nothing of it.
 *
 * $GAIAFS_FAULTS names a file that is shared with the test: struct plan. Without it nothing fails.
 *
 * Where in the program the calls come from is written there, too, as far as the file has room for it: a plan
 * may be for the calls of one such site only.
 *
 * Instead of a failure a row may bring death: SIGKILL, or another signal, to this process, or to the one that
 * the plan names, just before the call or just after it (tests/kills). Or it takes its time. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROWS_MAX 128
#define SITES_MAX 2048 /* a power of two; several times as many as there are */
#define SHORT (-1)

enum { KILL_NOBODY, KILL_BEFORE, KILL_AFTER };

/* What a descriptor is; a plan may be for one kind only. */
#define KIND_FRAMES 1 /* a memfd: a device's memory */
#define KIND_FILE 2

/* A call in the program: of which row, and where. */
struct site {
    _Atomic uint64_t
        key; /* address of what follows the call, from the program's beginning, << 8, + row; 0: none */
    _Atomic int64_t calls;
};

struct plan {
    _Atomic int32_t row;       /* that is to fail; -1: none */
    _Atomic int32_t error;     /* SHORT: half of what was asked for */
    _Atomic int64_t countdown; /* to the call that fails */
    _Atomic int32_t sticky;    /* all after it, too */
    _Atomic int32_t landed;    /* how often it has */
    _Atomic int64_t calls[ROWS_MAX];
    char names[ROWS_MAX][32];
    _Atomic int32_t kill;    /* KILL_*: the call does not fail */
    _Atomic int32_t victim;  /* process; 0: this one */
    _Atomic int64_t only;    /* KIND_* of the descriptor, or the request of an ioctl(); 0: any */
    _Atomic int32_t signal;  /* instead of SIGKILL; 0: that */
    _Atomic int32_t wait_ms; /* before the call is made; 0: it fails */
    _Atomic uint64_t site;   /* as site.key; 0: any */
    _Atomic int64_t live;    /* allocations that were not freed, but for those of children */
    struct site sites[SITES_MAX];
};

static struct plan *plan;
static pid_t self;      /* not a child's */
static bool with_sites; /* the file has them */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
static __thread bool kill_due; /* when the call has been made */

static void strike(void)
{
    int32_t victim = plan->victim;

    atomic_fetch_add(&plan->landed, 1); /* first: who is killed says no more */
    syscall(SYS_kill, victim ? victim : getpid(), plan->signal ? plan->signal : SIGKILL);
}

static void dawdle(int32_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    int error = errno;

    while (syscall(SYS_nanosleep, &left, &left) && errno == EINTR)
        ;
    errno = error;
}

/* Counts a call; returns its site. */
static uint64_t note_site(int row, const void *after)
{
    uint64_t key = (uint64_t)((const char *)after - __ehdr_start) << 8 | (uint64_t)row;

    for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 53;; i = (i + 1) % SITES_MAX) {
        uint64_t found = plan->sites[i].key;

        if (found != key &&
            (found || (!atomic_compare_exchange_strong(&plan->sites[i].key, &found, key) && found != key)))
            continue;
        atomic_fetch_add(&plan->sites[i].calls, 1);
        return key;
    }
}

/* Whether this call of the row is to fail, and how. only: what kind of call it is, 0 where there are no
 * kinds. after: where it returns to. */
static bool hit_kind(int row, int64_t only, const void *after, int *error_out)
{
    if (!plan)
        return false;
    atomic_fetch_add(&plan->calls[row], 1);
    uint64_t site = with_sites ? note_site(row, after) : 0;
    if (plan->row != row || (plan->only && plan->only != only) || (plan->site && plan->site != site))
        return false;
    int64_t left = atomic_fetch_sub(&plan->countdown, 1);
    if (left > 1 || (left < 1 && !plan->sticky))
        return false;
    if (plan->kill == KILL_BEFORE)
        strike();
    kill_due = plan->kill == KILL_AFTER;
    if (plan->kill)
        return false;
    atomic_fetch_add(&plan->landed, 1);
    if (plan->wait_ms) {
        dawdle(plan->wait_ms);
        return false;
    }
    *error_out = plan->error;
    return true;
}

#define AFTER __builtin_return_address(0)
#define hit(row, error_out) hit_kind(row, 0, AFTER, error_out)

static void call_made(void)
{
    int error = errno;

    if (!kill_due)
        return;
    kill_due = false;
    strike();
    errno = error;
}

/* Asked by number, for fcntl() has a row, and only when a plan wants to know. */
static int64_t kind_of(int fd)
{
    int error = errno;

    if (!plan || !plan->only)
        return 0;
    int64_t kind = syscall(SYS_fcntl, fd, F_GET_SEALS) < 0 ? KIND_FILE : KIND_FRAMES;
    errno = error;
    return kind;
}

enum {
#define ROW(name) ROW_##name,
#define REPLY ROW
#define PEER ROW
#include "tests/faults/rows.h"
#undef REPLY
#undef PEER
#undef ROW
    ROWS
};

static const char *const names[] = {
#define ROW(name) #name,
#define REPLY ROW
#define PEER ROW
#include "tests/faults/rows.h"
#undef REPLY
#undef PEER
#undef ROW
};
_Static_assert(ROWS <= ROWS_MAX, "");

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("GAIAFS_FAULTS");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;

    if (fd < 0)
        return;
    /* By number: mmap() and close() have rows. The offset is as wide as a register: what lies beside an int
     * on the stack may be anything. */
    with_sites = syscall(SYS_lseek, fd, 0L, SEEK_END) >= (long)sizeof *plan;
    void *shared = (void *)syscall(SYS_mmap, NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    syscall(SYS_close, fd);
    if (shared == MAP_FAILED)
        abort();
    self = getpid();
    plan = shared;
    for (int i = 0; i < ROWS; i++)
        strncpy(plan->names[i], names[i], sizeof plan->names[i] - 1);
}

/* What is not called by the program that this is linked into has no __real_: weak, and never reached. */
#define DECLARE(type, name, parameters)                  \
    __attribute__((weak)) type __real_##name parameters; \
    type __wrap_##name parameters;

/* Fails with -1 (or what `failure` is) and errno. */
#define CALL_KIND(type, failure, only, name, parameters, arguments)        \
    DECLARE(type, name, parameters)                                        \
    type __wrap_##name parameters                                          \
    {                                                                      \
        int error;                                                         \
        if (hit_kind(ROW_##name, only, AFTER, &error) && error != SHORT) { \
            errno = error;                                                 \
            return failure;                                                \
        }                                                                  \
        type result = __real_##name arguments;                             \
        call_made();                                                       \
        return result;                                                     \
    }
#define CALL(type, failure, name, parameters, arguments) \
    CALL_KIND(type, failure, 0, name, parameters, arguments)
/* The same, and may come short. */
#define MOVE_KIND(only, name, parameters, arguments, short_arguments) \
    DECLARE(ssize_t, name, parameters)                                \
    ssize_t __wrap_##name parameters                                  \
    {                                                                 \
        int error;                                                    \
        if (hit_kind(ROW_##name, only, AFTER, &error)) {              \
            if (error == SHORT)                                       \
                return __real_##name short_arguments;                 \
            errno = error;                                            \
            return -1;                                                \
        }                                                             \
        ssize_t result = __real_##name arguments;                     \
        call_made();                                                  \
        return result;                                                \
    }
#define MOVE(name, parameters, arguments, short_arguments) \
    MOVE_KIND(0, name, parameters, arguments, short_arguments)
/* Fails with an error number, positive or negative. */
#define CODE(sign, name, parameters, arguments)        \
    DECLARE(int, name, parameters)                     \
    int __wrap_##name parameters                       \
    {                                                  \
        int error;                                     \
        if (hit(ROW_##name, &error) && error != SHORT) \
            return sign error;                         \
        int result = __real_##name arguments;          \
        call_made();                                   \
        return result;                                 \
    }

/* Gives memory. anew: in addition to what there was; good: it has. */
#define GIVE(type, failure, anew, good, name, parameters, arguments) \
    DECLARE(type, name, parameters)                                  \
    type __wrap_##name parameters                                    \
    {                                                                \
        int error;                                                   \
        if (hit(ROW_##name, &error) && error != SHORT) {             \
            errno = error;                                           \
            return failure;                                          \
        }                                                            \
        bool one_more = plan && (anew) && getpid() == self;          \
        type result = __real_##name arguments;                       \
        if (one_more && (good))                                      \
            atomic_fetch_add(&plan->live, 1);                        \
        call_made();                                                 \
        return result;                                               \
    }

/* Can't fail, and has no row. */
DECLARE(void, free, (void *p))
void __wrap_free(void *p)
{
    if (plan && p && getpid() == self)
        atomic_fetch_sub(&plan->live, 1);
    __real_free(p);
}

struct iovec;
struct msghdr;
struct sockaddr;
struct stat;
struct statvfs;
struct statfs;
struct statx;
struct timespec;
struct pollfd;
struct dirent;
struct io_uring;
struct io_uring_params;
struct fuse_session;

/* Half of one buffer; of several, as they are. */
#define HALF(n) ((n) > 1 ? (n) / 2 : (n))

GIVE(void *, NULL, true, result, malloc, (size_t n), (n))
GIVE(void *, NULL, true, result, calloc, (size_t m, size_t n), (m, n))
GIVE(void *, NULL, !p, result, realloc, (void *p, size_t n), (p, n))
GIVE(char *, NULL, true, result, strdup, (const char *s), (s))
GIVE(int, error, true, !result, posix_memalign, (void **p, size_t a, size_t n), (p, a, n))
CALL(void *, MAP_FAILED, mmap64, (void *a, size_t n, int p, int f, int d, off_t o), (a, n, p, f, d, o))
CALL(int, -1, madvise, (void *a, size_t n, int v), (a, n, v))
CALL(int, -1, mprotect, (void *a, size_t n, int v), (a, n, v))
CALL(int, -1, munlock, (const void *a, size_t n), (a, n))
CALL(int, -1, memfd_create, (const char *s, unsigned f), (s, f))

MOVE(read, (int d, void *b, size_t n), (d, b, n), (d, b, n))
MOVE(write, (int d, const void *b, size_t n), (d, b, n), (d, b, n))
MOVE(pread64, (int d, void *b, size_t n, off_t o), (d, b, n, o), (d, b, HALF(n), o))
MOVE_KIND(kind_of(d), pwrite64, (int d, const void *b, size_t n, off_t o), (d, b, n, o), (d, b, HALF(n), o))
MOVE(preadv64v2, (int d, const struct iovec *v, int n, off_t o, int f), (d, v, n, o, f),
     (d, v, HALF(n), o, f))
MOVE(pwritev64v2, (int d, const struct iovec *v, int n, off_t o, int f), (d, v, n, o, f), (d, v, n, o, f))
MOVE(copy_file_range, (int a, off_t *p, int b, off_t *q, size_t n, unsigned f), (a, p, b, q, n, f),
     (a, p, b, q, HALF(n), f))
CALL(int, -1, fdatasync, (int d), (d))
CALL(int, -1, fsync, (int d), (d))
CALL(int, -1, syncfs, (int d), (d))
CALL_KIND(int, -1, kind_of(d), fallocate64, (int d, int m, off_t o, off_t n), (d, m, o, n))
CALL_KIND(int, -1, kind_of(d), ftruncate64, (int d, off_t n), (d, n))
CALL(int, -1, truncate64, (const char *p, off_t n), (p, n))
CALL(off_t, -1, lseek64, (int d, off_t o, int w), (d, o, w))

CALL(int, -1, fstat64, (int d, struct stat *s), (d, s))
CALL(int, -1, stat64, (const char *p, struct stat *s), (p, s))
CALL(int, -1, statx, (int d, const char *p, int f, unsigned m, struct statx *s), (d, p, f, m, s))
CALL(int, -1, fstatvfs64, (int d, struct statvfs *s), (d, s))
CALL(int, -1, fstatfs64, (int d, struct statfs *s), (d, s))
CALL(int, -1, futimens, (int d, const struct timespec *t), (d, t))
CALL(int, -1, utimensat, (int d, const char *p, const struct timespec *t, int f), (d, p, t, f))
CALL(int, -1, chmod, (const char *p, unsigned m), (p, m))
CALL(int, -1, fchmod, (int d, unsigned m), (d, m))
CALL(int, -1, fchownat, (int d, const char *p, unsigned u, unsigned g, int f), (d, p, u, g, f))
CALL(ssize_t, -1, getxattr, (const char *p, const char *n, void *v, size_t s), (p, n, v, s))
CALL(int, -1, setxattr, (const char *p, const char *n, const void *v, size_t s, int f), (p, n, v, s, f))
CALL(ssize_t, -1, listxattr, (const char *p, char *l, size_t s), (p, l, s))
CALL(int, -1, removexattr, (const char *p, const char *n), (p, n))
CALL(int, -1, fremovexattr, (int d, const char *n), (d, n))
CALL(ssize_t, -1, readlinkat, (int d, const char *p, char *b, size_t n), (d, p, b, n))
CALL(ssize_t, -1, readlink, (const char *p, char *b, size_t n), (p, b, n))
CALL(char *, NULL, realpath, (const char *p, char *b), (p, b))
CALL(int, -1, linkat, (int d, const char *p, int e, const char *q, int f), (d, p, e, q, f))
CALL(int, -1, symlinkat, (const char *t, int d, const char *p), (t, d, p))
CALL(int, -1, unlinkat, (int d, const char *p, int f), (d, p, f))
CALL(int, -1, mkdirat, (int d, const char *p, unsigned m), (d, p, m))
CALL(int, -1, mknodat, (int d, const char *p, unsigned m, unsigned long v), (d, p, m, v))
CALL(int, -1, name_to_handle_at, (int d, const char *p, struct file_handle *h, int *m, int f),
     (d, p, h, m, f))
CALL(int, -1, open_by_handle_at, (int d, struct file_handle *h, int f), (d, h, f))
CALL(int, -1, renameat2, (int d, const char *p, int e, const char *q, unsigned f), (d, p, e, q, f))
CALL(void *, NULL, fdopendir, (int d), (d))
CALL(struct dirent *, NULL, readdir64, (void *d), (d))

CALL(int, -1, dup, (int d), (d))
CALL(int, -1, dup3, (int a, int b, int f), (a, b, f))
CALL(int, -1, eventfd, (unsigned v, int f), (v, f))
CALL(int, -1, pipe2, (int *p, int f), (p, f))
CALL(int, -1, socket, (int d, int t, int p), (d, t, p))
CALL(int, -1, bind, (int d, const struct sockaddr *a, unsigned n), (d, a, n))
CALL(int, -1, listen, (int d, int n), (d, n))
CALL(int, -1, connect, (int d, const struct sockaddr *a, unsigned n), (d, a, n))
CALL(int, -1, accept4, (int d, struct sockaddr *a, unsigned *n, int f), (d, a, n, f))
CALL(int, -1, setns, (int d, int f), (d, f))
CALL(int, -1, getsockopt, (int d, int l, int o, void *v, unsigned *n), (d, l, o, v, n))
CALL(ssize_t, -1, recv, (int d, void *b, size_t n, int f), (d, b, n, f))
CALL(ssize_t, -1, recvmsg, (int d, struct msghdr *m, int f), (d, m, f))
CALL(ssize_t, -1, sendmsg, (int d, const struct msghdr *m, int f), (d, m, f))
CALL(int, -1, poll, (struct pollfd * p, unsigned long n, int t), (p, n, t))
CALL(int, -1, sync_file_range, (int d, off_t o, off_t n, unsigned f), (d, o, n, f))

CODE(-, io_uring_queue_init_params, (unsigned n, struct io_uring *r, struct io_uring_params *p), (n, r, p))
CODE(-, io_uring_register_buffers, (struct io_uring * r, const struct iovec *v, unsigned n), (r, v, n))
CODE(-, io_uring_register_files_sparse, (struct io_uring * r, unsigned n), (r, n))
CODE(-, io_uring_register_files_update, (struct io_uring * r, unsigned o, const int *f, unsigned n),
     (r, o, f, n))
CODE(-, io_uring_submit, (struct io_uring * r), (r))
CODE(+, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *v), (t, a, f, v))
CODE(-, fuse_lowlevel_notify_inval_inode, (struct fuse_session * s, uint64_t i, off_t o, off_t n),
     (s, i, o, n))
CODE(-, fuse_lowlevel_notify_inval_entry, (struct fuse_session * s, uint64_t i, const char *p, size_t n),
     (s, i, p, n))
CODE(-, fuse_lowlevel_notify_retrieve, (struct fuse_session * s, uint64_t i, size_t n, off_t o, void *c),
     (s, i, n, o, c))

/* FUSE's answers: nothing is gained by making them fail, whoever asked would wait for ever. */
struct fuse_entry_param;
struct fuse_file_info;
struct fuse_req;
CODE(-, fuse_reply_err, (struct fuse_req * r, int e), (r, e))
CODE(-, fuse_reply_buf, (struct fuse_req * r, const char *b, size_t n), (r, b, n))
CODE(-, fuse_reply_write, (struct fuse_req * r, size_t n), (r, n))
CODE(-, fuse_reply_attr, (struct fuse_req * r, const struct stat *s, double t), (r, s, t))
CODE(-, fuse_reply_entry, (struct fuse_req * r, const struct fuse_entry_param *e), (r, e))
CODE(-, fuse_reply_open, (struct fuse_req * r, const struct fuse_file_info *i), (r, i))
CODE(-, fuse_reply_create,
     (struct fuse_req * r, const struct fuse_entry_param *e, const struct fuse_file_info *i), (r, e, i))
CODE(-, fuse_reply_ioctl, (struct fuse_req * r, int n, const void *b, size_t m), (r, n, b, m))

/* The transport's. */
struct epoll_event;
struct rdma_event_channel;
struct rdma_cm_id;
struct rdma_cm_event;
struct rdma_conn_param;
struct ibv_context;
struct ibv_device;
struct ibv_device_attr;
struct ibv_async_event;
struct _compat_ibv_port_attr;
struct ibv_pd;
struct ibv_comp_channel;
struct ibv_cq;
struct ibv_mr;
struct ibv_qp_init_attr;
CALL(int, -1, epoll_create1, (int f), (f))
CALL(int, -1, epoll_ctl, (int e, int o, int d, struct epoll_event *v), (e, o, d, v))
CALL(int, -1, epoll_wait, (int e, struct epoll_event *v, int n, int t), (e, v, n, t))
CALL(ssize_t, -1, getrandom, (void *b, size_t n, unsigned f), (b, n, f))
CALL(struct rdma_event_channel *, NULL, rdma_create_event_channel, (void), ())
CALL(int, -1, rdma_create_id, (struct rdma_event_channel * c, struct rdma_cm_id **i, void *x, int s),
     (c, i, x, s))
CALL(int, -1, rdma_bind_addr, (struct rdma_cm_id * i, struct sockaddr *a), (i, a))
CALL(int, -1, rdma_listen, (struct rdma_cm_id * i, int n), (i, n))
CALL(int, -1, rdma_resolve_addr, (struct rdma_cm_id * i, struct sockaddr *a, struct sockaddr *b, int t),
     (i, a, b, t))
CALL(int, -1, rdma_resolve_route, (struct rdma_cm_id * i, int t), (i, t))
CALL(int, -1, rdma_connect, (struct rdma_cm_id * i, struct rdma_conn_param *p), (i, p))
CALL(int, -1, rdma_accept, (struct rdma_cm_id * i, struct rdma_conn_param *p), (i, p))
CALL(int, -1, rdma_get_cm_event, (struct rdma_event_channel * c, struct rdma_cm_event **e), (c, e))
CALL(int, -1, rdma_create_qp, (struct rdma_cm_id * i, struct ibv_pd *p, struct ibv_qp_init_attr *a),
     (i, p, a))
CALL(struct ibv_device **, NULL, ibv_get_device_list, (int *n), (n))
CODE(+, ibv_query_device, (struct ibv_context * c, struct ibv_device_attr *a), (c, a))
CODE(+, ibv_query_port, (struct ibv_context * c, uint8_t p, struct _compat_ibv_port_attr *a), (c, p, a))
CALL(struct ibv_pd *, NULL, ibv_alloc_pd, (struct ibv_context * c), (c))
CALL(struct ibv_comp_channel *, NULL, ibv_create_comp_channel, (struct ibv_context * c), (c))
CALL(struct ibv_cq *, NULL, ibv_create_cq,
     (struct ibv_context * c, int n, void *x, struct ibv_comp_channel *e, int v), (c, n, x, e, v))
CALL(struct ibv_mr *, NULL, ibv_reg_mr, (struct ibv_pd * p, void *a, size_t n, int f), (p, a, n, f))
CALL(struct ibv_mr *, NULL, ibv_reg_dmabuf_mr,
     (struct ibv_pd * p, uint64_t o, size_t n, uint64_t v, int d, int f), (p, o, n, v, d, f))
CALL(int, -1, ibv_get_async_event, (struct ibv_context * c, struct ibv_async_event *e), (c, e))
CALL(int, -1, ibv_get_cq_event, (struct ibv_comp_channel * e, struct ibv_cq **c, void **x), (e, c, x))

/* Those that take arguments of any number: as many are handed on as there can be, given or not, which is what
 * the sanitizer would call an underflow. */
#define ANY(type, count, only, name, first, last, ...)                  \
    DECLARE(type, name, (first, ...))                                   \
    __attribute__((no_sanitize_address)) type __wrap_##name(first, ...) \
    {                                                                   \
        va_list rest;                                                   \
        long v[count];                                                  \
        int error;                                                      \
        va_start(rest, last);                                           \
        for (int i = 0; i < count; i++)                                 \
            v[i] = va_arg(rest, long);                                  \
        va_end(rest);                                                   \
        if (hit_kind(ROW_##name, only, AFTER, &error)) {                \
            errno = error == SHORT ? EINTR : error;                     \
            return -1;                                                  \
        }                                                               \
        type result = __real_##name(__VA_ARGS__);                       \
        call_made();                                                    \
        return result;                                                  \
    }
#define COMMA ,
ANY(int, 1, 0, open64, const char *p COMMA int f, f, p, f, v[0])
ANY(int, 1, 0, openat64, int d COMMA const char *p COMMA int f, f, d, p, f, v[0])
ANY(int, 1, (int64_t)r, ioctl, int d COMMA unsigned long r, r, d, r, v[0])
ANY(int, 1, 0, fcntl64, int d COMMA int c, c, d, c, v[0])
ANY(long, 6, 0, syscall, long n, n, n, v[0], v[1], v[2], v[3], v[4], v[5])

/* A completion of the storage engine: what it moved, or a negative error. In the daemon only. */
extern ssize_t (*gaia_io_test_result)(bool direct, size_t length, ssize_t result) __attribute__((weak));

static ssize_t completed(bool direct, size_t length, ssize_t result)
{
    int error;

    (void)direct;
    (void)length;
    if (!hit(ROW_completion, &error)) {
        call_made();
        return result;
    }
    if (error == SHORT)
        return result > 1 ? result / 2 : result;
    return -error;
}

__attribute__((constructor)) static void take_completions(void)
{
    if (&gaia_io_test_result)
        gaia_io_test_result = completed;
}
