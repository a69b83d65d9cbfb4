/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine with many requests in flight: callbacks that submit, threads that wait for slots, and
 * what ends while requests are under way. */
#include "tests/gate.h"
#include "tests/io/engine_fixture.h"

/* ---- many in flight ---- */

#define CROWD_SIZE (4 * MIB)
#define CROWD_UNIT 4096

struct crowd {
    struct gaia_io *io;
    struct gaia_io_file *file;
    unsigned fan; /* each callback submits so many more, until budget is used up */
    _Atomic int budget, completed, submitted, wrong;
    _Atomic uint64_t random;
};

struct member {
    struct crowd *crowd;
    off_t offset;
    uint8_t *buffer;
};

static void crowd_done(void *context, ssize_t result);

static void crowd_submit(struct crowd *crowd)
{
    struct member *member = malloc(sizeof *member);
    uint64_t random = atomic_fetch_add(&crowd->random, 1);

    member->crowd = crowd;
    member->buffer = aligned_alloc(4096, 2 * 4096);
    member->offset = (off_t)(mix(random) % (CROWD_SIZE - CROWD_UNIT));
    if (random % 2) /* every other one through O_DIRECT */
        member->offset -= member->offset % CROWD_UNIT;
    atomic_fetch_add(&crowd->submitted, 1);
    if (gaia_io_read(crowd->io, crowd->file, member->buffer, CROWD_UNIT, member->offset, crowd_done, member))
        atomic_fetch_add(&crowd->wrong, 1);
}

static void crowd_done(void *context, ssize_t result)
{
    struct member *member = context;
    struct crowd *crowd = member->crowd;

    if (result != CROWD_UNIT || !matches(member->buffer, CROWD_UNIT, 7, member->offset))
        atomic_fetch_add(&crowd->wrong, 1);
    free(member->buffer);
    free(member);
    for (unsigned i = 0; i < crowd->fan; i++)
        if (atomic_fetch_sub(&crowd->budget, 1) > 0)
            crowd_submit(crowd);
    atomic_fetch_add(&crowd->completed, 1);
}

static void *crowd_submitter(void *context)
{
    struct crowd *crowd = context;

    for (int i = 1; i <= 500; i++) {
        crowd_submit(crowd);
        if (i % 10 == 0)
            gaia_io_submit(crowd->io);
    }
    return NULL;
}

static void run_crowd(void **state, unsigned depth, unsigned fan, int budget)
{
    struct crowd crowd = {.fan = fan, .budget = budget, .random = seed};
    pthread_t threads[4];
    int fd = new_file();

    write_pattern(fd, CROWD_SIZE, 7);
    crowd.io = new_engine(state, depth);
    crowd.file = open_file(crowd.io, fd);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_submitter, &crowd), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    gaia_io_file_close(crowd.file);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    assert_int_equal(atomic_load(&crowd.completed), 4 * 500 + budget);
    assert_int_equal(atomic_load(&crowd.submitted), 4 * 500 + budget);
    assert_int_equal(stat_of(crowd.io).reads, 4 * 500 + budget);
    assert_int_equal(stat_of(crowd.io).in_flight_max, depth);
    gaia_io_close(crowd.io);
    close(fd);
}

static void many_in_flight(void **state)
{
    run_crowd(state, 64, 1, (int)so_many(10000));
}

static void callbacks_that_submit_several(void **state)
{
    run_crowd(state, 8, 3, (int)so_many(4000));
}

static void one_in_flight(void **state)
{
    run_crowd(state, 1, 2, 1000);
}

/* More requests than the ring's queue has entries, pushed once, at the end. */
static void deep(void **state)
{
    struct crowd crowd = {.random = seed};
    int fd = new_file();

    write_pattern(fd, CROWD_SIZE, 7);
    crowd.io = new_engine(state, 4096);
    crowd.file = open_file(crowd.io, fd);
    for (unsigned i = 0; i < 4000; i++)
        crowd_submit(&crowd);
    gaia_io_submit(crowd.io);
    await_count(&crowd.completed, 4000);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    gaia_io_file_close(crowd.file);
    gaia_io_close(crowd.io);
    close(fd);
}

