/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine when the kernel moves less than it was asked to, or fails. Faults are put in where an
 * attempt's result arrives; each test shows by a count that its faults landed. */
#include "tests/io/engine_fixture.h"

#include <sys/mman.h>

#define SIZE (MIB + 1234)
#define SALT 21

/* ---- the faults ---- */

/* Attempts of the wanted ways fail, or come short, with the given odds, until `most` have. */
static struct {
    unsigned ways; /* of BUFFERED and DIRECT */
    int error;     /* 0: short; MIXED: short, or one of those that are tried again */
    unsigned odds; /* one attempt in so many; 1: each */
    int most;
    size_t only_length; /* 0: whatever the length */
    _Atomic int landed;
    _Atomic uint64_t random;
} fault;

#define MIXED (-1)
#define BUFFERED 1u
#define DIRECT 2u
#define ANY (BUFFERED | DIRECT)

static ssize_t spoil(bool direct, size_t length, ssize_t result)
{
    static const int mixed[] = {0, EINTR, ECANCELED, EAGAIN};
    uint64_t random = mix(atomic_fetch_add(&fault.random, 1));
    int error = fault.error == MIXED ? mixed[(random >> 16) % 4] : fault.error;

    if (!(fault.ways & (direct ? DIRECT : BUFFERED)) || random % fault.odds != 0)
        return result;
    if (fault.only_length && fault.only_length != length)
        return result;
    if (!error && result <= 1)
        return result;
    if (atomic_fetch_add(&fault.landed, 1) >= fault.most) {
        atomic_fetch_sub(&fault.landed, 1);
        return result;
    }
    if (error)
        return -error;
    /* Half of them keep to blocks, as a direct read would. */
    random >>= 32;
    if (random % 2 && result > 512)
        return (ssize_t)(512 * (1 + (random >> 1) % ((uint64_t)(result - 1) / 512)));
    return (ssize_t)(1 + (random >> 1) % (uint64_t)(result - 1));
}

static void plan(unsigned ways, int error, unsigned odds, int most)
{
    fault.ways = ways;
    fault.error = error;
    fault.odds = odds;
    fault.most = most;
    fault.only_length = 0;
    atomic_store(&fault.landed, 0);
    atomic_store(&fault.random, seed);
    gaia_io_test_result = spoil;
}

/* ---- a file to read ---- */

struct bench {
    int fd;
    struct gaia_io *io;
    struct gaia_io_file *file;
    uint8_t *buffer;
};

static struct bench new_bench(void **state)
{
    struct bench bench = {.fd = new_file(), .buffer = new_buffer(2 * SIZE)};
    struct gaia_io_config config = {.kind = *(enum gaia_io_kind *)*state, .depth = 16, .files = 2};

    write_pattern(bench.fd, SIZE, SALT);
    config.buffers = bench.buffer;
    config.buffers_length = SIZE; /* so that one half is registered and one is not */
    bench.io = new_engine_of(&config);
    bench.file = open_file(bench.io, bench.fd);
    return bench;
}

static void free_bench(struct bench *bench)
{
    gaia_io_file_close(bench->file);
    gaia_io_close(bench->io);
    gaia_io_test_result = NULL;
    free(bench->buffer);
    close(bench->fd);
}

#define CHUNKS 64
#define CHUNK (16 * KIB)

/* Reads the file in chunks, all submitted at once; aligned ones, and ones shifted by `shift`. */
static void read_all(struct bench *b, off_t shift)
{
    struct outcome outcomes[CHUNKS];

    for (unsigned i = 0; i < CHUNKS; i++) {
        uint8_t *buffer = b->buffer + (i % 2 ? SIZE - SIZE % 4096 + 8192 : 0) + i / 2 * CHUNK;
        off_t offset = (off_t)(i * CHUNK) + shift;

        atomic_store(&outcomes[i].calls, 0);
        memset(buffer, 0, CHUNK);
        assert_int_equal(gaia_io_read(b->io, b->file, buffer, CHUNK, offset, note, &outcomes[i]), 0);
    }
    gaia_io_submit(b->io);
    for (unsigned i = 0; i < CHUNKS; i++) {
        uint8_t *buffer = b->buffer + (i % 2 ? SIZE - SIZE % 4096 + 8192 : 0) + i / 2 * CHUNK;

        assert_int_equal(await(&outcomes[i]), CHUNK);
        assert_int_equal(atomic_load(&outcomes[i].calls), 1);
        assert_true(matches(buffer, CHUNK, SALT, (off_t)(i * CHUNK) + shift));
    }
}

