/* SPDX-License-Identifier: Apache-2.0 */
/* The local carrier: a SOCK_SEQPACKET socket and a piece of shared memory (the stage) for each queue.
 *
 * A read is a request in a datagram, which may hold many. The side that has exposed the region looks the key
 * up, copies into the stage and answers how many it has done; the side that asked copies out of the stage. A
 * second copy is the price of trusting nobody: the stage is the only memory that both can see; it is sealed
 * against being cut short, as a touch behind its end would be SIGBUS; and what was copied out of it does not
 * change any more. */
#include "io/transport_local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define ENTRIES_MAX ((GAIA_WIRE_MAX - sizeof(struct gaia_wire_head)) / sizeof(struct gaia_wire_transfer))

/* ---- queues ---- */

static void free_queue(struct link_queue *queue)
{
    struct local_queue *local = queue->own;

    if (!local)
        return;
    queue_leave(queue->link->transport, queue);
    if (local->fd >= 0)
        close(local->fd);
    if (local->stage)
        munmap(local->stage, STAGE_LENGTH);
    free(local);
    queue->own = NULL;
}

int local_new_queue(struct link_queue *queue, int fd)
{
    struct local_queue *local = calloc(1, sizeof *local);
    int error;

    if (!local)
        return transport_say(-ENOMEM, "no memory for a queue");
    local->fd = fd;
    error = queue_enter(queue->link->transport, queue);
    if (error) {
        free(local);
        return error;
    }
    queue->own = local;
    return 0;
}

static void local_cut(struct gaia_link *link)
{
    for (unsigned i = 0; i < GAIA_LINK_QUEUES_MAX; i++)
        free_queue(&link->queues[i]);
}

int local_check_peer(int fd, char *name_out, size_t size)
{
    struct ucred who;
    socklen_t length = sizeof who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length))
        return transport_say(-errno, "SO_PEERCRED: %s", strerror(errno));
    snprintf(name_out, size, "process %d of user %u", who.pid, who.uid);
    if (who.uid && who.uid != geteuid())
        return transport_say(-EPERM, "%s is no node's, which is root's or of user %u", name_out, geteuid());
    return 0;
}

static int local_connect(struct gaia_link *link, unsigned number, const char *peer)
{
    struct link_queue *queue = &link->queues[number];
    struct sockaddr_un address;
    socklen_t address_length;
    struct gaia_wire_hello hello;
    size_t length = sizeof hello;
    char listens[64];
    int fd, error = local_address(peer, &address, &address_length);

    if (!error)
        error = local_socket(&fd);
    if (error)
        return error;
    if (connect(fd, (struct sockaddr *)&address, address_length))
        error = transport_say(errno == EAGAIN ? -ECONNREFUSED : -errno, "%s: %s", peer,
                              errno == EAGAIN ? "too many wait to be let in" : strerror(errno));
    if (!error) {
        error = local_check_peer(fd, listens, sizeof listens); /* of who listens, when it began to */
        if (error)
            error = transport_say(error, "%s: %s", peer, gaia_transport_why());
    }
    if (!error)
        error = local_new_queue(queue, fd);
    if (error) {
        close(fd);
        return error;
    }
    error = transport_watch(link->transport, fd, queue->id); /* link_end() cleans up from here on */
    link_hello(link, number, &hello);
    transport_test_hello(&hello, &length);
    return error ? error : datagram_send(fd, &hello, length, -1);
}

/* ---- transfers ---- */

static unsigned fill(struct link_queue *queue, struct gaia_transfer *const *transfers, unsigned count,
                     struct gaia_wire_transfer *entries)
{
    struct local_queue *local = queue->own;
    unsigned n;

    for (n = 0; n < count && n < ENTRIES_MAX; n++) {
        struct gaia_transfer *t = transfers[n];
        const struct link_region *region =
            t->region < queue->link->region_count ? &queue->link->regions[t->region] : NULL;

        if (!stage_take(&local->ring, !queue->busy && !n, t->length, &t->stage))
            break;
        if (t->write)
            memcpy(local->stage + t->stage, (char *)t->memory->span.address + t->memory_offset, t->length);
        entries[n] = (struct gaia_wire_transfer){
            .key = transport_test.unchecked || !region ? transport_test.key : region->key,
            .address = t->offset + (region ? region->address : 0),
            .length = t->length,
            .stage = t->stage,
            .write = t->write,
        };
    }
    return n;
}

