/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for somebody else's attempt to meet a node, and for how many of them. The calls that connect are
 * the test's: link with --wrap for call_connect and pthread_cond_wait. */
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/internal.h"
#include "cache/meet.h"
#include "cache/meeter.h"
#include "io/call.h"

enum { SELF, OTHER, ATTEMPTS_MAX = 8 };

static struct members members = {.count = 2};
static struct cache cache;
static struct nodes nodes;
static atomic_uint attempts;
static sem_t begun, waiting, go_on;

int __wrap_call_connect(struct calls *calls, const char *address, struct call_session **session_out);
int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);

/* Nobody is there; which is known when go_on says so. */
int __wrap_call_connect(struct calls *calls, const char *address, struct call_session **session_out)
{
    (void)calls, (void)address, (void)session_out;
    attempts++;
    sem_post(&begun);
    sem_wait(&go_on);
    return -ETIMEDOUT;
}

/* The lock is held until it is waited for, so that what the waiter waits for comes after that. */
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    if (condition == &nodes.changed)
        sem_post(&waiting);
    return __real_pthread_cond_wait(condition, lock);
}

static int begin(void **state)
{
    (void)state;
    alarm(60);
    cache = (struct cache){.nodes = &nodes};
    nodes = (struct nodes){.cache = &cache, .members = &members, .numbers = 2, .self = SELF};
    nodes.homes[SELF].listed = nodes.homes[OTHER].listed = true;
    lock_init(&nodes.lock, LOCK_NODES);
    lock_condition_init(&nodes.changed);
    lock_condition_init(&nodes.stopped);
    attempts = 0;
    return sem_init(&begun, 0, 0) || sem_init(&waiting, 0, 0) || sem_init(&go_on, 0, 0);
}

static int end(void **state)
{
    (void)state;
    alarm(0);
    sem_destroy(&go_on);
    sem_destroy(&waiting);
    sem_destroy(&begun);
    pthread_cond_destroy(&nodes.stopped);
    pthread_cond_destroy(&nodes.changed);
    pthread_mutex_destroy(&nodes.lock);
    return 0;
}

static void *get(void *argument)
{
    struct call_session *session;

    *(int *)argument = nodes_get_home(&nodes, OTHER, &session);
    return NULL;
}

static void *meet_missed(void *argument)
{
    nodes_meet_missed(&nodes);
    return argument;
}

static pthread_t start(void *(*fn)(void *), void *argument)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, fn, argument), 0);
    return thread;
}

static void test_programs_share_an_attempt(void **state)
{
    enum { PROGRAMS = 5 };
    pthread_t threads[PROGRAMS];
    int errors[PROGRAMS] = {0};

    (void)state;
    threads[0] = start(get, &errors[0]);
    sem_wait(&begun);
    for (unsigned i = 1; i < PROGRAMS; i++)
        threads[i] = start(get, &errors[i]);
    for (unsigned i = 1; i < PROGRAMS; i++)
        sem_wait(&waiting);
    sem_post(&go_on);
    for (unsigned i = 0; i < PROGRAMS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(attempts, 1);
    for (unsigned i = 0; i < PROGRAMS; i++)
        assert_int_not_equal(errors[i], 0);
    assert_true(nodes.homes[OTHER].down);
}

/* A node that has stood still looks for others that took it to be dead. What it had begun before says nothing
 * of where they are now. */
static void test_an_attempt_of_before_is_not_enough(void **state)
{
    int error = 0;

    (void)state;
    pthread_t before = start(get, &error);
    sem_wait(&begun);
    pthread_t asker = start(meet_missed, NULL);
    sem_wait(&waiting);
    sem_post(&go_on);
    pthread_join(before, NULL);
    sem_post(&go_on);
    pthread_join(asker, NULL);
    assert_int_equal(attempts, 2);
}

/* That one tells as much as its own would. */
static void test_an_attempt_of_others_since_then_is_enough(void **state)
{
    struct nodes_home *home = &nodes.homes[OTHER];
    int error = 0;

    (void)state;
    home->connecting = true;
    pthread_t asker = start(meet_missed, NULL);
    sem_wait(&waiting);
    pthread_mutex_lock(&nodes.lock); /* the one of before ends, and another begins at once */
    home->tried++;
    pthread_cond_broadcast(&nodes.changed);
    pthread_mutex_unlock(&nodes.lock);
    sem_wait(&waiting);
    pthread_mutex_lock(&nodes.lock);
    home->tried++;
    home->connecting = false;
    pthread_cond_broadcast(&nodes.changed);
    pthread_mutex_unlock(&nodes.lock);
    pthread_join(asker, NULL);
    assert_int_equal(attempts, 0);
    sem_post(&go_on);
    get(&error); /* who comes then tries himself */
    assert_int_equal(attempts, 1);
    assert_int_not_equal(error, 0);
}

/* Nor does it wait for anybody. */
static void test_who_meets_again_leaves_it_to_others(void **state)
{
    int error = 0;

    (void)state;
    pthread_t before = start(get, &error);
    sem_wait(&begun);
    assert_int_equal(nodes_meet(&nodes, OTHER), 0);
    sem_post(&go_on);
    pthread_join(before, NULL);
    assert_int_equal(attempts, 1);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_programs_share_an_attempt),
        CASE(test_an_attempt_of_before_is_not_enough),
        CASE(test_an_attempt_of_others_since_then_is_enough),
        CASE(test_who_meets_again_leaves_it_to_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
