/* SPDX-License-Identifier: Apache-2.0 */
/**
 * gaia.h - map files of a gaiafs mount into the memory of an accelerator.
 *
 * The calls look like the mmap family, which their users know: on an error they return -1 (or MAP_FAILED) and
 * set errno. The promises, for a byte range of a file:
 *
 *  - After gaia_macquire() returns, the device sees every CPU write() that returned before the call, every
 *    CPU store made before the call through a mapping of the file by any process, and every store of
 *    another device whose gaia_mrelease() returned before the call.
 *  - After gaia_mrelease() returns, every CPU read(), every CPU load through a mapping, and every other
 *    device after its acquire, see the stores that the device made before the call.
 *  - A byte that the device did not store keeps what others wrote to it, however many of them write to the
 *    same page.
 *  - If two writers wrote one byte between their synchronizations, one of the two values is kept, the same
 *    for every reader.
 *  - An acquire loses no stores in its range that are not released yet: they are collected as if released.
 *  - CPU programs call nothing: their releases and acquires happen inside those of the devices.
 *
 * Every function may be called from any thread, and none is a point of cancellation (pthread_cancel()).
 * The daemon orders calls on one range from several threads in some order. A process sends its requests to
 * the daemon of one mount one after the other: a call that takes long holds up the calls of other threads to
 * this mount (but not touches, nor calls to other mounts). A child of fork() has neither the mappings nor the
 * devices of its parent, and can't open a GPU (EIO) if its parent has started CUDA. A signal handler must not
 * call any of them, nor fork() where it may have interrupted one: that would wait for ever for locks of its
 * own thread. posix_spawn(), vfork() and _Fork() don't. A host function that the program has put into a
 * stream (cudaLaunchHostFunc()) must not call them for a GPU either: they call CUDA, which fails there, or
 * hangs.
 *
 * Errors that any call may set: ENOTCONN, the daemon of the mount is gone (touching the mapping then raises
 * SIGBUS).
 */
#ifndef GAIA_H
#define GAIA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GAIA_VERSION_MAJOR 0
#define GAIA_VERSION_MINOR 1

/** gaia_mmap() flags. The MAP_* of mmap() are none of them: the numbers of MAP_SHARED and MAP_PRIVATE mean
 * GAIA_RESIDENT and GAIA_DEMAND here. No mapping is private. */
#define GAIA_SHARED 0x0   /**< the default: stores are shared with the file */
#define GAIA_RESIDENT 0x1 /**< gaia_macquire() places the whole range */
#define GAIA_DEMAND 0x2   /**< place on first touch (the default on a device with faults) */
/** With GAIA_DEMAND on a GPU: units of 4 KiB instead of 64, for scattered touches. */
#define GAIA_SMALL_UNITS 0x4

/** gaia_madvise() advice. */
#define GAIA_ADV_NORMAL 0     /**< units of the mount (unit=), and more where many are touched */
#define GAIA_ADV_RANDOM 1     /**< fetch only the page that is touched */
#define GAIA_ADV_SEQUENTIAL 2 /**< fetch at least 512 KiB at a time */
#define GAIA_ADV_WILLNEED 3   /**< place the range now, as far as the device has room */
#define GAIA_ADV_DONTNEED 4   /**< the range may leave the device now; stores in it are released first */

/** An accelerator, opened by a process. Opaque. */
struct gaia_device;

/** Counters of a device, summed over every process that uses it, and over the mounts from which this process
 * has something mapped on it at the moment. */
struct gaia_stat {
    uint64_t capacity_bytes; /**< the most that may be resident */
    uint64_t resident_bytes; /**< bytes of files that are in the device's memory now */
    uint64_t faults;         /**< first touches served */
    uint64_t write_faults;   /**< first stores trapped */
    uint64_t bytes_in;       /**< bytes moved into the device */
    uint64_t bytes_out;      /**< bytes taken out of the device: collects and peer reads */
    uint64_t collects;       /**< pages whose released bytes were fetched */
    uint64_t merges;         /**< collects in which the home copy had changed too */
    uint64_t pages_merged;   /**< pages in which a collect changed bytes of the home copy */
    uint64_t peer_reads;     /**< pages of CPU reads that were answered from the device */
    uint64_t evictions;      /**< pages dropped to make room */
    uint64_t drops; /**< pages that were out of date at an acquire: dropped, or brought again by it */
    uint64_t twins; /**< twins held now, 4096 bytes each */
};

