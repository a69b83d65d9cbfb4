/* SPDX-License-Identifier: Apache-2.0 */
/* The fault path into memory that stands: that is registered once, as a GPU's is, and not for each read. When
 * a read is told, what is known of whether bytes arrive there, and which path has shown it.
 *
 * Local without arguments; `--carrier rdma HERE THERE` as the tests of the transport (tests/io). */
#include "tests/cache/fault_path.inc"

static struct gaia_standing standing;
static struct gaia_reaches reaches;
static uint8_t *mapped; /* its memory, in this process */
static unsigned fetches;

static int open_standing(struct gaia_frames *frames, uint64_t page, uint64_t count,
                         struct gaia_window *window_out)
{
    (void)frames;
    *window_out = (struct gaia_window){
        .page = page, .count = count, .memory = mapped + page * PAGE, .standing = &standing};
    return 0;
}

static int close_standing(struct gaia_frames *frames, const struct gaia_window *window, bool arrived)
{
    (void)frames, (void)window, (void)arrived;
    standing_closed++;
    return 0;
}

static int fetch(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out)
{
    fetches++;
    for (unsigned i = 0; i < count; i++)
        if (pread(((struct frames *)frames)->fd, pages_out[i], PAGE, (off_t)((page + i) * PAGE)) != PAGE)
            return -EIO;
    return 0;
}

static int drop(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    (void)frames, (void)page, (void)count;
    return 0;
}

static const struct gaia_frames_ops standing_ops = {
    .open_window = open_standing, .close_window = close_standing, .fetch = fetch, .drop = drop};

/* Frames whose memory is registered once. */
static void standing_open(struct world *w, unsigned timeout_ms)
{
    world_open(w, timeout_ms);
    memset(&reaches, 0, sizeof reaches);
    fetches = 0;
    mapped = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, w->frames.fd, 0);
    assert_ptr_not_equal(mapped, MAP_FAILED);
    standing = (struct gaia_standing){.address = mapped, .length = PAGES * PAGE, .reaches = &reaches};
    w->frames.base.ops = &standing_ops;
}

static void standing_close(struct world *w)
{
    gaia_standing_end(&standing);
    world_close(w);
    munmap(mapped, PAGES * PAGE);
}

static enum gaia_reach reach(void)
{
    return gaia_standing_reach(&standing, GAIA_PATH_FAULTS);
}

/* Who has touched a page is told when the window has ended: the memory may have to be flushed first. */
static void test_told_last(void **state)
{
    struct fault_path_stat s;
    struct world w;
    struct one one;

    (void)state;
    standing_open(&w, TIMEOUT_MS);
    one_init(&one);
    unsigned before = standing_closed;
    assert_int_equal(begin_one(&w, &one, 3, 5, 7), 0);
    assert_int_equal(one_wait(&one), 0);
    assert_true(one.closed > before);
    fault_path_stat(w.path, &s);
    assert_int_equal(s.bounced, 0);
    standing_close(&w);
}

/* A path that is made anew may be another NIC's, whose writes are dropped: what the first one has proven does
 * not hold for it. */
static void test_proven_by_another(void **state)
{
    struct world w;

    (void)state;
    standing_open(&w, TIMEOUT_MS);
    assert_int_equal(read_one(&w, 0, 4, 8), 0);
    assert_true(frames_have(&w, 0, 4, 8));
    assert_int_equal(reach(), GAIA_REACH_PROVEN);
    unsigned looked = fetches;
    assert_int_equal(read_one(&w, 4, 4, 30), 0);
    assert_int_equal(fetches, looked);
    assert_int_equal(transport_test_break(w.path->agent, 0), 0);
    wait_connects(&w, 2);
    assert_int_equal(read_one(&w, 8, 4, 50), 0); /* this one's arrive, too */
    assert_true(frames_have(&w, 8, 4, 50));
    assert_true(fetches > looked);
    assert_int_equal(transport_test_break(w.path->agent, 0), 0);
    wait_connects(&w, 3);
    assert_ptr_equal(mmap(standing.address, PAGES * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                     standing.address); /* what it writes goes somewhere else */
    assert_int_equal(read_one(&w, 12, 4, 70), -EOPNOTSUPP);
    assert_int_equal(reach(), GAIA_REACH_NONE);
    standing_close(&w);
}

static int refuse_for_now(struct gaia_standing *asked)
{
    (void)asked;
    return -ENOMEM;
}

/* Nothing is fetched for what can't be registered, and that is known. */
static void test_refused_for_now(void **state)
{
    void *address;
    struct world w;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip();
    standing_open(&w, TIMEOUT_MS);
    w.path->transport->limits.dmabuf = true;
    standing.share = refuse_for_now;
    address = standing.address;
    standing.address = NULL; /* which nobody registers */
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(read_one(&w, 4 * i, 4, 8), -ENOMEM);
    assert_int_equal(fetches, 0);
    assert_int_equal(reach(), GAIA_REACH_UNKNOWN);
    assert_true(reaches.refused[GAIA_PATH_FAULTS] && !reaches.refused[GAIA_PATH_CALLS]);
    standing.address = address;
    usleep(1100 * 1000);
    assert_int_equal(read_one(&w, 0, 4, 8), 0);
    assert_int_equal(reach(), GAIA_REACH_PROVEN);
    assert_false(reaches.refused[GAIA_PATH_FAULTS]);
    w.path->transport->limits.dmabuf = false;
    standing_close(&w);
}

/* A read that still waited when the path ended shows nothing of its memory; one that was on its way does. */
static void test_blamed_for_what_was_posted(void **state)
{
    enum { PLACES = 16 }; /* of the path: world_open() */
    static struct one ones[PLACES + 1];
    struct frames soft;
    struct world w;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip(); /* a NIC is not deaf */
    for (unsigned posted = 0; posted < 2; posted++) {
        standing_open(&w, SHORT_MS);
        soft = (struct frames){.base = {.ops = &ops}, .fd = w.frames.fd};
        transport_test.deaf = true;
        for (unsigned i = 0; i <= PLACES; i++) {
            bool stands = i == (posted ? 0 : PLACES);
            ones[i].done = false;
            one_init(&ones[i]);
            ones[i].read = (struct fault_read){.frames = stands ? &w.frames.base : &soft.base,
                                               .first = i,
                                               .count = 1,
                                               .bytes = w.host + i * PAGE,
                                               .done = one_done};
            assert_int_equal(fault_path_read(w.path, &ones[i].read), 0);
        }
        for (unsigned i = 0; i <= PLACES; i++)
            assert_int_equal(one_wait(&ones[i]), -EIO);
        transport_test.deaf = false;
        assert_int_equal(reach(), posted ? GAIA_REACH_NONE : GAIA_REACH_UNKNOWN);
        wait_connects(&w, 2);
        standing_close(&w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_told_last),
        CASE(test_proven_by_another),
        CASE(test_refused_for_now),
        CASE(test_blamed_for_what_was_posted),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("the fault path into memory that stands", tests, NULL, NULL);
}
