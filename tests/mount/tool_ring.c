/* SPDX-License-Identifier: Apache-2.0 */
/* One write of a page to a file that is open for direct I/O, by io_uring and with RWF_DSYNC.
 *
 * usage: tool_ring FILE HOW
 *
 * HOW: "call", the kernel does it when it is asked to; "worker", in a thread of its own; "poll", in the one
 * that looks at the ring (SQPOLL). The file and the page are registered with the ring. Prints what it has
 * come to: bytes, or a negative errno. Exit status: 0; or 2, a call failed; 3, there is no such ring. */
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "tests/mount/tool.h"

static void await(int result, const char *what)
{
    errno = -result;
    if (result < 0)
        die(what);
}

int main(int argc, char **argv)
{
    char *page = aligned_alloc(PAGE, PAGE); /* Linux 6.1 registers no memory of a program's file */
    struct iovec vector = {page, PAGE};
    struct io_uring_cqe *done;
    struct io_uring ring;

    if (argc != 3 || !page)
        return 2;
    memset(page, 'r', PAGE);
    int fd = open(argv[1], O_RDWR | O_DIRECT);
    if (fd < 0)
        die(argv[1]);
    if (io_uring_queue_init(1, &ring, strcmp(argv[2], "poll") ? 0 : IORING_SETUP_SQPOLL))
        return 3;
    await(io_uring_register_files(&ring, &fd, 1), "io_uring_register_files");
    await(io_uring_register_buffers(&ring, &vector, 1), "io_uring_register_buffers");
    struct io_uring_sqe *request = io_uring_get_sqe(&ring);
    io_uring_prep_write_fixed(request, 0, page, PAGE, 0, 0);
    request->flags |= IOSQE_FIXED_FILE | (strcmp(argv[2], "worker") ? 0 : IOSQE_ASYNC);
    request->rw_flags = RWF_DSYNC;
    await(io_uring_submit(&ring), "io_uring_submit");
    await(io_uring_wait_cqe(&ring, &done), "io_uring_wait_cqe");
    printf("%d\n", done->res);
    io_uring_queue_exit(&ring);
    return 0;
}
