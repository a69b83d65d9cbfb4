/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread is, by what /proc says of it, while it acts for one user after the other. As root. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fsuid.h"

#define BIT(capability) (UINT64_C(1) << (capability))

static uint64_t whole; /* what the process began with */

static void look(uid_t *fsuid_out, uint64_t *capabilities_out)
{
    char line[256];
    FILE *file = fopen("/proc/thread-self/status", "r");

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "Uid: %*u %*u %*u %u", fsuid_out);
        sscanf(line, "CapEff: %" SCNx64, capabilities_out);
    }
    fclose(file);
}

/* resource: whether the thread has CAP_SYS_RESOURCE, if the process did. */
static void expect(uid_t uid, bool over_files, bool resource)
{
    uid_t fsuid = (uid_t)-1;
    uint64_t capabilities = 0;

    look(&fsuid, &capabilities);
    assert_int_equal(fsuid, uid);
    assert_int_equal(!!(capabilities & BIT(CAP_FSETID)), over_files);
    assert_int_equal(!!(capabilities & BIT(CAP_DAC_OVERRIDE)), over_files);
    assert_int_equal(!!(capabilities & BIT(CAP_SYS_RESOURCE)), resource && whole & BIT(CAP_SYS_RESOURCE));
    assert_true(capabilities & BIT(CAP_SYS_ADMIN));
}

static void test_users_one_after_the_other(void **state)
{
    (void)state;
    expect(0, true, true);
    assert_int_equal(fsuid_set((struct fsuid){1000, false}), 0);
    expect(1000, false, false);
    assert_int_equal(fsuid_set((struct fsuid){1001, true}), 0);
    expect(1001, true, false);
    assert_int_equal(fsuid_set((struct fsuid){1001, false}), 0);
    expect(1001, false, false);
    assert_int_equal(fsuid_set((struct fsuid){0, true}), 0);
    expect(0, true, true);
    assert_int_equal(fsuid_set((struct fsuid){1000, true}), 0);
    expect(1000, true, false);
    assert_int_equal(fsuid_set(FSUID_SELF), 0);
    expect(0, true, false); /* as it was left */
    assert_int_equal(fsuid_set((struct fsuid){0, true}), 0);
    expect(0, true, true);
    assert_int_equal(fsuid_set(FSUID_SELF), 0);
    expect(0, true, true);
}

static void test_a_capability_that_is_dropped_stays_away(void **state)
{
    uid_t uid;
    uint64_t capabilities;

    (void)state;
    assert_true(fsuid_is_capable(CAP_FSETID));
    assert_int_equal(fsuid_drop_capabilities(BIT(CAP_FSETID)), 0);
    for (int user = 0; user < 2; user++) {
        fsuid_set((struct fsuid){user ? 1000 : 0, true});
        look(&uid, &capabilities);
        assert_false(capabilities & BIT(CAP_FSETID));
        assert_true(capabilities & BIT(CAP_DAC_OVERRIDE));
        fsuid_set(FSUID_SELF);
        look(&uid, &capabilities);
        assert_false(capabilities & BIT(CAP_FSETID));
    }
    assert_int_equal(fsuid_drop_capabilities(0), 0);
    fsuid_set((struct fsuid){0, true});
    expect(0, true, true);
    fsuid_set(FSUID_SELF);
}

static void test_writes(void **state)
{
    char name[] = "/var/tmp/gaiafs-test-XXXXXX";
    int fd = mkstemp(name);

    (void)state;
    assert_true(fd >= 0 && !unlink(name) && !fchown(fd, 1002, 0));
    fsuid_begin_write(fd); /* nobody in particular */
    expect(1002, true, false);
    errno = EDQUOT;
    fsuid_end_write();
    assert_int_equal(errno, EDQUOT);
    expect(0, true, false);
    fsuid_write_for((struct fsuid){1003, false});
    expect(0, true, false);
    fsuid_begin_write(fd);
    expect(1003, false, false);
    fsuid_end_write();
    fsuid_begin_write_of_owner(fd);
    expect(1002, true, false);
    fsuid_end_write();
    fsuid_write_for((struct fsuid){0, true});
    fsuid_begin_write(fd);
    expect(0, true, true);
    fsuid_end_write();
    fsuid_write_for(FSUID_SELF);
    fsuid_begin_write(fd);
    expect(1002, true, false);
    fsuid_end_write();
    close(fd);
}

