/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/adopt.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"

static int option_of(int socket, int name)
{
    int value;
    socklen_t length = sizeof value;

    return getsockopt(socket, SOL_SOCKET, name, &value, &length) ? -1 : value;
}

/* Of a pair both ends tell who has made it. A socket that was connected tells of whom to. This is also what
 * says that the number of the process has not become another one's meanwhile. */
static bool is_pair_of(int socket, pid_t process)
{
    struct ucred maker;
    socklen_t length = sizeof maker;

    return option_of(socket, SO_DOMAIN) == AF_UNIX && option_of(socket, SO_TYPE) == SOCK_SEQPACKET &&
           !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &length) && maker.pid == process;
}

int adopt_socket(pid_t thread, int descriptor)
{
    pid_t process = thread > 0 ? thread_process(thread) : 0;

    if (!process)
        return -ESRCH;
    int handle = (int)syscall(SYS_pidfd_open, process, 0);
    if (handle < 0)
        return -errno;
    int socket = (int)syscall(SYS_pidfd_getfd, handle, descriptor, 0); /* close-on-exec */
    int error = socket < 0 ? -errno : 0;
    close(handle);
    if (error)
        return error;
    if (is_pair_of(socket, process))
        return socket;
    close(socket);
    return -EINVAL;
}