/**
 * Open a device: "soft:N" is memory of this machine with threads of the program as its processors, "cuda:N"
 * the N-th GPU of this process (as CUDA_VISIBLE_DEVICES has it).
 *
 * On a GPU, gaia_mmap() gives a device pointer of the GPU's primary context. Kernels, runtime-API programs
 * and libraries use it as it is; the CPU can't. Nothing can stop a kernel there, so some things differ:
 *
 *  - gaia_mmap() places the whole range, which stays until it is unmapped: GAIA_RESIDENT is the default, and
 *    the call fails with ENOMEM when the GPU has no room.
 *  - gaia_macquire() and gaia_mrelease() first wait for all that the process has given the GPU to do;
 *    gaia_macquire_on() and gaia_mrelease_on() don't. What is out of date changes in place, byte by byte: a
 *    kernel that runs meanwhile may see old and new bytes, and loses no store to other bytes.
 *  - With GAIA_DEMAND the file may be larger than the GPU's memory, and only kernels written for it see it:
 *    through a gaia_view of <gaia/gaia_device.cuh>, made of gaia_demand_parameters(). gaia_mmap() then
 *    returns a pointer of the host (the mapping's copy on soft:N, N being the GPU's number), which names the
 *    mapping in the other calls. Kernels that use the mapping must have ended before an acquire, a release, a
 *    sync and the unmap; calls in a stream fail with EOPNOTSUPP. If the program is killed, what kernels have
 *    stored and not released is lost. The view has the length that was asked for, in whole elements: also
 *    past the end of the file, and after parts were unmapped, which kernels must not touch any more.
 *    $GAIA_DEMAND_BYTES is how much memory of the GPU each such mapping uses (a quarter of what is free, no
 *    more than the mapping needs; at least 64 units, 4 MiB or with GAIA_SMALL_UNITS 256 KiB, to which a
 *    smaller value is raised). $GAIA_DEMAND_ARENA_BYTES is how much pinned memory of the host the mapping
 *    has, out of which kernels pull what they miss with no CPU involved (64 MiB; at least one unit). Both are
 *    a number above 0, and K, M, G or T behind it; anything else is EINVAL. The first such gaia_mmap() of a
 *    process installs a SIGBUS handler, for what a thread of libgaia touches. It hands every other SIGBUS on
 *    to the handler that was there before, with the mask and the flags which that one has asked for. A
 *    program that installs a handler afterwards must hand every SIGBUS that is not its own on to the old one.
 *  - Writable and read-only mappings of a file are two copies: what is stored through one is seen through the
 *    other after release and acquire. (Memory of a GPU can't be given to another process read only: so a
 *    program that maps read only could falsify what others see through read-only mappings, and nothing else.)
 *  - Two mappings of a file in one process are two addresses of one memory: a kernel that stores through
 *    one and loads through the other needs a fence between the two (fence.proxy.alias of PTX).
 *  - A touch past the end of the file, or after the daemon has gone, does not fail: past the end there are
 *    zeros, and stores to them are lost. What a file has grown by is past its end until the next acquire.
 *  - A kernel that touches what lies before or behind its mapping causes an error of the GPU (EIO from then
 *    on) only where there is no memory of the file. This memory comes in pieces of 2 to 512 MiB, each of
 *    which is mapped whole. A stray store within a piece changes other pages of the same file, and never of
 *    another file; a release by anybody who maps those pages brings it into the file.
 *
 * Each mount has soft devices of its own: 8, or as many as its option soft_devices says, up to 64. Whether a
 * mount has this device is found out when a file of it is mapped.
 *
 * **Open the device before the files** that it is to map: this call tells the mounts of this machine that
 * this process uses devices. Where Linux reads and writes files by itself (the mount option passthrough=), a
 * file that this process is then the first to open goes through the daemon instead, and its acquires need not
 * compare all that a device has of it. A mount in another network namespace (a container's) learns of this
 * process only at its first map.
 *
 * As long as a device is open, the connection to the last mount that a file was mapped from is kept, so that
 * a program that maps one file after the other connects once. It takes three descriptors (four where a part
 * of a mapping was unmapped) and a thread, because of which unshare(CLONE_NEWUSER) does not work, nor setns()
 * into another mount namespace. The program must not close these descriptors, nor those of mappings, as by
 * close_range() or dup2(), and go on with what it has mapped: calls may fail, do nothing, or wait for ever.
 * It may unmap that, and close the device: what has got their numbers is left alone. All threads that call
 * libgaia share one table of descriptors (no unshare(CLONE_FILES)).
 *
 * @param name        "soft:0" ... "soft:63", "cuda:0" ...; NULL: $GAIA_DEVICE, else the first GPU that
 *                    works, else "soft:0"; "": the same without $GAIA_DEVICE. (In a child of fork()
 *                    whose parent has started CUDA no GPU can
 *                    be opened: EIO then, and not "soft:0" in its place.)
 * @param device_out  set on success; close with gaia_device_close()
 * @return 0, or -1 with errno: EINVAL (malformed name), ENODEV (no such device: `gaiactl devices` says
 *         why), ENOMEM, EMFILE, ENFILE (no descriptor is left to look for a GPU with; also with NULL), EIO
 *         (the GPU does not start; or this is a child of fork() whose parent has started CUDA, also with
 *         NULL), ENOTSUP (this is a child of clone(), vfork() or _Fork(), which call no fork handlers, and
 *         its parent has called a function of libgaia)
 */
