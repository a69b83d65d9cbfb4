/* SPDX-License-Identifier: Apache-2.0 */
/* The check of the order of locks: each step out of order ends the program and says why, and what is in order
 * does not. Checked here whatever the build's flavour. */
#ifndef GAIAFS_CHECK_LOCKS
#define GAIAFS_CHECK_LOCKS 1
#endif
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/lock.c"

static pthread_mutex_t client, cache, file, other_file, stages, ours,
    sessions = LOCK_INITIALIZER(LOCK_SESSIONS);
static pthread_mutex_t unchecked = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t gates[2], maps;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static int begin(void **state)
{
    (void)state;
    lock_init(&client, LOCK_CLIENT);
    lock_init(&cache, LOCK_CACHE);
    lock_init(&file, LOCK_FILE);
    lock_init(&other_file, LOCK_FILE);
    lock_init(&stages, LOCK_STAGES);
    pthread_mutex_init(&ours, NULL);
    lock_rw_init(&gates[0], LOCK_GATE, true);
    lock_rw_init(&gates[1], LOCK_GATE, true);
    lock_rw_init(&maps, LOCK_MAPS, false);
    return 0;
}

/* How a child that runs this ends, and what it says. */
static int run(void (*steps)(void), char text_out[512])
{
    int status, ends[2];
    size_t length = 0;
    ssize_t n;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        alarm(20); /* what should have died may wait for ever */
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        steps();
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], text_out + length, 511 - length)) > 0)
        length += (size_t)n;
    text_out[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void dies(void (*steps)(void), const char *words)
{
    char text[512];
    int status = run(steps, text);

    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(text, words))
        fail_msg("status %#x, no \"%s\" in: %s", (unsigned)status, words, text);
    assert_non_null(strstr(text, "gaiafs: lock order: tests/base/test_lock.c:"));
}

static void in_order(void)
{
    struct timespec past = {0};

    pthread_rwlock_rdlock(&gates[0]);
    pthread_rwlock_wrlock(&gates[1]);
    pthread_mutex_lock(&cache);
    pthread_mutex_lock(&file);
    pthread_mutex_lock(&stages);
    pthread_mutex_unlock(&cache); /* any order will do */
    pthread_mutex_unlock(&stages);
    pthread_rwlock_unlock(&gates[0]);
    pthread_rwlock_unlock(&gates[1]);
    pthread_mutex_lock(&unchecked);
    pthread_mutex_lock(&ours);
    pthread_mutex_unlock(&ours);
    pthread_mutex_unlock(&unchecked);
    pthread_cond_timedwait(&condition, &file, &past);
    if (pthread_rwlock_tryrdlock(&maps)) /* tried, not waited for */
        abort();
    pthread_rwlock_unlock(&maps);
    pthread_mutex_unlock(&file);
    lock_none("nothing");
    pthread_mutex_lock(&file);
    pthread_mutex_unlock(&file);
}

static void test_in_order(void **state)
{
    char text[512];

    (void)state;
    int status = run(in_order, text);
    if (status)
        fail_msg("status %#x: %s", (unsigned)status, text);
}

static void file_before_cache(void)
{
    pthread_mutex_lock(&file);
    pthread_mutex_lock(&cache);
}
static void two_files(void)
{
    pthread_mutex_lock(&file);
    pthread_mutex_lock(&other_file);
}
static void twice(void)
{
    pthread_mutex_lock(&file);
    pthread_mutex_lock(&file);
}
static void inside_leaf(void)
{
    pthread_rwlock_wrlock(&gates[0]);
    pthread_mutex_lock(&stages);
    pthread_mutex_lock(&unchecked);
    pthread_rwlock_rdlock(&gates[1]);
}
static void higher_gate_first(void)
{
    pthread_rwlock_rdlock(&gates[1]);
    pthread_rwlock_rdlock(&gates[0]);
}
static void maps_inside(void)
{
    pthread_mutex_lock(&client);
    pthread_rwlock_rdlock(&maps);
}
static void tried_then_wrong(void)
{
    if (!pthread_mutex_trylock(&file))
        pthread_mutex_lock(&cache);
}

