/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the transport that can fail does (tests/faults): each allocation, system call, call of
 * librdmacm and of libibverbs, the 1st time, the 2nd ..., once or from then on, while two ends connect, talk,
 * expose, read and part.
 *
 * No crash, no hang, no descriptor that is left; each step ends well or with a negative errno and a sentence;
 * what was read without an error is right. Verbs that are inlined (ibv_post_send(), ibv_poll_cq() ...) can't
 * be had this way: their errors are those of test_transport_faults.c. */
#include "tests/io/transport_fixture.h"

#define ROWS_MAX 128
#define CALLS_MAX 12 /* of a row, that are made to fail one by one */
#define LIMIT_MS 300u

/* As in tests/faults/table.c. */
struct plan {
    _Atomic int32_t row;
    _Atomic int32_t error;
    _Atomic int64_t countdown;
    _Atomic int32_t sticky;
    _Atomic int32_t landed;
    _Atomic int64_t calls[ROWS_MAX];
    char names[ROWS_MAX][32];
    _Atomic int32_t kill, victim;
    _Atomic int64_t only;
    _Atomic int32_t signal;
};
static struct plan *plan;

static const struct {
    const char *name;
    int errors[3];
} rows[] = {
    {"malloc", {ENOMEM}},
    {"calloc", {ENOMEM}},
    {"realloc", {ENOMEM}},
    {"posix_memalign", {ENOMEM}},
    {"mmap64", {ENOMEM}},
    {"memfd_create", {EMFILE}},
    {"ftruncate64", {EIO}},
    {"fstat64", {EIO}},
    {"fcntl64", {EIO}},
    {"eventfd", {EMFILE}},
    {"epoll_create1", {EMFILE}},
    {"epoll_ctl", {ENOSPC, ENOMEM}},
    {"epoll_wait", {EINTR, EIO}},
    {"poll", {EINTR, ENOMEM}},
    {"getrandom", {EINTR}},
    {"socket", {EMFILE}},
    {"bind", {EADDRINUSE, EACCES}},
    {"listen", {EADDRINUSE}},
    {"connect", {ECONNREFUSED, EAGAIN}},
    {"accept4", {EMFILE, ECONNABORTED}},
    {"getsockopt", {EIO}},
    {"sendmsg", {EINTR, EAGAIN, EPIPE}},
    {"recvmsg", {EINTR, EAGAIN, ENOMEM}},
    {"rdma_create_event_channel", {ENODEV}},
    {"rdma_create_id", {ENOMEM}},
    {"rdma_bind_addr", {ENODEV, EADDRINUSE}},
    {"rdma_listen", {EADDRINUSE}},
    {"rdma_resolve_addr", {ENETUNREACH, ENODEV}},
    {"rdma_resolve_route", {EIO}},
    {"rdma_connect", {EIO}},
    {"rdma_accept", {EIO}},
    {"rdma_get_cm_event", {EAGAIN, EIO}},
    {"rdma_create_qp", {ENOMEM, EINVAL}},
    {"ibv_get_device_list", {ENOMEM}},
    {"ibv_query_device", {EIO}},
    {"ibv_query_port", {EIO}},
    {"ibv_alloc_pd", {ENOMEM}},
    {"ibv_create_comp_channel", {EMFILE}},
    {"ibv_create_cq", {ENOMEM}},
    {"ibv_reg_mr", {ENOMEM, EINVAL}},
    {"ibv_reg_dmabuf_mr", {ENOMEM}},
    {"ibv_get_cq_event", {EAGAIN, EIO}},
};

static int row_number(const char *name)
{
    for (int i = 0; i < ROWS_MAX; i++)
        if (!strcmp(plan->names[i], name))
            return i;
    return -1;
}

/* ---- a bit of everything ---- */

static uint8_t *remote, *local;
static bool all_well;
static const char *walking = "nothing";
static int walking_call, walking_error, walking_sticky;

/* Said when an assertion fails. */
static int tell(void **state)
{
    if (plan->row >= 0)
        print_message("%s() number %d: %s%s\n", walking, walking_call, strerror(walking_error),
                      walking_sticky ? ", from then on" : "");
    plan->row = -1;
    return end(state);
}

/* An error that may be: it ends the run of steps. */
static bool is_well(int error)
{
    if (error) {
        all_well = false;
        assert_in_range(-error, 1, 4095);
        assert_true(strlen(gaia_transport_why()) > 3);
    }
    return !error;
}

static bool awaited(struct side *side, _Atomic unsigned *counter, unsigned least)
{
    if (!await_ms(side, counter, least, 2 * LIMIT_MS))
        all_well = false;
    return *counter >= least;
}

