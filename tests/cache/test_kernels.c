/* SPDX-License-Identifier: Apache-2.0 */
/* A home's half of several nodes that needs no other node: files that another one has taken over, and what
 * the kernels of others hold (cache/kernels.h), who drop whatever they are told to. */
#include "tests/cache/fixture.inc"

#include "cache/agent.h"
#include "cache/behind.h"
#include "cache/home_open.h"
#include "cache/internal.h"
#include "io/protocol.h"

static struct fixture f;

static struct nodes nodes;

static int host_grow(void *context, void *file_context, off_t size)
{
    (void)context;
    (void)file_context;
    (void)size;
    return 0;
}

/* With nodes, none of which is there. */
static bool start_nodes(void)
{
    if (!fixture_start(&f, 1 << 20))
        return false;
    f.cache->host.grow = host_grow;
    f.cache->nodes = &nodes;
    assert_int_equal(dropper_start(f.cache), 0);
    return true;
}

static void stop_nodes(void)
{
    dropper_stop(f.cache);
    f.cache->nodes = NULL;
    fixture_stop(&f);
}

static int given(unsigned node, off_t offset, size_t length)
{
    pthread_mutex_lock(&f.file->lock);
    int error = kernels_given(f.file, node, offset, length);
    pthread_mutex_unlock(&f.file->lock);
    return error;
}

/* fallocate() here leaves out what this machine's kernel writes back. What others' have was read after it, or
 * has a twin. */
static void test_a_write_back_of_another_node_beside_a_change(void **state)
{
    struct overrule overrule = {0};
    char bytes[7] = "";

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    assert_int_equal(pwrite(f.fd, "......", 6, 0), 6);
    overrule_begin(&overrule, f.file->durable, 0, 4096);
    ssize_t own = cache_file_write(f.file, f.fd, "own", 3, 0, CACHE_IO_WRITEBACK);
    ssize_t far = cache_file_write(f.file, f.fd, "far", 3, 3, CACHE_IO_WRITEBACK | CACHE_IO_NODE(2));
    overrule_end(&overrule, f.file->durable);
    ssize_t n = pread(f.fd, bytes, 6, 0);
    fixture_stop(&f);
    assert_true(own == 3 && far == 3 && n == 6);
    assert_string_equal(bytes, "...far");
}

static ssize_t results[5];

static void *change_somehow(void *argument)
{
    size_t how = (size_t)(uintptr_t)argument;

    switch (how) {
    case 0:
        results[how] = cache_file_write(f.file, f.fd, "new", 3, 0, 0);
        break;
    case 1:
        results[how] = cache_file_truncate(f.file, f.fd, 1);
        break;
    case 2:
        results[how] =
            cache_file_fallocate(f.file, f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096, NULL);
        break;
    case 3:
        results[how] = cache_file_seek(f.file, f.fd, 0, SEEK_DATA);
        break;
    default:
        results[how] = cache_file_copy_range(f.file, f.fd, 4096, f.file, f.fd, 0, 3, 0, NULL);
    }
    return NULL;
}

/* Who has come before, and has waited for others meanwhile, is not at the home either. */
static void test_changes_that_wait_while_a_file_is_given_up(void **state)
{
    pthread_t threads[5];
    char bytes[4] = "";

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    assert_int_equal(pwrite(f.fd, "old", 3, 0), 3);
    pthread_mutex_lock(&f.file->lock);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, change_somehow, (void *)(uintptr_t)i), 0);
    usleep(50000);
    f.file->given_up = true;
    pthread_mutex_unlock(&f.file->lock);
    for (size_t i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    ssize_t n = pread(f.fd, bytes, 3, 0);
    fixture_stop(&f);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(results[i], i < 4 ? -EIO : -EXDEV);
    assert_int_equal(n, 3);
    assert_string_equal(bytes, "old");
}

