/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the transport share: two ends in this process, or one of them in a child that can be
 * killed and stopped; the same over both carriers.
 *
 * Run without arguments they test the local carrier; with `--carrier rdma HERE THERE`, RDMA between the
 * devices with these two addresses, which may be the same. GAIA_TEST_SEED repeats a run's random choices,
 * GAIA_TEST_FILTER picks cases. */
#ifndef GAIAFS_TESTS_IO_TRANSPORT_FIXTURE_H
#define GAIAFS_TESTS_IO_TRANSPORT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/transport_internal.h"
#include "tests/bytes.h"

/* Times are longer by this under TSan: what takes 20 ms beside nothing has taken a second there, on a machine
 * with two processors and more to do. */
#ifdef __SANITIZE_THREAD__
#define PATIENCE 4u
#else
#define PATIENCE 1u
#endif
#define TIME_LIMIT_S (60 * PATIENCE)
#define TIMEOUT_MS (3000u * PATIENCE) /* of transports, where no test waits for it */
#define SHORT_MS (1000u * PATIENCE)   /* where one does */
#define SLACK_MS (4000u * PATIENCE)   /* more, on a machine under load or under emulation */
#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * 1024)
#define LINKS 64

static enum gaia_carrier carrier = GAIA_CARRIER_LOCAL;
static const char *here = "", *there = "";
static uint64_t seed;
static unsigned next_port;

/* Whether the devices of the machine are iWARP's: the tests have devices of one kind. */
static inline bool is_iwarp(void)
{
    DIR *folder = carrier == GAIA_CARRIER_RDMA ? opendir("/sys/class/infiniband") : NULL;
    const struct dirent *device;
    char path[300], type = 0;
    bool is_one = false;

    while (folder && (device = readdir(folder))) {
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/node_type", device->d_name);
        int fd = device->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        is_one |= fd >= 0 && read(fd, &type, 1) == 1 && type == '4'; /* "4: RNIC" */
        if (fd >= 0)
            close(fd);
    }
    if (folder)
        closedir(folder);
    return is_one;
}

/* ---- memory ---- */

static inline void fill(uint8_t *bytes, size_t length, uint64_t salt)
{
    fill_at(bytes, length, salt, 0);
}

/* Frames: a memfd, as those of the daemon are. */
static inline uint8_t *new_frames(size_t length)
{
    int fd = memfd_create("test-frames", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)length), 0);
    uint8_t *frames = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(frames, MAP_FAILED);
    close(fd);
    return frames;
}

static inline uint64_t now_ms(void)
{
    return clock_now_ns() / 1000000;
}

static inline void nap_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

static inline unsigned cpu_ms(pthread_t thread)
{
    struct timespec time;
    clockid_t clock;

    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    assert_int_equal(clock_gettime(clock, &time), 0);
    return (unsigned)(time.tv_sec * 1000 + time.tv_nsec / 1000000);
}

/* ---- one end ---- */

/* What its callbacks have seen. cmocka's assertions are for the main thread only: callbacks note, it checks.
 */
struct side {
    struct gaia_transport *transport;
    char address[128];
    pthread_t thread;
    bool threaded;
    _Atomic bool stop;
    pthread_mutex_t lock; /* guards what follows */
    struct gaia_link *links[LINKS];
    _Atomic unsigned arrived;
    _Atomic int refuse_with;
    _Atomic unsigned messages;
    size_t message_length; /* of the last */
    uint8_t message[GAIA_LINK_MESSAGE_MAX];
    _Atomic bool echo, slow;
    _Atomic unsigned exposed;
    uint32_t region; /* the last exposed */
    uint64_t region_length;
    _Atomic unsigned closed; /* counters rise last */
    int closed_error;
    char closed_why[WHY_MAX];
};

static int side_arrived(void *context, struct gaia_link *link, const char *peer)
{
    struct side *side = context;

    (void)peer;
    pthread_mutex_lock(&side->lock);
    int error = side->refuse_with;
    if (!error && side->arrived < LINKS)
        side->links[side->arrived] = link;
    side->arrived += !error;
    pthread_mutex_unlock(&side->lock);
    return error;
}

static void side_message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    struct side *side = context;

    pthread_mutex_lock(&side->lock);
    side->message_length = length;
    memcpy(side->message, bytes, length);
    side->messages++;
    bool echo = side->echo;
    pthread_mutex_unlock(&side->lock);
    if (side->slow)
        nap_ms(2);
    if (echo)
        gaia_link_send(link, bytes, length);
}

static void side_exposed(void *context, struct gaia_link *link, uint32_t region, uint64_t length)
{
    struct side *side = context;

    (void)link;
    pthread_mutex_lock(&side->lock);
    side->region = region;
    side->region_length = length;
    side->exposed++;
    pthread_mutex_unlock(&side->lock);
}