static int local_post(struct link_queue *queue, struct gaia_transfer *const *transfers, unsigned count)
{
    struct local_queue *local = queue->own;
    struct {
        struct gaia_wire_head head;
        struct gaia_wire_transfer entries[ENTRIES_MAX];
    } message;
    unsigned posted = 0;

    while (posted < count) {
        struct stage_ring before = local->ring;
        unsigned n = fill(queue, transfers + posted, count - posted, message.entries);
        size_t length = sizeof message.head + n * sizeof *message.entries;

        if (!n)
            break;
        message.head = (struct gaia_wire_head){(uint32_t)length, GAIA_WIRE_VERSION, GAIA_WIRE_TRANSFERS, 0};
        int error = datagram_send(local->fd, &message, length, -1);
        if (error) {
            local->ring = before;
            if (error != -EAGAIN) {
                link_end(queue->link, -EIO, "%s: %s", queue->link->peer, gaia_transport_why());
                error = -EIO;
            }
            return posted ? (int)posted : error;
        }
        for (unsigned i = 0; i < n; i++)
            queue_push(queue, transfers[posted + i]);
        posted += n;
    }
    return posted ? (int)posted : -EAGAIN;
}

/* A place in the region that the entry names; NULL: it names none of this link. */
static unsigned char *look_up(const struct gaia_link *link, const struct gaia_wire_transfer *entry)
{
    uint64_t number = entry->key % GAIA_LINK_REGIONS_MAX;
    const struct link_region *region = number < link->region_count ? &link->regions[number] : NULL;

    if (!region || !region->open || region->key != entry->key || (entry->write && !region->writable) ||
        entry->address > region->length || region->length - entry->address < entry->length)
        return NULL;
    return (unsigned char *)region->own + entry->address;
}

static int carry_out(const struct gaia_link *link, const struct local_queue *local,
                     const struct gaia_wire_transfer *entry)
{
    unsigned char *place;

    if (!entry->length || entry->length > GAIA_LINK_TRANSFER_MAX || entry->stage > STAGE_LENGTH ||
        STAGE_LENGTH - entry->stage < entry->length || entry->write > 1)
        return transport_say(-EPROTO, "%s: a transfer of %u bytes at %u of the stage", link->peer,
                             entry->length, entry->stage);
    place = look_up(link, entry);
    if (!place)
        return transport_say(-EACCES, "%s: a transfer of %u bytes with a key that is not for it", link->peer,
                             entry->length);
    if (entry->write)
        memcpy(place, local->stage + entry->stage, entry->length);
    else
        memcpy(local->stage + entry->stage, place, entry->length);
    return 0;
}

/* Say how many are done; what the socket does not take now is said when it does. */
static void say_done(struct link_queue *queue, int error)
{
    struct local_queue *local = queue->own;
    struct gaia_wire_done done = {.head = {sizeof done, GAIA_WIRE_VERSION, GAIA_WIRE_DONE, 0},
                                  .count = local->done_due,
                                  .error = error};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = queue->id};

    if (!local->done_due)
        return;
    bool blocked = datagram_send(local->fd, &done, sizeof done, -1);
    if (!blocked)
        local->done_due = 0;
    if (blocked == local->blocked)
        return;
    local->blocked = blocked;
    if (blocked)
        event.events |= EPOLLOUT;
    epoll_ctl(queue->link->transport->epoll, EPOLL_CTL_MOD, local->fd, &event);
}

static void take_transfers(struct link_queue *queue, const unsigned char *bytes, size_t length)
{
    struct local_queue *local = queue->own;
    struct gaia_link *link = queue->link;
    struct gaia_wire_transfer entry;
    size_t at = sizeof(struct gaia_wire_head);
    int error = 0;

    link->heard_ns = transport_time(link->transport);
    if (transport_test.deaf)
        return;
    for (; at + sizeof entry <= length && !error; at += sizeof entry) {
        memcpy(&entry, bytes + at, sizeof entry);
        error = carry_out(link, local, &entry);
        local->done_due++;
    }
    if (!error && (at != length || local->done_due > link->options.depth))
        error =
            transport_say(-EPROTO, "%s: more transfers than the queue is deep, or half of one", link->peer);
    say_done(queue, error);
    if (error)
        link_end(link, error, "%s", gaia_transport_why());
}

