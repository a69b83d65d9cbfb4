/* SPDX-License-Identifier: Apache-2.0 */
/* The batch reader: Little's law, the histogram, faults of several threads against an oracle, errors of
 * single reads and of the link. */
#include "tests/io/transport_fixture.h"

#include "io/histogram.h"
#include "io/pull.h"
#include "tests/io/pull_fetch.h"

/* ---- arithmetic ---- */

static void test_plan(void **state)
{
    struct gaia_transport_limits limits = {.reads_per_queue = 1, .queues = 16};
    struct gaia_pull_options paper = {.bytes_per_second = (uint64_t)12 << 30, .latency_ns = 23000};
    struct gaia_link_options shape;

    (void)state;
    /* The paper's numbers: 72.4 pages of 4 KiB, 36.2 of 8 KiB, so 73 and 37 must be under way. */
    limits.reads_per_queue = 128;
    shape = gaia_pull_plan(&limits, &paper, 4096);
    assert_int_equal(shape.queues * shape.depth, 73);
    shape = gaia_pull_plan(&limits, &paper, 8192);
    assert_int_equal(shape.queues * shape.depth, 37);
    /* A NIC that has 16 reads of a queue under way. */
    limits.reads_per_queue = 16;
    shape = gaia_pull_plan(&limits, &paper, 4096);
    assert_int_equal(shape.queues, 5);
    assert_in_range(shape.queues * shape.depth, 73, 80);
    /* The device's own rate, when nothing is said; large pages need few. */
    limits.bytes_per_second = 1250000000;
    shape = gaia_pull_plan(&limits, &(struct gaia_pull_options){0}, 2 << 20);
    assert_int_equal(shape.queues, 1);
    assert_int_equal(shape.depth, 4);
    /* What is asked for goes before the law, within the limits. */
    shape = gaia_pull_plan(&limits, &(struct gaia_pull_options){.queues = 3, .depth = 7}, 4096);
    assert_int_equal(shape.queues, 3);
    assert_int_equal(shape.depth, 7);
    shape = gaia_pull_plan(&limits, &(struct gaia_pull_options){.queues = 99, .depth = 99999}, 4096);
    assert_int_equal(shape.queues, 16);
    assert_int_equal(shape.depth, GAIA_LINK_DEPTH_MAX);
    shape = gaia_pull_plan(&limits, &(struct gaia_pull_options){.latency_ns = UINT64_MAX}, 1);
    assert_int_equal(shape.queues, 16);
    assert_int_equal(shape.depth, GAIA_LINK_DEPTH_MAX);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void test_histogram(void **state)
{
    enum { VALUES = 5000 };
    static uint64_t values[VALUES];
    static const unsigned marks[] = {1, 10, 500, 900, 990, 999, 1000};
    uint64_t random = seed;

    (void)state;
    for (unsigned round = 0; round < 20; round++) {
        struct histogram *h = calloc(1, sizeof *h);
        unsigned bits = 1 + (unsigned)draw(&random, 63);

        assert_int_equal(histogram_at(h, 500), 0);
        for (unsigned i = 0; i < VALUES; i++) {
            values[i] = draw(&random, UINT64_MAX) >> (64 - bits + draw(&random, bits));
            histogram_add(h, values[i]);
        }
        qsort(values, VALUES, sizeof *values, by_value);
        for (unsigned i = 0; i < sizeof marks / sizeof *marks; i++) {
            uint64_t exact = values[(VALUES * marks[i] + 999) / 1000 - 1], got = histogram_at(h, marks[i]);

            assert_true(got >= exact);
            assert_true(got - exact <= exact / 16);
        }
        assert_int_equal(histogram_at(h, 1000), values[VALUES - 1]);
        free(h);
    }
}

/* ---- reads ---- */

#define PAGES 256u
#define PAGE 4096u

struct pulling {
    struct pair pair;
    struct gaia_pull *pull;
    _Atomic bool starved;
    struct gaia_memory *memory;
    uint8_t *remote, *local;
    uint32_t region;
};

static void pulling_open(struct pulling *p, unsigned queues, unsigned depth, unsigned timeout_ms)
{
    pair_open(&p->pair, queues, depth, timeout_ms);
    p->remote = new_frames(PAGES * PAGE);
    p->local = new_frames(PAGES * PAGE);
    fill(p->remote, PAGES * PAGE, 11);
    p->memory = new_memory(&p->pair.client, p->local, PAGES * PAGE);
    p->region = expose_to(&p->pair, 0, p->remote, PAGES * PAGE, false);
    must(gaia_pull_open(p->pair.client.transport, p->pair.link, 0, depth, &p->starved, &p->pull));
}

static void pulling_close(struct pulling *p)
{
    if (p->pair.link)
        gaia_link_close(p->pair.link);
    gaia_pull_close(p->pull);
    gaia_memory_release(p->memory);
    pair_close(&p->pair);
    munmap(p->remote, PAGES * PAGE);
    munmap(p->local, PAGES * PAGE);
}

struct page_read {
    struct gaia_pull_read read; /* first */
    _Atomic int calls, error;
};

static void page_done(struct gaia_pull_read *read, int error)
{
    struct page_read *page = (struct page_read *)read;

    page->error = error;
    atomic_fetch_add(&page->calls, 1);
}

static struct page_read new_page(const struct pulling *p, unsigned to, unsigned from)
{
    return (struct page_read){.read = {.memory = p->memory,
                                       .memory_offset = (uint64_t)to * PAGE,
                                       .offset = (uint64_t)from * PAGE,
                                       .region = p->region,
                                       .length = PAGE,
                                       .done = page_done}};
}

static struct page_read pages[PAGES];
static unsigned page_count;

static bool pages_done(void *context)
{
    (void)context;
    for (unsigned i = 0; i < page_count; i++)
        if (!pages[i].calls)
            return false;
    return true;
}

static void await_pages(struct pulling *p, unsigned count)
{
    page_count = count;
    assert_true(gaia_transport_wait(p->pair.client.transport, pages_done, NULL, TIME_LIMIT_S * 1000));
}

/* Far more than the queues take, in one ring: all come, few doorbells are rung, and never too many are under
 * way. */
static void more_than_fits(unsigned queues, unsigned depth)
{
    static struct pulling p;
    struct gaia_pull_stat s;

    pulling_open(&p, queues, depth, TIMEOUT_MS);
    for (unsigned i = 0; i < PAGES; i++) {
        pages[i] = new_page(&p, i, PAGES - 1 - i);
        gaia_pull_add(p.pull, &pages[i].read);
    }
    gaia_pull_stat(p.pull, &s);
    assert_int_equal(s.waiting, PAGES);
    assert_int_equal(s.outstanding, 0);
    gaia_pull_ring(p.pull);
    await_pages(&p, PAGES);
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(pages[i].calls, 1);
        assert_int_equal(pages[i].error, 0);
        assert_true(matches(p.local + i * PAGE, PAGE, 11, (uint64_t)(PAGES - 1 - i) * PAGE));
    }
    gaia_pull_stat(p.pull, &s);
    assert_string_equal(s.path, carrier == GAIA_CARRIER_RDMA ? "rdma" : "local");
    assert_int_equal(s.reads, PAGES);
    assert_int_equal(s.bytes, PAGES * PAGE);
    assert_int_equal(s.failed, 0);
    assert_int_equal(s.outstanding + s.waiting, 0);
    assert_int_equal(s.outstanding_max, queues * depth < PAGES ? queues * depth : PAGES);
    print_message("%u x %u: %u doorbells for %u reads; p50 %u us, p99 %u us\n", queues, depth,
                  (unsigned)s.doorbells, PAGES, (unsigned)(s.latency_p50_ns / 1000),
                  (unsigned)(s.latency_p99_ns / 1000));
    if (depth >= 16)
        assert_in_range(s.doorbells, 1, PAGES / 2);
    assert_true(s.latency_p50_ns > 0 && s.latency_p50_ns <= s.latency_p90_ns &&
                s.latency_p90_ns <= s.latency_p99_ns && s.latency_p999_ns <= s.latency_max_ns);
    pulling_close(&p);
}