static void read_and_check(struct side *client, struct gaia_link *link, struct gaia_memory *memory)
{
    struct shot shots[4];
    unsigned posted = 0;

    memset(local, 0, 64 * KIB);
    for (; posted < 4; posted++) {
        shots[posted] =
            new_shot(memory, posted * 16 * KIB, client->region, posted * 16 * KIB, 16 * KIB, false);
        int n = post_one(link, posted % 2, &shots[posted]);
        if (n != 1 && !is_well(n))
            break;
    }
    for (unsigned i = 0; i < posted; i++) {
        assert_true(gaia_transport_wait(client->transport, shot_is_done, &shots[i], 20 * LIMIT_MS));
        assert_int_equal(shots[i].calls, 1);
        assert_true(!shots[i].error || shots[i].error == -EIO);
        if (shots[i].error)
            all_well = false;
        else
            assert_true(matches(local + i * 16 * KIB, 16 * KIB, 12, i * 16 * KIB));
    }
}

static void talk(struct side *server, struct side *client, struct gaia_link *link, struct gaia_memory *memory)
{
    uint32_t region;

    if (!is_well(gaia_link_send(link, "hello", 5)) || !awaited(server, &server->messages, 1) ||
        !awaited(server, &server->arrived, 1) ||
        !is_well(
            gaia_link_expose(server->links[0], &(struct gaia_span){remote, 64 * KIB, -1}, false, &region)) ||
        !awaited(client, &client->exposed, 1))
        return;
    read_and_check(client, link, memory);
    if (is_well(gaia_link_drop(server->links[0], region)) && awaited(client, &client->dropped, 1))
        awaited(server, &server->concealed, 1);
}

static void with_client(struct side *server)
{
    static struct side client;
    struct gaia_link_options options = {.queues = 2, .depth = 4};
    struct gaia_memory *memory = NULL;
    struct gaia_link *link = NULL;
    struct gaia_transport_config config;

    side_init(&client, false);
    config = side_config(&client, false, LIMIT_MS);
    if (!is_well(gaia_transport_open(&config, &client.transport)))
        return;
    if (is_well(gaia_memory_register(client.transport, &(struct gaia_span){local, 64 * KIB, -1}, &memory)) &&
        is_well(gaia_link_connect(client.transport, server->address, &options, &link))) {
        talk(server, &client, link, memory);
        gaia_link_close(link);
        gaia_memory_release(memory);
    }
    side_close(&client);
}

/* Whether all of it went well. */
static bool exercise(void)
{
    static struct side server;
    struct gaia_transport_config config;

    all_well = true;
    side_init(&server, true);
    config = side_config(&server, true, LIMIT_MS);
    if (is_well(gaia_transport_open(&config, &server.transport))) {
        side_start(&server);
        with_client(&server);
        side_close(&server);
    }
    return all_well;
}

/* ---- one row ---- */

static unsigned walk(int row, int error, bool sticky)
{
    unsigned landed = 0;

    for (int call = 1; call <= CALLS_MAX; call++) {
        unsigned before = descriptors();

        walking_call = call;
        walking_error = error;
        walking_sticky = sticky;
        plan->error = error;
        plan->countdown = call;
        plan->sticky = sticky;
        plan->landed = 0;
        plan->row = row;
        exercise();
        plan->row = -1;
        if (!plan->landed)
            break;
        landed++;
        if (carrier == GAIA_CARRIER_LOCAL)
            assert_int_equal(descriptors(), before);
        if (sticky)
            break;
    }
    return landed;
}

static void test_calls(void **state)
{
    unsigned rows_landed = 0, faults = 0;

    (void)state;
    alarm(0); /* a limit for each row instead */
    remote = new_frames(64 * KIB);
    local = new_frames(64 * KIB);
    fill(remote, 64 * KIB, 12);
    assert_true(exercise());
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        int row = row_number(rows[i].name);
        unsigned landed = 0;

        assert_true(row >= 0);
        alarm(TIME_LIMIT_S);
        walking = rows[i].name;
        for (unsigned k = 0; k < 3 && rows[i].errors[k]; k++) {
            int error = rows[i].errors[k];

            landed += walk(row, error, false);
            if (error != EINTR && error != EAGAIN)
                landed += walk(row, error, true);
        }
        alarm(0);
        if (landed)
            print_message("%s %u ", rows[i].name, landed);
        rows_landed += landed > 0;
        faults += landed;
    }
    print_message("\n%u faults of %u rows\n", faults, rows_landed);
    assert_true(exercise()); /* nothing is left of it */
    assert_in_range(rows_landed, carrier == GAIA_CARRIER_LOCAL ? 20 : 25, sizeof rows / sizeof *rows);
    munmap(remote, 64 * KIB);
    munmap(local, 64 * KIB);
}

/* The table looks for its plan before main(): make one, and begin anew. */
static void begin_anew(char **argv)
{
    char path[] = "/tmp/gaiafs-calls-XXXXXX";
    int fd = mkstemp(path);

    if (fd < 0 || ftruncate(fd, sizeof *plan) || setenv("GAIAFS_FAULTS", path, 1))
        exit(1);
    close(fd);
    execv("/proc/self/exe", argv);
    exit(1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {{"test_calls", test_calls, begin, tell, NULL}};
    const char *path = getenv("GAIAFS_FAULTS");

    if (!path)
        begin_anew(argv);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    plan = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (plan == MAP_FAILED)
        return 1;
    plan->row = -1;
    close(fd);
    unlink(path);
    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport, calls that fail", tests, NULL, NULL);
}