/* Its bytes are the new home's, also those of a copy that the kernel has asked for here. */
static void test_a_copy_of_a_file_that_was_given_up(void **state)
{
    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    assert_int_equal(pwrite(f.fd, "old", 3, 0), 3);
    /* On the same filesystem: Linux itself says EXDEV of another. */
    char path[sizeof f.path + 8];
    snprintf(path, sizeof path, "%s.other", f.path);
    int other = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(other >= 0 && unlink(path) == 0 && ftruncate(other, 4096) == 0);
    cache_file_give_up(f.file);
    ssize_t into = cache_file_copy_range(f.file, f.fd, 0, f.file, f.fd, 4096, 3, 0, NULL);
    ssize_t to = cache_file_copy_range(NULL, other, 0, f.file, f.fd, 0, 3, 0, NULL);
    ssize_t from = cache_file_copy_range(f.file, f.fd, 0, NULL, other, 0, 3, 0, NULL);
    uint8_t first = home_byte(&f, 0), second = home_byte(&f, 4096);
    close(other);
    fixture_stop(&f);
    assert_int_equal(into, -EXDEV);
    assert_int_equal(to, -EXDEV);
    assert_int_equal(from, -EXDEV);
    assert_int_equal(first, 'o');
    assert_int_equal(second, 0);
}

/* Another one's that is later, as this one's is announced to nobody yet, or earlier. What was given up is
 * announced to nobody: all would take this node for the latest home. */
static void test_a_file_that_is_given_up_before_it_is_announced(void **state)
{
    const struct node_name name = {.length = 1};

    (void)state;
    if (!start_nodes())
        skip();
    f.file->generation = 7;
    int later = cache_file_give_way(f.file, 7);
    bool kept = !cache_file_is_lost(f.file);
    f.file->generation = 0;
    int earlier = cache_file_give_way(f.file, 7);
    bool lost = cache_file_is_lost(f.file);
    int announced = home_announce(f.file, &name);
    uint64_t generation = f.file->generation;
    stop_nodes();
    assert_true(later == -EBUSY && kept);
    assert_true(earlier == 0 && lost);
    assert_int_equal(announced, -ESTALE);
    assert_int_equal(generation, 0);
}

/* The home is told the end of each READ, also of one that it has not heard of: not another's. */
static void test_a_read_of_a_far_file_that_was_given_up(void **state)
{
    struct agent_file far = {.number = 1};
    struct cache_read read = {.number = 3};
    uint8_t byte;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    nodes.reads = 7;
    f.cache->nodes = &nodes;
    f.file->far = &far;
    cache_file_give_up(f.file);
    ssize_t got = cache_file_read(f.file, -1, &byte, 1, 0, 0, &read);
    f.file->far = NULL;
    f.cache->nodes = NULL;
    fixture_stop(&f);
    assert_int_equal(got, -EIO);
    assert_int_equal(read.number, 8);
}

/* Without the twin of what another node's kernel holds of the page in which the file ends, that one's
 * write-back would bring back what was cut off. */
static void test_a_cut_that_can_keep_no_twin(void **state)
{
    struct stat st;

    (void)state;
    if (!start_nodes())
        skip();
    assert_int_equal(given(2, 0, 4096), 0);
    int readable = dup(f.file->fd), writable = open(f.path, O_WRONLY | O_CLOEXEC);
    assert_true(readable >= 0 && writable >= 0);
    assert_true(dup2(writable, f.file->fd) >= 0);
    int error = cache_file_truncate(f.file, f.fd, 100);
    assert_int_equal(fstat(f.fd, &st), 0);
    assert_true(dup2(readable, f.file->fd) >= 0);
    int again = cache_file_truncate(f.file, f.fd, 100);
    close(readable);
    close(writable);
    stop_nodes();
    assert_int_equal(error, -EBADF);
    assert_int_equal(st.st_size, FIXTURE_PAGES * 4096);
    assert_int_equal(again, 0);
}