static void test_more_than_fits(void **state)
{
    (void)state;
    more_than_fits(1, 1);
    more_than_fits(1, 16);
    more_than_fits(4, 16);
    more_than_fits(2, 200);
}

/* The queues before the first one are somebody else's. */
static void test_queues_of_others(void **state)
{
    enum { DEPTH = 8, READS = 40 };
    static struct pulling p;
    struct gaia_pull_stat s;

    (void)state;
    pulling_open(&p, 3, DEPTH, TIMEOUT_MS);
    gaia_pull_close(p.pull);
    assert_int_equal(gaia_pull_open(p.pair.client.transport, p.pair.link, 3, DEPTH, &p.starved, &p.pull),
                     -EINVAL);
    must(gaia_pull_open(p.pair.client.transport, p.pair.link, 1, DEPTH, &p.starved, &p.pull));
    transport_test.deaf = carrier == GAIA_CARRIER_LOCAL;
    for (unsigned i = 0; i < READS; i++) {
        pages[i] = new_page(&p, i, i);
        gaia_pull_add(p.pull, &pages[i].read);
    }
    gaia_pull_ring(p.pull);
    gaia_pull_stat(p.pull, &s);
    assert_int_equal(s.queues, 2);
    assert_int_equal(s.outstanding_max, 2 * DEPTH);
    if (transport_test.deaf) { /* a NIC is not */
        assert_int_equal(p.pair.link->queues[0].busy, 0);
        assert_int_equal(p.pair.link->queues[1].busy, DEPTH);
        assert_int_equal(p.pair.link->queues[2].busy, DEPTH);
        gaia_link_close(p.pair.link);
        p.pair.link = NULL;
        transport_test.deaf = false;
    }
    await_pages(&p, READS);
    for (unsigned i = 0; i < READS; i++)
        assert_int_equal(pages[i].error, p.pair.link ? 0 : -ECANCELED);
    pulling_close(&p);
}

