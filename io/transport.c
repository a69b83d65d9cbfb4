/* SPDX-License-Identifier: Apache-2.0 */
#include "io/transport_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

struct transport_test transport_test;
static _Thread_local char why[WHY_MAX] = "no error", scratch[WHY_MAX];

char *transport_scratch(void)
{
    return scratch;
}

void transport_keep(int length)
{
    if (length >= 0)
        memcpy(why, scratch, sizeof why);
}

const char *gaia_transport_why(void)
{
    return why;
}

int transport_watch(struct gaia_transport *transport, int fd, uint64_t id)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};

    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, fd, &event))
        return transport_say(-errno, "epoll_ctl: %s", strerror(errno));
    return 0;
}

/* ---- queues by number ---- */

int queue_enter(struct gaia_transport *transport, struct link_queue *queue)
{
    for (unsigned tries = 0; tries < QUEUES_MAX; tries++) {
        uint32_t id = ++transport->generation;

        if (!transport->queues[id % QUEUES_MAX]) {
            transport->queues[id % QUEUES_MAX] = queue;
            queue->id = id;
            return 0;
        }
    }
    return transport_say(-ENOBUFS, "too many queues");
}

struct link_queue *queue_find(struct gaia_transport *transport, uint32_t id)
{
    struct link_queue *queue = transport->queues[id % QUEUES_MAX];

    return queue && queue->id == id ? queue : NULL;
}

void queue_leave(struct gaia_transport *transport, struct link_queue *queue)
{
    if (queue_find(transport, queue->id) == queue)
        transport->queues[queue->id % QUEUES_MAX] = NULL;
}

/* ---- begin and end ---- */

static int check_config(const struct gaia_transport_config *config)
{
    if (config->carrier != GAIA_CARRIER_LOCAL && config->carrier != GAIA_CARRIER_RDMA)
        return transport_say(-EINVAL, "no such carrier");
    if (!config->address || !*config->address)
        return transport_say(-EINVAL, "a transport needs an address");
    if (strlen(config->address) >= sizeof((struct gaia_transport *)NULL)->address)
        return transport_say(-EINVAL, "%.40s...: too long for an address", config->address);
    if (config->timeout_ms < 50 || config->timeout_ms > 600000)
        return transport_say(-EINVAL, "a timeout is 50 ms to 10 minutes");
    return 0;
}

static int open_descriptors(struct gaia_transport *transport)
{
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (transport->epoll < 0)
        return transport_say(-errno, "epoll_create1: %s", strerror(errno));
    transport->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (transport->wake < 0)
        return transport_say(-errno, "eventfd: %s", strerror(errno));
    return transport_watch(transport, transport->wake, QUEUE_WAKE);
}