static void side_closed(void *context, struct gaia_link *link, int error)
{
    struct side *side = context;

    (void)link;
    pthread_mutex_lock(&side->lock);
    side->closed_error = error;
    snprintf(side->closed_why, sizeof side->closed_why, "%s", gaia_transport_why());
    side->closed++;
    pthread_mutex_unlock(&side->lock);
}

static inline struct gaia_transport_config side_config(struct side *side, bool listen, unsigned timeout_ms)
{
    return (struct gaia_transport_config){
        .carrier = carrier,
        .address = side->address,
        .listen = listen,
        .timeout_ms = timeout_ms,
        .calls = {side_arrived, side_message, side_exposed, side_closed},
        .context = side,
    };
}

/* A name or a port that nobody has. */
static inline void new_address(char address[128], bool listen)
{
    next_port++;
    if (carrier == GAIA_CARRIER_LOCAL)
        snprintf(address, 128, "gaiafs-test-%d-%u", getpid(), next_port);
    else if (listen)
        snprintf(address, 128, "%s:%u", there, 20000 + (unsigned)getpid() % 10000 * 4 + next_port);
    else
        snprintf(address, 128, "%s:0", here);
}

static inline void side_init(struct side *side, bool listen)
{
    memset(side, 0, sizeof *side);
    pthread_mutex_init(&side->lock, NULL);
    new_address(side->address, listen);
}

static void *side_poll(void *argument)
{
    struct side *side = argument;

    while (!side->stop)
        gaia_transport_poll(side->transport, 200);
    return NULL;
}

static inline void side_start(struct side *side)
{
    /* cmocka would end without a word when another thread than the test's crashes. */
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    side->threaded = true;
    assert_int_equal(pthread_create(&side->thread, NULL, side_poll, side), 0);
}

static inline void must(int error)
{
    if (error)
        print_error("error %d: %s\n", error, gaia_transport_why());
    assert_int_equal(error, 0);
}

static inline void side_open(struct side *side, bool listen, unsigned timeout_ms)
{
    struct gaia_transport_config config;

    side_init(side, listen);
    config = side_config(side, listen, timeout_ms);
    must(gaia_transport_open(&config, &side->transport));
    if (listen)
        side_start(side);
}

/* From now on nobody polls it but the test. */
static inline void side_pause(struct side *side)
{
    side->stop = true;
    gaia_transport_wake(side->transport);
    pthread_join(side->thread, NULL);
    side->threaded = false;
    side->stop = false;
}

static inline void side_close(struct side *side)
{
    if (side->threaded)
        side_pause(side);
    gaia_transport_close(side->transport);
    pthread_mutex_destroy(&side->lock);
}

/* ---- both ---- */

/* Tests have theirs in static memory: after an assertion that failed its server's thread goes on. */
struct pair {
    struct side server, client;
    struct gaia_link *link; /* the client's */
};

/* Wait for a counter of a side, whoever polls it. */
struct wish {
    struct side *side;
    _Atomic unsigned *counter;
    unsigned least;
};

static bool is_granted(void *context)
{
    struct wish *wish = context;

    pthread_mutex_lock(&wish->side->lock);
    bool granted = *wish->counter >= wish->least;
    pthread_mutex_unlock(&wish->side->lock);
    return granted;
}

static inline bool await_ms(struct side *side, _Atomic unsigned *counter, unsigned least, unsigned limit_ms)
{
    struct wish wish = {side, counter, least};

    return gaia_transport_wait(side->transport, is_granted, &wish, limit_ms);
}

static inline void await(struct side *side, _Atomic unsigned *counter, unsigned least)
{
    assert_true(await_ms(side, counter, least, TIME_LIMIT_S * 1000));
}

static inline struct gaia_link *connect_to(struct side *client, struct side *server, unsigned queues,
                                           unsigned depth)
{
    struct gaia_link_options options = {.queues = queues, .depth = depth};
    struct gaia_link *link = NULL;

    must(gaia_link_connect(client->transport, server->address, &options, &link));
    return link;
}

static inline void pair_open(struct pair *pair, unsigned queues, unsigned depth, unsigned timeout_ms)
{
    side_open(&pair->server, true, timeout_ms);
    side_open(&pair->client, false, timeout_ms);
    pair->link = connect_to(&pair->client, &pair->server, queues, depth);
    await(&pair->server, &pair->server.arrived, 1);
}

static inline void pair_close(struct pair *pair)
{
    side_close(&pair->client);
    side_close(&pair->server);
}

