/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the C library that can fail does, while two nodes connect, call each other, post, move bytes
 * and part (those of the carriers alone: test_transport_calls.c).
 *
 * No crash, no hang, no descriptor that is left; each step ends well or with a negative errno; what went
 * without an error is right; who is to hear of the end of a session does, once. */
#include "tests/io/call_fixture.h"
#include "tests/io/fault_walk.h"

static const struct fault_row rows[] = {
    {"malloc", {ENOMEM}},
    {"calloc", {ENOMEM}},
    {"realloc", {ENOMEM}},
    {"mmap64", {ENOMEM}},
    {"pthread_create", {EAGAIN, ENOMEM}},
    {"sendmsg", {EAGAIN, EPIPE}},
    {"recvmsg", {EAGAIN, ENOMEM}},
    {"ibv_reg_mr", {ENOMEM}},
};

static void echo(struct call_session *session)
{
    uint8_t request[500], reply[500];
    size_t length = sizeof reply;

    fill(request, sizeof request, 3);
    request[3] &= 0x7f; /* a result that is no error */
    int result = call(session, 2, OP_ECHO, request, sizeof request, reply, &length, 2 * LIMIT_MS);
    if (!is_well(result))
        return;
    assert_int_equal(result, echo_result(request, sizeof request));
    assert_int_equal(length, sizeof reply);
    assert_memory_equal(request, reply, sizeof reply);
}

static void move(struct call_session *session, uint8_t *frames)
{
    struct piece piece = {.salt = 5, .slot = 2, .offset = 100, .length = 64 * 1024};

    fill(call_slot(session, 2), CALL_SLOT_BYTES, 5);
    if (is_well(call_slot_write(session, 2, 100, 64 * 1024))) {
        int equal = call(session, 1, OP_CHECK, &piece, sizeof piece, NULL, NULL, 2 * LIMIT_MS);
        if (is_well(equal))
            assert_int_equal(equal, 1);
    }
    if (!all_well)
        return;
    struct gaia_reaches reaches = {0};
    struct gaia_standing standing = {.address = frames, .length = 64 * KIB, .reaches = &reaches};
    memset(frames, 0, 64 * KIB);
    if (is_well(call_slot_read_into(session, 2, 100, 64 * KIB, frames, &standing)))
        assert_true(matches(frames, 64 * KIB, 5, 100));
    gaia_standing_end(&standing);
}

static void talk(struct node *server, struct call_session *session, uint8_t *frames)
{
    const uint8_t first = 0;

    echo(session);
    for (unsigned i = 0; i < 3; i++)
        is_well(call_post(session, i, OP_COUNT, NULL, 0));
    int nested = call(session, 0, OP_NEST, &first, 1, NULL, NULL, 4 * LIMIT_MS);
    if (is_well(nested))
        assert_int_equal(nested, CALL_CLASSES - 1);
    move(session, frames);
    if (all_well)
        node_await(server, &server->counted, 3);
}

static bool node_opens(struct node *node, bool server)
{
    char why[CALL_WHY];

    if (is_well(node_try(node, server, LIMIT_MS, why)))
        return true;
    node_free(node);
    return false;
}

/* Whether all of it went well. */
static bool exercise(void)
{
    static struct node server, client;
    static uint8_t *frames;
    struct call_session *session = NULL;
    unsigned told = 0;

    all_well = true;
    if (!frames)
        frames = new_frames(64 * KIB);
    if (!node_opens(&server, true))
        return false;
    if (node_opens(&client, false)) {
        if (is_well(call_connect(client.calls, server.address, &session))) {
            talk(&server, session, frames);
            call_session_abort(session);
            call_session_put(session);
            told = 1;
        }
        node_close(&client);
        assert_int_equal(client.ended, told);
    }
    node_close(&server);
    assert_int_equal(server.ended, server.arrived);
    return all_well;
}

static void test_calls(void **state)
{
    (void)state;
    walk_rows(rows, sizeof rows / sizeof *rows, carrier == GAIA_CARRIER_LOCAL ? 7 : 6, exercise);
}

int main(int argc, char **argv)
{
    return walk_main(argc, argv, "calls, what can fail", test_calls);
}
