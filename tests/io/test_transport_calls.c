/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the transport that can fail does (tests/faults): each allocation, system call, call of
 * librdmacm and of libibverbs, the 1st time, the 2nd ..., once or from then on, while two ends connect, talk,
 * expose, read and part.
 *
 * No crash, no hang, no descriptor that is left; each step ends well or with a negative errno and a sentence;
 * what was read without an error is right. Verbs that are inlined (ibv_post_send(), ibv_poll_cq() ...) can't
 * be had this way: their errors are those of test_transport_faults.c. */
#include "tests/io/fault_walk.h"

static const struct fault_row rows[] = {
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
    {"ibv_get_async_event", {EAGAIN, EIO}},
};

/* ---- a bit of everything ---- */

static uint8_t *remote, *local;

/* An error comes with a sentence. */
static bool goes_well(int error)
{
    assert_in_range(-error, 0, 4095);
    if (error)
        assert_true(strlen(gaia_transport_why()) > 3);
    return is_well(error);
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
        if (n != 1 && !goes_well(n))
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

    if (!goes_well(gaia_link_send(link, "hello", 5)) || !awaited(server, &server->messages, 1) ||
        !awaited(server, &server->arrived, 1) ||
        !goes_well(
            gaia_link_expose(server->links[0], &(struct gaia_span){remote, 64 * KIB, -1}, false, &region)) ||
        !awaited(client, &client->exposed, 1))
        return;
    read_and_check(client, link, memory);
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
    if (!goes_well(gaia_transport_open(&config, &client.transport)))
        return;
    if (goes_well(
            gaia_memory_register(client.transport, &(struct gaia_span){local, 64 * KIB, -1}, &memory)) &&
        goes_well(gaia_link_connect(client.transport, server->address, &options, &link))) {
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
    if (goes_well(gaia_transport_open(&config, &server.transport))) {
        side_start(&server);
        with_client(&server);
        side_close(&server);
    }
    return all_well;
}

/* ---- all of them ---- */

static void test_calls(void **state)
{
    (void)state;
    remote = new_frames(64 * KIB);
    local = new_frames(64 * KIB);
    fill(remote, 64 * KIB, 12);
    walk_rows(rows, sizeof rows / sizeof *rows, carrier == GAIA_CARRIER_LOCAL ? 20 : 25, exercise);
    munmap(remote, 64 * KIB);
    munmap(local, 64 * KIB);
}

int main(int argc, char **argv)
{
    return walk_main(argc, argv, "transport, calls that fail", test_calls);
}