static void free_transport(struct gaia_transport *transport)
{
    if (transport->wake >= 0)
        close(transport->wake);
    if (transport->epoll >= 0)
        close(transport->epoll);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

int gaia_transport_open(const struct gaia_transport_config *config, struct gaia_transport **transport_out)
{
    int error = check_config(config);
    struct gaia_transport *transport = error ? NULL : calloc(1, sizeof *transport);

    if (error)
        return error;
    if (!transport)
        return transport_say(-ENOMEM, "no memory for a transport");
    transport->config = *config;
    memcpy(transport->address, config->address, strlen(config->address) + 1);
    transport->config.address = transport->address;
    transport->carrier = config->carrier == GAIA_CARRIER_RDMA ? &carrier_rdma : &carrier_local;
    transport->epoll = transport->wake = -1;
    transport->looked_ns = clock_now_ns();
    if (config->carrier != GAIA_CARRIER_RDMA)
        transport->config.spin_us = 0; /* there is nothing to look at but by system calls */
    LIST_INIT(&transport->links);
    LIST_INIT(&transport->memories);
    LIST_INIT(&transport->standing);
    TAILQ_INIT(&transport->ready);
    lock_init(&transport->lock, LOCK_TRANSPORT);
    lock_condition_init(&transport->changed);
    error = open_descriptors(transport);
    if (!error)
        error = transport->carrier->open(transport);
    if (error) {
        free_transport(transport);
        return error;
    }
    *transport_out = transport;
    return 0;
}

void gaia_transport_close(struct gaia_transport *transport)
{
    struct gaia_link *link, *next_link;
    struct gaia_memory *memory, *next_memory;

    if (!transport)
        return;
    for (link = LIST_FIRST(&transport->links); link; link = next_link) {
        next_link = LIST_NEXT(link, entry);
        gaia_link_close(link);
    }
    gaia_standing_forget(transport);
    for (memory = LIST_FIRST(&transport->memories); memory; memory = next_memory) {
        next_memory = LIST_NEXT(memory, entry);
        gaia_memory_release(memory);
    }
    transport->carrier->close(transport);
    free_transport(transport);
}

void gaia_transport_limits(const struct gaia_transport *transport, struct gaia_transport_limits *limits_out)
{
    *limits_out = transport->limits;
}

/* ---- memory ---- */

static int check_span(const struct gaia_span *span)
{
    if (!span->length || span->length > (size_t)1 << 40)
        return transport_say(-EINVAL, "a span of %zu bytes", span->length);
    if (span->dmabuf < 0 && (!span->address || (uintptr_t)span->address + span->length < span->length))
        return transport_say(-EINVAL, "a span that is no memory");
    return 0;
}

static void count_registering(struct gaia_transport *transport, int more)
{
    pthread_mutex_lock(&transport->lock);
    transport->registering += (unsigned)more;
    pthread_mutex_unlock(&transport->lock);
}

int gaia_memory_register(struct gaia_transport *transport, const struct gaia_span *span,
                         struct gaia_memory **memory_out)
{
    int error = check_span(span);
    struct gaia_memory *memory = error ? NULL : calloc(1, sizeof *memory);

    if (error)
        return error;
    if (!memory)
        return transport_say(-ENOMEM, "no memory");
    memory->transport = transport;
    memory->span = *span;
    count_registering(transport, 1);
    error = transport->carrier->remember(memory); /* takes its time: with no lock held */
    pthread_mutex_lock(&transport->lock);
    if (!error)
        LIST_INSERT_HEAD(&transport->memories, memory, entry);
    transport->registering--;
    pthread_mutex_unlock(&transport->lock);
    if (error)
        free(memory);
    else
        *memory_out = memory;
    return error;
}

void gaia_memory_release(struct gaia_memory *memory)
{
    if (!memory)
        return;
    struct gaia_transport *transport = memory->transport;
    pthread_mutex_lock(&transport->lock);
    assert(!memory->busy);
    LIST_REMOVE(memory, entry);
    transport->registering++;
    pthread_mutex_unlock(&transport->lock);
    transport->carrier->forget(memory);
    free(memory);
    count_registering(transport, -1);
}

/* ---- links ---- */

size_t gaia_link_memory(const struct gaia_transport *transport, const struct gaia_link_options *options)
{
    return transport->carrier->link_memory ? transport->carrier->link_memory(options) : 0;
}

static bool is_connected(void *context)
{
    struct gaia_link *link = context;

    pthread_mutex_lock(&link->transport->lock);
    bool done = link->state != LINK_CONNECTING;
    pthread_mutex_unlock(&link->transport->lock);
    return done;
}

static int begin_connecting(struct gaia_transport *transport, const char *peer,
                            const struct gaia_link_options *options, struct gaia_link **link_out)
{
    struct gaia_link *link;
    int error;

    pthread_mutex_lock(&transport->lock);
    link = link_new(transport, true);
    if (!link) {
        error = transport->link_count == GAIA_TRANSPORT_LINKS_MAX ? -ENOBUFS : -ENOMEM;
        pthread_mutex_unlock(&transport->lock);
        return error;
    }
    link->held = true;
    link->options = *options;
    memcpy(link->peer, peer, strlen(peer) + 1);
    error = transport->carrier->connect(link, 0, link->peer);
    if (error)
        link_end(link, error, "%s", gaia_transport_why());
    pthread_mutex_unlock(&transport->lock);
    *link_out = link;
    return 0;
}

int gaia_own_error(int error)
{
    switch (error) {
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -ENOBUFS:
    case -ENOSPC:
        return error;
    default:
        return -EAGAIN;
    }
}

int gaia_link_connect(struct gaia_transport *transport, const char *peer,
                      const struct gaia_link_options *options, struct gaia_link **link_out)
{
    struct gaia_link *link = NULL;
    int error;

    if (!peer || !*peer || strlen(peer) >= sizeof link->peer || !options->queues || !options->depth ||
        options->queues > GAIA_LINK_QUEUES_MAX || options->depth > GAIA_LINK_DEPTH_MAX)
        return transport_say(-EINVAL, "a link needs a peer, 1 to %u queues and a depth of 1 to %u",
                             GAIA_LINK_QUEUES_MAX, GAIA_LINK_DEPTH_MAX);
    error = begin_connecting(transport, peer, options, &link);
    if (error)
        return error;
    /* link_tick() ends it. In turns: a time for which this process stands still is one of them. */
    for (unsigned turn = 0; turn < 8; turn++)
        if (gaia_transport_wait(transport, is_connected, link, transport->config.timeout_ms / 4))
            break;
    pthread_mutex_lock(&transport->lock);
    link->owned = link->state == LINK_OPEN;
    link->held = !link->owned; /* until it is closed: else who polls might let go of it first */
    if (!link->owned)
        link_end(link, -ETIMEDOUT, "%s: nobody polls", peer);
    error = link->owned ? 0 : transport_say(link->error, "%s", link->why);
    pthread_mutex_unlock(&transport->lock);
    if (error)
        gaia_link_close(link);
    else
        *link_out = link;
    return error == -ESHUTDOWN ? -ECONNREFUSED : error;
}

int gaia_link_error(const struct gaia_link *link)
{
    pthread_mutex_lock(&link->transport->lock);
    int error = link->state == LINK_ENDED ? link->error : 0;
    pthread_mutex_unlock(&link->transport->lock);
    return error;
}

void gaia_link_set_user(struct gaia_link *link, void *user)
{
    link->user = user;
}

void *gaia_link_user(const struct gaia_link *link)
{
    return link->user;
}

struct gaia_link_options gaia_link_options(const struct gaia_link *link)
{
    return link->options;
}

unsigned gaia_link_timeout_ms(const struct gaia_link *link)
{
    return link->timeout_ms;
}

int gaia_link_send(struct gaia_link *link, const void *bytes, size_t length)
{
    if (!length || length > GAIA_LINK_MESSAGE_MAX)
        return transport_say(-EINVAL, "a message of %zu bytes", length);
    pthread_mutex_lock(&link->transport->lock);
    int error = link_say(link, GAIA_WIRE_USER, bytes, length);
    pthread_mutex_unlock(&link->transport->lock);
    return error;
}

/* The lock is held. */
static int expose(struct gaia_link *link, const struct gaia_span *span, bool writable, uint32_t *region_out)
{
    struct gaia_wire_expose message;
    struct link_region *region;
    int error;

    if (link->connected_here)
        return transport_say(-EINVAL, "only the side that accepted exposes");
    if (link->state != LINK_OPEN)
        return transport_say(-EIO, "%s", link->why);
    if (!link->credits)
        return transport_say(-EAGAIN, "%s has not taken %u messages yet", link->peer, GAIA_LINK_CREDITS);
    region = link_region_new(link);
    if (!region)
        return transport_say(-ENOBUFS, "no more than %u regions of a link", GAIA_LINK_REGIONS_MAX);
    *region = (struct link_region){.open = true, .length = span->length, .writable = writable};
    error = link->transport->carrier->expose(link, span, region);
    if (error) {
        *region = (struct link_region){0};
        return error;
    }
    *region_out = link->next_region;
    message = (struct gaia_wire_expose){.region = *region_out,
                                        .writable = writable,
                                        .address = region->address,
                                        .length = region->length,
                                        .key = region->key};
    error = link_say(link, GAIA_WIRE_EXPOSE, &message.region, sizeof message - sizeof message.head);
    if (!error)
        link->next_region++;
    if (error == -EAGAIN) {
        link->transport->carrier->conceal(link, region);
        *region = (struct link_region){0};
    }
    return error;
}

int gaia_link_expose(struct gaia_link *link, const struct gaia_span *span, bool writable,
                     uint32_t *region_out)
{
    uint32_t region;
    int error = check_span(span);

    if (error)
        return error;
    pthread_mutex_lock(&link->transport->lock);
    error = expose(link, span, writable, &region);
    pthread_mutex_unlock(&link->transport->lock);
    if (!error)
        *region_out = region;
    return error;
}

static int check_transfer(const struct gaia_link *link, const struct gaia_transfer *transfer)
{
    const struct gaia_memory *memory = transfer->memory;
    const struct link_region *region;

    if (!memory || memory->transport != link->transport || !transfer->length ||
        transfer->length > GAIA_LINK_TRANSFER_MAX || transfer->memory_offset > memory->span.length ||
        memory->span.length - transfer->memory_offset < transfer->length)
        return transport_say(-EINVAL, "%u bytes at %llu of memory of this side", transfer->length,
                             (unsigned long long)transfer->memory_offset);
    if (transport_test.unchecked)
        return 0;
    if (transfer->region >= link->region_count || !link->regions[transfer->region].open)
        return transport_say(-EINVAL, "%s: no region %u", link->peer, transfer->region);
    region = &link->regions[transfer->region];
    if (transfer->offset > region->length || region->length - transfer->offset < transfer->length)
        return transport_say(-EINVAL, "%s: %u bytes at %llu of a region of %llu", link->peer,
                             transfer->length, (unsigned long long)transfer->offset,
                             (unsigned long long)region->length);
    if (transfer->write && !region->writable)
        return transport_say(-EACCES, "%s: region %u is for reading", link->peer, transfer->region);
    return 0;
}

/* The lock is held. */
static int post(struct gaia_link *link, unsigned number, struct gaia_transfer *const *transfers,
                unsigned count)
{
    struct link_queue *queue = &link->queues[number];
    unsigned room, good;
    int error = 0;

    if (link->state != LINK_OPEN)
        return transport_say(-ESHUTDOWN, "%s", link->why);
    room = link->options.depth - queue->busy;
    if (!room)
        return -EAGAIN;
    if (count > room)
        count = room;
    for (good = 0; good < count; good++) {
        error = check_transfer(link, transfers[good]);
        if (error)
            break;
    }
    return good ? link->transport->carrier->post(queue, transfers, good) : error;
}

int gaia_link_post(struct gaia_link *link, unsigned queue, struct gaia_transfer *const *transfers,
                   unsigned count)
{
    if (!link->connected_here || queue >= link->options.queues || !count)
        return transport_say(-EINVAL, "no such queue to post to");
    pthread_mutex_lock(&link->transport->lock);
    int posted = post(link, queue, transfers, count);
    pthread_mutex_unlock(&link->transport->lock);
    return posted;
}

/* ---- tests ---- */

void transport_test_hello(struct gaia_wire_hello *hello, size_t *length)
{
    void (*change)(struct gaia_wire_hello *, size_t *) = transport_test.hello;

    if (change)
        change(hello, length);
}

int transport_test_send(struct gaia_link *link, const void *bytes, size_t length)
{
    pthread_mutex_lock(&link->transport->lock);
    int error = link->state == LINK_OPEN ? link->transport->carrier->send(link, bytes, length) : -EIO;
    pthread_mutex_unlock(&link->transport->lock);
    return error;
}

int transport_test_break(struct gaia_link *link, unsigned queue)
{
    pthread_mutex_lock(&link->transport->lock);
    int error = link->transport->carrier->break_queue(&link->queues[queue]);
    pthread_mutex_unlock(&link->transport->lock);
    return error;
}

const struct link_region *transport_test_region(const struct gaia_link *link, uint32_t region)
{
    return region < link->region_count ? &link->regions[region] : NULL;
}
