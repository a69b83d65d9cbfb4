/* SPDX-License-Identifier: Apache-2.0 */
/* As whose a process counts of which little can be seen. What is seen: tests/mount/test_numbers.py. */
#include <grp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/listener.h"

static uid_t user_of(pid_t pid)
{
    return listener_user(&(struct ucred){.pid = pid, .uid = 7});
}

static void test_one_here(void **state)
{
    (void)state;
    assert_int_equal(user_of(getpid()), 7);
}

/* Nobody can be in such a place who was not put there: its users are not one. */
static void test_one_outside_our_pid_namespace(void **state)
{
    (void)state;
    assert_int_equal(user_of(0), 7);
}

static void test_one_that_has_ended(void **state)
{
    pid_t pid = fork();

    (void)state;
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(user_of(pid), LISTENER_NO_USER);
}

#define CANT 2

/* By a user from whom /proc hides the processes of others. */
static int look_hidden(pid_t pid)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("proc", "/proc", "proc", 0, "hidepid=2") || setgroups(0, NULL) || setresgid(4001, 4001, 4001) ||
        setresuid(4001, 4001, 4001))
        return CANT;
    return user_of(pid) == 7 ? 0 : 1;
}

static void test_one_that_proc_hides(void **state)
{
    pid_t roots = getpid(), pid = fork();
    int status;

    (void)state;
    if (pid == 0)
        _exit(look_hidden(roots));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WEXITSTATUS(status) == CANT)
        skip();
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_here),
        cmocka_unit_test(test_one_outside_our_pid_namespace),
        cmocka_unit_test(test_one_that_has_ended),
        cmocka_unit_test(test_one_that_proc_hides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