/* A thread begins with what its maker has at that moment. */
static void *be_made(void *argument)
{
    (void)argument;
    fsuid_set((struct fsuid){0, true});
    expect(0, true, true);
    return NULL;
}

static void test_a_thread_of_one_who_has_less(void **state)
{
    pthread_t thread;

    (void)state;
    fsuid_set((struct fsuid){1000, true});
    fsuid_set(FSUID_SELF);
    assert_int_equal(pthread_create(&thread, NULL, be_made, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect(0, true, false);
}

static int drop_setuid(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data))
        return -1;
    data[0].effective &= ~CAP_TO_MASK(CAP_SETUID);
    return (int)syscall(SYS_capset, &header, data);
}

static int fix_nothing_up(void)
{
    return prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
}

static int forbid_capset(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_capset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Whether a thread comes back from users' writes with what it had. */
static void *write_for_users(void *argument)
{
    bool *right = argument;
    uint64_t before, within, after;
    uid_t uid;

    look(&uid, &before);
    for (uid_t user = 1000; user < 1003; user++) {
        *right = *right && fsuid_set((struct fsuid){user, false}) == 0;
        look(&uid, &within);
        fsuid_set(FSUID_SELF);
        look(&uid, &after);
        *right = *right && uid == 0 && !(within & (BIT(CAP_FSETID) | BIT(CAP_DAC_OVERRIDE))) &&
                 (after | BIT(CAP_SYS_RESOURCE)) == (before | BIT(CAP_SYS_RESOURCE));
    }
    return NULL;
}

static void *work_for_root(void *argument)
{
    *(bool *)argument = fsuid_set((struct fsuid){0, true}) == 0;
    return NULL;
}

static int spare_threads(void)
{
    fsuid_spare_threads();
    return 0;
}

static void *write_for_nobody(void *argument)
{
    char name[] = "/var/tmp/gaiafs-test-XXXXXX";
    int fd = mkstemp(name);
    uid_t uid = (uid_t)-1;
    uint64_t capabilities;

    if (fd < 0 || unlink(name) || fchown(fd, 1002, 0))
        return NULL;
    fsuid_begin_write(fd);
    look(&uid, &capabilities);
    *(bool *)argument = uid == 0 && capabilities == whole;
    fsuid_end_write();
    close(fd);
    return NULL;
}

/* Containers and sandboxes in which setfsuid() does less, or capset() nothing; and where threads are
 * spared. */
static void test_sandboxes(void **state)
{
    static const struct {
        int (*enter)(void);
        void *(*work)(void *);
    } cases[] = {{drop_setuid, write_for_users},
                 {fix_nothing_up, write_for_users},
                 {forbid_capset, work_for_root},
                 {spare_threads, write_for_nobody}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = 0;
        pid_t child = fork();

        if (child == 0) {
            pthread_t thread;
            bool right = true;

            if (cases[i].enter())
                _exit(2);
            fsuid_init();
            if (pthread_create(&thread, NULL, cases[i].work, &right) || pthread_join(thread, NULL))
                _exit(3);
            _exit(right ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static int setup(void **state)
{
    uid_t uid;

    (void)state;
    look(&uid, &whole);
    if (geteuid() || !(whole & BIT(CAP_FSETID)) || !(whole & BIT(CAP_SYS_ADMIN)))
        exit(77);
    fsuid_set((struct fsuid){1000, true});
    expect(0, true, true); /* not begun */
    fsuid_init();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users_one_after_the_other),
        cmocka_unit_test(test_a_capability_that_is_dropped_stays_away),
        cmocka_unit_test(test_writes),
        cmocka_unit_test(test_a_thread_of_one_who_has_less),
        cmocka_unit_test(test_sandboxes),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
