/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine: reads of the data directory's files with io_uring, many in flight. The same interface
 * on a pool of threads (GAIA_IO_THREADS) where io_uring is refused. Writes do not come here: they go to the
 * page cache with pwrite(), under the file's lock (cache/cpu.c, cache/collect.c).
 *
 * Thread safety: all functions but open and close may be called from any thread. Completions are delivered on
 * the engine's own thread(s); a completion callback may submit (it never waits for that), may take locks that
 * no submitter holds while it waits for the engine, and must not call gaia_io_close() or
 * gaia_io_file_close(). With io_uring the kernel runs part of a completion in the thread that pushed the
 * request: an epoll_wait(2), or another call that is not restarted after a signal, may return EINTR there. An
 * engine is of no use to a child after fork(2).
 */
#ifndef GAIAFS_IO_ENGINE_H
#define GAIAFS_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gaia_io;

enum gaia_io_kind {
    GAIA_IO_URING,
    GAIA_IO_THREADS,
};

struct gaia_io_config {
    enum gaia_io_kind kind;
    unsigned depth; /* requests in flight at the most, 1 to 4096; further submitters wait */
    /* Memory to register for O_DIRECT, or NULL. It must stay mapped until gaia_io_close(), and keep its pages
     * (no MADV_DONTNEED, no hole punching): the kernel would go on filling the old ones. */
    void *buffers;
    size_t buffers_length; /* bytes; split inside into the pieces that the kernel accepts (1 GiB each) */
    unsigned files;        /* slots of registered files, 0 to 65536 */
};

/* Start an engine. 0; or -EINVAL (config), -ENOSYS or -EPERM (the kernel refuses io_uring: the caller says so
 * or takes GAIA_IO_THREADS), -ENOMEM (newer kernels count the ring, up to 80 KiB, against RLIMIT_MEMLOCK),
 * -EMFILE, -ENFILE, -EAGAIN (no thread to be had). If buffers cannot be registered (RLIMIT_MEMLOCK), that is
 * no error: see gaia_io_registered(). */
int gaia_io_open(const struct gaia_io_config *config, struct gaia_io **io_out);

/* Waits for everything in flight (its callbacks run), then frees, with the files that are still open. NULL is
 * allowed. */
void gaia_io_close(struct gaia_io *io);

/* Whether the buffers could be registered: for a log line and for statistics. */
bool gaia_io_registered(const struct gaia_io *io);

/* A file of the engine: a buffered descriptor and, where the file system allows it, an O_DIRECT one; both
 * registered while slots are free. */
struct gaia_io_file;

/* fd: an open descriptor of a regular file; it is not closed by the engine and must stay open until
 * gaia_io_file_close(). Tries to reopen it with O_DIRECT by itself (through /proc/self/fd), and with fd's
 * O_NOATIME; where that is refused, or fd is for writing only, reads are buffered. Closing the second
 * descriptor drops the process's fcntl(2) record locks on the file, as any close does; OFD locks stay. 0,
 * -ENOMEM, -EBADF, -EINVAL (not a regular file; or opened with O_DIRECT, which would refuse what is not
 * aligned). */
int gaia_io_file_open(struct gaia_io *io, int fd, struct gaia_io_file **file_out);

/* Waits for the file's requests in flight (their callbacks run). NULL is allowed. */
void gaia_io_file_close(struct gaia_io_file *file);

/* Called once for each submitted read. result: bytes read (fewer than asked only at the end of the file), or
 * a negative errno. Short reads, EINTR and EAGAIN were dealt with by the engine. */
typedef void gaia_io_done(void *context, ssize_t result);

/* Submit a read of length bytes at offset. Goes through O_DIRECT when the file allows it and buffer, length
 * and offset are multiples of the file's direct alignment (at most 4096), else buffered; a direct read that
 * fails with EINVAL, or stops at an unaligned tail, is finished buffered. buffer must live until done was
 * called. 0 when done will be called; or -EINVAL (length 0 or over 1 GiB, offset negative), or -ENOMEM (only
 * in a callback, when the depth is used up), and done is not called. */
int gaia_io_read(struct gaia_io *io, struct gaia_io_file *file, void *buffer, size_t length, off_t offset,
                 gaia_io_done *done, void *context);

/* Push to the kernel what gaia_io_read() has queued. Submitters that queue several requests call it once at
 * the end. The engine pushes by itself when its queue is full, while a thread waits for the engine, and for
 * requests that callbacks queue. */
void gaia_io_submit(struct gaia_io *io);

/* Counters, for `gaiactl stat`. */
struct gaia_io_stat {
    uint64_t reads;
    uint64_t direct_reads; /* of reads: those answered through O_DIRECT */
    uint64_t bytes_read;
    uint64_t resubmits; /* short reads, EINTR, EAGAIN */
    uint64_t in_flight_max;
};
void gaia_io_stat(const struct gaia_io *io, struct gaia_io_stat *stat_out);

#endif