/* Any member may have read there: then nobody could cut the file any more. */
static void test_a_cut_of_what_was_read_at_the_last_byte_that_there_can_be(void **state)
{
    (void)state;
    if (!start_nodes())
        skip();
    int read = given(2, INT64_MAX - 1, 1);
    int error = cache_file_truncate(f.file, f.fd, 100);
    stop_nodes();
    assert_int_equal(read, 0);
    assert_int_equal(error, 0);
}

#define LEAVES 20000u
#define LEAF_BYTES (LEAF_PAGES * 4096u)

/* The kernels of this node and of another hold a page of each of so many leaves, which a third one changes.
 */
static void make_old(unsigned leaves)
{
    for (unsigned leaf = 0; leaf < leaves; leaf++)
        for (unsigned node = 0; node < 2; node++)
            assert_int_equal(given(2 * node, (off_t)leaf * LEAF_BYTES, 4096), 0);
    pthread_mutex_lock(&f.file->lock);
    assert_int_equal(kernels_change(f.file, 1, 0, (uint64_t)leaves * LEAF_BYTES), 0);
    assert_int_equal(f.file->kernels.old, 2 * leaves);
    pthread_mutex_unlock(&f.file->lock);
}

/* Of a large file: who flushes would give up before a dropper had come through that looks at all of them for
 * each. */
static void test_many_leaves(void **state)
{
    struct timespec before, after;

    (void)state;
    if (!start_nodes())
        skip();
    make_old(LEAVES);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    int flushed = kernels_flush(f.file);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    uint64_t left = f.file->kernels.old;
    stop_nodes();
    assert_int_equal(flushed, 0);
    assert_int_equal(left, 0);
    assert_true(after.tv_sec - before.tv_sec <= 5); /* 0.05 s, and without a sanitizer */
}

static bool held(unsigned node)
{
    pthread_mutex_lock(&f.file->lock);
    bool any = kernels_held_any(f.file, node);
    pthread_mutex_unlock(&f.file->lock);
    return any;
}

/* Each by itself, also of what it has dropped again: that may be on its way here. */
static void test_who_has_held_any_page(void **state)
{
    (void)state;
    if (!start_nodes())
        skip();
    assert_false(held(0) || held(1) || held(2) || held(3));
    given(1, 40 * 4096, 4096);
    assert_true(held(1) && !held(0) && !held(2));
    assert_int_equal(cache_file_write(f.file, f.fd, "x", 1, 40 * 4096, CACHE_IO_NODE(3)), 1);
    assert_int_equal(kernels_flush(f.file), 0);
    assert_int_equal(f.file->kernels.old, 0);
    assert_true(held(1) && held(3) && !held(2)); /* a WRITE leaves its page where it came from */
    stop_nodes();
}

static _Atomic off_t failing; /* -1: what is dropped first; -2: nothing */

static int host_drop(void *context, void *file_context, off_t offset, off_t length)
{
    off_t first = -1;

    (void)context;
    (void)file_context;
    (void)length;
    atomic_compare_exchange_strong(&failing, &first, offset);
    return offset == failing ? -ENOMEM : 0;
}

static uint64_t old_pages(void)
{
    pthread_mutex_lock(&f.file->lock);
    uint64_t old = f.file->kernels.old;
    pthread_mutex_unlock(&f.file->lock);
    return old;
}

/* It is tried again, and the others meanwhile. */
static void test_a_leaf_that_is_not_dropped(void **state)
{
    (void)state;
    if (!start_nodes())
        skip();
    f.cache->host.invalidate = host_drop;
    failing = -1;
    make_old(100);
    kernels_settle(f.file);
    for (unsigned ms = 0; ms < 5000 && old_pages() > 1; ms++)
        usleep(1000);
    uint64_t held_up = old_pages();
    failing = -2;
    int flushed = kernels_flush(f.file);
    uint64_t left = old_pages();
    stop_nodes();
    assert_int_equal(held_up, 1);
    assert_int_equal(flushed, 0);
    assert_int_equal(left, 0);
}

