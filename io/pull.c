/* SPDX-License-Identifier: Apache-2.0 */
#include "io/pull.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lock.h"
#include "io/histogram.h"
#include "io/transport_internal.h"

#define BATCH_MAX 64u /* reads of one doorbell */
#define OUTSTANDING_MIN 4u

struct gaia_pull {
    struct gaia_transport *transport; /* constant, as are the next three */
    struct gaia_link *link;
    unsigned first_queue;           /* of the link */
    struct gaia_link_options shape; /* of the queues from there on */
    _Atomic bool *starved;          /* somebody has to ring again: see pull.h */

    pthread_mutex_t lock;                 /* guards what follows */
    struct gaia_pull_read *first, **last; /* added, not posted: oldest first */
    unsigned waiting;
    unsigned under_way[GAIA_LINK_QUEUES_MAX];
    bool full[GAIA_LINK_QUEUES_MAX]; /* it took less than it has places for: until one of its reads ends */
    unsigned next_queue;
    unsigned outstanding, outstanding_max;
    int ended;    /* the link has, with this: nothing is posted any more */
    bool ringing; /* somebody posts, and goes on while there is something to post */
    uint64_t failed, bytes, doorbells;
    struct histogram latency;
};

/* ---- Little's law ---- */

static unsigned clamp(uint64_t value, unsigned least, unsigned most)
{
    return value < least ? least : value > most ? most : (unsigned)value;
}

struct gaia_link_options gaia_pull_plan(const struct gaia_transport_limits *limits,
                                        const struct gaia_pull_options *options, uint32_t page)
{
    uint64_t rate = options->bytes_per_second  ? options->bytes_per_second
                    : limits->bytes_per_second ? limits->bytes_per_second
                                               : PULL_BYTES_PER_SECOND;
    uint64_t latency_ns = options->latency_ns ? options->latency_ns : PULL_LATENCY_NS;
    double pages = (double)rate * 1e-9 * (double)latency_ns / page;
    unsigned most = options->most ? options->most : GAIA_LINK_QUEUES_MAX * GAIA_LINK_DEPTH_MAX;
    unsigned outstanding = pages >= most ? most : clamp((uint64_t)pages + 1, OUTSTANDING_MIN, most);
    unsigned queues_max = clamp(limits->queues, 1, GAIA_LINK_QUEUES_MAX);
    unsigned each = clamp(limits->reads_per_queue, 1, GAIA_LINK_DEPTH_MAX);
    struct gaia_link_options shape;

    shape.queues = clamp(options->queues ? options->queues : (outstanding + each - 1) / each, 1, queues_max);
    shape.depth = clamp(options->depth ? options->depth : (outstanding + shape.queues - 1) / shape.queues, 1,
                        GAIA_LINK_DEPTH_MAX);
    return shape;
}

/* ---- begin and end ---- */

int gaia_pull_open(struct gaia_transport *transport, struct gaia_link *link, unsigned first_queue,
                   unsigned depth, _Atomic bool *starved, struct gaia_pull **pull_out)
{
    struct gaia_link_options shape = gaia_link_options(link);
    struct gaia_pull *pull;

    if (first_queue >= shape.queues || !depth || depth > shape.depth)
        return transport_say(-EINVAL, "a link of %u queues of %u has none of %u to pull with", shape.queues,
                             shape.depth, depth);
    pull = calloc(1, sizeof *pull);
    if (!pull)
        return transport_say(-ENOMEM, "no memory to pull with");
    pull->transport = transport;
    pull->link = link;
    pull->first_queue = first_queue;
    pull->shape = (struct gaia_link_options){shape.queues - first_queue, depth};
    pull->starved = starved;
    pull->last = &pull->first;
    lock_init(&pull->lock, LOCK_PULL);
    *pull_out = pull;
    return 0;
}

void gaia_pull_close(struct gaia_pull *pull)
{
    if (!pull)
        return;
    assert(!pull->outstanding && !pull->waiting && !pull->ringing);
    pthread_mutex_destroy(&pull->lock);
    free(pull);
}

/* ---- reads ---- */