/* Into memory that may go away it is the kernel that copies: it says EFAULT where a store would be SIGBUS. */
static int copy_out(const struct local_queue *local, const struct gaia_transfer *t)
{
    struct iovec to = {(char *)t->memory->span.address + t->memory_offset, t->length};
    struct iovec from = {local->stage + t->stage, t->length};
    ssize_t n = 0;

    if (!t->cuttable) {
        memcpy(to.iov_base, from.iov_base, t->length);
        return 0;
    }
    while (from.iov_len && (n = process_vm_writev(getpid(), &from, 1, &to, 1, 0)) > 0) {
        from = (struct iovec){(char *)from.iov_base + n, from.iov_len - (size_t)n};
        to = (struct iovec){(char *)to.iov_base + n, to.iov_len - (size_t)n};
    }
    return from.iov_len ? -EFAULT : 0;
}

static void take_done(struct link_queue *queue, const unsigned char *bytes, size_t length)
{
    struct local_queue *local = queue->own;
    struct gaia_wire_done done = {0};
    unsigned n = 0;

    if (length == sizeof done)
        memcpy(&done, bytes, sizeof done);
    if (!done.count || done.count > queue->busy || done.error > 0 || done.error < -4095) {
        link_end(queue->link, -EPROTO, "%s: %u transfers done of %u", queue->link->peer, done.count,
                 queue->busy);
        return;
    }
    for (struct gaia_transfer *t = queue->first; n < done.count; t = t->next, n++) {
        if (!t->write && (!done.error || n + 1 < done.count))
            t->error = copy_out(local, t);
        stage_give_back(&local->ring, t->stage, t->length);
    }
    queue->link->heard_ns = transport_time(queue->link->transport);
    queue_completed(queue, done.count, done.error);
}

/* ---- what comes ---- */

static void take_answer(struct link_queue *queue, const void *bytes, size_t length, int stage)
{
    struct local_queue *local = queue->own;

    if (link_answered(queue, bytes, length))
        return;
    int error = stage == -EMFILE ? transport_say(stage, "no descriptor for the shared memory")
                : stage < 0      ? transport_say(-EPROTO, "the peer sends no shared memory")
                                 : stage_from(stage, &local->stage);
    if (error)
        link_end(queue->link, error, "%s: %s", queue->link->peer, gaia_transport_why());
    else
        link_queue_up(queue);
}

static void take(struct link_queue *queue, const unsigned char *bytes, size_t length)
{
    struct gaia_wire_head head = {0};

    memcpy(&head, bytes, length < sizeof head ? length : sizeof head);
    bool whole = length >= sizeof head && head.length == length && head.version == GAIA_WIRE_VERSION;
    if (whole && head.op == GAIA_WIRE_TRANSFERS && !queue->link->connected_here)
        take_transfers(queue, bytes, length);
    else if (whole && head.op == GAIA_WIRE_DONE && queue->link->connected_here)
        take_done(queue, bytes, length);
    else if (!queue->number)
        link_received(queue->link, bytes, length);
    else
        link_end(queue->link, -EPROTO, "%s: a message on queue %u", queue->link->peer, queue->number);
}

static void read_queue(struct gaia_transport *transport, uint32_t id);
static bool read_one(struct gaia_transport *transport, uint32_t id);

/* The peer's messages begin when it has answered on the last queue: so that answer is there by now, and the
 * link is not to be taken for one that still connects. So is a refusal, when the peer has gone. No more than
 * the answer: what ends the link may be in the caller's hands. */
static void hear_answer_first(const struct link_queue *queue)
{
    const struct gaia_link *link = queue->link;

    if (queue->up && link->connected_here && link->state == LINK_CONNECTING && link->queues[link->up].own)
        read_one(link->transport, link->queues[link->up].id);
}