static void test_take(void **state)
{
    (void)state;
    dies(file_before_cache, "takes cache.lock; held: cache_file.lock (tests/base/test_lock.c:");
    dies(two_files, "takes cache_file.lock; held: cache_file.lock");
    dies(twice, "takes cache_file.lock; held: cache_file.lock");
    dies(inside_leaf, "takes inode.gate; held: inode.gate (");
    dies(inside_leaf, ") stage_pool.lock (");
    dies(higher_gate_first, "takes inode.gate; held: inode.gate");
    dies(maps_inside, "takes soft_frames.maps_lock; held: cache_client.lock");
    dies(tried_then_wrong, "takes cache.lock; held: cache_file.lock");
}

static void wait_with_another(void)
{
    pthread_mutex_lock(&cache);
    pthread_mutex_lock(&file);
    pthread_cond_wait(&condition, &file);
}
static void wait_without(void)
{
    pthread_cond_wait(&condition, &file);
}
static void call_with_lock(void)
{
    pthread_mutex_lock(&file);
    lock_none("cache_host.pin");
}
static void *nothing(void *argument)
{
    return argument;
}
static void join_with_lock(void)
{
    pthread_t thread;

    pthread_mutex_lock(&file);
    if (!pthread_create(&thread, NULL, nothing, NULL))
        pthread_join(thread, NULL);
}
static void free_twice(void)
{
    pthread_mutex_lock(&file);
    pthread_mutex_unlock(&file);
    pthread_mutex_unlock(&file);
}

static void test_wait(void **state)
{
    (void)state;
    dies(wait_with_another, "waits on cache_file.lock; held: cache.lock");
    dies(wait_without, "waits without holding cache_file.lock; held: none");
    dies(call_with_lock, "no lock may be held over cache_host.pin; held: cache_file.lock");
    dies(join_with_lock, "no lock may be held over pthread_join; held: cache_file.lock");
    dies(free_twice, "frees without holding it cache_file.lock");
}

/* The child of a fork begins its locks anew, as libgaia does. */
static void fork_with_lock(void)
{
    int status = 0;

    pthread_mutex_lock(&sessions);
    pid_t child = fork();
    if (!child) {
        lock_init(&sessions, LOCK_SESSIONS);
        lock_none("the child");
        pthread_mutex_lock(&sessions);
        pthread_mutex_unlock(&sessions);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        abort();
    pthread_mutex_unlock(&sessions);
}

static void test_fork(void **state)
{
    char text[512];

    (void)state;
    int status = run(fork_with_lock, text);
    if (status)
        fail_msg("status %#x: %s", (unsigned)status, text);
}

/* The tree at the top of cache/cache.c names every class, in the order of the classes. */
static void test_tree(void **state)
{
    static const char *const names[] = {
#define X(name, text, flags) "LOCK_" #name,
        LOCK_CLASSES(X)
#undef X
    };
    char path[PATH_MAX], line[256];
    size_t next = 0;
    FILE *source = NULL;

    (void)state;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(length > 0);
    path[length] = '\0';
    for (char *cut; !source && (cut = strrchr(path, '/'));) { /* build/FLAVOUR/tests/base/test_lock */
        strcpy(cut, "/cache/cache.c");
        source = fopen(path, "re");
        *cut = '\0';
    }
    if (!source)
        skip(); /* built outside of the tree */
    while (fgets(line, sizeof line, source) && (!next || !strstr(line, "*/")))
        for (char *at = line; (at = strstr(at, "LOCK_"));) {
            size_t n = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
            if (next == sizeof names / sizeof names[0])
                fail_msg("one too many: %s", at);
            if (n != strlen(names[next]) || strncmp(at, names[next], n))
                fail_msg("not %s: %s", names[next], at);
            next++;
            at += n;
        }
    fclose(source);
    assert_int_equal(next, sizeof names / sizeof names[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_in_order, begin),
        cmocka_unit_test_setup(test_take, begin),
        cmocka_unit_test_setup(test_wait, begin),
        cmocka_unit_test_setup(test_fork, begin),
        cmocka_unit_test(test_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
