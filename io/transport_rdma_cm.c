/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: connections. Each queue is a connection of librdmacm's, whose private data are the HELLO
 * and its answer, so that a peer that may not connect gets no queue pair. */
#include "io/transport_rdma.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsuid.h"

#define RETRIES                                                                                 \
    7u /* of 7: of what the peer's NIC does not acknowledge; without end while it has no buffer \
        */
#define ACK_TIMEOUT 17u /* 4.096 us * 2^17: half a second each */
/* Reasons for which a connection is rejected, of InfiniBand's connection manager. */
#define REJECTED_NO_SERVICE 8
#define REJECTED_BY_PROGRAM 28 /* or by its kernel for it, which has nothing but zeros to say */

/* ---- addresses ---- */

int rdma_parse(const char *text, struct sockaddr_storage *address_out)
{
    const char *colon = strrchr(text, ':');
    struct sockaddr_in *v4 = (struct sockaddr_in *)address_out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address_out;
    char host[128] = "", *end;
    unsigned long port;
    size_t length;

    memset(address_out, 0, sizeof *address_out);
    if (!colon || colon[1] < '0' || colon[1] > '9')
        return transport_say(-EINVAL, "%s: not HOST:PORT", text);
    port = strtoul(colon + 1, &end, 10);
    length = (size_t)(colon - text);
    if (length > 1 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (*end || port > 65535 || length >= sizeof host)
        return transport_say(-EINVAL, "%s: not HOST:PORT", text);
    memcpy(host, text, length);
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
    } else {
        return transport_say(-EINVAL, "%s: not an address in numbers", host);
    }
    return 0;
}

static void name_of(const struct sockaddr *address, char *name_out, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

    if (address->sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(name_out, size, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(name_out, size, "%s:%u", host, ntohs(v4->sin_port));
    }
}

/* ---- begin ---- */

int rdma_connection_error(const struct ibv_context *verbs, int error)
{
    if (verbs->device->transport_type != IBV_TRANSPORT_IWARP)
        return gaia_own_error(error);
    switch (error) {
    case -ECONNREFUSED:
    case -ECONNRESET:
        return -ECONNREFUSED;
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -ETIMEDOUT:
        return error;
    case -EBUSY: /* qedr's word for it */
        return -ETIMEDOUT;
    default:
        return gaia_own_error(error);
    }
}

static bool no_devices(void)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);

    if (devices)
        ibv_free_device_list(devices);
    return !count;
}

int rdma_bind(struct gaia_transport *transport, struct rdma *rdma)
{
    int error = rdma_parse(transport->address, &rdma->address);

    if (error)
        return error;
    if (no_devices())
        return transport_say(-ENODEV, "no RDMA device in this machine");
    fsuid_spare_threads();
    rdma->channel = rdma_create_event_channel();
    if (!rdma->channel)
        return transport_say(-errno, "no RDMA connections (is the module rdma_ucm loaded?): %s",
                             strerror(errno));
    if (fcntl(rdma->channel->fd, F_SETFL, O_NONBLOCK))
        return transport_say(-errno, "fcntl: %s", strerror(errno));
    if (rdma_create_id(rdma->channel, &rdma->id, NULL, RDMA_PS_TCP)) {
        rdma->id = NULL;
        return transport_say(-errno, "rdma_create_id: %s", strerror(errno));
    }
    if (rdma_bind_addr(rdma->id, (struct sockaddr *)&rdma->address)) {
        if (errno == EADDRINUSE || errno == EACCES)
            return transport_say(-errno, "%s: %s", transport->address, strerror(errno));
        return transport_say(-EADDRNOTAVAIL, "no RDMA device has the address %s: %s", transport->address,
                             strerror(errno));
    }
    if (!rdma->id->verbs)
        return transport_say(-EADDRNOTAVAIL, "%s is not the address of one RDMA device", transport->address);
    rdma->verbs = rdma->id->verbs;
    return 0;
}

static int new_queue(struct link_queue *queue)
{
    struct rdma_queue *own = calloc(1, sizeof *own);
    int error;

    if (!own)
        return transport_say(-ENOMEM, "no memory for a queue");
    error = queue_enter(queue->link->transport, queue);
    if (error) {
        free(own);
        return error;
    }
    queue->own = own;
    return 0;
}

/* Of what Linux says of a way to a peer at once. */
static int no_way(int error)
{
    if (error == ENODEV)
        return -EHOSTUNREACH;
    return error == EHOSTUNREACH || error == ENETUNREACH || error == ETIMEDOUT ? -error
                                                                               : gaia_own_error(-error);
}