static void push(struct gaia_pull *pull, struct gaia_pull_read *read)
{
    read->next = NULL;
    *pull->last = read;
    pull->last = &read->next;
    pull->waiting++;
}

static struct gaia_pull_read *pop(struct gaia_pull *pull)
{
    struct gaia_pull_read *read = pull->first;

    pull->first = read->next;
    if (!pull->first)
        pull->last = &pull->first;
    pull->waiting--;
    return read;
}

static void push_back(struct gaia_pull *pull, struct gaia_pull_read *read)
{
    read->next = pull->first;
    pull->first = read;
    if (!read->next)
        pull->last = &read->next;
    pull->waiting++;
}

/* Whether it pays to ring for what waits: a quarter of a queue, so that a stream of single completions is not
 * answered by as many doorbells; always when nothing is under way that would ring later. */
static bool worth_a_ring(const struct gaia_pull *pull)
{
    unsigned places = pull->shape.queues * pull->shape.depth - pull->outstanding;
    unsigned quarter = (pull->shape.depth + 3) / 4;

    return pull->waiting && !pull->ringing &&
           (pull->ended || places >= quarter || places >= pull->waiting || pull->outstanding < quarter);
}

static void transfer_done(struct gaia_transfer *transfer, int error)
{
    struct gaia_pull_read *read =
        (struct gaia_pull_read *)((char *)transfer - offsetof(struct gaia_pull_read, transfer));
    struct gaia_pull *pull = read->pull;
    uint64_t took_ns = clock_now_ns() - read->since_ns;

    pthread_mutex_lock(&pull->lock);
    pull->under_way[read->queue]--;
    pull->full[read->queue] = false;
    pull->outstanding--;
    if (error) {
        pull->failed++;
        if (error != -EFAULT) /* no other fails but with its link */
            pull->ended = error;
    } else {
        pull->bytes += read->length;
    }
    bool ring = worth_a_ring(pull);
    pthread_mutex_unlock(&pull->lock);
    if (!error)
        histogram_add(&pull->latency, took_ns);
    if (ring)
        gaia_pull_ring(pull);
    read->tried = true;
    read->done(read, error);
}

void gaia_pull_add(struct gaia_pull *pull, struct gaia_pull_read *read)
{
    read->pull = pull;
    read->since_ns = clock_now_ns();
    read->tried = false;
    read->transfer = (struct gaia_transfer){
        .memory = read->memory,
        .memory_offset = read->memory_offset,
        .offset = read->offset,
        .region = read->region,
        .length = read->length,
        .cuttable = read->cuttable,
        .done = transfer_done,
    };
    pthread_mutex_lock(&pull->lock);
    push(pull, read);
    pthread_mutex_unlock(&pull->lock);
}

/* The queue with the most places; of equals the one after that of last time. False: none has any. */
static bool choose_queue(struct gaia_pull *pull, unsigned *queue_out, unsigned *places_out)
{
    unsigned best = 0, places;

    for (unsigned i = 0; i < pull->shape.queues; i++) {
        unsigned queue = (pull->next_queue + i) % pull->shape.queues;

        places = pull->full[queue] ? 0 : pull->shape.depth - pull->under_way[queue];
        if (places > best) {
            best = places;
            *queue_out = queue;
        }
    }
    *places_out = best;
    pull->next_queue = best ? *queue_out + 1 : 0;
    return best > 0;
}

/* A batch for one queue; it counts as under way. */
static unsigned take_batch(struct gaia_pull *pull, unsigned *queue_out,
                           struct gaia_transfer *batch[BATCH_MAX])
{
    unsigned places, count = 0;

    if (!pull->waiting || pull->ended || !choose_queue(pull, queue_out, &places))
        return 0;
    for (; pull->waiting && count < places && count < BATCH_MAX; count++) {
        struct gaia_pull_read *read = pop(pull);

        read->queue = *queue_out;
        batch[count] = &read->transfer;
    }
    pull->under_way[*queue_out] += count;
    pull->outstanding += count;
    if (pull->outstanding > pull->outstanding_max)
        pull->outstanding_max = pull->outstanding;
    pull->doorbells++;
    return count;
}

