/* SPDX-License-Identifier: Apache-2.0 */
/* What the batch reader (io/pull.h) moves, and how long one read takes: two processes, over either carrier.
 *
 * tool_pull CARRIER HERE THERE PAGE COUNT QUEUES DEPTH SPIN_US   one after another when QUEUES x DEPTH is 1
 * With a PAGE of 0: COUNT messages, DEPTH at a time, which the other sends back.
 * The first process starts the second, which serves 4 MiB of frames; every page that was read is looked at
 * afterwards. Prints one line of JSON. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/pull.h"
#include "tests/io/pull_fetch.h"

#define AREA ((size_t)4 << 20)
#define BATCH_MAX 4096u

static _Atomic bool starved; /* gaia_pull_open()'s */

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, gaia_transport_why());
    exit(1);
}

static double now_s(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static unsigned char *frames(void)
{
    int fd = memfd_create("frames", MFD_CLOEXEC);
    void *area = fd < 0 || ftruncate(fd, (off_t)AREA)
                     ? MAP_FAILED
                     : mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (area == MAP_FAILED)
        fail("frames");
    return area;
}

static uint64_t word_at(uint64_t offset)
{
    return offset * 0x9e3779b97f4a7c15u + 1;
}

/* ---- the one that serves ---- */

static unsigned char *served;
static bool over;

static int arrived(void *context, struct gaia_link *link, const char *peer)
{
    uint32_t region;

    (void)context;
    (void)peer;
    return gaia_link_expose(link, &(struct gaia_span){served, AREA, -1}, false, &region);
}

static unsigned answers;

/* The one that serves sends it back; the one that reads counts. */
static void message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    if (context && gaia_link_send(link, bytes, length))
        fail("an answer");
    answers++;
}

static void closed(void *context, struct gaia_link *link, int error)
{
    (void)context;
    (void)link;
    (void)error;
    over = true;
}

static int serve(struct gaia_transport_config *config, int ready)
{
    struct gaia_transport *transport;

    served = frames();
    for (size_t i = 0; i < AREA; i += 8)
        *(uint64_t *)(served + i) = word_at(i);
    config->listen = true;
    config->calls = (struct gaia_transport_calls){.arrived = arrived, .message = message, .closed = closed};
    config->context = &served;
    if (gaia_transport_open(config, &transport))
        fail("serve");
    if (write(ready, "x", 1) != 1)
        return 1;
    while (!over)
        gaia_transport_poll(transport, 1000);
    gaia_transport_close(transport);
    return 0;
}

/* ---- the one that reads ---- */

static bool known;
static uint32_t region;

static void exposed(void *context, struct gaia_link *link, uint32_t number, uint64_t length)
{
    (void)context;
    (void)link;
    (void)length;
    region = number;
    known = true;
}

static bool is_known(void *context)
{
    (void)context;
    return known;
}

static unsigned under_way, wanted;

static void done(struct gaia_pull_read *read, int error)
{
    (void)read;
    if (error)
        fail("a read");
    under_way--;
}

static bool below_wanted(void *context)
{
    (void)context;
    return under_way <= wanted;
}

static struct gaia_pull_read *next_read(struct gaia_pull_read *reads, unsigned i, struct gaia_memory *memory,
                                        uint32_t page)
{
    struct gaia_pull_read *read = &reads[i % BATCH_MAX];

    *read = (struct gaia_pull_read){.memory = memory,
                                    .memory_offset = (uint64_t)i * page % AREA,
                                    .offset = (uint64_t)i * page % AREA,
                                    .region = region,
                                    .length = page,
                                    .done = done};
    return read;
}

/* Faults come as fast as they are served: there are always a quarter more than the queues take. */
static void stream(struct gaia_transport *transport, struct gaia_pull *pull, struct gaia_memory *memory,
                   uint32_t page, unsigned count, unsigned places)
{
    static struct gaia_pull_read reads[BATCH_MAX];
    unsigned most = places + (places + 3) / 4;

    for (unsigned i = 0; i < count;) {
        for (; under_way < most && i < count; i++, under_way++)
            gaia_pull_add(pull, next_read(reads, i, memory, page));
        gaia_pull_ring(pull);
        wanted = places;
        gaia_transport_wait(transport, below_wanted, NULL, 60000);
    }
    wanted = 0;
    gaia_transport_wait(transport, below_wanted, NULL, 60000);
}

static void one_by_one(struct gaia_transport *transport, struct gaia_pull *pull, struct gaia_memory *memory,
                       uint32_t page, unsigned count)
{
    static struct gaia_pull_read reads[BATCH_MAX];

    for (unsigned i = 0; i < count; i++)
        if (fetch(transport, pull, &starved, next_read(reads, i, memory, page)))
            fail("a read");
}

