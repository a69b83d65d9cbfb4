/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/fault_path.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/lock.h"
#include "cache/bounce.h"
#include "cache/window.h"
#include "consistency/page.h"

#define AGAIN_MS 1000u   /* between attempts to connect */
#define STARVED_MS 5u    /* to post what the carrier had no room for */
#define STRANGERS_MAX 8u /* links that have not shown the token (yet) */
#define TOKEN_BYTES 32u

struct fault_path {
    struct fault_path_config config; /* constant, as are the next three; its address: as it was asked for */
    struct gaia_span host_frames;
    uint32_t unit;
    uint8_t token[TOKEN_BYTES]; /* who shows it is this process */
    pthread_t poller;

    /* Of the thread that polls (at first: that opens); others use it while the path is ready. */
    struct gaia_transport *transport; /* NULL: could not be had again */
    /* Of that thread alone. */
    struct gaia_link *agent;                    /* reads */
    struct gaia_link *strangers[STRANGERS_MAX]; /* arrived; one of them is ours, and exposes */
    unsigned next_stranger;                     /* whose place is taken when there is none left */
    uint32_t region;                            /* as the agent knows it */
    bool exposed;
    int refused_with;         /* the host frames could not be exposed */
    char why[FAULT_PATH_WHY]; /* of the last attempt that went wrong */

    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t stopped;
    struct gaia_pull *pull;
    struct bounce_pool buffers; /* for who uses the pull */
    _Atomic bool starved;       /* of the pull: the thread that polls rings again */
    char address[sizeof((struct fault_path_config *)NULL)->address]; /* "": none found yet */
    char device[64];
    bool ready;     /* pull may be used */
    bool stop;      /* the poller ends */
    unsigned users; /* reads that have not ended, and who starts one */
    uint64_t connects, bounced, failed, refused;
};

/* Why there is no path; the error again. */
#define say(path, error, ...)                                    \
    ({                                                           \
        int said = (error);                                      \
        snprintf((path)->why, sizeof((path)->why), __VA_ARGS__); \
        said;                                                    \
    })

/* What the transport has said of its last error. */
static int say_it_too(struct fault_path *path, int error)
{
    return error ? say(path, error, "%s", gaia_transport_why()) : 0;
}

/* ---- callbacks, in the thread that polls ---- */

/* A peer that connects and says nothing keeps nobody out: there is always a place for our own link. */
static int arrived(void *context, struct gaia_link *link, const char *peer)
{
    struct fault_path *path = context;

    (void)peer;
    if (path->exposed)
        return -EACCES;
    for (unsigned i = 0; i < STRANGERS_MAX; i++)
        if (!path->strangers[i]) {
            path->strangers[i] = link;
            return 0;
        }
    unsigned taken = path->next_stranger++ % STRANGERS_MAX;
    gaia_link_close(path->strangers[taken]);
    path->strangers[taken] = link;
    return 0;
}

/* Frames are exposed to this process and to nobody else that finds the address. */
static void message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    struct fault_path *path = context;
    uint32_t region;

    if (link == path->agent || length != TOKEN_BYTES || memcmp(bytes, path->token, TOKEN_BYTES))
        return;
    path->refused_with = say_it_too(path, gaia_link_expose(link, &path->host_frames, false, &region));
}

static void exposed(void *context, struct gaia_link *link, uint32_t region, uint64_t length)
{
    struct fault_path *path = context;

    if (link != path->agent || length != path->host_frames.length)
        return;
    path->region = region;
    path->exposed = true;
}

static void closed(void *context, struct gaia_link *link, int error)
{
    struct fault_path *path = context;

    (void)error;
    if (link != path->agent) { /* if it was the other end of that, the agent hears of it */
        for (unsigned i = 0; i < STRANGERS_MAX; i++)
            if (path->strangers[i] == link)
                path->strangers[i] = NULL;
        gaia_link_close(link);
        return;
    }
    pthread_mutex_lock(&path->lock);
    path->ready = false;
    pthread_mutex_unlock(&path->lock);
}

/* ---- the address ---- */

static int try_address(struct fault_path *path, const char *address)
{
    struct gaia_transport_config config = {
        .carrier = path->config.carrier == FAULT_RDMA ? GAIA_CARRIER_RDMA : GAIA_CARRIER_LOCAL,
        .address = address,
        .listen = true,
        .timeout_ms = path->config.timeout_ms,
        .path = GAIA_PATH_FAULTS,
        .calls = {.arrived = arrived, .message = message, .exposed = exposed, .closed = closed},
        .context = path,
    };
    struct gaia_transport *transport = NULL;
    int error = say_it_too(path, gaia_transport_open(&config, &transport));

    if (error)
        return error;
    pthread_mutex_lock(&path->lock);
    if (address != path->address)
        snprintf(path->address, sizeof path->address, "%s", address);
    path->transport = transport;
    pthread_mutex_unlock(&path->lock);
    return 0;
}