/* What the queue did not take waits again; the first of it, when it is bad, is returned to be told. */
static struct gaia_pull_read *take_back(struct gaia_pull *pull, unsigned queue, struct gaia_transfer **rest,
                                        unsigned count, int error)
{
    struct gaia_pull_read *bad = NULL;

    pull->under_way[queue] -= count;
    pull->outstanding -= count;
    bool wait = error >= 0 || error == -EAGAIN;
    pull->full[queue] = wait && pull->under_way[queue];
    for (unsigned i = count; i--;) {
        struct gaia_pull_read *read =
            (struct gaia_pull_read *)((char *)rest[i] - offsetof(struct gaia_pull_read, transfer));

        if (!i && !wait)
            bad = read;
        else
            push_back(pull, read);
    }
    return bad;
}

/* The lock is held, and let go meanwhile. */
static void tell(struct gaia_pull *pull, struct gaia_pull_read *read, int error)
{
    pull->failed++;
    pthread_mutex_unlock(&pull->lock);
    read->done(read, error);
    pthread_mutex_lock(&pull->lock);
}

/* The carrier has no room, and nothing of the pull's is on the queue: no end of a read would ring again. */
static void starve(struct gaia_pull *pull)
{
    *pull->starved = true;
    gaia_transport_wake(pull->transport);
}

void gaia_pull_ring(struct gaia_pull *pull)
{
    struct gaia_transfer *batch[BATCH_MAX];
    unsigned queue = 0, count;

    pthread_mutex_lock(&pull->lock);
    if (pull->ringing) { /* who rings sees what was added before this */
        pthread_mutex_unlock(&pull->lock);
        return;
    }
    pull->ringing = true;
    *pull->starved = false;
    while (!*pull->starved && (count = take_batch(pull, &queue, batch))) {
        struct gaia_pull_read *bad = NULL;

        pthread_mutex_unlock(&pull->lock);
        int posted = gaia_link_post(pull->link, pull->first_queue + queue, batch, count);
        pthread_mutex_lock(&pull->lock);
        unsigned taken = posted > 0 ? (unsigned)posted : 0;
        if (taken < count)
            bad = take_back(pull, queue, batch + taken, count - taken, posted);
        if (bad && posted == -ESHUTDOWN) { /* it has not been tried, nor will be what comes after it */
            pull->ended = -EIO;
            tell(pull, bad, -EIO);
        } else if (bad) {
            bad->tried = true;
            tell(pull, bad, posted);
        } else if (posted == -EAGAIN && !pull->full[queue]) {
            starve(pull);
        }
    }
    while (pull->ended && pull->waiting)
        tell(pull, pop(pull), pull->ended);
    pull->ringing = false;
    pthread_mutex_unlock(&pull->lock);
}

void gaia_pull_end(struct gaia_pull *pull, int error)
{
    pthread_mutex_lock(&pull->lock);
    pull->ended = pull->ended ? pull->ended : error;
    pthread_mutex_unlock(&pull->lock);
    gaia_pull_ring(pull);
}

void gaia_pull_stat(struct gaia_pull *pull, struct gaia_pull_stat *stat_out)
{
    struct gaia_transport_limits limits;

    gaia_transport_limits(pull->transport, &limits);
    pthread_mutex_lock(&pull->lock);
    *stat_out = (struct gaia_pull_stat){
        .path = pull->transport->config.carrier == GAIA_CARRIER_RDMA ? "rdma" : "local",
        .queues = pull->shape.queues,
        .depth = pull->shape.depth,
        .outstanding = pull->outstanding,
        .outstanding_max = pull->outstanding_max,
        .waiting = pull->waiting,
        .reads = pull->latency.count,
        .failed = pull->failed,
        .bytes = pull->bytes,
        .doorbells = pull->doorbells,
        .latency_p50_ns = histogram_at(&pull->latency, 500),
        .latency_p90_ns = histogram_at(&pull->latency, 900),
        .latency_p99_ns = histogram_at(&pull->latency, 990),
        .latency_p999_ns = histogram_at(&pull->latency, 999),
        .latency_max_ns = pull->latency.most,
    };
    pthread_mutex_unlock(&pull->lock);
    memcpy(stat_out->device, limits.device, sizeof stat_out->device);
}