static void *close_the_next(void *id)
{
    while (cache_map_close(f.client, *(uint32_t *)id + 1) == -ENOENT)
        sched_yield();
    return NULL;
}

/* Numbers can be guessed: a map may be gone before who has opened it hears of its number. (TSan sees it.) */
static void test_a_map_that_is_closed_before_it_is_open(void **state)
{
    struct cache_map_request request = {.count = FIXTURE_PAGES};
    int frames, shared;
    pthread_t thread;
    uint64_t chunk;
    uint32_t id;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    request.file = f.file;
    struct device_map map = device_map(&f, 0);
    assert_int_equal(pthread_create(&thread, NULL, close_the_next, &map.id), 0);
    int error = cache_map_open(f.client, &request, &id, &frames, &shared, &chunk);
    pthread_join(thread, NULL);
    close(frames);
    close(shared);
    fixture_stop(&f);
    munmap(map.bytes, FIXTURE_PAGES * 4096);
    assert_int_equal(error, 0);
    assert_int_equal(id, map.id + 1);
}

static pthread_t opener;

static void *open_on_another_device(void *argument)
{
    struct cache_map_request request = {.file = f.file, .device = 1, .count = FIXTURE_PAGES};
    int frames, shared;
    uint64_t chunk;
    uint32_t id;

    if (cache_map_open(f.client, &request, &id, &frames, &shared, &chunk) == -EIO)
        return argument;
    close(frames);
    close(shared);
    return NULL;
}

/* Not joined here, which would put the two in order. */
static int drop_beside_an_opener(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    assert_int_equal(pthread_create(&opener, NULL, open_on_another_device, &f), 0);
    usleep(100000);
    return plain_frames->drop(frames, page, count);
}

/* It would not be told that the file is given up: its releases would be acknowledged. */
static void test_a_device_that_comes_while_a_file_is_given_up(void **state)
{
    void *result;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    f.drop = drop_beside_an_opener;
    cache_file_give_up(f.file);
    assert_null(f.drop);
    pthread_join(opener, &result);
    fixture_stop(&f);
    munmap(map.bytes, FIXTURE_PAGES * 4096);
    assert_ptr_equal(result, &f);
}

static void tell(struct home_open *open, bool any, uint64_t number)
{
    pthread_mutex_lock(&f.file->lock);
    writers_told(f.file, &open->writers, any, number);
    pthread_mutex_unlock(&f.file->lock);
}

/* As home_open_make() has it. */
static struct home_open *open_of(struct home_session *agent)
{
    struct home_open *open = calloc(1, sizeof *open);

    *open = (struct home_open){.session = agent, .file = f.file, .references = 1};
    file_use(f.file);
    durable_open(f.file->durable, true, &open->seen);
    pthread_mutex_lock(&f.file->lock);
    LIST_INSERT_HEAD(&f.file->opens, open, file_link);
    pthread_mutex_unlock(&f.file->lock);
    return open;
}

/* A device of the home's has to ask as long as programs of any other node may store to the file; what is told
 * late, by another thread, counts for nothing. */