int gaia_device_open(const char *name, struct gaia_device **device_out);

/**
 * Close a device. What is still mapped through it is unmapped. This call releases nothing: stores that were
 * not released stay in the device's copy of the file and reach the file when that copy is evicted, acquired
 * or released. (On a mount with -o shared or node= all of a file is released and collected after its last
 * unmap.) Calls of other threads on ranges that are mapped through the device end as they would beside
 * gaia_munmap(). Later calls with this device fail with EINVAL (and a second close does nothing), until
 * another device is opened, which may get the same address. A gaia_mmap() during which the device is closed
 * fails with EINVAL, too. NULL is allowed.
 */
void gaia_device_close(struct gaia_device *device);

/**
 * Map [offset, offset + length) of a file into a device.
 *
 * The pointer is valid for the device (of a soft device: for the calling process's own threads, and in system
 * calls only for root's programs: others may get EFAULT from read() into it or write() out of it) until
 * gaia_munmap(). The file may be closed after the call. A core dump has nothing of it. A touch that cannot be
 * served raises SIGBUS (EIO of the storage, daemon gone; or the data directory has no room for what another
 * device has released of the touched pages, or for the stores that a full device holds).
 *
 * The range may be longer than the file, as with mmap(). Touching a page that lies wholly past the end of the
 * file raises SIGBUS; the rest of the file's last page is zeros, and stores to it are no part of the file.
 * All calls take the range as it was mapped: past the end there is nothing to acquire or to release. When the
 * file grows, its new pages are there after the next acquire; when it is cut, what was stored behind the cut
 * is gone.
 *
 * How much of a device files may take, and how much is placed for a touch, are the mount's options
 * device_cache= and unit=. A mount where a device can't hold one unit, or with two different units, is
 * refused when it is made: so each device of a mount has room for a touch, and all have the same unit.
 *
 * @param length  in bytes, not zero, need not be a multiple of a page
 * @param prot    PROT_READ or PROT_READ|PROT_WRITE
 * @param flags   GAIA_*; GAIA_RESIDENT and GAIA_DEMAND exclude each other, GAIA_SMALL_UNITS goes with
 *                GAIA_DEMAND only
 * @param fd      a regular file of a gaiafs mount, open for reading, and for writing too with PROT_WRITE
 * @param offset  in bytes, a multiple of 4096, not negative
 * @return the device pointer, or MAP_FAILED with errno: EACCES (fd not open for prot, or PROT_WRITE and a
 *         mount that can't write to its data directory; or the thread has made another user of itself for
 *         files, setfsuid()), EAGAIN (no thread can be had; or threads of the same user ask the mount for so
 *         much that this call was never served), EBADF, EBUSY (-o shared: another mount of the data directory
 *         has the file mapped; node=: a mount that is no node, or a node that is gone, still holds the file's
 *         lock), EINVAL (device, length, prot, flags or offset; $GAIA_DEMAND_BYTES or
 *         $GAIA_DEMAND_ARENA_BYTES), EMFILE, ENFILE (no descriptor is left, here or in the daemon; EMFILE
 *         also: the process has 4096 mappings of this mount), ENETUNREACH (the process is in another network
 *         namespace than the daemon, which can't listen there), ENODEV (fd is not a regular file of a gaiafs
 *         mount, or the mount is of another version; the mount has no such device; the GPU's driver lacks
 *         what is needed), ENOLCK (where the file has to be locked, as for EBUSY, and the data directory's
 *         filesystem can't lock), ENOMEM (no room for the mapping, also within RLIMIT_MEMLOCK after
 *         mlockall(MCL_FUTURE); or GAIA_RESIDENT and the range is larger than the device), ENOSPC, EDQUOT (on
 *         a GPU, as gaia_macquire()), ENOSYS (userfaultfd of this Linux can't do what the device needs),
 *         EOPNOTSUPP (node=: a file without a file handle), EOVERFLOW (offset + length), EPERM (Linux refuses
 *         userfaultfd to this process, and the device needs it; or the mount's daemon runs neither as root
 *         nor as this process's user, or this process may do more than its user: the daemon could store to
 *         all of its memory), EUSERS (as many programs as the daemon takes have something mapped: of one
 *         user, of one network namespace, or of all), EIO
 */