/* The first free port from FAULT_PATH_PORT on: several mounts may be here. */
static int try_host(struct fault_path *path, const char *host)
{
    bool bare = strchr(host, ':') && host[0] != '['; /* an IPv6 address */
    int error = -EADDRINUSE;

    for (unsigned i = 0; i < FAULT_PATH_PORTS && error == -EADDRINUSE; i++) {
        char address[sizeof path->address];
        int n = snprintf(address, sizeof address, bare ? "[%s]:%u" : "%s:%u", host, FAULT_PATH_PORT + i);
        error = n < (int)sizeof address ? try_address(path, address)
                                        : say(path, -EINVAL, "%s: too long for an address", host);
    }
    return error;
}

/* The first address of this machine that an RDMA device has. */
static int try_interfaces(struct fault_path *path)
{
    char host[INET6_ADDRSTRLEN];
    struct ifaddrs *list;
    int error = say(path, -EADDRNOTAVAIL, "no interface of this machine is up and has an address");

    if (getifaddrs(&list))
        return say(path, -errno, "the addresses of this machine: %s", strerror(errno));
    for (const struct ifaddrs *i = list; i && error == -EADDRNOTAVAIL; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
            continue;
        const struct sockaddr_in6 *six = (const void *)i->ifa_addr;
        const struct sockaddr_in *four = (const void *)i->ifa_addr;
        if (i->ifa_addr->sa_family == AF_INET)
            inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        else if (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
            inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        else
            continue;
        error = try_host(path, host);
    }
    freeifaddrs(list);
    return error;
}

static bool has_port(const char *address)
{
    const char *colon = strrchr(address, ':'), *bracket = strrchr(address, ']');

    return colon && (bracket ? colon > bracket : colon == strchr(address, ':'));
}

/* At an address that was asked for, or of a kind that was. */
static int find_address(struct fault_path *path)
{
    char name[sizeof path->address];
    const char *asked = path->config.address;
    uint64_t random = 0;

    if (path->config.carrier == FAULT_LOCAL) {
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return say(path, -EIO, "getrandom: %s", strerror(errno));
        snprintf(name, sizeof name, "gaiafs-fault-%ld-%016llx", (long)getpid(), (unsigned long long)random);
        return try_address(path, name);
    }
    return !*asked           ? try_interfaces(path)
           : has_port(asked) ? try_address(path, asked)
                             : try_host(path, asked);
}

/* Where it was before, unless somebody else is there by now, or the address has gone: another mount may have
 * taken the port while this path was broken. */
static int open_transport(struct fault_path *path)
{
    int error = *path->address ? try_address(path, path->address) : -EADDRNOTAVAIL;

    return error == -EADDRINUSE || error == -EADDRNOTAVAIL ? find_address(path) : error;
}

/* ---- connecting ---- */

static bool is_exposed(void *context)
{
    const struct fault_path *path = context;

    return path->exposed || path->refused_with || gaia_link_error(path->agent);
}

static bool no_users(void *context)
{
    struct fault_path *path = context;

    pthread_mutex_lock(&path->lock);
    bool none = !path->users;
    pthread_mutex_unlock(&path->lock);
    return none;
}

/* The path is not ready, so nobody begins a read; those that are under way end with the link. Nothing is left
 * of it but its address. */
static void disconnect(struct fault_path *path)
{
    struct gaia_transport *transport = path->transport;

    if (!transport)
        return;
    if (path->pull)
        gaia_pull_end(path->pull, -EIO);
    while (!gaia_transport_wait(transport, no_users, path, AGAIN_MS))
        ;
    gaia_pull_close(path->pull);
    bounce_pool_free(&path->buffers);
    pthread_mutex_lock(&path->lock);
    path->pull = NULL;
    path->bounced = 0; /* as the pull's own counts */
    path->transport = NULL;
    pthread_mutex_unlock(&path->lock);
    gaia_transport_close(transport); /* and the links */
    path->agent = NULL;
    memset(path->strangers, 0, sizeof path->strangers);
    path->exposed = false;
    path->refused_with = 0;
}

static int make_buffers(struct fault_path *path)
{
    int error = bounce_pool_init(&path->buffers, path->transport);

    return error && !path->buffers.area ? say(path, error, "no memory for bounce buffers")
                                        : say_it_too(path, error);
}

/* Make the path ready. 0, or why not; then nothing is left. */
static int connect_path(struct fault_path *path)
{
    struct gaia_pull_options options = {.queues = path->config.queues, .depth = path->config.depth};
    struct gaia_transport_limits limits;
    struct gaia_pull *pull = NULL;

    int error = open_transport(path);
    if (error)
        return error;
    gaia_transport_limits(path->transport, &limits);
    struct gaia_link_options shape = gaia_pull_plan(&limits, &options, path->unit);
    error = say_it_too(path, gaia_link_connect(path->transport, path->address, &shape, &path->agent));
    if (!error)
        error = say_it_too(path, gaia_link_send(path->agent, path->token, TOKEN_BYTES));
    if (!error && !gaia_transport_wait(path->transport, is_exposed, path, path->config.timeout_ms))
        error = say(path, -ETIMEDOUT, "%s does not answer itself", path->address);
    if (!error)
        error = path->refused_with;
    if (!error && (error = gaia_link_error(path->agent)))
        say(path, error, "%s has ended the link: %s", path->address, strerror(-error));
    if (!error)
        error = say_it_too(
            path, gaia_pull_open(path->transport, path->agent, 0, shape.depth, &path->starved, &pull));
    if (!error)
        error = make_buffers(path);
    pthread_mutex_lock(&path->lock);
    path->pull = pull;
    path->ready = !error;
    path->connects += !error;
    memcpy(path->device, limits.device, sizeof path->device);
    pthread_mutex_unlock(&path->lock);
    if (error)
        disconnect(path);
    return error;
}

/* A poller without a transport waits for the time of its next attempt. */
static void sleep_until_next(struct fault_path *path)
{
    struct timespec until = lock_wait_until(AGAIN_MS);

    pthread_mutex_lock(&path->lock);
    while (!path->stop && !pthread_cond_timedwait(&path->stopped, &path->lock, &until))
        ;
    pthread_mutex_unlock(&path->lock);
}

static void *poll_path(void *argument)
{
    struct fault_path *path = argument;

    for (;;) {
        pthread_mutex_lock(&path->lock);
        bool ready = path->ready, stop = path->stop;
        pthread_mutex_unlock(&path->lock);
        if (stop)
            return NULL;
        if (ready) {
            gaia_transport_poll(path->transport, path->starved ? STARVED_MS : AGAIN_MS);
            if (path->starved)
                gaia_pull_ring(path->pull);
            continue;
        }
        disconnect(path);
        if (connect_path(path))
            sleep_until_next(path);
    }
}

/* ---- begin and end ---- */

/* The lock is held: the transport stays meanwhile. */
static void wake(struct fault_path *path)
{
    if (path->transport)
        gaia_transport_wake(path->transport);
}

/* Nobody else is here (any more). */
static void free_path(struct fault_path *path)
{
    path->ready = false;
    disconnect(path);
    pthread_cond_destroy(&path->stopped);
    pthread_mutex_destroy(&path->lock);
    free(path);
}

int fault_path_open(const struct fault_path_config *config, const void *host_frames, size_t length,
                    uint32_t unit, struct fault_path **path_out, char why_out[FAULT_PATH_WHY])
{
    struct fault_path *path = calloc(1, sizeof *path);
    int error = 0;

    if (!path)
        return snprintf(why_out, FAULT_PATH_WHY, "no memory for a path"), -ENOMEM;
    path->config = *config;
    if (!path->config.timeout_ms)
        path->config.timeout_ms = FAULT_PATH_TIMEOUT_MS;
    path->host_frames = (struct gaia_span){(void *)(uintptr_t)host_frames, length, -1};
    path->unit = unit;
    lock_init(&path->lock, LOCK_FAULT_PATH);
    lock_condition_init(&path->stopped);
    if (getrandom(path->token, sizeof path->token, 0) != sizeof path->token)
        error = say(path, -EIO, "getrandom: %s", strerror(errno));
    if (!error)
        error = connect_path(path);
    int no_thread = error ? 0 : -pthread_create(&path->poller, NULL, poll_path, path);
    if (no_thread)
        error = say(path, no_thread, "no thread that polls: %s", strerror(-no_thread));
    if (error) {
        memcpy(why_out, path->why, FAULT_PATH_WHY);
        free_path(path);
    } else {
        *path_out = path;
    }
    return error;
}

void fault_path_close(struct fault_path *path)
{
    if (!path)
        return;
    pthread_mutex_lock(&path->lock);
    path->stop = true;
    wake(path);
    pthread_cond_signal(&path->stopped);
    pthread_mutex_unlock(&path->lock);
    pthread_join(path->poller, NULL);
    free_path(path);
}

/* ---- reads ---- */

/* Use the pull, if it can be used; else NULL. */
static struct gaia_pull *begin_use(struct fault_path *path)
{
    struct gaia_pull *pull;

    pthread_mutex_lock(&path->lock);
    pull = path->ready ? path->pull : NULL;
    path->users += pull ? 2 : 0; /* the read, and who begins it */
    pthread_mutex_unlock(&path->lock);
    return pull;
}

static void end_use(struct fault_path *path, unsigned users)
{
    pthread_mutex_lock(&path->lock);
    path->users -= users;
    if (!path->users && !path->ready) /* disconnect() waits for it */
        wake(path);
    pthread_mutex_unlock(&path->lock);
}

/* A new error, if there was none. */
static int end_window(struct fault_read *read, int error)
{
    if (read->pull.tried)
        gaia_standing_ended(read->window.standing, GAIA_PATH_FAULTS, read->window.registered, error);
    return gaia_window_end(read->frames, &read->window, GAIA_PATH_FAULTS, error);
}

static void read_done(struct gaia_pull_read *pull_read, int error)
{
    struct fault_read *read = (struct fault_read *)((char *)pull_read - offsetof(struct fault_read, pull));
    struct fault_path *path = read->path;
    const uint8_t *buffer = read->buffer;

    if (!buffer)
        error = end_window(read, error);
    pthread_mutex_lock(&path->lock);
    path->failed += !!error;
    path->bounced += !error && buffer;
    pthread_mutex_unlock(&path->lock);
    read->bounced = buffer;
    read->done(read, error);
    if (buffer)
        bounce_put(&path->buffers, buffer);
    end_use(path, 1);
}

/* Its memory is registered once, and the window is a part of it. */
static int register_window(struct fault_path *path, struct fault_read *read)
{
    struct gaia_window *window = &read->window;

    read->pull.memory_offset = (uint64_t)((uintptr_t)window->memory - (uintptr_t)window->standing->address);
    int error = gaia_standing_register(window->standing, path->transport, &read->pull.memory);
    window->registered = error ? NULL : read->pull.memory;
    return error;
}

static int take_buffer(struct fault_path *path, struct fault_read *read)
{
    assert(read->count <= BOUNCE_PAGES);
    read->buffer = bounce_get(&path->buffers);
    if (!read->buffer)
        return -EAGAIN;
    read->pull.memory = path->buffers.memory;
    read->pull.memory_offset = (uint64_t)(read->buffer - path->buffers.area);
    return 0;
}

static int make_window(struct fault_path *path, struct fault_read *read)
{
    const struct gaia_frames_ops *ops = read->frames->ops;
    int error = ops->open_window(read->frames, read->first, read->count, &read->window);

    if (error)
        return error;
    error = register_window(path, read);
    if (!error && gaia_window_is_doubted(&read->window))
        error = gaia_window_look(read->frames, &read->window, read->bytes);
    return error ? gaia_window_end(read->frames, &read->window, GAIA_PATH_FAULTS, error) : 0;
}

/* The path is in use. */
static int prepare_read(struct fault_path *path, struct fault_read *read)
{
    read->pull =
        (struct gaia_pull_read){.offset = (uint64_t)(read->bytes - (uint8_t *)path->host_frames.address),
                                .region = path->region,
                                .length = (uint32_t)(read->count * GAIA_PAGE_SIZE),
                                .cuttable = !read->frames->ops->bounces,
                                .done = read_done};
    return read->frames->ops->bounces ? take_buffer(path, read) : make_window(path, read);
}

int fault_path_read(struct fault_path *path, struct fault_read *read)
{
    bool can = read->frames->ops->bounces || read->frames->ops->open_window;
    struct gaia_pull *pull = can ? begin_use(path) : NULL;
    int error = pull ? prepare_read(path, read) : can ? -EAGAIN : -EOPNOTSUPP;

    if (error) {
        pthread_mutex_lock(&path->lock);
        path->refused++;
        pthread_mutex_unlock(&path->lock);
        if (pull)
            end_use(path, 2);
        return error;
    }
    read->path = path;
    gaia_pull_add(pull, &read->pull);
    gaia_pull_ring(pull);
    end_use(path, 1);
    return 0;
}

void fault_path_stat(struct fault_path *path, struct fault_path_stat *stat_out)
{
    struct gaia_pull *pull = begin_use(path);

    *stat_out = (struct fault_path_stat){.connected = pull};
    if (pull) {
        gaia_pull_stat(pull, &stat_out->pull);
        end_use(path, 2);
    }
    stat_out->pull.path = path->config.carrier == FAULT_RDMA ? "rdma" : "local";
    pthread_mutex_lock(&path->lock);
    memcpy(stat_out->address, path->address, sizeof path->address);
    memcpy(stat_out->pull.device, path->device, sizeof path->device);
    stat_out->connects = path->connects;
    stat_out->bounced = path->bounced;
    stat_out->failed = path->failed;
    stat_out->refused = path->refused;
    pthread_mutex_unlock(&path->lock);
}
