/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker says when it crashes. */
#include "crash.h"

#include <execinfo.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES 64
#define STACK_BYTES 65536

static uint8_t stack[STACK_BYTES]; /* the thread's own may be what is wrong */

static void copy_to_stderr(const char *path)
{
    char bytes[4096];
    ssize_t count;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && (count = read(fd, bytes, sizeof bytes)) > 0)
        if (write(STDERR_FILENO, bytes, (size_t)count) < 0)
            break;
    if (fd >= 0)
        close(fd);
}

/* snprintf() is not for signal handlers, but of numbers does what it does anywhere; and the process is lost.
 */
static void on_crash(int number, siginfo_t *info, void *context)
{
    void *frames[FRAMES];
    char line[128];

    (void)context;
    int length = snprintf(
        line, sizeof line, "driver: process %d, thread %ld: signal %d, code %d, address %#" PRIxPTR "\n",
        (int)getpid(), syscall(SYS_gettid), number, info->si_code, (uintptr_t)info->si_addr);
    if (write(STDERR_FILENO, line, (size_t)length) == length) {
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
        copy_to_stderr("/proc/self/maps");
    }
    raise(number); /* as if there were no handler (SA_RESETHAND): it ends by that signal, after this */
}

void tell_crashes(void)
{
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    void *frame;

    backtrace(&frame, 1); /* loads its library, which a crashed process had better not */
    if (sigaltstack(&alternate, NULL) || sigaction(SIGSEGV, &action, NULL))
        perror("driver: crashes are not told");
}