void *gaia_mmap(struct gaia_device *device, size_t length, int prot, int flags, int fd, off_t offset);

/**
 * Unmap the pages of [addr, addr + length). Parts of mappings may be unmapped. Releases nothing (see
 * gaia_device_close()). Parts of the range that are not mapped are skipped, as munmap does. The addresses of
 * an unmapped part stay reserved until all of the mapping has gone. What the program puts there with
 * MAP_FIXED stays, except in a mapping with GAIA_DEMAND, which is unmapped as a whole: put nothing there. Put
 * nothing anywhere in the moment in which another thread ends the rest of the mapping (by this call, or as
 * its call on the mapping returns): libgaia looks what is there and then frees it, which Linux can't do in
 * one step.
 *
 * A munmap() or mremap() instead of this call is not noticed: what is stored at the new address is never
 * released, and a later gaia_munmap() takes away whatever the program has put at the old one.
 *
 * On a GPU, kernels and copies in streams that use the range must have ended: what they touch may be gone,
 * upon which CUDA gives up all that the process has on this GPU. The call waits only for the default streams,
 * the process's and this thread's, unless one is being captured: in them is what a call like cuMemcpyHtoD()
 * leaves on its way when it returns.
 *
 * @return 0, or -1 with errno: EINVAL (addr not a multiple of 4096, length zero, or a range that wraps),
 *         ENOMEM (no memory for the unmap of a part, which leaves two parts; or the range begins or ends
 *         within what is mapped, and the process has as many areas of memory as it may, vm.max_map_count, or
 *         has called mlockall(MCL_FUTURE), and the part is more than it may lock still, RLIMIT_MEMLOCK,
 *         though libgaia locks nothing). After ENOMEM a part of the range may be unmapped
 */
int gaia_munmap(void *addr, size_t length);

/**
 * Acquire [addr, addr + length) for a device: from now on the device sees what was released before.
 *
 * Only pages that changed are dropped; the next touch brings the newest bytes (with GAIA_RESIDENT, this call
 * does; and of pages that lie alone, where the host's memory has them). When another thread unmaps a part of
 * the range meanwhile, the call returns 0 or EINVAL, and what is mapped there afterwards is left alone.
 *
 * @return 0, or -1 with errno: EBUSY (a stream of the GPU is being captured), EINVAL (addr not a multiple of
 *         4096, length zero, a page of the range not mapped by gaia_mmap() on this device), ENOSPC, EDQUOT,
 *         EIO (stores, another device's or those that gaia_mrelease() would write, could not be written to
 *         the data directory: they stay on their device); EIO also when another node has kept an old copy
 *         for 30 s, and when the device is broken; ENOMEM (GAIA_RESIDENT and the device has no room; or the
 *         daemon or a GPU's driver has no memory). After an error nothing is promised of what the device
 *         sees in the range, until an acquire of it succeeds.
 */
int gaia_macquire(void *addr, size_t length, struct gaia_device *device);

