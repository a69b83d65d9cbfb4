/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: checks of arguments, and errno. What they do to a range: gpu/piece.h. */
#include "gpu/gaia.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/process.h"
#include "base/shared_page.h"
#include "consistency/page.h"
#include "gpu/announce.h"
#include "gpu/demand_map.h"
#include "gpu/demand_server.h"
#include "gpu/driver.h"
#include "gpu/mapping.h"
#include "gpu/piece.h"
#include "gpu/session.h"
#include "gpu/stream.h"
#include "gpu/uncancelled.h"

#define PUBLIC __attribute__((visibility("default")))
#define PAGE 4096u
#define FUSE_MAGIC 0x65735546

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    gaia_session_before_fork();
    descriptors_before_fork();
    gaia_mapping_before_fork();
}

static void after_fork_in_parent(void)
{
    gaia_mapping_after_fork(false);
    descriptors_after_fork(false);
    gaia_session_after_fork(false);
}

static void after_fork_in_child(void)
{
    gaia_mapping_after_fork(true);
    descriptors_after_fork(true);
    gaia_session_after_fork(true);
}

/* When the library is loaded. Not at the first call: a fork beside that may leave the child to do it again.
 * And what the program has done before a fork, which may be calls of these, is done before ours. */
__attribute__((constructor)) static void expect_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static int fail(int error)
{
    if (!error)
        return 0;
    errno = -error;
    return -1;
}

/* "soft:N" or "cuda:N". */
static int open_named(struct gaia_device *device, const char *name)
{
    bool soft = !strncmp(name, "soft:", 5), cuda = !strncmp(name, "cuda:", 5);
    size_t digits = soft || cuda ? strspn(name + 5, "0123456789") : 0;
    char why[CUDA_WHY_SIZE];

    if (!digits || name[5 + digits] || digits > 4)
        return -EINVAL;
    unsigned long number = strtoul(name + 5, NULL, 10);
    snprintf(device->name, sizeof device->name, "%s", name);
    device->driver = cuda ? &gaia_cuda_driver : &gaia_soft_driver;
    if (!cuda)
        return number < GAIA_SOFT_MAX ? 0 : -ENODEV;
    int error = cuda_device_open((int)number, &device->cuda, why);
    if (!error) {
        cuda_module_open(&device->module);
        cuda_search_open(&device->search, &device->module);
        demand_servers_expect_the_end();
    }
    return error;
}

/* The first GPU that works, or soft:0. */
static int open_any(struct gaia_device *device)
{
    const struct cuda_api *api;
    char why[CUDA_WHY_SIZE], name[16];
    int count = 0;

    int error = cuda_load(&api, why);
    if (error == -ECHILD)
        return -EIO;
    if (error == -EMFILE || error == -ENFILE) /* nobody knows what there is */
        return error;
    if (!error && api->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        count = 0;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "cuda:%d", i);
        error = open_named(device, name);
        if (!error || error == -EMFILE || error == -ENFILE)
            return error;
    }
    return open_named(device, "soft:0");
}

PUBLIC int gaia_device_open(const char *name, struct gaia_device **device_out)
{
    UNCANCELLED;

    if (!device_out)
        return fail(-EINVAL);
    if (!process_holds_state())
        return fail(-ENOTSUP);
    pthread_once(&once, piece_begin);
    if (!name)
        name = getenv("GAIA_DEVICE");
    struct gaia_device *device = calloc(1, sizeof *device);
    if (!device)
        return fail(-ENOMEM);
    device->owner = process_here();
    device->references = 1;
    device->calls = stream_calls_open();
    int error = !device->calls ? -ENOMEM : name && *name ? open_named(device, name) : open_any(device);
    if (error) {
        if (device->calls)
            stream_calls_put(device->calls);
        free(device);
        return fail(error);
    }
    gaia_announce();
    gaia_session_keep();
    gaia_mapping_add_device(device);
    *device_out = device;
    return 0;
}