static void test_writers_come_and_go(void **state)
{
    struct home_session agents[2] = {{.member = 1}, {.member = 2}};
    struct home_open *opens[2];

    (void)state;
    if (!start_nodes())
        skip();
    f.cache->config.behind_timeout_ns = 1000;
    struct device_map map = device_map(&f, 0);
    struct replica *replica = SLIST_FIRST(&f.file->replicas);
    for (unsigned i = 0; i < 2; i++) {
        lock_init(&agents[i].lock, LOCK_HOME_SESSION);
        opens[i] = open_of(&agents[i]);
    }
    tell(opens[0], false, 0);
    assert_int_equal(replica->state->timeout_ns, 1000);
    tell(opens[0], true, 1);
    assert_int_equal(replica->state->timeout_ns, 0);
    tell(opens[1], true, 5);
    tell(opens[0], false, 2);
    assert_int_equal(replica->state->timeout_ns, 0);
    tell(opens[1], false, 4); /* before they came again */
    assert_int_equal(replica->state->timeout_ns, 0);
    tell(opens[1], false, 6);
    assert_int_equal(replica->state->timeout_ns, 1000);
    tell(opens[0], true, 3);
    cache_file_writers(f.file, false, 1, true); /* this node's own are another matter */
    assert_int_equal(replica->state->timeout_ns, 0);
    home_open_put(opens[0]); /* its agent has gone */
    assert_int_equal(replica->state->timeout_ns, 1000);
    cache_file_writers(f.file, true, 2, true);
    assert_int_equal(replica->state->timeout_ns, 1000);
    home_open_put(opens[1]);
    stop_nodes();
    munmap(map.bytes, FIXTURE_PAGES * 4096);
}

static unsigned finds;

static int host_find(void *context, const struct node_name *name, struct cache_file **file_out)
{
    (void)context;
    (void)name;
    finds++;
    file_use(f.file);
    *file_out = f.file;
    return 0;
}

static void assert_found(bool suspect)
{
    pthread_mutex_lock(&f.file->lock);
    assert_int_equal(f.file->suspect, suspect);
    assert_int_equal(f.file->looked == f.file->behind, !suspect);
    pthread_mutex_unlock(&f.file->lock);
}

/* What is found between, and whom it has met since the first time, is of the second: there they count as from
 * before. And the end of the mount does not wait for many files' times. */
static void test_a_home_that_stands_still_again_while_it_looks(void **state)
{
    (void)state;
    if (!start_nodes())
        skip();
    lock_init(&nodes.lock, LOCK_NODES);
    lock_condition_init(&nodes.stopped);
    nodes.cache = f.cache;
    nodes.timeout_ms = 1000;
    nodes.stalls = 2;
    f.cache->host.find = host_find;
    f.file->announced = ANNOUNCED;
    f.file->behind++;
    f.file->suspect = true;
    behind_settle(&nodes, 1, true);
    assert_found(true);
    behind_settle(&nodes, 1, false);
    assert_found(true);
    nodes.stop = true;
    finds = 0;
    behind_settle(&nodes, 1, true);
    assert_int_equal(finds, 0);
    nodes.stop = false;
    behind_settle(&nodes, 2, true);
    assert_found(false);
    assert_int_equal(f.file->kernels.refused, 0); /* it was dropped */
    f.file->announced = NOT_ANNOUNCED;
    stop_nodes();
    pthread_cond_destroy(&nodes.stopped);
    pthread_mutex_destroy(&nodes.lock);
    nodes = (struct nodes){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_write_back_of_another_node_beside_a_change),
        cmocka_unit_test(test_changes_that_wait_while_a_file_is_given_up),
        cmocka_unit_test(test_a_copy_of_a_file_that_was_given_up),
        cmocka_unit_test(test_a_file_that_is_given_up_before_it_is_announced),
        cmocka_unit_test(test_a_read_of_a_far_file_that_was_given_up),
        cmocka_unit_test(test_a_cut_that_can_keep_no_twin),
        cmocka_unit_test(test_a_cut_of_what_was_read_at_the_last_byte_that_there_can_be),
        cmocka_unit_test(test_many_leaves),
        cmocka_unit_test(test_who_has_held_any_page),
        cmocka_unit_test(test_a_leaf_that_is_not_dropped),
        cmocka_unit_test(test_a_map_that_is_closed_before_it_is_open),
        cmocka_unit_test(test_a_device_that_comes_while_a_file_is_given_up),
        cmocka_unit_test(test_writers_come_and_go),
        cmocka_unit_test(test_a_home_that_stands_still_again_while_it_looks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