/**
 * Release [addr, addr + length): the device's stores may be seen by others from now on. Moves no data.
 *
 * Pages that were never acquired may be released: a page is as new as the touch that brought it. What other
 * processes have stored to the device's copy of these pages is released too, as there is one copy. Several
 * callers may release the same pages at once: when a call returns, what was stored before it is released.
 *
 * A file that CPUs have open in passthrough (docs/design.md, 7), or of a mount with -o shared, is different:
 * this call moves its bytes, and after a failure they are not released, stay with the device, and may be
 * released again.
 *
 * @return 0, or -1 with errno: EBUSY, EINVAL (as gaia_macquire()), EACCES (no part of the range is mapped
 *         for writing), ENOSPC, EDQUOT, EIO (this call could not write to the data directory what it has to:
 *         of a file in passthrough or with -o shared, or of one that CPUs of other nodes keep writing); EIO
 *         also for any file, when a GPU can't be read or is broken, and when another node does not answer;
 *         ENOMEM (for any file: the daemon or a GPU's driver has no memory). After an error a part of the
 *         range may be released; the rest may be released again.
 */
int gaia_mrelease(void *addr, size_t length, struct gaia_device *device);

struct gaia_demand;

/**
 * The parameters of views of a mapping that was made with GAIA_DEMAND on a GPU: for gaia_view's constructor
 * (gaia_device.cuh). They are valid until gaia_munmap().
 *
 * @param addr  what gaia_mmap() returned
 * @return 0, or -1 with errno: EINVAL (addr is no such mapping; a NULL argument), ENOMEM
 */
int gaia_demand_parameters(void *addr, struct gaia_demand *demand_out,
                           const struct gaia_demand **on_device_out);

/** A stream of the CUDA Driver API (CUstream) or of its runtime (cudaStream_t). */
struct CUstream_st;

/**
 * gaia_macquire() and gaia_mrelease() in the order of a stream: each happens when the stream gets there,
 * after the kernels that were put into the stream before; kernels that are put there later wait for it. The
 * caller does not wait.
 *
 * A stream that is being captured into a graph can't be used: what is put into it would happen at each
 * launch. While any stream of the GPU is being captured, gaia_macquire() and gaia_mrelease() fail with EBUSY,
 * and end the capture with an error, as all that waits for a GPU does. gaia_mmap(), gaia_munmap(),
 * gaia_stream_error() and gaia_device_close() do not disturb it, unless they unmap what is mapped with
 * GAIA_DEMAND.
 *
 * The call itself checks only its arguments. gaia_stream_error() tells what goes wrong later. The range must
 * stay mapped until the stream has got past the call. The call does not wait for other streams.
 *
 * @param stream  of the device's primary context; NULL: the default stream. On a soft device, which has no
 *                streams, only NULL is allowed, and the call is gaia_macquire() or gaia_mrelease().
 * @return 0, or -1 with errno: as gaia_macquire() and gaia_mrelease(), for arguments; EINVAL (stream),
 *         ENOMEM, EOPNOTSUPP (the stream is being captured; mapped on demand), EBUSY (NULL, and another one
 *         is being captured), EIO (the driver refuses)
 */
int gaia_macquire_on(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream);
int gaia_mrelease_on(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream);

/**
 * The first error, since this was last asked, of a call that was put into a stream of the device.
 *
 * @return 0: none; or -1 with errno: that of the call; EIO also when the device is broken (a kernel went
 *         wrong) while calls are in its streams, which will then never happen; or EINVAL (device)
 */
int gaia_stream_error(struct gaia_device *device);

/**
 * Bring released bytes of the range to storage.
 *
 * @param flags  MS_SYNC: what was released before the call is on storage when it returns; MS_ASYNC: only
 *               checks the arguments
 * @return 0, or -1 with errno: EINVAL (as gaia_macquire(), or flags), EIO, ENOMEM, ENOSPC, EDQUOT. As with
 *         fsync(), each mapping is told once of an earlier failure of anybody's sync of the file; and while
 *         bytes of the file are lost, every call fails (docs/promises.md).
 */
int gaia_msync(void *addr, size_t length, int flags);

/**
 * Say how the range will be used.
 *
 * @param advice  GAIA_ADV_*
 * @return 0, or -1 with errno: EINVAL (as gaia_macquire(), or advice), EIO, ENOMEM; ENOSPC, EDQUOT
 *         (GAIA_ADV_WILLNEED, GAIA_ADV_DONTNEED) and EBUSY (GAIA_ADV_DONTNEED), as gaia_macquire()
 */
int gaia_madvise(void *addr, size_t length, int advice);

/**
 * Read a device's counters.
 *
 * @return 0, or -1 with errno: EINVAL (a NULL argument), ENOTCONN (nothing is mapped through the device),
 *         ENOMEM
 */
int gaia_stat(struct gaia_device *device, struct gaia_stat *stat_out);

#ifdef __cplusplus
}
#endif
#endif
