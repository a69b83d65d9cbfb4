/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: whose they are, how often and how long they are good. With a clock of the test's own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fs/inode.h"
#include "fs/token.h"

static time_t seconds = 1000;
static int references; /* that tokens hold to inodes */
static struct token_table table;
static struct inode *const inode = (struct inode *)&table; /* never looked into */

/* In place of libc's and of fs/inode.c's, which token.c calls. */
int clock_gettime(clockid_t clock, struct timespec *time_out)
{
    (void)clock;
    *time_out = (struct timespec){.tv_sec = seconds};
    return 0;
}

void inode_get(struct inode *of)
{
    assert_ptr_equal(of, inode);
    references++;
}

void inode_put(struct inode *of)
{
    assert_ptr_equal(of, inode);
    references--;
}

static void make_for(uint8_t secret[16], uid_t uid)
{
    const struct token wish = {
        .inode = inode, .readable = true, .thread = (pid_t)syscall(SYS_gettid), .uid = uid};

    assert_int_equal(token_make(&table, &wish, secret), 0);
}

static void make(uint8_t secret[16])
{
    make_for(secret, 7);
}

static int take(const uint8_t secret[16], pid_t pid, uid_t uid)
{
    struct token token = {0};
    int error = token_take(&table, secret, pid, uid, &token);

    if (!error) {
        assert_ptr_equal(token.inode, inode);
        assert_true(token.readable && !token.writable);
        inode_put(token.inode); /* it was handed over */
    }
    return error;
}

static int begin(void **state)
{
    (void)state;
    token_table_init(&table);
    references = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    token_table_free(&table);
    assert_int_equal(references, 0);
    return 0;
}

static void test_once(void **state)
{
    uint8_t secret[16];

    (void)state;
    make(secret);
    assert_int_equal(take(secret, getpid(), 7), 0);
    assert_int_equal(references, 0);
    assert_int_equal(take(secret, getpid(), 7), -EKEYEXPIRED);
    make(secret);
    secret[15] ^= 1;
    assert_int_equal(take(secret, getpid(), 7), -EKEYEXPIRED);
}

static void test_of_others(void **state)
{
    uint8_t secret[16];

    (void)state;
    for (uid_t uid = 6; uid <= 8; uid += 2) {
        make(secret);
        assert_int_equal(take(secret, getpid(), uid), -EACCES);
        assert_int_equal(references, 0); /* nor for a second try */
    }
    make(secret);
    assert_int_equal(take(secret, getppid(), 7), -EACCES);
    assert_int_equal(references, 0);
}

static void test_late(void **state)
{
    uint8_t secret[16];

    (void)state;
    make(secret);
    seconds += TOKEN_LIFE_S;
    assert_int_equal(take(secret, getpid(), 7), 0);
    make(secret);
    seconds += TOKEN_LIFE_S + 1;
    assert_int_equal(take(secret, getpid(), 7), -EKEYEXPIRED);
}

/* More than there is room for: the oldest goes, also of those that were made in the same second. */
static void test_many(void **state)
{
    enum { MORE = 10 };
    static uint8_t secrets[TOKENS_MAX + MORE][16];

    (void)state;
    for (unsigned i = 0; i < TOKENS_MAX + MORE; i++)
        make(secrets[i]);
    assert_int_equal(references, TOKENS_MAX);
    for (unsigned i = 0; i < TOKENS_MAX + MORE; i++)
        assert_int_equal(take(secrets[i], getpid(), 7), i < MORE ? -EKEYEXPIRED : 0);
}

/* Who asks for many takes nobody else's, before or after. */
static void test_many_of_one_user(void **state)
{
    static const uid_t others[] = {1, 2, 3, 0};
    uint8_t before[2][16], after[4][16], secret[16];

    (void)state;
    make_for(before[0], 1);
    make_for(before[1], 2);
    for (unsigned i = 0; i < 3 * TOKENS_MAX; i++)
        make(secret);
    for (unsigned i = 0; i < 4; i++)
        make_for(after[i], others[i]);
    for (unsigned i = 0; i < TOKENS_MAX / 2; i++)
        make(secret);
    assert_int_equal(references, TOKENS_MAX);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(take(before[i], getpid(), others[i]), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(take(after[i], getpid(), others[i]), 0);
    assert_int_equal(take(secret, getpid(), 7), 0);
}

/* Of so many users, each with one token, the one that has had his longest loses it: everybody has the time
 * that it takes all others to ask for one. */
static void test_many_users(void **state)
{
    enum { MORE = 10 };
    static uint8_t secrets[TOKENS_MAX + MORE][16];

    (void)state;
    for (uid_t uid = 0; uid < TOKENS_MAX + MORE; uid++)
        make_for(secrets[uid], uid);
    assert_int_equal(references, TOKENS_MAX);
    for (uid_t uid = 0; uid < TOKENS_MAX + MORE; uid++)
        assert_int_equal(take(secrets[uid], getpid(), uid), uid < MORE ? -EKEYEXPIRED : 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_once, begin, end),
        cmocka_unit_test_setup_teardown(test_of_others, begin, end),
        cmocka_unit_test_setup_teardown(test_late, begin, end),
        cmocka_unit_test_setup_teardown(test_many, begin, end),
        cmocka_unit_test_setup_teardown(test_many_of_one_user, begin, end),
        cmocka_unit_test_setup_teardown(test_many_users, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