#define CHAINS 6

struct chain {
    struct gaia_io *io;
    struct gaia_io_file *file;
    _Atomic int links, wrong;
    _Atomic bool stop;
    uint8_t *buffer;
};

static void chain_done(void *context, ssize_t result)
{
    struct chain *chain = context;

    if (result != 4096)
        atomic_fetch_add(&chain->wrong, 1);
    atomic_fetch_add(&chain->links, 1);
    if (!atomic_load(&chain->stop) &&
        gaia_io_read(chain->io, chain->file, chain->buffer, 4096, 0, chain_done, chain) != 0)
        atomic_fetch_add(&chain->wrong, 1);
}

struct flood {
    struct gaia_io *io;
    struct gaia_io_file *file;
    uint8_t *buffer;
    _Atomic bool stop;
    _Atomic int wrong;
};

static void flood_done(void *context, ssize_t result)
{
    struct flood *flood = context;

    if (result != 0)
        atomic_fetch_add(&flood->wrong, 1);
}

/* Submits for ever, waiting for slots only; past the end of the file, since all share one buffer. */
static void *flooder(void *context)
{
    struct flood *flood = context;

    while (!atomic_load(&flood->stop))
        if (gaia_io_read(flood->io, flood->file, flood->buffer, 4096, MIB, flood_done, flood) != 0)
            atomic_fetch_add(&flood->wrong, 1);
    return NULL;
}

/* Three times as many endless chains as slots, and endless submitters: each goes on. */
static void all_take_turns(void **state)
{
    struct chain chains[CHAINS];
    struct outcome outcome;
    struct flood flood = {.buffer = new_buffer(4096)};
    pthread_t flooders[3];
    uint8_t *buffer = new_buffer(4096);
    int fd = new_file();
    struct gaia_io *io = new_engine(state, 2);
    struct gaia_io_file *file;

    write_pattern(fd, 4096, 7);
    file = open_file(io, fd);
    memset(chains, 0, sizeof chains);
    for (unsigned i = 0; i < CHAINS; i++) {
        chains[i].io = io;
        chains[i].file = file;
        chains[i].buffer = new_buffer(4096);
        assert_int_equal(gaia_io_read(io, file, chains[i].buffer, 4096, 0, chain_done, &chains[i]), 0);
    }
    for (unsigned i = 0; i < CHAINS; i++) /* alone at first: with nobody else to take turns with */
        await_count(&chains[i].links, 50);
    flood.io = io;
    flood.file = file;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&flooders[i], NULL, flooder, &flood), 0);
    for (unsigned i = 0; i < 50; i++) {
        atomic_store(&outcome.calls, 0);
        assert_int_equal(gaia_io_read(io, file, buffer, 4096, 0, note, &outcome), 0);
        gaia_io_submit(io);
        assert_int_equal(await(&outcome), 4096);
    }
    for (unsigned i = 0; i < CHAINS; i++)
        await_count(&chains[i].links, atomic_load(&chains[i].links) + 50);
    atomic_store(&flood.stop, true);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(flooders[i], NULL);
    for (unsigned i = 0; i < CHAINS; i++)
        atomic_store(&chains[i].stop, true);
    gaia_io_file_close(file);
    gaia_io_close(io);
    assert_int_equal(atomic_load(&flood.wrong), 0);
    free(flood.buffer);
    for (unsigned i = 0; i < CHAINS; i++) {
        assert_int_equal(atomic_load(&chains[i].wrong), 0);
        free(chains[i].buffer);
    }
    free(buffer);
    close(fd);
}

/* ---- lifetimes ---- */

