/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of a link. */
#include "io/transport_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MS 1000000u /* in nanoseconds */
#define REGIONS_FIRST 16u

/* ---- what is to be delivered ---- */

void link_make_ready(struct gaia_link *link)
{
    bool ready = link->done || !STAILQ_EMPTY(&link->events) || link->end_unsaid;

    if (ready && !link->ready)
        TAILQ_INSERT_TAIL(&link->transport->ready, link, waiting);
    if (!ready && link->ready)
        TAILQ_REMOVE(&link->transport->ready, link, waiting);
    link->ready = ready;
}

static void say_short(struct gaia_link *link, enum gaia_wire_op op, uint32_t value);

/* bytes: NULL, or length of them. The link ends when there is no memory. */
static void add_event(struct gaia_link *link, int kind, uint32_t region, uint64_t length, const void *bytes)
{
    struct link_event *event = malloc(sizeof *event + (bytes ? length : 0));

    if (!event) {
        say_short(link, GAIA_WIRE_BYE, ENOMEM);
        link_end(link, -ENOMEM, "no memory for what %s says", link->peer);
        return;
    }
    event->kind = kind;
    event->region = region;
    event->length = length;
    if (bytes)
        memcpy(event->bytes, bytes, length);
    STAILQ_INSERT_TAIL(&link->events, event, entry);
    link_make_ready(link);
}

/* ---- begin and end ---- */

struct gaia_link *link_new(struct gaia_transport *transport, bool connected_here)
{
    struct gaia_link *link;

    if (transport->link_count == GAIA_TRANSPORT_LINKS_MAX) {
        transport_say(-ENOBUFS, "more than %u links", GAIA_TRANSPORT_LINKS_MAX);
        return NULL;
    }
    link = calloc(1, sizeof *link);
    if (!link) {
        transport_say(-ENOMEM, "no memory for a link");
        return NULL;
    }
    link->transport = transport;
    link->connected_here = connected_here;
    link->grew_ns = link->heard_ns = transport_time(transport);
    link->said_ns = transport_clock_ns();
    link->timeout_ms = transport->config.timeout_ms;
    link->interval_ms = link->timeout_ms / 4;
    link->credits = GAIA_LINK_CREDITS;
    link->done_last = &link->done;
    STAILQ_INIT(&link->events);
    for (unsigned i = 0; i < GAIA_LINK_QUEUES_MAX; i++) {
        link->queues[i] = (struct link_queue){.link = link, .number = i};
        link->queues[i].last = &link->queues[i].first;
    }
    LIST_INSERT_HEAD(&transport->links, link, entry);
    transport->link_count++;
    return link;
}

static void forget_events(struct gaia_link *link)
{
    struct link_event *event;

    link->end_unsaid = false;
    while ((event = STAILQ_FIRST(&link->events))) {
        STAILQ_REMOVE_HEAD(&link->events, entry);
        free(event);
    }
    link_make_ready(link);
}

void link_free(struct gaia_link *link)
{
    assert(link->state == LINK_ENDED && !link->done);
    forget_events(link);
    LIST_REMOVE(link, entry);
    link->transport->link_count--;
    free(link->regions);
    free(link);
}

/* A transfer has ended: to be told. */
static void transfer_end(struct gaia_link *link, struct gaia_transfer *transfer, int error)
{
    transfer->error = error;
    transfer->next = NULL;
    *link->done_last = transfer;
    link->done_last = &transfer->next;
    transfer->memory->busy--;
}

static struct gaia_transfer *queue_pop(struct link_queue *queue)
{
    struct gaia_transfer *transfer = queue->first;

    queue->first = transfer->next;
    if (!queue->first)
        queue->last = &queue->first;
    queue->busy--;
    return transfer;
}

static void end_with(struct gaia_link *link, int error, int transfer_error)
{
    bool was_open = link->state == LINK_OPEN;

    link->state = LINK_ENDED;
    link->error = error;
    link->transport->carrier->cut(link); /* first: frames may be given to others once transfers have ended */
    for (unsigned i = 0; i < GAIA_LINK_QUEUES_MAX; i++)
        while (link->queues[i].first)
            transfer_end(link, queue_pop(&link->queues[i]), transfer_error);
    link->end_unsaid = link->owned && was_open;
    if (link->held)
        link->transport->woken = true; /* as above */
    link_make_ready(link);
}