#define IN_THE_WAY 4u

/* A queue that has no room though nothing of the pull's is on it: no end of a read would ring again, so who
 * polls is told to, and nobody waits for it; nor does the end of the link. */
static void test_no_room_for_a_moment(void **state)
{
    static struct pulling p;
    static struct shot others[IN_THE_WAY];

    (void)state;
    for (int ends = 0; ends < 2; ends++) {
        pulling_open(&p, 1, IN_THE_WAY, TIMEOUT_MS);
        for (unsigned i = 0; i < IN_THE_WAY; i++) {
            others[i] = new_shot(p.memory, (uint64_t)(10 + i) * PAGE, p.region, 0, PAGE, false);
            assert_int_equal(post_one(p.pair.link, 0, &others[i]), 1);
        }
        for (unsigned i = 0; i < 3; i++) {
            pages[i] = new_page(&p, i, 5 + i);
            gaia_pull_add(p.pull, &pages[i].read);
        }
        gaia_pull_ring(p.pull);
        assert_true(p.starved);
        for (unsigned i = 0; i < IN_THE_WAY; i++)
            assert_true(
                gaia_transport_wait(p.pair.client.transport, shot_is_done, &others[i], TIME_LIMIT_S * 1000));
        assert_int_equal(pages[0].calls, 0);
        if (ends)
            gaia_pull_end(p.pull, -ECANCELED);
        else
            gaia_pull_ring(p.pull);
        await_pages(&p, 3);
        assert_false(p.starved);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(pages[i].error, ends ? -ECANCELED : 0);
            assert_false(ends && pages[i].read.tried);
            assert_true(ends || matches(p.local + i * PAGE, PAGE, 11, (uint64_t)(5 + i) * PAGE));
        }
        pulling_close(&p);
    }
}

/* What nobody could post, as the link had ended, may try again elsewhere. */
static void test_a_link_that_had_ended(void **state)
{
    static struct pulling p;

    (void)state;
    pulling_open(&p, 2, 4, TIMEOUT_MS);
    gaia_link_close(p.pair.server.links[0]);
    while (!gaia_link_error(p.pair.link))
        gaia_transport_poll(p.pair.client.transport, 10);
    for (unsigned i = 0; i < 3; i++) {
        pages[i] = new_page(&p, i, i);
        gaia_pull_add(p.pull, &pages[i].read);
    }
    gaia_pull_ring(p.pull);
    await_pages(&p, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pages[i].error, -EIO);
        assert_false(pages[i].read.tried);
    }
    pulling_close(&p);
}

