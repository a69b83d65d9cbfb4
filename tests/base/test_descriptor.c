/* SPDX-License-Identifier: Apache-2.0 */
/* Standard descriptors that a program has closed. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/descriptor.h"

/* Without `number`; *kept_out is what it was, above the standard ones. */
static void close_one(int number, int *kept_out)
{
    *kept_out = fcntl(number, F_DUPFD_CLOEXEC, 10);
    assert_true(*kept_out >= 0);
    assert_int_equal(close(number), 0);
}

static void open_again(int number, int kept)
{
    assert_int_equal(dup2(kept, number), number);
    close(kept);
}

static void test_what_is_held_is_free_again(void **state)
{
    int held[STDERR_FILENO + 1], kept;
    (void)state;

    close_one(STDIN_FILENO, &kept);
    standard_hold(held);
    int other = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char byte = 0;
    ssize_t n = write(STDIN_FILENO, &byte, 1);
    standard_leave(held);
    int now_free = fcntl(STDIN_FILENO, F_GETFD) < 0;
    open_again(STDIN_FILENO, kept);
    assert_true(other > STDERR_FILENO);
    assert_int_equal(n, -1);
    assert_true(now_free);
    close(other);
}

/* A thread gives the program standard input just then. */
static void test_what_a_program_puts_there_stays(void **state)
{
    int held[STDERR_FILENO + 1], kept, pipe_fds[2];
    (void)state;

    assert_int_equal(pipe(pipe_fds), 0);
    close_one(STDIN_FILENO, &kept);
    standard_hold(held);
    int rc = dup2(pipe_fds[1], STDIN_FILENO);
    standard_leave(held);
    ssize_t n = write(STDIN_FILENO, "x", 1);
    open_again(STDIN_FILENO, kept);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_int_equal(rc, STDIN_FILENO);
    assert_int_equal(n, 1);
}

/* A program that may have its standard descriptors and no others (ulimit -n 3). */
static void test_where_only_standard_ones_are_allowed(void **state)
{
    struct rlimit before, few = {.rlim_cur = STDERR_FILENO + 1};
    int kept;
    (void)state;

    close_one(STDIN_FILENO, &kept);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int limited = setrlimit(RLIMIT_NOFILE, &few);
    int copy = duplicate_above_standard(fd), copy_error = errno;
    int above = above_standard(fd), above_error = errno;
    setrlimit(RLIMIT_NOFILE, &before);
    open_again(STDIN_FILENO, kept);
    assert_int_equal(fd, STDIN_FILENO);
    assert_int_equal(limited, 0);
    assert_int_equal(copy, -1);
    assert_int_equal(copy_error, EMFILE);
    assert_int_equal(above, -1);
    assert_int_equal(above_error, EMFILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_held_is_free_again),
        cmocka_unit_test(test_what_a_program_puts_there_stays),
        cmocka_unit_test(test_where_only_standard_ones_are_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
