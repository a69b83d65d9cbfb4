/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/announce.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "io/protocol.h"
#include "io/reach.h"

void gaia_announce(void)
{
    char name[sizeof GAIA_PROGRAMS_SOCKET + 8];
    struct sockaddr_un address;
    socklen_t length;
    int fd = -1;

    for (unsigned i = 0; i < GAIA_PROGRAMS_SOCKETS; i++) {
        if (fd < 0)
            fd = above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        snprintf(name, sizeof name, GAIA_PROGRAMS_SOCKET, i);
        if (fd < 0 || reach_address(name, &address, &length))
            return;
        /* Whoever it is that listens is told nothing but that, and can send nothing: to close a descriptor of
         * his may take for ever (io/reach.c). */
        if (shutdown(fd, SHUT_RD))
            break;
        if (connect(fd, (struct sockaddr *)&address, length))
            continue; /* mostly nobody does */
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        close(fd);
}