/* The bytes are all there although one attempt in two comes short, or one in three fails. */
static void survive(void **state, int error)
{
    struct bench b = new_bench(state);

    /* Not so often that a request would use up its 16 retries by chance: once in 10^8 requests. */
    plan(ANY, error, error ? 3 : 2, INT32_MAX);
    read_all(&b, 0);
    read_all(&b, 333);
    assert_int_equal(read_once(b.io, b.file, b.buffer, SIZE, 0), SIZE);
    assert_true(matches(b.buffer, SIZE, SALT, 0));
    /* Over the end of the file. */
    assert_int_equal(read_once(b.io, b.file, b.buffer, 64 * KIB, 16 * 65536), 1234);
    assert_true(atomic_load(&fault.landed) > 10);
    assert_true(stat_of(b.io).resubmits >= (uint64_t)atomic_load(&fault.landed));
    free_bench(&b);
}

static void short_reads(void **state)
{
    survive(state, 0);
}

static void interrupted(void **state)
{
    survive(state, EINTR);
}

static void cancelled(void **state)
{
    survive(state, ECANCELED);
}

static void would_block(void **state)
{
    survive(state, EAGAIN);
}

static void all_of_these(void **state)
{
    survive(state, MIXED);
}

static void direct_refused(void **state)
{
    static const int errors[] = {EINVAL, EOPNOTSUPP, EFAULT, EIO};

    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct bench b = new_bench(state);
        bool direct = is_direct(b.file);

        plan(DIRECT, errors[i], 1, INT32_MAX);
        read_all(&b, 0);
        assert_int_equal(atomic_load(&fault.landed), direct ? CHUNKS : 0);
        assert_int_equal(stat_of(b.io).direct_reads, 0);
        assert_int_equal(stat_of(b.io).bytes_read, CHUNKS * CHUNK);
        free_bench(&b);
        if (!direct)
            skip();
    }
}

/* ---- errors that stay ---- */

/* Each attempt fails: the caller hears of it, once, after `attempts`. */
static void reported(struct bench *b, int error, int attempts)
{
    plan(ANY, error, 1, INT32_MAX);
    assert_int_equal(read_once(b->io, b->file, b->buffer + 1, 5000, 0), -error);
    assert_int_equal(atomic_load(&fault.landed), attempts);
    gaia_io_test_result = NULL;
    assert_int_equal(read_once(b->io, b->file, b->buffer + 1, 5000, 0), 5000);
}

static void errors_are_reported(void **state)
{
    static const int errors[] = {EIO, ENOSPC, EDQUOT, EFBIG, ENOMEM, EBADF, ESTALE, EINVAL};
    struct bench b = new_bench(state);

    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        reported(&b, errors[i], 1);
    free_bench(&b);
}

static void retries_are_bounded(void **state)
{
    static const int errors[] = {EINTR, ECANCELED, EAGAIN, EFAULT};
    struct bench b = new_bench(state);

    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        reported(&b, errors[i], 17);
    free_bench(&b);
}

static ssize_t step_and_stumble(bool direct, size_t length, ssize_t result)
{
    (void)direct;
    (void)length;
    if (atomic_fetch_add(&fault.landed, 1) % 2 == 0)
        return -EINTR;
    return result > 4096 ? 4096 : result;
}

/* The bound is on attempts in a row that move nothing: a long transfer may be interrupted more often. */
static void progress_renews_the_retries(void **state)
{
    struct bench b = new_bench(state);

    plan(0, 0, 1, 0);
    gaia_io_test_result = step_and_stumble;
    assert_int_equal(read_once(b.io, b.file, b.buffer, 50 * 4096, 0), 50 * 4096);
    assert_int_equal(atomic_load(&fault.landed), 100);
    assert_true(matches(b.buffer, 50 * 4096, SALT, 0));
    free_bench(&b);
}