/* Nobody pushes: closing does. */
static void close_with_requests_in_flight(void **state)
{
    struct outcome outcomes[64];
    uint8_t *buffer = new_buffer(64 * 4096);
    int fd = new_file();

    write_pattern(fd, 64 * 4096, 9);
    for (unsigned round = 0; round < 20; round++) {
        struct gaia_io *io = new_engine(state, 64);
        struct gaia_io_file *file = open_file(io, fd);

        for (unsigned i = 0; i < 64; i++) {
            atomic_store(&outcomes[i].calls, 0);
            assert_int_equal(gaia_io_read(io, file, buffer + 4096 * i, 4096, 4096 * i, note, &outcomes[i]),
                             0);
        }
        if (round % 2)
            gaia_io_file_close(file);
        else
            gaia_io_close(io); /* and the file with it */
        for (unsigned i = 0; i < 64; i++) {
            assert_int_equal(atomic_load(&outcomes[i].calls), 1);
            assert_int_equal(atomic_load(&outcomes[i].result), 4096);
        }
        if (round % 2)
            gaia_io_close(io);
    }
    assert_true(matches(buffer, 64 * 4096, 9, 0));
    gaia_io_close(NULL);
    free(buffer);
    close(fd);
}

struct hoarder {
    struct gaia_io *io;
    struct gaia_io_file *file;
    struct outcome *outcomes;
    uint8_t *buffer;
    unsigned count;
    off_t shift; /* added to each offset */
    bool push;
};

static void *hoard(void *context)
{
    struct hoarder *hoarder = context;

    for (unsigned i = 0; i < hoarder->count; i++) {
        uint8_t *buffer = hoarder->buffer + 64 * KIB * i;
        off_t offset = (off_t)(64 * KIB * i) + hoarder->shift;

        atomic_store(&hoarder->outcomes[i].calls, 0);
        gaia_io_read(hoarder->io, hoarder->file, buffer, 64 * KIB, offset, note, &hoarder->outcomes[i]);
    }
    if (hoarder->push)
        gaia_io_submit(hoarder->io);
    return NULL;
}

/* A thread that exits takes nothing with it: the kernel ends its requests with ECANCELED, or EFAULT when they
 * wait for pages to be read into the cache (what is not aligned is), and the engine submits them anew. */
static void submitters_that_exit(void **state)
{
    enum { COUNT = 32 };
    const size_t length = COUNT * 64 * KIB;
    struct outcome outcomes[COUNT];
    struct hoarder hoarder = {.outcomes = outcomes, .buffer = new_buffer(length), .count = COUNT};
    pthread_t thread;
    int fd = new_file();

    write_pattern(fd, length + 1, 11); /* the last unaligned read ends in its last byte */
    hoarder.io = new_engine(state, COUNT);
    hoarder.file = open_file(hoarder.io, fd);
    for (unsigned round = 0; round < 30; round++) {
        hoarder.shift = round % 2;
        hoarder.push = round % 4 < 2;
        memset(hoarder.buffer, 0, length);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        assert_int_equal(pthread_create(&thread, NULL, hoard, &hoarder), 0);
        pthread_join(thread, NULL);
        gaia_io_submit(hoarder.io);
        for (unsigned i = 0; i < COUNT; i++)
            assert_int_equal(await(&outcomes[i]), 64 * KIB);
        assert_true(matches(hoarder.buffer, length, 11, hoarder.shift));
    }
    gaia_io_file_close(hoarder.file);
    gaia_io_close(hoarder.io);
    free(hoarder.buffer);
    close(fd);
}

static void *no_thread(void *context)
{
    return context;
}

/* In a child process whose user may have no thread more: 0 when reads that the kernel hands to threads of its
 * own are good all the same; 77 when there is no such limit. */
static int read_without_threads(enum gaia_io_kind kind, int fd, size_t length)
{
    struct gaia_io_config config = {.kind = kind, .depth = 8};
    struct rlimit none = {.rlim_cur = 1, .rlim_max = 1};
    struct outcome outcomes[4] = {{.calls = 0}};
    uint8_t *buffer = new_buffer(4 * length);
    struct gaia_io_file *file;
    struct gaia_io *io;
    pthread_t thread;

    if (!geteuid() && setresuid(61938, 61938, 61938))
        return 77;
    int error = gaia_io_open(&config, &io);
    if (error == -EPERM || error == -ENOSYS)
        return 77;
    if (error || gaia_io_file_open(io, fd, &file))
        return 1;
    if (setrlimit(RLIMIT_NPROC, &none) || !pthread_create(&thread, NULL, no_thread, NULL))
        return 77;
    for (size_t i = 0; i < 4; i++)
        if (gaia_io_read(io, file, buffer + i * length, length, 0, note, &outcomes[i]))
            return 2;
    gaia_io_submit(io);
    for (size_t i = 0; i < 4; i++)
        if (await(&outcomes[i]) != (ssize_t)length || !matches(buffer + i * length, length, 13, 0))
            return 3;
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(buffer);
    return 0;
}