static void put_references(struct gaia_device *device, unsigned count)
{
    if (atomic_fetch_sub(&device->references, count) > count)
        return;
    if (device->driver == &gaia_cuda_driver) {
        cuda_search_close(&device->cuda, &device->search);
        cuda_module_close(&device->cuda, &device->module);
        cuda_device_close(&device->cuda);
    }
    stream_calls_put(device->calls);
    free(device);
    gaia_session_unkeep();
}

void gaia_device_put(struct gaia_device *device)
{
    put_references(device, 1);
}

/* For calls that are in streams, which a broken device never gets to. A wait for the whole device would end
 * other threads' captures, and not be one. */
static void wait_for_streams(const struct gaia_device *device)
{
    while (atomic_load(&device->calls->count) && !device->driver->check(device))
        usleep(1000);
}

PUBLIC void gaia_device_close(struct gaia_device *device)
{
    UNCANCELLED;

    if (!device || !gaia_mapping_hold_device(device)) /* of a parent's nothing is mapped here */
        return;
    wait_for_streams(device);
    bool closed = gaia_mapping_remove_device(device); /* else another thread has */
    put_references(device, closed ? 2 : 1);
}

/* Of what was asked about a file, errors that say something to who wants to map it. */
static int said_of_file(int other)
{
    int error = piece_kernel_error();

    switch (error) {
    case -EACCES:
    case -EBADF:
    case -EIO:
    case -EMFILE:
    case -ENOMEM:
    case -ENOTCONN:
        return error;
    default:
        return other;
    }
}

/* The kernel's word for "not a gaiafs file" is many words. */
static int get_token(int fd, struct gaia_ioctl_token *token)
{
    struct statfs fs;
    struct stat st;

    if (fstatfs(fd, &fs) || fstat(fd, &st))
        return said_of_file(-EIO);
    if (fs.f_type != FUSE_MAGIC ||
        !S_ISREG(st.st_mode)) /* an ioctl on some other driver's file could do anything */
        return -ENODEV;
    if (ioctl(fd, GAIA_IOCTL_TOKEN, token))
        return said_of_file(-ENODEV);
    token->socket[sizeof token->socket - 1] = '\0';
    return token->version == GAIA_PROTOCOL_VERSION ? 0 : -ENODEV;
}

static int check_arguments(size_t length, int prot, int flags, int fd, off_t offset)
{
    if (!length || offset < 0 || offset % PAGE || (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE)) ||
        flags & ~(GAIA_RESIDENT | GAIA_DEMAND | GAIA_SMALL_UNITS) ||
        (flags & GAIA_RESIDENT && flags & GAIA_DEMAND) ||
        (flags & GAIA_SMALL_UNITS && !(flags & GAIA_DEMAND)))
        return -EINVAL;
    off_t end; /* of the page behind the last one: the daemon wants room for it (fs/client.c) */
    if (length > SIZE_MAX - 2 * PAGE ||
        __builtin_add_overflow(offset, (length + PAGE - 1) / PAGE * PAGE + PAGE, &end))
        return -EOVERFLOW;
    int mode = fcntl(fd, F_GETFL);
    if (mode < 0 || mode & O_PATH)
        return -EBADF;
    if ((mode & O_ACCMODE) == O_WRONLY || (prot & PROT_WRITE && (mode & O_ACCMODE) != O_RDWR))
        return -EACCES;
    return 0;
}

/* The token may have waited for too long behind other calls of this process, or gone among too many that its
 * user has asked for: ask with another then. */
#define TOKENS_TRIED 8

static int ask_for_map(struct gaia_mapping *mapping, struct gaia_message *request)
{
    const struct gaia_message asked = *request;
    struct gaia_ioctl_token token;

    int error = gaia_session_call(mapping->session, request, &mapping->reply);
    for (unsigned tries = 1; error == -EKEYEXPIRED && tries < TOKENS_TRIED; tries++) {
        error = get_token(mapping->fd, &token);
        if (error)
            return error;
        *request = asked;
        memcpy(request->token, token.token, sizeof request->token);
        error = gaia_session_call(mapping->session, request, &mapping->reply);
    }
    return error == -EKEYEXPIRED ? -EAGAIN : error;
}

