/* SPDX-License-Identifier: Apache-2.0 */
/* Touches of what is not there, with a program that has a handler of SIGBUS of its own, on a stack of its
 * own. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/touch.h"

#define PAGE 4096u

static uint8_t *pages; /* the first is there, the second past the end of its file */
static char *stack;
static size_t stack_size;
static sigjmp_buf goes_on;
static volatile sig_atomic_t was_on_stack, was_masked, count;
static struct sigaction ours;

/* ThreadSanitizer has every signal blocked in a handler: the bit of SIGUSR2, for which nobody asks. */
#ifdef __SANITIZE_THREAD__
#define SANITIZED 4
#else
#define SANITIZED 0
#endif

/* What the program's handlers ask for, and no more: SIGBUS, SIGUSR1 and SIGUSR2, one bit each. */
static int mask_now(void)
{
    sigset_t now;

    pthread_sigmask(SIG_SETMASK, NULL, &now);
    return sigismember(&now, SIGBUS) | sigismember(&now, SIGUSR1) << 1 | sigismember(&now, SIGUSR2) << 2;
}

static void of_the_program(int number, siginfo_t *info, void *context)
{
    char here;

    (void)number, (void)info, (void)context;
    was_on_stack = (uintptr_t)&here - (uintptr_t)stack < stack_size;
    was_masked = mask_now();
    count++;
    siglongjmp(goes_on, 1);
}

/* The program's, put before that of libgaia, which gets what is not its own. */
static void in_front(int number, siginfo_t *info, void *context)
{
    count++;
    ours.sa_sigaction(number, info, context);
}

/* Processes of their own, as the handler is installed once in each: what it came to with other flags. */
static int other_outcomes[3];
static const int flags_of[3] = {0, SA_NODEFER, SA_RESETHAND};

static void says_how_it_is(int number)
{
    char here;

    (void)number;
    was_on_stack = (uintptr_t)&here - (uintptr_t)stack < stack_size;
    if (count++)
        _exit(64 | was_on_stack << 3 | mask_now());
    raise(SIGBUS);
    raise(SIGUSR1); /* never unblocked: the program would end with it */
    siglongjmp(goes_on, 1);
}

static void try_flags(int flags)
{
    struct sigaction program = {.sa_handler = says_how_it_is, .sa_flags = flags};

    sigaddset(&program.sa_mask, SIGUSR1);
    sigaction(SIGBUS, &program, NULL);
    touch_begin();
    alarm(20);
    if (!sigsetjmp(goes_on, 0))
        *(volatile uint8_t *)(pages + PAGE) = 1;
    if (flags & SA_RESETHAND) { /* what was raised meanwhile comes, and ends the program */
        sigset_t bus;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    }
    _exit(32 | was_on_stack << 3 | mask_now());
}

static int run_flags(int flags)
{
    int status;
    pid_t child = fork();

    if (!child)
        try_flags(flags);
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static int set_up(void **state)
{
    struct sigaction program = {.sa_sigaction = of_the_program, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    sigaddset(&program.sa_mask, SIGUSR1);
    int fd = memfd_create("one page", MFD_CLOEXEC);

    (void)state;
    stack_size = 64 << 10;
    stack = mmap(NULL, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || ftruncate(fd, PAGE) || stack == MAP_FAILED || pages == MAP_FAILED)
        return -1;
    close(fd);
    if (sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = stack_size}, NULL) ||
        sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL))
        return -1;
    for (unsigned i = 0; i < 3; i++)
        other_outcomes[i] = run_flags(flags_of[i]);
    if (sigaction(SIGBUS, &program, NULL))
        return -1;
    touch_begin();
    touch_begin();
    return sigaction(SIGBUS, NULL, &ours);
}

/* cmocka has put its own there for the test. */
static void set_handler(void)
{
    assert_int_equal(sigaction(SIGBUS, &ours, NULL), 0);
}

static void test_a_touch_that_fails_is_an_error(void **state)
{
    uint8_t bytes[PAGE], twin[PAGE] = {0};

    (void)state;
    set_handler();
    memset(bytes, 7, sizeof bytes);
    count = 0;
    assert_int_equal(touch_copy(pages, bytes, PAGE), 0);
    assert_memory_equal(pages, bytes, PAGE);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(touch_copy(pages + PAGE, bytes, PAGE), -EIO);
        assert_int_equal(touch_copy(bytes, pages + PAGE, PAGE), -EIO);
        assert_int_equal(touch_store_changed(pages + PAGE, bytes, twin, PAGE), -EIO);
    }
    assert_int_equal(count, 0);
}

static void test_a_touch_of_the_program_is_the_program_s(void **state)
{
    (void)state;
    set_handler();
    count = was_on_stack = 0;
    if (!sigsetjmp(goes_on, 1))
        *(volatile uint8_t *)(pages + PAGE) = 1;
    assert_int_equal(count, 1);
    assert_true(was_on_stack);
    assert_int_equal(was_masked & ~SANITIZED, 3); /* SIGBUS, and what its mask has */
    assert_int_equal(mask_now(), 0);
}

/* As if there were no libgaia: a handler that wants neither to be called again before it is over nor the
 * other stack, one that may be called again, and one that is called once. */
static void test_a_handler_of_the_program_has_its_flags(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    assert_true(WIFEXITED(other_outcomes[0]));
    assert_int_equal(WEXITSTATUS(other_outcomes[0]), 32 | 3);
    assert_true(WIFEXITED(other_outcomes[1]));
    assert_int_equal(WEXITSTATUS(other_outcomes[1]), 64 | 2);
    assert_true(WIFSIGNALED(other_outcomes[2]));
    assert_int_equal(WTERMSIG(other_outcomes[2]), SIGBUS);
}

static void test_a_handler_that_the_program_puts_before_ours(void **state)
{
    struct sigaction program = {.sa_sigaction = in_front, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    uint8_t byte = 1;

    (void)state;
    count = 0;
    assert_int_equal(sigaction(SIGBUS, &program, NULL), 0);
    assert_int_equal(touch_copy(pages + PAGE, &byte, 1), -EIO);
    assert_int_equal(count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_touch_that_fails_is_an_error),
                                       cmocka_unit_test(test_a_touch_of_the_program_is_the_program_s),
                                       cmocka_unit_test(test_a_handler_of_the_program_has_its_flags),
                                       cmocka_unit_test(test_a_handler_that_the_program_puts_before_ours)};

    return cmocka_run_group_tests(tests, set_up, NULL);
}