void link_end_so(struct gaia_link *link, int error)
{
    if (link->state == LINK_ENDED)
        return;
    snprintf(link->why, sizeof link->why, "%s", gaia_transport_why());
    end_with(link, error, -EIO);
}

static bool being_delivered(const struct gaia_link *link)
{
    const struct gaia_transport *transport = link->transport;

    return transport->delivering == link && !pthread_equal(transport->poller, pthread_self());
}

static void close_with(struct gaia_link *link, int error)
{
    struct gaia_transport *transport = link->transport;
    struct gaia_wire_short bye = {.value = (uint32_t)-error};
    struct gaia_transfer *done, *next;

    pthread_mutex_lock(&transport->lock);
    transport->waiters++;
    while (being_delivered(link))
        pthread_cond_wait(&transport->changed, &transport->lock);
    transport->waiters--;
    if (link->state == LINK_OPEN && !link_say(link, GAIA_WIRE_BYE, &bye.value, sizeof bye - sizeof bye.head))
        transport->carrier->flush(link);
    if (link->state != LINK_ENDED)
        end_with(link, -ECANCELED, -ECANCELED);
    done = link->done;
    link->done = NULL;
    forget_events(link);
    link->held = true; /* the callbacks may try to post */
    pthread_mutex_unlock(&transport->lock);
    for (; done; done = next) {
        next = done->next;
        done->done(done, done->error);
    }
    pthread_mutex_lock(&transport->lock);
    link_free(link);
    pthread_mutex_unlock(&transport->lock);
}

void gaia_link_close(struct gaia_link *link)
{
    if (link)
        close_with(link, 0);
}

void gaia_link_refuse(struct gaia_link *link, int error)
{
    if (link)
        close_with(link, error);
}

/* ---- hello ---- */

static struct gaia_wire_head head_of(struct gaia_link *link, enum gaia_wire_op op, size_t length)
{
    struct gaia_wire_head head = {(uint32_t)length, GAIA_WIRE_VERSION, (uint8_t)op, 0};

    if (link) {
        head.credits = (uint8_t)link->owed;
        link->owed = 0;
    }
    return head;
}

void link_hello(const struct gaia_link *link, unsigned queue, struct gaia_wire_hello *hello_out)
{
    *hello_out = (struct gaia_wire_hello){
        .head = head_of(NULL, GAIA_WIRE_HELLO, sizeof *hello_out),
        .queue = queue,
        .queues = link->options.queues,
        .depth = link->options.depth,
        .timeout_ms = link->transport->config.timeout_ms,
    };
    memcpy(hello_out->token, link->token, sizeof hello_out->token);
}

/* 0, or a negative errno and a sentence. */
static int check_hello(const char *peer, const void *bytes, size_t length, struct gaia_wire_hello *hello_out)
{
    const struct gaia_wire_head *head = bytes;

    if (length < sizeof *head || head->length > length || head->length < sizeof *head)
        return transport_say(-EPROTO, "%s: %zu bytes are no HELLO", peer, length);
    if (head->version != GAIA_WIRE_VERSION)
        return transport_say(-EPROTONOSUPPORT, "%s speaks version %u, this side %u", peer, head->version,
                             GAIA_WIRE_VERSION);
    if (head->length != sizeof *hello_out || (head->op != GAIA_WIRE_HELLO && head->op != GAIA_WIRE_REFUSED))
        return transport_say(-EPROTO, "%s: a message of %u bytes and operation %u instead of HELLO", peer,
                             head->length, head->op);
    memcpy(hello_out, bytes, sizeof *hello_out);
    if (head->op == GAIA_WIRE_REFUSED)
        return 0;
    if (!hello_out->queues || hello_out->queues > GAIA_LINK_QUEUES_MAX ||
        hello_out->queue >= hello_out->queues || !hello_out->depth ||
        hello_out->depth > GAIA_LINK_DEPTH_MAX || hello_out->timeout_ms < 50 ||
        hello_out->timeout_ms > 600000 || hello_out->error)
        return transport_say(-EPROTO, "%s: HELLO with queue %u of %u, depth %u, timeout %u ms", peer,
                             hello_out->queue, hello_out->queues, hello_out->depth, hello_out->timeout_ms);
    return 0;
}

static void take_timeout(struct gaia_link *link, uint32_t timeout_ms)
{
    unsigned own_ms = link->transport->config.timeout_ms;

    link->timeout_ms = timeout_ms < own_ms ? timeout_ms : own_ms;
    link->interval_ms = link->timeout_ms / 4;
    link->transport->tick_ns = 0; /* it may want to be looked at sooner */
}