static bool all_answered(void *context)
{
    return answers == *(unsigned *)context;
}

static void talk(struct gaia_transport *transport, struct gaia_link *link, unsigned count, unsigned depth)
{
    char bytes[128] = "a question of the usual length";
    double began = now_s();

    for (unsigned sent = 0; sent < count;) {
        for (unsigned i = 0; i < depth && sent < count; i++, sent++)
            if (gaia_link_send(link, bytes, sizeof bytes))
                fail("a question");
        gaia_transport_wait(transport, all_answered, &sent, 60000);
    }
    double took = now_s() - began;
    printf("{\"messages\": %u, \"depth\": %u, \"us_each\": %.2f}\n", count, depth, took / count * 1e6);
}

static void check(const unsigned char *area, size_t bytes)
{
    for (size_t i = 0; i < AREA && i < bytes; i += 8)
        if (*(const uint64_t *)(area + i) != word_at(i)) {
            fprintf(stderr, "wrong bytes at %zu\n", i);
            exit(1);
        }
}

static void report(struct gaia_pull *pull, uint32_t page, unsigned count, double took)
{
    struct gaia_pull_stat s;

    gaia_pull_stat(pull, &s);
    printf(
        "{\"path\": \"%s\", \"device\": \"%s\", \"page\": %u, \"reads\": %u, \"queues\": %u, \"depth\": %u, "
        "\"outstanding_max\": %u, \"doorbells\": %llu, \"bytes_per_s\": %.0f, \"p50_us\": %.2f, \"p99_us\": "
        "%.2f, "
        "\"max_us\": %.2f}\n",
        s.path, s.device, page, count, s.queues, s.depth, s.outstanding_max, (unsigned long long)s.doorbells,
        (double)page * count / took, (double)s.latency_p50_ns / 1e3, (double)s.latency_p99_ns / 1e3,
        (double)s.latency_max_ns / 1e3);
}

static void read_all(struct gaia_transport_config *config, const char *peer, uint32_t page, unsigned count,
                     const struct gaia_link_options *options)
{
    struct gaia_transport *transport;
    struct gaia_link *link;
    struct gaia_memory *memory;
    struct gaia_pull *pull;
    unsigned char *area = frames();

    config->calls.exposed = exposed;
    config->calls.message = message;
    memset(area, 0, AREA);
    if (gaia_transport_open(config, &transport) || gaia_link_connect(transport, peer, options, &link) ||
        gaia_memory_register(transport, &(struct gaia_span){area, AREA, -1}, &memory) ||
        gaia_pull_open(transport, link, 0, gaia_link_options(link).depth, &starved, &pull) ||
        !gaia_transport_wait(transport, is_known, NULL, 10000))
        fail("connect");
    double began = now_s();
    if (!page)
        talk(transport, link, count, options->depth);
    else if (options->queues * options->depth == 1)
        one_by_one(transport, pull, memory, page, count);
    else
        stream(transport, pull, memory, page, count, options->queues * options->depth);
    double took = now_s() - began;
    check(area, (size_t)page * count);
    if (page)
        report(pull, page, count, took);
    gaia_link_close(link);
    gaia_pull_close(pull);
    gaia_memory_release(memory);
    gaia_transport_close(transport);
}

int main(int argc, char **argv)
{
    struct gaia_transport_config config = {.timeout_ms = 20000};
    int ready[2], status;
    char byte;

    if (argc != 9 || pipe(ready))
        return 2;
    config.carrier = !strcmp(argv[1], "rdma") ? GAIA_CARRIER_RDMA : GAIA_CARRIER_LOCAL;
    config.spin_us = (unsigned)atoi(argv[8]);
    pid_t pid = fork();
    if (!pid) {
        config.address = argv[3];
        config.spin_us = 0;
        return serve(&config, ready[1]);
    }
    close(ready[1]);
    if (pid < 0 || read(ready[0], &byte, 1) != 1)
        return 1;
    config.address = argv[2];
    read_all(&config, argv[3], (uint32_t)atoi(argv[4]), (unsigned)atoi(argv[5]),
             &(struct gaia_link_options){(unsigned)atoi(argv[6]), (unsigned)atoi(argv[7])});
    if (waitpid(pid, &status, 0) != pid || status)
        return 1;
    struct rusage server;
    getrusage(RUSAGE_CHILDREN, &server);
    fprintf(stderr, "the one that serves: %.2f us of processor time for each\n",
            ((double)(server.ru_utime.tv_sec + server.ru_stime.tv_sec) * 1e6 +
             (double)(server.ru_utime.tv_usec + server.ru_stime.tv_usec)) /
                atof(argv[5]));
    return 0;
}