int rdma_begin(struct gaia_link *link, unsigned number, const char *peer)
{
    struct rdma *rdma = link->transport->own;
    struct link_queue *queue = &link->queues[number];
    struct sockaddr_storage to, from = rdma->address;
    int error = rdma_parse(peer, &to);

    if (!error && rdma->dead)
        error = transport_say(-ENODEV, "the device %s has gone", link->transport->limits.device);
    if (!error && to.ss_family != from.ss_family)
        error =
            transport_say(-EINVAL, "%s: an address of another kind than %s", peer, link->transport->address);
    if (!error)
        error = new_queue(queue);
    if (error)
        return error;
    struct rdma_queue *own = queue->own;
    if (rdma_create_id(rdma->channel, &own->id, (void *)(uintptr_t)queue->id, RDMA_PS_TCP)) {
        own->id = NULL;
        return transport_say(gaia_own_error(-errno), "rdma_create_id: %s", strerror(errno));
    }
    if (from.ss_family == AF_INET)
        ((struct sockaddr_in *)&from)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&from)->sin6_port = 0;
    if (rdma_resolve_addr(own->id, (struct sockaddr *)&from, (struct sockaddr *)&to,
                          (int)link->transport->config.timeout_ms))
        return transport_say(no_way(errno), "%s: %s", peer, strerror(errno));
    return 0;
}

/* Each end sets its own: else that of what the accepting end sends (a home's PLACE, say) is as the fabric's
 * management has it, which may be seconds. Before the route is resolved, or the connection accepted. A kernel
 * that can't do it has its own time. */
static void set_ack_timeout(struct rdma_cm_id *id)
{
    uint8_t timeout = ACK_TIMEOUT;

    rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

static int resolved(struct link_queue *queue)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;
    int error;

    if (own->id->verbs != rdma->verbs)
        return transport_say(-EXDEV, "%s is not reached through %s", queue->link->peer,
                             queue->link->transport->limits.device);
    error = rdma_queue_make(queue, own->id);
    if (error)
        return gaia_own_error(error);
    set_ack_timeout(own->id);
    if (rdma_resolve_route(own->id, (int)queue->link->transport->config.timeout_ms))
        return transport_say(gaia_own_error(-errno), "rdma_resolve_route: %s", strerror(errno));
    return 0;
}

static int say_hello(struct link_queue *queue)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;
    struct gaia_wire_hello hello;
    size_t length = sizeof hello;

    link_hello(queue->link, queue->number, &hello);
    transport_test_hello(&hello, &length);
    struct rdma_conn_param param = {.private_data = &hello,
                                    .private_data_len = (uint8_t)length,
                                    .initiator_depth = (uint8_t)rdma->reads_out,
                                    .retry_count = RETRIES,
                                    .rnr_retry_count = RETRIES};
    if (rdma_connect(own->id, &param))
        return transport_say(rdma_connection_error(rdma->verbs, -errno), "%s: rdma_connect: %s",
                             queue->link->peer, strerror(errno));
    own->asking = rdma->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
    return 0;
}

/* ---- events ---- */

/* An event, copied: it must be acknowledged before its id can be destroyed; then one that parts may have gone
 * (rdma_part()), so the id is only for who knows that it is there. */
struct cm_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    uint32_t queue; /* whose it is */
    const struct ibv_context *verbs;
    unsigned reads; /* that the peer wants to have under way */
    unsigned char bytes[UINT8_MAX];
    size_t length;
};

static void refuse(struct rdma_cm_id *id, const void *bytes, size_t length)
{
    rdma_reject(id, bytes, (uint8_t)length);
    rdma_destroy_id(id);
}

static int accept_queue(struct link_queue *queue, struct cm_event *event,
                        const struct gaia_wire_hello *answer)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;
    struct rdma_conn_param param = {
        .private_data = answer,
        .private_data_len = sizeof *answer,
        .responder_resources = (uint8_t)(event->reads < rdma->reads_in ? event->reads : rdma->reads_in),
        .rnr_retry_count = RETRIES,
    };
    int error;

    own->id = event->id;
    own->id->context = (void *)(uintptr_t)queue->id;
    error = rdma_queue_make(queue, event->id);
    set_ack_timeout(event->id);
    if (!error && rdma_accept(event->id, &param))
        error = transport_say(-errno, "rdma_accept: %s", strerror(errno));
    return error;
}