/* The reply has the frames, if there is memory that can be mapped as it is, and the map's state. */
static int map_reply(struct gaia_mapping *mapping, const struct gaia_message *reply)
{
    const int *fds = mapping->reply.fds;
    int state = fds[1] >= 0 ? fds[1] : fds[0], frames = fds[1] >= 0 ? fds[0] : -1;
    void *page;

    mapping->map = reply->map;
    int error = gaia_mapping_map(SHARED_PAGE_SIZE, PROT_READ, MAP_SHARED, state, 0, &page);
    if (error)
        return error;
    mapping->state = page;
    error = mapping->driver->map(mapping, reply, frames);
    if (error)
        munmap(mapping->state, SHARED_PAGE_SIZE);
    return error;
}

/* Ask the daemon for a map, and put it at an address. mapping has its fixed parts. */
static int map_frames(struct gaia_mapping *mapping, struct gaia_message *request)
{
    int error = ask_for_map(mapping, request);
    if (error == -EMFILE && !request->error) { /* we have no room for what it has mapped */
        struct gaia_message undo = {.op = GAIA_OP_UNMAP, .map = request->map};
        gaia_session_call(mapping->session, &undo, NULL);
    }
    if (error)
        return error;
    error = map_reply(mapping, request);
    descriptors_end(&mapping->reply, mapping->session->gone);
    struct gaia_message message = {.op = error ? GAIA_OP_UNMAP : GAIA_OP_ATTACH,
                                   .map = mapping->map,
                                   .address = (uintptr_t)mapping->address};
    int answer = gaia_session_call(mapping->session, &message, NULL);
    if (!error && answer) {
        message = (struct gaia_message){.op = GAIA_OP_UNMAP, .map = mapping->map};
        gaia_session_call(mapping->session, &message, NULL);
        munmap(mapping->state, SHARED_PAGE_SIZE);
        mapping->driver->unmap(mapping);
        error = answer;
    }
    return error;
}

#define SESSIONS_TRIED 8u

/* A session by which nothing is mapped its daemon may be about to end, for another's sake: then by a new one.
 * Of a file whose home goes before the map has its place, it is made anew at the next home. */
static int map_by_session(struct gaia_mapping *mapping, const struct gaia_ioctl_token *token,
                          const struct gaia_message *request)
{
    unsigned tries = 0;
    bool ended;
    int error;

    do {
        struct gaia_message message = *request;
        error = gaia_session_get(mapping->fd, token, &mapping->session);
        if (error)
            return error;
        if (mapping->driver->soft && mapping->session->faults < 0)
            error = mapping->session->faults;
        else
            error = map_frames(mapping, &message);
        gaia_session_answered(mapping->session, error);
        if (error == -ECONNABORTED) /* its end comes */
            mapping->session->dead = true;
        ended = error && mapping->session->dead;
        if (error)
            gaia_session_put(mapping->session);
    } while ((ended || error == -ESTALE) && ++tries < SESSIONS_TRIED);
    return error == -ECONNABORTED ? -EUSERS : error == -ESTALE ? -EIO : error;
}

