/* SPDX-License-Identifier: Apache-2.0 */
/* Who tells the kernel of a size waits for answers that may not know it: for those, and for no others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/lock.h"
#include "fs/answers.h"

#define LATER_MS 200u
#define LONG_MS 900u /* less than what is waited for one that is never sent */

static uint64_t now_ms(void)
{
    return clock_now_ns() / 1000000;
}

static uint64_t wait_ms(uint64_t nodeid)
{
    uint64_t start = now_ms();

    answers_wait(nodeid);
    return now_ms() - start;
}

static struct answer *answer;
static uint64_t sent_ms;

static void *send_later(void *argument)
{
    usleep(LATER_MS * 1000);
    sent_ms = now_ms();
    answer_sent(answer);
    return argument;
}

static void test_one_that_is_not_sent_is_waited_for(void **state)
{
    pthread_t sender;

    (void)state;
    answer = answer_begin(1);
    assert_int_equal(pthread_create(&sender, NULL, send_later, NULL), 0);
    answers_wait(1);
    uint64_t now = now_ms();
    pthread_join(sender, NULL);
    assert_true(now >= sent_ms + ANSWER_TAKEN_MS - 1);
    answers_free();
}

static void test_one_that_is_sent_is_taken_a_little_later(void **state)
{
    (void)state;
    uint64_t start = now_ms();
    answer_sent(answer_begin(1));
    answers_wait(1);
    assert_true(now_ms() >= start + ANSWER_TAKEN_MS - 1);
    answers_free();
}

static void test_others_are_not_waited_for(void **state)
{
    (void)state;
    struct answer *other = answer_begin(2);
    assert_true(wait_ms(1) < LONG_MS);
    answer_sent(NULL);
    answer_sent(other);
    answers_free();
}

/* They know the size: a program that changes attributes without end keeps nobody waiting. */
static _Atomic int running;

static void *answer_without_end(void *argument)
{
    struct answer *one = answer_begin(1), *next;

    while (running) {
        next = answer_begin(1);
        answer_sent(one);
        one = next;
        usleep(1000);
    }
    answer_sent(one);
    return argument;
}

static void test_those_that_begin_meanwhile_are_not_waited_for(void **state)
{
    pthread_t answerer;

    (void)state;
    running = 1;
    assert_int_equal(pthread_create(&answerer, NULL, answer_without_end, NULL), 0);
    usleep(50000);
    uint64_t start = now_ms();
    answer_sent(answer_begin(1));
    answers_wait(1);
    uint64_t waited = now_ms() - start;
    running = 0;
    pthread_join(answerer, NULL);
    assert_true(waited >= ANSWER_TAKEN_MS - 1 && waited < LONG_MS);
    answers_free();
}

/* A handler that hangs holds nobody up for ever. */
static void test_one_that_is_never_sent(void **state)
{
    (void)state;
    (void)answer_begin(1);
    assert_in_range(wait_ms(1), LONG_MS, 60000);
    answers_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_is_not_sent_is_waited_for),
        cmocka_unit_test(test_one_that_is_sent_is_taken_a_little_later),
        cmocka_unit_test(test_others_are_not_waited_for),
        cmocka_unit_test(test_those_that_begin_meanwhile_are_not_waited_for),
        cmocka_unit_test(test_one_that_is_never_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