/* The first queue of a new session. */
static int begin_session(struct gaia_transport *transport, const char *peer,
                         const struct gaia_wire_hello *hello, struct gaia_link **link_out)
{
    struct gaia_link *link = link_new(transport, false);

    if (!link)
        return transport->link_count == GAIA_TRANSPORT_LINKS_MAX ? -ENOBUFS : -ENOMEM;
    if (getrandom(link->token, sizeof link->token, 0) != sizeof link->token) {
        link->state = LINK_ENDED;
        link_free(link);
        return transport_say(-EIO, "getrandom: %s", strerror(errno));
    }
    snprintf(link->peer, sizeof link->peer, "%s", peer);
    link->options = (struct gaia_link_options){.queues = hello->queues, .depth = hello->depth};
    take_timeout(link, hello->timeout_ms);
    *link_out = link;
    return 0;
}

static struct gaia_link *find_session(struct gaia_transport *transport, const struct gaia_wire_hello *hello)
{
    struct gaia_link *link;

    LIST_FOREACH (link, &transport->links, entry)
        if (!link->connected_here && link->state == LINK_CONNECTING &&
            !memcmp(link->token, hello->token, sizeof link->token) && link->options.queues == hello->queues &&
            link->options.depth == hello->depth)
            return link;
    return NULL;
}

struct gaia_wire_hello link_refusal(int error)
{
    return (struct gaia_wire_hello){
        .head = head_of(NULL, GAIA_WIRE_REFUSED, sizeof(struct gaia_wire_hello)),
        .error = error,
    };
}

int link_greeted(struct gaia_transport *transport, const char *peer, const void *bytes, size_t length,
                 struct link_queue **queue_out, struct gaia_wire_hello *answer_out)
{
    struct gaia_wire_hello hello;
    struct gaia_link *link = NULL;
    int error = check_hello(peer, bytes, length, &hello);

    if (!error && hello.head.op != GAIA_WIRE_HELLO)
        error = transport_say(-EPROTO, "%s begins with a refusal", peer);
    if (!error && !hello.queue)
        error = begin_session(transport, peer, &hello, &link);
    if (!error && hello.queue) {
        link = find_session(transport, &hello);
        if (!link || link->queues[hello.queue].own)
            error = transport_say(-EPROTO, "%s: a queue of no session", peer);
    }
    if (error) {
        *answer_out = link_refusal(error);
        return error;
    }
    link_hello(link, hello.queue, answer_out);
    *queue_out = &link->queues[hello.queue];
    return 0;
}

int link_answered(struct link_queue *queue, const void *bytes, size_t length)
{
    struct gaia_link *link = queue->link;
    struct gaia_wire_hello hello;
    int error = check_hello(link->peer, bytes, length, &hello);

    if (!error && hello.head.op == GAIA_WIRE_REFUSED) {
        error = hello.error < 0 && hello.error > -4096 ? hello.error : -EPROTO;
        transport_say(error, "%s refuses: %s", link->peer, strerror(-error));
    } else if (!error && (hello.queue != queue->number || hello.queues != link->options.queues ||
                          hello.depth != link->options.depth)) {
        error = transport_say(-EPROTO, "%s answers with another HELLO", link->peer);
    }
    if (error) {
        link_end(link, error, "%s", gaia_transport_why());
        return error;
    }
    if (!queue->number)
        memcpy(link->token, hello.token, sizeof link->token);
    take_timeout(link, hello.timeout_ms);
    return 0;
}

void link_queue_up(struct link_queue *queue)
{
    struct gaia_link *link = queue->link;

    if (queue->up || link->state != LINK_CONNECTING)
        return;
    queue->up = true;
    link->grew_ns = link->heard_ns = transport_time(link->transport);
    if (++link->up < link->options.queues) {
        if (link->connected_here) {
            int error = link->transport->carrier->connect(link, link->up, link->peer);

            if (error)
                link_end(link, error, "%s", gaia_transport_why());
        }
        return;
    }
    link->state = LINK_OPEN;
    if (link->connected_here) {
        link->transport->woken = true; /* gaia_link_connect() waits for it */
        return;
    }
    link->owned = true;
    add_event(link, EVENT_ARRIVED, 0, 0, NULL);
}

/* ---- messages ---- */