/* Bad reads among good ones fail alone. */
static void test_bad_among_good(void **state)
{
    static struct pulling p;
    struct gaia_pull_stat s;

    (void)state;
    pulling_open(&p, 2, 8, TIMEOUT_MS);
    for (unsigned i = 0; i < 100; i++) {
        pages[i] = new_page(&p, i, i);
        if (i % 10 == 0)
            pages[i].read.offset = PAGES * PAGE - 1;
        if (i % 10 == 3)
            pages[i].read.region++;
        gaia_pull_add(p.pull, &pages[i].read);
    }
    gaia_pull_ring(p.pull);
    await_pages(&p, 100);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(pages[i].calls, 1);
        assert_int_equal(pages[i].error, i % 10 == 0 || i % 10 == 3 ? -EINVAL : 0);
        if (!pages[i].error)
            assert_true(matches(p.local + i * PAGE, PAGE, 11, (uint64_t)i * PAGE));
    }
    gaia_pull_stat(p.pull, &s);
    assert_int_equal(s.failed, 20);
    assert_int_equal(s.reads, 80);
    assert_int_equal(gaia_link_error(p.pair.link), 0);
    pulling_close(&p);
}

/* The link ends with reads under way and reads that wait: all end, once. */
static void test_link_ends(void **state)
{
    static struct pulling p;
    unsigned failed = 0;

    (void)state;
    for (int how = 0; how < 2; how++) {
        pulling_open(&p, 2, 8, TIMEOUT_MS);
        transport_test.deaf = true;
        for (unsigned i = 0; i < PAGES; i++) {
            pages[i] = new_page(&p, i, i);
            gaia_pull_add(p.pull, &pages[i].read);
        }
        gaia_pull_ring(p.pull);
        if (how) {
            gaia_link_close(p.pair.link); /* what waits must not be posted on it */
            p.pair.link = NULL;
        } else {
            assert_int_equal(transport_test_break(p.pair.link, 1), 0);
        }
        await_pages(&p, PAGES);
        for (unsigned i = 0; i < PAGES; i++) {
            assert_int_equal(pages[i].calls, 1);
            assert_true(!pages[i].error || pages[i].error == -EIO || pages[i].error == -ECANCELED);
            failed += pages[i].error != 0;
        }
        assert_true(failed > 0);
        transport_test.deaf = false;
        pulling_close(&p);
    }
}

/* ---- faults of several threads ---- */

struct toucher {
    struct pulling *p;
    unsigned number;
    _Atomic unsigned wrong;
};

#define TOUCHERS 4u
#define TOUCHES 150u

static void *touch(void *argument)
{
    struct toucher *t = argument;
    uint64_t random = seed + t->number;

    for (unsigned i = 0; i < TOUCHES; i++) {
        unsigned to = t->number * (PAGES / TOUCHERS) + i % (PAGES / TOUCHERS),
                 from = (unsigned)draw(&random, PAGES);
        struct page_read page = new_page(t->p, to, from);

        if (fetch(t->p->pair.client.transport, t->p->pull, &t->p->starved, &page.read) ||
            !matches(t->p->local + to * PAGE, PAGE, 11, (uint64_t)from * PAGE))
            t->wrong++;
    }
    return NULL;
}

static void test_faults_of_threads(void **state)
{
    static struct pulling p;
    struct toucher touchers[TOUCHERS];
    pthread_t threads[TOUCHERS];
    struct gaia_pull_stat s;

    (void)state;
    pulling_open(&p, 2, 8, TIMEOUT_MS);
    for (unsigned i = 0; i < TOUCHERS; i++) {
        touchers[i] = (struct toucher){&p, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, touch, &touchers[i]), 0);
    }
    for (unsigned i = 0; i < TOUCHERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(touchers[i].wrong, 0);
    }
    gaia_pull_stat(p.pull, &s);
    assert_int_equal(s.reads, TOUCHERS * TOUCHES);
    print_message("%u faults of %u threads: at most %u under way, p50 %u us, p99 %u us\n", TOUCHERS * TOUCHES,
                  TOUCHERS, s.outstanding_max, (unsigned)(s.latency_p50_ns / 1000),
                  (unsigned)(s.latency_p99_ns / 1000));
    pulling_close(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_plan),
        CASE(test_histogram),
        CASE(test_more_than_fits),
        CASE(test_bad_among_good),
        CASE(test_link_ends),
        CASE(test_faults_of_threads),
        CASE(test_queues_of_others),
        CASE(test_no_room_for_a_moment),
        CASE(test_a_link_that_had_ended),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("pulling", tests, NULL, NULL);
}
