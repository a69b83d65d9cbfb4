/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels: kernels.c, as PTX for the driver and as C for a CPU. A page is 4096 bytes. base and
 * staging are aligned to 16 bytes. A warp works on a page, whatever the size of the launch: any number of
 * blocks, threads a multiple of 32. Every parameter is 8 bytes: a pointer or a uint64_t.
 *
 *   gaia_hash_pages(const void *base, uint64_t count, struct gaia_digest *out)
 *       The digest of each page, gaia_digest_of()'s bit for bit.
 *   gaia_find_modified(const void *base, uint64_t count, const struct gaia_digest *granted,
 *                      const uint32_t *consider, uint32_t *modified, uint32_t *total)
 *       Page p's bit is bit p % 32 of word p / 32. Pages whose bit of consider is set are hashed; those
 *       whose digest is not granted[p] get their bit of modified. All of modified's (count + 31) / 32
 *       words are written, whatever was in them; consider's bits past count are not looked at. The number
 *       of modified pages is added to *total, which the caller has set to 0.
 *   gaia_any_modified(const void *base, uint64_t first, uint64_t count, const struct gaia_digest *granted,
 *                     uint64_t chunk, uint64_t room, uint32_t *any)
 *       Whether one of the pages [first, first + count) of base has another digest than was granted. Digests
 *       lie in pieces for `chunk` pages each, `room` digests apart; a digest of zero means none, and its page
 *       is not modified. *any, which the caller has set to 0, becomes 1 then; after that no more pages need
 *       be looked at.
 *   gaia_gather(const void *base, const uint32_t *pages, uint64_t count, void *staging)
 *       The i-th page of staging becomes page pages[i] of base.
 *   gaia_scatter(void *base, const uint32_t *pages, uint64_t count, const void *staging)
 *       The reverse. No page is listed twice.
 *   gaia_zero_pages(void *base, const uint32_t *pages, uint64_t count)
 *   gaia_patch(void *base, const uint32_t *pages, uint64_t count, const void *old, const void *fresh,
 *              struct gaia_digest *granted)
 *       Stores into page pages[i] of base those bytes of the i-th page of fresh that differ from old's, and
 *       no other: a kernel that stores to the others meanwhile loses nothing. granted[pages[i]] becomes the
 *       digest of the i-th page of fresh; granted may be NULL.
 *
 * For a demand mapping (demand.h), between the program's kernels:
 *
 *   gaia_demand_flush(const struct gaia_demand *demand)
 *       Gives the host each unit that was stored to; the unit stays on the device. Units that are held, or
 *       can't be given, stay dirty, and are counted: control.held, control.kept.
 *   gaia_demand_drop(const struct gaia_demand *demand, uint64_t first, uint64_t count)
 *       Drops units [first, first + count), after giving to the host what was stored to: the next touch
 *       brings them anew. Units that failed are tried again from now on. Units that are held, or can't be
 *       given, stay.
 *
 * Numbers of pages are 32 bits: base can be 16 TiB. */
#ifndef GAIAFS_GPU_KERNELS_H
#define GAIAFS_GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define GAIA_KERNEL_THREADS 256u /* of a block: what the kernels are meant to be launched with */
#define GAIA_KERNEL_PARAMETERS_MAX 7u

#ifdef __cplusplus
extern "C" {
#endif

struct gaia_grid;

struct gaia_kernel {
    const char *name;
    unsigned parameters;
    /* One block of a launch. */
    void (*run)(struct gaia_grid grid, void *const *arguments);
};

/* The first number of the compute capability of the oldest GPU that takes kernels.ptx, which is for sm_70. */
#define GAIA_KERNELS_CAPABILITY 7
/* kernels.ptx, as cuModuleLoadData() wants it: text with a NUL at its end. */
extern const char gaia_kernels_ptx[];

/* NULL: no such kernel. */
const struct gaia_kernel *gaia_kernel_find(const char *name);

/* Runs a kernel on the CPU, block after block, before it returns. arguments: where each argument is, as for
 * cuLaunchKernel(). -ENOENT: no such kernel. -EINVAL: no block, or threads is no multiple of 32 from 32 to
 * 1024. */
int gaia_kernel_cpu(const char *name, void *const *arguments, unsigned blocks, unsigned threads);

#ifdef __cplusplus
}
#endif

#endif