static void asked(struct gaia_transport *transport, struct cm_event *event)
{
    struct rdma *rdma = transport->own;
    struct link_queue *queue = NULL;
    struct gaia_wire_hello answer;
    char peer[64];
    int error;

    name_of(rdma_get_peer_addr(event->id), peer, sizeof peer);
    if (event->verbs != rdma->verbs || rdma->dead) {
        refuse(event->id, NULL, 0);
        return;
    }
    error = link_greeted(transport, peer, event->bytes, event->length, &queue, &answer);
    if (!error) {
        error = new_queue(queue);
        if (error) {
            link_end(queue->link, error, "%s", gaia_transport_why());
            answer = link_refusal(error);
        }
    }
    if (error) {
        refuse(event->id, &answer, sizeof answer);
        return;
    }
    error = accept_queue(queue, event, &answer);
    if (error) { /* it is told why, and does not take this side for one that is down */
        answer = link_refusal(gaia_own_error(error));
        rdma_reject(event->id, &answer, sizeof answer);
        link_end(queue->link, error, "%s", gaia_transport_why());
    }
}

/* The machine there lives, whatever the reason. A program that lives must not be taken for one that does not
 * run: its kernel may still have a connection of the same number from before (stale), or no room for more. */
int rdma_rejection(int reason, const void *bytes, size_t length)
{
    bool by_program = reason == REJECTED_BY_PROGRAM || reason < 0; /* iWARP: an errno, by whomever */
    uint32_t said = 0;

    if (length >= sizeof(struct gaia_wire_hello))
        memcpy(&said, bytes, sizeof said);
    if (by_program && said)
        return 0;
    return reason == REJECTED_NO_SERVICE || reason < 0 ? -ECONNREFUSED : -EAGAIN;
}

static void rejected(struct link_queue *queue, const struct cm_event *event)
{
    struct gaia_link *link = queue->link;
    int error = rdma_rejection(event->status, event->bytes, event->length);

    if (!error)
        link_answered(queue, event->bytes, event->length);
    link_end(link, error ? error : -EPROTO, "%s: %s (reason %d)", link->peer,
             error == -ECONNREFUSED ? "nobody listens there" : "no connection can be had there now",
             event->status);
}

static void established(struct link_queue *queue, const struct cm_event *event)
{
    if (!queue->link->connected_here || !link_answered(queue, event->bytes, event->length))
        link_queue_up(queue);
    rdma_end_broken(queue->link);
}

static void take_cm_event(struct gaia_transport *transport, struct cm_event *event)
{
    const struct rdma *rdma = transport->own;
    struct link_queue *queue;
    struct gaia_link *link;
    uint32_t id = event->queue;
    int error = 0;

    if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        asked(transport, event);
        return;
    }
    /* Of any id, that which listens, too. */
    if (event->type == RDMA_CM_EVENT_DEVICE_REMOVAL && event->verbs == rdma->verbs) {
        rdma_die(transport);
        return;
    }
    queue = queue_find(transport, id);
    if (!queue)
        return;
    link = queue->link;
    ((struct rdma_queue *)queue->own)->asking = false;
    switch (event->type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        error = resolved(queue);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        error = say_hello(queue);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        established(queue, event);
        break;
    case RDMA_CM_EVENT_REJECTED:
        rejected(queue, event);
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
        error = transport_say(-EHOSTUNREACH, "%s: no way there (%d)", link->peer, event->status);
        break;
    case RDMA_CM_EVENT_UNREACHABLE:
        error = transport_say(-ETIMEDOUT, "%s does not answer (%d)", link->peer, event->status);
        break;
    case RDMA_CM_EVENT_CONNECT_ERROR:
        error = transport_say(rdma_connection_error(rdma->verbs, event->status),
                              "%s: the connection failed (%d)", link->peer, event->status);
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        rdma_drain_cq(transport); /* what it has said last may be there, and a BYE, behind what others did */
        error = transport_say(-EIO, "%s has gone away", link->peer);
        break;
    default:
        break;
    }
    if (error && queue_find(transport, id) == queue)
        link_end(link, error, "%s", gaia_transport_why());
}

void rdma_take_cm_events(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct rdma_cm_event *raw;

    for (int n = 0; n < 64 && !rdma_get_cm_event(rdma->channel, &raw); n++) {
        struct cm_event event = {.type = raw->event,
                                 .status = raw->status,
                                 .id = raw->id,
                                 .queue = (uint32_t)(uintptr_t)raw->id->context,
                                 .verbs = raw->id->verbs};

        if (raw->param.conn.private_data) {
            event.length = raw->param.conn.private_data_len;
            memcpy(event.bytes, raw->param.conn.private_data, event.length);
        }
        event.reads = raw->param.conn.responder_resources;
        rdma_ack_cm_event(raw);
        take_cm_event(transport, &event);
    }
}