static inline struct gaia_memory *new_memory(struct side *side, void *bytes, size_t length)
{
    struct gaia_memory *memory = NULL;

    must(gaia_memory_register(side->transport, &(struct gaia_span){bytes, length, -1}, &memory));
    return memory;
}

/* Expose to the client's link, and wait until it knows. */
static inline uint32_t expose_to(struct pair *pair, unsigned link, void *bytes, size_t length, bool writable)
{
    uint32_t region = 0;
    unsigned before = pair->client.exposed;
    int error;

    while ((error = gaia_link_expose(pair->server.links[link], &(struct gaia_span){bytes, length, -1},
                                     writable, &region)) == -EAGAIN)
        gaia_transport_poll(pair->client.transport, 10); /* what gives credits back */
    must(error);
    await(&pair->client, &pair->client.exposed, before + 1);
    assert_int_equal(pair->client.region, region);
    assert_int_equal(pair->client.region_length, length);
    return region;
}

/* ---- transfers ---- */

struct shot {
    struct gaia_transfer transfer; /* first */
    _Atomic int calls;
    _Atomic int error;
};

static void shot_done(struct gaia_transfer *transfer, int error)
{
    struct shot *shot = (struct shot *)transfer;

    shot->error = error;
    atomic_fetch_add(&shot->calls, 1);
}

static bool shot_is_done(void *context)
{
    return ((struct shot *)context)->calls > 0;
}

static inline struct shot new_shot(struct gaia_memory *memory, uint64_t at, uint32_t region, uint64_t offset,
                                   uint32_t length, bool write)
{
    return (struct shot){.transfer = {.memory = memory,
                                      .memory_offset = at,
                                      .region = region,
                                      .offset = offset,
                                      .length = length,
                                      .write = write,
                                      .done = shot_done}};
}

static inline int post_one(struct gaia_link *link, unsigned queue, struct shot *shot)
{
    struct gaia_transfer *transfer = &shot->transfer;

    return gaia_link_post(link, queue, &transfer, 1);
}

/* Post it, wait for its end: its error. */
static inline int shoot(struct side *side, struct gaia_link *link, struct shot *shot)
{
    assert_int_equal(post_one(link, 0, shot), 1);
    assert_true(gaia_transport_wait(side->transport, shot_is_done, shot, TIME_LIMIT_S * 1000));
    assert_int_equal(shot->calls, 1);
    return shot->error;
}

/* Of eight of them. */
static inline bool all_shots_done(void *context)
{
    struct shot *shots = context;

    for (unsigned i = 0; i < 8; i++)
        if (!shots[i].calls)
            return false;
    return true;
}

/* ---- begin and end ---- */

static unsigned descriptors_at_start;

/* Transfers with this key, at this address, whatever they say themselves. */
static inline void test_unchecked(uint64_t key, uint64_t address)
{
    transport_test.key = key;
    transport_test.address = address;
    transport_test.unchecked = true;
}

static inline void test_as_usual(void)
{
    transport_test.hello = NULL;
    transport_test.unchecked = false;
    transport_test.deaf = false;
    transport_test.ahead_ns = 0;
}

static inline unsigned descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static inline void too_late(int signal_number)
{
    static const char text[] = "time limit\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);

    (void)ignored;
    (void)signal_number;
    _exit(1);
}

static inline int begin(void **state)
{
    (void)state;
    signal(SIGALRM, too_late);
    alarm(TIME_LIMIT_S);
    descriptors_at_start = descriptors();
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    alarm(0);
    test_as_usual();
    /* librdmacm keeps what it has opened of a device. */
    if (carrier == GAIA_CARRIER_LOCAL && descriptors() != descriptors_at_start) {
        print_error("%u descriptors instead of %u\n", descriptors(), descriptors_at_start);
        return -1;
    }
    return 0;
}

#define CASE(f) ((struct CMUnitTest){#f, f, begin, end, NULL})

static inline void take_arguments(int argc, char **argv)
{
    const char *wanted = getenv("GAIA_TEST_SEED");
    struct timespec now;

    if (argc >= 5 && !strcmp(argv[1], "--carrier") && !strcmp(argv[2], "rdma")) {
        carrier = GAIA_CARRIER_RDMA;
        here = argv[3];
        there = argv[4];
    } else if (argc != 1 && strcmp(argv[1], "--child") != 0) {
        fprintf(stderr, "usage: %s [--carrier rdma HERE THERE]\n", argv[0]);
        exit(2);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    seed = wanted ? strtoull(wanted, NULL, 0) : mix((uint64_t)now.tv_nsec ^ ((uint64_t)now.tv_sec << 30));
    print_message("GAIA_TEST_SEED=0x%llx\n", (unsigned long long)seed);
    cmocka_set_test_filter(getenv("GAIA_TEST_FILTER"));
}

#endif