/* Of a device that is held. 0 or a negative errno. */
static int map_file(struct gaia_device *device, size_t length, int prot, int flags, int fd, off_t offset,
                    void **address_out)
{
    struct gaia_ioctl_token token = {0};
    struct gaia_message request = {
        .op = GAIA_OP_MAP, .offset = (uint64_t)offset, .prot = (uint32_t)prot, .flags = (uint32_t)flags};
    struct gaia_mapping *mapping = NULL;

    int error = check_arguments(length, prot, flags, fd, offset);
    if (!error)
        error = get_token(fd, &token);
    if (!error && !(mapping = calloc(1, sizeof *mapping)))
        error = -ENOMEM;
    if (error)
        return error;
    const struct gaia_driver *driver =
        device->driver == &gaia_cuda_driver && flags & GAIA_DEMAND ? &gaia_demand_driver : device->driver;
    *mapping = (struct gaia_mapping){.device = device,
                                     .driver = driver,
                                     .small_units = flags & GAIA_SMALL_UNITS,
                                     .writable = prot & PROT_WRITE,
                                     .references = 1,
                                     .length = (length + PAGE - 1) / PAGE * PAGE,
                                     .bytes = length,
                                     .offset = offset};
    descriptors_begin(&mapping->file);
    descriptors_begin(&mapping->reply);
    descriptors_begin(&mapping->chunk);
    error = descriptors_copy(&mapping->file, fd);
    if (error)
        goto out_free;
    mapping->fd = mapping->file.fds[0];
    request.bytes = mapping->length;
    memcpy(request.value, &device->cuda.uuid, sizeof device->cuda.uuid);
    memcpy(request.token, token.token, sizeof request.token);
    memcpy(request.device, device->name, sizeof request.device);
    if (driver->soft) /* cuda:N on demand is above soft:N */
        memcpy(request.device, "soft", 4);
    error = map_by_session(mapping, &token, &request);
    if (error)
        goto out_close;
    descriptors_keep(&mapping->file, mapping->session->socket, &mapping->session->socket_mark);
    atomic_fetch_add(&device->references, 1);
    void *address = mapping->address; /* of the caller's, as soon as it is in the table */
    error = gaia_mapping_insert(mapping);
    if (error) {
        gaia_mapping_put(mapping);
        return error;
    }
    if (driver->places)
        error = piece_each(address, length, device, false, piece_acquire_settled);
    if (error)
        gaia_mapping_take_back(address);
    *address_out = address;
    return error;

out_close:
    descriptors_end(&mapping->file, -1);
out_free:
    free(mapping);
    return error;
}

PUBLIC void *gaia_mmap(struct gaia_device *device, size_t length, int prot, int flags, int fd, off_t offset)
{
    UNCANCELLED;
    void *address = MAP_FAILED;
    int error = -EINVAL;

    pthread_once(&once, piece_begin);
    if (device && gaia_mapping_hold_device(device)) {
        error = map_file(device, length, prot, flags, fd, offset, &address);
        gaia_device_put(device);
    }
    return fail(error) ? MAP_FAILED : address;
}

PUBLIC int gaia_munmap(void *addr, size_t length)
{
    UNCANCELLED;
    int error = piece_check_range(addr, &length);

    return fail(error ? error : gaia_mapping_remove(addr, length));
}

PUBLIC int gaia_macquire(void *addr, size_t length, struct gaia_device *device)
{
    UNCANCELLED;

    return fail(piece_each(addr, length, device, false, piece_acquire));
}

static int check_writable(struct gaia_piece *piece)
{
    return piece->mapping->writable ? 1 : 0; /* 1 ends piece_each(): there is one */
}

PUBLIC int gaia_mrelease(void *addr, size_t length, struct gaia_device *device)
{
    UNCANCELLED;
    int error = piece_each(addr, length, device, false, check_writable);

    if (error >= 0)
        error = error == 1 ? piece_each(addr, length, device, false, piece_release) : -EACCES;
    return fail(error);
}

static int put_into_stream(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream,
                           int (*fn)(struct gaia_piece *piece))
{
    if (!device || !gaia_mapping_hold_device(device))
        return -EINVAL;
    int error = stream_put(addr, length, device, stream, fn);
    gaia_device_put(device);
    return error;
}

PUBLIC int gaia_macquire_on(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream)
{
    UNCANCELLED;

    return fail(put_into_stream(addr, length, device, stream, piece_acquire));
}

PUBLIC int gaia_mrelease_on(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream)
{
    UNCANCELLED;
    int error = piece_each(addr, length, device, false, check_writable);

    if (error >= 0)
        error = error == 1 ? put_into_stream(addr, length, device, stream, piece_release) : -EACCES;
    return fail(error);
}