/* Fewer bytes than asked for mean the end of the file: a read that fails half way is an error. */
static void error_after_some_bytes(void **state)
{
    struct bench b = new_bench(state);

    plan(BUFFERED, 0, 1, 1);
    assert_int_equal(read_once(b.io, b.file, b.buffer + 1, 60000, 0), 60000);
    assert_int_equal(atomic_load(&fault.landed), 1);
    /* The direct part is fine, the buffered rest of the tail fails. */
    plan(BUFFERED, EIO, 1, INT32_MAX);
    assert_int_equal(read_once(b.io, b.file, b.buffer, 64 * KIB, 16 * 65536), -EIO);
    assert_int_equal(atomic_load(&fault.landed), 1);
    free_bench(&b);
}

static ssize_t move_nothing(bool direct, size_t length, ssize_t result)
{
    (void)direct;
    (void)length;
    (void)result;
    atomic_fetch_add(&fault.landed, 1);
    return 0;
}

/* A read that moves nothing has met the end of the file. */
static void nothing_moved(void **state)
{
    struct bench b = new_bench(state);

    plan(0, 0, 1, 0);
    gaia_io_test_result = move_nothing;
    assert_int_equal(read_once(b.io, b.file, b.buffer, 100, 0), 0);
    assert_int_equal(atomic_load(&fault.landed), 1);
    free_bench(&b);
}

/* A request that pauses for EAGAIN (0.6 s in all) holds up no other. */
static void pauses_hold_up_nobody(void **state)
{
    struct bench b = new_bench(state);
    struct outcome slow = {.calls = 0};

    plan(ANY, EAGAIN, 1, INT32_MAX);
    fault.only_length = 777;
    assert_int_equal(gaia_io_read(b.io, b.file, b.buffer, 777, 0, note, &slow), 0);
    gaia_io_submit(b.io);
    await_count(&fault.landed, 4);
    for (unsigned i = 0; i < 100; i++) {
        struct outcome quick = {.calls = 0};

        assert_int_equal(gaia_io_read(b.io, b.file, b.buffer + 4096, 778, 0, note, &quick), 0);
        gaia_io_submit(b.io);
        assert_int_equal(await(&quick), 778);
    }
    assert_int_equal(atomic_load(&slow.calls), 0);
    assert_int_equal(await(&slow), -EAGAIN);
    free_bench(&b);
}

/* ---- who gets the next slot ---- */

#define SLOW 4095 /* the length of the request that holds the one slot for a while */

struct queue {
    struct gaia_io *io;
    struct gaia_io_file *file;
    int fd;
    bool push, submit_another;
    uint8_t *buffer;
    struct outcome slow, others[3];
    _Atomic int order, place_of_another;
};

static void another_done(void *context, ssize_t result)
{
    struct queue *q = context;

    atomic_store(&q->place_of_another, atomic_fetch_add(&q->order, 1));
    note(&q->others[2], result);
}

static void slow_done(void *context, ssize_t result)
{
    struct queue *q = context;

    if (q->submit_another &&
        gaia_io_read(q->io, q->file, q->buffer + 3 * CHUNK, 100, 0, another_done, q) != 0)
        result = -ECHILD;
    note(&q->slow, result);
}

static void waiter_done(void *context, ssize_t result)
{
    struct queue *q = context;

    note(&q->others[atomic_fetch_add(&q->order, 1) == 0 ? 0 : 1], result);
}

static void *read_and_leave(void *context)
{
    static _Atomic size_t next;
    struct queue *q = context;
    size_t place = 1 + atomic_fetch_add(&next, 1) % 2;

    gaia_io_read(q->io, q->file, q->buffer + place * CHUNK, 100, 0, waiter_done, q);
    if (q->push)
        gaia_io_submit(q->io);
    return NULL;
}

