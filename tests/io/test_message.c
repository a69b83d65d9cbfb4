/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with descriptors, to a process that has no room for them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/message.h"

static int ours, peers;

static int start(void **state)
{
    int both[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both), 0);
    ours = both[0];
    peers = both[1];
    return 0;
}

static int stop(void **state)
{
    (void)state;
    close(ours);
    close(peers);
    return 0;
}

/* The lowest that is free: as many are open as before when it is the same. */
static int lowest(void)
{
    int fd = dup(ours);

    close(fd);
    return fd;
}

/* Receive with room for so many descriptors. */
static int receive(unsigned room, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS])
{
    struct rlimit before, low;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = (struct rlimit){.rlim_cur = (rlim_t)lowest() + room, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int error = gaia_message_receive(ours, message_out, fds_out);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    return error;
}

static void send_two(uint32_t map)
{
    struct gaia_message message = {.op = GAIA_OP_MAP, .map = map};

    assert_int_equal(gaia_message_send(peers, &message, (int[]){peers, peers}, 2), 0);
}

/* It is no end of the connection: the message says what was done, and the next ones come. */
static void test_without_room(void **state)
{
    int fds[GAIA_MESSAGE_FDS], first = lowest();
    struct gaia_message message;

    (void)state;
    for (unsigned room = 0; room < 2; room++) {
        send_two(7 + room);
        assert_int_equal(receive(room, &message, fds), -EMFILE);
        assert_int_equal(message.map, 7 + room);
        assert_int_equal(fds[0], -1);
        assert_int_equal(fds[1], -1);
        assert_int_equal(lowest(), first); /* those that came are closed */
    }
    send_two(9);
    assert_int_equal(receive(2, &message, fds), 0);
    assert_int_equal(message.map, 9);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(lowest(), first);
}

/* count descriptors beside length bytes. */
static void send_raw(const void *bytes, size_t length, unsigned count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
        struct cmsghdr align;
    } control = {0};
    struct iovec io = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr header = {.msg_iov = &io,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (unsigned i = 0; i < count; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &peers, sizeof(int));
    assert_int_equal(sendmsg(peers, &header, MSG_NOSIGNAL), length);
}

/* What is no message is none, with room or without; nor is one with any number of descriptors. */
static void test_no_message(void **state)
{
    struct gaia_message wrong = {.length = sizeof wrong, .version = GAIA_PROTOCOL_VERSION},
                        right = {.length = sizeof right, .version = GAIA_PROTOCOL_VERSION, .op = GAIA_OP_MAP};
    int fds[GAIA_MESSAGE_FDS], first = lowest();
    struct gaia_message message;

    (void)state;
    for (unsigned room = 0; room < 9; room += 4) {
        send_raw(&wrong, sizeof wrong, 2);
        assert_int_equal(receive(room, &message, fds), -EPROTO);
        send_raw(&right, sizeof right - 1, 2);
        assert_int_equal(receive(room, &message, fds), -EPROTO);
        send_raw(&right, 0, 2);
        assert_int_equal(receive(room, &message, fds), -ENOTCONN);
        assert_int_equal(lowest(), first);
    }
    send_raw(&right, sizeof right, 64);
    assert_int_equal(receive(64, &message, fds), -EPROTO);
    send_raw(&right, sizeof right, 8); /* a few are only closed */
    assert_int_equal(receive(64, &message, fds), 0);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(lowest(), first);
}

/* In a program that has closed 0, 1 and 2: they stay closed. room: for how many there is above them. */
static int receive_without_standard(int room, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS])
{
    int aside[3], above, error;
    struct rlimit before, low;

    for (int fd = 0; fd < 3; fd++) {
        aside[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        close(fd);
    }
    above = fcntl(ours, F_DUPFD_CLOEXEC, 3);
    close(above);
    error = getrlimit(RLIMIT_NOFILE, &before);
    low = (struct rlimit){.rlim_cur = (rlim_t)(above + room), .rlim_max = before.rlim_max};
    error = error || setrlimit(RLIMIT_NOFILE, &low) ? 1 : gaia_message_receive(ours, message_out, fds_out);
    if (setrlimit(RLIMIT_NOFILE, &before))
        error = 1;
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            error = 1;
        if (aside[fd] >= 0 && dup2(aside[fd], fd) >= 0)
            close(aside[fd]);
    }
    return error;
}

static void test_without_standard_descriptors(void **state)
{
    int fds[GAIA_MESSAGE_FDS], first = lowest();
    struct gaia_message message;

    (void)state;
    for (int room = 0; room < 2; room++) { /* the kernel finds room, and we do not */
        send_two(3);
        assert_int_equal(receive_without_standard(room, &message, fds), -EMFILE);
        assert_int_equal(lowest(), first);
    }
    send_two(4);
    assert_int_equal(receive_without_standard(2, &message, fds), 0);
    assert_int_equal(message.map, 4);
    assert_true(fds[0] > 2 && fds[1] > 2);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(lowest(), first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_room, start, stop),
        cmocka_unit_test_setup_teardown(test_no_message, start, stop),
        cmocka_unit_test_setup_teardown(test_without_standard_descriptors, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