int link_say(struct gaia_link *link, enum gaia_wire_op op, const void *body, size_t length)
{
    unsigned char bytes[GAIA_WIRE_MAX];
    bool costs = op != GAIA_WIRE_KEEPALIVE && op != GAIA_WIRE_BYE;
    unsigned owed = link->owed;

    if (link->state != LINK_OPEN)
        return transport_say(-EIO, "%s", link->state == LINK_ENDED ? link->why : "not connected yet");
    if (costs && !link->credits)
        return transport_say(-EAGAIN, "%s has not taken %u messages yet", link->peer, GAIA_LINK_CREDITS);
    assert(length <= sizeof bytes - sizeof(struct gaia_wire_head));
    struct gaia_wire_head head = head_of(link, op, sizeof head + length);
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, body, length);
    int error = link->transport->carrier->send(link, bytes, head.length);
    if (error == -EAGAIN)
        link->owed = owed;
    else if (error)
        link_end(link, -EIO, "%s: sending: %s", link->peer, strerror(-error));
    if (error)
        return error == -EAGAIN ? error : -EIO;
    link->said_ns = transport_clock_ns();
    link->credits -= costs;
    return 0;
}

static void say_short(struct gaia_link *link, enum gaia_wire_op op, uint32_t value)
{
    struct gaia_wire_short message = {.value = value};

    link_say(link, op, &message.value, sizeof message - sizeof message.head);
}

static void link_credited(struct gaia_link *link, unsigned credits)
{
    link->credits += credits;
    if (link->credits > GAIA_LINK_CREDITS)
        link_end(link, -EPROTO, "%s has taken more messages than there were", link->peer);
}

/* A place for region number; NULL: none, or it is taken. */
static struct link_region *region_slot(struct gaia_link *link, uint32_t number)
{
    if (number >= GAIA_LINK_REGIONS_MAX)
        return NULL;
    if (number >= link->region_count) {
        unsigned count = link->region_count ? link->region_count : REGIONS_FIRST;

        while (count <= number)
            count *= 2;
        struct link_region *regions = realloc(link->regions, count * sizeof *regions);
        if (!regions)
            return NULL;
        memset(regions + link->region_count, 0, (count - link->region_count) * sizeof *regions);
        link->regions = regions;
        link->region_count = count;
    }
    return link->regions[number].open ? NULL : &link->regions[number];
}

static const char *take_expose(struct gaia_link *link, const void *bytes)
{
    struct gaia_wire_expose message;
    struct link_region *region;

    memcpy(&message, bytes, sizeof message);
    if (!link->connected_here)
        return "exposes to who accepted it";
    if (!message.length || message.length > (uint64_t)1 << 40 || message.writable > 1 ||
        message.address + message.length < message.length)
        return "exposes a region of no sensible length";
    region = region_slot(link, message.region);
    if (!region)
        return "exposes a region twice, or too many";
    *region = (struct link_region){.open = true,
                                   .writable = message.writable,
                                   .address = message.address,
                                   .length = message.length,
                                   .key = message.key};
    add_event(link, EVENT_EXPOSED, message.region, message.length, NULL);
    return NULL;
}

static void take_bye(struct gaia_link *link, const void *bytes)
{
    struct gaia_wire_short bye;

    memcpy(&bye, bytes, sizeof bye);
    if (!bye.value)
        link_end(link, -ESHUTDOWN, "%s has closed the link", link->peer);
    else if (bye.value < 4096)
        link_end(link, -(int)bye.value, "%s refuses: %s", link->peer, strerror((int)bye.value));
    else
        link_end(link, -EPROTO, "%s: a BYE with error %u", link->peer, bye.value);
}

/* Why the bytes are no message that may come now, or NULL. */
static const char *check_message(const struct gaia_wire_head *head, size_t length)
{
    static const struct {
        uint32_t least, most;
    } sizes[] = {
        [GAIA_WIRE_USER] = {sizeof *head + 1, sizeof *head + GAIA_LINK_MESSAGE_MAX},
        [GAIA_WIRE_EXPOSE] = {sizeof(struct gaia_wire_expose), sizeof(struct gaia_wire_expose)},
        [GAIA_WIRE_KEEPALIVE] = {sizeof(struct gaia_wire_short), sizeof(struct gaia_wire_short)},
        [GAIA_WIRE_BYE] = {sizeof(struct gaia_wire_short), sizeof(struct gaia_wire_short)},
    };

    if (length < sizeof *head || head->length != length)
        return "a truncated message";
    if (head->version != GAIA_WIRE_VERSION)
        return "a message of another version";
    if (head->op >= sizeof sizes / sizeof *sizes || !sizes[head->op].least)
        return "a message of no known operation";
    if (length < sizes[head->op].least || length > sizes[head->op].most)
        return "a message of the wrong length for its operation";
    return NULL;
}