PUBLIC int gaia_demand_parameters(void *addr, struct gaia_demand *demand_out,
                                  const struct gaia_demand **on_device_out)
{
    UNCANCELLED;
    struct gaia_piece *pieces;
    size_t length = PAGE, count;

    int error = demand_out && on_device_out ? piece_check_range(addr, &length) : -EINVAL;
    if (!error)
        error = gaia_mapping_find(addr, length, NULL, &pieces, &count);
    if (error)
        return fail(error);
    struct gaia_mapping *mapping = pieces[0].mapping;
    if (mapping->driver != &gaia_demand_driver || addr != mapping->address)
        error = -EINVAL;
    else
        *demand_out = *demand_map_parameters(mapping->demand, on_device_out);
    gaia_pieces_free(pieces, count);
    return fail(error);
}

PUBLIC int gaia_stream_error(struct gaia_device *device)
{
    UNCANCELLED;

    if (!device || !gaia_mapping_hold_device(device))
        return fail(-EINVAL);
    int error = atomic_exchange(&device->calls->error, 0);
    if (!error && device->driver->check && atomic_load(&device->calls->count))
        error = device->driver->check(device);
    gaia_device_put(device);
    return fail(error);
}

static int check_session(struct gaia_piece *piece)
{
    return piece->mapping->session->dead ? -ENOTCONN : 0;
}

PUBLIC int gaia_msync(void *addr, size_t length, int flags)
{
    UNCANCELLED;

    if (flags != MS_SYNC && flags != MS_ASYNC)
        return fail(-EINVAL);
    return fail(piece_each(addr, length, NULL, true, flags == MS_SYNC ? piece_sync : check_session));
}

PUBLIC int gaia_madvise(void *addr, size_t length, int advice)
{
    UNCANCELLED;
    struct gaia_piece *pieces;
    size_t count;

    int error =
        advice < GAIA_ADV_NORMAL || advice > GAIA_ADV_DONTNEED ? -EINVAL : piece_check_range(addr, &length);
    if (!error)
        error = gaia_mapping_find(addr, length, NULL, &pieces, &count);
    if (error)
        return fail(error);
    for (size_t i = 0; i < count && !error; i++)
        error = piece_advise(&pieces[i], advice);
    gaia_pieces_free(pieces, count);
    return fail(error);
}

struct stat_walk {
    const struct gaia_device *device;
    uint64_t sum[sizeof(struct gaia_stat) / sizeof(uint64_t)];
};

static int stat_session(struct gaia_session *session, void *context)
{
    struct stat_walk *walk = context;
    struct gaia_message message = {.op = GAIA_OP_STAT};

    memcpy(message.device, walk->device->name, sizeof message.device);
    memcpy(message.value, &walk->device->cuda.uuid, sizeof walk->device->cuda.uuid);
    int error = gaia_session_call(session, &message, NULL);
    if (error == -ENODEV && walk->device->driver == &gaia_cuda_driver) {
        /* Nothing is mapped on the GPU itself: what is mapped on demand counts where its copy is. */
        message = (struct gaia_message){.op = GAIA_OP_STAT};
        snprintf(message.device, sizeof message.device, "soft%s", walk->device->name + 4);
        error = gaia_session_call(session, &message, NULL);
    }
    for (size_t i = 0; i < sizeof walk->sum / sizeof walk->sum[0] && !error; i++)
        walk->sum[i] += message.value[i];
    return error;
}

PUBLIC int gaia_stat(struct gaia_device *device, struct gaia_stat *stat_out)
{
    UNCANCELLED;
    struct stat_walk walk = {.device = device};

    static_assert(sizeof(struct gaia_stat) <= sizeof(((struct gaia_message *)0)->value),
                  "a reply holds the counters");
    if (!device || !stat_out || !gaia_mapping_hold_device(device))
        return fail(-EINVAL);
    int error = gaia_mapping_each_daemon(device, stat_session, &walk);
    gaia_device_put(device);
    if (!error)
        memcpy(stat_out, walk.sum, sizeof *stat_out);
    return fail(error);
}