/* Whether there may be more. */
static bool read_one(struct gaia_transport *transport, uint32_t id)
{
    struct link_queue *queue = queue_find(transport, id);
    struct local_queue *local = queue ? queue->own : NULL;
    unsigned char bytes[GAIA_WIRE_MAX + 1];
    int fd;

    if (!queue)
        return false;
    if (local->done_due)
        say_done(queue, 0);
    ssize_t n = datagram_receive(local->fd, bytes, &fd);
    if (n == -EAGAIN)
        return false;
    hear_answer_first(queue);
    if (n <= 0 && queue->up && queue->number && queue->link->queues[0].own) /* a BYE may be there */
        read_queue(transport, queue->link->queues[0].id);
    if (n <= 0)
        link_end(queue->link, queue->up ? -EIO : -ECONNREFUSED, "%s has gone away%s%s", queue->link->peer,
                 n ? ": " : "", n ? strerror((int)-n) : "");
    else if (queue->link->connected_here && !queue->up)
        take_answer(queue, bytes, (size_t)n, fd);
    else
        take(queue, bytes, (size_t)n);
    if (fd >= 0)
        close(fd);
    return true;
}

static void read_queue(struct gaia_transport *transport, uint32_t id)
{
    for (int i = 0; i < DATAGRAMS_MAX && read_one(transport, id); i++)
        ;
}

static void local_heard(struct gaia_transport *transport, uint64_t id)
{
    struct local *local = transport->own;

    if (id == QUEUE_LISTEN)
        local_accept_all(transport);
    else if (id >= QUEUE_HALF && id < QUEUE_HALF + HALF_MAX)
        local_read_half(transport, &local->halves[id - QUEUE_HALF]);
    else
        read_queue(transport, (uint32_t)id);
}

static int local_arm(struct gaia_transport *transport)
{
    (void)transport;
    return 0;
}

static int local_send(struct gaia_link *link, const void *bytes, size_t length)
{
    struct local_queue *local = link->queues[0].own;

    return datagram_send(local->fd, bytes, length, -1);
}

static void local_flush(struct gaia_link *link)
{
    (void)link; /* what is in the peer's socket stays there */
}

/* ---- memory ---- */

static int can_reach(const struct gaia_span *span)
{
    if (span->dmabuf >= 0)
        return transport_say(-EOPNOTSUPP, "the local carrier can't reach another device's memory");
    return 0;
}

static int local_remember(struct gaia_memory *memory)
{
    return can_reach(&memory->span);
}

static void local_forget(struct gaia_memory *memory)
{
    (void)memory;
}

static int local_expose(struct gaia_link *link, const struct gaia_span *span, struct link_region *region)
{
    int error = can_reach(span);

    if (error)
        return error;
    if (getrandom(&region->key, sizeof region->key, 0) != sizeof region->key)
        return transport_say(-EIO, "getrandom: %s", strerror(errno));
    region->key -= region->key % GAIA_LINK_REGIONS_MAX;
    region->key += (uint64_t)(region - link->regions);
    region->own = span->address;
    return 0;
}

static void local_conceal(struct gaia_link *link, struct link_region *region)
{
    (void)link;
    region->key = 0;
}

/* ---- begin and end ---- */

static void local_close(struct gaia_transport *transport)
{
    struct local *local = transport->own;

    local_listen_no_more(local);
    free(local);
}

static int local_open(struct gaia_transport *transport)
{
    struct local *local = calloc(1, sizeof *local);
    int error;

    if (!local)
        return transport_say(-ENOMEM, "no memory for a carrier");
    transport->own = local;
    local_listen_not_yet(local);
    transport->limits = (struct gaia_transport_limits){
        .reads_per_queue = GAIA_LINK_DEPTH_MAX, .queues = GAIA_LINK_QUEUES_MAX, .device = "local"};
    error = transport->config.listen ? local_listen(transport) : 0;
    if (error)
        local_close(transport);
    return error;
}

static int local_break(struct link_queue *queue)
{
    struct local_queue *local = queue->own;

    return local && !shutdown(local->fd, SHUT_RDWR) ? 0 : -EIO;
}

const struct carrier carrier_local = {
    .open = local_open,
    .close = local_close,
    .connect = local_connect,
    .send = local_send,
    .flush = local_flush,
    .post = local_post,
    .remember = local_remember,
    .forget = local_forget,
    .expose = local_expose,
    .conceal = local_conceal,
    .cut = local_cut,
    .heard = local_heard,
    .glance = local_glance,
    .tick = local_tick,
    .arm = local_arm,
    .break_queue = local_break,
};