static const char *take_message(struct gaia_link *link, const struct gaia_wire_head *head, const void *bytes)
{
    switch (head->op) {
    case GAIA_WIRE_USER:
        add_event(link, EVENT_MESSAGE, 0, head->length - sizeof *head, (const char *)bytes + sizeof *head);
        return NULL;
    case GAIA_WIRE_EXPOSE:
        return take_expose(link, bytes);
    case GAIA_WIRE_BYE:
        take_bye(link, bytes);
        return NULL;
    default:
        return NULL;
    }
}

void link_received(struct gaia_link *link, const void *bytes, size_t length)
{
    struct gaia_wire_head head = {0};
    const char *wrong;

    memcpy(&head, bytes, length < sizeof head ? length : sizeof head);
    wrong = check_message(&head, length);
    if (!wrong && link->state == LINK_OPEN) {
        link->heard_ns = transport_time(link->transport);
        link->owed += head.op != GAIA_WIRE_KEEPALIVE && head.op != GAIA_WIRE_BYE;
        link_credited(link, head.credits);
    }
    if (!wrong && link->state == LINK_OPEN)
        wrong = take_message(link, &head, bytes);
    if (wrong)
        link_end(link, -EPROTO, "%s: %s (%zu bytes, version %u, operation %u)", link->peer, wrong, length,
                 head.version, head.op);
    if (link->state == LINK_OPEN && link->owed >= GAIA_LINK_CREDITS / 2)
        say_short(link, GAIA_WIRE_KEEPALIVE, 0);
}

/* ---- transfers ---- */

void queue_push(struct link_queue *queue, struct gaia_transfer *transfer)
{
    transfer->posted_ns = transport_time(queue->link->transport);
    transfer->error = 0;
    transfer->next = NULL;
    *queue->last = transfer;
    queue->last = &transfer->next;
    queue->busy++;
    transfer->memory->busy++;
}

void queue_completed(struct link_queue *queue, unsigned count, int error)
{
    struct gaia_link *link = queue->link;

    for (; count; count--) {
        struct gaia_transfer *transfer = queue_pop(queue);
        bool failed = error && count == 1;

        transfer_end(link, transfer, failed ? -EIO : transfer->error);
        if (failed) /* it is told later, and there until then */
            link_end(link, -EIO, "%s: a transfer of %u bytes failed: %s", link->peer, transfer->length,
                     strerror(-error));
    }
    link_make_ready(link);
}

/* ---- time ---- */

static bool late(uint64_t since_ns, uint64_t now_ns, unsigned timeout_ms)
{
    return now_ns > since_ns && now_ns - since_ns > (uint64_t)timeout_ms * MS;
}

void link_tick(struct gaia_link *link, uint64_t now_ns)
{
    unsigned timeout_ms = link->transport->config.timeout_ms;

    if (link->state == LINK_CONNECTING && link->transport->leaving)
        link_end(link, -ECANCELED, "%s: this side is about to end", link->peer);
    if (link->state == LINK_CONNECTING && late(link->grew_ns, now_ns, timeout_ms))
        link_end(link, -ETIMEDOUT, "%s did not go on connecting for %u ms", link->peer, timeout_ms);
    if (link->state != LINK_OPEN)
        return;
    for (unsigned i = 0; i < link->options.queues; i++) {
        struct gaia_transfer *oldest = link->queues[i].first;

        if (oldest && late(oldest->posted_ns, now_ns, timeout_ms)) {
            link_end(link, -EIO, "%s has not answered a transfer for %u ms", link->peer, timeout_ms);
            return;
        }
    }
    if (late(link->heard_ns, now_ns, timeout_ms))
        link_end(link, -EIO, "%s has said nothing for %u ms", link->peer, timeout_ms);
    else if (late(link->said_ns, link->transport->looked_ns, link->interval_ms))
        say_short(link, GAIA_WIRE_KEEPALIVE, 0);
}

/* For the public calls. */
struct link_region *link_region_new(struct gaia_link *link)
{
    return region_slot(link, link->next_region);
}
