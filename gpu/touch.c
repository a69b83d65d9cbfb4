/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/touch.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static __thread sigjmp_buf *volatile failed_touch; /* where this thread goes on */
static struct sigaction before;                    /* written once */

static bool is_handler(const struct sigaction *action)
{
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* As the kernel would call it: with what it wants to be blocked meanwhile, which ends when ours returns, and
 * once only, if it has said so. */
static bool call_that_of_the_program(int signal, siginfo_t *info, void *context)
{
    static atomic_flag called = ATOMIC_FLAG_INIT;
    sigset_t mask = before.sa_mask;

    if (!is_handler(&before) || (before.sa_flags & (int)SA_RESETHAND && atomic_flag_test_and_set(&called)))
        return false;
    if (!(before.sa_flags & SA_NODEFER))
        sigaddset(&mask, signal);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else
        before.sa_handler(signal);
    return true;
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    if (failed_touch)
        siglongjmp(*failed_touch, 1);
    if (call_that_of_the_program(signal, info, context))
        return;
    if (before.sa_handler != SIG_IGN || info->si_code > 0) { /* of a touch, also where it is ignored */
        struct sigaction none = {.sa_handler = SIG_DFL};
        sigaction(signal, &none, NULL); /* it comes again, and ends the program */
        if (info->si_code <= 0)         /* that was sent does not */
            raise(signal);
    }
}

/* What the program's handler is interrupted by, and where it runs, is as it has asked for. */
static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};

    sigaction(SIGBUS, NULL, &before);
    ours.sa_flags |= is_handler(&before) ? before.sa_flags & SA_ONSTACK : SA_ONSTACK;
    /* What is ignored interrupts no call, nor may it now. */
    ours.sa_flags |= before.sa_handler == SIG_IGN ? SA_RESTART : before.sa_flags & SA_RESTART;
    sigaction(SIGBUS, &ours, NULL);
}

void touch_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install);
}

struct touch {
    uint8_t *to;
    const uint8_t *from, *twin;
    size_t length;
};

/* One guard for all that `work` touches: the guard is a system call, which a unit in which every second byte
 * has changed can't have for each of them. */
static int guard(void (*work)(const struct touch *touch), const struct touch *touch)
{
    sigjmp_buf here;

    if (sigsetjmp(here, 1)) {
        failed_touch = NULL;
        return -EIO;
    }
    failed_touch = &here;
    atomic_signal_fence(memory_order_seq_cst);
    work(touch);
    atomic_signal_fence(memory_order_seq_cst);
    failed_touch = NULL;
    return 0;
}

static void copy(const struct touch *touch)
{
    memcpy(touch->to, touch->from, touch->length);
}

int touch_copy(void *to, const void *from, size_t length)
{
    return guard(copy, &(struct touch){.to = to, .from = from, .length = length});
}

static void store_changed(const struct touch *touch)
{
    size_t i = 0, end;

    while (i < touch->length) {
        uint64_t from, twin;

        if (touch->length - i >= sizeof from) {
            memcpy(&from, touch->from + i, sizeof from);
            memcpy(&twin, touch->twin + i, sizeof twin);
            if (from == twin) {
                i += sizeof from;
                continue;
            }
        }
        end = touch->length - i < sizeof from ? touch->length : i + sizeof from;
        for (; i < end; i++)
            if (touch->from[i] != touch->twin[i])
                touch->to[i] = touch->from[i];
    }
}

int touch_store_changed(void *to, const void *from, const void *twin, size_t length)
{
    return guard(store_changed, &(struct touch){.to = to, .from = from, .twin = twin, .length = length});
}
