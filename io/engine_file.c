/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine's files: the caller's descriptor, and beside it one that reads past the page cache
 * (O_DIRECT). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/proc_path.h"
#include "io/engine_internal.h"

/* Linux 6.1; the fields' places in struct statx, which older headers pad. */
#define STATX_DIOALIGN_MASK 0x2000u
#define STATX_DIO_MEM_ALIGN 0x98
_Static_assert(sizeof(struct statx) == 256, "struct statx is not the kernel's");

/* The multiple that buffer, length and offset of a direct read must be of; 0: the file refuses O_DIRECT. */
static unsigned direct_alignment(int fd)
{
    struct statx status;
    uint32_t align[2]; /* of memory, of offsets */
    unsigned most;

    memset(&status, 0, sizeof status);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN_MASK, &status) < 0 ||
        !(status.stx_mask & STATX_DIOALIGN_MASK))
        return GAIA_IO_DIRECT_ALIGN_MAX; /* an older kernel, or a file system that doesn't say: enough for all
                                          */
    memcpy(align, (const char *)&status + STATX_DIO_MEM_ALIGN, sizeof align);
    if (align[0] == 0 || align[1] == 0)
        return 0;
    most = align[0] > align[1] ? align[0] : align[1];
    return most > GAIA_IO_DIRECT_ALIGN_MAX || (most & (most - 1)) ? 0 : most;
}

/* Whatever stops it (no /proc, no permission, no descriptors left, a file system without): reads are buffered
 * then. */
static void open_direct(struct gaia_io_file *file, int flags)
{
    unsigned alignment = direct_alignment(file->buffered.fd);

    file->direct = (struct gaia_io_fd){.fd = -1, .slot = -1};
    if (alignment == 0 ||
        (flags & O_ACCMODE) == O_WRONLY) /* what fd may not read, a second descriptor must not */
        return;
    file->direct.fd =
        open(proc_path(file->buffered.fd).text, O_RDONLY | O_DIRECT | O_CLOEXEC | (flags & O_NOATIME));
    file->direct_mask = alignment - 1;
}

int gaia_io_file_open(struct gaia_io *io, int fd, struct gaia_io_file **file_out)
{
    struct gaia_io_file *file;
    struct stat status;
    int flags;

    if (!io || !file_out)
        return -EINVAL;
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH))
        return -EBADF;
    if (fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || (flags & O_DIRECT)) /* that would refuse what isn't aligned */
        return -EINVAL;

    file = calloc(1, sizeof *file);
    if (!file)
        return -ENOMEM;
    file->io = io;
    file->buffered = (struct gaia_io_fd){.fd = fd, .slot = -1};
    open_direct(file, flags);
    io->backend->file_add(io, &file->buffered);
    if (file->direct.fd >= 0)
        io->backend->file_add(io, &file->direct);
    pthread_mutex_lock(&io->lock);
    file->next = io->files;
    file->link = &io->files;
    if (file->next)
        file->next->link = &file->next;
    io->files = file;
    pthread_mutex_unlock(&io->lock);
    *file_out = file;
    return 0;
}

void gaia_io_file_free(struct gaia_io_file *file)
{
    struct gaia_io *io = file->io;

    pthread_mutex_lock(&io->lock);
    assert(file->in_flight == 0);
    *file->link = file->next;
    if (file->next)
        file->next->link = file->link;
    pthread_mutex_unlock(&io->lock);
    io->backend->file_remove(io, &file->buffered);
    if (file->direct.fd >= 0) {
        io->backend->file_remove(io, &file->direct);
        close(file->direct.fd); /* read-only: there is nothing that it could fail to write */
    }
    free(file);
}

void gaia_io_file_close(struct gaia_io_file *file)
{
    struct gaia_io *io;

    if (!file)
        return;
    io = file->io;
    assert(!gaia_io_thread_is_own(io));
    gaia_io_urge(io);
    pthread_mutex_lock(&io->lock);
    while (file->in_flight > 0)
        pthread_cond_wait(&io->idle, &io->lock);
    pthread_mutex_unlock(&io->lock);
    gaia_io_calm(io);
    gaia_io_file_free(file);
}