/* Two threads wait for the one slot, and perhaps what the callback of the request that holds it submits. */
static void run_queue(struct queue *q, enum gaia_io_kind kind)
{
    struct gaia_io_config config = {.kind = kind, .depth = 1};
    pthread_t threads[2];
    unsigned waiting = 0;

    q->io = new_engine_of(&config);
    q->fd = new_file();
    q->buffer = new_buffer(4 * CHUNK);
    write_pattern(q->fd, 8192, SALT);
    q->file = open_file(q->io, q->fd);
    plan(ANY, EAGAIN, 1, 10);
    fault.only_length = SLOW;
    assert_int_equal(gaia_io_read(q->io, q->file, q->buffer, SLOW, 0, slow_done, q), 0);
    gaia_io_submit(q->io);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_and_leave, q), 0);
    while (waiting < 2 && atomic_load(&q->slow.calls) == 0) {
        pthread_mutex_lock(&q->io->lock);
        waiting = q->io->submitters_waiting;
        pthread_mutex_unlock(&q->io->lock);
    }
    assert_int_equal(waiting, 2); /* else the threads took longer to start than the slow request to end */
    assert_int_equal(await(&q->slow), SLOW);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    gaia_io_submit(q->io);
    for (unsigned i = 0; i < (q->submit_another ? 3 : 2); i++)
        assert_int_equal(await(&q->others[i]), 100);
    gaia_io_file_close(q->file);
    gaia_io_close(q->io);
    free(q->buffer);
    close(q->fd);
}

/* Who gets the slot first never pushes, and still the second gets it too. */
static void waiting_makes_others_push(void **state)
{
    struct queue q;

    memset(&q, 0, sizeof q);
    run_queue(&q, *(enum gaia_io_kind *)*state);
}

/* A callback's request does not wait until no thread waits any more. */
static void callbacks_get_a_turn(void **state)
{
    struct queue q;

    memset(&q, 0, sizeof q);
    q.push = q.submit_another = true;
    run_queue(&q, *(enum gaia_io_kind *)*state);
    assert_true(atomic_load(&q.place_of_another) < 2);
}

/* Closing waits for retries too, and does not skip them. */
static void close_while_retrying(void **state)
{
    struct bench b = new_bench(state);
    struct outcome outcomes[16];

    plan(ANY, EAGAIN, 1, 16 * 4);
    for (unsigned i = 0; i < 16; i++) {
        atomic_store(&outcomes[i].calls, 0);
        assert_int_equal(gaia_io_read(b.io, b.file, b.buffer + i * CHUNK, 1000, i * 1000, note, &outcomes[i]),
                         0);
    }
    gaia_io_file_close(b.file);
    gaia_io_close(b.io);
    b.file = NULL;
    b.io = NULL;
    assert_int_equal(atomic_load(&fault.landed), 16 * 4);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(atomic_load(&outcomes[i].calls), 1);
        assert_int_equal(atomic_load(&outcomes[i].result), 1000);
        assert_true(matches(b.buffer + i * CHUNK, 1000, SALT, i * 1000));
    }
    free_bench(&b);
}

/* ---- errors of the kernel's own ---- */

static void errors_of_the_kernel(void **state)
{
    struct bench b = new_bench(state);
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int only_write = new_file_in(directory, O_WRONLY);
    struct gaia_io_file *file = open_file(b.io, only_write);

    assert_true(nowhere != MAP_FAILED);
    assert_int_equal(read_once(b.io, file, b.buffer, 4096, 0), -EBADF);
    assert_int_equal(read_once(b.io, b.file, nowhere, 4096, 0), -EFAULT);
    assert_int_equal(read_once(b.io, b.file, b.buffer, 4096, 0), 4096);
    gaia_io_file_close(file);
    munmap(nowhere, 4096);
    close(only_write);
    free_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        // clang-format off
        CASE(short_reads),
        CASE(interrupted),
        CASE(cancelled),
        CASE(would_block),
        CASE(all_of_these),
        CASE(direct_refused),
        CASE(errors_are_reported),
        CASE(retries_are_bounded),
        CASE(progress_renews_the_retries),
        CASE(error_after_some_bytes),
        CASE(nothing_moved),
        CASE(pauses_hold_up_nobody),
        CASE(waiting_makes_others_push),
        CASE(callbacks_get_a_turn),
        CASE(close_while_retrying),
        CASE(errors_of_the_kernel),
        // clang-format on
    };

    return RUN("io/engine_faults", tests);
}