/* All reads of a tmpfs may wait, as far as io_uring knows. */
static void no_thread_to_be_had(void **state)
{
    const size_t length = 64 * KIB;

    if (access("/dev/shm", W_OK) != 0)
        skip();
    int fd = new_file_in("/dev/shm", O_RDWR);
    write_pattern(fd, length, 13);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(read_without_threads(*(enum gaia_io_kind *)*state, fd, length));
    bool could = child_could(child);
    close(fd);
    if (!could)
        skip();
}

/* Another thread has filled the depth and not pushed, and may never: who waits for a slot pushes for it. */
static void slots_taken_and_not_pushed(void **state)
{
    struct outcome outcomes[8], mine = {.calls = 0};
    struct hoarder hoarder = {.outcomes = outcomes, .buffer = new_buffer(9 * 64 * KIB), .count = 8};
    pthread_t thread;
    int fd = new_file();

    write_pattern(fd, 8 * 64 * KIB, 13);
    hoarder.io = new_engine(state, 8);
    hoarder.file = open_file(hoarder.io, fd);
    assert_int_equal(pthread_create(&thread, NULL, hoard, &hoarder), 0);
    pthread_join(thread, NULL);
    assert_int_equal(
        gaia_io_read(hoarder.io, hoarder.file, hoarder.buffer + 8 * 64 * KIB, 10, 0, note, &mine), 0);
    gaia_io_submit(hoarder.io);
    assert_int_equal(await(&mine), 10);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(await(&outcomes[i]), 64 * KIB);
    gaia_io_file_close(hoarder.file);
    gaia_io_close(hoarder.io);
    free(hoarder.buffer);
    close(fd);
}

/* A file is closed when its own requests have ended, also when those of another one never do. */
static void close_beside_another_file(void **state)
{
    struct chain chain = {.buffer = new_buffer(4096)};
    struct outcome outcome;
    uint8_t *buffer = new_buffer(MIB);
    int fd = new_file(), other = new_file();
    struct gaia_io *io = new_engine(state, 8);

    write_pattern(fd, 4096, 7);
    write_pattern(other, MIB, 8);
    chain.io = io;
    chain.file = open_file(io, fd);
    assert_int_equal(gaia_io_read(io, chain.file, chain.buffer, 4096, 0, chain_done, &chain), 0);
    gaia_io_submit(io);
    for (unsigned i = 0; i < 50; i++) {
        struct gaia_io_file *file = open_file(io, other);

        atomic_store(&outcome.calls, 0);
        posix_fadvise(other, 0, 0, POSIX_FADV_DONTNEED);
        assert_int_equal(gaia_io_read(io, file, buffer, MIB, 0, note, &outcome), 0);
        gaia_io_file_close(file); /* it waits */
        assert_int_equal(atomic_load(&outcome.calls), 1);
        assert_int_equal(atomic_load(&outcome.result), MIB);
    }
    atomic_store(&chain.stop, true);
    gaia_io_file_close(chain.file);
    gaia_io_close(io);
    assert_int_equal(atomic_load(&chain.wrong), 0);
    free(chain.buffer);
    free(buffer);
    close(fd);
    close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        // clang-format off
        CASE(many_in_flight),
        CASE(callbacks_that_submit_several),
        CASE(one_in_flight),
        CASE(deep),
        CASE(all_take_turns),
        CASE(close_with_requests_in_flight),
        CASE(submitters_that_exit),
        CASE(no_thread_to_be_had),
        CASE(slots_taken_and_not_pushed),
        CASE(close_beside_another_file),
        // clang-format on
    };

    return RUN("io/engine_flight", tests);
}
